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
    case_in(c, 0, type, size.ndim, size.dim);
    case_fill(c, 0, 0, pow(10, (double)(type == DT_F16 ? 0 : PICK(c, -4, 0, 0, 4))));
    case_acc(c, 0, DT_F64, DIMS(1));
    c->inner[0] = 32 * F32_UNIT;
}

void make_clip(struct op_case *c)
{
    static const double sums[] = {0, 1e-12, 0.25, 4, 1e6, 1e30};
    double sum = case_below(c, 4) ? sums[case_below(c, 6)] : (case_flip(c) ? (double)INFINITY : (double)NAN);
    double limit = (double)PICK(c, 0, 1, 1, 3), unscale = case_flip(c) ? 1 : 0x1p-16;
    int64_t grads = PICK(c, 1, 2, 31, 300, 2000), whole = case_below(c, grads);
    case_in(c, 0, DT_F64, DIMS(grads));
    double each = isfinite(sum) ? sum / (unscale * unscale) / (double)grads : 1;
    for (int64_t i = 0; i < grads; i++) case_set(c, 0, i, i == whole && !isfinite(sum) ? sum : each);
    case_in(c, 1, DT_F32, DIMS(SCALAR_COUNT));
    case_set(c, 1, SCALAR_CLIP, limit);
    case_set(c, 1, SCALAR_UNSCALE, unscale);
    case_out(c, 0, DT_F32, DIMS(CLIP_COUNT));
    c->inner[0] = 4 * F32_UNIT;
    c->by_element = true;
    case_note(c, "sum %g limit %g unscale %g", sum, limit, unscale);
}

/* What all optimizers read besides the parameter: scalars at `slot`, clip coefficients after it. */
static void any_step(struct op_case *c, int slot, int grad)
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
        case_in(c, slot + 1, DT_F32, DIMS(CLIP_COUNT));
        case_set(c, slot + 1, CLIP_MULTIPLIER, skip ? (double)NAN : case_uniform(c, 0.001, 1));
        case_set(c, slot + 1, CLIP_NORM, skip ? (double)INFINITY : 3);
        case_set(c, slot + 1, CLIP_FINITE, !skip);
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
    enum dtype type = c->type == DT_BF16 ? DT_U16 : DT_F32;
    case_in(c, slot, type, size.ndim, size.dim);
    for (int64_t i = 0; i < size.rows; i++) {
        if (type == DT_U16)
            ((uint16_t *)c->in[slot])[i] = (uint16_t)case_below(c, 65536);
        else
            case_set(c, slot, i, case_get(c, 0, i) * (1 + 0x1p-13 * case_uniform(c, -1, 1)));
    }
}

/* A gradient: f32 or of the compute type, in slot 1 (0: of factor_stat). */
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
    case_in(c, 0, c->type, size.ndim, size.dim);
    grad_in(c, 1, size);
    for (int i = 2; i < 4; i++) case_in(c, i, state, size.ndim, size.dim);
    case_fill(c, 2, 0, fresh ? 0 : 0.1);
    for (int64_t i = 0; i < size.rows; i++) case_set(c, 3, i, fresh ? 0 : 0.01 * case_uniform(c, 0.01, 2));
    if (master) master_in(c, 4, size);
    any_step(c, 5, 1);
    case_out(c, 0, c->type, size.ndim, size.dim);
    for (int i = 1; i < 3; i++) case_out(c, i, state, size.ndim, size.dim);
    if (master) case_out(c, 3, op_case_in(c, 4)->type, size.ndim, size.dim);
    for (int i = 0; i < 4; i++) c->inner[i] = 8 * F32_UNIT;
    c->scale[0] = c->scale[3] = 1, c->scale[1] = 0.1;
}

void make_sgd(struct op_case *c)
{
    struct lead size = any_size(c);
    bool master = c->type != DT_F32 && case_below(c, 3) != 0, momentum = case_flip(c);
    enum dtype state = case_below(c, 3) ? DT_F32 : DT_BF16;
    case_in(c, 0, c->type, size.ndim, size.dim);
    grad_in(c, 1, size);
    case_fill(c, 1, 0, 1);
    if (momentum) case_in(c, 2, state, size.ndim, size.dim);
    if (master) master_in(c, 3, size);
    any_step(c, 4, 1);
    c->op.attr.nesterov = momentum && case_flip(c);
    case_out(c, 0, c->type, size.ndim, size.dim);
    if (momentum) case_out(c, 1, state, size.ndim, size.dim);
    if (master) case_out(c, 2, op_case_in(c, 3)->type, size.ndim, size.dim);
    for (int i = 0; i < 3; i++) c->inner[i] = 8 * F32_UNIT, c->scale[i] = 1;
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
    case_in(c, 0, c->type, size.ndim, size.dim);
    grad_in(c, 1, size);
    uint64_t fresh = (uint64_t)(case_below(c, (int64_t)1 << 62) & case_below(c, (int64_t)1 << 62));
    codes_in(c, 2, 4, size, 0.3, 0, fresh);
    codes_in(c, 3, 5, size, 0.01, 1, fresh);
    if (master) master_in(c, 6, size);
    any_step(c, 7, 1);
    case_out(c, 0, c->type, size.ndim, size.dim);
    for (int i = 1; i < 3; i++) case_out(c, i, DT_U8, size.ndim, size.dim);
    for (int i = 3; i < 5; i++) case_out(c, i, DT_F32, DIMS(quant8_blocks(size.rows)));
    if (master) case_out(c, 5, op_case_in(c, 6)->type, size.ndim, size.dim);
    for (int i = 0; i < 6; i++) c->inner[i] = 8 * F32_UNIT;
    /* Where v is little the step is large, and so is its error. */
    c->scale[0] = c->scale[5] = 1 + case_get(c, 7, SCALAR_LR) * 1000;
}

