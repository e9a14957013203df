/* parse.c - statements: what stands between {% and %}, by a table of tags. */
#include "text/chat/parse.h"
#include "text/chat/turns.h"
#include "text/chat/eval.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { NAMES_MAX = 4096 };

/* ---- what both halves use ---- */

void *parse_fail(struct chat_parser *p, enum plim_status status, int line, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    p->status = plim_fail(p->err, status, "%s:%d: %s", p->tmpl->name, line, text);
    return NULL;
}

void *parse_unexpected(struct chat_parser *p, const char *wanted)
{
    char buf[64];
    return parse_fail(p, PLIM_BAD_INPUT, p->at->line, "expected %s, found %s", wanted,
                      chat_token_describe(p->at, buf));
}

void *parse_alloc(struct chat_parser *p, size_t bytes)
{
    void *got = NULL;
    if (bytes > CHAT_TEMPLATE_MEMORY || p->tmpl->store.total > CHAT_TEMPLATE_MEMORY - bytes)
        return parse_fail(p, PLIM_BAD_INPUT, p->at->line,
                          "more than %d bytes in memory, the most for a template", (int)CHAT_TEMPLATE_MEMORY);
    got = bump_alloc(&p->tmpl->store, bytes);
    if (!got) p->status = plim_fail(p->err, PLIM_NO_MEMORY, "%s: out of memory", p->tmpl->name);
    return got;
}

bool parse_grow(struct chat_parser *p, void *array, size_t count, size_t *cap, size_t item)
{
    if (count < *cap) return true;
    size_t more = *cap ? *cap * 2 : 4;
    void *old, *grown = parse_alloc(p, more * item);
    if (!grown) return false;
    memcpy(&old, array, sizeof old);
    if (count) memcpy(grown, old, count * item);
    memcpy(array, &grown, sizeof grown);
    *cap = more;
    return true;
}

int parse_intern(struct chat_parser *p, const char *text, size_t len)
{
    struct chat_template *t = p->tmpl;
    for (size_t i = 0; i < t->name_count; i++)
        if (t->names[i].len == len && memcmp(t->names[i].text, text, len) == 0) return (int)i;
    if (t->name_count == NAMES_MAX)
        return parse_fail(p, PLIM_UNSUPPORTED, p->at->line, "more than %d names", NAMES_MAX), -1;
    if (!parse_grow(p, &t->names, t->name_count, &t->name_cap, sizeof *t->names)) return -1;
    t->names[t->name_count] = (struct chat_name){text, len};
    return (int)t->name_count++;
}

static bool is_token(const struct chat_token *token, enum chat_token_kind kind, const char *text)
{
    return token->kind == kind && strlen(text) == token->len && memcmp(token->text, text, token->len) == 0;
}

bool parse_is_op(const struct chat_parser *p, const char *op) { return is_token(p->at, T_OP, op); }

bool parse_is_name(const struct chat_parser *p, const char *name) { return is_token(p->at, T_NAME, name); }

bool parse_skip_op(struct chat_parser *p, const char *op)
{
    bool is = parse_is_op(p, op);
    p->at += is;
    return is;
}

bool parse_skip_name(struct chat_parser *p, const char *name)
{
    bool is = parse_is_name(p, name);
    p->at += is;
    return is;
}

bool parse_expect_op(struct chat_parser *p, const char *op)
{
    char wanted[8];
    if (parse_skip_op(p, op)) return true;
    snprintf(wanted, sizeof wanted, "'%s'", op);
    return parse_unexpected(p, wanted), false;
}

/* ---- statements ---- */

static bool parse_body(struct chat_parser *p, struct chat_stmt **out, const char *opener, int line,
                       const char *const *ends);

static bool expect_block_end(struct chat_parser *p)
{
    if (p->at->kind != T_BLOCK_END) return parse_unexpected(p, "'%}'"), false;
    p->at++;
    return true;
}

/* The body of a block up to its {% end... %}, that tag included. */
static bool parse_block(struct chat_parser *p, struct chat_stmt *s, const char *opener, const char *end)
{
    const char *const ends[] = {end, NULL};
    if (!expect_block_end(p) || !parse_body(p, &s->body, opener, s->line, ends)) return false;
    p->at++;
    return expect_block_end(p);
}

