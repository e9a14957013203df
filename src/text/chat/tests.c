/* tests.c - what may stand after `is`, and what select and reject take. */
#include "text/chat/eval.h"
#include <string.h>

static bool answer(struct chat_value *out, bool yes)
{
    *out = chat_bool(yes);
    return true;
}

/* Tests of the kind alone: a table of masks. */
#define KIND(k) (1u << (k))

static const struct {
    const char *name;
    unsigned kinds;
} by_kind[] = {
    {"undefined", KIND(CHAT_UNDEFINED)},
    {"none", KIND(CHAT_NONE)},
    {"boolean", KIND(CHAT_BOOL)},
    {"integer", KIND(CHAT_INT)},
    {"float", KIND(CHAT_FLOAT)},
    {"number", KIND(CHAT_BOOL) | KIND(CHAT_INT) | KIND(CHAT_FLOAT)},
    {"string", KIND(CHAT_STRING)},
    {"mapping", KIND(CHAT_DICT)},
    {"sequence",
     KIND(CHAT_UNDEFINED) | KIND(CHAT_STRING) | KIND(CHAT_LIST) | KIND(CHAT_TUPLE) | KIND(CHAT_DICT)},
    {"iterable", KIND(CHAT_UNDEFINED) | KIND(CHAT_STRING) | KIND(CHAT_LIST) | KIND(CHAT_TUPLE) |
                     KIND(CHAT_VIEW) | KIND(CHAT_ITER) | KIND(CHAT_DICT) | KIND(CHAT_LOOP)},
    {"callable", KIND(CHAT_MACRO) | KIND(CHAT_METHOD) | KIND(CHAT_FUNCTION)},
};

static bool test_kind(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    (void)ev;
    for (size_t i = 0; i < sizeof by_kind / sizeof *by_kind; i++)
        if (strcmp(by_kind[i].name, call->row->name) == 0)
            return answer(out, by_kind[i].kinds & KIND(call->self.kind));
    return answer(out, call->self.kind != CHAT_UNDEFINED); /* "defined" */
}

static bool test_true(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    (void)ev;
    return answer(out, call->self.kind == CHAT_BOOL && call->self.as.boolean);
}

static bool test_false(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    (void)ev;
    return answer(out, call->self.kind == CHAT_BOOL && !call->self.as.boolean);
}

static bool test_equal(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    bool same;
    return eval_equal(ev, &call->self, &call->arg[0], &same) && answer(out, same);
}

static bool test_unequal(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    bool same;
    return eval_equal(ev, &call->self, &call->arg[0], &same) && answer(out, !same);
}

static bool order(struct chat_eval *ev, struct chat_call *call, int *out)
{
    for (int i = 0; i < 2; i++) {
        const struct chat_value *v = i ? &call->arg[0] : &call->self;
        if (v->kind == CHAT_UNDEFINED) return eval_undefined(ev, v);
    }
    return eval_order(ev, &call->self, &call->arg[0], out);
}

static bool test_less(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    int o;
    return order(ev, call, &o) && answer(out, o < 0);
}

static bool test_less_equal(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    int o;
    return order(ev, call, &o) && answer(out, o <= 0);
}

static bool test_greater(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    int o;
    return order(ev, call, &o) && answer(out, o > 0);
}

static bool test_greater_equal(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    int o;
    return order(ev, call, &o) && answer(out, o >= 0);
}

static bool test_in(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    bool found;
    return eval_contains(ev, &call->arg[0], &call->self, &found) && answer(out, found);
}

static bool remainder_is(struct chat_eval *ev, const struct chat_value *v, int64_t by, int64_t want,
                         struct chat_value *out)
{
    struct chat_value divisor = chat_int(by), rest;
    double d = 0;
    return eval_binary(ev, OP_MOD, v, &divisor, &rest) && chat_as_double(&rest, &d) &&
           answer(out, d == (double)want);
}

static bool test_odd(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    return remainder_is(ev, &call->self, 2, 1, out);
}

static bool test_even(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    return remainder_is(ev, &call->self, 2, 0, out);
}

