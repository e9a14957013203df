/* sheet.c - what all table readers share: buffers, JSON text, lines that are owed. */
#include "data/sheet_part.h"

#include <stdlib.h>
#include <string.h>

static const struct sheet_reader *reader_of(enum data_form form)
{
    static const struct sheet_reader *const readers[] = {[FORM_CSV] = &csv_reader,
                                                         [FORM_JSON_ARRAY] = &json_array_reader,
                                                         [FORM_CONLL] = &conll_reader,
                                                         [FORM_PARQUET] = &parquet_reader,
                                                         [FORM_REFUSED] = NULL};
    return readers[form];
}

size_t sheet_bytes_most(const struct input_file *file)
{
    return sizeof(struct sheet) + SHEET_IN + SHEET_OUT + SHEET_STEP + reader_of(file->form)->bytes_most(file);
}

enum plim_status sheet_open(const struct input_file *file, struct sheet_source source,
                            const struct sheet_want *want, struct sheet **out, struct plim_error *err)
{
    struct sheet *t = calloc(1, sizeof *t);
    if (t) t->in = malloc(SHEET_IN), t->out = malloc(SHEET_OUT + SHEET_STEP);
    if (!t || !t->in || !t->out) {
        sheet_close(t);
        return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory for a table", file->path);
    }
    t->path = file->path, t->source = source, t->line = 1, t->reader = reader_of(file->form);
    if (want) t->want = *want;
    enum plim_status status = t->reader->open(t, file, err);
    if (status == PLIM_OK)
        *out = t;
    else
        sheet_close(t);
    return status;
}

void sheet_close(struct sheet *t)
{
    if (!t) return;
    if (t->reader) t->reader->close(t);
    free(t->in);
    free(t->out);
    free(t);
}

enum plim_status sheet_more(struct sheet *t, bool *more, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    if (t->in_at == t->in_len && !t->in_end) {
        status = t->source.read(t->source.arg, t->in, SHEET_IN, &t->in_len, err);
        t->in_at = 0;
        if (status != PLIM_OK) t->in_len = 0;
        t->in_end = t->in_len < SHEET_IN;
    }
    *more = t->in_at < t->in_len;
    return status;
}

void sheet_put_text(struct sheet *t, const char *text, size_t len)
{
    memcpy(t->out + t->out_len, text, len);
    t->out_len += len;
}

void sheet_put_escaped(struct sheet *t, unsigned char c)
{
    static const char hex[] = "0123456789abcdef";
    if (c == '"' || c == '\\') {
        sheet_put(t, '\\');
        sheet_put(t, (char)c);
    } else if (c == '\n') {
        sheet_put_text(t, "\\n", 2);
    } else if (c < 32) {
        sheet_put_text(t, "\\u00", 4);
        sheet_put(t, hex[c >> 4]);
        sheet_put(t, hex[c & 15]);
    } else {
        sheet_put(t, (char)c);
    }
}

void sheet_put_quoted(struct sheet *t, const char *text, size_t len)
{
    sheet_put(t, '"');
    for (size_t i = 0; i < len; i++) sheet_put_escaped(t, (unsigned char)text[i]);
    sheet_put(t, '"');
}

static void pay(struct sheet *t)
{
    for (; t->owed && !sheet_full(t); t->owed--) sheet_put(t, '\n');
}

void sheet_end_line(struct sheet *t)
{
    t->owed += t->inside + 1;
    t->inside = 0;
    pay(t);
}

int sheet_wants(const struct sheet *t, const char *name, size_t len)
{
    if (!t->want.count) return 0;
    for (int i = 0; i < t->want.count; i++)
        if (strlen(t->want.name[i]) == len && !memcmp(t->want.name[i], name, len)) return i;
    return -1;
}

static bool has_name(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(names[i], name)) return true;
    return false;
}

enum plim_status sheet_check_names(const struct sheet *t, const char *const *names, int count,
                                   struct plim_error *err)
{
    for (int i = 0; i < t->want.count; i++) {
        if (t->want.optional[i] || has_name(names, count, t->want.name[i])) continue;
        STRBUF_AUTO have = STRBUF_INIT;
        have.most = 160;
        for (int k = 0; k < count; k++) strbuf_addf(&have, "%s%s", k ? ", " : "", names[k]);
        enum plim_status status = plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: has no column '%s'; its columns are %s%s; name the one to read, as data.field does", t->path,
            t->want.name[i], strbuf_text(&have), have.full ? ", ..." : "");
        return status;
    }
    return PLIM_OK;
}

enum plim_status sheet_bad_row(struct sheet *t, const char *what, struct plim_error *err)
{
    if (!t->want.skip_bad)
        return plim_fail(err, PLIM_BAD_INPUT, "%s:%llu: %s", t->path, (unsigned long long)t->line, what);
    sheet_put(t, '!');
    return PLIM_OK;
}

enum plim_status sheet_read(struct sheet *t, char *buf, size_t n, size_t *got, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (*got = 0; *got < n;) {
        if (t->out_at == t->out_len) {
            t->out_at = t->out_len = 0;
            pay(t);
            if (!t->out_len && t->ended) break; /* all is said and paid */
            if (!t->owed && !t->ended && (status = t->reader->fill(t, err)) != PLIM_OK) break;
        }
        size_t some = t->out_len - t->out_at < n - *got ? t->out_len - t->out_at : n - *got;
        memcpy(buf + *got, t->out + t->out_at, some);
        t->out_at += some, *got += some;
    }
    return status;
}
