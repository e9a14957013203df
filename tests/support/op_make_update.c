/* op_make_update.c - makers of cases of the update part: global norm, optimizers, movement between tiers. */
#include "support/op_make.h"
#include "tensor/quant8.h"

#include <math.h>

/* Sizes around block and vector boundaries, 1-d or 2-d. */
static struct lead any_size(struct op_case *c)
{
    int64_t n = PICK(c, 1, 3, 15, 16, 17, 255, 1000, 4095, 4096, 4097, 12289, 20000);
    struct lead lead = {.ndim = 1, .dim = {n}, .rows = n};
    if (n % 5 == 0) lead = (struct lead){.ndim = 2, .dim = {5, n / 5}, .rows = n};
    return lead;
}

void make_sumsq(struct op_case *c)
{
    struct lead size = any_size(c);
    enum dtype type = case_flip(c) ? DT_F32 : c->type;
    case_in(c, SUMSQ_GRAD, type, size.ndim, size.dim);
    case_fill(c, SUMSQ_GRAD, 0, pow(10, (double)(type == DT_F16 ? 0 : PICK(c, -4, 0, 0, 4))));
    case_acc(c, SUMSQ_SUM, DT_F64, DIMS(1));
    c->inner[SUMSQ_SUM] = 32 * F32_UNIT;
}

void make_clip(struct op_case *c)
{
    static const double sums[] = {0, 1e-12, 0.25, 4, 1e6, 1e30};
    double sum = case_below(c, 4) ? sums[case_below(c, 6)] : (case_flip(c) ? (double)INFINITY : (double)NAN);
    double limit = (double)PICK(c, 0, 1, 1, 3), unscale = case_flip(c) ? 1 : 0x1p-16;
    int64_t grads = PICK(c, 1, 2, 31, 300, 2000), whole = case_below(c, grads);
    case_in(c, CLIP_SUMS, DT_F64, DIMS(grads));
    double each = isfinite(sum) ? sum / (unscale * unscale) / (double)grads : 1;
    for (int64_t i = 0; i < grads; i++) case_set(c, CLIP_SUMS, i, i == whole && !isfinite(sum) ? sum : each);
    case_in(c, CLIP_SCALARS, DT_F32, DIMS(SCALAR_COUNT));
    case_set(c, CLIP_SCALARS, SCALAR_CLIP, limit);
    case_set(c, CLIP_SCALARS, SCALAR_UNSCALE, unscale);
    case_out(c, CLIP_COEF, DT_F32, DIMS(CLIP_COUNT));
    c->inner[CLIP_COEF] = 4 * F32_UNIT;
    c->by_element = true;
    case_note(c, "sum %g limit %g unscale %g", sum, limit, unscale);
}

/* What all optimizers read besides the parameter: scalars, perhaps clip coefficients. */
static void any_step(struct op_case *c, int slot, int coef, int grad)
{
    bool clipped = case_flip(c), skip = clipped && case_below(c, 4) == 0;
    double step = (double)PICK(c, 1, 2, 10, 1000);
    c->op.attr.beta1 = case_flip(c) ? 0.9f : 0.8f;
    c->op.attr.beta2 = case_flip(c) ? 0.999f : 0.95f;
    c->op.attr.eps = 1e-8f;
    c->op.attr.decay = case_flip(c) ? 0 : 0.1f;
    case_in(c, slot, DT_F32, DIMS(SCALAR_COUNT));
    case_set(c, slot, SCALAR_LR, case_flip(c) ? 1e-3 : 0.1);
    case_set(c, slot, SCALAR_BIAS1, 1 - pow((double)c->op.attr.beta1, step));
    case_set(c, slot, SCALAR_BIAS2, 1 - pow((double)c->op.attr.beta2, step));
    case_set(c, slot, SCALAR_BETA2, 1 - pow(step, -0.8));
    case_set(c, slot, SCALAR_KEY_LOW, (double)case_below(c, 65536));
    case_set(c, slot, SCALAR_KEY_HIGH, (double)case_below(c, 65536));
    c->op.attr.stochastic = case_flip(c);
    c->op.attr.stream = (uint32_t)case_below(c, (int64_t)1 << 32);
    c->op.attr.first = PICK(c, 0, 256, 4096, ((int64_t)1 << 32) - 512);
    if (clipped) {
        case_in(c, coef, DT_F32, DIMS(CLIP_COUNT));
        case_set(c, coef, CLIP_MULTIPLIER, skip ? (double)NAN : case_uniform(c, 0.001, 1));
        case_set(c, coef, CLIP_NORM, skip ? (double)INFINITY : 3);
        case_set(c, coef, CLIP_FINITE, !skip);
    }
    if (skip && grad >= 0)
        case_set(c, grad, case_below(c, case_count(c, grad)), case_flip(c) ? (double)NAN : (double)INFINITY);
    c->exact = skip;
    case_note(c, "step %.0f decay %.1f %s", step, (double)c->op.attr.decay,
              skip ? "skipped" : (clipped ? "clipped" : ""));
}

