/* sample.c - the next token of each row of logits, and how likely it is (tape/op.h): tensor/sample.h and tensor/likely.h over
 * the call's scratch.
 *
 * One row after the other, each by the whole team: a device whose memory the host reads does without this op. */
#include "device/cpu/kernels.h"
#include "tensor/likely.h"
#include "tensor/sample.h"

#include <math.h>
#include <string.h>

enum { TOP_MOST = 64 }; /* likeliest that are told */

static size_t cpu_sample_workspace(const struct tensor *const *desc, const struct op *, int)
{
    int64_t vocab = last_dim(desc[SAMPLE_LOGITS]);
    return (size_t)(sampler_bytes(vocab) + vocab * (int64_t)sizeof(float));
}

/* Over values[vocab], which penalties change. */
static int32_t choose(const struct kernel_call *call, const struct sample_row *row, float *values)
{
    struct sampler s;
    if (row->mode == SAMPLE_NONE) return SAMPLED_NONE;
    if (row->mode == SAMPLE_AS_GIVEN) return row->given;
    sampler_bind(&s, row->vocab, call->work);
    s.team = call->team;
    s.sampling = (struct sampling){.top_k = row->top_k,
                                   .top_p = sample_double(row->top_p),
                                   .min_p = sample_double(row->min_p),
                                   .repetition_penalty = sample_double(row->repetition),
                                   .presence_penalty = sample_double(row->presence),
                                   .frequency_penalty = sample_double(row->frequency)};
    if (row->mode == SAMPLE_DRAWN) s.sampling.temperature = sample_double(row->temperature);
    if (row->seen_count)
        sampling_penalise(&s.sampling, (const struct seen_token *)call->in[SAMPLE_SEEN] + row->seen_first,
                          row->seen_count, values, row->vocab);
    return sampler_pick(&s, values, sample_double(row->number));
}

/* The row's part of top and logprob; `values` are the logits as they came in. */
static void tell(const struct kernel_call *call, int64_t r, const struct sample_row *row, int32_t token,
                 const float *values)
{
    int64_t most = last_dim(call_out(call, SAMPLE_TOP)), vocab = row->vocab;
    int32_t *top = (int32_t *)call->out[SAMPLE_TOP] + r * most;
    float *logprob = (float *)call->out[SAMPLE_LOGPROB] + r * (most + 1);
    struct likely found[TOP_MOST];
    memset(top, 0, (size_t)most * sizeof *top);
    memset(logprob, 0, (size_t)(most + 1) * sizeof *logprob);
    if (token < 0 || !row->wanted) return;
    double norm = likely_norm(values, vocab);
    logprob[0] = token < vocab ? (float)((double)values[token] - norm) : -INFINITY;
    int n = likely_top(values, vocab, row->wanted - 1, found);
    for (int i = 0; i < n; i++)
        top[i] = found[i].token, logprob[1 + i] = (float)((double)found[i].logit - norm);
}

void cpu_sample(const struct kernel_call *call)
{
    const struct tensor *logits = call_in(call, SAMPLE_LOGITS);
    int64_t vocab = last_dim(logits), rows = tensor_count(logits) / vocab;
    int64_t bytes = vocab * (int64_t)dtype_size(logits->type);
    int32_t *token = call->out[SAMPLE_TOKEN], *next = call->out[SAMPLE_NEXT];
    float *values = (float *)((char *)call->work + sampler_bytes(vocab));
    for (int64_t r = 0; r < rows; r++) {
        const struct sample_row *row = (const struct sample_row *)call->in[SAMPLE_ROWS] + r;
        const char *from = (const char *)call->in[SAMPLE_LOGITS] + r * bytes;
        dtype_convert(values, DT_F32, from, logits->type, row->vocab);
        token[r] = choose(call, row, values);
        if (next) next[r] = token[r] > 0 ? token[r] : 0;
        if (!call->out[SAMPLE_TOP]) continue;
        if (row->seen_count) dtype_convert(values, DT_F32, from, logits->type, row->vocab);
        tell(call, r, row, token[r], values);
    }
}

CPU_KERNEL(sample, cpu_sample_workspace);
