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
    case_in(c, EMBED_BWD_IDS, DT_I32, lead.ndim, lead.dim);
    if (vocab > 1 && case_below(c, 3) == 0) c->op.attr.first = 1 + case_below(c, vocab - 1);
    for (int64_t i = 0; i < lead.rows; i++)
        case_set_int(c, EMBED_BWD_IDS, i, (int32_t)case_below(c, vocab - c->op.attr.first));
    case_in_rows(c, EMBED_BWD_DY, c->type, lead, width);
    c->op.attr.weight_kn = case_below(c, 4) == 0;
    if (c->op.attr.weight_kn)
        case_acc(c, EMBED_BWD_DW, grad_type(c), DIMS(width, vocab));
    else
        case_acc(c, EMBED_BWD_DW, grad_type(c), DIMS(vocab, width));
    if (case_below(c, 3) == 0) c->op.attr.scale = (float)sqrt((double)width) * 1.1f;
    int64_t each = lead.rows / (vocab - c->op.attr.first); /* rows of a token */
    c->inner[EMBED_BWD_DW] = sum_error(1 + each) * (1 + (double)c->op.attr.scale);
    c->scale[EMBED_BWD_DW] = sqrt(1 + (double)each);
}

static double largest_rstd(const struct op_case *c, int64_t rows, bool layer)
{
    double most = 0;
    for (int64_t r = 0; r < rows; r++) most = fmax(most, case_get(c, NORM_BWD_STAT, layer ? 2 * r + 1 : r));
    return most;
}

void make_norm_bwd(struct op_case *c)
{
    static const int from[] = {NORM_BWD_X, NORM_BWD_W, -1}, to[] = {NORM_BWD_DY, NORM_BWD_STAT, -1};
    bool layer = case_flip(c), bias = layer && case_flip(c), add = case_flip(c);
    bool frozen = case_below(c, 4) == 0; /* no gradient of the weight */
    struct lead lead = case_lead(c, 300);
    int64_t width =
        layer ? PICK(c, 2, 5, 16, 31, 64, 97, 257, 1000) : PICK(c, 1, 3, 16, 29, 64, 101, 257, 1000);
    double size = case_flip(c) ? 1 : 0.1;
    c->op.attr.layer_norm = layer, c->op.attr.plus_one = !layer && case_below(c, 3) == 0;
    c->op.attr.eps = 1e-5f;
    for (int i = NORM_BWD_DY; i <= NORM_BWD_X; i++) case_in_rows(c, i, c->type, lead, width);
    case_fill(c, NORM_BWD_X, layer && case_flip(c) ? size : 0, size);
    case_in(c, NORM_BWD_W, c->type, DIMS(width));
    case_in_rows(c, NORM_BWD_STAT, DT_F32, lead, layer ? 2 : 1);
    if (add) case_in_rows(c, NORM_BWD_ADD, c->type, lead, width);
    case_out_rows(c, NORM_BWD_DX, c->type, lead, width);
    enum dtype narrow = grad_type(c);
    if (!frozen) case_acc(c, NORM_BWD_DW, narrow, DIMS(width));
    if (bias && !frozen) case_acc(c, NORM_BWD_DBIAS, narrow, DIMS(width));
    /* The statistics are those of x; y is made on the way, in the place of dy, and dy is filled again. */
    case_forward(c, OP_NORM, from, to);
    case_fill(c, NORM_BWD_DY, 0, 1);
    double magnified = case_magnified(c, NORM_BWD_X, width, layer);
    c->inner[NORM_BWD_DX] = sum_error(width);
    c->scale[NORM_BWD_DX] = largest_rstd(c, lead.rows, layer) * (1 + magnified);
    c->inner[NORM_BWD_DW] = c->inner[NORM_BWD_DBIAS] = sum_error(lead.rows);
    c->scale[NORM_BWD_DW] = magnified;
    c->scale[NORM_BWD_DBIAS] = sqrt((double)lead.rows);
    case_note(c, "%s deviation %.1f", layer ? "layer" : "rms", size);
}

