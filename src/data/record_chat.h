/* record_chat.h - conversations of a record as text, with the parts that are learned; internal to record.c.
 *
 *     struct record_chat chat = {0};
 *     record_chat_render(&chat, &rules, &messages, &tools, &err);              // chat.text; chat.spans: the assistant's parts
 *     record_chat_render_pair(&chat, &rules, &prompt, &completion, &tools, &err);   // one span: the completion
 *     record_chat_release(&chat);
 *
 * A pair of lists of messages is rendered twice: the prompt alone, up to where the assistant begins to write, and both
 * together. The completion is the text behind what the two renderings share. Some templates write something after the
 * generation prompt that they leave out in a finished conversation; the shared part then ends before it.
 */
#pragma once

#include "base/json.h"
#include "data/json_fields.h"
#include "data/record.h"

struct record_chat {
    struct strbuf text;   /* the conversation */
    struct strbuf prompt; /* of a pair: the prompt alone */
    struct chat_spans spans;
};
void record_chat_release(struct record_chat *chat);

/* True if these rules may render a conversation. */
bool record_renders(const struct record_rules *rules);

/* Maximum memory of rendering a record of `longest` bytes. */
size_t record_chat_bytes(const struct record_rules *rules, size_t longest);

/* `tools` is a list of JSON schemas, or a text with one; absent or null: none. */
enum plim_status record_chat_render(struct record_chat *chat, const struct record_rules *rules,
                                    const struct json_field *messages, const struct json_field *tools,
                                    struct plim_error *err);
enum plim_status record_chat_render_pair(struct record_chat *chat, const struct record_rules *rules,
                                         const struct json_field *prompt, const struct json_field *completion,
                                         const struct json_field *tools, struct plim_error *err);

/* render_pair for two lists that begin alike and have no prompt of their own: their common messages are the prompt. Renders
 * the first of them. */
enum plim_status record_chat_render_implicit(struct record_chat *chat, const struct record_rules *rules,
                                             const struct json_field *completion,
                                             const struct json_field *other, const struct json_field *tools,
                                             struct plim_error *err);