/* if, and each elif and else as a further S_IF hanging on `other`. */
static bool parse_if(struct chat_parser *p, struct chat_stmt *s)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    int line = s->line;
    for (;;) {
        s->test = parse_tuple(p, true, false);
        if (!s->test || !expect_block_end(p) || !parse_body(p, &s->body, "if", line, ends)) return false;
        if (!parse_is_name(p, "endif")) {
            s->other = parse_alloc(p, sizeof *s);
            if (!s->other) return false;
            s->other->kind = S_IF;
            s->other->line = p->at->line;
            s = s->other;
        }
        if (parse_skip_name(p, "elif")) continue;
        if (parse_skip_name(p, "else")) return parse_block(p, s, "if", "endif");
        p->at++;
        return expect_block_end(p);
    }
}

static bool parse_for(struct chat_parser *p, struct chat_stmt *s)
{
    static const char *const ends[] = {"else", "endfor", NULL}, *const last[] = {"endfor", NULL};
    s->target = parse_target(p, false);
    if (!s->target) return false;
    if (!parse_skip_name(p, "in")) return parse_unexpected(p, "'in'"), false;
    s->expr = parse_tuple(p, false, false);
    if (!s->expr) return false;
    if (parse_skip_name(p, "if") && !(s->test = parse_expression(p, true))) return false;
    if (parse_is_name(p, "recursive"))
        return parse_fail(p, PLIM_UNSUPPORTED, s->line, "a recursive loop is not supported"), false;
    p->loops++;
    bool ok = expect_block_end(p) && parse_body(p, &s->body, "for", s->line, ends);
    p->loops--;
    if (ok && parse_skip_name(p, "else"))
        ok = expect_block_end(p) && parse_body(p, &s->other, "for", s->line, last);
    if (!ok) return false;
    p->at++;
    return expect_block_end(p);
}

static bool parse_set(struct chat_parser *p, struct chat_stmt *s)
{
    s->target = parse_target(p, true);
    if (!s->target) return false;
    if (parse_skip_op(p, "=")) {
        s->expr = parse_tuple(p, true, false);
        return s->expr && expect_block_end(p);
    }
    s->kind = S_SET_BLOCK;
    if (parse_is_op(p, "|") && !(s->expr = parse_filters(p, NULL, false))) return false;
    return parse_block(p, s, "set", "endset");
}

/* "name" or "name = value", added to the statement's parameters. */
static bool parse_param(struct chat_parser *p, struct chat_stmt *s, size_t *cap)
{
    size_t cap_values = *cap;
    if (p->at->kind != T_NAME) return parse_unexpected(p, "a name"), false;
    if (!parse_grow(p, &s->params, s->count, cap, sizeof *s->params) ||
        !parse_grow(p, &s->values, s->count, &cap_values, sizeof *s->values))
        return false;
    s->params[s->count] = parse_intern(p, p->at->text, p->at->len);
    if (s->params[s->count] < 0) return false;
    p->at++;
    s->values[s->count] = NULL;
    if (parse_skip_op(p, "=") && !(s->values[s->count] = parse_expression(p, true))) return false;
    s->count++;
    return true;
}

static bool parse_macro(struct chat_parser *p, struct chat_stmt *s)
{
    size_t cap = 0;
    int loops = p->loops;
    bool in_macro = p->in_macro;
    if (p->at->kind != T_NAME) return parse_unexpected(p, "the macro's name"), false;
    s->name = parse_intern(p, p->at->text, p->at->len);
    p->at++;
    if (s->name < 0 || !parse_expect_op(p, "(")) return false;
    while (!parse_is_op(p, ")")) {
        if (s->count && !parse_expect_op(p, ",")) return false;
        if (parse_is_op(p, ")")) break;
        if (s->count == CALL_GIVEN)
            return parse_fail(p, PLIM_UNSUPPORTED, s->line, "a macro with more than %d parameters",
                              CALL_GIVEN),
                   false;
        if (!parse_param(p, s, &cap)) return false;
    }
    p->at++;
    p->loops = 0;
    p->in_macro = true;
    bool ok = parse_block(p, s, "macro", "endmacro");
    p->loops = loops;
    p->in_macro = in_macro;
    return ok;
}

static bool parse_filter_block(struct chat_parser *p, struct chat_stmt *s)
{
    s->expr = parse_filters(p, NULL, true);
    return s->expr && parse_block(p, s, "filter", "endfilter");
}

static bool parse_generation(struct chat_parser *p, struct chat_stmt *s)
{
    p->tmpl->has_generation = true;
    return parse_block(p, s, "generation", "endgeneration");
}

static bool parse_leave(struct chat_parser *p, struct chat_stmt *s)
{
    if (p->loops == 0)
        return parse_fail(p, PLIM_BAD_INPUT, s->line, "break and continue belong into a loop"), false;
    return expect_block_end(p);
}

