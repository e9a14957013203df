/* sheet_csv.c - rows of separated fields under a header, as RFC 4180 has them: fields that hold the separator, a quote or a
 * line end stand in quotes, and a quote among them is doubled. The separator is the one of , tab ; | that the header has most
 * of. A row with fewer fields than the header lacks the last ones; one with more is bad. */
#include "data/sheet_part.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_MOST  65536 /* bytes */
#define NAME_MOST    512
#define COLUMNS_MOST 4096

enum place { ROW_BEGIN, FIELD_BEGIN, PLAIN, QUOTED, QUOTE_IN_QUOTED };

struct csv {
    char separator;
    char *header; /* [HEADER_MOST], each name ended by NUL */
    char **name;  /* [COLUMNS_MOST] */
    int *column;  /* [COLUMNS_MOST]: which field is wanted; -1: left out */
    int columns;
    enum place place;
    int at;          /* column */
    int field;       /* wanted field that is being written; -1: none */
    bool any;        /* the row has a field already */
    bool cr;         /* a CR came whose LF has not */
    bool bad;        /* the row was given up */
    uint64_t quote;  /* line of the last opening quote */
    char number[64]; /* a field that may be one */
    size_t number_len;
};

/* --- header -------------------------------------------------------------------------------------------------------- */

static enum plim_status read_header(struct sheet *t, struct csv *c, size_t *len, struct plim_error *err)
{
    bool quoted = false, more;
    for (*len = 0;;) {
        enum plim_status status = sheet_more(t, &more, err);
        if (status != PLIM_OK || !more) return status;
        char ch = t->in[t->in_at++];
        if (*len == 2 && ch == '\xbf' && !memcmp(c->header, "\xef\xbb", 2)) {
            *len = 0;
            continue;
        }
        if (ch == '"') quoted = !quoted;
        if (ch == '\n') t->line++, t->owed++;
        if (ch == '\n' && !quoted) return PLIM_OK;
        if (*len == HEADER_MOST - 1)
            return plim_fail(
                err, PLIM_BAD_INPUT,
                "%s: its first line, which names the columns, has more than %d bytes; is it CSV? "
                "data.format: text reads it as it is",
                t->path, HEADER_MOST - 1);
        c->header[(*len)++] = ch;
    }
}

static char find_separator(const char *header, size_t len)
{
    char best = ',';
    for (size_t most = 0, k = 0; k < 4; k++) {
        size_t count = 0;
        bool quoted = false;
        for (size_t i = 0; i < len; i++)
            if (header[i] == '"')
                quoted = !quoted;
            else
                count += !quoted && header[i] == ",\t;|"[k];
        if (count > most) most = count, best = ",\t;|"[k];
    }
    return best;
}

/* Take the quotes off where the name lies; the end of the field. */
static char *take_name(char *at, char *end, char separator, char **name)
{
    char *to = at;
    *name = at;
    if (at < end && *at == '"') {
        for (at++; at < end && (*at != '"' || (at + 1 < end && at[1] == '"')); at++)
            at += *at == '"', *to++ = *at;
        at += at < end;
    }
    while (at < end && *at != separator) *to++ = *at++;
    *to = 0;
    return at;
}

static enum plim_status split_header(struct sheet *t, struct csv *c, size_t len, struct plim_error *err)
{
    char *at = c->header, *end = c->header + len;
    if (end > at && end[-1] == '\r') end--;
    *end = 0;
    c->separator = form_name_ends(t->path, ".tsv") ? '\t' : find_separator(at, (size_t)(end - at));
    for (bool last = false; !last; at++) {
        if (c->columns == COLUMNS_MOST)
            return plim_fail(err, PLIM_BAD_INPUT, "%s: has more than %d columns", t->path, COLUMNS_MOST);
        char **name = &c->name[c->columns];
        char *stop = take_name(at, end, c->separator, name);
        last = stop >= end;
        at = stop;
        size_t n = strlen(*name);
        if (n > NAME_MOST)
            return plim_fail(err, PLIM_BAD_INPUT,
                             "%s: column %d has a name of %zu bytes; is its first line a header?", t->path,
                             c->columns + 1, n);
        c->column[c->columns++] = sheet_wants(t, *name, n);
    }
    return sheet_check_names(t, (const char *const *)c->name, c->columns, err);
}

static enum plim_status open_csv(struct sheet *t, const struct input_file *, struct plim_error *err)
{
    struct csv *c = t->state = calloc(1, sizeof *c);
    if (c) {
        c->header = malloc(HEADER_MOST), c->name = malloc(COLUMNS_MOST * sizeof *c->name);
        c->column = malloc(COLUMNS_MOST * sizeof *c->column);
    }
    if (!c || !c->header || !c->name || !c->column)
        return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory for a table", t->path);
    size_t len;
    enum plim_status status = read_header(t, c, &len, err);
    return status == PLIM_OK ? split_header(t, c, len, err) : status;
}

static void close_csv(struct sheet *t)
{
    struct csv *c = t->state;
    if (c) free(c->header), free(c->name), free(c->column);
    free(c);
}

static size_t csv_bytes(const struct input_file *)
{
    return sizeof(struct csv) + HEADER_MOST + COLUMNS_MOST * (sizeof(char *) + sizeof(int));
}

/* --- rows ---------------------------------------------------------------------------------------------------------- */

