/* rope.c - rotary positions: the table of cosines and sines once per batch; the rotation once per layer, on the way
 * from joint rows of queries, keys and values to three tensors. */
#define _GNU_SOURCE
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rows.h"
#include <math.h>
#include <string.h>

/* The angle is one fp32 product, as in the models' own code: positions are trained with that rounding. */
static void table_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    const int32_t *pos = call->in[ROPE_TABLE_POS];
    const float *inv_freq = call->in[ROPE_TABLE_INV_FREQ];
    int64_t half = tensor_count(call_in(call, ROPE_TABLE_INV_FREQ));
    float scale = call->op->attr.scale; /* of cosines and sines, 0: none */
    for (int64_t r = begin; r < end; r++) {
        float *row = (float *)call->out[ROPE_TABLE_TABLE] + r * 2 * half;
        for (int64_t i = 0; i < half; i++) sincosf((float)pos[r] * inv_freq[i], &row[half + i], &row[i]);
        for (int64_t i = 0; scale != 0 && scale != 1 && i < 2 * half; i++) row[i] *= scale;
    }
}

void cpu_rope_table(const struct kernel_call *call)
{
    call_each(call, tensor_count(call_in(call, ROPE_TABLE_POS)),
              row_grain(32 * tensor_count(call_in(call, ROPE_TABLE_INV_FREQ))), table_body);
}

static void rope_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    const struct tensor *x = call_in(call, ROPE_X);
    struct row_heads heads = {x->dim[2], x->dim[3], call_in(call, ROPE_TABLE)->dim[2]};
    for (int64_t r = begin; r < end; r++) {
        int64_t at = r * heads.count * heads.size;
        row_ops()->rope(x->type, out_at(call, ROPE_Y, at), in_at(call, ROPE_X, at),
                        (const float *)call->in[ROPE_TABLE] + r * heads.turned, heads, call->op->attr.back);
    }
}

void cpu_rope(const struct kernel_call *call)
{
    const struct tensor *x = call_in(call, ROPE_X);
    call_each(call, x->dim[0] * x->dim[1], row_grain(x->dim[2] * x->dim[3]), rope_body);
}

/* Rows of queries, keys and values against three tensors. Heads lie one after the other on both sides. */
struct parts {
    const struct row_ops *rows;
    enum dtype type;
    const float *table; /* [R,E], NULL: nothing is rotated */
    char *whole, *part[3];
    int64_t heads[3], dim, turned;
    bool join;
};

static void parts_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct parts *p = arg;
    int64_t all = p->heads[0] + p->heads[1] + p->heads[2];
    for (int64_t r = begin; r < end; r++) {
        char *whole = element(p->whole, p->type, r * all * p->dim);
        for (int i = 0; i < 3; i++) {
            int64_t width = p->heads[i] * p->dim;
            char *part = element(p->part[i], p->type, r * width), *to = p->join ? whole : part;
            const char *from = p->join ? part : whole;
            size_t bytes = (size_t)width * dtype_size(p->type);
            if (p->table && i < 2)
                p->rows->rope(p->type, to, from, p->table + r * p->turned,
                              (struct row_heads){p->heads[i], p->dim, p->turned}, p->join);
            else
                memcpy(to, from, bytes);
            whole += bytes;
        }
    }
}

static void run(const struct kernel_call *call, const struct tensor *q, const struct tensor *k,
                struct parts p)
{
    p.rows = row_ops(), p.type = q->type, p.dim = q->dim[3];
    p.heads[0] = q->dim[2], p.heads[1] = p.heads[2] = k->dim[2];
    int64_t width = (p.heads[0] + 2 * p.heads[1]) * p.dim;
    threads_each(call->team, q->dim[0] * q->dim[1], row_grain(width), parts_body, &p);
}

void cpu_split3(const struct kernel_call *call)
{
    run(call, call_out(call, SPLIT3_Q), call_out(call, SPLIT3_K),
        (struct parts){.table = call->in[SPLIT3_TABLE],
                       .turned = call->in[SPLIT3_TABLE] ? call_in(call, SPLIT3_TABLE)->dim[2] : 0,
                       .whole = call->in[SPLIT3_X],
                       .part = {call->out[SPLIT3_Q], call->out[SPLIT3_K], call->out[SPLIT3_V]}});
}

void cpu_join3(const struct kernel_call *call)
{
    run(call, call_in(call, JOIN3_Q), call_in(call, JOIN3_K),
        (struct parts){.table = call->in[JOIN3_TABLE],
                       .turned = call->in[JOIN3_TABLE] ? call_in(call, JOIN3_TABLE)->dim[2] : 0,
                       .whole = call->out[JOIN3_X],
                       .part = {call->in[JOIN3_Q], call->in[JOIN3_K], call->in[JOIN3_V]},
                       .join = true});
}

CPU_KERNEL(rope_table, NULL);
CPU_KERNEL(rope, NULL);
CPU_KERNEL(split3, NULL);
CPU_KERNEL(join3, NULL);
