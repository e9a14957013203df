/* chat_prompt.h - renders conversations as prompts.
 *
 *     struct chat_template *chat;
 *     chat_prompt_open(folder, &chat, &err);                    // NULL: the model has no template
 *     chat_prompt_text(chat, messages, count, &text, &err);
 *     chat_prompt_json(chat, "[{\"role\": \"user\", \"content\": \"Hello\"}]", true, &text, &err);
 */
#pragma once

#include "text/chat_template.h"

struct chat_message {
    const char *role, *content;
};

/* Loads the template of a model folder or a GGUF file. PLIM_OK with NULL if it has none; the errors of
 * chat_template_load if its template cannot be used. */
enum plim_status chat_prompt_open(const char *model, struct chat_template **out, struct plim_error *err);

/* Appends the rendered conversation, up to where the assistant begins. */
enum plim_status chat_prompt_text(const struct chat_template *chat, const struct chat_message *messages,
                                  size_t count, struct strbuf *out, struct plim_error *err);

/* Appends a JSON array of messages as the template writes it. `generation`: up to where the assistant begins. */
enum plim_status chat_prompt_json(const struct chat_template *chat, const char *messages, bool generation,
                                  struct strbuf *out, struct plim_error *err);
