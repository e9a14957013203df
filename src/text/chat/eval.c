/* eval.c - the bounds of a rendering, and the value of an expression: one small function per kind, by a table.
 *
 * Invariants: ev->depth is the number of eval_expr and exec_body calls on the C stack (and of value walks, in
 * compare.c and write.c); it comes back to what it was before every successful return. After a failure ev->status
 * is set once and everything returns false up to chat_eval_render.
 */
#include "text/chat/eval.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- bounds and errors ---- */

bool eval_fail(struct chat_eval *ev, enum plim_status status, const char *fmt, ...)
{
    char text[800];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    ev->status = plim_fail(ev->err, status, "%s:%d: %s", ev->tmpl->name, ev->line, text);
    return false;
}

bool eval_charge(struct chat_eval *ev, size_t work)
{
    ev->steps += 1 + work / 32;
    if (ev->steps <= ev->max_steps) return true;
    return eval_raise(ev, "the template takes too long (more than %llu steps)",
                      (unsigned long long)ev->max_steps);
}

/* One bound for everything a rendering holds at a time. */
static bool has_memory(struct chat_eval *ev, size_t more)
{
    size_t held = ev->used + ev->written;
    if (more <= ev->max_bytes && held + more <= ev->max_bytes) return true;
    return eval_raise(ev, "the template needs too much memory (more than %zu bytes)", ev->max_bytes);
}

void *eval_alloc(struct chat_eval *ev, size_t bytes)
{
    void *got = NULL;
    if (!has_memory(ev, bytes)) return NULL;
    got = bump_alloc(&ev->store, bytes);
    ev->used += bytes + 16;
    if (!got) eval_fail(ev, PLIM_NO_MEMORY, "out of memory");
    return got;
}

bool eval_grow(struct chat_eval *ev, void *array, size_t count, size_t *cap, size_t item)
{
    if (count < *cap) return true;
    size_t more = *cap ? *cap * 2 : 4;
    void *old, *grown = eval_alloc(ev, more * item);
    if (!grown) return false;
    memcpy(&old, array, sizeof old);
    if (count) memcpy(grown, old, count * item);
    memcpy(array, &grown, sizeof grown);
    *cap = more;
    return true;
}

bool eval_enter(struct chat_eval *ev)
{
    if (++ev->depth <= EVAL_DEPTH_MAX + VALUE_DEPTH_MAX) return true;
    return eval_raise(ev, "a value is nested too deeply");
}

bool eval_copy(struct chat_eval *ev, const char *text, size_t len, struct chat_value *out)
{
    char *copy = eval_alloc(ev, len + 1);
    if (!copy) return false;
    if (len) memcpy(copy, text, len);
    *out = chat_string(copy, len);
    return true;
}

bool eval_take(struct chat_eval *ev, struct strbuf *sb, struct chat_value *out)
{
    bool ok = sb->failed ? eval_fail(ev, PLIM_NO_MEMORY, "out of memory")
                         : eval_copy(ev, strbuf_text(sb), sb->len, out);
    ev->written -= sb->len;
    strbuf_release(sb);
    return ok;
}

bool eval_put(struct chat_eval *ev, struct strbuf *sb, const char *text, size_t len)
{
    if (sb == ev->final && (len > ev->max_output || sb->len - ev->final_base > ev->max_output - len))
        return eval_raise(ev, "the template writes too much (more than %zu bytes)", ev->max_output);
    if (!has_memory(ev, len)) return false;
    ev->written += len;
    if (len) strbuf_addn(sb, text, len);
    return !sb->failed || eval_fail(ev, PLIM_NO_MEMORY, "out of memory");
}

bool eval_list(struct chat_eval *ev, enum chat_kind kind, const struct chat_value *item, size_t count,
               struct chat_value *out)
{
    struct chat_list *list = eval_alloc(ev, sizeof *list);
    if (!list) return false;
    *list = (struct chat_list){item, count};
    *out = (struct chat_value){.kind = kind, .as.list = list};
    return true;
}

bool eval_undefined(struct chat_eval *ev, const struct chat_value *v)
{
    if (!v->as.string.text) return eval_raise(ev, "the value is undefined");
    return eval_raise(ev, "'%.*s' is undefined", (int)(v->as.string.len < 100 ? v->as.string.len : 100),
                      v->as.string.text);
}

