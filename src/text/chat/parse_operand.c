/* parse_operand.c - names, literals, and what follows an operand: .x, [i], (args), filters and tests. */
#include "text/chat/eval.h"
#include "text/chat/parse.h"
#include <string.h>

/* ---- making expressions ---- */

static int depth_of(const struct chat_expr *e) { return e ? e->depth : 0; }

/* Children are in place: the height of the tree, within its bound. */
struct chat_expr *expr_finish(struct chat_parser *p, struct chat_expr *e)
{
    int depth = depth_of(e->a);
    if (depth_of(e->b) > depth) depth = depth_of(e->b);
    if (depth_of(e->c) > depth) depth = depth_of(e->c);
    for (size_t i = 0; i < e->count; i++)
        if (depth_of(e->items[i]) > depth) depth = depth_of(e->items[i]);
    e->depth = depth + 1;
    if (e->depth <= CHAT_DEPTH_MAX) return e;
    return parse_fail(p, PLIM_UNSUPPORTED, e->line, "the expression is nested too deeply");
}

struct chat_expr *expr_make(struct chat_parser *p, enum expr_kind kind, int line, struct chat_expr *a,
                            struct chat_expr *b)
{
    struct chat_expr *e = parse_alloc(p, sizeof *e);
    if (!e) return NULL;
    e->kind = kind;
    e->line = line;
    e->a = a;
    e->b = b;
    return expr_finish(p, e);
}

bool expr_add_item(struct chat_parser *p, struct chat_expr *e, size_t *cap, struct chat_expr *item)
{
    if (!item || !parse_grow(p, &e->items, e->count, cap, sizeof *e->items)) return false;
    e->items[e->count++] = item;
    return true;
}

/* ---- operands ---- */

struct chat_expr *parse_name(struct chat_parser *p)
{
    static const struct {
        const char *name;
        struct chat_value value;
    } words[] = {
        {"true", {.kind = CHAT_BOOL, .as = {.boolean = true}}},
        {"True", {.kind = CHAT_BOOL, .as = {.boolean = true}}},
        {"false", {.kind = CHAT_BOOL, .as = {.boolean = false}}},
        {"False", {.kind = CHAT_BOOL, .as = {.boolean = false}}},
        {"none", {.kind = CHAT_NONE}},
        {"None", {.kind = CHAT_NONE}},
    };
    struct chat_expr *e = expr_make(p, E_NAME, p->at->line, NULL, NULL);
    if (!e) return NULL;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (parse_skip_name(p, words[i].name)) {
            e->kind = E_CONST;
            e->value = words[i].value;
            return e;
        }
    static const char *const lacking[] = {"varargs", "kwargs", "caller"};
    for (size_t i = 0; p->in_macro && i < sizeof lacking / sizeof *lacking; i++)
        if (parse_is_name(p, lacking[i]))
            return parse_fail(p, PLIM_UNSUPPORTED, e->line, "'%s' in a macro is not supported", lacking[i]);
    e->name = parse_intern(p, p->at->text, p->at->len);
    p->at++;
    return e->name < 0 ? NULL : e;
}

/* Literals that stand side by side are one text. */
static struct chat_expr *parse_string(struct chat_parser *p)
{
    struct chat_expr *e = expr_make(p, E_CONST, p->at->line, NULL, NULL);
    size_t len = 0, n = 0;
    if (!e) return NULL;
    const struct chat_token *last = p->at;
    for (; last->kind == T_STRING; last++) len += last->value.as.string.len;
    char *text = parse_alloc(p, len + 1);
    if (!text) return NULL;
    for (; p->at < last; p->at++) {
        memcpy(text + n, p->at->value.as.string.text, p->at->value.as.string.len);
        n += p->at->value.as.string.len;
    }
    e->value = chat_string(text, len);
    return e;
}

static struct chat_expr *parse_list(struct chat_parser *p)
{
    size_t cap = 0;
    struct chat_expr *e = expr_make(p, E_LIST, p->at++->line, NULL, NULL);
    while (e && !parse_is_op(p, "]")) {
        if (e->count && !parse_expect_op(p, ",")) return NULL;
        if (parse_is_op(p, "]")) break;
        if (!expr_add_item(p, e, &cap, parse_expression(p, true))) return NULL;
    }
    p->at++;
    return e ? expr_finish(p, e) : NULL;
}

