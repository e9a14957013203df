/* chat_prompt.c - see chat_prompt.h. */
#include "api/chat_prompt.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

enum plim_status chat_prompt_open(const char *model, struct chat_template **out, struct plim_error *err)
{
    struct plim_error why = {0};
    enum plim_status status = chat_template_load(model, NULL, out, &why);
    if (status == PLIM_OK) return PLIM_OK;
    if (status == PLIM_NOT_FOUND) return *out = NULL, PLIM_OK;
    return *err = why, status;
}

static struct node text_node(const char *key, const char *text)
{
    struct node node = {.kind = NODE_STRING, .key = key, .key_len = strlen(key)};
    node.as.string.text = text, node.as.string.len = strlen(text);
    return node;
}

enum plim_status chat_prompt_text(const struct chat_template *chat, const struct chat_message *messages,
                                  size_t count, struct strbuf *out, struct plim_error *err)
{
    struct chat_options options = {.add_generation_prompt = true};
    struct node *nodes = calloc(3 * count + 1, sizeof *nodes), list = {.kind = NODE_LIST};
    if (!nodes) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for a conversation");
    for (size_t i = 0; i < count; i++) {
        struct node *parts = nodes + count + 2 * i;
        parts[0] = text_node("role", messages[i].role), parts[1] = text_node("content", messages[i].content);
        nodes[i].kind = NODE_MAP;
        nodes[i].as.list.items = parts, nodes[i].as.list.count = 2;
    }
    list.as.list.items = nodes, list.as.list.count = count;
    enum plim_status status = chat_template_render(chat, &list, &options, out, err);
    free(nodes);
    return status;
}

enum plim_status chat_prompt_json(const struct chat_template *chat, const char *messages, bool generation,
                                  struct strbuf *out, struct plim_error *err)
{
    struct chat_options options = {.add_generation_prompt = generation};
    struct doc *doc = NULL;
    enum plim_status status = json_parse(messages, strlen(messages), "messages", &doc, err);
    if (status == PLIM_OK && (doc->root.kind != NODE_LIST || !node_count(&doc->root)))
        status = plim_fail(err, PLIM_BAD_INPUT,
                           "messages: write an array, e.g. [{\"role\": \"user\", \"content\": \"Hello\"}]");
    if (status == PLIM_OK) status = chat_template_render(chat, &doc->root, &options, out, err);
    doc_free(doc);
    return status;
}