struct sizes {
    struct lead lead;
    int64_t m, k;
    int64_t width; /* of x: k for each part */
};

static struct sizes any_sizes(struct op_case *c, const int64_t max_rows)
{
    struct sizes s = {.lead = case_lead(c, max_rows)};
    s.m = PICK(c, 1, 5, 16, 37, 64, 101, 257, 300);
    s.k = PICK(c, 1, 3, 16, 32, 67, 128, 131);
    if (c->op.attr.tf32 && case_flip(c)) s.m = PICK(c, 256, 300), s.k = PICK(c, 128, 256);
    case_adapter(c, &s.lead, &s.m, &s.k);
    int64_t parts = case_parts(c, s.m);
    s.width = parts * s.k;
    c->op.attr.weight_kn = parts == 1 && case_flip(c);
    case_note(c, "weight %s, %d parts", c->op.attr.weight_kn ? "[in,out]" : "[out,in]", (int)parts);
    return s;
}

void make_linear_dx(struct op_case *c)
{
    struct sizes s = any_sizes(c, 200);
    bool kn = c->op.attr.weight_kn;
    case_in_rows(c, LINEAR_DX_DY, c->type, s.lead, s.m);
    case_in(c, LINEAR_DX_W, c->type, DIMS(kn ? s.k : s.m, kn ? s.m : s.k));
    if (case_flip(c)) case_in_rows(c, LINEAR_DX_ADD, c->type, s.lead, s.width);
    case_out_rows(c, LINEAR_DX_DX, c->type, s.lead, s.width);
    c->inner[LINEAR_DX_DX] = sum_error(s.m);
    c->scale[LINEAR_DX_DX] = sqrt((double)s.m);
}

void make_linear_dw(struct op_case *c)
{
    struct sizes s = any_sizes(c, 600);
    bool kn = c->op.attr.weight_kn, frozen = case_below(c, 5) == 0; /* the bias alone is trained */
    case_in_rows(c, LINEAR_DW_DY, c->type, s.lead, s.m);
    if (!frozen) case_in_rows(c, LINEAR_DW_X, c->type, s.lead, s.width);
    enum dtype narrow = grad_type(c);
    if (!frozen) case_acc(c, LINEAR_DW_DW, narrow, DIMS(kn ? s.k : s.m, kn ? s.m : s.k));
    bool bias = frozen || case_flip(c);
    if (bias) case_acc(c, LINEAR_DW_DBIAS, narrow, DIMS(s.m));
    c->op.attr.fresh = bias && case_flip(c);
    c->inner[LINEAR_DW_DW] = c->inner[LINEAR_DW_DBIAS] = sum_error(s.lead.rows);
    c->scale[LINEAR_DW_DW] = c->scale[LINEAR_DW_DBIAS] = sqrt((double)s.lead.rows);
}

void make_glu_bwd(struct op_case *c)
{
    struct lead lead = case_lead(c, 60);
    int64_t width = any_width(c);
    bool joint = c->op.attr.joint = case_flip(c), again = case_flip(c);
    case_in_rows(c, GLU_BWD_DH, c->type, lead, width);
    case_in_rows(c, GLU_BWD_GATE, c->type, lead, joint ? 2 * width : width);
    if (!joint) case_in_rows(c, GLU_BWD_UP, c->type, lead, width);
    case_fill_gates(c, GLU_BWD_GATE, width);
    case_out_rows(c, GLU_BWD_DGATE, c->type, lead, joint ? 2 * width : width);
    if (!joint) case_out_rows(c, GLU_BWD_DUP, c->type, lead, width);
    if (again) case_out_rows(c, GLU_BWD_H, c->type, lead, width);
    case_activation(c);
    c->inner[GLU_BWD_DGATE] = 48 * F32_UNIT, c->inner[GLU_BWD_DUP] = c->inner[GLU_BWD_H] = 8 * F32_UNIT;
    c->scale[GLU_BWD_DGATE] = c->scale[GLU_BWD_DUP] = c->scale[GLU_BWD_H] =
        0.1; /* where the gate is shut, results are nothing beside their inputs */
}

