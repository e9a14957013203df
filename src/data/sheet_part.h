/* sheet_part.h - the interface of table readers; internal to sheet.c and the readers.
 *
 * A reader has one `fill`: it takes input with sheet_more and writes JSON to the output until sheet_full or the end of the
 * input. One step writes at most SHEET_STEP bytes, so sheet_full need only be checked between steps.
 */
#pragma once

#include "base/strbuf.h"
#include "data/sheet.h"
#include <stdint.h>

enum { SHEET_IN = 16384, SHEET_OUT = 16384, SHEET_STEP = 32768 };

struct sheet {
    const char *path;
    struct sheet_source source;
    struct sheet_want want;
    const struct sheet_reader *reader;
    void *state; /* the reader's own */
    char *in;    /* [SHEET_IN] */
    size_t in_at, in_len;
    bool in_end;
    char *out; /* [SHEET_OUT + SHEET_STEP] */
    size_t out_at, out_len;
    uint64_t line;   /* of the input, from 1 */
    uint64_t inside; /* line ends inside the current row; they become owed at its end */
    uint64_t owed;   /* line ends to write before anything else */
    bool ended;      /* fill has no more output */
};

struct sheet_reader {
    /* Creates t->state and reads the column names. */
    enum plim_status (*open)(struct sheet *t, const struct input_file *file, struct plim_error *err);
    enum plim_status (*fill)(struct sheet *t, struct plim_error *err);
    void (*close)(struct sheet *t);
    size_t (*bytes_most)(const struct input_file *file);
};

extern const struct sheet_reader csv_reader, json_array_reader, conll_reader, parquet_reader;

/* Ensures a byte of input at t->in[t->in_at]; *more is false at the end. */
enum plim_status sheet_more(struct sheet *t, bool *more, struct plim_error *err);

static inline bool sheet_full(const struct sheet *t) { return t->out_len >= SHEET_OUT; }
static inline void sheet_put(struct sheet *t, char c) { t->out[t->out_len++] = c; }
void sheet_put_text(struct sheet *t, const char *text, size_t len); /* unchanged */
void sheet_put_escaped(struct sheet *t, unsigned char c);           /* one byte of a JSON text */
void sheet_put_quoted(struct sheet *t, const char *text, size_t len);

/* Ends the current line. If the row had line ends inside, as many empty lines follow. Those that do not fit
 * stay owed, and sheet_full is true. */
void sheet_end_line(struct sheet *t);

/* Index of the wanted field with this name; -1: not wanted. If nothing is wanted, every name is 0. */
int sheet_wants(const struct sheet *t, const char *name, size_t len);

/* Every wanted field must be among `count` names, unless it is optional or an earlier optional one is
 * present. */
enum plim_status sheet_check_names(const struct sheet *t, const char *const *names, int count,
                                   struct plim_error *err);

/* Reports a bad row: an error at the current line or, with skip_bad, a line that is not JSON. */
enum plim_status sheet_bad_row(struct sheet *t, const char *what, struct plim_error *err);