static const struct tag {
    const char *name;
    enum stmt_kind kind;
    bool (*parse)(struct chat_parser *p, struct chat_stmt *s);
} tags[] = {
    {"if", S_IF, parse_if},
    {"for", S_FOR, parse_for},
    {"set", S_SET, parse_set},
    {"macro", S_MACRO, parse_macro},
    {"filter", S_FILTER, parse_filter_block},
    {"generation", S_GENERATION, parse_generation},
    {"break", S_BREAK, parse_leave},
    {"continue", S_CONTINUE, parse_leave},
};

/* After "{%": the statement. */
static bool parse_tag(struct chat_parser *p, struct chat_stmt *s)
{
    if (p->at->kind != T_NAME) return parse_unexpected(p, "a tag's name"), false;
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        if (parse_skip_name(p, tags[i].name)) {
            s->kind = tags[i].kind;
            return tags[i].parse(p, s);
        }
    int len = (int)(p->at->len < 40 ? p->at->len : 40);
    if ((len >= 3 && memcmp(p->at->text, "end", 3) == 0) || parse_is_name(p, "else") ||
        parse_is_name(p, "elif"))
        return parse_fail(p, PLIM_BAD_INPUT, s->line, "'%.*s' without its beginning", len, p->at->text),
               false;
    return parse_fail(p, PLIM_UNSUPPORTED, s->line, "tag '%.*s' is not supported", len, p->at->text), false;
}

static bool parse_print(struct chat_parser *p, struct chat_stmt *s)
{
    s->kind = S_PRINT;
    s->expr = parse_tuple(p, true, false);
    if (!s->expr) return false;
    if (p->at->kind != T_PRINT_END) return parse_unexpected(p, "'}}'"), false;
    p->at++;
    return true;
}

static bool parse_statement(struct chat_parser *p, struct chat_stmt *s)
{
    const struct chat_token *token = p->at++;
    s->line = token->line;
    if (token->kind == T_PRINT) return parse_print(p, s);
    if (token->kind == T_BLOCK) return parse_tag(p, s);
    s->kind = S_DATA;
    s->text = token->text;
    s->len = token->len;
    return true;
}

static bool at_end_tag(const struct chat_parser *p, const char *const *ends)
{
    for (; p->at->kind == T_BLOCK && *ends; ends++)
        if (is_token(p->at + 1, T_NAME, *ends)) return true;
    return false;
}

/* Statements up to one of the end tags; then p->at is that tag's name. */
static bool parse_body(struct chat_parser *p, struct chat_stmt **out, const char *opener, int line,
                       const char *const *ends)
{
    if (++p->depth > CHAT_DEPTH_MAX)
        return parse_fail(p, PLIM_UNSUPPORTED, p->at->line, "blocks are nested too deeply"), false;
    while (p->at->kind != T_END && !at_end_tag(p, ends)) {
        struct chat_stmt *s = parse_alloc(p, sizeof *s);
        if (!s || !parse_statement(p, s)) return false;
        *out = s;
        out = &s->next;
    }
    p->depth--;
    if (p->at->kind == T_END) {
        if (!opener) return true;
        return parse_fail(p, PLIM_BAD_INPUT, line, "{%% %s %%} is never closed", opener), false;
    }
    p->at++;
    return true;
}

/* ---- names of filters and tests that we do not have ----
 *
 * Jinja looks names up when it compiles a template, but leaves those inside {% if %} and `a if b else c` until they are
 * run: templates ask for filters of other programs there. Loops, macros and other blocks inside an {% if %} are looked up at
 * once again.
 */

static bool check_names(struct chat_parser *p, const struct chat_stmt *body, bool later);

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
           check_names(p, s->body, inner) && check_names(p, s->other, inner);
}

static bool check_names(struct chat_parser *p, const struct chat_stmt *body, bool later)
{
    for (; body; body = body->next)
        if (!check_stmt(p, body, later)) return false;
    return true;
}

enum plim_status chat_parse(struct chat_template *tmpl, const struct chat_token *tokens,
                            struct plim_error *err)
{
    static const char *const none[] = {NULL};
    struct chat_parser p = {.tmpl = tmpl, .at = tokens, .err = err};
    bool good = parse_body(&p, &tmpl->body, NULL, 1, none) && check_names(&p, tmpl->body, false);
    if (good) tmpl->loop = turns_loop(tmpl, &tmpl->loop_need);
    return good ? PLIM_OK : p.status;
}