/* The master of a narrow parameter: any 16 bits are a master of a bf16 weight. */
static void master_in(struct op_case *c, int slot, struct lead size)
{
    enum dtype type = dtype_master(c->type);
    case_in(c, slot, type, size.ndim, size.dim);
    for (int64_t i = 0; i < size.rows; i++) {
        if (type == DT_U16)
            ((uint16_t *)c->in[slot])[i] = (uint16_t)case_below(c, 65536);
        else
            case_set(c, slot, i, case_get(c, UPDATE_P, i) * (1 + 0x1p-13 * case_uniform(c, -1, 1)));
    }
}

/* A gradient: f32 or of the compute type. */
static void grad_in(struct op_case *c, int slot, struct lead size)
{
    case_in(c, slot, case_flip(c) ? DT_F32 : c->type, size.ndim, size.dim);
    case_fill(c, slot, 0, case_flip(c) ? 0.1 : 1e-4);
}

void make_adamw(struct op_case *c)
{
    struct lead size = any_size(c);
    bool master = c->type != DT_F32 && case_below(c, 3) != 0, fresh = case_below(c, 4) == 0;
    enum dtype state = case_below(c, 3) ? DT_F32 : DT_BF16;
    case_in(c, ADAMW_P, c->type, size.ndim, size.dim);
    grad_in(c, ADAMW_G, size);
    for (int i = ADAMW_M; i <= ADAMW_V; i++) case_in(c, i, state, size.ndim, size.dim);
    case_fill(c, ADAMW_M, 0, fresh ? 0 : 0.1);
    for (int64_t i = 0; i < size.rows; i++)
        case_set(c, ADAMW_V, i, fresh ? 0 : 0.01 * case_uniform(c, 0.01, 2));
    if (master) master_in(c, ADAMW_MASTER, size);
    any_step(c, ADAMW_SCALARS, ADAMW_COEF, ADAMW_G);
    case_out(c, ADAMW_NEW_P, c->type, size.ndim, size.dim);
    for (int i = ADAMW_NEW_M; i <= ADAMW_NEW_V; i++) case_out(c, i, state, size.ndim, size.dim);
    if (master) case_out(c, ADAMW_NEW_MASTER, op_case_in(c, ADAMW_MASTER)->type, size.ndim, size.dim);
    for (int i = ADAMW_NEW_P; i <= ADAMW_NEW_MASTER; i++) c->inner[i] = 8 * F32_UNIT;
    c->scale[ADAMW_NEW_P] = c->scale[ADAMW_NEW_MASTER] = 1, c->scale[ADAMW_NEW_M] = 0.1;
}

