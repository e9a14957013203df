/* parse.h - shared by the two halves of the parser: statements (parse.c) and expressions (parse_expr.c).
 *
 * Functions return NULL or false after recording an error. `depth` bounds the parser's own recursion.
 */
#pragma once

#include "base/status.h"
#include "text/chat/lex.h"
#include "text/chat/tree.h"

enum { CHAT_DEPTH_MAX = 120 }; /* nesting of expressions and blocks */

struct chat_parser {
    struct chat_template *tmpl;
    const struct chat_token *at;
    int depth, loops;
    bool in_macro;
    struct plim_error *err;
    enum plim_status status;
};

/* Records "name:line: ..." and returns NULL. */
void *parse_fail(struct chat_parser *p, enum plim_status status, int line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void *parse_unexpected(struct chat_parser *p, const char *wanted);

/* Zeroed memory in the template's store. */
void *parse_alloc(struct chat_parser *p, size_t bytes);
/* Grows an array of items; `cap` doubles when count reaches it. */
bool parse_grow(struct chat_parser *p, void *array, size_t count, size_t *cap, size_t item);
/* The number of a variable's name; -1: failed. */
int parse_intern(struct chat_parser *p, const char *text, size_t len);

bool parse_is_op(const struct chat_parser *p, const char *op);
bool parse_is_name(const struct chat_parser *p, const char *name);
bool parse_skip_op(struct chat_parser *p, const char *op);
bool parse_skip_name(struct chat_parser *p, const char *name);
bool parse_expect_op(struct chat_parser *p, const char *op);

/* expr_make creates an expression. Call expr_finish once its children are set; it checks the height. */
struct chat_expr *expr_make(struct chat_parser *p, enum expr_kind kind, int line, struct chat_expr *a,
                            struct chat_expr *b);
struct chat_expr *expr_finish(struct chat_parser *p, struct chat_expr *e);
/* Adds to e->items, with capacity *cap. A NULL item is an error that was already recorded. */
bool expr_add_item(struct chat_parser *p, struct chat_expr *e, size_t *cap, struct chat_expr *item);

/* parse_operand.c. A NULL e is an error that was already recorded. */
struct chat_expr *parse_name(struct chat_parser *p);
struct chat_expr *parse_primary(struct chat_parser *p);
struct chat_expr *parse_postfix(struct chat_parser *p, struct chat_expr *e);
struct chat_expr *parse_filters_and_tests(struct chat_parser *p, struct chat_expr *e);

struct chat_expr *parse_expression(struct chat_parser *p, bool with_cond);
/* One expression, or a tuple: several separated by commas. */
struct chat_expr *parse_tuple(struct chat_parser *p, bool with_cond, bool in_parens);
/* name, name.attr, or a tuple of them. */
struct chat_expr *parse_target(struct chat_parser *p, bool with_namespace);
/* "| name(args) | ..." applied to a, which may be NULL; with `first`, the first has no "|" before it. */
struct chat_expr *parse_filters(struct chat_parser *p, struct chat_expr *a, bool first);

/* The whole template into tmpl->body. */
enum plim_status chat_parse(struct chat_template *tmpl, const struct chat_token *tokens,
                            struct plim_error *err);
