/* optimizer.c - the update part of a step: global norm, clipping, AdamW, SGD, Adafactor's step.
 *
 * AdamW and SGD give the bits of the GPU's kernels, operation by operation: it does not show in a run who updated what.
 * A step that clip has found not finite changes nothing. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rows.h"
#include "tensor/quant8.h"
#include "tensor/stochastic.h"
#include <math.h>
#include <string.h>

enum { SUMSQ_BLOCK = 4096 };

struct sumsq {
    const struct row_ops *rows;
    enum dtype type;
    const void *x;
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
        s->partial[block] =
            s->rows->sumsq(s->type, element(s->x, s->type, at), lesser(SUMSQ_BLOCK, s->n - at));
    }
}

void cpu_sumsq(const struct kernel_call *call)
{
    struct sumsq s = {row_ops(), call_in(call, 0)->type, call->in[0], call->work,
                      tensor_count(call_in(call, 0))};
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
    const double *sums = call->in[0];
    double sum = 0;
    for (int64_t i = 0; i < tensor_count(call_in(call, 0)); i++) sum += sums[i];
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

/* Operand slots of an optimizer op; 0: it has no such operand (slot 0 is p, inputs and outputs alike). */
struct slots {
    int master, m, v, m_scale, v_scale, scalars, coef;      /* inputs; g is 1 */
    int master_out, m_out, v_out, m_scale_out, v_scale_out; /* outputs */
};

static const struct slots adamw_slots = {
    .m = 2, .v = 3, .master = 4, .scalars = 5, .coef = 6, .m_out = 1, .v_out = 2, .master_out = 3};
static const struct slots sgd_slots = {
    .m = 2, .master = 3, .scalars = 4, .coef = 5, .m_out = 1, .master_out = 2};
static const struct slots adamw8_slots = {.m = 2,
                                          .v = 3,
                                          .m_scale = 4,
                                          .v_scale = 5,
                                          .master = 6,
                                          .scalars = 7,
                                          .coef = 8,
                                          .m_out = 1,
                                          .v_out = 2,
                                          .m_scale_out = 3,
                                          .v_scale_out = 4,
                                          .master_out = 5};
static const struct slots adafactor_slots = {
    .m = 5, .master = 6, .scalars = 7, .coef = 8, .m_out = 1, .master_out = 2};

static void *operand(void *const *list, int slot) { return slot == 0 ? NULL : list[slot]; }

static uint32_t key_of(const struct kernel_call *call, const float *scalars)
{
    uint32_t bits = (uint32_t)scalars[SCALAR_KEY_HIGH] << 16 | (uint32_t)scalars[SCALAR_KEY_LOW];
    return stochastic_key(bits, call->op->attr.stream);
}

static struct row_update update_of(const struct kernel_call *call, const struct slots *slots)
{
    const float *coef = operand(call->in, slots->coef);
    const struct tensor *m = slots->m ? call_in(call, slots->m) : NULL;
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
        .wide_g = call_in(call, 1)->type == DT_F32,
        .wide_state = !m || m->type == DT_F32,
        .stochastic = call->op->attr.stochastic,
        .key = key_of(call, call->in[slots->scalars]),
        .first = (uint32_t)call->op->attr.first,
        .multiplier = coef ? coef[CLIP_MULTIPLIER] : 1,
        .nesterov = call->op->attr.nesterov,
    };
}

static void keep(const struct kernel_call *call, int in, int out)
{
    if (!call->out[out] || call->out[out] == call->in[in]) return;
    memcpy(call->out[out], call->in[in], (size_t)tensor_bytes(call_in(call, in)));
}

/* True when the step is to be left out; outputs that are not their inputs then get the old values. */
static bool skipped(const struct kernel_call *call, const struct slots *slots)
{
    const float *coef = operand(call->in, slots->coef);
    if (!coef || coef[CLIP_FINITE] != 0) return false;
    keep(call, 0, 0);
    if (slots->m) keep(call, slots->m, slots->m_out);
    if (slots->v) keep(call, slots->v, slots->v_out);
    if (slots->m_scale) keep(call, slots->m_scale, slots->m_scale_out);
    if (slots->v_scale) keep(call, slots->v_scale, slots->v_scale_out);
    keep(call, slots->master, slots->master_out);
    return true;
}

typedef void row_step(enum dtype t, const struct row_update *u, int64_t n);

struct update {
    row_step *step;
    enum dtype type, master_type, g_type, state_type;
    struct row_update all;
    int64_t count;    /* adamw8: elements; adafactor: of a row */
    const float *row; /* adafactor */
    double mean;
};

static struct row_update span(const struct update *u, int64_t begin)
{
    struct row_update part = u->all;
    part.p_in = element(part.p_in, u->type, begin);
    part.p = element(part.p, u->type, begin);
    part.master_in = element(part.master_in, u->master_type, begin);
    part.master = element(part.master, u->master_type, begin);
    part.g = element(part.g, u->g_type, begin);
    part.m_in = element(part.m_in, u->state_type, begin);
    part.m = element(part.m, u->state_type, begin);
    part.v_in = element(part.v_in, u->state_type, begin);
    part.v = element(part.v, u->state_type, begin);
    part.first += (uint32_t)begin;
    return part;
}

static void update_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct update *u = arg;
    struct row_update part = span(u, begin);
    (void)worker;
    u->step(u->type, &part, end - begin);
}