/* ---- expressions ---- */

static bool eval_const(struct chat_eval *, const struct chat_expr *e, struct chat_value *out)
{
    *out = e->value;
    return true;
}

static bool eval_name(struct chat_eval *ev, const struct chat_expr *e, struct chat_value *out)
{
    for (const struct chat_scope *s = ev->scope; s; s = s->parent)
        for (size_t i = 0; i < s->count; i++)
            if (s->vars[i].name == e->name) {
                *out = s->vars[i].value;
                return eval_charge(ev, i);
            }
    *out = ev->globals[e->name];
    return true;
}

/* Values of e->items in the store. */
static bool eval_all(struct chat_eval *ev, const struct chat_expr *e, struct chat_value **out)
{
    *out = eval_alloc(ev, e->count * sizeof **out);
    if (!*out) return false;
    for (size_t i = 0; i < e->count; i++)
        if (!eval_expr(ev, e->items[i], &(*out)[i])) return false;
    return true;
}

static bool eval_sequence(struct chat_eval *ev, const struct chat_expr *e, struct chat_value *out)
{
    struct chat_value *item;
    return eval_all(ev, e, &item) &&
           eval_list(ev, e->kind == E_LIST ? CHAT_LIST : CHAT_TUPLE, item, e->count, out);
}

static bool eval_dict(struct chat_eval *ev, const struct chat_expr *e, struct chat_value *out)
{
    struct chat_value key, value;
    if (!eval_dict_new(ev, out)) return false;
    for (size_t i = 0; i < e->count; i += 2)
        if (!eval_expr(ev, e->items[i], &key) || !eval_expr(ev, e->items[i + 1], &value) ||
            !eval_dict_set(ev, out->as.dict, &key, &value))
            return false;
    return true;
}

static bool eval_attr_expr(struct chat_eval *ev, const struct chat_expr *e, struct chat_value *out)
{
    struct chat_value a;
    if (!eval_expr(ev, e->a, &a)) return false;
    ev->line = e->line;
    return eval_attr(ev, &a, e->value.as.string.text, e->value.as.string.len, out);
}

static bool eval_item_expr(struct chat_eval *ev, const struct chat_expr *e, struct chat_value *out)
{
    struct chat_value a, key;
    if (!eval_expr(ev, e->a, &a) || !eval_expr(ev, e->b, &key)) return false;
    ev->line = e->line;
    return eval_item(ev, &a, &key, out);
}

static bool eval_slice_expr(struct chat_eval *ev, const struct chat_expr *e, struct chat_value *out)
{
    struct chat_value a, bounds[3] = {chat_none(), chat_none(), chat_none()};
    if (!eval_expr(ev, e->a, &a)) return false;
    for (int i = 0; i < 3; i++)
        if (e->items[i] && !eval_expr(ev, e->items[i], &bounds[i])) return false;
    ev->line = e->line;
    return eval_slice(ev, &a, bounds, out);
}

static bool eval_not(struct chat_eval *ev, const struct chat_expr *e, struct chat_value *out)
{
    struct chat_value a;
    if (!eval_expr(ev, e->a, &a)) return false;
    *out = chat_bool(!chat_truth(&a));
    return true;
}

static bool eval_sign(struct chat_eval *ev, const struct chat_expr *e, struct chat_value *out)
{
    struct chat_value a;
    double d;
    if (!eval_expr(ev, e->a, &a)) return false;
    if (a.kind == CHAT_UNDEFINED) return eval_undefined(ev, &a);
    if (!chat_as_double(&a, &d)) return eval_raise(ev, "a sign before '%s'", chat_type_name(&a));
    if (e->kind == E_NEG) return eval_negate(ev, &a, out);
    *out = a.kind == CHAT_BOOL ? chat_int(a.as.boolean) : a;
    return true;
}

/* and, or: the operand that decided. */
static bool eval_logic(struct chat_eval *ev, const struct chat_expr *e, struct chat_value *out)
{
    if (!eval_expr(ev, e->a, out)) return false;
    if (chat_truth(out) == (e->kind == E_OR)) return true;
    return eval_expr(ev, e->b, out);
}