void make_sgd(struct op_case *c)
{
    struct lead size = any_size(c);
    bool master = c->type != DT_F32 && case_below(c, 3) != 0, momentum = case_flip(c);
    enum dtype state = case_below(c, 3) ? DT_F32 : DT_BF16;
    case_in(c, SGD_P, c->type, size.ndim, size.dim);
    grad_in(c, SGD_G, size);
    case_fill(c, SGD_G, 0, 1);
    if (momentum) case_in(c, SGD_M, state, size.ndim, size.dim);
    if (master) master_in(c, SGD_MASTER, size);
    any_step(c, SGD_SCALARS, SGD_COEF, SGD_G);
    c->op.attr.nesterov = momentum && case_flip(c);
    case_out(c, SGD_NEW_P, c->type, size.ndim, size.dim);
    if (momentum) case_out(c, SGD_NEW_M, state, size.ndim, size.dim);
    if (master) case_out(c, SGD_NEW_MASTER, op_case_in(c, SGD_MASTER)->type, size.ndim, size.dim);
    for (int i = SGD_NEW_P; i <= SGD_NEW_MASTER; i++) c->inner[i] = 8 * F32_UNIT, c->scale[i] = 1;
}

/* Codes from `least` up and scales of a moment; fresh blocks, some of all, have zero bytes. */
static void codes_in(struct op_case *c, int codes, int scales, struct lead size, double top, int least,
                     uint64_t fresh)
{
    case_in(c, codes, DT_U8, size.ndim, size.dim);
    case_in(c, scales, DT_F32, DIMS(quant8_blocks(size.rows)));
    for (int64_t b = 0; b < quant8_blocks(size.rows); b++) {
        bool empty = fresh >> (b & 63) & 1;
        case_set(c, scales, b, empty ? 0 : top * case_uniform(c, 0.01, 1));
        for (int64_t i = b * QUANT8_BLOCK; i < size.rows && i < (b + 1) * QUANT8_BLOCK; i++)
            ((uint8_t *)c->in[codes])[i] = empty ? 0 : (uint8_t)(least + case_below(c, 256 - least));
    }
}

void make_adamw8(struct op_case *c)
{
    struct lead size = any_size(c);
    bool master = c->type != DT_F32 && case_below(c, 3) != 0;
    case_in(c, ADAMW8_P, c->type, size.ndim, size.dim);
    grad_in(c, ADAMW8_G, size);
    uint64_t fresh = (uint64_t)(case_below(c, (int64_t)1 << 62) & case_below(c, (int64_t)1 << 62));
    codes_in(c, ADAMW8_MQ, ADAMW8_MS, size, 0.3, 0, fresh);
    codes_in(c, ADAMW8_VQ, ADAMW8_VS, size, 0.01, 1, fresh);
    if (master) master_in(c, ADAMW8_MASTER, size);
    any_step(c, ADAMW8_SCALARS, ADAMW8_COEF, ADAMW8_G);
    case_out(c, ADAMW8_NEW_P, c->type, size.ndim, size.dim);
    for (int i = ADAMW8_NEW_MQ; i <= ADAMW8_NEW_VQ; i++) case_out(c, i, DT_U8, size.ndim, size.dim);
    for (int i = ADAMW8_NEW_MS; i <= ADAMW8_NEW_VS; i++)
        case_out(c, i, DT_F32, DIMS(quant8_blocks(size.rows)));
    if (master) case_out(c, ADAMW8_NEW_MASTER, op_case_in(c, ADAMW8_MASTER)->type, size.ndim, size.dim);
    for (int i = ADAMW8_NEW_P; i <= ADAMW8_NEW_MASTER; i++) c->inner[i] = 8 * F32_UNIT;
    /* Where v is little the step is large, and so is its error. */
    c->scale[ADAMW8_NEW_P] = c->scale[ADAMW8_NEW_MASTER] = 1 + case_get(c, ADAMW8_SCALARS, SCALAR_LR) * 1000;
}

static struct lead any_matrix(struct op_case *c)
{
    int64_t rows = PICK(c, 1, 2, 7, 31, 64, 65, 300), columns = PICK(c, 1, 3, 16, 37, 200, 1025);
    if (case_below(c, 3) == 0) return (struct lead){.ndim = 1, .dim = {rows * 40}, .rows = rows * 40};
    return (struct lead){.ndim = 2, .dim = {rows, columns}, .rows = rows * columns};
}

/* Row and, of a matrix, column statistics of gradients of deviation d. */
static void stats_in(struct op_case *c, int row, int col, struct lead size, double d)
{
    case_in(c, row, DT_F32, DIMS(size.dim[0]));
    for (int64_t i = 0; i < size.dim[0]; i++) case_set(c, row, i, d * d * case_uniform(c, 0.1, 2));
    if (size.ndim < 2) return;
    case_in(c, col, DT_F32, DIMS(size.dim[1]));
    for (int64_t i = 0; i < size.dim[1]; i++) case_set(c, col, i, d * d * case_uniform(c, 0.1, 2));
}

