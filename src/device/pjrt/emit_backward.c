/* emit_backward.c - gradients of products, tables, norms and activations. */
#include "device/pjrt/emit_parts.h"
#include "tape/parts.h"

static void emit_linear_dx(struct emit *e)
{
    struct hlo *h = e->h;
    struct hlo_value dy = emit_in(e, LINEAR_DX_DY), w = emit_in(e, LINEAR_DX_W), dx = {0};
    const int side = e->op->attr.weight_kn ? 1 : 0; /* of W's two dimensions, M */
    const struct hlo_pairs pairs = {.sum = 1, .a_sum = {1}, .b_sum = {side}};
    const int64_t m = w.dim[side];
    struct weight_part part;
    dy = hlo_reshape(h, dy, HLO_SHAPE(hlo_count(&dy) / m, m));
    for (int i = 0; weight_part(&e->op->attr, m, w.dim[1 - side], i, &part); i++) {
        bool whole = part.lines == m;
        struct hlo_value own = whole ? hlo_dot(h, dy, w, &pairs)
                                     : hlo_dot(h, hlo_slice(h, dy, 1, part.line, part.lines),
                                               hlo_slice(h, w, 0, part.line, part.lines), &pairs);
        dx = i ? hlo_concat(h, 1, dx, own) : own;
    }
    if (emit_has(e, LINEAR_DX_ADD)) dx = hlo_add(h, dx, part_rows(e, LINEAR_DX_ADD, dx.dim[1]));
    emit_out(e, LINEAR_DX_DX, dx);
}
const struct emitter pjrt_linear_dx = {.emit = emit_linear_dx};

static void emit_weight_gradient(struct emit *e)
{
    static const struct hlo_pairs rows = {.sum = 1, .a_sum = {0}, .b_sum = {0}};
    const struct tensor *dw = emit_out_tensor(e, LINEAR_DW_DW);
    const bool kn = e->op->attr.weight_kn;
    const int64_t m = dw->dim[kn ? 1 : 0], k = dw->dim[kn ? 0 : 1];
    struct hlo_value dy = part_rows_in(e, LINEAR_DW_DY, m), product = {0};
    struct hlo_value x = part_rows_in(e, LINEAR_DW_X, k * weight_parts(&e->op->attr));
    struct weight_part part;
    for (int i = 0; weight_part(&e->op->attr, m, k, i, &part); i++) {
        bool whole = part.lines == m;
        struct hlo_value own_dy = whole ? dy : hlo_slice(e->h, dy, 1, part.line, part.lines),
                         own_x = whole ? x : hlo_slice(e->h, x, 1, part.column, k);
        struct hlo_value own = hlo_dot(e->h, kn ? own_x : own_dy, kn ? own_dy : own_x, &rows);
        product = i ? hlo_concat(e->h, 0, product, own) : own;
    }
    if (e->op->attr.fresh)
        emit_out(e, LINEAR_DW_DW, product);
    else
        emit_sum(e, LINEAR_DW_DW, product);
}

static void emit_linear_dw(struct emit *e)
{
    if (emit_wants(e, LINEAR_DW_DW)) emit_weight_gradient(e);
    if (!emit_wants(e, LINEAR_DW_DBIAS)) return;
    int64_t width = tensor_count(emit_out_tensor(e, LINEAR_DW_DBIAS));
    emit_sum(e, LINEAR_DW_DBIAS, hlo_reduce(e->h, "add", part_rows(e, LINEAR_DW_DY, width), 1));
}
const struct emitter pjrt_linear_dw = {.emit = emit_linear_dw};

/* The rows of dy are added to those of dW one by one. */
static void emit_embed_bwd(struct emit *e)
{
    struct hlo *h = e->h;
    static const int order[] = {1, 0};
    bool turned = e->op->attr.weight_kn;
    const struct tensor *dw = emit_out_tensor(e, EMBED_BWD_DW);
    int64_t vocabulary = dw->dim[turned ? 1 : 0], width = dw->dim[turned ? 0 : 1];
    struct hlo_value ids = emit_in(e, EMBED_BWD_IDS), dy = emit_in(e, EMBED_BWD_DY);
    ids = hlo_reshape(h, ids, HLO_SHAPE(hlo_count(&ids)));
    if (e->op->attr.first) ids = hlo_plus(h, ids, (double)e->op->attr.first);
    struct hlo_value scale = hlo_convert(h, hlo_scalar(h, dy.type, (double)e->op->attr.scale), HLO_F32);
    struct hlo_value rows = part_rows(e, EMBED_BWD_DY, width);
    if (e->op->attr.scale != 0) rows = hlo_mul(h, rows, hlo_over(h, scale, rows, 0));
    struct hlo_value table = hlo_fill(h, HLO_F32, 0, HLO_SHAPE(vocabulary, width));
    if (e->accumulate) table = hlo_convert(h, emit_old(e, EMBED_BWD_DW), HLO_F32);
    if (e->accumulate && turned) table = hlo_transpose(h, table, order);
    table = hlo_put(h, table, ids, rows, true);
    emit_out(e, EMBED_BWD_DW, turned ? hlo_transpose(h, table, order) : table);
}
const struct emitter pjrt_embed_bwd = {.emit = emit_embed_bwd};

