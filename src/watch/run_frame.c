/* run_frame.c - see run_frame.h. */
#include "watch/run_frame.h"
#include "base/bytes.h"
#include "base/table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LEAST_WIDTH = 40, MOST_WIDTH = 120, LABEL = 11, OTHER_LINES = 12 };

static const enum table_colour status_colours[MEMORY_STATUSES] = {TABLE_GREEN, TABLE_YELLOW, TABLE_RED,
                                                                  TABLE_MAGENTA};

/* --- bars ----------------------------------------------------------------------------------------------------------- */

/* The column of so many bytes; the last line has room to its right. */
static int column(const struct gauge *g, int64_t bytes, int width)
{
    double whole = 1.04 * (double)(g->line[LINE_EMERGENCY] > g->total ? g->line[LINE_EMERGENCY] : g->total);
    double at = whole > 0 ? (double)width * (double)bytes / whole : 0;
    return at < 0 ? 0 : at > width ? width : (int)lround(at);
}

void run_frame_bar(const struct gauge *g, int width, bool colour, struct strbuf *out)
{
    int filled = column(g, g->used, width);
    STRBUF_AUTO bar = STRBUF_INIT;
    for (int i = 0; i < width; i++) {
        bool mark = false;
        for (int k = 0; k < LINES; k++) mark |= g->line[k] > 0 && column(g, g->line[k], width - 1) == i;
        strbuf_add(&bar, mark ? (i < filled ? "╋" : "┃") : i < filled ? "━" : "·");
    }
    table_coloured(out, colour, status_colours[gauge_status(g)], strbuf_text(&bar));
}

static void put_gauge(const struct run_gauge *g, int width, bool colour, struct strbuf *out)
{
    char used[BYTES_TEXT], total[BYTES_TEXT];
    if (g->gauge.total <= 0) return;
    int room = width - LABEL - 34;
    strbuf_addf(out, "%-*.*s", LABEL, LABEL - 1, g->name);
    run_frame_bar(&g->gauge, room > 10 ? room : 10, colour, out);
    strbuf_addf(out, " %9s of %-9s ", bytes_format(used, (uint64_t)(g->gauge.used > 0 ? g->gauge.used : 0)),
                bytes_format(total, (uint64_t)g->gauge.total));
    enum memory_status status = gauge_status(&g->gauge);
    table_coloured(out, colour, status_colours[status], memory_status_name(status));
    strbuf_addc(out, '\n');
}

/* --- lines ---------------------------------------------------------------------------------------------------------- */

static void put_duration(double seconds, struct strbuf *out)
{
    long s = lround(seconds);
    if (s >= 3600)
        strbuf_addf(out, "%ld:%02ld h", s / 3600, s / 60 % 60);
    else
        strbuf_addf(out, "%ld:%02ld", s / 60, s % 60);
}

static void put_head(const struct run_state *s, const struct run_frame *f, struct strbuf *out)
{
    const char *how = f->live ? "live" : s->refused ? "memory was refused" : s->ended ? "ended" : "stopped";
    table_coloured(out, f->colour, TABLE_BOLD, f->name);
    strbuf_addf(out, "  step %lld", (long long)s->step);
    if (s->steps > 0) strbuf_addf(out, " of %lld", (long long)s->steps);
    strbuf_addf(out, "  %s", how);
    double each = s->step_seconds;
    if (f->live && s->steps > s->step && each > 0) {
        strbuf_add(out, "  ");
        put_duration(each * (double)(s->steps - s->step), out);
        strbuf_add(out, " left");
    }
    strbuf_addc(out, '\n');
}

static void put_curve(const char *name, const char *value, const double *values, int n, int width,
                      struct strbuf *out)
{
    int room = width - LABEL - 12, from = n > room ? n - room : 0;
    strbuf_addf(out, "%-*s%-11s ", LABEL, name, value);
    if (room > 0) table_spark(out, values + from, (size_t)(n - from));
    strbuf_addc(out, '\n');
}

static void put_curves(const struct run_state *s, int width, struct strbuf *out)
{
    char loss[32], speed[32];
    if (!s->curve) return;
    snprintf(loss, sizeof loss, "%.4f", s->loss);
    snprintf(speed, sizeof speed, "%.0f", s->tokens_per_s);
    put_curve("loss", loss, s->losses, s->curve, width, out);
    put_curve("tokens/s", speed, s->speeds, s->curve, width, out);
    strbuf_addf(out, "%-*slr %.3g", LABEL, "", s->lr);
    if (isfinite(s->grad_norm)) strbuf_addf(out, ", gradient norm %.3g", s->grad_norm);
    if (s->has_eval) strbuf_addf(out, ", evaluation %.4f", s->eval_loss);
    strbuf_addc(out, '\n');
}

static void put_plan(const struct run_state *s, int width, struct strbuf *out)
{
    char text[BYTES_TEXT];
    int at = LABEL;
    if (!s->begun) return;
    strbuf_addf(out, "%-*s%s, micro-batch %lld x %lld%s%s\n", LABEL, "plan",
                bytes_format(text, (uint64_t)(s->planned > 0 ? s->planned : 0)), (long long)s->micro_batch,
                (long long)s->accumulation, s->level[0] ? ", " : "", s->level);
    strbuf_addf(out, "%-*s", LABEL, "");
    for (int i = 0; i < s->classes; i++) {
        char part[64];
        int64_t bytes = s->by_class[i].bytes;
        if (bytes <= 0) continue;
        int n =
            snprintf(part, sizeof part, "%s %s  ", s->by_class[i].name, bytes_format(text, (uint64_t)bytes));
        if (at + n > width) break;
        strbuf_add(out, part), at += n;
    }
    strbuf_addc(out, '\n');
}

static void put_told(const struct run_state *s, int most, struct strbuf *out)
{
    for (int i = s->ntold > most ? s->ntold - most : 0; i < s->ntold; i++)
        strbuf_addf(out, "%s\n", s->told[i].text);
}

/* Clips a text to the first lines and each line to the first columns; longer text would wrap or scroll and could not
 * be redrawn. Colours take no room and are kept even where the text that they end is cut. */
static void clip(const struct strbuf *text, int width, int lines, struct strbuf *out)
{
    int column = 0;
    for (size_t i = 0; i < text->len && lines > 0; i++) {
        unsigned char c = (unsigned char)text->data[i];
        if (c == '\n') {
            column = 0, lines--;
            strbuf_addc(out, '\n');
        } else if (c == '\033') {
            while (i < text->len && text->data[i] != 'm') strbuf_addc(out, text->data[i++]);
            strbuf_addc(out, 'm');
        } else {
            column += (c & 0xc0) != 0x80;
            if (column <= width) strbuf_addc(out, (char)c);
        }
    }
}

void run_frame_draw(const struct run_state *s, const struct run_frame *f, struct strbuf *out)
{
    int width = f->width < LEAST_WIDTH ? LEAST_WIDTH : f->width > MOST_WIDTH ? MOST_WIDTH : f->width;
    STRBUF_AUTO text = STRBUF_INIT;
    put_head(s, f, &text);
    for (int i = 0; i < s->gauges; i++) put_gauge(&s->gauge[i], width, f->colour, &text);
    put_curves(s, width, &text);
    put_plan(s, width, &text);
    strbuf_addc(&text, '\n');
    put_told(s, f->height - OTHER_LINES > 3 ? f->height - OTHER_LINES : 3, &text);
    clip(&text, f->width, f->height - 1, out);
    out->failed |= text.failed;
}
