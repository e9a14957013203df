/* chat.c - plim_chat_render of plimsoll/text.h. */
#include "api/chat_prompt.h"
#include "api/handle.h"
#include <plimsoll/text.h>

enum plim_status plim_chat_render(struct plim_context *context, const char *model, const char *messages,
                                  int add_generation_prompt, char **text, struct plim_error *err)
{
    static const char me[] = "plim_chat_render";
    struct chat_template *chat = NULL;
    struct strbuf out = STRBUF_INIT;
    if (!handle_is(context, HANDLE_CONTEXT, me, err)) return PLIM_BAD_INPUT;
    if (!model || !messages || !text) return plim_fail(err, PLIM_BAD_INPUT, "%s: an argument is NULL", me);
    *text = NULL;
    enum plim_status status = chat_template_load(model, NULL, &chat, err);
    if (status == PLIM_OK) status = chat_prompt_json(chat, messages, add_generation_prompt, &out, err);
    if (status != PLIM_OK) plim_error_prefix(err, "%s", me);
    if (status == PLIM_OK && !(*text = text_give(&out)))
        status = plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", me);
    strbuf_release(&out);
    chat_template_free(chat);
    return status;
}
