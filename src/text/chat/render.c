/* render.c - a rendering from beginning to end: the caller's trees become values, names become variables. */
#include "base/utf8.h"
#include "text/chat/eval.h"
#include <stdlib.h>
#include <string.h>

enum { NODE_NESTING_MAX = 140 };

static bool from_text(struct chat_eval *ev, const char *text, size_t len, struct chat_value *out)
{
    if (utf8_valid_prefix(text, len) < len) return eval_raise(ev, "a text in the conversation is not UTF-8");
    *out = chat_string(len ? text : "", len);
    return true;
}

static bool from_node(struct chat_eval *ev, const struct node *node, int level, struct chat_value *out);

static bool from_children(struct chat_eval *ev, const struct node *node, int level, struct chat_value *out)
{
    size_t count = node_count(node);
    if (node->kind == NODE_LIST) {
        struct chat_value *item = eval_alloc(ev, count * sizeof *item);
        if (!item) return false;
        for (size_t i = 0; i < count; i++)
            if (!from_node(ev, node_item(node, i), level + 1, &item[i])) return false;
        return eval_list(ev, CHAT_LIST, item, count, out);
    }
    struct chat_pair *pair = eval_alloc(ev, count * sizeof *pair);
    if (!pair || !eval_dict_new(ev, out)) return false;
    for (size_t i = 0; i < count; i++) {
        const struct node *child = node_item(node, i);
        if (!from_text(ev, child->key, child->key_len, &pair[i].key) ||
            !from_node(ev, child, level + 1, &pair[i].value))
            return false;
    }
    *out->as.dict = (struct chat_dict){pair, count, count};
    return true;
}

/* Texts are not copied: the caller's tree outlives the rendering. */
static bool from_node(struct chat_eval *ev, const struct node *node, int level, struct chat_value *out)
{
    *out = chat_none();
    if (level > NODE_NESTING_MAX) return eval_raise(ev, "the conversation is nested too deeply");
    if (!node || node->kind == NODE_NULL) return true;
    if (node->kind == NODE_BOOL)
        *out = chat_bool(node->as.boolean);
    else if (node->kind == NODE_INT)
        *out = chat_int(node->as.integer);
    else if (node->kind == NODE_FLOAT)
        *out = chat_float(node->as.real);
    else if (node->kind == NODE_STRING)
        return from_text(ev, node->as.string.text, node->as.string.len, out);
    else
        return from_children(ev, node, level, out);
    return true;
}

/* ---- messages ---- */

static const struct chat_value *field(const struct chat_dict *message, const char *name)
{
    const struct chat_pair *pair = chat_dict_find(message, name, strlen(name));
    return pair && pair->value.kind != CHAT_NONE ? &pair->value : NULL;
}

/* Reasoning text has several names. transformers offers it as `thinking` (first, so that a field of that name keeps
 * its value) and `reasoning_content`; templates read either. */
static bool alias_reasoning(struct chat_eval *ev, struct chat_value *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    const struct chat_dict *old = message->as.dict;
    const struct chat_value *thought = NULL;
    struct chat_value made, first = chat_string("thinking", 8), last = chat_string("reasoning_content", 17);
    for (size_t i = 0; i < 3 && !thought; i++) thought = field(old, names[i]);
    if (!thought) return true;
    if (!eval_dict_new(ev, &made) || !eval_dict_set(ev, made.as.dict, &first, thought)) return false;
    for (size_t i = 0; i < old->count; i++)
        if (!eval_dict_set(ev, made.as.dict, &old->pair[i].key, &old->pair[i].value)) return false;
    if (!eval_dict_set(ev, made.as.dict, &last, thought)) return false;
    *message = made;
    return true;
}

static bool from_messages(struct chat_eval *ev, const struct node *messages, size_t count,
                          struct chat_value *out)
{
    if (!messages || messages->kind != NODE_LIST) return eval_raise(ev, "messages must be a list");
    struct chat_value *item = eval_alloc(ev, count * sizeof *item);
    if (!item) return false;
    for (size_t i = 0; i < count; i++) {
        if (!from_node(ev, node_item(messages, i), 1, &item[i])) return false;
        if (item[i].kind != CHAT_DICT) return eval_raise(ev, "message %zu is not a map with a role", i + 1);
        if (!alias_reasoning(ev, &item[i])) return false;
    }
    return eval_list(ev, CHAT_LIST, item, count, out);
}

/* ---- variables ---- */

static void set_global(struct chat_eval *ev, const char *name, size_t len, const struct chat_value *value)
{
    for (size_t i = 0; i < ev->tmpl->name_count; i++)
        if (ev->tmpl->names[i].len == len && memcmp(ev->tmpl->names[i].text, name, len) == 0) {
            ev->globals[i] = *value;
            return;
        }
}

