/* emit_heads.c - emitters of rotary embedding and of the parts of a row of heads. */
#include "device/pjrt/emit_parts.h"

static void emit_rope_table(struct emit *e)
{
    struct hlo *h = e->h;
    struct hlo_value pos = hlo_convert(h, emit_in(e, ROPE_TABLE_POS), HLO_F32);
    struct hlo_value freq = emit_real(e, ROPE_TABLE_INV_FREQ);
    int64_t rows = hlo_count(&pos), half = hlo_count(&freq);
    struct hlo_value angle =
        hlo_broadcast(h, hlo_reshape(h, pos, HLO_SHAPE(rows)), (const int[]){0}, HLO_SHAPE(rows, half));
    angle = hlo_mul(h, angle, hlo_over(h, freq, angle, 1));
    struct hlo_value table = hlo_concat(h, 1, hlo_unary(h, "cosine", angle), hlo_unary(h, "sine", angle));
    if (e->op->attr.scale != 0) table = hlo_times(h, table, (double)e->op->attr.scale);
    emit_out(e, ROPE_TABLE_TABLE, table);
}
const struct emitter pjrt_rope_table = {.emit = emit_rope_table};

struct hlo_value part_rotate(struct hlo *h, struct hlo_value x, struct hlo_value table, bool back)
{
    int64_t turned = table.dim[2], half = turned / 2, rest = x.dim[3] - turned;
    struct hlo_value x1 = hlo_slice(h, x, 3, 0, half), x2 = hlo_slice(h, x, 3, half, half);
    static const int to[] = {0, 1, 3};
    struct hlo_value c = hlo_broadcast(h, hlo_slice(h, table, 2, 0, half), to, x1.ndim, x1.dim);
    struct hlo_value s = hlo_broadcast(h, hlo_slice(h, table, 2, half, half), to, x1.ndim, x1.dim);
    if (back) s = hlo_unary(h, "negate", s);
    struct hlo_value y1 = hlo_sub(h, hlo_mul(h, x1, c), hlo_mul(h, x2, s));
    struct hlo_value y2 = hlo_add(h, hlo_mul(h, x2, c), hlo_mul(h, x1, s));
    struct hlo_value y = hlo_concat(h, 3, y1, y2);
    return rest ? hlo_concat(h, 3, y, hlo_slice(h, x, 3, turned, rest)) : y;
}

static void emit_rope(struct emit *e)
{
    struct hlo_value x = emit_real(e, ROPE_X), table = emit_in(e, ROPE_TABLE);
    emit_out(e, ROPE_Y, part_rotate(e->h, x, table, e->op->attr.back));
}
const struct emitter pjrt_rope = {.emit = emit_rope};

/* Heads [first, first + the output's) of a row go to this output. */
static int64_t emit_part(struct emit *e, int slot, int64_t first, bool turned)
{
    const struct tensor *t = emit_out_tensor(e, slot);
    int64_t width = t->dim[2] * t->dim[3];
    struct hlo_value v = hlo_slice(e->h, emit_in(e, SPLIT3_X), 2, first, width);
    v = hlo_reshape(e->h, v, t->ndim, t->dim);
    if (turned) v = part_rotate(e->h, hlo_convert(e->h, v, HLO_F32), emit_in(e, SPLIT3_TABLE), false);
    emit_out(e, slot, v);
    return first + width;
}

static void emit_split3(struct emit *e)
{
    bool turned = emit_has(e, SPLIT3_TABLE);
    int64_t at = emit_part(e, SPLIT3_Q, 0, turned);
    at = emit_part(e, SPLIT3_K, at, turned);
    emit_part(e, SPLIT3_V, at, false);
}
const struct emitter pjrt_split3 = {.emit = emit_split3};
