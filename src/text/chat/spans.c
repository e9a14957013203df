/* spans.c - which parts of a rendered conversation the assistant wrote.
 *
 * Without marks in the template the parts are found by rendering prefixes. Each must be a prefix of the whole
 * text; that is checked byte by byte, so a template for which the method is wrong is noticed, not mis-measured.
 *
 * Rendering every prefix is quadratic in the messages. Where turns.h proves that a prefix is the whole up to its last turn,
 * that turn and the tail, only these are rendered; where it does not, or what comes out is not a prefix, the prefix is. */
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

/* In shorter conversations prefixes cost no more than what saves them. */
enum { TURNS_FROM = 8 };

/* The turns of the whole conversation, with a generation prompt or without. */
struct recording {
    bool asked;
    size_t count, begun, *begin; /* see turns.h; count 0: they cannot be used */
    size_t common;               /* bytes in which it is the conversation's text */
};

struct prefix_job {
    const struct chat_template *tmpl;
    const struct node *messages;
    const char *whole;
    size_t whole_len;
    struct strbuf text;  /* of the prefix; used again and again */
    uint64_t steps_left; /* of all renderings together */
    struct bump store;
    struct chat_turns turns; /* item is NULL: prefixes are rendered as a whole */
    struct recording recording[2];
};

static enum plim_status render(struct prefix_job *job, const struct chat_options *options, size_t count,
                               struct chat_turns *turns, struct plim_error *err)
{
    struct chat_options bounded = *options;
    struct chat_talk talk = {job->messages, count, turns};
    uint64_t steps = 0;
    strbuf_clear(&job->text);
    bounded.max_steps = job->steps_left;
    enum plim_status status = chat_eval_render(job->tmpl, &talk, &bounded, &job->text, NULL, &steps, err);
    job->steps_left = steps < job->steps_left ? job->steps_left - steps : 1;
    return status;
}

/* ---- by turns ---- */

/* What a rendering of the whole conversation into `text` has told. */
static void keep_recording(struct prefix_job *job, struct recording *r, const char *text, size_t len)
{
    bool good = !job->turns.odd;
    while (good && r->common < len && r->common < job->whole_len && text[r->common] == job->whole[r->common])
        r->common++;
    r->asked = true;
    r->count = good ? job->turns.count : 0, r->begun = job->turns.begun;
}

static struct recording *recording_of(struct prefix_job *job, const struct chat_options *options)
{
    struct recording *r = &job->recording[options->add_generation_prompt];
    if (r->asked) return r;
    r->asked = true;
    job->turns.begin = r->begin, job->turns.odd = job->turns.last_only = false;
    job->turns.items = node_count(job->messages);
    if (render(job, options, job->turns.items, &job->turns, NULL) == PLIM_OK)
        keep_recording(job, r, strbuf_text(&job->text), job->text.len);
    return r;
}

/* How long the first `count` messages are, from their last turn; false: it does not tell. */
static bool measure_turn(struct prefix_job *job, const struct chat_options *options, size_t count,
                         size_t *len)
{
    struct chat_turns *turns = &job->turns;
    size_t head = 0, messages = node_count(job->messages);
    if (!turns->item) return false;
    const struct recording *r = recording_of(job, options);
    size_t left_out = messages - r->count, n = count - left_out;
    if (!r->count || count < job->tmpl->loop_need || count <= left_out || n > r->begun) return false;
    size_t at = r->begin[n - 1];
    turns->begin = &head, turns->odd = false, turns->last_only = true, turns->items = count;
    if (at > r->common || render(job, options, count, turns, NULL) != PLIM_OK) return false;
    if (turns->odd || turns->count != n || !turns->begun || head != r->begin[0]) return false;
    size_t rest = job->text.len - head;
    const char *text = strbuf_text(&job->text);
    *len = at + rest;
    return *len <= job->whole_len && !memcmp(text, job->whole, head) &&
           !memcmp(text + head, job->whole + at, rest);
}

/* ---- prefixes ---- */

/* How long the first `count` messages are. */
static enum plim_status measure(struct prefix_job *job, const struct chat_options *options, size_t count,
                                size_t *len, struct plim_error *err)
{
    if (measure_turn(job, options, count, len)) return PLIM_OK;
    enum plim_status status = render(job, options, count, NULL, err);
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

/* Where turns tell of prefixes: messages as values that all renderings share, and places for the turns. */
static enum plim_status prepare_turns(struct prefix_job *job, const struct chat_options *options,
                                      struct plim_error *err)
{
    size_t count = node_count(job->messages);
    if (!job->tmpl->loop || count < TURNS_FROM) return PLIM_OK;
    job->turns.loop = job->tmpl->loop;
    enum plim_status status =
        chat_eval_messages(job->tmpl, job->messages, options, &job->store, &job->turns, err);
    for (int i = 0; i < 2 && status == PLIM_OK; i++) {
        struct recording *r = &job->recording[i];
        r->begin = bump_alloc(&job->store, count * sizeof *r->begin);
        if (!r->begin) status = plim_fail(err, PLIM_NO_MEMORY, "out of memory");
        job->turns.used += count * sizeof *r->begin;
    }
    job->turns.begin = job->recording[options->add_generation_prompt].begin;
    return status;
}

enum plim_status chat_template_render_spans(const struct chat_template *tmpl, const struct node *messages,
                                            const struct chat_options *options, struct strbuf *out,
                                            struct chat_spans *spans, struct plim_error *err)
{
    struct chat_options bounded = options ? *options : (struct chat_options){0};
    struct prefix_job job = {.tmpl = tmpl, .messages = messages, .text = STRBUF_INIT};
    size_t base = out->len, span_base = spans->count;
    uint64_t steps = 0;
    if (!bounded.max_steps) bounded.max_steps = CHAT_STEPS;
    if (!bounded.max_bytes) bounded.max_bytes = CHAT_BYTES;
    enum plim_status status = tmpl->has_generation ? PLIM_OK : prepare_turns(&job, &bounded, err);
    struct chat_talk talk = {messages, node_count(messages), job.turns.item ? &job.turns : NULL};
    if (status == PLIM_OK)
        status =
            chat_eval_render(tmpl, &talk, &bounded, out, tmpl->has_generation ? spans : NULL, &steps, err);
    if (status == PLIM_OK && !tmpl->has_generation) {
        bounded.max_bytes -= out->len - base; /* the whole stays while prefixes are rendered */
        job.whole = strbuf_text(out) + base, job.whole_len = out->len - base;
        job.steps_left = PREFIX_STEPS * bounded.max_steps - steps;
        if (talk.turns)
            keep_recording(&job, &job.recording[bounded.add_generation_prompt], job.whole, job.whole_len);
        status = find_spans(&job, &bounded, spans, err);
    }
    strbuf_release(&job.text);
    bump_free(&job.store);
    if (status == PLIM_OK) return PLIM_OK;
    strbuf_truncate(out, base);
    spans->count = span_base;
    return status;
}