static struct chat_expr *parse_dict(struct chat_parser *p)
{
    size_t cap = 0;
    struct chat_expr *e = expr_make(p, E_DICT, p->at++->line, NULL, NULL);
    while (e && !parse_is_op(p, "}")) {
        if (e->count && !parse_expect_op(p, ",")) return NULL;
        if (parse_is_op(p, "}")) break;
        if (!expr_add_item(p, e, &cap, parse_expression(p, true)) || !parse_expect_op(p, ":") ||
            !expr_add_item(p, e, &cap, parse_expression(p, true)))
            return NULL;
    }
    p->at++;
    return e ? expr_finish(p, e) : NULL;
}

struct chat_expr *parse_primary(struct chat_parser *p)
{
    const struct chat_token *token = p->at;
    struct chat_expr *e;
    if (token->kind == T_NAME) return parse_name(p);
    if (token->kind == T_STRING) return parse_string(p);
    if (token->kind == T_INT || token->kind == T_FLOAT) {
        e = expr_make(p, E_CONST, token->line, NULL, NULL);
        if (e) e->value = token->value;
        p->at++;
        return e;
    }
    if (parse_is_op(p, "[")) return parse_list(p);
    if (parse_is_op(p, "{")) return parse_dict(p);
    if (!parse_skip_op(p, "(")) return parse_unexpected(p, "an expression");
    e = parse_tuple(p, true, true);
    return e && parse_expect_op(p, ")") ? e : NULL;
}

/* ---- what follows an operand ---- */

/* "(a, b, key=c)" into items and keys. */
static bool parse_args(struct chat_parser *p, struct chat_expr *e)
{
    size_t cap = 0, cap_keys = 0;
    bool named = false;
    p->at++;
    while (!parse_is_op(p, ")")) {
        if (e->count && !parse_expect_op(p, ",")) return false;
        if (parse_is_op(p, ")")) break;
        if (parse_is_op(p, "*") || parse_is_op(p, "**"))
            return parse_fail(p, PLIM_UNSUPPORTED, p->at->line, "arguments with * or ** are not supported"),
                   false;
        if (e->count == CALL_GIVEN)
            return parse_fail(p, PLIM_UNSUPPORTED, p->at->line, "a call with more than %d arguments",
                              CALL_GIVEN),
                   false;
        const char *key = NULL;
        if (p->at->kind == T_NAME && p->at[1].kind == T_OP && p->at[1].len == 1 && p->at[1].text[0] == '=') {
            char *copy = parse_alloc(p, p->at->len + 1);
            if (!copy) return false;
            key = memcpy(copy, p->at->text, p->at->len);
            p->at += 2;
        }
        if (named && !key)
            return parse_fail(p, PLIM_BAD_INPUT, p->at->line, "an argument without a name after one with"),
                   false;
        named = key != NULL;
        if (!parse_grow(p, &e->keys, e->count, &cap_keys, sizeof *e->keys)) return false;
        e->keys[e->count] = key;
        if (!expr_add_item(p, e, &cap, parse_expression(p, true))) return false;
    }
    p->at++;
    return expr_finish(p, e) != NULL;
}

static struct chat_expr *parse_call(struct chat_parser *p, struct chat_expr *callee)
{
    struct chat_expr *e = expr_make(p, E_CALL, p->at->line, callee, NULL);
    return e && parse_args(p, e) ? e : NULL;
}

static struct chat_expr *parse_dot(struct chat_parser *p, struct chat_expr *a)
{
    struct chat_expr *e = expr_make(p, E_ATTR, p->at++->line, a, NULL);
    if (!e) return NULL;
    if (p->at->kind == T_NAME) {
        e->value = chat_string(p->at->text, p->at->len);
    } else if (p->at->kind == T_INT) {
        e->kind = E_ITEM;
        e->b = expr_make(p, E_CONST, p->at->line, NULL, NULL);
        if (!e->b) return NULL;
        e->b->value = p->at->value;
    } else {
        return parse_unexpected(p, "a name or a number");
    }
    p->at++;
    return e;
}

