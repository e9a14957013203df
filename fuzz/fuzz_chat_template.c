/* fuzz_chat_template.c - any bytes as a chat template, and after a NUL byte a conversation in JSON: rendered with its
 * spans, or refused with a line, within small bounds. Spans are what rendering every prefix finds. */
#define _GNU_SOURCE
#include "base/json.h"
#include "text/chat_template.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define QUESTION "{\"role\": \"user\", \"content\": \"h\\u00e9\"},"
static const char usual[] =
    "[{\"role\": \"system\", \"content\": \" be\\nkind \"}," QUESTION
    " {\"role\": \"assistant\", \"content\": \"a\", \"n\": [1, 2.5, null, true, {\"k\": -3}]}," QUESTION
    " {\"role\": \"assistant\", \"content\": \"b\"}, {\"role\": \"tool\", \"content\": \"7\"},"
    " {\"role\": \"assistant\", \"content\": \"c\"}, {\"role\": \"assistant\", \"content\": \"\"}," QUESTION
    " {\"role\": \"assistant\", \"content\": \"e\"}]";

enum { STEPS = 20000 };

static bool is_assistant(const struct node *messages, size_t i)
{
    return !strcmp(node_string(node_get(node_item(messages, i), "role"), ""), "assistant");
}

/* Does the prefix of so many messages end there? Where it cannot be rendered: true. */
static bool ends_at(const struct chat_template *tmpl, const struct node *messages, size_t count,
                    const struct chat_options *asked, bool prompt, const char *whole, size_t end)
{
    struct chat_options options = *asked;
    struct node first = *messages;
    struct strbuf out = STRBUF_INIT;
    struct plim_error err = {0};
    first.as.list.count = count, options.add_generation_prompt = prompt;
    bool known = chat_template_render(tmpl, &first, &options, &out, &err) == PLIM_OK;
    bool same = out.len == end && !memcmp(strbuf_text(&out), whole, end);
    strbuf_release(&out);
    return !known || same;
}

static void check(const struct chat_template *tmpl, const struct node *messages,
                  const struct chat_options *options, const char *whole, const struct chat_spans *spans)
{
    size_t n = 0;
    for (size_t i = 0; i < node_count(messages); i++) {
        size_t first = i;
        if (!is_assistant(messages, i)) continue;
        while (i + 1 < node_count(messages) && is_assistant(messages, i + 1)) i++;
        const struct chat_span *span = &spans->span[n++];
        if (n > spans->count || !ends_at(tmpl, messages, first, options, true, whole, span->begin)) abort();
        if (span->end > span->begin && !ends_at(tmpl, messages, i + 1, options, false, whole, span->end))
            abort();
    }
    if (n != spans->count) abort();
}

static void render(const struct chat_template *tmpl, const struct node *messages, bool marked)
{
    struct chat_options options = {.add_generation_prompt = true,
                                   .bos_token = "<s>",
                                   .eos_token = "</s>",
                                   .tools = messages,
                                   .max_steps = STEPS,
                                   .max_bytes = 1 << 20};
    struct chat_spans spans = {0};
    struct strbuf out = STRBUF_INIT;
    struct plim_error err = {0};
    if (chat_template_render_spans(tmpl, messages, &options, &out, &spans, &err) == PLIM_OK) {
        for (size_t i = 0; i < spans.count; i++)
            if (spans.span[i].begin > spans.span[i].end || spans.span[i].end > out.len) abort();
        if (!marked) check(tmpl, messages, &options, strbuf_text(&out), &spans);
    }
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
    if (status == PLIM_OK) render(tmpl, &doc->root, memmem(text, len, "generation", 10) != NULL);
    doc_free(doc);
    chat_template_free(tmpl);
    return 0;
}
