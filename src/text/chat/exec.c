/* exec.c - statements, scopes, macros, and a rendering from beginning to end.
 *
 * A scope belongs to the template, to a turn of a loop, to a macro's call, or to a block that captures its text;
 * names are set in the innermost one and looked for outwards. A loop uses one scope for all its turns, emptied
 * each time, unless a macro was defined inside: then that macro keeps it.
 */
#include "text/chat/eval.h"
#include <stdlib.h>
#include <string.h>

bool scope_set(struct chat_eval *ev, struct chat_scope *scope, int name, const struct chat_value *value)
{
    size_t i = 0;
    while (i < scope->count && scope->vars[i].name != name) i++;
    if (!eval_charge(ev, i)) return false;
    if (!eval_grow(ev, &scope->vars, i, &scope->cap, sizeof *scope->vars)) return false;
    scope->vars[i] = (struct scope_var){name, *value};
    if (i == scope->count) scope->count++;
    return true;
}

static bool scope_push(struct chat_eval *ev, struct chat_scope *parent)
{
    struct chat_scope *scope = eval_alloc(ev, sizeof *scope);
    if (!scope) return false;
    scope->parent = parent;
    ev->scope = scope;
    return true;
}

/* ---- assignment ---- */

static bool assign(struct chat_eval *ev, const struct chat_expr *target, const struct chat_value *value);

static bool assign_attr(struct chat_eval *ev, const struct chat_expr *target, const struct chat_value *value)
{
    struct chat_expr name = {.kind = E_NAME, .line = target->line, .name = target->name};
    struct chat_value ns;
    if (!eval_expr(ev, &name, &ns)) return false;
    if (ns.kind != CHAT_NAMESPACE) return eval_raise(ev, "only a namespace's attributes can be set");
    return eval_dict_set(ev, ns.as.dict, &target->value, value);
}

static bool assign_tuple(struct chat_eval *ev, const struct chat_expr *target, const struct chat_value *value)
{
    struct chat_list items;
    if (!eval_items(ev, value, &items)) return false;
    if (items.count != target->count)
        return eval_raise(ev, "%zu values for %zu names", items.count, target->count);
    for (size_t i = 0; i < items.count; i++)
        if (!assign(ev, target->items[i], &items.item[i])) return false;
    return true;
}

static bool assign(struct chat_eval *ev, const struct chat_expr *target, const struct chat_value *value)
{
    ev->line = target->line;
    if (target->kind == E_NSREF) return assign_attr(ev, target, value);
    if (target->kind == E_TUPLE) return assign_tuple(ev, target, value);
    return scope_set(ev, ev->scope, target->name, value);
}

/* ---- statements ---- */

static bool exec_data(struct chat_eval *ev, const struct chat_stmt *s)
{
    return eval_put(ev, ev->out, s->text, s->len);
}

static bool exec_print(struct chat_eval *ev, const struct chat_stmt *s)
{
    struct chat_value v;
    return eval_expr(ev, s->expr, &v) && eval_write(ev, &v, ev->out);
}

static bool exec_if(struct chat_eval *ev, const struct chat_stmt *s)
{
    for (; s; s = s->other) {
        struct chat_value test = chat_bool(true);
        if (s->test && !eval_expr(ev, s->test, &test)) return false;
        if (chat_truth(&test)) return exec_body(ev, s->body);
    }
    return true;
}

static bool exec_set(struct chat_eval *ev, const struct chat_stmt *s)
{
    struct chat_value v;
    return eval_expr(ev, s->expr, &v) && assign(ev, s->target, &v);
}

/* The text that a body writes, as a value. */
static bool capture(struct chat_eval *ev, const struct chat_stmt *body, struct chat_scope *parent,
                    struct chat_value *out)
{
    struct strbuf sb = STRBUF_INIT, *outer = ev->out;
    struct chat_scope *scope = ev->scope;
    ev->out = &sb;
    bool ok = scope_push(ev, parent) && exec_body(ev, body);
    ev->out = outer;
    ev->scope = scope;
    if (!ok) return strbuf_release(&sb), false;
    return eval_take(ev, &sb, out);
}

