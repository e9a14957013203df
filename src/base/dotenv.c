/* dotenv.c - see dotenv.h: one pass over the lines, each read on its own. */
#include "base/dotenv.h"
#include "base/file.h"
#include "base/strbuf.h"

#include <string.h>
#include <sys/stat.h>

#define DOTENV_MAX ((uint64_t)1 << 20)

/* One line, without its end. */
struct line {
    const char *at, *end, *file;
    int number;
    struct plim_error *err;
};

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static bool is_name(char c, bool first)
{
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    return letter || (!first && c >= '0' && c <= '9');
}

static void skip_blanks(struct line *l)
{
    while (l->at < l->end && is_blank(*l->at)) l->at++;
}

static bool at_end(const struct line *l) { return l->at == l->end || *l->at == '#'; }

static enum plim_status complain(const struct line *l, const char *what)
{
    return plim_fail(l->err, PLIM_BAD_INPUT, "%s:%d: %s", l->file, l->number, what);
}

static size_t read_name(struct line *l, const char **name)
{
    *name = l->at;
    while (l->at < l->end && is_name(*l->at, l->at == *name)) l->at++;
    return (size_t)(l->at - *name);
}

static void read_plain(struct line *l, struct strbuf *value)
{
    const char *start = l->at;
    while (l->at < l->end && !(*l->at == '#' && (l->at == start || is_blank(l->at[-1])))) l->at++;
    const char *stop = l->at;
    while (stop > start && is_blank(stop[-1])) stop--;
    strbuf_addn(value, start, (size_t)(stop - start));
}

static char unescape(char c) { return c == 'n' ? '\n' : c == 't' ? '\t' : c; }

/* The opening quote is where the line is. */
static enum plim_status read_quoted(struct line *l, struct strbuf *value)
{
    char quote = *l->at++;
    while (l->at < l->end && *l->at != quote) {
        bool escape = quote == '"' && *l->at == '\\' && l->at + 1 < l->end && strchr("nt\\\"$", l->at[1]);
        if (escape) l->at++;
        strbuf_addc(value, escape ? unescape(*l->at) : *l->at);
        l->at++;
    }
    if (l->at == l->end) return complain(l, "the quote is not closed; close it in the same line");
    l->at++;
    skip_blanks(l);
    return at_end(l) ? PLIM_OK : complain(l, "text after the closing quote; put all of the value inside it");
}

static enum plim_status read_value(struct line *l, struct strbuf *value)
{
    skip_blanks(l);
    if (l->at < l->end && (*l->at == '"' || *l->at == '\'')) return read_quoted(l, value);
    read_plain(l, value);
    return PLIM_OK;
}

static enum plim_status keep(struct dotenv *out, const struct line *l, const char *name, size_t name_len,
                             const struct strbuf *value)
{
    const char *key = bump_copy(&out->store, name, name_len);
    const char *text = bump_copy(&out->store, strbuf_text(value), value->len);
    if (!key || !text || value->failed)
        return plim_fail(l->err, PLIM_NO_MEMORY, "%s: out of memory", l->file);
    out->items[out->count++] = (struct dotenv_entry){key, text, l->number};
    return PLIM_OK;
}

static enum plim_status read_line(struct line *l, struct dotenv *out)
{
    const char *name;
    struct strbuf value = STRBUF_INIT;
    if (memchr(l->at, '\0', (size_t)(l->end - l->at))) return complain(l, "a NUL character; write text");
    skip_blanks(l);
    if (at_end(l)) return PLIM_OK;
    size_t len = read_name(l, &name);
    if (len == 6 && !memcmp(name, "export", 6) && l->at < l->end && is_blank(*l->at)) {
        skip_blanks(l);
        len = read_name(l, &name);
    }
    skip_blanks(l);
    if (!len || l->at == l->end || *l->at != '=')
        return complain(l, "expected NAME=VALUE; write that, or # before a remark");
    l->at++;
    enum plim_status status = read_value(l, &value);
    if (status == PLIM_OK) status = keep(out, l, name, len, &value);
    strbuf_release(&value);
    return status;
}

enum plim_status dotenv_parse(const char *text, size_t len, const char *file, struct dotenv *out,
                              struct plim_error *err)
{
    size_t lines = 1;
    enum plim_status status = PLIM_OK;
    struct line l = {.file = file, .err = err};
    const char *end = text + len;
    *out = (struct dotenv){0};
    if (len >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) text += 3;
    for (size_t i = 0; i < len; i++) lines += text + i < end && text[i] == '\n';
    out->items = bump_alloc(&out->store, lines * sizeof *out->items);
    if (!out->items) status = plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", file);
    while (text < end && status == PLIM_OK) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        l.at = text, l.end = stop ? stop : end, l.number++;
        status = read_line(&l, out);
        text = stop ? stop + 1 : end;
    }
    if (status != PLIM_OK) dotenv_release(out);
    return status;
}

enum plim_status dotenv_load(const char *path, struct dotenv *out, struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    struct stat st;
    *out = (struct dotenv){0};
    if (stat(path, &st) || S_ISDIR(st.st_mode)) return PLIM_OK;
    enum plim_status status = file_read(path, DOTENV_MAX, &text, err);
    if (status == PLIM_OK) status = dotenv_parse(strbuf_text(&text), text.len, path, out, err);
    strbuf_release(&text);
    return status == PLIM_IO ? (err->status = PLIM_BAD_INPUT) : status;
}

const struct dotenv_entry *dotenv_find(const struct dotenv *vars, const char *name)
{
    for (size_t i = vars->count; i > 0; i--)
        if (!strcmp(vars->items[i - 1].name, name)) return &vars->items[i - 1];
    return NULL;
}

void dotenv_release(struct dotenv *vars)
{
    bump_free(&vars->store);
    *vars = (struct dotenv){0};
}
