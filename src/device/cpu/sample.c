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

static double number_of(const int32_t *words)
{
    double x;
    memcpy(&x, words, sizeof x);
    return x;
}

static size_t cpu_sample_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    int64_t vocab = last_dim(desc[SAMPLE_LOGITS]);
    (void)op, (void)threads;
    return (size_t)(sampler_bytes(vocab) + vocab * (int64_t)sizeof(float));
}

/* Over values[vocab], which penalties change. */
static int32_t choose(const struct kernel_call *call, const int32_t *row, float *values)
{
    struct sampler s;
    if (row[SAMPLE_MODE] == SAMPLE_NONE) return SAMPLED_NONE;
    if (row[SAMPLE_MODE] == SAMPLE_AS_GIVEN) return row[SAMPLE_GIVEN];
    sampler_bind(&s, row[SAMPLE_VOCAB], call->work);
    s.team = call->team;
    s.sampling = (struct sampling){.top_k = row[SAMPLE_TOP_K],
                                   .top_p = number_of(row + SAMPLE_TOP_P),
                                   .min_p = number_of(row + SAMPLE_MIN_P),
                                   .repetition_penalty = number_of(row + SAMPLE_REPETITION),
                                   .presence_penalty = number_of(row + SAMPLE_PRESENCE),
                                   .frequency_penalty = number_of(row + SAMPLE_FREQUENCY)};
    if (row[SAMPLE_MODE] == SAMPLE_DRAWN) s.sampling.temperature = number_of(row + SAMPLE_TEMPERATURE);
    if (row[SAMPLE_SEEN_COUNT])
        sampling_penalise(&s.sampling,
                          (const struct seen_token *)call->in[SAMPLE_SEEN] + row[SAMPLE_SEEN_FIRST],
                          row[SAMPLE_SEEN_COUNT], values, row[SAMPLE_VOCAB]);
    return sampler_pick(&s, values, number_of(row + SAMPLE_NUMBER));
}

/* The row's part of top and logprob; `values` are the logits as they came in. */
static void tell(const struct kernel_call *call, int64_t r, const int32_t *row, int32_t token,
                 const float *values)
{
    int64_t most = last_dim(call_out(call, SAMPLE_TOP)), vocab = row[SAMPLE_VOCAB];
    int32_t *top = (int32_t *)call->out[SAMPLE_TOP] + r * most;
    float *logprob = (float *)call->out[SAMPLE_LOGPROB] + r * (most + 1);
    struct likely found[TOP_MOST];
    memset(top, 0, (size_t)most * sizeof *top);
    memset(logprob, 0, (size_t)(most + 1) * sizeof *logprob);
    if (token < 0 || !row[SAMPLE_WANTED]) return;
    double norm = likely_norm(values, vocab);
    logprob[0] = token < vocab ? (float)((double)values[token] - norm) : -INFINITY;
    int n = likely_top(values, vocab, row[SAMPLE_WANTED] - 1, found);
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
        const int32_t *row = (const int32_t *)call->in[SAMPLE_ROWS] + r * SAMPLE_WORDS;
        const char *from = (const char *)call->in[SAMPLE_LOGITS] + r * bytes;
        dtype_convert(values, DT_F32, from, logits->type, row[SAMPLE_VOCAB]);
        token[r] = choose(call, row, values);
        if (next) next[r] = token[r] > 0 ? token[r] : 0;
        if (!call->out[SAMPLE_TOP]) continue;
        if (row[SAMPLE_SEEN_COUNT]) dtype_convert(values, DT_F32, from, logits->type, row[SAMPLE_VOCAB]);
        tell(call, r, row, token[r], values);
    }
}

CPU_KERNEL(sample, cpu_sample_workspace);
