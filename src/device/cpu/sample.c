/* sample.c - the next token of each row of logits (tape/op.h): tensor/sample.h over the call's scratch.
 *
 * One row after the other, each by the whole team: a device whose memory the host reads does without this op. */
#include "device/cpu/kernels.h"
#include "tensor/sample.h"

#include <string.h>

static double number_of(const int32_t *words)
{
    double x;
    memcpy(&x, words, sizeof x);
    return x;
}

size_t cpu_sample_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    int64_t vocab = last_dim(desc[SAMPLE_LOGITS]);
    (void)op, (void)threads;
    return (size_t)(sampler_bytes(vocab) + vocab * (int64_t)sizeof(float));
}

static int32_t sample_row(const struct kernel_call *call, const void *logits, const int32_t *row)
{
    struct sampler s;
    if (row[SAMPLE_MODE] == SAMPLE_NONE) return SAMPLED_NONE;
    float *values = (float *)((char *)call->work + sampler_bytes(row[SAMPLE_VOCAB]));
    dtype_convert(values, DT_F32, logits, call_in(call, SAMPLE_LOGITS)->type, row[SAMPLE_VOCAB]);
    sampler_bind(&s, row[SAMPLE_VOCAB], call->work);
    s.team = call->team;
    s.sampling.top_k = row[SAMPLE_TOP_K];
    if (row[SAMPLE_MODE] == SAMPLE_DRAWN) s.sampling.temperature = number_of(row + SAMPLE_TEMPERATURE);
    s.sampling.top_p = number_of(row + SAMPLE_TOP_P), s.sampling.min_p = number_of(row + SAMPLE_MIN_P);
    return sampler_pick(&s, values, number_of(row + SAMPLE_NUMBER));
}

void cpu_sample(const struct kernel_call *call)
{
    const struct tensor *logits = call_in(call, SAMPLE_LOGITS);
    int64_t vocab = last_dim(logits), rows = tensor_count(logits) / vocab;
    int64_t bytes = vocab * (int64_t)dtype_size(logits->type);
    const int32_t *row = call->in[SAMPLE_ROWS];
    int32_t *token = call->out[SAMPLE_TOKEN], *next = call->out[SAMPLE_NEXT];
    for (int64_t r = 0; r < rows; r++) {
        token[r] =
            sample_row(call, (const char *)call->in[SAMPLE_LOGITS] + r * bytes, row + r * SAMPLE_WORDS);
        if (next) next[r] = token[r] > 0 ? token[r] : 0;
    }
}
