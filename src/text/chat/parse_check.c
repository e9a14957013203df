/* parse_check.c - names of filters and tests that we do not have: an error at once, or only where they are used.
 *
 * Jinja looks names up when it compiles a template, but leaves those inside {% if %} and `a if b else c` until they are
 * run: templates ask for filters of other programs there. Loops, macros and other blocks inside an {% if %} are looked up at
 * once again.
 */
#include "text/chat/eval.h"
#include "text/chat/parse.h"
#include <string.h>

static bool check_expr(struct chat_parser *p, const struct chat_expr *e, bool later)
{
    if (!e) return true;
    later |= e->kind == E_COND;
    if ((e->kind == E_FILTER || e->kind == E_TEST) && !e->row && !later)
        return parse_fail(p, PLIM_UNSUPPORTED, e->line, "%s '%.*s' is not supported",
                          e->kind == E_FILTER ? "filter" : "test", (int)e->value.as.string.len,
                          e->value.as.string.text),
               false;
    for (size_t i = 0; i < e->count; i++)
        if (!check_expr(p, e->items[i], later)) return false;
    return check_expr(p, e->a, later) && check_expr(p, e->b, later) && check_expr(p, e->c, later);
}

static bool check_stmt(struct chat_parser *p, const struct chat_stmt *s, bool later)
{
    bool inner = s->kind == S_IF;
    later |= inner;
    for (size_t i = 0; s->values && i < s->count; i++)
        if (!check_expr(p, s->values[i], false)) return false;
    return check_expr(p, s->expr, later) && check_expr(p, s->test, s->kind == S_IF) &&
           parse_check(p, s->body, inner) && parse_check(p, s->other, inner);
}

bool parse_check(struct chat_parser *p, const struct chat_stmt *body, bool later)
{
    for (; body; body = body->next)
        if (!check_stmt(p, body, later)) return false;
    return true;
}
