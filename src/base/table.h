/* table.h - text tables and bars for people.
 *
 *     struct table t;
 *     table_init(&t, "lrr");                             // one letter per column: left or right
 *     table_header(&t, "class", "bytes", "share");       // as many texts as columns
 *     table_cell(&t, "param");
 *     table_cell(&t, "%s", bytes_format(buf, n));
 *     table_cell(&t, "%.1f %%", share);
 *     table_render(&t, &sb, &style);
 *     table_release(&t);
 *
 * Cells fill rows from left to right. Widths are terminal columns, so UTF-8 and colour sequences align.
 * Running out of memory marks the table, and table_render then marks its strbuf.
 */
#pragma once

#include "base/strbuf.h"
#include <stdbool.h>
#include <stddef.h>

enum table_colour {
    TABLE_PLAIN,
    TABLE_BOLD,
    TABLE_DIM,
    TABLE_RED,
    TABLE_GREEN,
    TABLE_YELLOW,
    TABLE_BLUE,
    TABLE_MAGENTA,
    TABLE_CYAN,
    TABLE_COLOURS
};

struct table_style {
    bool colour; /* ANSI colours for header and rules */
    int indent;  /* blanks before every line          */
    int gap;     /* blanks between columns, 0: 2      */
};

enum { TABLE_COLUMNS_MAX = 16 };

struct table {
    char align[TABLE_COLUMNS_MAX + 1];
    size_t columns;
    bool has_header;
    struct strbuf text; /* all cells, each NUL-terminated */
    size_t *cells;      /* where each begins in text      */
    size_t count, cap;
    bool failed;
};

/* align: 'l' or 'r' per column, 1 to 16 of them. */
void table_init(struct table *t, const char *align);
void table_header(struct table *t, ...); /* const char * per column */
void table_cell(struct table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void table_render(const struct table *t, struct strbuf *out, const struct table_style *style);
void table_release(struct table *t);

/* A bar of `width` columns filled to `fraction` (clamped to 0..1) in steps of an eighth: "█████▍    ". */
void table_bar(struct strbuf *out, double fraction, int width);

/* text in a colour; plain when `on` is false. */
void table_coloured(struct strbuf *out, bool on, enum table_colour colour, const char *text);

/* A one-line curve of n values with ▁▂▃▄▅▆▇█, scaled to their range; NaN is a blank. */
void table_spark(struct strbuf *out, const double *values, size_t n);
