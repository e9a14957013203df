/* emit_adapter.c - products of rows with the matrix of their adapter.
 *
 * A loop multiplies all rows with one adapter's matrix after the other and keeps each row's own result. Matrices have few lines or few
 * columns, so the products that nobody keeps cost little. */
#include "device/pjrt/emit_parts.h"

/* x[R,PK] W', part by part. */
static struct hlo_value product(struct emit *e, struct hlo_value x, struct hlo_value w)
{
    const struct hlo_pairs pairs = {.sum = 1, .a_sum = {1}, .b_sum = {1}};
    const struct op_lines *parts = e->op->attr.lines;
    struct hlo *h = e->h;
    int64_t k = w.dim[1], line = 0;
    if (!parts[0].lines) return hlo_dot(h, x, w, &pairs);
    struct hlo_value all = {0};
    for (int p = 0; p < OP_LINE_PARTS && parts[p].lines; line += parts[p++].lines) {
        struct hlo_value own = hlo_slice(h, w, 0, line, parts[p].lines);
        struct hlo_value y = hlo_dot(h, hlo_slice(h, x, 1, p * k, k), own, &pairs);
        all = p ? hlo_concat(h, 1, all, y) : y;
    }
    return all;
}

static void emit_adapter_linear(struct emit *e)
{
    struct hlo *h = e->h;
    struct hlo_value x = emit_in(e, ADAPTER_LINEAR_X), w = emit_in(e, ADAPTER_LINEAR_W);
    struct hlo_value slot = emit_in(e, ADAPTER_LINEAR_SLOT);
    struct hlo_value sum = hlo_fill(h, HLO_F32, 0, HLO_SHAPE(x.dim[0], w.dim[1]));
    struct hlo_loop loop;
    hlo_loop_begin(h, &loop, w.dim[0], 1, &sum);
    struct hlo_value y = product(e, x, hlo_element(h, w, loop.index));
    struct hlo_value mine = hlo_compare(h, "EQ", slot, hlo_over(h, loop.index, slot, 0));
    sum = hlo_select(h, hlo_over(h, mine, sum, 0), y, sum);
    hlo_loop_end(h, &loop, &sum);
    if (emit_has(e, ADAPTER_LINEAR_ADD)) sum = hlo_add(h, sum, emit_real(e, ADAPTER_LINEAR_ADD));
    emit_out(e, ADAPTER_LINEAR_Y, sum);
}

static size_t workspace(const struct tensor *const *desc, const struct op *, int)
{
    return (size_t)tensor_count(desc[OP_MAX_IN + ADAPTER_LINEAR_Y]) * 2 * sizeof(float);
}

const struct emitter pjrt_adapter_linear = {.kernel = {.workspace = workspace}, .emit = emit_adapter_linear};