static enum plim_status begin_field(struct sheet *t, struct csv *c, struct plim_error *err)
{
    c->place = PLAIN, c->field = -1;
    if (c->bad) return PLIM_OK;
    if (c->at == c->columns) {
        char what[128];
        snprintf(what, sizeof what,
                 "the row has more than %d fields, as many as its header; quote fields that hold '%s'",
                 c->columns, c->separator == '\t' ? "\\t" : (char[]){c->separator, 0});
        c->bad = true;
        return sheet_bad_row(t, what, err);
    }
    c->field = c->column[c->at];
    if (c->field < 0) return PLIM_OK;
    if (c->any) sheet_put(t, ',');
    c->any = true;
    sheet_put_quoted(t, c->name[c->at], strlen(c->name[c->at]));
    sheet_put(t, ':');
    c->number_len = 0;
    if (!t->want.number[c->field]) sheet_put(t, '"');
    return PLIM_OK;
}

/* JSON writes fewer numbers than people do (+1, .5, 1.): what strtod takes is written anew. */
static void end_number(struct sheet *t, struct csv *c)
{
    char *end, text[40];
    c->number[c->number_len] = 0;
    double x = strtod(c->number, &end);
    if (!c->number_len)
        sheet_put_text(t, "null", 4);
    else if (*end || !isfinite(x))
        sheet_put_quoted(t, c->number, c->number_len);
    else
        sheet_put_text(t, text, (size_t)snprintf(text, sizeof text, "%.17g", x));
}

static void end_field(struct sheet *t, struct csv *c)
{
    c->place = FIELD_BEGIN, c->at++;
    if (c->field < 0) return;
    if (t->want.number[c->field])
        end_number(t, c);
    else
        sheet_put(t, '"');
    c->field = -1;
}

static void put_char(struct sheet *t, struct csv *c, char ch)
{
    if (c->field < 0) return;
    if (!t->want.number[c->field])
        sheet_put_escaped(t, (unsigned char)ch);
    else if (c->number_len < sizeof c->number - 1)
        c->number[c->number_len++] = ch;
}

static void end_row(struct sheet *t, struct csv *c)
{
    end_field(t, c);
    sheet_put(t, '}');
    sheet_end_line(t);
    c->place = ROW_BEGIN, c->at = 0, c->any = c->bad = false;
}

static enum plim_status begin_row(struct sheet *t, struct csv *c, struct plim_error *err)
{
    sheet_put(t, '{');
    return begin_field(t, c, err);
}

/* A byte outside quotes; a CR counts when no LF follows it. */
static enum plim_status take_plain(struct sheet *t, struct csv *c, char ch, struct plim_error *err)
{
    bool fresh = c->place == FIELD_BEGIN || c->place == ROW_BEGIN;
    if (ch == '\r' && !c->cr) {
        c->cr = true;
        return PLIM_OK;
    }
    bool cr = c->cr;
    c->cr = false;
    if (ch == '\n' && c->place == ROW_BEGIN) {
        sheet_end_line(t);
        return PLIM_OK;
    }
    enum plim_status status = PLIM_OK;
    if (c->place == ROW_BEGIN) status = begin_row(t, c, err);
    if (c->place == FIELD_BEGIN) status = begin_field(t, c, err);
    if (status != PLIM_OK) return status;
    if (cr && ch != '\n') put_char(t, c, '\r');
    if (ch == '\n')
        end_row(t, c);
    else if (ch == c->separator)
        end_field(t, c);
    else if (ch == '"' && fresh && !cr)
        c->place = QUOTED, c->quote = t->line;
    else
        put_char(t, c, ch);
    return PLIM_OK;
}

static enum plim_status take_byte(struct sheet *t, struct csv *c, char ch, struct plim_error *err)
{
    if (c->place == QUOTED) {
        if (ch == '"')
            c->place = QUOTE_IN_QUOTED;
        else
            put_char(t, c, ch);
        t->inside += ch == '\n';
        return PLIM_OK;
    }
    if (c->place == QUOTE_IN_QUOTED) {
        c->place = ch == '"' ? QUOTED : PLAIN;
        if (ch == '"') {
            put_char(t, c, ch);
            return PLIM_OK;
        }
    }
    return take_plain(t, c, ch, err);
}

static enum plim_status finish(struct sheet *t, struct csv *c, struct plim_error *err)
{
    t->ended = true;
    if (c->place == QUOTED)
        return plim_fail(err, PLIM_BAD_INPUT, "%s:%llu: a quoted field begins here and does not end", t->path,
                         (unsigned long long)c->quote);
    enum plim_status status = c->place == FIELD_BEGIN ? begin_field(t, c, err) : PLIM_OK;
    if (c->place != ROW_BEGIN && status == PLIM_OK) end_row(t, c);
    return status;
}

static enum plim_status fill_csv(struct sheet *t, struct plim_error *err)
{
    struct csv *c = t->state;
    enum plim_status status = PLIM_OK;
    while (status == PLIM_OK && !sheet_full(t)) {
        bool more;
        status = sheet_more(t, &more, err);
        if (status != PLIM_OK) break;
        if (!more) return finish(t, c, err);
        char ch = t->in[t->in_at++];
        status = take_byte(t, c, ch, err);
        t->line += ch == '\n';
    }
    return status;
}

const struct sheet_reader csv_reader = {open_csv, fill_csv, close_csv, csv_bytes};
