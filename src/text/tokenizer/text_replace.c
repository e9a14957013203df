/* text_replace.c - literal patterns with memmem, runs of one character by walking, the rest by regex.h.
 *
 * The regular expressions that published tokenizers replace by are nearly all of the kind " {2,}" or "\s+": one
 * character, at least so often. Those have a loop of their own, because they are asked about every text.
 */
#define _GNU_SOURCE
#include "text/tokenizer/text_replace.h"
#include "text/tokenizer/normalizer_part.h"
#include "text/regex.h"
#include "text/unicode.h"
#include "base/utf8.h"
#include <stdlib.h>
#include <string.h>

/* "+" or "{n,}" at the end of a pattern; 0 when it is something else. */
static size_t read_least(const char *text, size_t len)
{
    size_t least = 0;
    if (len == 1 && text[0] == '+') return 1;
    if (len < 4 || len > 8 || text[0] != '{' || text[len - 2] != ',' || text[len - 1] != '}') return 0;
    for (size_t i = 1; i < len - 2; i++) {
        if (text[i] < '0' || text[i] > '9') return 0;
        least = 10 * least + (size_t)(text[i] - '0');
    }
    return least;
}

/* Turns the expression in r->pattern into the character it repeats. False: not of that kind. */
static bool read_run(struct text_replace *r)
{
    uint32_t point;
    char *p = r->pattern;
    size_t len = r->pattern_len;
    if (!len) return true; /* matches nothing everywhere, as the empty text does */
    size_t skip = p[0] == '\\', n = skip < len ? utf8_decode(p + skip, len - skip, &point) : 0;
    if (!n) return false;
    if (skip) {
        r->any_space = p[1] == 's';
        if (!r->any_space && (unicode_classes(point) & UNICODE_WORD || point >= 0x80)) return false;
    } else if (strchr("\\^$.|?*+()[]{}", p[0])) {
        return false;
    }
    size_t rest = len - skip - n;
    if (rest || r->any_space) r->least = read_least(p + skip + n, rest);
    if (!r->least && (rest || r->any_space)) return false;
    memmove(p, p + skip, n);
    p[n] = '\0';
    r->pattern_len = n;
    return true;
}

static char *copy_text(const struct node *node, size_t *len)
{
    char *copy = malloc(node->as.string.len + 1);
    if (!copy) return NULL;
    *len = node->as.string.len;
    memcpy(copy, node->as.string.text, *len);
    copy[*len] = '\0';
    return copy;
}

enum plim_status text_replace_read(struct text_replace *r, const struct node *spec, const char *what,
                                   const char *name, struct plim_error *err)
{
    *r = (struct text_replace){0};
    const struct node *pattern = node_get(spec, "pattern"), *content = node_get(spec, "content");
    const struct node *literal = node_get(pattern, "String"), *regex = node_get(pattern, "Regex");
    const struct node *text = literal ? literal : regex;
    if (!text || text->kind != NODE_STRING || !content || content->kind != NODE_STRING)
        return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: %s Replace: expected a pattern and a content", name,
                         spec->line, what);
    r->pattern = copy_text(text, &r->pattern_len);
    r->content = copy_text(content, &r->content_len);
    enum plim_status status = PLIM_OK;
    if (!r->pattern || !r->content)
        status = plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for a %s", name, what);
    else if (!literal && !read_run(r))
        status = regex_compile(r->pattern, r->pattern_len, &r->regex, err);
    if (status == PLIM_BAD_INPUT || status == PLIM_UNSUPPORTED)
        plim_error_prefix(err, "%s:%d: %s Replace", name, text->line, what);
    if (status != PLIM_OK) text_replace_release(r);
    return status;
}

void text_replace_release(struct text_replace *r)
{
    free(r->pattern);
    free(r->content);
    regex_free(r->regex);
    *r = (struct text_replace){0};
}

