/* chat_text.c - a conversation in OpenAI's form becomes the text that the model's template makes of it.
 *
 * Content may be a text or a list of parts; parts of kind text are joined, others are refused by name. Messages are
 * otherwise handed to the template as they are. */
#include "serve/server_part.h"

#include <string.h>

/* The texts of a list of parts, one behind the other. */
static bool join_parts(const struct node *parts, struct bump *store, struct node *out, struct refusal *why)
{
    struct strbuf text = STRBUF_INIT;
    for (size_t i = 0; i < node_count(parts); i++) {
        const struct node *part = node_item(parts, i), *piece = node_get(part, "text");
        const char *type = node_string(node_get(part, "type"), "?");
        if (strcmp(type, "text") || !piece || piece->kind != NODE_STRING) {
            strbuf_release(&text);
            return refuse(why, 422, "messages", "unsupported_value",
                          "messages: a part of type '%.40s' is not supported; only text is", type);
        }
        strbuf_addn(&text, piece->as.string.text, piece->as.string.len);
    }
    char *copy = bump_copy(store, strbuf_text(&text), text.len);
    out->kind = NODE_STRING, out->as.string.text = copy, out->as.string.len = text.len;
    strbuf_release(&text);
    return copy || refuse(why, 503, NULL, "out_of_memory", "out of memory for the messages");
}

static bool read_message(const struct node *message, struct bump *store, struct node *out,
                         struct refusal *why)
{
    const struct node *role = node_get(message, "role"), *content = node_get(message, "content");
    *out = *message;
    if (!role || role->kind != NODE_STRING)
        return refuse(
            why, 422, "messages", "invalid_value",
            "messages: each is an object with a role and a content, e.g. {\"role\": \"user\", \"content\": "
            "\"Hello\"}");
    if (!content ||
        (content->kind != NODE_STRING && content->kind != NODE_LIST && content->kind != NODE_NULL))
        return refuse(why, 422, "messages", "invalid_value",
                      "messages: content is a text or a list of parts");
    if (content->kind != NODE_LIST) return true;
    size_t n = node_count(message);
    struct node *items = bump_alloc(store, n * sizeof *items);
    if (!items) return refuse(why, 503, NULL, "out_of_memory", "out of memory for the messages");
    out->as.list.items = items;
    for (size_t i = 0; i < n; i++) {
        items[i] = *node_item(message, i);
        if (!strcmp(items[i].key, "content") && !join_parts(content, store, &items[i], why)) return false;
    }
    return true;
}

static bool read_messages(const struct node *messages, struct bump *store, struct node *out,
                          struct refusal *why)
{
    size_t n = node_count(messages);
    if (!messages || messages->kind != NODE_LIST || !n)
        return refuse(why, 422, "messages", "invalid_value",
                      "messages: write a list of at least one message");
    struct node *items = bump_alloc(store, n * sizeof *items);
    if (!items) return refuse(why, 503, NULL, "out_of_memory", "out of memory for the messages");
    *out = *messages;
    out->as.list.items = items;
    for (size_t i = 0; i < n; i++)
        if (!read_message(node_item(messages, i), store, &items[i], why)) return false;
    return true;
}

/* An error of the template, without the folder that it lies in: clients need not know. */
static const char *without_folder(const struct chat_template *chat, const char *text)
{
    const char *name = chat_template_name(chat), *slash = strrchr(name, '/');
    return slash && !strncmp(text, name, strlen(name)) ? text + (slash + 1 - name) : text;
}

bool server_render_chat(struct server *s, const struct ask *ask, struct strbuf *out, struct refusal *why)
{
    struct bump store = BUMP_INIT;
    struct plim_error err = {0};
    struct node messages;
    struct chat_options options = {.add_generation_prompt = ask->generation_prompt,
                                   .max_steps = 2000000,
                                   .max_output = (size_t)s->options.limits.body_bytes,
                                   .max_bytes = 2 * (size_t)s->options.limits.body_bytes};
    if (ask->variables && ask->variables->kind != NODE_MAP)
        return refuse(why, 422, "chat_template_kwargs", "invalid_value",
                      "chat_template_kwargs: write an object");
    options.variables = ask->variables;
    if (!s->model.chat)
        return refuse(why, 501, NULL, "no_chat_template",
                      "this model cannot chat: it has no chat template, or one that is not understood here; "
                      "/v1/completions works");
    bool good = read_messages(ask->input, &store, &messages, why);
    if (good && chat_template_render(s->model.chat, &messages, &options, out, &err) != PLIM_OK)
        good =
            refuse(why, 422, "messages", "template_refused", "%s", without_folder(s->model.chat, err.text));
    bump_free(&store);
    return good;
}
