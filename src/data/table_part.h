/* table_part.h - how a table reader is built; for table.c and the readers of each form alone.
 *
 * A reader is one `fill`: it takes input with table_more and puts JSON into the output until table_full says enough or the
 * input ends. One step of a reader writes at most TABLE_STEP bytes, so it looks at table_full between steps only.
 */
#ifndef PLIM_DATA_TABLE_PART_H
#define PLIM_DATA_TABLE_PART_H

#include "base/strbuf.h"
#include "data/table.h"
#include <stdint.h>

enum { TABLE_IN = 16384, TABLE_OUT = 16384, TABLE_STEP = 32768 };

struct table {
    const char *path;
    struct table_source source;
    struct table_want want;
    const struct table_reader *reader;
    void *state; /* the reader's own */
    char *in;    /* [TABLE_IN] */
    size_t in_at, in_len;
    bool in_end;
    char *out; /* [TABLE_OUT + TABLE_STEP] */
    size_t out_at, out_len;
    uint64_t line;   /* of the input, from 1 */
    uint64_t inside; /* line ends inside the present row: owed once it ends */
    uint64_t owed;   /* line ends to be written before anything else */
    bool ended;      /* fill has nothing more to give */
};

struct table_reader {
    /* Make t->state, read what names the columns. */
    enum plim_status (*open)(struct table *t, const struct input_file *file, struct plim_error *err);
    enum plim_status (*fill)(struct table *t, struct plim_error *err);
    void (*close)(struct table *t);
    size_t (*bytes_most)(const struct input_file *file);
};

extern const struct table_reader csv_reader, json_array_reader, conll_reader;

/* Have at least one byte of input at t->in[t->in_at]; false in *more: there is none. */
enum plim_status table_more(struct table *t, bool *more, struct plim_error *err);

static inline bool table_full(const struct table *t) { return t->out_len >= TABLE_OUT; }
static inline void table_put(struct table *t, char c) { t->out[t->out_len++] = c; }
void table_put_text(struct table *t, const char *text, size_t len); /* as it is */
void table_put_escaped(struct table *t, unsigned char c);           /* one byte of a JSON text */
void table_put_quoted(struct table *t, const char *text, size_t len);

/* End the present line; a row that has line ends inside is followed by as many empty lines. Without room they stay owed, and
 * table_full is true. */
void table_end_line(struct table *t);

/* Which of the wanted fields has this name; -1: none. With none wanted, every name is 0. */
int table_wants(const struct table *t, const char *name, size_t len);

/* Every wanted field must be among `count` names, unless it is optional or an earlier optional one is there. */
enum plim_status table_check_names(const struct table *t, const char *const *names, int count,
                                   struct plim_error *err);

/* A row that cannot be read: an error at the present line, or with skip_bad a line that is no JSON. */
enum plim_status table_bad_row(struct table *t, const char *what, struct plim_error *err);

#endif
