/* fuzz_chat_template.c - any bytes as a chat template, and after a NUL byte a conversation in JSON: rendered with its
 * spans, or refused with a line, within small bounds. */
#include "base/json.h"
#include "text/chat_template.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char usual[] =
    "[{\"role\": \"system\", \"content\": \" be\\nkind \"}, {\"role\": \"user\", \"content\": \"h\\u00e9\"},"
    " {\"role\": \"assistant\", \"content\": \"a\", \"n\": [1, 2.5, null, true, {\"k\": -3}]}]";

static void render(const struct chat_template *tmpl, const struct node *messages)
{
    struct chat_options options = {.add_generation_prompt = true,
                                   .bos_token = "<s>",
                                   .eos_token = "</s>",
                                   .tools = messages,
                                   .max_steps = 20000,
                                   .max_bytes = 1 << 20};
    struct chat_spans spans = {0};
    struct strbuf out = STRBUF_INIT;
    struct plim_error err = {0};
    if (chat_template_render_spans(tmpl, messages, &options, &out, &spans, &err) == PLIM_OK)
        for (size_t i = 0; i < spans.count; i++)
            if (spans.span[i].begin > spans.span[i].end || spans.span[i].end > out.len) abort();
    chat_spans_release(&spans);
    strbuf_release(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    const char *nul = size ? memchr(text, '\0', size) : NULL;
    size_t len = nul ? (size_t)(nul - text) : size;
    struct chat_template *tmpl = NULL;
    struct doc *doc = NULL;
    struct plim_error err = {0};
    if (chat_template_parse(text, len, "fuzz", &tmpl, &err) != PLIM_OK) return 0;
    enum plim_status status = nul ? json_parse(nul + 1, size - len - 1, "fuzz", &doc, &err)
                                  : json_parse(usual, sizeof usual - 1, "usual", &doc, &err);
    if (status == PLIM_OK) render(tmpl, &doc->root);
    doc_free(doc);
    chat_template_free(tmpl);
    return 0;
}
