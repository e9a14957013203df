/* optimizer.c - the update part of a step: global norm, clipping, AdamW, SGD.
 *
 * Scalars that the formulas share are worked out in fp64 once per call. A step that clip has found not finite
 * changes nothing. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rows.h"
#include <math.h>
#include <string.h>

enum { SUMSQ_BLOCK = 4096 };

struct sumsq {
    const struct row_ops *rows;
    const float *x;
    double *partial; /* [blocks] */
    int64_t n;
};

/* begin and end count blocks */
static void sumsq_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct sumsq *s = arg;
    (void)worker;
    for (int64_t block = begin; block < end; block++) {
        int64_t at = block * SUMSQ_BLOCK;
        s->partial[block] = s->rows->sumsq(s->x + at, lesser(SUMSQ_BLOCK, s->n - at));
    }
}

void cpu_sumsq(const struct kernel_call *call)
{
    struct sumsq s = {row_ops(), call->in[0], call->work, tensor_count(call_in(call, 0))};
    int64_t blocks = blocks_of(s.n, SUMSQ_BLOCK);
    threads_each(call->team, blocks, SPAN_GRAIN / SUMSQ_BLOCK, sumsq_body, &s);
    double *sum = call->out[0];
    if (!call->accumulate) *sum = 0;
    for (int64_t i = 0; i < blocks; i++) *sum += s.partial[i];
}

size_t cpu_sumsq_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    (void)op, (void)threads;
    return (size_t)blocks_of(tensor_count(desc[0]), SUMSQ_BLOCK) * sizeof(double);
}

void cpu_clip(const struct kernel_call *call)
{
    const float *scalars = call->in[1];
    double sum = *(const double *)call->in[0];
    double clip = (double)scalars[SCALAR_CLIP], unscale = (double)scalars[SCALAR_UNSCALE];
    double norm = sqrt(sum) * unscale, most = 1;
    if (clip > 0 && clip < norm + 1e-6) most = clip / (norm + 1e-6);
    bool finite = isfinite(norm);
    float *coef = call->out[0];
    memset(coef, 0, CLIP_COUNT * sizeof *coef);
    coef[CLIP_MULTIPLIER] = finite ? (float)(unscale * most) : 0;
    coef[CLIP_NORM] = (float)norm;
    coef[CLIP_FINITE] = finite ? 1 : 0;
}

/* Operand slots of an optimizer op; -1: it has no such operand. */
struct slots {
    int master, m, v, scalars, coef; /* inputs; p is 0 and g is 1 */
    int m_out, v_out, master_out;    /* outputs; p is 0 */
};

static const struct slots adamw_slots = {4, 2, 3, 5, 6, 1, 2, 3};
static const struct slots sgd_slots = {3, 2, -1, 4, 5, 1, -1, 2};

static void *operand(void *const *list, int slot) { return slot < 0 ? NULL : list[slot]; }

static struct row_update update_of(const struct kernel_call *call, const struct slots *slots)
{
    const float *coef = operand(call->in, slots->coef);
    return (struct row_update){
        .p_in = call->in[0],
        .p = call->out[0],
        .master_in = operand(call->in, slots->master),
        .master = operand(call->out, slots->master_out),
        .g = call->in[1],
        .m_in = operand(call->in, slots->m),
        .m = operand(call->out, slots->m_out),
        .v_in = operand(call->in, slots->v),
        .v = operand(call->out, slots->v_out),
        .multiplier = coef ? coef[CLIP_MULTIPLIER] : 1,
        .nesterov = call->op->attr.nesterov,
    };
}

static void keep(const struct kernel_call *call, int in, int out)
{
    if (in < 0 || !call->out[out] || call->out[out] == call->in[in]) return;
    memcpy(call->out[out], call->in[in], (size_t)tensor_bytes(call_in(call, in)));
}

/* True when the step is to be left out; outputs that are not their inputs then get the old values. */
static bool skipped(const struct kernel_call *call, const struct slots *slots)
{
    const float *coef = operand(call->in, slots->coef);
    if (!coef || coef[CLIP_FINITE] != 0) return false;
    keep(call, 0, 0);
    keep(call, slots->m, slots->m_out);
    keep(call, slots->v, slots->v_out);
    keep(call, slots->master, slots->master_out);
    return true;
}

struct update {
    const struct row_ops *rows;
    enum dtype type, master_type;
    struct row_update all;
};

static struct row_update span(const struct update *u, int64_t begin)
{
    struct row_update part = u->all;
    part.p_in = element(part.p_in, u->type, begin);
    part.p = element(part.p, u->type, begin);
    part.master_in = element(part.master_in, u->master_type, begin);
    part.master = element(part.master, u->master_type, begin);
    part.g += begin;
    part.m_in = element(part.m_in, DT_F32, begin);
    part.m = element(part.m, DT_F32, begin);
    part.v_in = element(part.v_in, DT_F32, begin);
    part.v = element(part.v, DT_F32, begin);
    return part;
}

static void adamw_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct update *u = arg;
    struct row_update part = span(u, begin);
    (void)worker;
    u->rows->adamw(u->type, &part, end - begin);
}

static void sgd_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct update *u = arg;
    struct row_update part = span(u, begin);
    (void)worker;
    u->rows->sgd(u->type, &part, end - begin);
}

static void run(const struct kernel_call *call, const struct row_update *all, threads_body *body)
{
    enum dtype type = call_in(call, 0)->type;
    struct update u = {row_ops(), type, type == DT_BF16 ? DT_U16 : DT_F32, *all};
    threads_each(call->team, tensor_count(call_in(call, 0)), SPAN_GRAIN, body, &u);
}

/* People write 0.999; the nearest float is so far off that 1 - beta is wrong in the fifth digit. Seven
 * decimals give back what was written. */
static double as_written(float beta) { return round((double)beta * 1e7) / 1e7; }

void cpu_adamw(const struct kernel_call *call)
{
    if (skipped(call, &adamw_slots)) return;
    const struct op_attr *attr = &call->op->attr;
    const float *scalars = call->in[adamw_slots.scalars];
    double lr = (double)scalars[SCALAR_LR], beta1 = as_written(attr->beta1), beta2 = as_written(attr->beta2);
    struct row_update all = update_of(call, &adamw_slots);
    all.keep = (float)(1.0 - lr * (double)attr->decay);
    all.mix1 = (float)(1.0 - beta1);
    all.beta2 = (float)beta2;
    all.mix2 = (float)(1.0 - beta2);
    all.step = (float)(lr / (double)scalars[SCALAR_BIAS1]);
    all.root = (float)(1.0 / sqrt((double)scalars[SCALAR_BIAS2]));
    all.eps = attr->eps;
    run(call, &all, adamw_body);
}

void cpu_sgd(const struct kernel_call *call)
{
    if (skipped(call, &sgd_slots)) return;
    struct row_update all = update_of(call, &sgd_slots);
    all.decay = call->op->attr.decay;
    all.beta1 = call->op->attr.beta1;
    all.step = ((const float *)call->in[sgd_slots.scalars])[SCALAR_LR];
    run(call, &all, sgd_body);
}
