/* spans.c - which parts of a rendered conversation the assistant wrote.
 *
 * Without marks in the template the parts are found by rendering prefixes. Each must be a prefix of the whole
 * text; that is checked byte by byte, so a template for which the method is wrong is noticed, not mis-measured.
 *
 * Rendering every prefix is quadratic in the messages. Where turns.h proves that a prefix is the whole up to its last turn,
 * that turn and the tail, only these are rendered; where it does not, the prefix is.
 *
 * Some templates write a turn differently once others follow: Qwen3's drops earlier thoughts. What such a turn looks like in the
 * whole text is found by rendering the whole once more with marks for the contents of such turns: the text that a mark
 * stands for is a content. What closes the turn (<|im_end|>) is what follows the mark where that message is the last. */
#define _GNU_SOURCE /* memmem, memrchr */
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
    const struct node *marked; /* the messages with marks */
    bool *wanted;              /* by message: one that a mark is to find; NULL: none */
    struct chat_span *content; /* likewise, in the whole */
    char *closing;             /* what closed the turn before that was found by its mark */
    size_t closing_len;
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

/* Keeps the marks recorded while the whole conversation was rendered into `text`. */
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

enum told { NOT_TOLD, TOLD, NO_PREFIX };

/* How long the first `count` messages are, from their last turn. */
static enum told measure_turn(struct prefix_job *job, const struct chat_options *options, size_t count,
                              size_t *len)
{
    struct chat_turns *turns = &job->turns;
    size_t head = 0, messages = node_count(job->messages);
    if (!turns->item) return NOT_TOLD;
    const struct recording *r = recording_of(job, options);
    size_t left_out = messages - r->count, n = count - left_out;
    if (!r->count || count < job->tmpl->loop_need || count <= left_out || n > r->begun) return NOT_TOLD;
    size_t at = r->begin[n - 1];
    turns->begin = &head, turns->odd = false, turns->last_only = true, turns->items = count;
    if (at > r->common || render(job, options, count, turns, NULL) != PLIM_OK) return NOT_TOLD;
    if (turns->odd || turns->count != n || !turns->begun || head != r->begin[0]) return NOT_TOLD;
    size_t rest = job->text.len - head;
    const char *text = strbuf_text(&job->text);
    *len = at + rest;
    bool same = *len <= job->whole_len && !memcmp(text, job->whole, head) &&
                !memcmp(text + head, job->whole + at, rest);
    return same ? TOLD : NO_PREFIX;
}

/* ---- prefixes ---- */

/* How long the first `count` messages are. */
static enum plim_status measure(struct prefix_job *job, const struct chat_options *options, size_t count,
                                size_t *len, struct plim_error *err)
{
    enum told told = measure_turn(job, options, count, len);
    if (told == TOLD) return PLIM_OK;
    enum plim_status status = told == NO_PREFIX ? PLIM_OK : render(job, options, count, NULL, err);
    if (status != PLIM_OK) {
        plim_error_prefix(err, "the first %zu messages alone", count);
        return status;
    }
    if (told == NOT_TOLD) *len = job->text.len;
    if (told == NOT_TOLD && *len <= job->whole_len &&
        (*len == 0 || memcmp(job->text.data, job->whole, *len) == 0))
        return PLIM_OK;
    return plim_fail(
        err, PLIM_UNSUPPORTED,
        "%s: the template writes the first %zu messages differently when more follow, so what the "
        "assistant wrote cannot be told; mark it with {%% generation %%} in the template",
        job->tmpl->name, count);
}

/* ---- by marks ---- */

enum { MARK = 0x1a }; /* a byte of no text that is no white space: templates that strip leave it */

/* Has the message a text that a mark can stand for? */
static bool has_content(const struct node *messages, size_t i)
{
    const struct node *content = node_get(node_item(messages, i), "content");
    return content && content->kind == NODE_STRING && content->as.string.len;
}

