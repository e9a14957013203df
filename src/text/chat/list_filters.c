/* list_filters.c - filters that take or give lists.
 *
 * Where Jinja gives a generator (map, select, unique, ...), the result is of kind CHAT_ITER: computed at once, but
 * readable once, true even when empty, and without a length, as a template would find it.
 */
#include "base/number.h"
#include "text/chat/eval.h"
#include <string.h>

/* "a.b.0" looked up step by step; a number is an index. An absent or none attribute is the item itself. */
static bool attribute_of(struct chat_eval *ev, const struct chat_value *item,
                         const struct chat_value *attribute, struct chat_value *out)
{
    *out = *item;
    if (attribute->kind == CHAT_ABSENT || attribute->kind == CHAT_NONE) return true;
    if (attribute->kind != CHAT_STRING) return eval_item(ev, item, attribute, out);
    const char *at = attribute->as.string.text, *end = at + attribute->as.string.len;
    for (;;) {
        const char *dot = at < end ? memchr(at, '.', (size_t)(end - at)) : NULL;
        size_t len = (size_t)((dot ? dot : end) - at);
        struct chat_value from = *out, key = chat_string(at, len);
        int64_t index;
        if (len && at[0] >= '0' && at[0] <= '9' && number_parse_int64(at, len, &index)) key = chat_int(index);
        if (!eval_item(ev, &from, &key, out)) return false;
        if (!dot) return true;
        at = dot + 1;
    }
}

static bool filter_first(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    struct chat_list items;
    if (!eval_items(ev, &call->self, &items)) return false;
    *out = items.count ? items.item[0] : chat_undefined("first of nothing", 16);
    return true;
}

static bool filter_last(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    struct chat_list items;
    if (call->self.kind == CHAT_ITER) return eval_raise(ev, "last needs a list; write |list|last");
    if (!eval_items(ev, &call->self, &items)) return false;
    *out = items.count ? items.item[items.count - 1] : chat_undefined("last of nothing", 15);
    return true;
}

static bool filter_list(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    struct chat_list items;
    return eval_items(ev, &call->self, &items) && eval_list(ev, CHAT_LIST, items.item, items.count, out);
}

static bool filter_reverse(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    struct chat_value step[3] = {chat_none(), chat_none(), chat_int(-1)}, list;
    if (call->self.kind == CHAT_STRING) return eval_slice(ev, &call->self, step, out);
    if (!filter_list(ev, call, &list) || !eval_slice(ev, &list, step, out)) return false;
    out->kind = CHAT_ITER;
    return true;
}

static bool filter_items(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    if (call->self.kind == CHAT_UNDEFINED) return eval_list(ev, CHAT_ITER, NULL, 0, out);
    if (call->self.kind != CHAT_DICT)
        return eval_raise(ev, "items needs a mapping, not '%s'", chat_type_name(&call->self));
    const struct chat_row *row = chat_method_find(&call->self, "items", 5);
    if (!eval_apply(ev, row, &call->self, NULL, NULL, 0, out)) return false;
    out->kind = CHAT_ITER;
    return true;
}

static bool filter_join(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    STRBUF_AUTO sb = STRBUF_INIT;
    struct chat_value glue = chat_string("", 0), v;
    struct chat_list items;
    if (call->arg[0].kind != CHAT_ABSENT && !eval_text(ev, &call->arg[0], &glue)) return false;
    bool ok = eval_items(ev, &call->self, &items) && eval_charge(ev, items.count);
    for (size_t i = 0; ok && i < items.count; i++) {
        if (i) ok = eval_put(ev, &sb, glue.as.string.text, glue.as.string.len);
        ok = ok && attribute_of(ev, &items.item[i], &call->arg[1], &v) && eval_write(ev, &v, &sb);
    }
    return ok && eval_take(ev, &sb, out);
}

/* ---- map, select and their kind ---- */

static const char *key_of(const struct chat_call *call, size_t i)
{
    return call->keys ? call->keys[i] : NULL;
}

/* map(attribute='a.b', default=x) */
static bool map_attribute(struct chat_eval *ev, struct chat_call *call, const struct chat_list *items,
                          struct chat_value *to)
{
    struct chat_value attribute = chat_none(), fallback = {0};
    for (size_t i = 0; i < call->count; i++) {
        const char *key = key_of(call, i);
        if (key && strcmp(key, "attribute") == 0)
            attribute = call->given[i];
        else if (key && strcmp(key, "default") == 0)
            fallback = call->given[i];
        else
            return eval_fail(ev, PLIM_UNSUPPORTED, "map with the argument '%.60s' is not supported",
                             key ? key : "");
    }
    for (size_t i = 0; i < items->count; i++) {
        if (!attribute_of(ev, &items->item[i], &attribute, &to[i])) return false;
        if (to[i].kind == CHAT_UNDEFINED && fallback.kind != CHAT_ABSENT) to[i] = fallback;
    }
    return true;
}

