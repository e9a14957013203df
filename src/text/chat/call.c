/* call.c - calling macros, methods, functions, filters and tests: arguments are evaluated, bound to the
 * parameters of the row, and handed over. */
#include "text/chat/eval.h"
#include <string.h>

const struct chat_row *chat_row_find(const struct chat_row *rows, const char *name, size_t len)
{
    for (; rows->name; rows++)
        if (strlen(rows->name) == len && memcmp(rows->name, name, len) == 0) return rows;
    return NULL;
}

/* Place of a parameter among "a b c", and how many there are; -1 when the key is none of them. */
static int param_place(const char *params, const char *key, int *count)
{
    int place = -1, n = 0;
    for (const char *at = params; *at; n++) {
        size_t len = strcspn(at, " ");
        if (key && strlen(key) == len && memcmp(at, key, len) == 0) place = n;
        at += len + (at[len] == ' ');
    }
    *count = n;
    return place;
}

static bool bind(struct chat_eval *ev, struct chat_call *call)
{
    const struct chat_row *row = call->row;
    int count;
    param_place(row->params, NULL, &count);
    for (size_t i = 0; i < call->count; i++) {
        const char *key = call->keys ? call->keys[i] : NULL;
        int place = key ? param_place(row->params, key, &count) : (int)i;
        if (place < 0)
            return eval_fail(ev, PLIM_UNSUPPORTED, "'%s' with the argument '%.60s' is not supported",
                             row->name, key);
        if (place >= count) return eval_raise(ev, "'%s' takes at most %d arguments", row->name, count);
        if (call->arg[place].kind != CHAT_ABSENT)
            return eval_raise(ev, "'%s': an argument is given twice", row->name);
        call->arg[place] = call->given[i];
    }
    for (int i = 0; i < row->required; i++)
        if (call->arg[i].kind == CHAT_ABSENT)
            return eval_raise(ev, "'%s' needs %d argument%s", row->name, row->required,
                              row->required > 1 ? "s" : "");
    return true;
}

bool eval_builtin(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    if (!call->row->fn)
        return eval_raise(ev, "'%s' would change its %s, which a chat template may not do", call->row->name,
                          chat_type_name(&call->self));
    if (call->row->params && !bind(ev, call)) return false;
    if (!eval_charge(ev, 0)) return false;
    bool method = call->self.kind == CHAT_STRING && call->self.safe &&
                  chat_method_find(&call->self, call->row->name, strlen(call->row->name)) == call->row;
    return method ? eval_safe_method(ev, call, out) : call->row->fn(ev, call, out);
}

bool eval_apply(struct chat_eval *ev, const struct chat_row *row, const struct chat_value *self,
                const struct chat_value *given, const char *const *keys, size_t count, struct chat_value *out)
{
    struct chat_call call = {.row = row, .given = given, .keys = keys, .count = count};
    if (self) call.self = *self;
    return eval_builtin(ev, &call, out);
}

static bool eval_args(struct chat_eval *ev, const struct chat_expr *e, struct chat_value given[CALL_GIVEN])
{
    for (size_t i = 0; i < e->count; i++)
        if (!eval_expr(ev, e->items[i], &given[i])) return false;
    ev->line = e->line;
    return true;
}

static bool has_row(struct chat_eval *ev, const struct chat_expr *e)
{
    ev->line = e->line;
    return e->row || eval_fail(ev, PLIM_UNSUPPORTED, "%s '%.*s' is not supported",
                               e->kind == E_TEST ? "test" : "filter", (int)e->value.as.string.len,
                               e->value.as.string.text);
}

/* Filters and tests. */
bool eval_row_expr(struct chat_eval *ev, const struct chat_expr *e, struct chat_value *out)
{
    struct chat_value self, given[CALL_GIVEN];
    return has_row(ev, e) && eval_expr(ev, e->a, &self) && eval_args(ev, e, given) &&
           eval_apply(ev, e->row, &self, given, e->keys, e->count, out);
}

bool eval_block_filters(struct chat_eval *ev, const struct chat_expr *e, struct chat_value *v)
{
    struct chat_value given[CALL_GIVEN], self;
    if (!e) return true;
    if (ev->depth >= EVAL_DEPTH_MAX) return eval_raise(ev, "the template recurses too deeply");
    ev->depth++;
    bool ok = has_row(ev, e) && eval_block_filters(ev, e->a, v) && eval_args(ev, e, given);
    self = *v;
    ok = ok && eval_apply(ev, e->row, &self, given, e->keys, e->count, v);
    ev->depth--;
    return ok;
}

static bool call_value(struct chat_eval *ev, const struct chat_value *callee, const struct chat_expr *e,
                       struct chat_value *out)
{
    struct chat_value given[CALL_GIVEN];
    if (callee->kind == CHAT_UNDEFINED) return eval_undefined(ev, callee);
    if (!eval_args(ev, e, given)) return false;
    if (callee->kind == CHAT_MACRO) return exec_macro(ev, callee->as.macro, given, e->keys, e->count, out);
    if (callee->kind == CHAT_FUNCTION)
        return eval_apply(ev, callee->as.function, NULL, given, e->keys, e->count, out);
    if (callee->kind == CHAT_METHOD)
        return eval_apply(ev, callee->as.method->row, &callee->as.method->self, given, e->keys, e->count,
                          out);
    if (callee->kind == CHAT_LOOP)
        return eval_fail(ev, PLIM_UNSUPPORTED, "a recursive loop is not supported");
    return eval_raise(ev, "a '%s' cannot be called", chat_type_name(callee));
}

bool eval_call_expr(struct chat_eval *ev, const struct chat_expr *e, struct chat_value *out)
{
    struct chat_value callee, self;
    if (e->a->kind != E_ATTR) return eval_expr(ev, e->a, &callee) && call_value(ev, &callee, e, out);
    /* x.method(...): without making a value of the method first. */
    const struct chat_value *name = &e->a->value;
    if (!eval_expr(ev, e->a->a, &self)) return false;
    ev->line = e->line;
    const struct chat_row *row = chat_method_find(&self, name->as.string.text, name->as.string.len);
    if (row) {
        struct chat_method method = {self, row};
        callee = (struct chat_value){.kind = CHAT_METHOD, .as.method = &method};
        return call_value(ev, &callee, e, out);
    }
    if (!eval_attr(ev, &self, name->as.string.text, name->as.string.len, &callee)) return false;
    if (callee.kind == CHAT_UNDEFINED && self.kind != CHAT_DICT && self.kind != CHAT_NAMESPACE)
        return eval_fail(ev, PLIM_UNSUPPORTED, "method '%.*s' of a '%s' is not supported",
                         (int)name->as.string.len, name->as.string.text, chat_type_name(&self));
    return call_value(ev, &callee, e, out);
}