static struct update start(const struct kernel_call *call, const struct row_update *all, row_step *step)
{
    enum dtype type = call_in(call, 0)->type;
    return (struct update){.step = step,
                           .type = type,
                           .master_type = type == DT_BF16 ? DT_U16 : DT_F32,
                           .g_type = call_in(call, 1)->type,
                           .state_type = all->wide_state ? DT_F32 : DT_BF16,
                           .all = *all};
}

static void run(const struct kernel_call *call, const struct row_update *all, row_step *step)
{
    struct update u = start(call, all, step);
    threads_each(call->team, tensor_count(call_in(call, 0)), SPAN_GRAIN, update_body, &u);
}

/* People write 0.999; the nearest float is so far off that 1 - beta is wrong in the fifth digit. Seven
 * decimals give back what was written. */
static double as_written(float beta) { return round((double)beta * 1e7) / 1e7; }

static void set_adamw(const struct kernel_call *call, const float *scalars, struct row_update *all)
{
    const struct op_attr *attr = &call->op->attr;
    double beta1 = as_written(attr->beta1), beta2 = as_written(attr->beta2);
    float lr = scalars[SCALAR_LR];
    all->keep = fmaf(-lr, attr->decay, 1.0f);
    all->mix1 = (float)(1.0 - beta1);
    all->beta2 = (float)beta2;
    all->mix2 = (float)(1.0 - beta2);
    all->step = lr / scalars[SCALAR_BIAS1];
    all->root = 1.0f / sqrtf(scalars[SCALAR_BIAS2]);
    all->eps = attr->eps;
}

void cpu_adamw(const struct kernel_call *call)
{
    if (skipped(call, &adamw_slots)) return;
    struct row_update all = update_of(call, &adamw_slots);
    set_adamw(call, call->in[adamw_slots.scalars], &all);
    run(call, &all, row_ops()->adamw);
}

void cpu_sgd(const struct kernel_call *call)
{
    if (skipped(call, &sgd_slots)) return;
    struct row_update all = update_of(call, &sgd_slots);
    all.decay = call->op->attr.decay;
    all.beta1 = call->op->attr.beta1;
    all.step = ((const float *)call->in[sgd_slots.scalars])[SCALAR_LR];
    run(call, &all, row_ops()->sgd);
}

/* begin and end count blocks of QUANT8_BLOCK elements */
static void adamw8_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct update *u = arg;
    (void)worker;
    int64_t first = begin * QUANT8_BLOCK, last = lesser(end * QUANT8_BLOCK, u->count);
    struct row_update part = span(u, first);
    part.mq_in += first, part.mq += first, part.vq_in += first, part.vq += first;
    part.m_scale_in += begin, part.m_scale += begin, part.v_scale_in += begin, part.v_scale += begin;
    u->step(u->type, &part, last - first);
}

void cpu_adamw8(const struct kernel_call *call)
{
    const struct slots *at = &adamw8_slots;
    if (skipped(call, at)) return;
    struct row_update all = update_of(call, at);
    set_adamw(call, call->in[at->scalars], &all);
    all.m_in = all.v_in = NULL, all.m = all.v = NULL;
    all.mq_in = call->in[at->m], all.mq = call->out[at->m_out];
    all.vq_in = call->in[at->v], all.vq = call->out[at->v_out];
    all.m_scale_in = call->in[at->m_scale], all.m_scale = call->out[at->m_scale_out];
    all.v_scale_in = call->in[at->v_scale], all.v_scale = call->out[at->v_scale_out];
    struct update u = start(call, &all, row_ops()->adamw8);
    u.count = tensor_count(call_in(call, 0));
    threads_each(call->team, quant8_blocks(u.count), SPAN_GRAIN / QUANT8_BLOCK, adamw8_body, &u);
}

/* begin and end count rows; each has its own share of the second moment */
static void adafactor_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct update *u = arg;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        struct row_update part = span(u, r * u->count);
        part.step = (float)((double)u->all.step / sqrt((double)u->row[r] / u->mean));
        u->step(u->type, &part, u->count);
    }
}

/* begin and end count elements, each with a second moment of its own */
static void adafactor_each(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct update *u = arg;
    struct row_update part = span(u, begin);
    (void)worker;
    part.col = u->row + begin;
    u->step(u->type, &part, end - begin);
}

void cpu_adafactor(const struct kernel_call *call)
{
    if (skipped(call, &adafactor_slots)) return;
    const float *scalars = call->in[adafactor_slots.scalars], *factor = call->in[4];
    struct row_update all = update_of(call, &adafactor_slots);
    all.keep = (float)(1.0 - (double)scalars[SCALAR_LR] * (double)call->op->attr.decay);
    all.mix1 = (float)(1.0 - as_written(call->op->attr.beta1));
    all.step = scalars[SCALAR_LR] * factor[FACTOR_SCALE];
    all.col = call->in[3];
    struct update u = start(call, &all, row_ops()->adafactor);
    int64_t n = tensor_count(call_in(call, 0)), rows = tensor_count(call_in(call, 2));
    u.row = call->in[2], u.mean = (double)factor[FACTOR_MEAN], u.count = n / rows;
    if (all.col)
        threads_each(call->team, rows, row_grain(u.count), adafactor_body, &u);
    else
        threads_each(call->team, n, SPAN_GRAIN, adafactor_each, &u);
}