/* A row's mean as a column repeated over the row. */
static struct hlo_value row_mean(struct hlo *h, struct hlo_value v)
{
    struct hlo_value mean = hlo_times(h, hlo_reduce(h, "add", v, 1u << 1), 1 / (double)v.dim[1]);
    return hlo_over(h, mean, v, 0);
}

/* With u = (x - mean) rstd and d = dy w:  dx = rstd (d - [mean of d] - u mean of (d u)); the middle term is LayerNorm's. */
static void emit_norm_bwd(struct emit *e)
{
    struct hlo *h = e->h;
    bool layer = e->op->attr.layer_norm;
    int64_t width = tensor_count(emit_in_tensor(e, NORM_BWD_W));
    struct hlo_value dy = part_rows(e, NORM_BWD_DY, width), x = part_rows(e, NORM_BWD_X, width);
    struct hlo_value stat = part_rows(e, NORM_BWD_STAT, layer ? 2 : 1);
    struct hlo_value rstd = hlo_over(h, hlo_slice(h, stat, 1, layer ? 1 : 0, 1), x, 0);
    if (layer) x = hlo_sub(h, x, hlo_over(h, hlo_slice(h, stat, 1, 0, 1), x, 0));
    struct hlo_value u = hlo_mul(h, x, rstd), w = emit_real(e, NORM_BWD_W);
    if (e->op->attr.plus_one) w = hlo_plus(h, w, 1);
    struct hlo_value d = hlo_mul(h, dy, hlo_over(h, w, dy, 1));
    struct hlo_value dx = hlo_sub(h, d, hlo_mul(h, u, row_mean(h, hlo_mul(h, d, u))));
    if (layer) dx = hlo_sub(h, dx, row_mean(h, d));
    dx = hlo_mul(h, dx, rstd);
    if (emit_has(e, NORM_BWD_ADD)) dx = hlo_add(h, dx, part_rows(e, NORM_BWD_ADD, width));
    emit_out(e, NORM_BWD_DX, dx);
    if (emit_wants(e, NORM_BWD_DW)) emit_sum(e, NORM_BWD_DW, hlo_reduce(h, "add", hlo_mul(h, dy, u), 1));
    if (emit_wants(e, NORM_BWD_DBIAS)) emit_sum(e, NORM_BWD_DBIAS, hlo_reduce(h, "add", dy, 1));
}
const struct emitter pjrt_norm_bwd = {.emit = emit_norm_bwd};

/* --- activations --------------------------------------------------------------------------------------------- */

/* The slope of x s(z), s the sigmoid: s + x s (1 - s) z'. 1 - s is the sigmoid of -z. */
static struct hlo_value gated_slope(struct hlo *h, struct hlo_value x, struct hlo_value z,
                                    struct hlo_value slope_of_z)
{
    struct hlo_value s = hlo_unary(h, "logistic", z),
                     rest = hlo_unary(h, "logistic", hlo_unary(h, "negate", z));
    return hlo_add(h, s, hlo_mul(h, hlo_mul(h, hlo_mul(h, x, s), rest), slope_of_z));
}

/* The tanh form of GELU is x s(z) with z = x (a + b x^2). */
static struct hlo_value gelu_tanh_slope(struct hlo *h, struct hlo_value x)
{
    const double a = 1.5957691216057308, b = 0.07135481627260025;
    struct hlo_value square = hlo_mul(h, x, x);
    struct hlo_value z = hlo_mul(h, x, hlo_plus(h, hlo_times(h, square, b), a));
    return gated_slope(h, x, z, hlo_plus(h, hlo_times(h, square, 3 * b), a));
}