static struct chat_expr *parse_subscript(struct chat_parser *p, struct chat_expr *a)
{
    struct chat_expr *e = expr_make(p, E_ITEM, p->at++->line, a, NULL);
    if (!e) return NULL;
    if (!parse_is_op(p, ":") && !(e->b = parse_expression(p, true))) return NULL;
    if (parse_is_op(p, ":")) {
        e->kind = E_SLICE;
        e->items = parse_alloc(p, 3 * sizeof *e->items);
        if (!e->items) return NULL;
        e->items[0] = e->b;
        e->b = NULL;
        e->count = 3;
        for (int i = 1; i < 3 && parse_skip_op(p, ":"); i++)
            if (!parse_is_op(p, ":") && !parse_is_op(p, "]") && !(e->items[i] = parse_expression(p, true)))
                return NULL;
    }
    if (parse_is_op(p, ","))
        return parse_fail(p, PLIM_UNSUPPORTED, e->line, "several subscripts at once are not supported");
    return parse_expect_op(p, "]") ? expr_finish(p, e) : NULL;
}

struct chat_expr *parse_postfix(struct chat_parser *p, struct chat_expr *e)
{
    while (e && p->at->kind == T_OP) {
        if (parse_is_op(p, "."))
            e = parse_dot(p, e);
        else if (parse_is_op(p, "["))
            e = parse_subscript(p, e);
        else if (parse_is_op(p, "("))
            e = parse_call(p, e);
        else
            break;
    }
    return e;
}

/* A filter's or test's name into e->value, and what it is in its table into e->row; check_names (parse.c) looks at those that are
 * in none. */
static bool parse_row(struct chat_parser *p, struct chat_expr *e,
                      const struct chat_row *(*find)(const char *, size_t))
{
    if (p->at->kind != T_NAME) return parse_unexpected(p, "a name"), false;
    e->row = find(p->at->text, p->at->len);
    e->value = chat_string(p->at->text, p->at->len < 60 ? p->at->len : 60);
    p->at++;
    return true;
}

struct chat_expr *parse_filters(struct chat_parser *p, struct chat_expr *a, bool first)
{
    struct chat_expr *e = a;
    while (first || parse_skip_op(p, "|")) {
        first = false;
        e = expr_make(p, E_FILTER, p->at->line, e, NULL);
        if (!e || !parse_row(p, e, chat_filter_find)) return NULL;
        if (parse_is_op(p, "(") && !parse_args(p, e)) return NULL;
    }
    return e;
}

/* May a test's single argument, written without brackets, begin here? */
static bool at_bare_argument(const struct chat_parser *p)
{
    enum chat_token_kind kind = p->at->kind;
    if (kind == T_NAME)
        return !parse_is_name(p, "else") && !parse_is_name(p, "or") && !parse_is_name(p, "and") &&
               !parse_is_name(p, "is") && !parse_is_name(p, "if");
    return kind == T_STRING || kind == T_INT || kind == T_FLOAT || parse_is_op(p, "[") || parse_is_op(p, "{");
}

static struct chat_expr *parse_test(struct chat_parser *p, struct chat_expr *a)
{
    size_t cap = 0;
    struct chat_expr *e = expr_make(p, E_TEST, p->at++->line, a, NULL);
    bool negated = parse_skip_name(p, "not");
    if (!e || !parse_row(p, e, chat_test_find)) return NULL;
    if (parse_is_op(p, "(")) {
        if (!parse_args(p, e)) return NULL;
    } else if (at_bare_argument(p)) {
        struct chat_expr *arg = parse_primary(p);
        if (!arg || !expr_add_item(p, e, &cap, parse_postfix(p, arg))) return NULL;
        e->keys = parse_alloc(p, sizeof *e->keys);
        if (!e->keys || !expr_finish(p, e)) return NULL;
    }
    return negated ? expr_make(p, E_NOT, e->line, e, NULL) : e;
}

struct chat_expr *parse_filters_and_tests(struct chat_parser *p, struct chat_expr *e)
{
    while (e) {
        if (parse_is_op(p, "|"))
            e = parse_filters(p, e, false);
        else if (parse_is_name(p, "is"))
            e = parse_test(p, e);
        else if (parse_is_op(p, "("))
            e = parse_call(p, e);
        else
            break;
    }
    return e;
}