static bool set_text(struct chat_eval *ev, const char *name, const char *text)
{
    struct chat_value v;
    if (!text) return true;
    if (!from_text(ev, text, strlen(text), &v)) return false;
    set_global(ev, name, strlen(name), &v);
    return true;
}

static bool set_node(struct chat_eval *ev, const char *name, const struct node *node)
{
    struct chat_value v;
    if (!from_node(ev, node, 0, &v)) return false;
    set_global(ev, name, strlen(name), &v);
    return true;
}

/* Functions, then special tokens, then what the call says; later ones win. */
static bool set_globals(struct chat_eval *ev, const struct chat_talk *talk)
{
    const struct chat_template *t = ev->tmpl;
    const struct chat_options *o = ev->options;
    struct chat_value v;
    ev->globals = eval_alloc(ev, t->name_count * sizeof *ev->globals);
    if (!ev->globals) return false;
    for (size_t i = 0; i < t->name_count; i++) {
        const struct chat_row *row = chat_function_find(t->names[i].text, t->names[i].len);
        ev->globals[i] = row ? (struct chat_value){.kind = CHAT_FUNCTION, .as.function = row}
                             : chat_undefined(t->names[i].text, t->names[i].len);
    }
    for (size_t i = 0; i < t->token_count; i++)
        set_global(ev, t->tokens[i].key.as.string.text, t->tokens[i].key.as.string.len, &t->tokens[i].value);
    if (!set_text(ev, "bos_token", o->bos_token) || !set_text(ev, "eos_token", o->eos_token)) return false;
    if (!set_node(ev, "tools", o->tools) || !set_node(ev, "documents", o->documents)) return false;
    bool ready = talk->turns && eval_list(ev, CHAT_LIST, talk->turns->item, talk->count, &v);
    if (!ready && !from_messages(ev, talk->messages, talk->count, &v)) return false;
    set_global(ev, "messages", 8, &v);
    v = chat_bool(o->add_generation_prompt);
    set_global(ev, "add_generation_prompt", 21, &v);
    for (size_t i = 0; i < node_count(o->variables); i++) {
        const struct node *child = node_item(o->variables, i);
        if (!child->key) return eval_raise(ev, "the variables must be a map");
        if (!from_node(ev, child, 0, &v)) return false;
        set_global(ev, child->key, child->key_len, &v);
    }
    return true;
}

static struct chat_eval begin(const struct chat_template *tmpl, const struct chat_options *options,
                              struct plim_error *err)
{
    struct chat_eval ev = {
        .tmpl = tmpl,
        .options = options,
        .line = 1,
        .err = err,
        .max_steps = options->max_steps ? options->max_steps : CHAT_STEPS,
        .max_bytes = options->max_bytes ? options->max_bytes : CHAT_BYTES,
    };
    ev.max_output = options->max_output ? options->max_output : ev.max_bytes;
    return ev;
}

enum plim_status chat_eval_messages(const struct chat_template *tmpl, const struct node *messages,
                                    const struct chat_options *options, struct bump *store,
                                    struct chat_turns *turns, struct plim_error *err)
{
    struct chat_eval ev = begin(tmpl, options, err);
    struct chat_value list;
    bool ok = from_messages(&ev, messages, node_count(messages), &list);
    if (ok) turns->item = list.as.list->item, turns->items = list.as.list->count, turns->used = ev.used;
    *store = ev.store;
    return ok ? PLIM_OK : ev.status;
}

enum plim_status chat_eval_render(const struct chat_template *tmpl, const struct chat_talk *talk,
                                  const struct chat_options *options, struct strbuf *out,
                                  struct chat_spans *spans, uint64_t *steps, struct plim_error *err)
{
    static const struct chat_options plain = {0};
    size_t base = out->len, span_base = spans ? spans->count : 0;
    struct chat_scope root = {0};
    struct chat_eval ev = begin(tmpl, options ? options : &plain, err);
    ev.scope = &root, ev.out = out, ev.spans = spans, ev.final = out, ev.final_base = base;
    ev.turns = talk->turns;
    if (ev.turns) ev.used = ev.turns->used, ev.turns->count = ev.turns->begun = 0;
    bool ok = set_globals(&ev, talk) && exec_body(&ev, tmpl->body);
    bump_free(&ev.store);
    if (steps) *steps = ev.steps;
    if (ok) return PLIM_OK;
    if (out->failed) strbuf_clear(out);
    strbuf_truncate(out, base);
    if (spans) spans->count = span_base;
    return ev.status;
}