/* Jinja asks whether there is anything at all before it iterates, so none and 0 pass for empty lists. */
static bool items_if_any(struct chat_eval *ev, const struct chat_value *v, struct chat_list *out)
{
    *out = (struct chat_list){NULL, 0};
    return !chat_truth(v) || eval_items(ev, v, out);
}

/* The filter or test that an argument names; NULL after an error. */
static const struct chat_row *named_row(struct chat_eval *ev, const struct chat_call *call, size_t i,
                                        const char *what,
                                        const struct chat_row *(*find)(const char *, size_t))
{
    struct chat_value name = call->given[i];
    if (name.kind != CHAT_STRING) name = chat_string("", 0);
    const struct chat_row *row = find(name.as.string.text, name.as.string.len);
    if (!row)
        eval_fail(ev, PLIM_UNSUPPORTED, "%s: %s '%.*s' is not supported", call->row->name, what,
                  (int)(name.as.string.len < 60 ? name.as.string.len : 60), name.as.string.text);
    return row;
}

static bool filter_map(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    struct chat_list items;
    if (!items_if_any(ev, &call->self, &items) || !eval_charge(ev, items.count)) return false;
    struct chat_value *to = eval_alloc(ev, items.count * sizeof *to);
    if (!to) return false;
    if (call->count == 0) return eval_raise(ev, "map needs a filter's name or attribute=");
    if (key_of(call, 0)) {
        if (!map_attribute(ev, call, &items, to)) return false;
        return eval_list(ev, CHAT_ITER, to, items.count, out);
    }
    const struct chat_row *row = named_row(ev, call, 0, "filter", chat_filter_find);
    if (!row) return false;
    for (size_t i = 0; i < items.count; i++)
        if (!eval_apply(ev, row, &items.item[i], call->given + 1, call->keys ? call->keys + 1 : NULL,
                        call->count - 1, &to[i]))
            return false;
    return eval_list(ev, CHAT_ITER, to, items.count, out);
}

/* Does the item, or its attribute, pass the test named by the arguments from `from` on? Without one: is it true? */
static bool passes(struct chat_eval *ev, struct chat_call *call, size_t from, const struct chat_value *item,
                   bool *out)
{
    struct chat_value v = *item, result;
    if (from == 1 && !attribute_of(ev, item, &call->given[0], &v)) return false;
    if (call->count <= from) return *out = chat_truth(&v), true;
    const struct chat_row *row = named_row(ev, call, from, "test", chat_test_find);
    if (!row) return false;
    if (!eval_apply(ev, row, &v, call->given + from + 1, call->keys ? call->keys + from + 1 : NULL,
                    call->count - from - 1, &result))
        return false;
    *out = chat_truth(&result);
    return true;
}

/* select, reject, selectattr, rejectattr: told apart by their names. */
static bool filter_select(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    bool rejects = call->row->name[0] == 'r', pass = false;
    size_t from = strlen(call->row->name) > 6 ? 1 : 0, n = 0;
    struct chat_list items;
    if (call->count < from) return eval_raise(ev, "%s needs an attribute", call->row->name);
    if (!items_if_any(ev, &call->self, &items) || !eval_charge(ev, items.count)) return false;
    struct chat_value *kept = eval_alloc(ev, items.count * sizeof *kept);
    if (!kept) return false;
    for (size_t i = 0; i < items.count; i++) {
        if (!passes(ev, call, from, &items.item[i], &pass)) return false;
        if (pass != rejects) kept[n++] = items.item[i];
    }
    return eval_list(ev, CHAT_ITER, kept, n, out);
}

/* ---- order ---- */

struct sortable {
    struct chat_value key, value;
};

/* The attribute, in small letters unless case matters. */
static bool sort_key(struct chat_eval *ev, const struct chat_value *item, const struct chat_value *attribute,
                     bool sensitive, struct chat_value *out)
{
    struct chat_value key;
    if (attribute->kind == CHAT_STRING && memchr(attribute->as.string.text, ',', attribute->as.string.len))
        return eval_fail(ev, PLIM_UNSUPPORTED, "sorting by several attributes is not supported");
    if (!attribute_of(ev, item, attribute, &key)) return false;
    *out = key;
    if (sensitive || key.kind != CHAT_STRING) return true;
    return eval_apply(ev, chat_method_find(&key, "lower", 5), &key, NULL, NULL, 0, out);
}

