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

/* begin and end count blocks, each with a partial sum in the workspace */
static void sumsq_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    const struct tensor *x = call_in(call, SUMSQ_GRAD);
    double *partial = call->work;
    for (int64_t block = begin; block < end; block++) {
        int64_t at = block * SUMSQ_BLOCK, n = lesser(SUMSQ_BLOCK, tensor_count(x) - at);
        partial[block] = row_ops()->sumsq(x->type, in_at(call, SUMSQ_GRAD, at), n);
    }
}

void cpu_sumsq(const struct kernel_call *call)
{
    int64_t blocks = blocks_of(tensor_count(call_in(call, SUMSQ_GRAD)), SUMSQ_BLOCK);
    call_each(call, blocks, SPAN_GRAIN / SUMSQ_BLOCK, sumsq_body);
    double *sum = call->out[SUMSQ_SUM];
    const double *partial = call->work;
    if (!call->accumulate) *sum = 0;
    for (int64_t i = 0; i < blocks; i++) *sum += partial[i];
}

static size_t cpu_sumsq_workspace(const struct tensor *const *desc, const struct op *, int)
{
    return (size_t)blocks_of(tensor_count(desc[SUMSQ_GRAD]), SUMSQ_BLOCK) * sizeof(double);
}

void cpu_clip(const struct kernel_call *call)
{
    const float *scalars = call->in[CLIP_SCALARS];
    const double *sums = call->in[CLIP_SUMS];
    double sum = 0;
    for (int64_t i = 0; i < tensor_count(call_in(call, CLIP_SUMS)); i++) sum += sums[i];
    double clip = (double)scalars[SCALAR_CLIP], unscale = (double)scalars[SCALAR_UNSCALE];
    double norm = sqrt(sum) * unscale, most = 1;
    if (clip > 0 && clip < norm + 1e-6) most = clip / (norm + 1e-6);
    bool finite = isfinite(norm);
    float *coef = call->out[CLIP_COEF];
    memset(coef, 0, CLIP_COUNT * sizeof *coef);
    coef[CLIP_MULTIPLIER] = finite ? (float)(unscale * most) : 0;
    coef[CLIP_NORM] = (float)norm;
    coef[CLIP_FINITE] = finite ? 1 : 0;
}

/* Where this op has its operands (op.h). */
static const struct update_slots *slots_of(const struct kernel_call *call)
{
    return &op_row(call->op->kind)->update;
}

static void *operand(void *const *list, int slot) { return slot ? list[slot] : NULL; }

static uint32_t key_of(const struct kernel_call *call, const float *scalars)
{
    uint32_t bits = (uint32_t)scalars[SCALAR_KEY_HIGH] << 16 | (uint32_t)scalars[SCALAR_KEY_LOW];
    return stochastic_key(bits, call->op->attr.stream);
}

/* The multiplier of a step whose clip does not bind. */
static float unscale_of(const struct kernel_call *call)
{
    return ((const float *)call->in[slots_of(call)->scalars])[SCALAR_UNSCALE];
}

static struct row_update update_of(const struct kernel_call *call)
{
    const struct update_slots *slots = slots_of(call);
    const float *coef = operand(call->in, slots->coef);
    const struct tensor *m = slots->m ? call_in(call, slots->m) : NULL;
    return (struct row_update){
        .p_in = call->in[UPDATE_P],
        .p = call->out[UPDATE_NEW_P],
        .master_in = operand(call->in, slots->master),
        .master = operand(call->out, slots->new_master),
        .g = call->in[UPDATE_G],
        .m_in = operand(call->in, slots->m),
        .m = operand(call->out, slots->new_m),
        .v_in = operand(call->in, slots->v),
        .v = operand(call->out, slots->new_v),
        .wide_g = call_in(call, UPDATE_G)->type == DT_F32,
        .wide_state = !m || m->type == DT_F32,
        .stochastic = call->op->attr.stochastic,
        .key = key_of(call, call->in[slots->scalars]),
        .first = (uint32_t)call->op->attr.first,
        .multiplier = call->op->attr.guesses ? unscale_of(call)
                      : coef                 ? coef[CLIP_MULTIPLIER]
                                             : 1,
        .nesterov = call->op->attr.nesterov,
    };
}

static void keep(const struct kernel_call *call, int in, int out)
{
    if (!call->out[out] || call->out[out] == call->in[in]) return;
    memcpy(call->out[out], call->in[in], (size_t)tensor_bytes(call_in(call, in)));
}

/* True when the step is to be left out; outputs that are not their inputs then get the old values. An update that was made before
 * the norm was known is made again where its multiplier is another one; of a step that is left out nothing is looked at. */
static bool skipped(const struct kernel_call *call)
{
    const struct update_slots *slots = slots_of(call);
    const float *coef = operand(call->in, slots->coef);
    if (call->op->attr.redoes) return coef[CLIP_FINITE] == 0 || coef[CLIP_MULTIPLIER] == unscale_of(call);
    if (!coef || coef[CLIP_FINITE] != 0) return false;
    keep(call, UPDATE_P, UPDATE_NEW_P);
    if (slots->m) keep(call, slots->m, slots->new_m);
    if (slots->v) keep(call, slots->v, slots->new_v);
    if (slots->m_scale) keep(call, slots->m_scale, slots->new_m_scale);
    if (slots->v_scale) keep(call, slots->v_scale, slots->new_v_scale);
    keep(call, slots->master, slots->new_master);
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

static void update_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct update *u = arg;
    struct row_update part = span(u, begin);
    u->step(u->type, &part, end - begin);
}

