/* operate.c - arithmetic, and + and * of texts and lists.
 *
 * Whole numbers are 64 bits wide; where Python would go on with more, this is an error. A remainder has
 * the sign of its divisor, as Python's has.
 */
#include "text/chat/eval.h"
#include <math.h>
#include <string.h>

static bool too_large(struct chat_eval *ev)
{
    return eval_fail(ev, PLIM_UNSUPPORTED, "a whole number beyond 64 bits is not supported");
}

static const char *const op_names[] = {
    [CHAT_ADD] = "+",
    [CHAT_SUB] = "-",
    [CHAT_MUL] = "*",
    [CHAT_MOD] = "%",
};

static bool wrong_types(struct chat_eval *ev, enum chat_op op, const struct chat_value *a,
                        const struct chat_value *b)
{
    if (a->kind == CHAT_UNDEFINED || b->kind == CHAT_UNDEFINED)
        return eval_undefined(ev, a->kind == CHAT_UNDEFINED ? a : b);
    return eval_raise(ev, "'%s' does not work between '%s' and '%s'", op_names[op], chat_type_name(a),
                      chat_type_name(b));
}

static bool int_binary(struct chat_eval *ev, enum chat_op op, int64_t a, int64_t b, struct chat_value *out)
{
    int64_t r = 0;
    bool over = false;
    if (op == CHAT_ADD)
        over = __builtin_add_overflow(a, b, &r);
    else if (op == CHAT_SUB)
        over = __builtin_sub_overflow(a, b, &r);
    else if (op == CHAT_MUL)
        over = __builtin_mul_overflow(a, b, &r);
    else if (b == 0)
        return eval_raise(ev, "division by zero");
    else if (b != -1) /* the smallest number has no negative */
        r = a % b + (a % b != 0 && (a % b < 0) != (b < 0) ? b : 0);
    *out = chat_int(r);
    return !over || too_large(ev);
}

static double float_remainder(double a, double b)
{
    double rest = fmod(a, b);
    if (rest == 0) return copysign(0.0, b);
    return (b < 0) != (rest < 0) ? rest + b : rest;
}

static bool float_binary(struct chat_eval *ev, enum chat_op op, double a, double b, struct chat_value *out)
{
    if (op == CHAT_MOD && b == 0) return eval_raise(ev, "division by zero");
    *out = chat_float(op == CHAT_ADD   ? a + b
                      : op == CHAT_SUB ? a - b
                      : op == CHAT_MUL ? a * b
                                       : float_remainder(a, b));
    return true;
}

static bool join_strings(struct chat_eval *ev, const struct chat_value *a, const struct chat_value *b,
                         struct chat_value *out)
{
    struct chat_value left = *a, right = *b;
    bool safe = a->safe || b->safe;
    if (safe && (!eval_escape(ev, a, &left) || !eval_escape(ev, b, &right))) return false;
    a = &left, b = &right;
    size_t n = a->as.string.len, m = b->as.string.len;
    char *text = eval_alloc(ev, n + m + 1);
    if (!text) return false;
    if (n) memcpy(text, a->as.string.text, n);
    if (m) memcpy(text + n, b->as.string.text, m);
    *out = chat_string(text, n + m);
    out->safe = safe;
    return eval_charge(ev, n + m);
}

static bool join_lists(struct chat_eval *ev, const struct chat_value *a, const struct chat_value *b,
                       struct chat_value *out)
{
    size_t n = a->as.list->count, m = b->as.list->count;
    struct chat_value *item = eval_alloc(ev, (n + m) * sizeof *item);
    if (!item) return false;
    if (n) memcpy(item, a->as.list->item, n * sizeof *item);
    if (m) memcpy(item + n, b->as.list->item, m * sizeof *item);
    return eval_charge(ev, n + m) && eval_list(ev, a->kind, item, n + m, out);
}

static bool repeat(struct chat_eval *ev, const struct chat_value *v, int64_t times, struct chat_value *out)
{
    bool text = v->kind == CHAT_STRING;
    size_t unit = text ? 1 : sizeof(struct chat_value), whole;
    size_t n = (text ? v->as.string.len : v->as.list->count) * unit;
    const void *from = text ? (const void *)v->as.string.text : v->as.list->item;
    if (times < 0 || n == 0) times = 0;
    if (__builtin_mul_overflow((size_t)times, n, &whole) || whole > ev->max_bytes) whole = ev->max_bytes + 1;
    char *to = eval_alloc(ev, whole + 1);
    if (!to || !eval_charge(ev, whole)) return false;
    for (int64_t i = 0; i < times; i++) memcpy(to + (size_t)i * n, from, n);
    if (!text) return eval_list(ev, v->kind, (const struct chat_value *)(const void *)to, whole / unit, out);
    *out = chat_string(to, whole);
    out->safe = v->safe;
    return true;
}

static bool repeatable(const struct chat_value *v)
{
    return v->kind == CHAT_STRING || v->kind == CHAT_LIST || v->kind == CHAT_TUPLE;
}

bool eval_binary(struct chat_eval *ev, enum chat_op op, const struct chat_value *a,
                 const struct chat_value *b, struct chat_value *out)
{
    int64_t i, j;
    double x, y;
    if (chat_as_int(a, &i) && chat_as_int(b, &j)) return int_binary(ev, op, i, j, out);
    if (chat_as_double(a, &x) && chat_as_double(b, &y)) return float_binary(ev, op, x, y, out);
    if (op == CHAT_ADD && a->kind == b->kind && a->kind == CHAT_STRING) return join_strings(ev, a, b, out);
    if (op == CHAT_ADD && a->kind == b->kind && repeatable(a)) return join_lists(ev, a, b, out);
    if (op == CHAT_MOD && a->kind == CHAT_STRING)
        return eval_fail(ev, PLIM_UNSUPPORTED, "operator '%%' of a text is not supported");
    if (op == CHAT_MUL && repeatable(a) && chat_as_int(b, &j)) return repeat(ev, a, j, out);
    if (op == CHAT_MUL && repeatable(b) && chat_as_int(a, &i)) return repeat(ev, b, i, out);
    return wrong_types(ev, op, a, b);
}

bool eval_negate(struct chat_eval *ev, const struct chat_value *a, struct chat_value *out)
{
    int64_t i;
    if (a->kind == CHAT_FLOAT) return *out = chat_float(-a->as.real), true;
    if (!chat_as_int(a, &i) || i == INT64_MIN) return too_large(ev);
    *out = chat_int(-i);
    return true;
}
