/* emit_elements.c - emitters of ops on single elements: activations, gates, dropout. See emit_parts.h. */
#include "device/pjrt/emit_parts.h"
#include "tensor/stochastic.h"

struct hlo_value part_rows(struct emit *e, int slot, int64_t width)
{
    struct hlo_value v = emit_real(e, slot);
    return hlo_reshape(e->h, v, HLO_SHAPE(hlo_count(&v) / width, width));
}

/* --- activations --------------------------------------------------------------------------------------------- */

/* With z = |x| / sqrt(2) and t = 1 / (1 + z / 2), erfc(z) is e^(-z^2) t q(t); the polynomial q has a relative error of 4e-8, as on
 * the CPU. */
struct hlo_value part_normal_tail(struct hlo *h, struct hlo_value x)
{
    static const double q[] = {-0x1.e26ea4p-5, 0x1.22829ap-2, -0x1.f10812p-2, 0x1.1a999ap-2, -0x1.9c7e34p-6,
                               0x1.9dd68ap-3,  0x1.f232e4p-3, 0x1.212144p-2,  0x1.20db98p-2};
    struct hlo_value t = hlo_plus(h, hlo_times(h, hlo_unary(h, "abs", x), 0.35355339059327376), 1);
    t = hlo_div(h, hlo_like(h, x, 1), t);
    struct hlo_value sum = hlo_like(h, x, q[0]);
    for (int i = 1; i < 9; i++) sum = hlo_plus(h, hlo_mul(h, sum, t), q[i]);
    struct hlo_value e = hlo_unary(h, "exponential", hlo_times(h, hlo_mul(h, x, x), -0.5));
    return hlo_times(h, hlo_mul(h, hlo_mul(h, e, t), sum), 0.5);
}

static struct hlo_value relu(struct hlo *h, struct hlo_value x)
{
    return hlo_binary(h, "maximum", x, hlo_like(h, x, 0));
}

/* x P(X < x): max(x, 0) less |x| times the tail. */
static struct hlo_value gelu(struct hlo *h, struct hlo_value x)
{
    return hlo_sub(h, relu(h, x), hlo_mul(h, hlo_unary(h, "abs", x), part_normal_tail(h, x)));
}

/* (1 + tanh(z)) / 2 is sigmoid(2 z), with 2 z = x (a + b x^2). */
static struct hlo_value gelu_tanh(struct hlo *h, struct hlo_value x)
{
    struct hlo_value z = hlo_plus(h, hlo_times(h, hlo_mul(h, x, x), 0.07135481627260025), 1.5957691216057308);
    return hlo_mul(h, x, hlo_unary(h, "logistic", hlo_mul(h, x, z)));
}

struct hlo_value part_activation(struct hlo *h, const struct op_attr *attr, struct hlo_value x)
{
    double cap = attr->cap > 0 ? (double)attr->cap : 1;
    switch (attr->activation) {
    case ACTIVATION_GELU_TANH:
        return gelu_tanh(h, x);
    case ACTIVATION_GELU:
        return gelu(h, x);
    case ACTIVATION_RELU:
        return relu(h, x);
    case ACTIVATION_TANH:
        return hlo_times(h, hlo_unary(h, "tanh", hlo_div(h, x, hlo_like(h, x, cap))), cap);
    case ACTIVATION_SCALE:
        return attr->scale != 0 ? hlo_times(h, x, (double)attr->scale) : x;
    default:
        return hlo_mul(h, x, hlo_unary(h, "logistic", x));
    }
}

static void emit_act(struct emit *e)
{
    emit_out(e, ACT_Y, part_activation(e->h, &e->op->attr, emit_real(e, ACT_X)));
}
const struct emitter pjrt_act = {.emit = emit_act};

static void emit_glu(struct emit *e)
{
    const struct tensor *out = emit_out_tensor(e, GLU_H);
    int64_t width = last_dim(out);
    bool joint = e->op->attr.joint;
    struct hlo_value gate = part_rows(e, GLU_GATE, joint ? 2 * width : width), up;
    if (joint) {
        up = hlo_slice(e->h, gate, 1, width, width);
        gate = hlo_slice(e->h, gate, 1, 0, width);
    } else {
        up = part_rows(e, GLU_UP, width);
    }
    emit_out(e, GLU_H, hlo_mul(e->h, part_activation(e->h, &e->op->attr, gate), up));
}
const struct emitter pjrt_glu = {.emit = emit_glu};

static void emit_row_gate(struct emit *e)
{
    struct hlo_value gate = emit_real(e, ROW_GATE_GATE);
    int64_t rows = hlo_count(&gate), width = tensor_count(emit_in_tensor(e, ROW_GATE_X)) / rows;
    struct hlo_value x = part_rows(e, ROW_GATE_X, width);
    gate = hlo_unary(e->h, "logistic", hlo_reshape(e->h, gate, HLO_SHAPE(rows)));
    struct hlo_value y = hlo_mul(e->h, x, hlo_over(e->h, gate, x, 0));
    if (emit_has(e, ROW_GATE_ADD)) y = hlo_add(e->h, y, part_rows(e, ROW_GATE_ADD, width));
    emit_out(e, ROW_GATE_Y, y);
}
const struct emitter pjrt_row_gate = {.emit = emit_row_gate};

