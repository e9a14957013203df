/* sheet.h - converts the rows of CSV, a JSON array, CoNLL or Parquet to JSON lines.
 *
 *     struct sheet_want want = {.name = {"text"}, .count = 1};
 *     sheet_open(file, (struct sheet_source){read, arg}, &want, &sheet, &err);
 *     sheet_read(sheet, buf, sizeof buf, &got, &err);          // got < sizeof buf: the end
 *     sheet_close(sheet);
 *
 * Rows are converted as they are read, so a table needs a fixed amount of memory for rows of any length (for Parquet, that
 * of its largest pages). The output is a pure function of the file and of `want`, so an offset in it stays valid.
 *
 * Each row is written on the line where it begins in the file, with empty lines for a header and for the other lines of a
 * row; so line numbers are those of the file. A Parquet file has no lines; its rows are counted.
 *
 * PLIM_BAD_INPUT names the file, and the line where there is one.
 */
#pragma once

#include "base/status.h"
#include "data/inputs.h"

enum { SHEET_FIELDS = 8 };

/* Fields that the caller needs. Others are left out; count 0: all fields. */
struct sheet_want {
    const char *name[SHEET_FIELDS];
    bool optional[SHEET_FIELDS]; /* a file without it is fine */
    bool number[SHEET_FIELDS];   /* written as a number if it reads as one: CSV has only texts */
    int count;
    bool skip_bad; /* a bad row becomes a line that is not JSON, instead of an error */
};

/* Source of decompressed bytes; like byte_stream_read. */
struct sheet_source {
    enum plim_status (*read)(void *arg, void *buf, size_t n, size_t *got, struct plim_error *err);
    void *arg;
};

struct sheet;

/* Reads the column names. If a wanted column is missing, PLIM_BAD_INPUT lists the names of the file. */
enum plim_status sheet_open(const struct input_file *file, struct sheet_source source,
                            const struct sheet_want *want, struct sheet **out, struct plim_error *err);
void sheet_close(struct sheet *sheet);
enum plim_status sheet_read(struct sheet *sheet, char *buf, size_t n, size_t *got, struct plim_error *err);

/* Maximum memory of this table besides buffers. For Parquet it is known once the pages have been examined. */
size_t sheet_bytes_of(const struct sheet *sheet);
/* Maximum memory of a table of this file. For Parquet, file->sheet_bytes must be set. */
size_t sheet_bytes_most(const struct input_file *file);