static struct lead any_matrix(struct op_case *c)
{
    int64_t rows = PICK(c, 1, 2, 7, 31, 64, 65, 300), columns = PICK(c, 1, 3, 16, 37, 200, 1025);
    if (case_below(c, 3) == 0) return (struct lead){.ndim = 1, .dim = {rows * 40}, .rows = rows * 40};
    return (struct lead){.ndim = 2, .dim = {rows, columns}, .rows = rows * columns};
}

/* Row and, of a matrix, column statistics of gradients of deviation d. */
static void stats_in(struct op_case *c, int row, struct lead size, double d)
{
    case_in(c, row, DT_F32, DIMS(size.dim[0]));
    for (int64_t i = 0; i < size.dim[0]; i++) case_set(c, row, i, d * d * case_uniform(c, 0.1, 2));
    if (size.ndim < 2) return;
    case_in(c, row + 1, DT_F32, DIMS(size.dim[1]));
    for (int64_t i = 0; i < size.dim[1]; i++) case_set(c, row + 1, i, d * d * case_uniform(c, 0.1, 2));
}

void make_factor_stat(struct op_case *c)
{
    struct lead size = any_matrix(c);
    grad_in(c, 0, size);
    stats_in(c, 1, size, 0.1);
    any_step(c, 3, 0);
    c->op.attr.eps = 1e-30f;
    c->op.attr.limit = case_flip(c) ? 1 : 0.01f;
    case_out(c, 0, DT_F32, DIMS(size.dim[0]));
    if (size.ndim == 2) case_out(c, 1, DT_F32, DIMS(size.dim[1]));
    case_out(c, 2, DT_F32, DIMS(FACTOR_COUNT));
    for (int i = 0; i < 3; i++) c->inner[i] = 32 * F32_UNIT;
    c->by_element = true;
}

void make_adafactor(struct op_case *c)
{
    struct lead size = any_matrix(c);
    bool master = c->type != DT_F32 && case_below(c, 3) != 0, momentum = case_flip(c);
    enum dtype state = case_below(c, 3) ? DT_F32 : DT_BF16;
    case_in(c, 0, c->type, size.ndim, size.dim);
    grad_in(c, 1, size);
    stats_in(c, 2, size, 0.1);
    case_in(c, 4, DT_F32, DIMS(FACTOR_COUNT));
    case_set(c, 4, FACTOR_SCALE, case_uniform(c, 0.1, 1));
    case_set(c, 4, FACTOR_MEAN, size.ndim == 2 ? 0.01 : 1);
    if (momentum) case_in(c, 5, state, size.ndim, size.dim);
    if (master) master_in(c, 6, size);
    any_step(c, 7, 1);
    case_out(c, 0, c->type, size.ndim, size.dim);
    if (momentum) case_out(c, 1, state, size.ndim, size.dim);
    if (master) case_out(c, 2, op_case_in(c, 6)->type, size.ndim, size.dim);
    for (int i = 0; i < 3; i++) c->inner[i] = 8 * F32_UNIT, c->scale[i] = 1;
}

static void make_copy(struct op_case *c)
{
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16, DT_F64, DT_I32, DT_U16, DT_U8};
    struct lead size = any_size(c);
    enum dtype type = types[case_below(c, 7)];
    case_in(c, 0, type, size.ndim, size.dim);
    for (int64_t i = 0; i < size.rows; i++) {
        if (type == DT_I32) case_set_int(c, 0, i, (int32_t)case_below(c, 1 << 30) - (1 << 29));
        if (type == DT_U16) ((uint16_t *)c->in[0])[i] = (uint16_t)case_below(c, 65536);
        if (type == DT_U8) ((uint8_t *)c->in[0])[i] = (uint8_t)case_below(c, 256);
    }
    case_out(c, 0, type, size.ndim, size.dim);
    c->exact = true;
}

void make_fetch(struct op_case *c) { make_copy(c); }
void make_store(struct op_case *c) { make_copy(c); }