static bool eval_binary_expr(struct chat_eval *ev, const struct chat_expr *e, struct chat_value *out)
{
    struct chat_value a, b;
    if (!eval_expr(ev, e->a, &a) || !eval_expr(ev, e->b, &b)) return false;
    ev->line = e->line;
    return eval_binary(ev, e->op, &a, &b, out);
}

static bool eval_concat(struct chat_eval *ev, const struct chat_expr *e, struct chat_value *out)
{
    STRBUF_AUTO sb = STRBUF_INIT;
    struct chat_value part;
    for (size_t i = 0; i < e->count; i++)
        if (!eval_expr(ev, e->items[i], &part) || !eval_write(ev, &part, &sb)) return false;
    return eval_take(ev, &sb, out);
}

static bool compare_two(struct chat_eval *ev, enum chat_op op, const struct chat_value *a,
                        const struct chat_value *b, bool *out)
{
    int order = 0;
    if (op == CHAT_EQ || op == CHAT_NE) {
        if (!eval_equal(ev, a, b, out)) return false;
        *out ^= op == CHAT_NE;
        return true;
    }
    if (op == CHAT_IN || op == CHAT_NOT_IN) {
        if (!eval_contains(ev, b, a, out)) return false;
        *out ^= op == CHAT_NOT_IN;
        return true;
    }
    if (a->kind == CHAT_UNDEFINED || b->kind == CHAT_UNDEFINED)
        return eval_undefined(ev, a->kind == CHAT_UNDEFINED ? a : b);
    if (!eval_order(ev, a, b, &order)) return false;
    bool nan = (a->kind == CHAT_FLOAT && a->as.real != a->as.real) ||
               (b->kind == CHAT_FLOAT && b->as.real != b->as.real);
    *out = !nan && (op == CHAT_LT   ? order < 0
                    : op == CHAT_LE ? order <= 0
                    : op == CHAT_GT ? order > 0
                                    : order >= 0);
    return true;
}

static bool eval_compare(struct chat_eval *ev, const struct chat_expr *e, struct chat_value *out)
{
    struct chat_value left, right;
    bool holds = true;
    if (!eval_expr(ev, e->a, &left)) return false;
    for (size_t i = 0; holds && i < e->count; i++) {
        if (!eval_expr(ev, e->items[i], &right)) return false;
        ev->line = e->line;
        if (!compare_two(ev, e->ops[i], &left, &right, &holds)) return false;
        left = right;
    }
    *out = chat_bool(holds);
    return true;
}

static bool eval_cond(struct chat_eval *ev, const struct chat_expr *e, struct chat_value *out)
{
    struct chat_value test;
    if (!eval_expr(ev, e->a, &test)) return false;
    if (chat_truth(&test)) return eval_expr(ev, e->b, out);
    if (e->c) return eval_expr(ev, e->c, out);
    *out = chat_undefined(NULL, 0);
    return true;
}

bool eval_expr(struct chat_eval *ev, const struct chat_expr *e, struct chat_value *out)
{
    static bool (*const table[E_KINDS])(struct chat_eval *, const struct chat_expr *, struct chat_value *) = {
        [E_CONST] = eval_const,     [E_NAME] = eval_name,          [E_TUPLE] = eval_sequence,
        [E_LIST] = eval_sequence,   [E_DICT] = eval_dict,          [E_ATTR] = eval_attr_expr,
        [E_ITEM] = eval_item_expr,  [E_SLICE] = eval_slice_expr,   [E_CALL] = eval_call_expr,
        [E_FILTER] = eval_row_expr, [E_TEST] = eval_row_expr,      [E_NOT] = eval_not,
        [E_NEG] = eval_sign,        [E_POS] = eval_sign,           [E_AND] = eval_logic,
        [E_OR] = eval_logic,        [E_BINARY] = eval_binary_expr, [E_CONCAT] = eval_concat,
        [E_COMPARE] = eval_compare, [E_COND] = eval_cond,
    };
    ev->line = e->line;
    if (!eval_charge(ev, 0)) return false;
    if (ev->depth >= EVAL_DEPTH_MAX) return eval_raise(ev, "the template recurses too deeply");
    ev->depth++;
    bool ok = table[e->kind](ev, e, out);
    ev->depth--;
    return ok;
}