/* The messages with a mark as the content of each that job->wanted names. NULL: no memory. */
static const struct node *mark_messages(struct prefix_job *job)
{
    static const char mark[] = {MARK, 0};
    const struct node *all = job->messages;
    size_t count = node_count(all);
    struct node *list = bump_alloc(&job->store, sizeof *list),
                *items = bump_alloc(&job->store, (count + 1) * sizeof *items);
    if (!list || !items) return NULL;
    *list = *all;
    memcpy(items, all->as.list.items, count * sizeof *items);
    list->as.list.items = items;
    for (size_t i = 0; i < count; i++) {
        if (!job->wanted[i]) continue;
        size_t members = node_count(&items[i]);
        struct node *parts = bump_alloc(&job->store, members * sizeof *parts);
        if (!parts) return NULL;
        memcpy(parts, items[i].as.list.items, members * sizeof *parts);
        struct node *content = parts + (node_get(&items[i], "content") - items[i].as.list.items);
        content->as.string.text = mark, content->as.string.len = 1;
        items[i].as.list.items = parts;
    }
    return list;
}

/* The first `count` messages with marks, in job->text. */
static bool render_marked(struct prefix_job *job, const struct chat_options *options, size_t count)
{
    const struct node *messages = job->messages;
    job->messages = job->marked;
    bool good = render(job, options, count, NULL, NULL) == PLIM_OK;
    job->messages = messages;
    return good;
}

/* Where the text between marks is in the whole, from the left: each part at its first place behind the one before. What lies
 * between two parts is a content. */
static bool place_parts(struct prefix_job *job, size_t *place, size_t nmarks)
{
    const char *part = strbuf_text(&job->text), *end = part + job->text.len, *at = job->whole,
               *last = job->whole + job->whole_len;
    for (size_t i = 0; i <= nmarks; i++) {
        const char *stop = memchr(part, MARK, (size_t)(end - part));
        if (!stop) stop = end;
        size_t len = (size_t)(stop - part);
        if ((size_t)(last - at) < len) return false;
        const char *found = i == 0        ? at
                            : i == nmarks ? last - len
                            : len         ? memmem(at, (size_t)(last - at), part, len)
                                          : NULL;
        if (!found || memcmp(found, part, len)) return false;
        place[2 * i] = (size_t)(found - job->whole), place[2 * i + 1] = place[2 * i] + len;
        at = found + len, part = stop + 1;
    }
    return true;
}

/* A part that stands again in the content before it could be meant there as well: then nothing is told. */
static bool is_only_place(const struct prefix_job *job, const size_t *place, size_t nmarks)
{
    for (size_t i = 1; i < nmarks; i++) {
        const char *part = job->whole + place[2 * i];
        size_t len = place[2 * i + 1] - place[2 * i], next = place[2 * i + 2];
        const char *from = part + 1, *to = job->whole + next;
        if ((size_t)(to - from) >= len && memmem(from, (size_t)(to - from), part, len)) return false;
    }
    return true;
}

/* The contents of the wanted messages in the whole text, job->content by message; false: they cannot be told. */
static bool find_contents(struct prefix_job *job, const struct chat_options *options)
{
    size_t count = node_count(job->messages), nmarks = 0, made = 0, k = 0;
    job->marked = mark_messages(job);
    if (!job->marked || memchr(job->whole, MARK, job->whole_len) || !render_marked(job, options, count))
        return false;
    for (size_t i = 0; i < count; i++) nmarks += job->wanted[i];
    for (size_t i = 0; i < job->text.len; i++) made += job->text.data[i] == MARK;
    size_t *place = bump_alloc(&job->store, 2 * (nmarks + 1) * sizeof *place);
    struct chat_span *content = bump_alloc(&job->store, (count + 1) * sizeof *content);
    if (!place || !content || !nmarks || made != nmarks || !place_parts(job, place, nmarks) ||
        !is_only_place(job, place, nmarks))
        return false;
    for (size_t i = 0; i < count; i++)
        if (job->wanted[i]) content[i] = (struct chat_span){place[2 * k + 1], place[2 * k + 2]}, k++;
    job->content = content;
    return true;
}

