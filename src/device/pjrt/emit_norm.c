/* emit_norm.c - emitters that reduce rows: norms and pooling. */
#include "device/pjrt/emit_blocks.h"
#include "device/pjrt/emit_parts.h"

/* Means of the rows of [R,C]: [R]. */
static struct hlo_value row_means(struct hlo *h, struct hlo_value x)
{
    return hlo_times(h, hlo_reduce(h, "add", x, 1u << 1), 1 / (double)x.dim[1]);
}

static void emit_norm(struct emit *e)
{
    struct hlo *h = e->h;
    const struct op_attr *attr = &e->op->attr;
    struct hlo_value w = emit_real(e, NORM_W), mean, x = part_rows(e, NORM_X, hlo_count(&w));
    if (attr->layer_norm) {
        mean = row_means(h, x);
        x = hlo_sub(h, x, hlo_over(h, mean, x, 0));
    }
    struct hlo_value rstd =
        hlo_unary(h, "rsqrt", hlo_plus(h, row_means(h, hlo_mul(h, x, x)), (double)attr->eps));
    if (attr->plus_one) w = hlo_plus(h, w, 1);
    struct hlo_value y = hlo_mul(h, hlo_mul(h, x, hlo_over(h, rstd, x, 0)), hlo_over(h, w, x, 1));
    if (emit_has(e, NORM_BIAS)) y = hlo_add(h, y, hlo_over(h, emit_real(e, NORM_BIAS), x, 1));
    emit_out(e, NORM_Y, y);
    struct hlo_value stat = hlo_reshape(h, rstd, HLO_SHAPE(x.dim[0], 1));
    if (attr->layer_norm) stat = hlo_concat(h, 1, hlo_reshape(h, mean, HLO_SHAPE(x.dim[0], 1)), stat);
    emit_out(e, NORM_STAT, stat);
}
const struct emitter pjrt_norm = {.emit = emit_norm};

/* Lengths of the rows of w + scale B A; w: [M,K], F32. */
static void dora_norms(struct emit *e, struct hlo_value w)
{
    static const struct hlo_pairs pairs = {.sum = 1, .a_sum = {1}, .b_sum = {0}};
    struct hlo_value b = emit_real(e, DORA_NORM_B), a = emit_real(e, DORA_NORM_A);
    w = hlo_add(e->h, w, hlo_times(e->h, hlo_dot(e->h, b, a, &pairs), (double)e->op->attr.scale));
    w = hlo_convert(e->h, w, HLO_F64);
    struct hlo_value sum = hlo_reduce(e->h, "add", hlo_mul(e->h, w, w), 1u << 1);
    emit_out(e, DORA_NORM_Y, hlo_unary(e->h, "sqrt", sum));
}

static void emit_dora_norm(struct emit *e)
{
    static const int turned[] = {1, 0};
    const struct op_attr *attr = &e->op->attr;
    struct hlo_value w = emit_real(e, DORA_NORM_W);
    if (attr->weight_kn) w = hlo_transpose(e->h, w, turned);
    dora_norms(e, hlo_slice(e->h, w, 0, attr->first, emit_out_tensor(e, DORA_NORM_Y)->dim[0]));
}
const struct emitter pjrt_dora_norm = {.emit = emit_dora_norm};

static void emit_dora_norm_q(struct emit *e)
{
    const struct op_attr *attr = &e->op->attr;
    struct hlo_value bytes = emit_in(e, DORA_NORM_Q_W);
    int64_t k = emit_in_tensor(e, DORA_NORM_Q_A)->dim[1], rows = emit_out_tensor(e, DORA_NORM_Q_Y)->dim[0];
    struct hlo_value ids = hlo_plus(e->h, hlo_iota(e->h, HLO_I32, 0, HLO_SHAPE(rows)), (double)attr->first);
    dora_norms(e, blocks_rows(e->h, attr, k, bytes, ids));
}
const struct emitter pjrt_dora_norm_q = {.emit = emit_dora_norm_q};

/* Sums over the tokens that count, divided by their number: [B,C]. lengths: [B], I32. */
static struct hlo_value pooled(struct emit *e, struct hlo_value x, struct hlo_value lengths)
{
    struct hlo *h = e->h;
    if (e->op->attr.pooling == POOLING_FIRST) {
        x = hlo_slice(h, x, 1, 0, 1);
        lengths = hlo_binary(h, "minimum", lengths, hlo_like(h, lengths, 1));
    }
    struct hlo_value t = hlo_iota(h, HLO_I32, 1, x.ndim, x.dim);
    struct hlo_value counts = hlo_compare(h, "LT", t, hlo_over(h, lengths, x, 0));
    struct hlo_value sum = hlo_reduce(h, "add", hlo_select(h, counts, x, hlo_like(h, x, 0)), 1u << 1);
    struct hlo_value n = hlo_binary(h, "maximum", lengths, hlo_like(h, lengths, 1));
    return hlo_div(h, sum, hlo_over(h, hlo_convert(h, n, HLO_F32), sum, 0));
}

static void emit_pool(struct emit *e)
{
    struct hlo *h = e->h;
    const struct op_attr *attr = &e->op->attr;
    struct hlo_value x = emit_real(e, POOL_X);
    struct hlo_value lengths = emit_has(e, POOL_LENGTHS)
                                   ? emit_in(e, POOL_LENGTHS)
                                   : hlo_fill(h, HLO_I32, (double)x.dim[1], HLO_SHAPE(x.dim[0]));
    struct hlo_value y = pooled(e, x, lengths), stat = hlo_fill(h, HLO_F32, 1, HLO_SHAPE(x.dim[0]));
    if (attr->normalize) {
        struct hlo_value size = hlo_unary(h, "sqrt", hlo_reduce(h, "add", hlo_mul(h, y, y), 1u << 1));
        stat = hlo_div(h, stat, hlo_binary(h, "maximum", size, hlo_like(h, size, 1e-12)));
        y = hlo_mul(h, y, hlo_over(h, stat, y, 0));
    }
    emit_out(e, POOL_Y, attr->scale != 0 ? hlo_times(h, y, (double)attr->scale) : y);
    emit_out(e, POOL_STAT, stat);
}
const struct emitter pjrt_pool = {.emit = emit_pool};