/* Length of one occurrence of the repeated character at the text's beginning, or 0. */
static size_t run_unit(const struct text_replace *r, const char *text, size_t len)
{
    size_t at = 0;
    if (!len) return 0;
    if (r->any_space) return unicode_is_space(text_next(text, &at)) ? at : 0;
    return len >= r->pattern_len && memcmp(text, r->pattern, r->pattern_len) == 0 ? r->pattern_len : 0;
}

static bool run_find(const struct text_replace *r, const char *text, size_t len, size_t *begin, size_t *end)
{
    for (size_t at = 0; at < len;) {
        if (r->pattern_len == 1 && !r->any_space) {
            const char *hit = memchr(text + at, r->pattern[0], len - at);
            if (!hit) return false;
            at = (size_t)(hit - text);
        }
        size_t stop = at, times = 0;
        for (size_t n; (n = run_unit(r, text + stop, len - stop)) != 0; stop += n) times++;
        if (times && times >= r->least) {
            *begin = at, *end = stop;
            return true;
        }
        at = stop;
        if (at < len) text_next(text, &at);
    }
    return false;
}

static bool literal_find(const struct text_replace *r, const char *text, size_t len, size_t *begin,
                         size_t *end)
{
    const char *hit = len >= r->pattern_len ? memmem(text, len, r->pattern, r->pattern_len) : NULL;
    if (!hit) return false;
    *begin = (size_t)(hit - text), *end = *begin + r->pattern_len;
    return true;
}

static void run_empty(const struct text_replace *r, const char *text, size_t len, struct strbuf *out)
{
    for (size_t at = 0, begin = 0; at < len; begin = at) {
        text_next(text, &at);
        strbuf_addn(out, r->content, r->content_len);
        strbuf_addn(out, text + begin, at - begin);
    }
    if (len) strbuf_addn(out, r->content, r->content_len);
}

/* The next match that counts, from `from` on; *last is the end of the one before, SIZE_MAX when there is none. */
static bool regex_next(const struct text_replace *r, struct regex_run *run, size_t from, size_t *last,
                       size_t *begin, size_t *end)
{
    while (from <= run->len && regex_find(r->regex, run, from, begin, end)) {
        if (*begin != *end || *last != *end) {
            *last = *end;
            return true;
        }
        if (*end == run->len) return false;
        from = *end;
        text_next(run->text, &from);
    }
    return false;
}

static void run_regex(const struct text_replace *r, const char *text, size_t len, struct strbuf *out)
{
    struct regex_run run = {0};
    size_t done = 0, last = SIZE_MAX, begin, end;
    run.most = out->most; /* as much as it may write */
    regex_begin(&run, text, len);
    for (size_t from = 0; len && regex_next(r, &run, from, &last, &begin, &end); from = done = end) {
        strbuf_addn(out, text + done, begin - done);
        strbuf_addn(out, r->content, r->content_len);
    }
    strbuf_addn(out, text + done, len - done);
    if (run.failed) out->failed = true, out->full |= run.full;
    regex_run_release(&run);
}

void text_replace_run(const struct text_replace *r, const char *text, size_t len, struct strbuf *out)
{
    size_t begin, end;
    if (r->regex) {
        run_regex(r, text, len, out);
        return;
    }
    if (!r->pattern_len) {
        run_empty(r, text, len, out);
        return;
    }
    while (r->least ? run_find(r, text, len, &begin, &end) : literal_find(r, text, len, &begin, &end)) {
        strbuf_addn(out, text, begin);
        strbuf_addn(out, r->content, r->content_len);
        text += end, len -= end;
    }
    strbuf_addn(out, text, len);
}

bool text_replace_is_identity(const struct text_replace *r, const char *text, size_t len)
{
    size_t begin, end;
    if (r->regex) return len == 0;
    if (!r->pattern_len) return len == 0 || r->content_len == 0;
    return !(r->least ? run_find(r, text, len, &begin, &end) : literal_find(r, text, len, &begin, &end));
}
