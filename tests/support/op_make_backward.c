/* op_make_backward.c - makers of backward cases (attention's is in op_make_attn.c). */
#include "support/op_make.h"

#include <math.h>

/* Gradients of parameters are f32 or of the compute type. */
static enum dtype grad_type(struct op_case *c) { return case_below(c, 3) ? DT_F32 : c->type; }

static int64_t any_width(struct op_case *c) { return PICK(c, 1, 2, 3, 7, 16, 31, 37, 64, 97, 129, 200, 257); }

void make_embed_bwd(struct op_case *c)
{
    struct lead lead = case_lead(c, 300);
    int64_t vocab = PICK(c, 1, 7, 53, 1000), width = any_width(c);
    case_in(c, 0, DT_I32, lead.ndim, lead.dim);
    for (int64_t i = 0; i < lead.rows; i++) case_set_int(c, 0, i, (int32_t)case_below(c, vocab));
    case_in_rows(c, 1, c->type, lead, width);
    case_acc(c, 0, grad_type(c), DIMS(vocab, width));
    c->inner[0] = sum_error(1 + lead.rows / vocab);
    c->scale[0] = sqrt(1 + (double)lead.rows / (double)vocab);
}

static double largest_rstd(const struct op_case *c, int64_t rows, bool layer)
{
    double most = 0;
    for (int64_t r = 0; r < rows; r++) most = fmax(most, case_get(c, 3, layer ? 2 * r + 1 : r));
    return most;
}

void make_norm_bwd(struct op_case *c)
{
    static const int from[] = {1, 2, -1};
    bool layer = case_flip(c), bias = layer && case_flip(c), add = case_flip(c);
    struct lead lead = case_lead(c, 300);
    int64_t width =
        layer ? PICK(c, 2, 5, 16, 31, 64, 97, 257, 1000) : PICK(c, 1, 3, 16, 29, 64, 101, 257, 1000);
    double size = case_flip(c) ? 1 : 0.1;
    c->op.attr.layer_norm = layer;
    c->op.attr.eps = 1e-5f;
    for (int i = 0; i < 2; i++) case_in_rows(c, i, c->type, lead, width);
    case_fill(c, 1, layer && case_flip(c) ? size : 0, size);
    case_in(c, 2, c->type, DIMS(width));
    case_in_rows(c, 3, DT_F32, lead, layer ? 2 : 1);
    if (add) case_in_rows(c, 4, c->type, lead, width);
    case_out_rows(c, 0, c->type, lead, width);
    enum dtype narrow = grad_type(c);
    case_acc(c, 1, narrow, DIMS(width));
    if (bias) case_acc(c, 2, narrow, DIMS(width));
    /* The statistics are those of x; y is made on the way, in the place of dy, and dy is filled again. */
    case_forward(c, OP_NORM, from, (const int[]){0, 3, -1});
    case_fill(c, 0, 0, 1);
    double magnified = case_magnified(c, 1, width, layer);
    c->inner[0] = sum_error(width);
    c->scale[0] = largest_rstd(c, lead.rows, layer) * (1 + magnified);
    c->inner[1] = c->inner[2] = sum_error(lead.rows);
    c->scale[1] = magnified;
    c->scale[2] = sqrt((double)lead.rows);
    case_note(c, "%s deviation %.1f", layer ? "layer" : "rms", size);
}

struct sizes {
    struct lead lead;
    int64_t m, k;
};

static struct sizes any_sizes(struct op_case *c, const int64_t max_rows)
{
    struct sizes s = {.lead = case_lead(c, max_rows)};
    s.m = PICK(c, 1, 5, 16, 37, 64, 101, 257, 300);
    s.k = PICK(c, 1, 3, 16, 32, 67, 128, 131);
    if (c->op.attr.tf32 && case_flip(c)) s.m = PICK(c, 256, 300), s.k = PICK(c, 128, 256);
    c->op.attr.weight_kn = case_flip(c);
    case_note(c, "weight %s", c->op.attr.weight_kn ? "[in,out]" : "[out,in]");
    return s;
}

void make_linear_dx(struct op_case *c)
{
    struct sizes s = any_sizes(c, 200);
    bool kn = c->op.attr.weight_kn;
    case_in_rows(c, 0, c->type, s.lead, s.m);
    case_in(c, 1, c->type, DIMS(kn ? s.k : s.m, kn ? s.m : s.k));
    if (case_flip(c)) case_in_rows(c, 2, c->type, s.lead, s.k);
    case_out_rows(c, 0, c->type, s.lead, s.k);
    c->inner[0] = sum_error(s.m);
    c->scale[0] = sqrt((double)s.m);
}

void make_linear_dw(struct op_case *c)
{
    struct sizes s = any_sizes(c, 600);
    bool kn = c->op.attr.weight_kn;
    case_in_rows(c, 0, c->type, s.lead, s.m);
    case_in_rows(c, 1, c->type, s.lead, s.k);
    enum dtype narrow = grad_type(c);
    case_acc(c, 0, narrow, DIMS(kn ? s.k : s.m, kn ? s.m : s.k));
    if (case_flip(c)) case_acc(c, 1, narrow, DIMS(s.m));
    c->inner[0] = c->inner[1] = sum_error(s.lead.rows);
    c->scale[0] = c->scale[1] = sqrt((double)s.lead.rows);
}

void make_swiglu_bwd(struct op_case *c)
{
    struct lead lead = case_lead(c, 60);
    int64_t width = any_width(c);
    for (int i = 0; i < 3; i++) case_in_rows(c, i, c->type, lead, width);
    case_fill(c, 1, 0, case_flip(c) ? 1 : 20);
    for (int i = 0, outs = case_flip(c) ? 3 : 2; i < outs; i++) case_out_rows(c, i, c->type, lead, width);
    c->inner[0] = 16 * F32_UNIT, c->inner[1] = c->inner[2] = 8 * F32_UNIT;
    c->scale[0] = c->scale[1] = c->scale[2] =
        0.1; /* where the gate is shut, results are nothing beside their inputs */
}

void make_gelu_bwd(struct op_case *c)
{
    struct lead lead = case_lead(c, 60);
    int64_t width = any_width(c);
    for (int i = 0; i < 2; i++) case_in_rows(c, i, c->type, lead, width);
    case_fill(c, 1, 0, case_flip(c) ? 1 : 10);
    for (int i = 0, outs = case_flip(c) ? 2 : 1; i < outs; i++) case_out_rows(c, i, c->type, lead, width);
    /* x (1 - tanh^2) x^2: what tanh loses near one is multiplied by x^3 until it saturates, at x = 5. */
    c->inner[0] = c->inner[1] = 48 * F32_UNIT;
    c->scale[0] = c->scale[1] =
        0.1; /* where the gate is shut, results are nothing beside what they are made from */
}