static bool closes(const struct prefix_job *job, size_t end)
{
    return job->closing_len && job->whole_len - end >= job->closing_len &&
           !memcmp(job->whole + end, job->closing, job->closing_len);
}

/* Finds the text after the last mark when message `last` ends the conversation. */
static void find_closing(struct prefix_job *job, const struct chat_options *options, size_t last)
{
    struct chat_options after = *options;
    after.add_generation_prompt = false;
    if (!render_marked(job, &after, last + 1)) return;
    const char *text = strbuf_text(&job->text), *mark = memrchr(text, MARK, job->text.len);
    if (!mark) return;
    size_t len = job->text.len - (size_t)(mark + 1 - text);
    char *copy = bump_copy(&job->store, mark + 1, len);
    if (copy) job->closing = copy, job->closing_len = len;
}

/* Remembers that messages [first, last] are to be found by their contents; false: they have none. */
static bool want_marks(struct prefix_job *job, size_t first, size_t last)
{
    size_t count = node_count(job->messages);
    if (!has_content(job->messages, first) || !has_content(job->messages, last)) return false;
    if (!job->wanted) job->wanted = bump_alloc(&job->store, count);
    if (!job->wanted) return false;
    job->wanted[first] = job->wanted[last] = true;
    return true;
}

/* The span of messages [first, last], whose contents are known. */
static struct chat_span span_by_marks(struct prefix_job *job, const struct chat_options *options,
                                      size_t first, size_t last)
{
    struct chat_span span = {job->content[first].begin, job->content[last].end};
    if (!closes(job, span.end)) find_closing(job, options, last);
    if (closes(job, span.end)) span.end += job->closing_len;
    return span;
}

/* The end of the run of the assistant's messages that begins with number i. */
static size_t run_end(const struct node *messages, size_t i)
{
    while (i + 1 < node_count(messages) && is_assistant(messages, i + 1)) i++;
    return i;
}

/* Spans of turns that no prefix told, in their places among the others. */
static enum plim_status add_marked(struct prefix_job *job, const struct chat_options *options,
                                   struct chat_span *span, struct plim_error *err)
{
    if (!job->wanted) return PLIM_OK;
    if (!find_contents(job, options)) return err->status;
    *err = (struct plim_error){0};
    for (size_t i = 0; i < node_count(job->messages); i++) {
        if (!is_assistant(job->messages, i)) continue;
        size_t first = i;
        i = run_end(job->messages, i);
        if (job->wanted[first]) *span = span_by_marks(job, options, first, i);
        span++;
    }
    return PLIM_OK;
}

static enum plim_status find_spans(struct prefix_job *job, const struct chat_options *options,
                                   struct chat_spans *spans, struct plim_error *err)
{
    struct chat_options before = *options, after = *options;
    struct plim_error why = {0};
    size_t count = node_count(job->messages), base = spans->count, last = count;
    while (last && !is_assistant(job->messages, last - 1)) last--;
    last -= last > 0; /* where one turn is no prefix, others before the last are none: they are not tried */
    before.add_generation_prompt = true;
    after.add_generation_prompt = false;
    for (size_t i = 0; i < count; i++) {
        size_t begin = 0, end = 0, first = i;
        if (!is_assistant(job->messages, i)) continue;
        i = run_end(job->messages, i);
        struct plim_error now = {0};
        enum plim_status status =
            job->wanted && i < last ? PLIM_UNSUPPORTED : measure(job, &before, first, &begin, &now);
        if (status == PLIM_OK) status = measure(job, &after, i + 1, &end, &now);
        if (!why.status) why = now;
        if (status == PLIM_UNSUPPORTED && want_marks(job, first, i)) status = PLIM_OK, begin = end = 0;
        if (status != PLIM_OK) return *err = why, status;
        if (end < begin) end = begin;
        if (!chat_spans_add(spans, begin, end)) return plim_fail(err, PLIM_NO_MEMORY, "out of memory");
    }
    enum plim_status status =
        spans->count > base ? add_marked(job, options, spans->span + base, &why) : PLIM_OK;
    return status == PLIM_OK ? PLIM_OK : (*err = why, status);
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
