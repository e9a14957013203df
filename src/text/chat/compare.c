/* compare.c - equality, order, membership, iteration and dictionaries, by Python's rules.
 *
 * Lists may be nested in ways no literal could be (a loop can wrap a list in a list), so recursion is counted, and
 * shared parts make the work grow faster than memory, so steps are too.
 */
#define _GNU_SOURCE /* memmem */
#include "text/chat/eval.h"
#include "text/chat/unicode_text.h"
#include <string.h>

/* Bytes that comparing two texts may look at. */
static size_t text_work(const struct chat_value *a, const struct chat_value *b)
{
    if (a->kind != CHAT_STRING || b->kind != CHAT_STRING) return 0;
    return a->as.string.len < b->as.string.len ? a->as.string.len : b->as.string.len;
}

static bool equal_lists(struct chat_eval *ev, const struct chat_list *a, const struct chat_list *b, bool *out)
{
    *out = a->count == b->count;
    for (size_t i = 0; *out && i < a->count; i++)
        if (!eval_equal(ev, &a->item[i], &b->item[i], out)) return false;
    return true;
}

static bool equal_dicts(struct chat_eval *ev, const struct chat_dict *a, const struct chat_dict *b, bool *out)
{
    *out = a->count == b->count;
    for (size_t i = 0; *out && i < a->count; i++) {
        struct chat_pair *other;
        if (!eval_dict_lookup(ev, b, &a->pair[i].key, &other)) return false;
        *out = other != NULL;
        if (other && !eval_equal(ev, &a->pair[i].value, &other->value, out)) return false;
    }
    return true;
}

bool eval_equal(struct chat_eval *ev, const struct chat_value *a, const struct chat_value *b, bool *out)
{
    double x, y;
    int64_t i, j;
    *out = false;
    if (!eval_charge(ev, text_work(a, b)) || !eval_enter(ev)) return false;
    bool ok = true;
    if (chat_as_int(a, &i) && chat_as_int(b, &j))
        *out = i == j;
    else if (chat_as_double(a, &x) && chat_as_double(b, &y))
        *out = x == y;
    else if (a->kind != b->kind)
        *out = false;
    else if (a->kind == CHAT_NONE || a->kind == CHAT_UNDEFINED)
        *out = true;
    else if (a->kind == CHAT_STRING)
        *out = a->as.string.len == b->as.string.len &&
               memcmp(a->as.string.text, b->as.string.text, a->as.string.len) == 0;
    else if (a->kind == CHAT_LIST || a->kind == CHAT_TUPLE)
        ok = equal_lists(ev, a->as.list, b->as.list, out);
    else if (a->kind == CHAT_DICT)
        ok = equal_dicts(ev, a->as.dict, b->as.dict, out);
    else
        *out = a->as.list == b->as.list; /* the same object: all the others are pointers */
    ev->depth--;
    return ok;
}

static int order_text(const struct chat_value *a, const struct chat_value *b)
{
    size_t n = a->as.string.len < b->as.string.len ? a->as.string.len : b->as.string.len;
    int order =
        n ? memcmp(a->as.string.text, b->as.string.text, n) : 0; /* UTF-8 sorts as its code points do */
    if (order) return order;
    return (a->as.string.len > b->as.string.len) - (a->as.string.len < b->as.string.len);
}

static bool order_lists(struct chat_eval *ev, const struct chat_list *a, const struct chat_list *b, int *out)
{
    bool same = true;
    for (size_t i = 0; i < a->count && i < b->count; i++) {
        if (!eval_equal(ev, &a->item[i], &b->item[i], &same)) return false;
        if (!same) return eval_order(ev, &a->item[i], &b->item[i], out);
    }
    *out = (a->count > b->count) - (a->count < b->count);
    return true;
}

bool eval_order(struct chat_eval *ev, const struct chat_value *a, const struct chat_value *b, int *out)
{
    double x, y;
    int64_t i, j;
    bool ok = true;
    if (!eval_charge(ev, text_work(a, b)) || !eval_enter(ev)) return false;
    if (chat_as_int(a, &i) && chat_as_int(b, &j))
        *out = (i > j) - (i < j);
    else if (chat_as_double(a, &x) && chat_as_double(b, &y))
        *out = (x > y) - (x < y);
    else if (a->kind == CHAT_STRING && b->kind == CHAT_STRING)
        *out = order_text(a, b);
    else if (a->kind == b->kind && (a->kind == CHAT_LIST || a->kind == CHAT_TUPLE))
        ok = order_lists(ev, a->as.list, b->as.list, out);
    else
        ok = eval_raise(ev, "'%s' and '%s' have no order", chat_type_name(a), chat_type_name(b));
    ev->depth--;
    return ok;
}

