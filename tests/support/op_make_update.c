/* op_make_update.c - makers of cases of the update part: global norm, optimizers, movement between tiers. */
#include "support/op_make.h"

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
    case_in(c, 0, DT_F32, size.ndim, size.dim);
    case_fill(c, 0, 0, pow(10, (double)PICK(c, -4, 0, 0, 4)));
    case_acc(c, 0, DT_F64, DIMS(1));
    c->inner[0] = 32 * F32_UNIT;
}

void make_clip(struct op_case *c)
{
    static const double sums[] = {0, 1e-12, 0.25, 4, 1e6, 1e30};
    double sum = case_below(c, 4) ? sums[case_below(c, 6)] : (case_flip(c) ? (double)INFINITY : (double)NAN);
    double limit = (double)PICK(c, 0, 1, 1, 3), unscale = case_flip(c) ? 1 : 0x1p-16;
    case_in(c, 0, DT_F64, DIMS(1));
    case_set(c, 0, 0, sum / (unscale * unscale));
    case_in(c, 1, DT_F32, DIMS(SCALAR_COUNT));
    case_set(c, 1, SCALAR_CLIP, limit);
    case_set(c, 1, SCALAR_UNSCALE, unscale);
    case_out(c, 0, DT_F32, DIMS(CLIP_COUNT));
    c->inner[0] = 4 * F32_UNIT;
    c->by_element = true;
    case_note(c, "sum %g limit %g unscale %g", sum, limit, unscale);
}

/* What both optimizers read besides the parameter: scalars at `slot`, clip coefficients after it. */
static void any_step(struct op_case *c, int slot)
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
    if (clipped) {
        case_in(c, slot + 1, DT_F32, DIMS(CLIP_COUNT));
        case_set(c, slot + 1, CLIP_MULTIPLIER, skip ? (double)NAN : case_uniform(c, 0.001, 1));
        case_set(c, slot + 1, CLIP_NORM, skip ? (double)INFINITY : 3);
        case_set(c, slot + 1, CLIP_FINITE, !skip);
    }
    if (skip) case_set(c, 1, case_below(c, case_count(c, 1)), case_flip(c) ? (double)NAN : (double)INFINITY);
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

void make_adamw(struct op_case *c)
{
    struct lead size = any_size(c);
    bool master = c->type != DT_F32 && case_below(c, 3) != 0, fresh = case_below(c, 4) == 0;
    case_in(c, 0, c->type, size.ndim, size.dim);
    for (int i = 1; i < 4; i++) case_in(c, i, DT_F32, size.ndim, size.dim);
    case_fill(c, 1, 0, case_flip(c) ? 0.1 : 1e-4);
    case_fill(c, 2, 0, fresh ? 0 : 0.1);
    for (int64_t i = 0; i < size.rows; i++) case_set(c, 3, i, fresh ? 0 : 0.01 * case_uniform(c, 0.01, 2));
    if (master) master_in(c, 4, size);
    any_step(c, 5);
    case_out(c, 0, c->type, size.ndim, size.dim);
    for (int i = 1; i < 3; i++) case_out(c, i, DT_F32, size.ndim, size.dim);
    if (master) case_out(c, 3, op_case_in(c, 4)->type, size.ndim, size.dim);
    for (int i = 0; i < 4; i++) c->inner[i] = 8 * F32_UNIT;
    c->scale[0] = c->scale[3] = 1, c->scale[1] = 0.1;
}

void make_sgd(struct op_case *c)
{
    struct lead size = any_size(c);
    bool master = c->type != DT_F32 && case_below(c, 3) != 0, momentum = case_flip(c);
    case_in(c, 0, c->type, size.ndim, size.dim);
    case_in(c, 1, DT_F32, size.ndim, size.dim);
    if (momentum) case_in(c, 2, DT_F32, size.ndim, size.dim);
    if (master) master_in(c, 3, size);
    any_step(c, 4);
    c->op.attr.nesterov = momentum && case_flip(c);
    case_out(c, 0, c->type, size.ndim, size.dim);
    if (momentum) case_out(c, 1, DT_F32, size.ndim, size.dim);
    if (master) case_out(c, 2, op_case_in(c, 3)->type, size.ndim, size.dim);
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
