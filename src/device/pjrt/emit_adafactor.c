/* emit_adafactor.c - Adafactor: the factored second moment, and the step. A parameter of one dimension is a matrix of one column. */
#include "device/pjrt/emit_update.h"

/* The step before learning rate and clipping: g[R,C] / sqrt(row / mean) / sqrt(col); without col mean is 1. */
static struct hlo_value direction(struct hlo *h, struct hlo_value g, struct hlo_value row,
                                  const struct hlo_value *col, struct hlo_value mean)
{
    row = hlo_unary(h, "sqrt", hlo_div(h, row, hlo_over(h, mean, row, 0)));
    g = hlo_div(h, g, hlo_over(h, row, g, 0));
    return col ? hlo_div(h, g, hlo_over(h, hlo_unary(h, "sqrt", *col), g, 1)) : g;
}

/* The mean of v over some of its axes, summed in F64. */
static struct hlo_value mean_of(struct hlo *h, struct hlo_value v, unsigned axes)
{
    struct hlo_value sum = hlo_reduce(h, "add", hlo_convert(h, v, HLO_F64), axes);
    double terms = (double)hlo_count(&v) / (double)hlo_count(&sum);
    return hlo_convert(h, hlo_div(h, sum, hlo_like(h, sum, terms)), HLO_F32);
}

/* b old + (1 - b) mean */
static struct hlo_value moved(struct hlo *h, struct hlo_value b, struct hlo_value old, struct hlo_value mean)
{
    struct hlo_value rest = hlo_sub(h, hlo_like(h, b, 1), b);
    return hlo_add(h, hlo_mul(h, hlo_over(h, b, old, 0), old), hlo_mul(h, hlo_over(h, rest, old, 0), mean));
}

/* Sets an output of factor_stat, or leaves it as it was. */
static void set_stat(struct emit *e, int slot, struct hlo_value old, struct hlo_value v)
{
    struct hlo_value go;
    if (update_may_skip(e, FACTOR_STAT_COEF, &go)) v = hlo_select(e->h, hlo_over(e->h, go, v, 0), v, old);
    emit_out(e, slot, v);
}

static void emit_factor_stat(struct emit *e)
{
    struct hlo *h = e->h;
    bool has_col = emit_has(e, FACTOR_STAT_COL);
    struct hlo_value old_row = emit_in(e, FACTOR_STAT_ROW), old_col, col, one = hlo_scalar(h, HLO_F32, 1);
    struct hlo_value g = update_gradient(e, FACTOR_STAT_G, FACTOR_STAT_COEF), mean = one;
    g = hlo_reshape(h, g, HLO_SHAPE(old_row.dim[0], g.dim[0] / old_row.dim[0]));
    struct hlo_value square = hlo_plus(h, hlo_mul(h, g, g), (double)e->op->attr.eps);
    struct hlo_value b = emit_scalar(e, FACTOR_STAT_SCALARS, SCALAR_BETA2);
    struct hlo_value row = moved(h, b, old_row, mean_of(h, square, 1u << 1));
    if (has_col) {
        old_col = emit_in(e, FACTOR_STAT_COL);
        col = moved(h, b, old_col, mean_of(h, square, 1));
        mean = mean_of(h, row, 1);
    }
    struct hlo_value u = direction(h, g, row, has_col ? &col : NULL, mean);
    struct hlo_value rms = hlo_unary(h, "sqrt", mean_of(h, hlo_mul(h, u, u), 3));
    rms = hlo_binary(h, "maximum", one, hlo_times(h, rms, 1 / (double)e->op->attr.limit));
    struct hlo_value factor[FACTOR_COUNT] = {[FACTOR_SCALE] = hlo_div(h, one, rms), [FACTOR_MEAN] = mean};
    for (int i = 0; i < FACTOR_COUNT; i++) factor[i] = hlo_reshape(h, factor[i], HLO_SHAPE(1));
    struct hlo_value both = hlo_concat(h, 0, factor[0], factor[1]);
    set_stat(e, FACTOR_STAT_FACTOR, hlo_like(h, both, 1), both);
    set_stat(e, FACTOR_STAT_NEW_ROW, old_row, row);
    if (has_col) set_stat(e, FACTOR_STAT_NEW_COL, old_col, col);
}
const struct emitter pjrt_factor_stat = {.emit = emit_factor_stat};

static void emit_adafactor(struct emit *e)
{
    struct hlo *h = e->h;
    bool has_col = emit_has(e, ADAFACTOR_COL);
    struct update u = update_begin(e);
    struct update_old old_m = update_old(&u, ADAFACTOR_M);
    struct hlo_value row = emit_in(e, ADAFACTOR_ROW), col = has_col ? emit_in(e, ADAFACTOR_COL) : row;
    struct hlo_value g = hlo_reshape(h, u.g, HLO_SHAPE(row.dim[0], u.count / row.dim[0])), m;
    struct hlo_value mean =
        has_col ? emit_scalar(e, ADAFACTOR_FACTOR, FACTOR_MEAN) : hlo_scalar(h, HLO_F32, 1);
    struct hlo_value step = direction(h, g, row, has_col ? &col : NULL, mean);
    struct hlo_value rate = hlo_mul(h, u.lr, emit_scalar(e, ADAFACTOR_FACTOR, FACTOR_SCALE));
    step = hlo_mul(h, hlo_reshape(h, step, HLO_SHAPE(u.count)), update_each(&u, rate));
    if (old_m.here) {
        double rest = update_rest(e->op->attr.beta1);
        m = hlo_times(h, update_real(&u, old_m), 1 - rest);
        step = m = hlo_add(h, m, hlo_times(h, step, rest));
    }
    update_param(&u, hlo_sub(h, update_decayed(&u), step));
    if (old_m.here) update_moment(&u, ADAFACTOR_NEW_M, old_m, m, UPDATE_BITS_M);
}
const struct emitter pjrt_adafactor = {.emit = emit_adafactor};
