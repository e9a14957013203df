/* op_make_forward.c - makers of forward cases (attention and its kin are in op_make_attn.c). */
#include "support/op_make.h"

#include <math.h>

static int64_t any_width(struct op_case *c) { return PICK(c, 1, 2, 3, 7, 16, 31, 37, 64, 97, 129, 200, 257); }

static void fill_ids(struct op_case *c, int slot, int64_t vocab)
{
    for (int64_t i = 0; i < case_count(c, slot); i++) case_set_int(c, slot, i, (int32_t)case_below(c, vocab));
}

void make_embed(struct op_case *c)
{
    struct lead lead = case_lead(c, 200);
    int64_t vocab = PICK(c, 1, 7, 53, 1000), width = any_width(c);
    bool add = case_flip(c);
    case_in(c, 0, DT_I32, lead.ndim, lead.dim);
    case_in(c, 1, c->type, DIMS(vocab, width));
    if (add) case_in_rows(c, 2, c->type, lead, width);
    case_out_rows(c, 0, c->type, lead, width);
    fill_ids(c, 0, vocab);
    c->inner[0] = 2 * F32_UNIT;
    c->exact = !add;
}

void make_norm(struct op_case *c)
{
    bool layer = case_flip(c), bias = layer && case_flip(c); /* RMSNorm has no bias */
    struct lead lead = case_lead(c, 150);
    int64_t width =
        layer ? PICK(c, 2, 5, 16, 31, 64, 97, 257, 1000) : PICK(c, 1, 3, 16, 29, 64, 101, 257, 1000);
    double offset = case_flip(c) ? 0 : case_uniform(c, -2, 2), size = case_flip(c) ? 1 : 0.02;
    c->op.attr.layer_norm = layer;
    c->op.attr.eps = case_flip(c) ? 1e-5f : 1e-6f;
    case_in_rows(c, 0, c->type, lead, width);
    case_fill(c, 0, offset * size, size);
    case_in(c, 1, c->type, DIMS(width));
    if (bias) case_in(c, 2, c->type, DIMS(width));
    case_out_rows(c, 0, c->type, lead, width);
    case_out_rows(c, 1, DT_F32, lead, layer ? 2 : 1);
    c->inner[0] = c->inner[1] = sum_error(width);
    c->scale[0] = case_magnified(c, 0, width, layer);
    case_note(c, "%s mean %.2f deviation %.2f", layer ? "layer" : "rms", offset * size, size);
}

void make_linear(struct op_case *c)
{
    struct lead lead = case_lead(c, 200);
    int64_t m = PICK(c, 1, 3, 16, 37, 64, 101, 131, 256), k = PICK(c, 1, 5, 16, 32, 67, 128, 257, 300, 523);
    if (c->op.attr.tf32 && case_flip(c)) m = PICK(c, 128, 256), k = PICK(c, 128, 300);
    bool kn = case_flip(c), bias = case_flip(c), add = case_flip(c);
    c->op.attr.weight_kn = kn;
    case_in_rows(c, 0, c->type, lead, k);
    case_in(c, 1, c->type, DIMS(kn ? k : m, kn ? m : k));
    if (bias) case_in(c, 2, c->type, DIMS(m));
    if (add) case_in_rows(c, 3, c->type, lead, m);
    case_out_rows(c, 0, c->type, lead, m);
    c->inner[0] = sum_error(k);
    c->scale[0] = sqrt((double)k);
    case_note(c, "weight %s", kn ? "[in,out]" : "[out,in]");
}

void make_swiglu(struct op_case *c)
{
    struct lead lead = case_lead(c, 60);
    int64_t width = any_width(c);
    for (int i = 0; i < 2; i++) case_in_rows(c, i, c->type, lead, width);
    case_fill(c, 0, 0, case_flip(c) ? 1 : 20);
    case_out_rows(c, 0, c->type, lead, width);
    c->inner[0] = 8 * F32_UNIT;
    c->scale[0] = 0.1; /* where the gate is shut, results are nothing beside what they are made from */
}

void make_gelu(struct op_case *c)
{
    struct lead lead = case_lead(c, 60);
    int64_t width = any_width(c);
    case_in_rows(c, 0, c->type, lead, width);
    case_fill(c, 0, 0, case_flip(c) ? 1 : 10);
    case_out_rows(c, 0, c->type, lead, width);
    c->inner[0] = 8 * F32_UNIT;
    c->scale[0] = 0.1; /* where the gate is shut, results are nothing beside what they are made from */
}

void make_add(struct op_case *c)
{
    struct lead lead = case_lead(c, 60);
    int64_t width = any_width(c);
    for (int i = 0; i < 2; i++) case_in_rows(c, i, c->type, lead, width);
    case_out_rows(c, 0, c->type, lead, width);
    c->inner[0] = 2 * F32_UNIT;
}

void make_xent(struct op_case *c)
{
    struct lead lead = case_lead(c, 70);
    int64_t vocab = PICK(c, 2, 17, 64, 101, 500, 1000, 4099);
    double heat = (double)PICK(c, 1, 5, 20), ignored = 0.5 * (double)PICK(c, 0, 0, 1, 2);
    bool grad = case_below(c, 4) != 0;
    case_in_rows(c, 0, c->type, lead, vocab);
    case_fill(c, 0, case_flip(c) ? 0 : heat, heat);
    case_in(c, 1, DT_I32, lead.ndim, lead.dim);
    fill_ids(c, 1, vocab);
    for (int64_t i = 0; i < lead.rows; i++)
        if (case_uniform(c, 0, 1) < ignored) case_set_int(c, 1, i, case_flip(c) ? -1 : -100);
    case_in(c, 2, DT_F32, DIMS(SCALAR_COUNT));
    case_set(c, 2, SCALAR_LOSS_GRAD, (case_flip(c) ? 1 : 1024) / (double)lead.rows);
    case_acc(c, 0, DT_F64, DIMS(2));
    if (grad) case_out_rows(c, 1, c->type, lead, vocab);
    c->inner[0] = 4 * F32_UNIT * sqrt((double)lead.rows);
    c->scale[0] = 1;
    c->inner[1] = 8 * F32_UNIT * (1 + heat);
    c->scale[1] = 2 * case_get(c, 2, SCALAR_LOSS_GRAD) / sqrt((double)vocab); /* p - 1 where p is nearly 1 */
    case_note(c, "heat %.0f ignored %.1f", heat, ignored);
}