/* P(X < x) + x times the density of a normal X. */
static struct hlo_value gelu_slope(struct hlo *h, struct hlo_value x)
{
    struct hlo_value tail = part_normal_tail(h, x), above = hlo_compare_to(h, "GT", x, 0);
    struct hlo_value below = hlo_select(h, above, hlo_sub(h, hlo_like(h, x, 1), tail), tail);
    struct hlo_value bell = hlo_unary(h, "exponential", hlo_times(h, hlo_mul(h, x, x), -0.5));
    return hlo_add(h, below, hlo_mul(h, hlo_times(h, x, 0.3989422804014327), bell));
}

static struct hlo_value slope_of(struct hlo *h, const struct op_attr *attr, struct hlo_value x)
{
    struct hlo_value one = hlo_like(h, x, 1), t;
    double cap = attr->cap > 0 ? (double)attr->cap : 1;
    switch (attr->activation) {
    case ACTIVATION_GELU_TANH:
        return gelu_tanh_slope(h, x);
    case ACTIVATION_GELU:
        return gelu_slope(h, x);
    case ACTIVATION_RELU:
        return hlo_select(h, hlo_compare_to(h, "GT", x, 0), one, hlo_like(h, x, 0));
    case ACTIVATION_TANH:
        t = hlo_unary(h, "tanh", hlo_div(h, x, hlo_like(h, x, cap)));
        return hlo_sub(h, one, hlo_mul(h, t, t));
    case ACTIVATION_SCALE:
        return hlo_like(h, x, attr->scale != 0 ? (double)attr->scale : 1);
    default:
        return gated_slope(h, x, x, one);
    }
}

static void emit_glu_bwd(struct emit *e)
{
    struct hlo *h = e->h;
    const struct tensor *dh = emit_in_tensor(e, GLU_BWD_DH);
    bool joint = e->op->attr.joint;
    int64_t width = last_dim(dh);
    struct hlo_value gate = part_rows(e, GLU_BWD_GATE, joint ? 2 * width : width), up;
    if (joint) {
        up = hlo_slice(h, gate, 1, width, width);
        gate = hlo_slice(h, gate, 1, 0, width);
    } else {
        up = part_rows(e, GLU_BWD_UP, width);
    }
    struct hlo_value d = part_rows(e, GLU_BWD_DH, width), value = part_activation(h, &e->op->attr, gate);
    struct hlo_value dgate = hlo_mul(h, hlo_mul(h, d, up), slope_of(h, &e->op->attr, gate)),
                     dup = hlo_mul(h, d, value);
    emit_out(e, GLU_BWD_DGATE, joint ? hlo_concat(h, 1, dgate, dup) : dgate);
    if (!joint) emit_out(e, GLU_BWD_DUP, dup);
    if (emit_wants(e, GLU_BWD_H)) emit_out(e, GLU_BWD_H, hlo_mul(h, value, up));
}
const struct emitter pjrt_glu_bwd = {.emit = emit_glu_bwd};

static void emit_act_bwd(struct emit *e)
{
    const struct op_attr *attr = &e->op->attr;
    struct hlo_value dy = emit_real(e, ACT_BWD_DY), x = emit_real(e, ACT_BWD_X);
    x = hlo_reshape(e->h, x, dy.ndim, dy.dim);
    emit_out(e, ACT_BWD_DX, hlo_mul(e->h, dy, slope_of(e->h, attr, x)));
    if (emit_wants(e, ACT_BWD_Y)) emit_out(e, ACT_BWD_Y, part_activation(e->h, attr, x));
}
const struct emitter pjrt_act_bwd = {.emit = emit_act_bwd};

static void emit_join3(struct emit *e)
{
    struct hlo *h = e->h;
    struct hlo_value q = emit_real(e, JOIN3_Q), k = emit_real(e, JOIN3_K), v = emit_real(e, JOIN3_V);
    if (emit_has(e, JOIN3_TABLE)) {
        struct hlo_value table = emit_real(e, JOIN3_TABLE);
        q = part_rotate(h, q, table, true), k = part_rotate(h, k, table, true);
    }
    emit_out(e, JOIN3_X, hlo_concat(h, 2, hlo_concat(h, 2, q, k), v));
}
const struct emitter pjrt_join3 = {.emit = emit_join3};