static bool exec_set_block(struct chat_eval *ev, const struct chat_stmt *s)
{
    struct chat_value v;
    return capture(ev, s->body, ev->scope, &v) && eval_block_filters(ev, s->expr, &v) &&
           assign(ev, s->target, &v);
}

static bool exec_filter(struct chat_eval *ev, const struct chat_stmt *s)
{
    struct chat_value v;
    return capture(ev, s->body, ev->scope, &v) && eval_block_filters(ev, s->expr, &v) &&
           eval_write(ev, &v, ev->out);
}

static bool exec_generation(struct chat_eval *ev, const struct chat_stmt *s)
{
    struct chat_scope *outer = ev->scope;
    size_t begin = ev->out->len;
    if (ev->spans && ev->out != ev->final)
        return eval_fail(ev, PLIM_UNSUPPORTED,
                         "{%% generation %%} inside a macro or a captured block is not supported");
    bool ok = scope_push(ev, outer) && exec_body(ev, s->body);
    ev->scope = outer;
    if (!ok || !ev->spans) return ok;
    return chat_spans_add(ev->spans, begin - ev->final_base, ev->out->len - ev->final_base) ||
           eval_fail(ev, PLIM_NO_MEMORY, "out of memory");
}

static bool exec_leave(struct chat_eval *ev, const struct chat_stmt *s)
{
    ev->flow = s->kind == S_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
    return true;
}

/* ---- loops ---- */

/* An empty scope for the next turn. */
static bool fresh_turn(struct chat_eval *ev, struct chat_scope *outer)
{
    if (ev->scope != outer && !ev->scope->captured) {
        ev->scope->count = 0;
        return eval_charge(ev, 0);
    }
    return scope_push(ev, outer);
}

/* Leave only the items for which the loop's `if` holds. */
static bool filter_items(struct chat_eval *ev, const struct chat_stmt *s, struct chat_list *items)
{
    struct chat_scope *outer = ev->scope;
    struct chat_value test, *kept = eval_alloc(ev, items->count * sizeof *kept);
    size_t n = 0;
    if (!kept) return false;
    for (size_t i = 0; i < items->count; i++) {
        if (!fresh_turn(ev, outer) || !assign(ev, s->target, &items->item[i]) ||
            !eval_expr(ev, s->test, &test))
            return false;
        if (chat_truth(&test)) kept[n++] = items->item[i];
    }
    ev->scope = outer;
    *items = (struct chat_list){kept, n};
    return true;
}

/* The loop over the messages begins: its items must be the messages but for the first ones. */
static void note_loop(struct chat_eval *ev, struct chat_loop *loop)
{
    struct chat_turns *turns = ev->turns;
    turns->odd = turns->odd || loop->item + loop->count != turns->item + turns->items;
    turns->count = loop->count;
    if (turns->last_only) loop->index = loop->count - 1;
}

static void note_turn(struct chat_eval *ev)
{
    ev->turns->begin[ev->turns->begun++] = ev->out->len - ev->final_base;
}

static bool loop_turns(struct chat_eval *ev, const struct chat_stmt *s, struct chat_loop *loop)
{
    struct chat_scope *outer = ev->scope;
    struct chat_value var = {.kind = CHAT_LOOP, .as.loop = loop};
    for (; loop->index < loop->count; loop->index++) {
        if (ev->turns && ev->turns->loop == s) note_turn(ev);
        if (!fresh_turn(ev, outer) || !scope_set(ev, ev->scope, 0, &var) ||
            !assign(ev, s->target, &loop->item[loop->index]) || !exec_body(ev, s->body))
            return false;
        bool leave = ev->flow == FLOW_BREAK;
        ev->flow = FLOW_NORMAL;
        if (leave) break;
    }
    ev->scope = outer;
    return true;
}

