/* table.h - the rows of a CSV file, a JSON array, CoNLL data or a Parquet file, as JSON lines.
 *
 *     struct table_want want = {.name = {"text"}, .count = 1};
 *     table_open(file, (struct table_source){read, arg}, &want, &table, &err);
 *     table_read(table, buf, sizeof buf, &got, &err);          // got < sizeof buf: the end
 *     table_close(table);
 *
 * Rows are converted while they are read, so a table takes a fixed amount of memory however long its rows are. What is
 * read is a pure function of the file and of `want`, so a place in it is the same place the next time.
 *
 * Each row is written on the line on which it begins in the file, with empty lines for a header and for the rest of a row
 * of several lines: whoever counts lines counts those of the file. A Parquet file has no lines; there it is the number
 * of the row.
 *
 * PLIM_BAD_INPUT names the file, and the line where there is one.
 */
#ifndef PLIM_DATA_TABLE_H
#define PLIM_DATA_TABLE_H

#include "base/status.h"
#include "data/inputs.h"

enum { TABLE_FIELDS = 4 };

/* Which fields the reader needs. Others are left out; with none given, all are there. */
struct table_want {
    const char *name[TABLE_FIELDS];
    bool optional[TABLE_FIELDS]; /* a file without it is fine */
    bool number[TABLE_FIELDS];   /* a number where it reads as one: CSV has only texts */
    int count;
    bool skip_bad; /* a bad row becomes a line that is no JSON, instead of an error */
};

/* Where bytes come from, decompressed; as byte_stream_read. */
struct table_source {
    enum plim_status (*read)(void *arg, void *buf, size_t n, size_t *got, struct plim_error *err);
    void *arg;
};

struct table;

/* Reads what names the columns; a file that lacks a wanted one is PLIM_BAD_INPUT with the names it has. */
enum plim_status table_open(const struct input_file *file, struct table_source source,
                            const struct table_want *want, struct table **out, struct plim_error *err);
void table_close(struct table *table);
enum plim_status table_read(struct table *table, char *buf, size_t n, size_t *got, struct plim_error *err);

/* The most memory a table of this file takes. */
size_t table_bytes_most(const struct input_file *file);

#endif
