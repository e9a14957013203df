/* spans.c - which parts of a rendered conversation the assistant wrote.
 *
 * Without marks in the template the parts are found by rendering prefixes. Each must be a prefix of the whole
 * text; that is checked byte by byte, so a template for which the method is wrong is noticed, not mis-measured.
 */
#include "text/chat/eval.h"
#include <stdlib.h>
#include <string.h>

void chat_spans_release(struct chat_spans *spans)
{
    free(spans->span);
    *spans = (struct chat_spans){0};
}

bool chat_spans_add(struct chat_spans *spans, size_t begin, size_t end)
{
    if (spans->count == spans->cap) {
        size_t cap = spans->cap ? spans->cap * 2 : 8;
        struct chat_span *grown = realloc(spans->span, cap * sizeof *grown);
        if (!grown) return false;
        spans->span = grown;
        spans->cap = cap;
    }
    spans->span[spans->count++] = (struct chat_span){begin, end};
    return true;
}

static bool is_assistant(const struct node *messages, size_t i)
{
    return strcmp(node_string(node_get(node_item(messages, i), "role"), ""), "assistant") == 0;
}

/* Prefixes may take more steps than the whole, all of them together: their number grows with the conversation. */
enum { PREFIX_STEPS = 4 };

struct prefix_job {
    const struct chat_template *tmpl;
    const struct node *messages;
    const char *whole;
    size_t whole_len;
    struct strbuf text;  /* of the prefix; used again and again */
    uint64_t steps_left; /* of all renderings together */
};

/* How long the first `count` messages are. */
static enum plim_status measure(struct prefix_job *job, const struct chat_options *options, size_t count,
                                size_t *len, struct plim_error *err)
{
    struct chat_options bounded = *options;
    uint64_t steps = 0;
    strbuf_clear(&job->text);
    bounded.max_steps = job->steps_left;
    enum plim_status status =
        chat_eval_render(job->tmpl, job->messages, count, &bounded, &job->text, NULL, &steps, err);
    job->steps_left = steps < job->steps_left ? job->steps_left - steps : 1;
    if (status != PLIM_OK) {
        plim_error_prefix(err, "the first %zu messages alone", count);
        return status;
    }
    *len = job->text.len;
    if (*len <= job->whole_len && (*len == 0 || memcmp(job->text.data, job->whole, *len) == 0))
        return PLIM_OK;
    return plim_fail(
        err, PLIM_UNSUPPORTED,
        "%s: the template writes the first %zu messages differently when more follow, so what the "
        "assistant wrote cannot be told; mark it with {%% generation %%} in the template",
        job->tmpl->name, count);
}

static enum plim_status find_spans(struct prefix_job *job, const struct chat_options *options,
                                   struct chat_spans *spans, struct plim_error *err)
{
    struct chat_options before = *options, after = *options;
    before.add_generation_prompt = true;
    after.add_generation_prompt = false;
    size_t count = node_count(job->messages);
    for (size_t i = 0; i < count; i++) {
        size_t begin, end, first = i;
        enum plim_status status;
        if (!is_assistant(job->messages, i)) continue;
        while (i + 1 < count && is_assistant(job->messages, i + 1)) i++;
        if ((status = measure(job, &before, first, &begin, err)) != PLIM_OK) return status;
        if ((status = measure(job, &after, i + 1, &end, err)) != PLIM_OK) return status;
        if (end < begin) end = begin;
        if (!chat_spans_add(spans, begin, end)) return plim_fail(err, PLIM_NO_MEMORY, "out of memory");
    }
    return PLIM_OK;
}

enum plim_status chat_template_render_spans(const struct chat_template *tmpl, const struct node *messages,
                                            const struct chat_options *options, struct strbuf *out,
                                            struct chat_spans *spans, struct plim_error *err)
{
    struct chat_options bounded = options ? *options : (struct chat_options){0};
    size_t base = out->len, span_base = spans->count;
    uint64_t steps = 0;
    if (!bounded.max_steps) bounded.max_steps = CHAT_STEPS;
    if (!bounded.max_bytes) bounded.max_bytes = CHAT_BYTES;
    enum plim_status status = chat_eval_render(tmpl, messages, node_count(messages), &bounded, out,
                                               tmpl->has_generation ? spans : NULL, &steps, err);
    if (status != PLIM_OK || tmpl->has_generation) return status;
    bounded.max_bytes -= out->len - base; /* the whole stays while prefixes are rendered */
    struct prefix_job job = {.tmpl = tmpl,
                             .messages = messages,
                             .whole = strbuf_text(out) + base,
                             .whole_len = out->len - base,
                             .text = STRBUF_INIT,
                             .steps_left = PREFIX_STEPS * bounded.max_steps - steps};
    status = find_spans(&job, &bounded, spans, err);
    strbuf_release(&job.text);
    if (status == PLIM_OK) return PLIM_OK;
    strbuf_truncate(out, base);
    spans->count = span_base;
    return status;
}