static void emit_row_gate_bwd(struct emit *e)
{
    struct hlo *h = e->h;
    struct hlo_value gate = emit_real(e, ROW_GATE_BWD_GATE), x = emit_real(e, ROW_GATE_BWD_X);
    int64_t rows = hlo_count(&gate), width = hlo_count(&x) / rows;
    x = hlo_reshape(h, x, HLO_SHAPE(rows, width)), gate = hlo_reshape(h, gate, HLO_SHAPE(rows));
    struct hlo_value dy = part_rows(e, ROW_GATE_BWD_DY, width), s = hlo_unary(h, "logistic", gate);
    struct hlo_value slope = hlo_mul(h, s, hlo_unary(h, "logistic", hlo_unary(h, "negate", gate)));
    emit_out(e, ROW_GATE_BWD_DX, hlo_mul(h, dy, hlo_over(h, s, dy, 0)));
    emit_out(e, ROW_GATE_BWD_DGATE, hlo_mul(h, hlo_reduce(h, "add", hlo_mul(h, dy, x), 1u << 1), slope));
}
const struct emitter pjrt_row_gate_bwd = {.emit = emit_row_gate_bwd};

static void emit_column_scale_bwd(struct emit *e)
{
    struct hlo *h = e->h;
    int64_t width = tensor_count(emit_in_tensor(e, COLUMN_SCALE_BWD_M));
    struct hlo_value dy = part_rows(e, COLUMN_SCALE_BWD_DY, width),
                     x = part_rows(e, COLUMN_SCALE_BWD_X, width);
    if (emit_has(e, COLUMN_SCALE_BWD_BIAS))
        x = hlo_sub(h, x, hlo_over(h, emit_real(e, COLUMN_SCALE_BWD_BIAS), x, 1));
    struct hlo_value sum = hlo_reduce(h, "add", hlo_mul(h, dy, x), 1);
    struct hlo_value by = part_column_factor(e, COLUMN_SCALE_BWD_M, COLUMN_SCALE_BWD_NORM, dy);
    emit_out(e, COLUMN_SCALE_BWD_DX, hlo_mul(h, dy, by));
    emit_sum(e, COLUMN_SCALE_BWD_DM, hlo_div(h, sum, emit_real(e, COLUMN_SCALE_BWD_NORM)));
}
const struct emitter pjrt_column_scale_bwd = {.emit = emit_column_scale_bwd};

/* 1 where token t of row b is part of the row's vector, else 0: [B,T]; *parts: how many are, at least 1: [B]. */
static struct hlo_value pooled(struct emit *e, const struct tensor *dx, struct hlo_value *parts)
{
    struct hlo *h = e->h;
    const int row[] = {0};
    struct hlo_value t = hlo_iota(h, HLO_I32, 1, HLO_SHAPE(dx->dim[0], dx->dim[1]));
    struct hlo_value length = hlo_fill(h, HLO_I32, (double)dx->dim[1], 1, dx->dim);
    if (emit_has(e, POOL_BWD_LENGTHS)) length = emit_in(e, POOL_BWD_LENGTHS);
    if (e->op->attr.pooling == POOLING_FIRST)
        length = hlo_binary(h, "minimum", length, hlo_like(h, length, 1));
    struct hlo_value part = hlo_compare(h, "LT", t, hlo_broadcast(h, length, row, 2, t.dim));
    *parts = hlo_convert(h, hlo_binary(h, "maximum", length, hlo_like(h, length, 1)), HLO_F32);
    return hlo_convert(h, part, HLO_F32);
}

/* dx of a part is scale stat (dy - u (u . dy)) / parts with u = y / scale, the second term only with attr.normalize. */
static void emit_pool_bwd(struct emit *e)
{
    struct hlo *h = e->h;
    const struct tensor *dx = emit_out_tensor(e, POOL_BWD_DX);
    double scale = e->op->attr.scale != 0 ? (double)e->op->attr.scale : 1;
    struct hlo_value parts, part = pooled(e, dx, &parts), d = emit_real(e, POOL_BWD_DY);
    struct hlo_value factor = hlo_div(h, hlo_times(h, emit_real(e, POOL_BWD_STAT), scale), parts);
    if (e->op->attr.normalize) {
        struct hlo_value u = hlo_times(h, emit_real(e, POOL_BWD_Y), 1 / scale);
        struct hlo_value along = hlo_reduce(h, "add", hlo_mul(h, u, d), 1u << 1);
        d = hlo_sub(h, d, hlo_mul(h, u, hlo_over(h, along, d, 0)));
    }
    d = hlo_mul(h, d, hlo_over(h, factor, d, 0));
    const int row[] = {0, 2};
    struct hlo_value all = hlo_broadcast(h, d, row, dx->ndim, dx->dim);
    emit_out(e, POOL_BWD_DX, hlo_mul(h, all, hlo_over(h, part, all, 0)));
}
const struct emitter pjrt_pool_bwd = {.emit = emit_pool_bwd};