void make_factor_stat(struct op_case *c)
{
    struct lead size = any_matrix(c);
    grad_in(c, FACTOR_STAT_G, size);
    stats_in(c, FACTOR_STAT_ROW, FACTOR_STAT_COL, size, 0.1);
    any_step(c, FACTOR_STAT_SCALARS, FACTOR_STAT_COEF, FACTOR_STAT_G);
    c->op.attr.eps = 1e-30f;
    c->op.attr.limit = case_flip(c) ? 1 : 0.01f;
    case_out(c, FACTOR_STAT_NEW_ROW, DT_F32, DIMS(size.dim[0]));
    if (size.ndim == 2) case_out(c, FACTOR_STAT_NEW_COL, DT_F32, DIMS(size.dim[1]));
    case_out(c, FACTOR_STAT_FACTOR, DT_F32, DIMS(FACTOR_COUNT));
    for (int i = FACTOR_STAT_NEW_ROW; i <= FACTOR_STAT_FACTOR; i++) c->inner[i] = 32 * F32_UNIT;
    c->by_element = true;
}

void make_adafactor(struct op_case *c)
{
    struct lead size = any_matrix(c);
    bool master = c->type != DT_F32 && case_below(c, 3) != 0, momentum = case_flip(c);
    enum dtype state = case_below(c, 3) ? DT_F32 : DT_BF16;
    case_in(c, ADAFACTOR_P, c->type, size.ndim, size.dim);
    grad_in(c, ADAFACTOR_G, size);
    stats_in(c, ADAFACTOR_ROW, ADAFACTOR_COL, size, 0.1);
    case_in(c, ADAFACTOR_FACTOR, DT_F32, DIMS(FACTOR_COUNT));
    case_set(c, ADAFACTOR_FACTOR, FACTOR_SCALE, case_uniform(c, 0.1, 1));
    case_set(c, ADAFACTOR_FACTOR, FACTOR_MEAN, size.ndim == 2 ? 0.01 : 1);
    if (momentum) case_in(c, ADAFACTOR_M, state, size.ndim, size.dim);
    if (master) master_in(c, ADAFACTOR_MASTER, size);
    any_step(c, ADAFACTOR_SCALARS, ADAFACTOR_COEF, ADAFACTOR_G);
    case_out(c, ADAFACTOR_NEW_P, c->type, size.ndim, size.dim);
    if (momentum) case_out(c, ADAFACTOR_NEW_M, state, size.ndim, size.dim);
    if (master) case_out(c, ADAFACTOR_NEW_MASTER, op_case_in(c, ADAFACTOR_MASTER)->type, size.ndim, size.dim);
    for (int i = ADAFACTOR_NEW_P; i <= ADAFACTOR_NEW_MASTER; i++) c->inner[i] = 8 * F32_UNIT, c->scale[i] = 1;
}

static void make_copy(struct op_case *c)
{
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16, DT_F64, DT_I32, DT_U16, DT_U8};
    struct lead size = any_size(c);
    enum dtype type = types[case_below(c, 7)];
    case_in(c, MOVE_FROM, type, size.ndim, size.dim);
    for (int64_t i = 0; i < size.rows; i++) {
        if (type == DT_I32) case_set_int(c, MOVE_FROM, i, (int32_t)case_below(c, 1 << 30) - (1 << 29));
        if (type == DT_U16) ((uint16_t *)c->in[MOVE_FROM])[i] = (uint16_t)case_below(c, 65536);
        if (type == DT_U8) ((uint8_t *)c->in[MOVE_FROM])[i] = (uint8_t)case_below(c, 256);
    }
    case_out(c, MOVE_TO, type, size.ndim, size.dim);
    c->exact = true;
}

void make_fetch(struct op_case *c) { make_copy(c); }
void make_store(struct op_case *c) { make_copy(c); }
