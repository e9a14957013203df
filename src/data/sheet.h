/* sheet.h - the rows of a CSV file, a JSON array, CoNLL data or a Parquet file, as JSON lines.
 *
 *     struct sheet_want want = {.name = {"text"}, .count = 1};
 *     sheet_open(file, (struct sheet_source){read, arg}, &want, &sheet, &err);
 *     sheet_read(sheet, buf, sizeof buf, &got, &err);          // got < sizeof buf: the end
 *     sheet_close(sheet);
 *
 * Rows are converted while they are read, so a table takes a fixed amount of memory however long its rows are
 * (a Parquet file: what its largest pages take). What is
 * read is a pure function of the file and of `want`, so a place in it is the same place the next time.
 *
 * Each row is written on the line on which it begins in the file, with empty lines for a header and for the rest of a row
 * of several lines: whoever counts lines counts those of the file. A Parquet file has no lines, and rows are counted.
 *
 * PLIM_BAD_INPUT names the file, and the line where there is one.
 */
#ifndef PLIM_DATA_SHEET_H
#define PLIM_DATA_SHEET_H

#include "base/status.h"
#include "data/inputs.h"

enum { SHEET_FIELDS = 4 };

/* Which fields the reader needs. Others are left out; with none given, all are there. */
struct sheet_want {
    const char *name[SHEET_FIELDS];
    bool optional[SHEET_FIELDS]; /* a file without it is fine */
    bool number[SHEET_FIELDS];   /* a number where it reads as one: CSV has only texts */
    int count;
    bool skip_bad; /* a bad row becomes a line that is no JSON, instead of an error */
};

/* Where bytes come from, decompressed; as byte_stream_read. */
struct sheet_source {
    enum plim_status (*read)(void *arg, void *buf, size_t n, size_t *got, struct plim_error *err);
    void *arg;
};

struct sheet;

/* Reads what names the columns; a file that lacks a wanted one is PLIM_BAD_INPUT with the names it has. */
enum plim_status sheet_open(const struct input_file *file, struct sheet_source source,
                            const struct sheet_want *want, struct sheet **out, struct plim_error *err);
void sheet_close(struct sheet *sheet);
enum plim_status sheet_read(struct sheet *sheet, char *buf, size_t n, size_t *got, struct plim_error *err);

/* The most memory that this one takes beside its buffers: of a Parquet file known once its pages have been looked at. */
size_t sheet_bytes_of(const struct sheet *sheet);
/* The most memory a table of this file takes. Of a Parquet file file->sheet_bytes must have been set. */
size_t sheet_bytes_most(const struct input_file *file);

#endif
