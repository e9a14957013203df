/* markup.c - texts marked as safe, as markupsafe has them.
 *
 * |safe marks a text. Printing ignores the mark; but where such a text meets another in + or in one of its methods,
 * the other one is escaped and the result is marked again. Filters that begin with str(x) lose the mark.
 */
#include "text/chat/eval.h"
#include <string.h>

bool eval_escape(struct chat_eval *ev, const struct chat_value *text, struct chat_value *out)
{
    static const char marks[] = "&<>\"'";
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    STRBUF_AUTO sb = STRBUF_INIT;
    *out = *text;
    if (text->safe) return true;
    if (!eval_charge(ev, text->as.string.len)) return false;
    for (size_t i = 0; i < text->as.string.len; i++) {
        const char *c = text->as.string.text + i, *mark = *c ? strchr(marks, *c) : NULL;
        const char *put = mark ? names[mark - marks] : c;
        if (!eval_put(ev, &sb, put, mark ? strlen(put) : 1)) return false;
    }
    if (!eval_take(ev, &sb, out)) return false;
    out->safe = true;
    return true;
}

/* Escapes the arguments that the method inserts: the new text of replace, the items of join. */
static bool escape_arguments(struct chat_eval *ev, struct chat_call *call)
{
    struct chat_list items;
    if (strcmp(call->row->name, "replace") == 0 && call->arg[1].kind == CHAT_STRING) {
        struct chat_value plain = call->arg[1];
        return eval_escape(ev, &plain, &call->arg[1]);
    }
    if (strcmp(call->row->name, "join") != 0) return true;
    if (!eval_items(ev, &call->arg[0], &items)) return false;
    struct chat_value *item = eval_alloc(ev, items.count * sizeof *item);
    if (!item) return false;
    for (size_t i = 0; i < items.count; i++) {
        struct chat_value text;
        if (!eval_text(ev, &items.item[i], &text) || !eval_escape(ev, &text, &item[i])) return false;
    }
    return eval_list(ev, CHAT_LIST, item, items.count, &call->arg[0]);
}

bool eval_safe_method(struct chat_eval *ev, struct chat_call *call, struct chat_value *out)
{
    if (!escape_arguments(ev, call) || !call->row->fn(ev, call, out)) return false;
    if (out->kind == CHAT_STRING) out->safe = true;
    if (out->kind != CHAT_LIST && out->kind != CHAT_TUPLE) return true;
    struct chat_value *item = eval_alloc(ev, out->as.list->count * sizeof *item);
    if (!item) return false;
    for (size_t i = 0; i < out->as.list->count; i++) {
        item[i] = out->as.list->item[i];
        item[i].safe = item[i].kind == CHAT_STRING;
    }
    return eval_list(ev, out->kind, item, out->as.list->count, out);
}
