/* string_methods.c - what Python's str can do, as far as templates ask for it. Results that are a part of the text
 * point into it. */
#define _GNU_SOURCE /* memmem */
#include "text/chat/eval.h"
#include "base/utf8.h"
#include "text/chat/unicode_text.h"
#include <string.h>

static bool need_text(struct chat_eval *ev, const struct chat_call *call, const struct chat_value *v)
{
    if (v->kind == CHAT_STRING) return true;
    return eval_raise(ev, "'%s' needs a text, not '%s'", call->row->name, chat_type_name(v));
}

/* An optional whole number; none counts as not given. */
static bool number_arg(struct chat_eval *ev, const struct chat_call *call, int i, int64_t fallback,
                       int64_t *out)
{
    *out = fallback;
    if (call->arg[i].kind == CHAT_ABSENT || call->arg[i].kind == CHAT_NONE || chat_as_int(&call->arg[i], out))
        return true;
    return eval_raise(ev, "'%s' needs a whole number, not '%s'", call->row->name,
                      chat_type_name(&call->arg[i]));
}

/* strip, lstrip, rstrip */
static bool str_strip(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    const struct chat_value *set = &call->arg[0], *self = &call->self;
    char which = call->row->name[0];
    int sides = which == 'l' ? UTEXT_LEFT : which == 'r' ? UTEXT_RIGHT : UTEXT_LEFT | UTEXT_RIGHT;
    size_t begin = 0, end = self->as.string.len;
    bool blanks = set->kind == CHAT_ABSENT || set->kind == CHAT_NONE;
    if (!blanks && !need_text(ev, call, set)) return false;
    /* Every code point may be compared with every one of the set. */
    if (!eval_charge(ev, blanks ? end : end * (set->as.string.len / 16 + 1))) return false;
    utext_strip(self->as.string.text, &begin, &end, blanks ? NULL : set->as.string.text,
                blanks ? 0 : set->as.string.len, sides);
    *out = chat_string(self->as.string.text + begin, end - begin);
    return true;
}

/* ---- case ---- */

/* A sigma at the end of a word has a form of its own: a letter stands before it and none behind, marks not counted. */
static bool ends_word(const char *text, size_t len, size_t at)
{
    uint32_t point = 0;
    size_t before = at, after = at + utext_step(text[at]);
    do {
        if (before == 0) return false;
        while (before > 0 && ((unsigned char)text[--before] & 0xc0) == 0x80) continue;
        utf8_decode(text + before, len - before, &point);
    } while (utext_is_ignored_by_case(point));
    if (!utext_has_case(point)) return false;
    for (; after < len; after += utext_step(text[after])) {
        utf8_decode(text + after, len - after, &point);
        if (!utext_is_ignored_by_case(point)) return !utext_has_case(point);
    }
    return true;
}

/* Puts the code point at `at` of the text in another case; *at moves on. */
static bool put_case(struct chat_eval *ev, struct strbuf *sb, enum utext_case how, const char *text,
                     size_t len, size_t *at)
{
    uint32_t point, to[UTEXT_CASE_MOST];
    size_t step = utf8_decode(text + *at, len - *at, &point);
    char bytes[4 * UTEXT_CASE_MOST];
    if (step == 0) return eval_raise(ev, "text that is not UTF-8");
    size_t n = utext_change_case(how, point, to), bytes_n = 0;
    if (how == UTEXT_LOWER && point == 0x3a3 && ends_word(text, len, *at)) to[0] = 0x3c2;
    for (size_t i = 0; i < n; i++) bytes_n += utf8_encode(to[i], bytes + bytes_n);
    *at += step;
    return eval_put(ev, sb, bytes, bytes_n);
}

/* upper, lower, capitalize, title: told apart by their names. The first code point and those that follow it have their own case;
 * in title, so has the first after one without case. */
