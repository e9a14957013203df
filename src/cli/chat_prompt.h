/* chat_prompt.h - renders conversations as prompts, for generate and chat.
 *
 *     struct chat_template *chat;
 *     cli_open_chat(folder, &chat, &err);                       // NULL: the model has no template
 *     cli_chat_text(chat, messages, count, &text, &err);
 */
#ifndef PLIM_CLI_CHAT_PROMPT_H
#define PLIM_CLI_CHAT_PROMPT_H

#include "text/chat_template.h"

struct chat_message {
    const char *role, *content;
};

/* Loads the template of a model folder or a GGUF file. PLIM_OK with NULL if it has none; the errors of
 * chat_template_load if its template cannot be used. */
enum plim_status cli_open_chat(const char *model, struct chat_template **out, struct plim_error *err);

/* Appends the rendered conversation, up to where the assistant begins. */
enum plim_status cli_chat_text(const struct chat_template *chat, const struct chat_message *messages,
                               size_t count, struct strbuf *out, struct plim_error *err);

#endif