struct hlo_value part_column_factor(struct emit *e, int m, int norm, struct hlo_value like)
{
    struct hlo_value by = hlo_div(e->h, emit_real(e, m), emit_real(e, norm));
    return hlo_over(e->h, by, like, 1);
}

static void emit_column_scale(struct emit *e)
{
    struct hlo *h = e->h;
    int64_t width = tensor_count(emit_in_tensor(e, COLUMN_SCALE_M));
    struct hlo_value x = part_rows(e, COLUMN_SCALE_X, width), bias = x;
    bool biased = emit_has(e, COLUMN_SCALE_BIAS);
    if (biased) bias = hlo_over(h, emit_real(e, COLUMN_SCALE_BIAS), x, 1);
    struct hlo_value y = biased ? hlo_sub(h, x, bias) : x;
    y = hlo_mul(h, y, part_column_factor(e, COLUMN_SCALE_M, COLUMN_SCALE_NORM, x));
    if (biased) y = hlo_add(h, y, bias);
    if (emit_has(e, COLUMN_SCALE_ADD)) y = hlo_add(h, y, part_rows(e, COLUMN_SCALE_ADD, width));
    emit_out(e, COLUMN_SCALE_Y, y);
}
const struct emitter pjrt_column_scale = {.emit = emit_column_scale};

/* --- dropout ------------------------------------------------------------------------------------------------- */

static struct hlo_value xor_high(struct hlo *h, struct hlo_value x, int bits)
{
    return hlo_binary(h, "xor", x, hlo_binary(h, "shift_right_logical", x, hlo_like(h, x, bits)));
}

struct hlo_value part_mix(struct hlo *h, struct hlo_value x)
{
    x = hlo_times(h, xor_high(h, x, 16), 0x85ebca6bu);
    x = hlo_times(h, xor_high(h, x, 13), 0xc2b2ae35u);
    return xor_high(h, x, 16);
}

static struct hlo_value whole_scalar(struct emit *e, int scalars, int index)
{
    return hlo_convert(e->h, emit_scalar(e, scalars, index), HLO_U32);
}

struct hlo_value part_drop_rows(struct emit *e, int scalars, int64_t rows)
{
    struct hlo *h = e->h;
    struct hlo_value high = whole_scalar(e, scalars, SCALAR_KEY_HIGH),
                     low = whole_scalar(e, scalars, SCALAR_KEY_LOW);
    struct hlo_value key = hlo_binary(h, "or", hlo_times(h, high, 65536), low);
    key = part_mix(h, hlo_binary(h, "xor", key, hlo_like(h, key, stochastic_mix(e->op->attr.stream))));
    struct hlo_value row = hlo_iota(h, HLO_U32, 0, HLO_SHAPE(rows));
    row = hlo_mul(h, row, hlo_over(h, hlo_plus(h, whole_scalar(e, scalars, SCALAR_ROW_SKIP), 1), row, 0));
    row = hlo_add(h, row, hlo_over(h, whole_scalar(e, scalars, SCALAR_FIRST_ROW), row, 0));
    row = hlo_times(h, row, STOCHASTIC_ODD);
    return part_mix(h, hlo_binary(h, "xor", row, hlo_over(h, key, row, 0)));
}

struct hlo_value part_drop(struct emit *e, struct hlo_value index, struct hlo_value line)
{
    struct hlo *h = e->h;
    double p = (double)e->op->attr.dropout, below = (double)(uint32_t)(p * 4294967296.0);
    struct hlo_value r = part_mix(h, hlo_binary(h, "xor", hlo_times(h, index, STOCHASTIC_ODD), line));
    struct hlo_value kept = hlo_fill(h, HLO_F32, 1 / (1 - p), r.ndim, r.dim);
    return hlo_select(h, hlo_compare_to(h, "LT", r, below), hlo_like(h, kept, 0), kept);
}

static void emit_dropout(struct emit *e)
{
    const struct tensor *t = emit_in_tensor(e, DROPOUT_X);
    int64_t rows = t->dim[0], width = tensor_count(t) / rows;
    struct hlo_value x = part_rows(e, DROPOUT_X, width);
    if (e->op->attr.dropout > 0) {
        struct hlo_value index = hlo_iota(e->h, HLO_U32, 1, x.ndim, x.dim);
        struct hlo_value line = hlo_over(e->h, part_drop_rows(e, DROPOUT_SCALARS, rows), x, 0);
        x = hlo_mul(e->h, x, part_drop(e, index, line));
    }
    if (emit_has(e, DROPOUT_ADD)) x = hlo_add(e->h, x, part_rows(e, DROPOUT_ADD, width));
    emit_out(e, DROPOUT_Y, x);
}
const struct emitter pjrt_dropout = {.emit = emit_dropout};