static bool str_case(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    const char *text = call->self.as.string.text;
    size_t len = call->self.as.string.len;
    char which = call->row->name[0];
    enum utext_case first = which == 'u' ? UTEXT_UPPER : which == 'l' ? UTEXT_LOWER : UTEXT_TITLE;
    STRBUF_AUTO sb = STRBUF_INIT;
    bool begin = true;
    if (!eval_charge(ev, len)) return false;
    for (size_t at = 0; at < len;) {
        uint32_t point = 0;
        utf8_decode(text + at, len - at, &point);
        enum utext_case how = begin || which == 'u' ? first : UTEXT_LOWER;
        if (!put_case(ev, &sb, how, text, len, &at)) return false;
        begin = which == 't' && !utext_has_case(point);
    }
    return eval_take(ev, &sb, out);
}

/* ---- searching ---- */

static bool affix(const struct chat_value *v, const struct chat_value *part, bool at_end)
{
    size_t n = part->as.string.len, len = v->as.string.len;
    return n <= len && memcmp(v->as.string.text + (at_end ? len - n : 0), part->as.string.text, n) == 0;
}

/* startswith, endswith: one text, or any of a tuple. */
static bool str_has_affix(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    bool at_end = call->row->name[0] == 'e', found = false;
    const struct chat_value *arg = &call->arg[0];
    struct chat_list parts = {arg, 1};
    if (arg->kind == CHAT_TUPLE) parts = *arg->as.list;
    for (size_t i = 0; i < parts.count && !found; i++) {
        if (!need_text(ev, call, &parts.item[i])) return false;
        found = affix(&call->self, &parts.item[i], at_end);
        if (!eval_charge(ev, parts.item[i].as.string.len)) return false;
    }
    *out = chat_bool(found);
    return true;
}

static bool str_find(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    const struct chat_value *self = &call->self, *part = &call->arg[0];
    if (!need_text(ev, call, part) || !eval_charge(ev, self->as.string.len)) return false;
    const char *text = self->as.string.text;
    const char *at = memmem(text, self->as.string.len, part->as.string.text, part->as.string.len);
    *out = chat_int(at ? (int64_t)utext_count(text, (size_t)(at - text)) : -1);
    return true;
}

/* Calls for each place of `part`, not overlapping; an empty part is between all code points, as in Python. */
static const char *next_place(const char *at, const char *end, const struct chat_value *part, bool first)
{
    if (part->as.string.len) return memmem(at, (size_t)(end - at), part->as.string.text, part->as.string.len);
    if (first) return at;
    return at < end ? at + utext_step(*at) : NULL;
}

static bool str_replace(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    const char *from = call->self.as.string.text, *end = from + call->self.as.string.len, *at = from;
    const struct chat_value *old = &call->arg[0], *fresh = &call->arg[1];
    STRBUF_AUTO sb = STRBUF_INIT;
    int64_t most, n = 0;
    bool ok = need_text(ev, call, old) && need_text(ev, call, fresh) && number_arg(ev, call, 2, -1, &most) &&
              eval_charge(ev, call->self.as.string.len);
    while (ok && (most < 0 || n < most) && (at = next_place(at, end, old, n == 0))) {
        ok = eval_put(ev, &sb, from, (size_t)(at - from)) &&
             eval_put(ev, &sb, fresh->as.string.text, fresh->as.string.len) && eval_charge(ev, 0);
        from = at += old->as.string.len;
        n++;
    }
    ok = ok && eval_put(ev, &sb, from, (size_t)(end - from));
    return ok && eval_take(ev, &sb, out);
}

/* ---- splitting and joining ---- */

struct pieces {
    struct chat_value *item;
    size_t count, cap;
};

static bool add_piece(struct chat_eval *ev, struct pieces *p, const char *text, size_t len)
{
    if (!eval_grow(ev, &p->item, p->count, &p->cap, sizeof *p->item)) return false;
    p->item[p->count++] = chat_string(text, len);
    return eval_charge(ev, len);
}

static bool split_blanks(struct chat_eval *ev, const char *text, size_t len, int64_t most, struct pieces *p)
{
    size_t begin = 0, end = len;
    for (;;) {
        utext_strip(text, &begin, &end, NULL, 0, UTEXT_LEFT);
        if (begin == end) return true;
        size_t stop = begin, step;
        uint32_t point;
        while (stop < end && (step = utf8_decode(text + stop, end - stop, &point)) && !utext_is_space(point))
            stop += step;
        if (most >= 0 && (int64_t)p->count == most) return add_piece(ev, p, text + begin, end - begin);
        if (!add_piece(ev, p, text + begin, stop - begin)) return false;
        begin = stop;
    }
}