static bool test_divisible(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    int64_t by;
    if (!chat_as_int(&call->arg[0], &by)) return eval_raise(ev, "divisibleby needs a whole number");
    return remainder_is(ev, &call->self, by, 0, out);
}

/* The text's own method answers. */
static bool has_case(struct chat_eval *ev, struct chat_call *call, bool upper, struct chat_value *out)
{
    struct chat_value text;
    if (!eval_text(ev, &call->self, &text)) return false;
    const struct chat_row *row = chat_method_find(&text, upper ? "isupper" : "islower", 7);
    return eval_apply(ev, row, &text, NULL, NULL, 0, out);
}

static bool test_lower(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    return has_case(ev, call, false, out);
}

static bool test_upper(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    return has_case(ev, call, true, out);
}

/* Identity: constants and shared parts are identical; equal texts and lists need not be. */
static bool test_sameas(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    const struct chat_value *a = &call->self, *b = &call->arg[0];
    bool same = a->kind == b->kind;
    if (same && (a->kind == CHAT_INT || a->kind == CHAT_BOOL || a->kind == CHAT_STRING))
        return eval_equal(ev, a, b, &same) && answer(out, same);
    if (same && a->kind == CHAT_FLOAT) same = a->as.real == b->as.real;
    if (same && chat_is_list(a)) same = a->as.list == b->as.list;
    if (same && (a->kind == CHAT_DICT || a->kind == CHAT_NAMESPACE)) same = a->as.dict == b->as.dict;
    return answer(out, same);
}

static bool test_escaped(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    (void)ev;
    return answer(out, call->self.kind == CHAT_STRING && call->self.safe);
}

/* filter, test: is there one of that name? */
static bool test_exists(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    const struct chat_value *v = &call->self;
    if (v->kind != CHAT_STRING) return eval_raise(ev, "'%s' needs a name", call->row->name);
    const char *name = v->as.string.text;
    size_t len = v->as.string.len;
    return answer(out, call->row->name[0] == 'f' ? chat_filter_find(name, len) != NULL
                                                 : chat_test_find(name, len) != NULL);
}

static const struct chat_row tests[] = {
    {"sameas", "other", 1, test_sameas},
    {"escaped", "", 0, test_escaped},
    {"filter", "", 0, test_exists},
    {"test", "", 0, test_exists},
    {"defined", "", 0, test_kind},
    {"undefined", "", 0, test_kind},
    {"none", "", 0, test_kind},
    {"boolean", "", 0, test_kind},
    {"integer", "", 0, test_kind},
    {"float", "", 0, test_kind},
    {"number", "", 0, test_kind},
    {"string", "", 0, test_kind},
    {"mapping", "", 0, test_kind},
    {"sequence", "", 0, test_kind},
    {"iterable", "", 0, test_kind},
    {"callable", "", 0, test_kind},
    {"true", "", 0, test_true},
    {"false", "", 0, test_false},
    {"eq", "other", 1, test_equal},
    {"equalto", "other", 1, test_equal},
    {"==", "other", 1, test_equal},
    {"ne", "other", 1, test_unequal},
    {"!=", "other", 1, test_unequal},
    {"lt", "other", 1, test_less},
    {"lessthan", "other", 1, test_less},
    {"<", "other", 1, test_less},
    {"le", "other", 1, test_less_equal},
    {"<=", "other", 1, test_less_equal},
    {"gt", "other", 1, test_greater},
    {"greaterthan", "other", 1, test_greater},
    {">", "other", 1, test_greater},
    {"ge", "other", 1, test_greater_equal},
    {">=", "other", 1, test_greater_equal},
    {"in", "seq", 1, test_in},
    {"odd", "", 0, test_odd},
    {"even", "", 0, test_even},
    {"divisibleby", "num", 1, test_divisible},
    {"lower", "", 0, test_lower},
    {"upper", "", 0, test_upper},
    {NULL, NULL, 0, NULL},
};

const struct chat_row *chat_test_find(const char *name, size_t len)
{
    return chat_row_find(tests, name, len);
}
