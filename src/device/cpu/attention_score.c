/* attention_score.c - see attention_score.h. */
#include "device/cpu/attention_score.h"
#include "tape/bias_bucket.h"

size_t attn_lines_bytes(const struct attn *a)
{
    return a->biased ? (size_t)attn_up(a->heads * attn_span(a) * 4, 64) : 0;
}

struct fill {
    const struct attn *a;
    struct bias_buckets buckets;
    const void *bias; /* [R,H] */
    enum dtype type;
    float *lines;
};

static void fill_heads(void *arg, int64_t begin, int64_t end, int)
{
    const struct fill *f = arg;
    const struct attn *a = f->a;
    int64_t span = attn_span(a);
    for (int64_t i = 0; i < span; i++) {
        int64_t at = bias_bucket(&f->buckets, a->keys - 1 - i) * a->heads;
        for (int64_t h = begin; h < end; h++)
            dtype_convert(&f->lines[h * span + i], DT_F32, attn_at(a, f->bias, at + h), f->type, 1);
    }
}

void attn_lines_fill(const struct attn *a, float *lines, const struct kernel_call *call, int bias_slot)
{
    if (!a->biased) return;
    const struct tensor *bias = call_in(call, bias_slot);
    struct fill f = {a, bias_buckets(bias->dim[0], &call->op->attr), call->in[bias_slot], bias->type, lines};
    threads_each(call->team, a->heads, 1, fill_heads, &f);
}

static int64_t head_of(const struct attn_lanes *l, int line)
{
    return l->head + (l->row + attn_least(line, l->lines - 1)) % l->group;
}

void attn_score_panel(const struct attn *a, const struct attn_score *s, const struct attn_panel *p,
                      const struct attn_lanes *lanes, int64_t key, struct attn_cut cut, float *scores,
                      float *slope)
{
    const float *bias[GEMM_MAX_NR];
    for (int i = 0; a->biased && i < a->kernel->nr; i++)
        bias[i] = s->lines + head_of(lanes, i) * attn_span(a) + p->query[i] + a->keys - 1 - key;
    struct attn_modify m = {.score = scores,
                            .slope = slope,
                            .width = a->kernel->nr,
                            .from = cut.from,
                            .end = cut.end,
                            .scale = a->scale,
                            .cap = a->cap,
                            .bias = a->biased ? bias : NULL};
    a->rows->modify(&m);
}

void attn_keep_panel(const struct attn *a, const struct attn_score *s, const struct attn_panel *p,
                     const struct attn_lanes *lanes, int64_t key, struct attn_cut cut, float *keep)
{
    uint32_t line[GEMM_MAX_NR], row = dropout_row(&s->drop, lanes->b);
    for (int i = 0; i < a->kernel->nr; i++) line[i] = dropout_line(row, head_of(lanes, i), p->query[i]);
    struct attn_drop d = {.keep = keep,
                          .width = a->kernel->nr,
                          .from = cut.from,
                          .end = cut.end,
                          .line = line,
                          .key = (uint32_t)key,
                          .below = s->drop.below,
                          .scale = s->drop.scale};
    a->rows->drop(&d);
}

/* ---- gradient of the bias -------------------------------------------------------------------- */

size_t attn_grad_lines_bytes(const struct attn *a)
{
    int64_t blocks = (a->time + a->block - 1) / a->block;
    return a->biased ? (size_t)attn_up(a->batch * a->heads * blocks * attn_grad_span(a) * 4, 64) : 0;
}

void attn_grad_panel(const struct attn *a, const struct attn_panel *p, int64_t first, int64_t key,
                     struct attn_cut cut, const float *ds, float *line)
{
    float *to[GEMM_MAX_NR];
    for (int i = 0; i < a->kernel->nr; i++) to[i] = line + (p->query[i] - first) + a->keys - 1 - key;
    a->rows->scatter(to, ds, a->kernel->nr, cut.from, cut.end);
}

struct sum {
    const struct attn *a;
    struct bias_buckets buckets;
    const float *lines;
    void *grad; /* [R,H] */
    enum dtype type;
    int64_t rows;
    bool accumulate;
};

/* Sums the contribution of batch row b to each bucket of head h. */
static void sum_row(const struct sum *s, int64_t b, int64_t h, double *sums)
{
    const struct attn *a = s->a;
    for (int64_t block = 0; block * a->block < a->time; block++) {
        const float *line = attn_grad_line(a, (float *)(uintptr_t)s->lines, b, h, block);
        for (int64_t i = 0; i < attn_grad_span(a); i++)
            sums[bias_bucket(&s->buckets, a->keys - 1 - i - block * a->block)] += (double)line[i];
    }
}

/* Each row of the batch is rounded into the gradient by itself, in order: how rows are cut into micro-batches leaves no
 * trace in f32. */
static void sum_heads(void *arg, int64_t begin, int64_t end, int)
{
    const struct sum *s = arg;
    const struct attn *a = s->a;
    for (int64_t h = begin; h < end; h++) {
        float all[BIAS_MAX_BUCKETS] = {0};
        for (int64_t r = 0; r < s->rows && s->accumulate; r++)
            dtype_convert(&all[r], DT_F32,
                          (const char *)s->grad + (r * a->heads + h) * (int64_t)dtype_size(s->type), s->type,
                          1);
        for (int64_t b = 0; b < a->batch; b++) {
            double sums[BIAS_MAX_BUCKETS] = {0};
            sum_row(s, b, h, sums);
            for (int64_t r = 0; r < s->rows; r++) all[r] += (float)sums[r];
        }
        for (int64_t r = 0; r < s->rows; r++)
            dtype_convert((char *)s->grad + (r * a->heads + h) * (int64_t)dtype_size(s->type), s->type,
                          &all[r], DT_F32, 1);
    }
}

void attn_grad_lines_add(const struct attn *a, const float *lines, const struct kernel_call *call)
{
    if (!a->biased || !call->out[ATTN_BWD_DBIAS]) return;
    const struct tensor *grad = call_out(call, ATTN_BWD_DBIAS);
    struct sum s = {.a = a,
                    .buckets = bias_buckets(grad->dim[0], &call->op->attr),
                    .lines = lines,
                    .grad = call->out[ATTN_BWD_DBIAS],
                    .type = grad->type,
                    .rows = grad->dim[0],
                    .accumulate = call->accumulate};
    threads_each(call->team, a->heads, 1, sum_heads, &s);
}
