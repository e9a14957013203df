/* table.c - cells are kept as text; widths are known only when all are there, so rendering makes two passes.
 */
#include "base/table.h"
#include "base/utf8.h"
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void table_init(struct table *t, const char *align)
{
    *t = (struct table){0};
    size_t n = strlen(align);
    t->columns = n < 1 ? 1 : n > TABLE_COLUMNS_MAX ? TABLE_COLUMNS_MAX : n;
    memcpy(t->align, align, n < t->columns ? n : t->columns);
}

/* Note where the next cell begins; its text follows. */
static void begin_cell(struct table *t)
{
    if (t->count == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 64;
        size_t *cells = realloc(t->cells, cap * sizeof *cells);
        if (!cells) {
            t->failed = true;
            return;
        }
        t->cells = cells;
        t->cap = cap;
    }
    t->cells[t->count++] = t->text.len;
}

void table_header(struct table *t, ...)
{
    va_list ap;
    va_start(ap, t);
    t->has_header = true;
    for (size_t i = 0; i < t->columns; i++) {
        begin_cell(t);
        strbuf_add(&t->text, va_arg(ap, const char *));
        strbuf_addc(&t->text, '\0');
    }
    va_end(ap);
}

void table_cell(struct table *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    begin_cell(t);
    strbuf_vaddf(&t->text, fmt, ap);
    strbuf_addc(&t->text, '\0');
    va_end(ap);
}

static const char *cell(const struct table *t, size_t index)
{
    return index < t->count ? t->text.data + t->cells[index] : "";
}

static void measure(const struct table *t, size_t widths[TABLE_COLUMNS_MAX])
{
    for (size_t i = 0; i < t->count; i++) {
        const char *text = cell(t, i);
        size_t width = utf8_width(text, strlen(text)), *most = &widths[i % t->columns];
        if (width > *most) *most = width;
    }
}

static void render_rule(struct strbuf *out, size_t indent, size_t width, bool colour)
{
    struct strbuf line = STRBUF_INIT;
    for (size_t i = 0; i < width; i++) strbuf_add(&line, "─");
    strbuf_pad(out, ' ', indent);
    table_coloured(out, colour, TABLE_DIM, strbuf_text(&line));
    strbuf_addc(out, '\n');
    strbuf_release(&line);
}

static void render_row(const struct table *t, size_t first, const size_t *widths,
                       const struct table_style *style, struct strbuf *out)
{
    bool bold = t->has_header && first == 0;
    size_t gap = style->gap > 0 ? (size_t)style->gap : 2, begin = out->len;
    strbuf_pad(out, ' ', (size_t)style->indent);
    for (size_t i = 0; i < t->columns; i++) {
        const char *text = cell(t, first + i);
        size_t blanks = widths[i] - utf8_width(text, strlen(text));
        if (i) strbuf_pad(out, ' ', gap);
        if (t->align[i] == 'r') strbuf_pad(out, ' ', blanks);
        table_coloured(out, style->colour && bold && *text, TABLE_BOLD, text);
        if (t->align[i] != 'r') strbuf_pad(out, ' ', blanks);
    }
    while (out->len > begin && out->data[out->len - 1] == ' ') strbuf_truncate(out, out->len - 1);
    strbuf_addc(out, '\n');
}

void table_render(const struct table *t, struct strbuf *out, const struct table_style *style)
{
    static const struct table_style plain = {0};
    size_t widths[TABLE_COLUMNS_MAX] = {0}, total = 0;
    if (!style) style = &plain;
    if (t->failed || t->text.failed) {
        out->failed = true;
        return;
    }
    measure(t, widths);
    for (size_t i = 0; i < t->columns; i++)
        total += widths[i] + (i ? (style->gap > 0 ? (size_t)style->gap : 2) : 0);
    for (size_t first = 0; first < t->count; first += t->columns) {
        render_row(t, first, widths, style, out);
        if (first == 0 && t->has_header) render_rule(out, (size_t)style->indent, total, style->colour);
    }
}

void table_release(struct table *t)
{
    strbuf_release(&t->text);
    free(t->cells);
    *t = (struct table){0};
}

void table_bar(struct strbuf *out, double fraction, int width)
{
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    if (width <= 0) return;
    if (!(fraction > 0)) fraction = 0;
    if (fraction > 1) fraction = 1;
    int steps = (int)lround(fraction * width * 8), full = steps / 8, rest = steps % 8;
    if (steps == 0 && fraction > 0) rest = 1; /* something is never shown as nothing */
    for (int i = 0; i < full; i++) strbuf_add(out, "█");
    strbuf_add(out, eighths[rest]);
    strbuf_pad(out, ' ', (size_t)(width - full - (rest > 0)));
}

void table_coloured(struct strbuf *out, bool on, enum table_colour colour, const char *text)
{
    static const char *const codes[TABLE_COLOURS] = {"0", "1", "2", "31", "32", "33", "34", "35", "36"};
    on = on && colour != TABLE_PLAIN;
    if (on) strbuf_addf(out, "\033[%sm", codes[colour]);
    strbuf_add(out, text);
    if (on) strbuf_add(out, "\033[0m");
}

void table_spark(struct strbuf *out, const double *values, size_t n)
{
    static const char *const levels[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    double low = INFINITY, high = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(values[i])) continue;
        low = fmin(low, values[i]);
        high = fmax(high, values[i]);
    }
    for (size_t i = 0; i < n; i++) {
        double share = high > low ? (values[i] - low) / (high - low) : 0.5;
        if (isfinite(values[i]))
            strbuf_add(out, levels[(int)fmin(7, share * 8)]);
        else
            strbuf_addc(out, ' ');
    }
}