void make_act_bwd(struct op_case *c)
{
    struct lead lead = case_lead(c, 60);
    int64_t width = any_width(c);
    for (int i = ACT_BWD_DY; i <= ACT_BWD_X; i++) case_in_rows(c, i, c->type, lead, width);
    case_fill(c, ACT_BWD_X, 0, case_flip(c) ? 1 : 10);
    for (int i = ACT_BWD_DX, last = case_flip(c) ? ACT_BWD_Y : ACT_BWD_DX; i <= last; i++)
        case_out_rows(c, i, c->type, lead, width);
    case_activation(c);
    /* x (1 - tanh^2) x^2: what tanh loses near one is multiplied by x^3 until it saturates, at x = 5. */
    c->inner[ACT_BWD_DX] = c->inner[ACT_BWD_Y] = 48 * F32_UNIT;
    c->scale[ACT_BWD_DX] = c->scale[ACT_BWD_Y] =
        0.1; /* where the gate is shut, results are nothing beside what they are made from */
}

void make_pool_bwd(struct op_case *c)
{
    int64_t rows = PICK(c, 1, 2, 3, 5, 8), time = PICK(c, 1, 2, 7, 16, 33, 130), width = any_width(c);
    double scale, most = 0;
    case_pooling(c);
    case_in(c, POOL_BWD_DY, c->type, DIMS(rows, width));
    case_in(c, POOL_BWD_Y, c->type, DIMS(rows, width));
    case_in(c, POOL_BWD_STAT, DT_F32, DIMS(rows));
    if (case_flip(c)) case_lengths(c, POOL_BWD_LENGTHS, rows, time);
    case_out(c, POOL_BWD_DX, c->type, DIMS(rows, time, width));
    scale = c->op.attr.scale != 0 ? (double)c->op.attr.scale : 1;
    for (int64_t b = 0; b < rows; b++) { /* y as forward leaves it: of length scale */
        double squares = 0, stat = c->op.attr.normalize ? case_uniform(c, 0.1, 4) : 1;
        for (int64_t i = 0; i < width; i++) squares += pow(case_get(c, POOL_BWD_Y, b * width + i), 2);
        for (int64_t i = 0; c->op.attr.normalize && i < width; i++)
            case_set(c, POOL_BWD_Y, b * width + i,
                     case_get(c, POOL_BWD_Y, b * width + i) * scale / sqrt(squares));
        case_set(c, POOL_BWD_STAT, b, stat);
        most = fmax(most, stat * scale);
    }
    c->inner[POOL_BWD_DX] = sum_error(width);
    c->scale[POOL_BWD_DX] = 2 * most * sqrt((double)width); /* what is taken away along y */
}

void make_column_scale_bwd(struct op_case *c)
{
    struct lead lead = case_lead(c, 300);
    int64_t width = any_width(c);
    case_in_rows(c, COLUMN_SCALE_BWD_DY, c->type, lead, width);
    case_in_rows(c, COLUMN_SCALE_BWD_X, c->type, lead, width);
    case_in(c, COLUMN_SCALE_BWD_M, c->type, DIMS(width));
    case_in(c, COLUMN_SCALE_BWD_NORM, DT_F32, DIMS(width));
    for (int64_t i = 0; i < width; i++) case_set(c, COLUMN_SCALE_BWD_NORM, i, case_uniform(c, 0.5, 3));
    if (case_flip(c)) case_in(c, COLUMN_SCALE_BWD_BIAS, c->type, DIMS(width));
    case_out_rows(c, COLUMN_SCALE_BWD_DX, c->type, lead, width);
    case_acc(c, COLUMN_SCALE_BWD_DM, grad_type(c), DIMS(width));
    c->inner[COLUMN_SCALE_BWD_DX] = 8 * F32_UNIT;
    c->inner[COLUMN_SCALE_BWD_DM] = 4 * sum_error(lead.rows);
    c->scale[COLUMN_SCALE_BWD_DM] = 3 * sqrt(1 + (double)lead.rows);
}