/* Merge sort: stable, and an order that contradicts itself does no harm. `to` and `from` hold the same items. */
static bool merge_sort(struct chat_eval *ev, struct sortable *from, struct sortable *to, size_t n, bool down)
{
    size_t half = n / 2, a = 0, b = half, i = 0;
    if (n < 2) return true;
    if (!merge_sort(ev, to, from, half, down) || !merge_sort(ev, to + half, from + half, n - half, down))
        return false;
    while (a < half || b < n) {
        int order = a == half ? 1 : -1;
        if (a < half && b < n && !eval_order(ev, &from[a].key, &from[b].key, &order)) return false;
        if (a < half && b < n && down) order = -order;
        to[i++] = from[order <= 0 ? a++ : b++];
    }
    return true;
}

static bool sorted(struct chat_eval *ev, const struct chat_list *items, const struct chat_value *attribute,
                   bool sensitive, bool down, struct chat_value *out)
{
    size_t n = items->count;
    struct sortable *from = eval_alloc(ev, n * sizeof *from), *to = eval_alloc(ev, n * sizeof *to);
    struct chat_value *item = eval_alloc(ev, n * sizeof *item);
    if (!from || !to || !item) return false;
    for (size_t i = 0; i < n; i++) {
        from[i].value = items->item[i];
        if (!sort_key(ev, &items->item[i], attribute, sensitive, &from[i].key)) return false;
        to[i] = from[i];
    }
    if (!merge_sort(ev, from, to, n, down)) return false;
    for (size_t i = 0; i < n; i++) item[i] = to[i].value;
    return eval_list(ev, CHAT_LIST, item, n, out);
}

static bool filter_sort(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    struct chat_list items;
    return eval_items(ev, &call->self, &items) &&
           sorted(ev, &items, &call->arg[2], chat_truth(&call->arg[1]), chat_truth(&call->arg[0]), out);
}

static bool filter_dictsort(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    struct chat_value pairs;
    struct chat_call items = {.row = call->row, .self = call->self};
    if (call->self.kind == CHAT_UNDEFINED) return eval_undefined(ev, &call->self);
    if (!filter_items(ev, &items, &pairs)) return false;
    struct chat_value place = chat_int(chat_is_text(&call->arg[1], "value"));
    return sorted(ev, pairs.as.list, &place, chat_truth(&call->arg[0]), chat_truth(&call->arg[2]), out);
}

static bool filter_unique(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    struct chat_list items;
    size_t n = 0;
    if (!eval_items(ev, &call->self, &items)) return false;
    struct chat_value *kept = eval_alloc(ev, items.count * sizeof *kept),
                      *keys = eval_alloc(ev, items.count * sizeof *keys);
    if (!kept || !keys) return false;
    for (size_t i = 0; i < items.count; i++) {
        bool seen = false;
        if (!sort_key(ev, &items.item[i], &call->arg[1], chat_truth(&call->arg[0]), &keys[n])) return false;
        if (keys[n].kind == CHAT_LIST || keys[n].kind == CHAT_DICT)
            return eval_raise(ev, "unique: a '%s' cannot be told apart", chat_type_name(&keys[n]));
        for (size_t k = 0; k < n && !seen; k++)
            if (!eval_equal(ev, &keys[k], &keys[n], &seen)) return false;
        if (!seen) kept[n++] = items.item[i];
    }
    return eval_list(ev, CHAT_ITER, kept, n, out);
}

/* min and max: the first of the sorted items; Python gives the first of equal ones as well. */
static bool filter_extreme(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    struct chat_list items;
    struct chat_value list;
    if (!eval_items(ev, &call->self, &items)) return false;
    if (items.count == 0) return *out = chat_undefined("min or max of nothing", 21), true;
    if (!sorted(ev, &items, &call->arg[1], chat_truth(&call->arg[0]), call->row->name[1] == 'a', &list))
        return false;
    *out = list.as.list->item[0];
    return true;
}

const struct chat_row chat_list_filters[] = {
    {"first", "", 0, filter_first},
    {"last", "", 0, filter_last},
    {"list", "", 0, filter_list},
    {"reverse", "", 0, filter_reverse},
    {"items", "", 0, filter_items},
    {"join", "d attribute", 0, filter_join},
    {"map", NULL, 0, filter_map},
    {"select", NULL, 0, filter_select},
    {"reject", NULL, 0, filter_select},
    {"selectattr", NULL, 0, filter_select},
    {"rejectattr", NULL, 0, filter_select},
    {"sort", "reverse case_sensitive attribute", 0, filter_sort},
    {"dictsort", "case_sensitive by reverse", 0, filter_dictsort},
    {"unique", "case_sensitive attribute", 0, filter_unique},
    {"min", "case_sensitive attribute", 0, filter_extreme},
    {"max", "case_sensitive attribute", 0, filter_extreme},
    {NULL, NULL, 0, NULL},
};