static bool split_at(struct chat_eval *ev, const char *text, size_t len, const struct chat_value *sep,
                     int64_t most, struct pieces *p)
{
    const char *end = text + len, *stop;
    while ((most < 0 || (int64_t)p->count < most) &&
           (stop = memmem(text, (size_t)(end - text), sep->as.string.text, sep->as.string.len))) {
        if (!add_piece(ev, p, text, (size_t)(stop - text))) return false;
        text = stop + sep->as.string.len;
    }
    return add_piece(ev, p, text, (size_t)(end - text));
}

static bool str_split(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    const char *text = call->self.as.string.text;
    size_t len = call->self.as.string.len;
    const struct chat_value *sep = &call->arg[0];
    struct pieces p = {0};
    int64_t most;
    bool blanks = sep->kind == CHAT_ABSENT || sep->kind == CHAT_NONE;
    if (!number_arg(ev, call, 1, -1, &most) || (!blanks && !need_text(ev, call, sep))) return false;
    if (!blanks && sep->as.string.len == 0) return eval_raise(ev, "split: the separator is empty");
    if (!eval_charge(ev, len)) return false;
    bool ok = blanks ? split_blanks(ev, text, len, most, &p) : split_at(ev, text, len, sep, most, &p);
    return ok && eval_list(ev, CHAT_LIST, p.item, p.count, out);
}

static bool ends_line(uint32_t point)
{
    return (point >= 0x0a && point <= 0x0d) || (point >= 0x1c && point <= 0x1e) || point == 0x85 ||
           point == 0x2028 || point == 0x2029;
}

static bool str_splitlines(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    const char *text = call->self.as.string.text;
    size_t len = call->self.as.string.len, begin = 0, at = 0, step;
    bool keep = chat_truth(&call->arg[0]);
    struct pieces p = {0};
    uint32_t point;
    while (at < len && (step = utf8_decode(text + at, len - at, &point))) {
        size_t stop = at;
        at += step;
        if (!ends_line(point)) continue;
        if (point == '\r' && at < len && text[at] == '\n') at++;
        if (!add_piece(ev, &p, text + begin, (keep ? at : stop) - begin)) return false;
        begin = at;
    }
    if (begin < len && !add_piece(ev, &p, text + begin, len - begin)) return false;
    return eval_list(ev, CHAT_LIST, p.item, p.count, out);
}

static bool str_join(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    STRBUF_AUTO sb = STRBUF_INIT;
    struct chat_list items;
    bool ok = eval_items(ev, &call->arg[0], &items) && eval_charge(ev, items.count);
    for (size_t i = 0; ok && i < items.count; i++) {
        ok = need_text(ev, call, &items.item[i]) &&
             (i == 0 || eval_put(ev, &sb, call->self.as.string.text, call->self.as.string.len)) &&
             eval_put(ev, &sb, items.item[i].as.string.text, items.item[i].as.string.len);
    }
    return ok && eval_take(ev, &sb, out);
}

const struct chat_row chat_string_methods[] = {
    {"strip", "chars", 0, str_strip},
    {"lstrip", "chars", 0, str_strip},
    {"rstrip", "chars", 0, str_strip},
    {"upper", "", 0, str_case},
    {"lower", "", 0, str_case},
    {"capitalize", "", 0, str_case},
    {"title", "", 0, str_case},
    {"startswith", "prefix", 1, str_has_affix},
    {"endswith", "suffix", 1, str_has_affix},
    {"find", "sub", 1, str_find},
    {"replace", "old new count", 2, str_replace},
    {"split", "sep maxsplit", 0, str_split},
    {"splitlines", "keepends", 0, str_splitlines},
    {"join", "iterable", 1, str_join},
    {"format", NULL, 0, chat_str_format},
    {NULL, NULL, 0, NULL},
};
