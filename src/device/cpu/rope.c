/* rope.c - rotary positions: the table of cosines and sines once per batch, the rotation once per layer. */
#define _GNU_SOURCE
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rows.h"
#include <math.h>

struct rope_table {
    const int32_t *pos;    /* [R] */
    const float *inv_freq; /* [half] */
    float *table;          /* [R,2*half] */
    int64_t half;
};

/* The angle is one fp32 product, as in the models' own code: positions are trained with that rounding. */
static void table_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct rope_table *t = arg;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        float *row = t->table + r * 2 * t->half;
        for (int64_t i = 0; i < t->half; i++)
            sincosf((float)t->pos[r] * t->inv_freq[i], &row[t->half + i], &row[i]);
    }
}

void cpu_rope_table(const struct kernel_call *call)
{
    struct rope_table t = {call->in[0], call->in[1], call->out[0], tensor_count(call_in(call, 1))};
    threads_each(call->team, tensor_count(call_in(call, 0)), row_grain(32 * t.half), table_body, &t);
}

struct rope {
    const struct row_ops *rows;
    enum dtype type;
    const float *table;  /* [R,D] */
    const void *from[2]; /* q [R,H,D], k [R,K,D] */
    void *to[2];
    int64_t heads[2], dim;
    bool inverse;
};

static void rope_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct rope *p = arg;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        for (int i = 0; i < 2; i++) {
            int64_t at = r * p->heads[i] * p->dim;
            p->rows->rope(p->type, element(p->to[i], p->type, at), element(p->from[i], p->type, at),
                          p->table + r * p->dim, p->heads[i], p->dim / 2, p->inverse);
        }
    }
}

void cpu_rope(const struct kernel_call *call)
{
    const struct tensor *q = call_in(call, 0), *k = call_in(call, 1);
    struct rope p = {
        .rows = row_ops(),
        .type = q->type,
        .table = call->in[2],
        .from = {call->in[0], call->in[1]},
        .to = {call->out[0], call->out[1]},
        .heads = {q->dim[2], k->dim[2]},
        .dim = q->dim[3],
        .inverse = call->op->attr.inverse,
    };
    int64_t width = (p.heads[0] + p.heads[1]) * p.dim;
    threads_each(call->team, q->dim[0] * q->dim[1], row_grain(width), rope_body, &p);
}
