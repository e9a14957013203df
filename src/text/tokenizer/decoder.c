/* decoder.c - tokens back to text, one after the other, through a chain of steps.
 *
 * Invariants: what has been put into `out` never changes whatever tokens follow; after decoder_end it is everything.
 * No step puts more than decoder_left allows, so a file cannot make a text grow without bound.
 */
#include "text/tokenizer/decoder_part.h"
#include <stdlib.h>
#include <string.h>

#define TIMES 3
#define MORE  ((size_t)1 << 20)

size_t decoder_most(size_t fed) { return fed > (SIZE_MAX - MORE) / TIMES ? SIZE_MAX : TIMES * fed + MORE; }

size_t decoder_left(const struct token_decoding *flow, size_t step)
{
    return decoder_most(flow->fed) - flow->state[step].passed;
}

/* Is it within what the step before may pass on? */
static bool allowed(struct token_decoding *flow, size_t step, size_t len)
{
    if (step == 0) return true;
    if (len > decoder_left(flow, step - 1)) flow->failed = flow->full = true;
    if (!flow->failed) flow->state[step - 1].passed += len;
    return !flow->failed;
}

void decoder_put(struct token_decoding *flow, size_t step, const char *bytes, size_t len)
{
    if (!len || flow->failed || !allowed(flow, step, len)) return;
    if (step == flow->decoder->count) {
        strbuf_addn(flow->out, bytes, len);
        return;
    }
    const struct decoder_kind *kind = flow->decoder->step[step].kind;
    struct strbuf *item = &flow->state[step].item;
    if (kind->put)
        kind->put(flow, step, bytes, len);
    else
        strbuf_addn(item, bytes, len);
    flow->failed |= item->failed;
}

void decoder_close(struct token_decoding *flow, size_t step)
{
    if (step == flow->decoder->count || flow->failed) return;
    struct decoder_state *state = &flow->state[step];
    flow->decoder->step[step].kind->close(flow, step);
    strbuf_truncate(&state->item, 0);
    state->count++;
}

void decoder_end(struct token_decoding *flow, size_t step)
{
    for (; step < flow->decoder->count && !flow->failed; step++)
        if (flow->decoder->step[step].kind->end) flow->decoder->step[step].kind->end(flow, step);
}

/* --- the interface ---------------------------------------------------------------------------------------- */

/* Without a decoder tokens are joined by blanks; `fed` tells the first one. */
static void add_joined(struct token_decoding *flow, struct token_bytes token, struct strbuf *out)
{
    if (flow->fed) strbuf_addc(out, ' ');
    strbuf_addn(out, token.text, token.len);
    flow->fed += token.len + 1;
}

enum plim_status token_decoding_open(const struct token_decoder *decoder, struct token_decoding **out,
                                     struct plim_error *err)
{
    struct token_decoding *flow = calloc(1, sizeof *flow);
    size_t steps = decoder ? decoder->count : 0;
    *out = NULL;
    if (flow)
        *flow = (struct token_decoding){.decoder = decoder, .state = calloc(steps + 1, sizeof *flow->state)};
    if (!flow || !flow->state) {
        free(flow);
        return plim_fail(err, PLIM_NO_MEMORY, "no memory for a decoder");
    }
    *out = flow;
    return PLIM_OK;
}

void token_decoding_close(struct token_decoding *flow)
{
    if (!flow) return;
    for (size_t i = 0; flow->decoder && i < flow->decoder->count; i++) {
        strbuf_release(&flow->state[i].item);
        strbuf_release(&flow->state[i].held);
    }
    for (int i = 0; i < 2; i++) strbuf_release(&flow->spare[i]);
    free(flow->state);
    free(flow);
}

static enum plim_status status_of(const struct token_decoding *flow, const struct strbuf *out,
                                  struct plim_error *err)
{
    if (flow->full)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "the decoder makes more than %zu bytes of %zu, the most it may: %d times as many and %zu",
            TIMES * flow->fed + MORE, flow->fed, TIMES, MORE);
    if (flow->failed) return plim_fail(err, PLIM_NO_MEMORY, "no memory to decode tokens");
    return strbuf_status(out, err);
}

enum plim_status token_decoding_add(struct token_decoding *flow, struct token_bytes token, struct strbuf *out,
                                    struct plim_error *err)
{
    if (!flow->decoder) {
        add_joined(flow, token, out);
        return strbuf_status(out, err);
    }
    flow->out = out;
    flow->fed += token.len + 1;
    decoder_put(flow, 0, token.text, token.len);
    decoder_close(flow, 0);
    return status_of(flow, out, err);
}

enum plim_status token_decoding_end(struct token_decoding *flow, struct strbuf *out, struct plim_error *err)
{
    if (!flow->decoder) return strbuf_status(out, err);
    flow->out = out;
    decoder_end(flow, 0);
    return status_of(flow, out, err);
}

bool token_decoding_holds(const struct token_decoding *flow)
{
    for (size_t i = 0; flow->decoder && i < flow->decoder->count; i++) {
        const struct decoder_state *state = &flow->state[i];
        if (state->item.len || state->held.len || state->waits) return true;
    }
    return false;
}

enum plim_status token_decoding_tail(const struct token_decoding *flow, struct strbuf *out,
                                     struct plim_error *err)
{
    struct token_decoding *copy;
    if (!flow->decoder) return PLIM_OK;
    enum plim_status status = token_decoding_open(flow->decoder, &copy, err);
    if (status != PLIM_OK) return status;
    copy->fed = flow->fed;
    for (size_t i = 0; i < flow->decoder->count; i++) {
        const struct decoder_state *from = &flow->state[i];
        copy->state[i] = *from;
        copy->state[i].item = copy->state[i].held = (struct strbuf)STRBUF_INIT;
        strbuf_addn(&copy->state[i].item, from->item.data, from->item.len);
        strbuf_addn(&copy->state[i].held, from->held.data, from->held.len);
        copy->failed |= copy->state[i].item.failed || copy->state[i].held.failed;
    }
    status = token_decoding_end(copy, out, err);
    token_decoding_close(copy);
    return status;
}
