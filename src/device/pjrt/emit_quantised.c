/* emit_quantised.c - emitters of ops with a weight in quantised blocks; those of experts are in emit_experts.c. */
#include "device/pjrt/emit_blocks.h"
#include "device/pjrt/emit_parts.h"

static void emit_linear_q(struct emit *e)
{
    struct hlo *h = e->h;
    struct hlo_value bytes = emit_in(e, LINEAR_Q_W);
    struct hlo_value x = part_rows_in(e, LINEAR_Q_X, quantised_columns(&e->op->attr, hlo_count(&bytes)));
    struct hlo_value y = blocks_product(h, &e->op->attr, x, bytes);
    if (emit_has(e, LINEAR_Q_BIAS)) y = hlo_add(h, y, hlo_over(h, emit_real(e, LINEAR_Q_BIAS), y, 1));
    if (emit_has(e, LINEAR_Q_ADD)) y = hlo_add(h, y, part_rows(e, LINEAR_Q_ADD, y.dim[1]));
    emit_out(e, LINEAR_Q_Y, y);
}

static void emit_linear_q_dx(struct emit *e)
{
    struct hlo_value dy = part_rows_in(e, LINEAR_Q_DX_DY, quantised_lines(&e->op->attr));
    struct hlo_value dx = blocks_product_back(e->h, &e->op->attr, dy, emit_in(e, LINEAR_Q_DX_W));
    if (emit_has(e, LINEAR_Q_DX_ADD)) dx = hlo_add(e->h, dx, part_rows(e, LINEAR_Q_DX_ADD, dx.dim[1]));
    emit_out(e, LINEAR_Q_DX_DX, dx);
}

_Static_assert((int)LINEAR_Q_W == (int)LINEAR_Q_DX_W, "both have the weight in the same place");

static size_t workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    (void)threads;
    return blocks_workspace(&op->attr, quantised_columns(&op->attr, tensor_bytes(desc[LINEAR_Q_W])));
}
const struct emitter pjrt_linear_q = {.kernel = {.workspace = workspace}, .emit = emit_linear_q};
const struct emitter pjrt_linear_q_dx = {.kernel = {.workspace = workspace}, .emit = emit_linear_q_dx};

static void emit_embed_q(struct emit *e)
{
    struct hlo *h = e->h;
    enum dtype type = emit_out_tensor(e, EMBED_Q_Y)->type;
    struct hlo_value bytes = emit_in(e, EMBED_Q_W), ids = emit_in(e, EMBED_Q_IDS);
    int64_t k = quantised_columns(&e->op->attr, hlo_count(&bytes));
    ids = hlo_reshape(h, ids, HLO_SHAPE(hlo_count(&ids)));
    struct hlo_value y = blocks_rows(h, &e->op->attr, k, bytes, ids);
    if (e->op->attr.scale != 0) y = hlo_times(h, y, (double)dtype_round(type, e->op->attr.scale));
    emit_out(e, EMBED_Q_Y, y);
}
const struct emitter pjrt_embed_q = {.emit = emit_embed_q};