static bool exec_for(struct chat_eval *ev, const struct chat_stmt *s)
{
    struct chat_value v;
    struct chat_list items;
    if (!eval_expr(ev, s->expr, &v) || !eval_items(ev, &v, &items)) return false;
    if (s->test && !filter_items(ev, s, &items)) return false;
    struct chat_scope *outer = ev->scope;
    if (items.count == 0) {
        bool ok = scope_push(ev, outer) && exec_body(ev, s->other);
        ev->scope = outer;
        return ok;
    }
    struct chat_loop *loop = eval_alloc(ev, sizeof *loop);
    if (!loop) return false;
    *loop = (struct chat_loop){.item = items.item, .count = items.count};
    if (ev->turns && ev->turns->loop == s) note_loop(ev, loop);
    return loop_turns(ev, s, loop);
}

/* ---- macros ---- */

static bool exec_macro_stmt(struct chat_eval *ev, const struct chat_stmt *s)
{
    struct chat_macro *macro = eval_alloc(ev, sizeof *macro);
    if (!macro) return false;
    *macro = (struct chat_macro){s, ev->scope};
    for (struct chat_scope *scope = ev->scope; scope; scope = scope->parent) scope->captured = true;
    struct chat_value v = {.kind = CHAT_MACRO, .as.macro = macro};
    return scope_set(ev, ev->scope, s->name, &v);
}

/* Which parameter an argument is for; -1 after an error. */
static int macro_place(struct chat_eval *ev, const struct chat_stmt *s, const char *key, size_t position)
{
    const struct chat_name *names = ev->tmpl->names;
    for (size_t i = 0; i < s->count; i++)
        if (key ? names[s->params[i]].len == strlen(key) &&
                      memcmp(names[s->params[i]].text, key, strlen(key)) == 0
                : i == position)
            return (int)i;
    if (key)
        eval_raise(ev, "macro '%.*s' has no parameter '%.60s'", (int)names[s->name].len, names[s->name].text,
                   key);
    else
        eval_raise(ev, "macro '%.*s' takes at most %zu arguments", (int)names[s->name].len,
                   names[s->name].text, s->count);
    return -1;
}

static bool bind_params(struct chat_eval *ev, const struct chat_stmt *s, const struct chat_value *given,
                        const char *const *keys, size_t count)
{
    struct chat_value arg[CALL_GIVEN] = {{0}};
    for (size_t i = 0; i < count; i++) {
        int place = macro_place(ev, s, keys ? keys[i] : NULL, i);
        if (place < 0) return false;
        arg[place] = given[i];
    }
    for (size_t i = 0; i < s->count; i++) {
        const struct chat_name *name = &ev->tmpl->names[s->params[i]];
        if (arg[i].kind == CHAT_ABSENT) {
            arg[i] = chat_undefined(name->text, name->len);
            if (s->values[i] && !eval_expr(ev, s->values[i], &arg[i])) return false;
        }
        if (!scope_set(ev, ev->scope, s->params[i], &arg[i])) return false;
    }
    return true;
}

bool exec_macro(struct chat_eval *ev, const struct chat_macro *macro, const struct chat_value *given,
                const char *const *keys, size_t count, struct chat_value *out)
{
    struct chat_scope *caller = ev->scope;
    if (!scope_push(ev, macro->scope)) return false;
    bool ok =
        bind_params(ev, macro->stmt, given, keys, count) && capture(ev, macro->stmt->body, ev->scope, out);
    ev->scope = caller;
    return ok;
}

bool exec_body(struct chat_eval *ev, const struct chat_stmt *body)
{
    static bool (*const table[S_KINDS])(struct chat_eval *, const struct chat_stmt *) = {
        [S_DATA] = exec_data,        [S_PRINT] = exec_print,    [S_IF] = exec_if,
        [S_FOR] = exec_for,          [S_SET] = exec_set,        [S_SET_BLOCK] = exec_set_block,
        [S_MACRO] = exec_macro_stmt, [S_FILTER] = exec_filter,  [S_GENERATION] = exec_generation,
        [S_BREAK] = exec_leave,      [S_CONTINUE] = exec_leave,
    };
    bool ok = true;
    if (ev->depth >= EVAL_DEPTH_MAX) return eval_raise(ev, "the template recurses too deeply");
    ev->depth++;
    for (; ok && body && ev->flow == FLOW_NORMAL; body = body->next) {
        ev->line = body->line;
        ok = eval_charge(ev, 0) && table[body->kind](ev, body);
    }
    ev->depth--;
    return ok;
}
