/* access.c - x.name, x[key] and x[a:b:c].
 *
 * Jinja looks for attributes of the Python object first and for keys second with x.name, and the other way round
 * with x["name"]; what it does not find is undefined, not an error. The only attributes our values have are their
 * methods and those of `loop`.
 */
#include "text/chat/eval.h"
#include "text/chat/unicode_text.h"
#include <string.h>

static bool is_name(const char *name, size_t len, const char *what)
{
    return strlen(what) == len && memcmp(name, what, len) == 0;
}

static bool loop_attr(const struct chat_loop *loop, const char *name, size_t len, struct chat_value *out)
{
    const struct {
        const char *name;
        struct chat_value value;
    } table[] = {
        {"index", chat_int((int64_t)loop->index + 1)},
        {"index0", chat_int((int64_t)loop->index)},
        {"revindex", chat_int((int64_t)(loop->count - loop->index))},
        {"revindex0", chat_int((int64_t)(loop->count - loop->index) - 1)},
        {"first", chat_bool(loop->index == 0)},
        {"last", chat_bool(loop->index + 1 == loop->count)},
        {"length", chat_int((int64_t)loop->count)},
        {"previtem", loop->index > 0 ? loop->item[loop->index - 1] : chat_undefined("loop.previtem", 13)},
        {"nextitem",
         loop->index + 1 < loop->count ? loop->item[loop->index + 1] : chat_undefined("loop.nextitem", 13)},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (is_name(name, len, table[i].name)) return *out = table[i].value, true;
    return false;
}

/* The method of that name, bound; *found says whether there is one. */
static bool bind_method(struct chat_eval *ev, const struct chat_value *v, const char *name, size_t len,
                        struct chat_value *out, bool *found)
{
    const struct chat_row *row = chat_method_find(v, name, len);
    *found = row != NULL;
    if (!row) return true;
    struct chat_method *method = eval_alloc(ev, sizeof *method);
    if (!method) return false;
    *method = (struct chat_method){*v, row};
    *out = (struct chat_value){.kind = CHAT_METHOD, .as.method = method};
    return true;
}

bool eval_attr(struct chat_eval *ev, const struct chat_value *v, const char *name, size_t len,
               struct chat_value *out)
{
    bool found;
    if (v->kind == CHAT_UNDEFINED) return eval_undefined(ev, v);
    if (v->kind == CHAT_LOOP && loop_attr(v->as.loop, name, len, out)) return true;
    if (!bind_method(ev, v, name, len, out, &found)) return false;
    if (found) return true;
    struct chat_pair *pair = NULL;
    if (v->kind == CHAT_DICT || v->kind == CHAT_NAMESPACE) {
        if (!eval_charge(ev, v->as.dict->count * (len + 1))) return false;
        pair = chat_dict_find(v->as.dict, name, len);
    }
    *out = pair ? pair->value : chat_undefined(name, len);
    return true;
}

/* An index from either end; false when there is no such place. */
static bool place(int64_t index, size_t count, size_t *out)
{
    if (index < 0) index += (int64_t)count;
    if (index < 0 || (uint64_t)index >= count) return false;
    *out = (size_t)index;
    return true;
}

/* messages[-1] is another message where more follow. */
static void note_end(struct chat_eval *ev, const struct chat_list *list)
{
    struct chat_turns *turns = ev->turns;
    if (turns->last_only || turns->begun == turns->count) return; /* it is the last one */
    if (list->count && list->item >= turns->item && list->item < turns->item + turns->items)
        turns->odd = true;
}

static bool item_by_number(struct chat_eval *ev, const struct chat_value *v, int64_t index,
                           struct chat_value *out)
{
    size_t at;
    *out = chat_undefined("an item beyond the end", 22);
    if (v->kind == CHAT_LIST || v->kind == CHAT_TUPLE || v->kind == CHAT_VIEW) {
        if (index < 0 && ev->turns) note_end(ev, v->as.list);
        if (place(index, v->as.list->count, &at)) *out = v->as.list->item[at];
    } else if (v->kind == CHAT_STRING) {
        const char *text = v->as.string.text;
        size_t len = v->as.string.len;
        if (!eval_charge(ev, len)) return false;
        if (!place(index, utext_count(text, len), &at)) return true;
        at = utext_offset(text, len, at);
        *out = chat_string(text + at, utext_step(text[at]));
        out->safe = v->safe;
    }
    return true;
}

bool eval_item(struct chat_eval *ev, const struct chat_value *v, const struct chat_value *key,
               struct chat_value *out)
{
    int64_t index;
    struct chat_pair *pair;
    if (v->kind == CHAT_UNDEFINED) return eval_undefined(ev, v);
    if (v->kind == CHAT_DICT && key->kind != CHAT_LIST && key->kind != CHAT_DICT) {
        if (!eval_dict_lookup(ev, v->as.dict, key, &pair)) return false;
        if (pair) return *out = pair->value, true;
    } else if (chat_as_int(key, &index)) {
        return item_by_number(ev, v, index, out);
    }
    if (key->kind == CHAT_STRING) return eval_attr(ev, v, key->as.string.text, key->as.string.len, out);
    *out = chat_undefined("an item that is not there", 25);
    return true;
}

/* ---- slices ---- */

/* Python's rules for start, stop and step over `count` items: the first place, and how many. */
static bool resolve_slice(struct chat_eval *ev, const struct chat_value bounds[3], int64_t count,
                          int64_t *first, int64_t *step, int64_t *n)
{
    int64_t at[3] = {0, 0, 1};
    for (int i = 0; i < 3; i++)
        if (bounds[i].kind != CHAT_NONE && !chat_as_int(&bounds[i], &at[i]))
            return eval_raise(ev, "a slice's bounds are whole numbers, not '%s'", chat_type_name(&bounds[i]));
    if (at[2] == 0) return eval_raise(ev, "a slice's step cannot be 0");
    bool back = at[2] < 0;
    int64_t low = back ? -1 : 0, high = back ? count - 1 : count;
    for (int i = 0; i < 2; i++) {
        bool from_end = at[i] < 0;
        if (bounds[i].kind == CHAT_NONE)
            at[i] = (i == 0) != back ? low : high;
        else if (from_end)
            at[i] = at[i] < -count ? low : at[i] + count < low ? low : at[i] + count;
        else if (at[i] > high)
            at[i] = high;
    }
    /* Steps beyond the whole length are all alike, and cannot overflow then. */
    *step = at[2] > count + 1 ? count + 1 : at[2] < -count - 1 ? -count - 1 : at[2];
    int64_t span = back ? at[0] - at[1] : at[1] - at[0], stride = back ? -*step : *step;
    *first = at[0];
    *n = span <= 0 ? 0 : (span + stride - 1) / stride;
    return true;
}

static bool slice_string(struct chat_eval *ev, const struct chat_value *v, const struct chat_value bounds[3],
                         struct chat_value *out)
{
    int64_t first, step, n;
    const char *text = v->as.string.text;
    size_t len = v->as.string.len;
    struct chat_list points;
    if (!resolve_slice(ev, bounds, (int64_t)utext_count(text, len), &first, &step, &n)) return false;
    if (!eval_charge(ev, len)) return false;
    if (n <= 0) return *out = chat_string("", 0), true;
    if (step == 1) { /* a part of the same text */
        size_t begin = utext_offset(text, len, (size_t)first);
        *out = chat_string(text + begin, utext_offset(text + begin, len - begin, (size_t)n));
        return true;
    }
    char *copy = eval_alloc(ev, len + 1);
    size_t at = 0;
    if (!copy || !eval_items(ev, v, &points)) return false;
    for (int64_t i = 0; i < n; i++) {
        const struct chat_value *point = &points.item[first + i * step];
        memcpy(copy + at, point->as.string.text, point->as.string.len);
        at += point->as.string.len;
    }
    *out = chat_string(copy, at);
    return true;
}

bool eval_slice(struct chat_eval *ev, const struct chat_value *v, const struct chat_value bounds[3],
                struct chat_value *out)
{
    int64_t first, step, n;
    if (v->kind == CHAT_UNDEFINED) return eval_undefined(ev, v);
    if (v->kind == CHAT_STRING) {
        if (!slice_string(ev, v, bounds, out)) return false;
        out->safe = v->safe;
        return true;
    }
    if (v->kind == CHAT_VIEW)
        return eval_fail(ev, PLIM_UNSUPPORTED, "a slice of a range or view is not supported");
    if (v->kind != CHAT_LIST && v->kind != CHAT_TUPLE)
        return eval_raise(ev, "a '%s' cannot be sliced", chat_type_name(v));
    if (!resolve_slice(ev, bounds, (int64_t)v->as.list->count, &first, &step, &n)) return false;
    if (step == 1 && n > 0) /* a part of the same items, which nobody changes */
        return eval_list(ev, v->kind, v->as.list->item + first, (size_t)n, out);
    struct chat_value *item = eval_alloc(ev, (size_t)n * sizeof *item);
    if (!item || !eval_charge(ev, (size_t)n)) return false;
    for (int64_t i = 0; i < n; i++) item[i] = v->as.list->item[first + i * step];
    return eval_list(ev, v->kind, item, (size_t)n, out);
}
