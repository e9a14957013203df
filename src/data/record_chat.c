/* record_chat.c - see record_chat.h. */
#include "data/record_chat.h"

#include <stdlib.h>
#include <string.h>

void record_chat_release(struct record_chat *c)
{
    strbuf_release(&c->text);
    strbuf_release(&c->prompt);
    chat_spans_release(&c->spans);
}

bool record_renders(const struct record_rules *rules)
{
    return rules->chat && rules->kind != RECORD_TEXT && rules->kind != RECORD_LINE &&
           rules->kind != RECORD_JSON && rules->kind != RECORD_TWO && rules->kind != RECORD_LABELS;
}

size_t record_chat_bytes(const struct record_rules *rules, size_t longest)
{
    size_t texts = rules->kind == RECORD_CHAT ? 1 : 2;
    return record_renders(rules) ? record_chat_memory(longest) + texts * record_chat_output(longest) : 0;
}

/* One rendering: trees of the record's lists, and the limits that its length sets. */
struct work {
    const struct record_rules *rules;
    struct quota quota;
    size_t len;
    struct doc *doc[3];
    int docs;
    const struct node *tools;
    struct node *joined; /* messages of a prompt and its completion */
};

static enum plim_status parse(struct work *w, const struct json_field *f, const struct node **out,
                              struct plim_error *err)
{
    struct doc *doc = NULL;
    enum plim_status status = json_parse_record(f->at, f->len, f->name, &w->quota, &doc, err);
    if (status != PLIM_OK) return status;
    w->doc[w->docs++] = doc;
    *out = &doc->root;
    return PLIM_OK;
}

static enum plim_status begin(struct work *w, const struct record_rules *rules, size_t len,
                              const struct json_field *tools, struct plim_error *err)
{
    bool given = tools && tools->kind != JSON_ABSENT && tools->kind != JSON_NULL && tools->len > 0;
    len += given ? tools->len : 0;
    *w = (struct work){
        .rules = rules,
        .len = len,
        .quota = {.most = record_chat_memory(len) / 2, .why = "half of the memory for a conversation"}};
    if (!given) return PLIM_OK;
    enum plim_status status = PLIM_OK;
    if (tools->kind == JSON_LIST || tools->kind == JSON_TEXT) status = parse(w, tools, &w->tools, err);
    if (status != PLIM_OK || (w->tools && w->tools->kind == NODE_LIST)) return status;
    return plim_fail(err, PLIM_BAD_INPUT, "the field '%s' is %s, not a list of tools or a text with one",
                     tools->name, w->tools ? node_kind_name(w->tools->kind) : json_kind_name(tools->kind));
}

static void end(struct work *w)
{
    for (int i = 0; i < w->docs; i++) doc_free(w->doc[i]);
    free(w->joined);
}

static enum plim_status render(const struct work *w, const struct node *messages, bool prompt,
                               struct strbuf *out, struct chat_spans *spans, struct plim_error *err)
{
    struct chat_options options = {.add_generation_prompt = prompt,
                                   .tools = w->tools && node_count(w->tools) ? w->tools : NULL,
                                   .now = w->rules->now,
                                   .max_output = record_chat_output(w->len),
                                   .max_bytes = record_chat_memory(w->len) - (size_t)w->quota.used};
    strbuf_clear(out);
    out->most = options.max_output;
    return spans ? chat_template_render_spans(w->rules->chat, messages, &options, out, spans, err)
                 : chat_template_render(w->rules->chat, messages, &options, out, err);
}

enum plim_status record_chat_render(struct record_chat *chat, const struct record_rules *rules,
                                    const struct json_field *messages, const struct json_field *tools,
                                    struct plim_error *err)
{
    struct work w;
    const struct node *list;
    enum plim_status status = begin(&w, rules, messages->len, tools, err);
    chat->spans.count = 0;
    if (status == PLIM_OK) status = parse(&w, messages, &list, err);
    if (status == PLIM_OK)
        status = render(&w, list, false, &chat->text, rules->learn_all ? NULL : &chat->spans, err);
    end(&w);
    return status;
}

/* A completion that continues the assistant's own message needs no generation prompt. */
static bool ends_with_assistant(const struct node *messages)
{
    size_t n = node_count(messages);
    const char *role = n ? node_string(node_get(node_item(messages, n - 1), "role"), "") : "";
    return !strcmp(role, "assistant");
}

