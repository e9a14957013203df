/* parse_expr.c - expressions, with Jinja's precedence from loosest to tightest:
 *
 *     a if b else c  |  or  |  and  |  not  |  == != < <= > >= in, chained  |  + -  |  ~  |  * / // %  |  **
 *     | - + |  .x [i] (args)  |  filters and tests
 *
 * A sign belongs to its operand before filters do: -1|abs is 1.
 */
#include "text/chat/parse.h"
#include <string.h>

static struct chat_expr *parse_unary(struct chat_parser *p, bool with_filters)
{
    struct chat_expr *e;
    if (parse_is_op(p, "-") || parse_is_op(p, "+")) {
        enum expr_kind kind = parse_is_op(p, "-") ? E_NEG : E_POS;
        int line = p->at++->line;
        if (++p->depth > CHAT_DEPTH_MAX)
            return parse_fail(p, PLIM_UNSUPPORTED, line, "too many signs in a row");
        e = parse_unary(p, false);
        p->depth--;
        e = e ? expr_make(p, kind, line, e, NULL) : NULL;
    } else {
        e = parse_primary(p);
    }
    e = parse_postfix(p, e);
    return with_filters ? parse_filters_and_tests(p, e) : e;
}

static struct chat_expr *parse_operand(struct chat_parser *p) { return parse_unary(p, true); }

struct operator
{
    const char *text;
    enum chat_op op;
};

/* The operator of the table that stands here, consumed; NULL when none does. */
static const struct operator* take_operator(struct chat_parser *p, const struct operator* table)
{
    for (; table->text; table++)
        if (parse_skip_op(p, table->text)) return table;
    return NULL;
}

/* next (op next)*, grouped from the left. */
static struct chat_expr *parse_left(struct chat_parser *p, const struct operator* table,
                                    struct chat_expr *(*next)(struct chat_parser *))
{
    struct chat_expr *e = next(p);
    while (e) {
        int line = p->at->line;
        const struct operator* op = take_operator(p, table);
        if (!op) break;
        struct chat_expr *right = next(p);
        e = right ? expr_make(p, E_BINARY, line, e, right) : NULL;
        if (e) e->op = op->op;
    }
    return e;
}

static struct chat_expr *parse_product(struct chat_parser *p)
{
    static const struct operator table[] = {{"*", CHAT_MUL}, {"%", CHAT_MOD}, {NULL, 0}};
    static const char *const lacking[] = {"**", "//", "/"};
    struct chat_expr *e = parse_left(p, table, parse_operand);
    for (size_t i = 0; e && i < sizeof lacking / sizeof *lacking; i++)
        if (parse_is_op(p, lacking[i]))
            return parse_fail(p, PLIM_UNSUPPORTED, p->at->line, "operator '%s' is not supported", lacking[i]);
    return e;
}

static struct chat_expr *parse_concat(struct chat_parser *p)
{
    size_t cap = 0;
    struct chat_expr *first = parse_product(p);
    if (!first || !parse_is_op(p, "~")) return first;
    struct chat_expr *e = expr_make(p, E_CONCAT, first->line, NULL, NULL);
    if (!e || !expr_add_item(p, e, &cap, first)) return NULL;
    while (parse_skip_op(p, "~"))
        if (!expr_add_item(p, e, &cap, parse_product(p))) return NULL;
    return expr_finish(p, e);
}

static struct chat_expr *parse_sum(struct chat_parser *p)
{
    static const struct operator table[] = {{"+", CHAT_ADD}, {"-", CHAT_SUB}, {NULL, 0}};
    return parse_left(p, table, parse_concat);
}

static bool take_comparison(struct chat_parser *p, enum chat_op *op)
{
    static const struct operator table[] = {{"==", CHAT_EQ}, {"!=", CHAT_NE}, {"<=", CHAT_LE}, {"<", CHAT_LT},
                                            {">=", CHAT_GE}, {">", CHAT_GT},  {NULL, 0}};
    const struct operator* found = take_operator(p, table);
    if (found) *op = found->op;
    if (found) return true;
    *op = CHAT_IN;
    if (parse_skip_name(p, "in")) return true;
    *op = CHAT_NOT_IN;
    if (!parse_is_name(p, "not") || p->at[1].kind != T_NAME || p->at[1].len != 2 ||
        memcmp(p->at[1].text, "in", 2) != 0)
        return false;
    p->at += 2;
    return true;
}

static struct chat_expr *parse_compare(struct chat_parser *p)
{
    size_t cap = 0, cap_ops = 0;
    enum chat_op op;
    struct chat_expr *e = NULL, *first = parse_sum(p);
    while (first && take_comparison(p, &op)) {
        if (!e && !(e = expr_make(p, E_COMPARE, first->line, first, NULL))) return NULL;
        if (!parse_grow(p, &e->ops, e->count, &cap_ops, sizeof *e->ops)) return NULL;
        e->ops[e->count] = op;
        if (!expr_add_item(p, e, &cap, parse_sum(p))) return NULL;
    }
    return e ? expr_finish(p, e) : first;
}