bool eval_contains(struct chat_eval *ev, const struct chat_value *in, const struct chat_value *v, bool *out)
{
    struct chat_list items;
    struct chat_pair *pair;
    *out = false;
    if (in->kind == CHAT_STRING) {
        if (v->kind != CHAT_STRING)
            return eval_raise(ev, "'in' a text needs a text, not '%s'", chat_type_name(v));
        *out = memmem(in->as.string.text, in->as.string.len, v->as.string.text, v->as.string.len) != NULL;
        return eval_charge(ev, in->as.string.len);
    }
    if (in->kind == CHAT_DICT) {
        if (!eval_dict_lookup(ev, in->as.dict, v, &pair)) return false;
        *out = pair != NULL;
        return true;
    }
    if (!eval_items(ev, in, &items)) return false;
    for (size_t i = 0; i < items.count && !*out; i++)
        if (!eval_equal(ev, &items.item[i], v, out)) return false;
    return true;
}

/* ---- iteration ---- */

static bool string_items(struct chat_eval *ev, const struct chat_value *v, struct chat_list *out)
{
    const char *text = v->as.string.text;
    size_t count = utext_count(text, v->as.string.len), n = 0;
    struct chat_value *item = eval_alloc(ev, count * sizeof *item);
    if (!item) return false;
    for (size_t at = 0; n < count; n++) {
        size_t step = utext_step(text[at]);
        item[n] = chat_string(text + at, step);
        at += step;
    }
    *out = (struct chat_list){item, count};
    return eval_charge(ev, count);
}

bool eval_items(struct chat_eval *ev, const struct chat_value *v, struct chat_list *out)
{
    *out = (struct chat_list){NULL, 0};
    if (v->kind == CHAT_UNDEFINED) return true;
    if (v->kind == CHAT_STRING) return string_items(ev, v, out);
    if (chat_is_list(v)) {
        *out = *v->as.list;
        if (v->kind == CHAT_ITER) *v->as.list = (struct chat_list){NULL, 0};
        return true;
    }
    if (v->kind != CHAT_DICT) return eval_raise(ev, "'%s' cannot be iterated over", chat_type_name(v));
    struct chat_value *key = eval_alloc(ev, v->as.dict->count * sizeof *key);
    if (!key) return false;
    for (size_t i = 0; i < v->as.dict->count; i++) key[i] = v->as.dict->pair[i].key;
    *out = (struct chat_list){key, v->as.dict->count};
    return eval_charge(ev, v->as.dict->count);
}

bool eval_length(struct chat_eval *ev, const struct chat_value *v, int64_t *out)
{
    *out = 0;
    if (v->kind == CHAT_UNDEFINED) return true;
    if (v->kind == CHAT_STRING)
        *out = (int64_t)utext_count(v->as.string.text, v->as.string.len);
    else if (v->kind == CHAT_DICT)
        *out = (int64_t)v->as.dict->count;
    else if (chat_is_list(v) && v->kind != CHAT_ITER)
        *out = (int64_t)v->as.list->count;
    else if (v->kind == CHAT_LOOP)
        *out = (int64_t)v->as.loop->count;
    else
        return eval_raise(ev, "'%s' has no length", chat_type_name(v));
    return eval_charge(ev, v->kind == CHAT_STRING ? v->as.string.len : 0);
}

/* ---- dictionaries ---- */

bool eval_dict_new(struct chat_eval *ev, struct chat_value *out)
{
    struct chat_dict *dict = eval_alloc(ev, sizeof *dict);
    if (!dict) return false;
    *out = (struct chat_value){.kind = CHAT_DICT, .as.dict = dict};
    return true;
}

bool eval_dict_lookup(struct chat_eval *ev, const struct chat_dict *dict, const struct chat_value *key,
                      struct chat_pair **out)
{
    *out = NULL;
    if (key->kind == CHAT_LIST || key->kind == CHAT_DICT)
        return eval_raise(ev, "a '%s' cannot be a key", chat_type_name(key));
    if (!eval_charge(ev, dict->count * (key->kind == CHAT_STRING ? key->as.string.len + 1 : 1))) return false;
    if (key->kind == CHAT_STRING) {
        *out = chat_dict_find(dict, key->as.string.text, key->as.string.len);
        return true;
    }
    bool same = false;
    for (size_t i = 0; i < dict->count && !same; i++) {
        if (!eval_equal(ev, &dict->pair[i].key, key, &same)) return false;
        if (same) *out = &dict->pair[i];
    }
    return true;
}

bool eval_dict_set(struct chat_eval *ev, struct chat_dict *dict, const struct chat_value *key,
                   const struct chat_value *value)
{
    struct chat_pair *pair;
    if (!eval_dict_lookup(ev, dict, key, &pair)) return false;
    if (!pair) {
        if (!eval_grow(ev, &dict->pair, dict->count, &dict->cap, sizeof *pair)) return false;
        pair = &dict->pair[dict->count++];
        pair->key = *key;
    }
    pair->value = *value;
    return true;
}