static struct update start(const struct kernel_call *call, const struct row_update *all, row_step *step)
{
    enum dtype type = call_in(call, UPDATE_P)->type;
    return (struct update){.step = step,
                           .type = type,
                           .master_type = dtype_master(type),
                           .g_type = call_in(call, UPDATE_G)->type,
                           .state_type = all->wide_state ? DT_F32 : DT_BF16,
                           .all = *all};
}

static void run(const struct kernel_call *call, const struct row_update *all, row_step *step)
{
    struct update u = start(call, all, step);
    threads_each(call->team, tensor_count(call_in(call, UPDATE_P)), SPAN_GRAIN, update_body, &u);
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
    if (skipped(call)) return;
    struct row_update all = update_of(call);
    set_adamw(call, call->in[ADAMW_SCALARS], &all);
    run(call, &all, row_ops()->adamw);
}

void cpu_sgd(const struct kernel_call *call)
{
    if (skipped(call)) return;
    struct row_update all = update_of(call);
    all.decay = call->op->attr.decay;
    all.beta1 = call->op->attr.beta1;
    all.step = ((const float *)call->in[SGD_SCALARS])[SCALAR_LR];
    run(call, &all, row_ops()->sgd);
}

/* begin and end count blocks of QUANT8_BLOCK elements */
static void adamw8_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct update *u = arg;
    int64_t first = begin * QUANT8_BLOCK, last = lesser(end * QUANT8_BLOCK, u->count);
    struct row_update part = span(u, first);
    part.mq_in += first, part.mq += first, part.vq_in += first, part.vq += first;
    part.m_scale_in += begin, part.m_scale += begin, part.v_scale_in += begin, part.v_scale += begin;
    u->step(u->type, &part, last - first);
}

void cpu_adamw8(const struct kernel_call *call)
{
    if (skipped(call)) return;
    struct row_update all = update_of(call);
    set_adamw(call, call->in[ADAMW8_SCALARS], &all);
    all.m_in = all.v_in = NULL, all.m = all.v = NULL;
    all.mq_in = call->in[ADAMW8_MQ], all.mq = call->out[ADAMW8_NEW_MQ];
    all.vq_in = call->in[ADAMW8_VQ], all.vq = call->out[ADAMW8_NEW_VQ];
    all.m_scale_in = call->in[ADAMW8_MS], all.m_scale = call->out[ADAMW8_NEW_MS];
    all.v_scale_in = call->in[ADAMW8_VS], all.v_scale = call->out[ADAMW8_NEW_VS];
    struct update u = start(call, &all, row_ops()->adamw8);
    u.count = tensor_count(call_in(call, ADAMW8_P));
    threads_each(call->team, quant8_blocks(u.count), SPAN_GRAIN / QUANT8_BLOCK, adamw8_body, &u);
}

/* begin and end count rows; each has its own share of the second moment */
static void adafactor_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct update *u = arg;
    for (int64_t r = begin; r < end; r++) {
        struct row_update part = span(u, r * u->count);
        part.step = (float)((double)u->all.step / sqrt((double)u->row[r] / u->mean));
        u->step(u->type, &part, u->count);
    }
}

/* begin and end count elements, each with a second moment of its own */
static void adafactor_each(void *arg, int64_t begin, int64_t end, int)
{
    const struct update *u = arg;
    struct row_update part = span(u, begin);
    part.col = u->row + begin;
    u->step(u->type, &part, end - begin);
}

void cpu_adafactor(const struct kernel_call *call)
{
    if (skipped(call)) return;
    const float *scalars = call->in[ADAFACTOR_SCALARS], *factor = call->in[ADAFACTOR_FACTOR];
    struct row_update all = update_of(call);
    all.keep = (float)(1.0 - (double)scalars[SCALAR_LR] * (double)call->op->attr.decay);
    all.mix1 = (float)(1.0 - as_written(call->op->attr.beta1));
    all.step = scalars[SCALAR_LR] * factor[FACTOR_SCALE];
    all.col = call->in[ADAFACTOR_COL];
    struct update u = start(call, &all, row_ops()->adafactor);
    int64_t n = tensor_count(call_in(call, ADAFACTOR_P)), rows = tensor_count(call_in(call, ADAFACTOR_ROW));
    u.row = call->in[ADAFACTOR_ROW], u.mean = (double)factor[FACTOR_MEAN], u.count = n / rows;
    if (all.col)
        threads_each(call->team, rows, row_grain(u.count), adafactor_body, &u);
    else
        threads_each(call->team, n, SPAN_GRAIN, adafactor_each, &u);
}

CPU_KERNEL(sumsq, cpu_sumsq_workspace);
CPU_KERNEL(clip, NULL);
CPU_KERNEL(adamw, NULL);
CPU_KERNEL(sgd, NULL);
CPU_KERNEL(adamw8, NULL);
CPU_KERNEL(adafactor, NULL);