/* Bytes that both texts begin with, up to the end of a character. */
static size_t shared_bytes(const struct strbuf *a, const struct strbuf *b)
{
    size_t n = 0, most = a->len < b->len ? a->len : b->len;
    while (n < most && a->data[n] == b->data[n]) n++;
    while (n > 0 && n < b->len && ((unsigned char)b->data[n] & 0xc0) == 0x80) n--;
    return n;
}

static enum plim_status render_both(struct record_chat *chat, const struct work *w, const struct node *prompt,
                                    const struct node *all, struct plim_error *err)
{
    enum plim_status status = render(w, prompt, !ends_with_assistant(prompt), &chat->prompt, NULL, err);
    if (status == PLIM_OK) status = render(w, all, false, &chat->text, NULL, err);
    if (status != PLIM_OK) return status;
    if (!chat->spans.span) {
        chat->spans.span = calloc(1, sizeof *chat->spans.span);
        if (!chat->spans.span) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for a conversation");
        chat->spans.cap = 1;
    }
    chat->spans.span[0] = (struct chat_span){shared_bytes(&chat->prompt, &chat->text), chat->text.len};
    chat->spans.count = 1;
    return PLIM_OK;
}

enum plim_status record_chat_render_pair(struct record_chat *chat, const struct record_rules *rules,
                                         const struct json_field *prompt, const struct json_field *completion,
                                         const struct json_field *tools, struct plim_error *err)
{
    struct work w;
    const struct node *first = NULL, *second = NULL;
    enum plim_status status = begin(&w, rules, prompt->len + completion->len, tools, err);
    if (status == PLIM_OK) status = parse(&w, prompt, &first, err);
    if (status == PLIM_OK) status = parse(&w, completion, &second, err);
    size_t a = node_count(first), b = node_count(second), bytes = (a + b) * sizeof *w.joined;
    if (status == PLIM_OK && !b)
        status = plim_fail(err, PLIM_BAD_INPUT, "the field '%s' is empty", completion->name);
    if (status == PLIM_OK && !quota_take(&w.quota, bytes)) status = quota_fail(&w.quota, prompt->name, err);
    if (status == PLIM_OK && !(w.joined = malloc(bytes)))
        status = plim_fail(err, PLIM_NO_MEMORY, "out of memory for a conversation");
    if (status == PLIM_OK) {
        if (a) memcpy(w.joined, first->as.list.items, a * sizeof *w.joined);
        memcpy(w.joined + a, second->as.list.items, b * sizeof *w.joined);
        struct node all = {.kind = NODE_LIST, .as.list = {w.joined, a + b}};
        status = render_both(chat, &w, first, &all, err);
    }
    end(&w);
    return status;
}

static bool is_same(const struct node *a, const struct node *b)
{
    if (a->kind != b->kind || a->key_len != b->key_len) return false;
    if (a->key_len && memcmp(a->key, b->key, a->key_len)) return false;
    switch (a->kind) {
    case NODE_NULL:
        return true;
    case NODE_BOOL:
        return a->as.boolean == b->as.boolean;
    case NODE_INT:
        return a->as.integer == b->as.integer;
    case NODE_FLOAT:
        return a->as.real == b->as.real;
    case NODE_STRING:
        return a->as.string.len == b->as.string.len &&
               !memcmp(a->as.string.text, b->as.string.text, a->as.string.len);
    default:
        break;
    }
    if (node_count(a) != node_count(b)) return false;
    for (size_t i = 0; i < node_count(a); i++)
        if (!is_same(node_item(a, i), node_item(b, i))) return false;
    return true;
}

enum plim_status record_chat_render_implicit(struct record_chat *chat, const struct record_rules *rules,
                                             const struct json_field *completion,
                                             const struct json_field *other, const struct json_field *tools,
                                             struct plim_error *err)
{
    struct work w;
    const struct node *all = NULL, *rest = NULL;
    enum plim_status status = begin(&w, rules, completion->len + other->len, tools, err);
    if (status == PLIM_OK) status = parse(&w, completion, &all, err);
    if (status == PLIM_OK) status = parse(&w, other, &rest, err);
    size_t n = 0;
    while (n < node_count(all) && n < node_count(rest) && is_same(node_item(all, n), node_item(rest, n))) n++;
    if (status == PLIM_OK && n == node_count(all))
        status = plim_fail(err, PLIM_BAD_INPUT,
                           "the field '%s' has no message that '%s' has not; a preference "
                           "needs two completions that differ",
                           completion->name, other->name);
    if (status == PLIM_OK) {
        struct node prompt = {.kind = NODE_LIST, .as.list = {all->as.list.items, n}};
        status = render_both(chat, &w, &prompt, all, err);
    }
    end(&w);
    return status;
}
