/* emit_basic.c - emitters of products, sums and tables. */
#include "device/pjrt/emit.h"
#include "tape/parts.h"

static void emit_add(struct emit *e)
{
    emit_out(e, ADD_Y, hlo_add(e->h, emit_real(e, ADD_A), emit_real(e, ADD_B)));
}
const struct emitter pjrt_add = {.emit = emit_add};

static void emit_embed(struct emit *e)
{
    static const int turned[] = {1, 0};
    struct hlo_value ids = emit_in(e, EMBED_IDS), w = emit_in(e, EMBED_W);
    if (e->op->attr.weight_kn) w = hlo_transpose(e->h, w, turned);
    if (e->op->attr.first) ids = hlo_plus(e->h, ids, (double)e->op->attr.first);
    struct hlo_value y = hlo_convert(e->h, hlo_take(e->h, w, ids), HLO_F32);
    if (e->op->attr.scale != 0) {
        struct hlo_value scale =
            hlo_convert(e->h, hlo_fill(e->h, w.type, e->op->attr.scale, y.ndim, y.dim), HLO_F32);
        y = hlo_mul(e->h, y, scale);
    }
    if (emit_has(e, EMBED_ADD)) y = hlo_add(e->h, y, emit_real(e, EMBED_ADD));
    emit_out(e, EMBED_Y, y);
}
const struct emitter pjrt_embed = {.emit = emit_embed};

/* Rows in column k of the index, zeros where it is negative. */
static struct hlo_value taken(struct emit *e, int k)
{
    struct hlo *h = e->h;
    struct hlo_value index = emit_in(e, TAKE_INDEX), x = emit_in(e, TAKE_X);
    int64_t columns = tensor_count(emit_out_tensor(e, TAKE_Y)) / index.dim[0];
    struct hlo_value ids = hlo_reshape(h, hlo_slice(h, index, 1, k, 1), HLO_SHAPE(index.dim[0]));
    x = hlo_reshape(h, x, HLO_SHAPE(hlo_count(&x) / columns, columns));
    struct hlo_value y = hlo_convert(h, hlo_take(h, x, ids), HLO_F32);
    return hlo_select(h, hlo_over(h, hlo_compare_to(h, "GE", ids, 0), y, 0), y, hlo_like(h, y, 0));
}

static void emit_take(struct emit *e)
{
    struct hlo_value y = taken(e, 0);
    emit_out(e, TAKE_Y, e->op->attr.once ? y : hlo_add(e->h, y, taken(e, 1)));
}
const struct emitter pjrt_take = {.emit = emit_take};

static void emit_linear(struct emit *e)
{
    struct hlo *h = e->h;
    struct hlo_value x = emit_in(e, LINEAR_X), w = emit_in(e, LINEAR_W), y = {0};
    const bool kn = e->op->attr.weight_kn;
    const int last = x.ndim - 1;
    const struct hlo_pairs pairs = {.sum = 1, .a_sum = {last}, .b_sum = {kn ? 0 : 1}};
    const int64_t m = w.dim[kn ? 1 : 0], k = w.dim[kn ? 0 : 1];
    struct weight_part part;
    for (int i = 0; weight_part(&e->op->attr, m, k, i, &part); i++) {
        bool whole = part.lines == m;
        struct hlo_value own = whole ? hlo_dot(h, x, w, &pairs)
                                     : hlo_dot(h, hlo_slice(h, x, last, part.column, k),
                                               hlo_slice(h, w, 0, part.line, part.lines), &pairs);
        y = i ? hlo_concat(h, last, y, own) : own;
    }
    if (emit_has(e, LINEAR_BIAS)) y = hlo_add(h, y, hlo_over(h, emit_real(e, LINEAR_BIAS), y, y.ndim - 1));
    if (emit_has(e, LINEAR_ADD)) {
        struct hlo_value add = emit_real(e, LINEAR_ADD);
        y = hlo_add(h, y, hlo_reshape(h, add, y.ndim, y.dim));
    }
    emit_out(e, LINEAR_Y, y);
}
const struct emitter pjrt_linear = {.emit = emit_linear};