static struct chat_expr *parse_not(struct chat_parser *p)
{
    if (!parse_is_name(p, "not")) return parse_compare(p);
    int line = p->at++->line;
    if (++p->depth > CHAT_DEPTH_MAX) return parse_fail(p, PLIM_UNSUPPORTED, line, "too many nots in a row");
    struct chat_expr *e = parse_not(p);
    p->depth--;
    return e ? expr_make(p, E_NOT, line, e, NULL) : NULL;
}

/* next (word next)*, grouped from the left. */
static struct chat_expr *parse_logic(struct chat_parser *p, const char *word, enum expr_kind kind,
                                     struct chat_expr *(*next)(struct chat_parser *))
{
    struct chat_expr *e = next(p);
    while (e && parse_is_name(p, word)) {
        int line = p->at++->line;
        struct chat_expr *right = next(p);
        e = right ? expr_make(p, kind, line, e, right) : NULL;
    }
    return e;
}

static struct chat_expr *parse_and(struct chat_parser *p) { return parse_logic(p, "and", E_AND, parse_not); }

static struct chat_expr *parse_or(struct chat_parser *p) { return parse_logic(p, "or", E_OR, parse_and); }

struct chat_expr *parse_expression(struct chat_parser *p, bool with_cond)
{
    if (++p->depth > CHAT_DEPTH_MAX)
        return parse_fail(p, PLIM_UNSUPPORTED, p->at->line, "the expression is nested too deeply");
    struct chat_expr *e = parse_or(p);
    while (with_cond && e && parse_is_name(p, "if")) {
        struct chat_expr *cond = expr_make(p, E_COND, p->at++->line, NULL, NULL);
        if (!cond || !(cond->a = parse_or(p))) return NULL;
        cond->b = e;
        if (parse_skip_name(p, "else") && !(cond->c = parse_expression(p, true))) return NULL;
        e = expr_finish(p, cond);
    }
    p->depth--;
    return e;
}

/* ---- tuples and targets ---- */

static bool at_tuple_end(const struct chat_parser *p)
{
    return p->at->kind == T_PRINT_END || p->at->kind == T_BLOCK_END || parse_is_op(p, ")") ||
           parse_is_name(p, "recursive");
}

struct chat_expr *parse_tuple(struct chat_parser *p, bool with_cond, bool in_parens)
{
    size_t cap = 0;
    struct chat_expr *e = NULL, *first = NULL;
    int line = p->at->line;
    if (!(in_parens && parse_is_op(p, ")"))) {
        first = parse_expression(p, with_cond);
        if (!first || !parse_is_op(p, ",")) return first;
    }
    e = expr_make(p, E_TUPLE, line, NULL, NULL);
    if (!e || (first && !expr_add_item(p, e, &cap, first))) return NULL;
    while (parse_skip_op(p, ",") && !at_tuple_end(p))
        if (!expr_add_item(p, e, &cap, parse_expression(p, with_cond))) return NULL;
    return expr_finish(p, e);
}

static struct chat_expr *parse_target_part(struct chat_parser *p, bool with_namespace)
{
    if (parse_skip_op(p, "(")) {
        if (++p->depth > CHAT_DEPTH_MAX)
            return parse_fail(p, PLIM_UNSUPPORTED, p->at->line, "nested too deeply");
        struct chat_expr *inner = parse_target(p, with_namespace);
        p->depth--;
        return inner && parse_expect_op(p, ")") ? inner : NULL;
    }
    if (p->at->kind != T_NAME) return parse_unexpected(p, "a name to assign to");
    struct chat_expr *e = parse_name(p);
    if (!e) return NULL;
    if (e->kind == E_CONST) return parse_fail(p, PLIM_BAD_INPUT, e->line, "a constant cannot be assigned to");
    if (!with_namespace || !parse_skip_op(p, ".")) return e;
    if (p->at->kind != T_NAME) return parse_unexpected(p, "the attribute's name");
    e->kind = E_NSREF;
    e->value = chat_string(p->at->text, p->at->len);
    p->at++;
    return e;
}

struct chat_expr *parse_target(struct chat_parser *p, bool with_namespace)
{
    size_t cap = 0;
    struct chat_expr *first = parse_target_part(p, with_namespace);
    if (!first || !parse_is_op(p, ",")) return first;
    struct chat_expr *e = expr_make(p, E_TUPLE, first->line, NULL, NULL);
    if (!e || !expr_add_item(p, e, &cap, first)) return NULL;
    while (parse_skip_op(p, ",") && p->at->kind != T_BLOCK_END && !parse_is_name(p, "in") &&
           !parse_is_op(p, "=") && !parse_is_op(p, ")"))
        if (!expr_add_item(p, e, &cap, parse_target_part(p, with_namespace))) return NULL;
    return expr_finish(p, e);
}
