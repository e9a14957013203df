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

static bool test_kind(struct chat_eval *, struct chat_call *call, struct chat_value *out)
{
    for (size_t i = 0; i < sizeof by_kind / sizeof *by_kind; i++)
        if (strcmp(by_kind[i].name, call->row->name) == 0)
            return answer(out, by_kind[i].kinds & KIND(call->self.kind));
    return answer(out, call->self.kind != CHAT_UNDEFINED); /* "defined" */
}

/* true, false */
static bool test_bool(struct chat_eval *, struct chat_call *call, struct chat_value *out)
{
    return answer(out, call->self.kind == CHAT_BOOL && call->self.as.boolean == (call->row->name[0] == 't'));
}

/* eq, ==, equalto; ne, != */
static bool test_equal(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    bool same, unequal = strchr("n!", call->row->name[0]);
    return eval_equal(ev, &call->self, &call->arg[0], &same) && answer(out, same != unequal);
}

static bool test_in(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    bool found;
    return eval_contains(ev, &call->arg[0], &call->self, &found) && answer(out, found);
}

static const struct chat_row tests[] = {
    {"defined", "", 0, test_kind},       {"undefined", "", 0, test_kind}, {"none", "", 0, test_kind},
    {"boolean", "", 0, test_kind},       {"integer", "", 0, test_kind},   {"float", "", 0, test_kind},
    {"number", "", 0, test_kind},        {"string", "", 0, test_kind},    {"mapping", "", 0, test_kind},
    {"sequence", "", 0, test_kind},      {"iterable", "", 0, test_kind},  {"callable", "", 0, test_kind},
    {"true", "", 0, test_bool},          {"false", "", 0, test_bool},     {"eq", "other", 1, test_equal},
    {"equalto", "other", 1, test_equal}, {"==", "other", 1, test_equal},  {"ne", "other", 1, test_equal},
    {"!=", "other", 1, test_equal},      {"in", "seq", 1, test_in},       {NULL, NULL, 0, NULL},
};

const struct chat_row *chat_test_find(const char *name, size_t len)
{
    return chat_row_find(tests, name, len);
}
