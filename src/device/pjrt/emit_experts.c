/* emit_experts.c - products of experts with their rows.
 *
 * Rows are sorted by expert, and how many an expert has is known only when the program runs. So the rows are cut into tiles of a
 * fixed size, and no tile has rows of two experts: an expert's last tile may be partly filled. A loop multiplies tile after tile.
 */
#include "device/pjrt/emit_blocks.h"
#include "device/pjrt/emit_parts.h"

struct tiles {
    struct hlo *h;
    int64_t experts, rows, size;
    struct hlo_value begins, ends, first, upto; /* [E]: rows of each expert, and its tiles [first, upto) */
    struct hlo_value count;                     /* of all tiles: an I32 scalar */
};

/* The tile of one turn of the loop. */
struct tile {
    struct hlo_value expert, at; /* I32 scalars; at: the first of `size` rows to read and write */
    struct hlo_value mine;       /* BOOL [size]: which of them are the tile's */
};

static int64_t tile_size(int64_t rows, int64_t experts)
{
    int64_t size = 16;
    while (size < 512 && size * experts < rows) size *= 2;
    return size < rows ? size : rows;
}

static struct tiles tiles_of(struct emit *e, int ends_slot, int64_t rows)
{
    struct hlo *h = e->h;
    struct tiles t = {.h = h, .rows = rows, .ends = emit_in(e, ends_slot)};
    t.experts = hlo_count(&t.ends), t.size = tile_size(rows, t.experts);
    struct hlo_value zero = hlo_fill(h, HLO_I32, 0, HLO_SHAPE(1));
    t.begins = t.experts > 1 ? hlo_concat(h, 0, zero, hlo_slice(h, t.ends, 0, 0, t.experts - 1)) : zero;
    struct hlo_value own = hlo_plus(h, hlo_sub(h, t.ends, t.begins), (double)t.size - 1);
    own = hlo_div(h, own, hlo_like(h, own, (double)t.size));
    struct hlo_value e1 = hlo_iota(h, HLO_I32, 0, HLO_SHAPE(t.experts, t.experts));
    struct hlo_value e2 = hlo_iota(h, HLO_I32, 1, HLO_SHAPE(t.experts, t.experts));
    struct hlo_value before = hlo_convert(h, hlo_compare(h, "LE", e2, e1), HLO_I32);
    t.upto = hlo_reduce(h, "add", hlo_mul(h, before, hlo_over(h, own, before, 1)), 1u << 1);
    t.first = hlo_sub(h, t.upto, own);
    t.count = hlo_reduce(h, "add", own, 1);
    return t;
}

/* Tile number `index`. */
static struct tile tile_at(const struct tiles *t, struct hlo_value index)
{
    struct hlo *h = t->h;
    struct hlo_value past = hlo_compare(h, "LE", t->upto, hlo_over(h, index, t->upto, 0));
    struct hlo_value expert = hlo_reduce(h, "add", hlo_convert(h, past, HLO_I32), 1);
    struct hlo_value turn = hlo_sub(h, index, hlo_element(h, t->first, expert));
    struct hlo_value begin =
        hlo_add(h, hlo_element(h, t->begins, expert), hlo_times(h, turn, (double)t->size));
    struct hlo_value at = hlo_binary(h, "minimum", begin, hlo_like(h, begin, (double)(t->rows - t->size)));
    struct hlo_value row = hlo_iota(h, HLO_I32, 0, HLO_SHAPE(t->size)), end = hlo_element(h, t->ends, expert);
    row = hlo_add(h, row, hlo_over(h, at, row, 0));
    struct hlo_value mine = hlo_compare(h, "LT", row, hlo_over(h, end, row, 0));
    mine = hlo_binary(h, "and", mine, hlo_compare(h, "GE", row, hlo_over(h, begin, row, 0)));
    return (struct tile){expert, at, mine};
}

/* Matrices of all experts: numbers [E,M,K], or in blocks U8 [E,bytes]. */
struct matrices {
    struct hlo_value w;
    const struct op_attr *blocks; /* NULL: numbers */
    int64_t m, k;
};

static struct matrices matrices_of(struct emit *e, int slot)
{
    struct hlo_value w = emit_in(e, slot);
    return (struct matrices){w, NULL, w.dim[1], w.dim[2]};
}

static struct matrices matrices_in_blocks(struct emit *e, int slot, int ends_slot)
{
    struct hlo_value w = emit_in(e, slot);
    int64_t experts = tensor_count(emit_in_tensor(e, ends_slot)), bytes = hlo_count(&w) / experts;
    const struct op_attr *attr = &e->op->attr;
    w = hlo_reshape(e->h, w, HLO_SHAPE(experts, bytes));
    return (struct matrices){w, attr, quantised_lines(attr), quantised_columns(attr, bytes)};
}

/* x[R,K] W[expert]', or with `back` x[R,M] W[expert]. */
static struct hlo_value one_product(struct hlo *h, const struct matrices *w, bool back, struct hlo_value x,
                                    struct hlo_value expert)
{
    const struct hlo_pairs pairs = {.sum = 1, .a_sum = {1}, .b_sum = {back ? 0 : 1}};
    struct hlo_value own = hlo_element(h, w->w, expert);
    if (!w->blocks) return hlo_dot(h, x, own, &pairs);
    return (back ? blocks_product_back : blocks_product)(h, w->blocks, x, own);
}

/* Slots of an op of experts; add and y may be in any place. -1: the op has no such operand. */
struct expert_slots {
    int x, ends, add, y;
    bool back;
};

static void emit_products(struct emit *e, const struct matrices *w, const struct expert_slots *at)
{
    struct hlo *h = e->h;
    int64_t width = at->back ? w->k : w->m;
    bool adds = at->add >= 0 && emit_has(e, at->add);
    struct hlo_value x = part_rows_in(e, at->x, at->back ? w->m : w->k), add;
    if (adds) add = part_rows_in(e, at->add, width);
    struct tiles t = tiles_of(e, at->ends, x.dim[0]);
    struct hlo_value y = hlo_fill(h, x.type, 0, HLO_SHAPE(t.rows, width));
    struct hlo_loop loop;
    hlo_loop_begin_times(h, &loop, t.count, 1, &y);
    struct tile tile = tile_at(&t, loop.index);
    struct hlo_value part = one_product(h, w, at->back, hlo_window(h, x, tile.at, t.size), tile.expert);
    if (adds) part = hlo_add(h, part, hlo_convert(h, hlo_window(h, add, tile.at, t.size), HLO_F32));
    part = hlo_convert(h, part, y.type);
    part = hlo_select(h, hlo_over(h, tile.mine, part, 0), part, hlo_window(h, y, tile.at, t.size));
    y = hlo_replace_at(h, y, part, tile.at);
    hlo_loop_end(h, &loop, &y);
    emit_out(e, at->y, y);
}

static void emit_expert_linear(struct emit *e)
{
    struct matrices w = matrices_of(e, EXPERT_LINEAR_W);
    emit_products(e, &w,
                  &(struct expert_slots){EXPERT_LINEAR_X, EXPERT_LINEAR_ENDS, -1, EXPERT_LINEAR_Y, false});
}
const struct emitter pjrt_expert_linear = {.emit = emit_expert_linear};

static void emit_expert_linear_dx(struct emit *e)
{
    struct matrices w = matrices_of(e, EXPERT_LINEAR_DX_W);
    emit_products(e, &w,
                  &(struct expert_slots){EXPERT_LINEAR_DX_DY, EXPERT_LINEAR_DX_ENDS, EXPERT_LINEAR_DX_ADD,
                                         EXPERT_LINEAR_DX_DX, true});
}
const struct emitter pjrt_expert_linear_dx = {.emit = emit_expert_linear_dx};

static void emit_expert_linear_q(struct emit *e)
{
    struct matrices w = matrices_in_blocks(e, EXPERT_LINEAR_Q_W, EXPERT_LINEAR_Q_ENDS);
    emit_products(
        e, &w, &(struct expert_slots){EXPERT_LINEAR_Q_X, EXPERT_LINEAR_Q_ENDS, -1, EXPERT_LINEAR_Q_Y, false});
}

static void emit_expert_linear_q_dx(struct emit *e)
{
    struct matrices w = matrices_in_blocks(e, EXPERT_LINEAR_Q_DX_W, EXPERT_LINEAR_Q_DX_ENDS);
    emit_products(e, &w,
                  &(struct expert_slots){EXPERT_LINEAR_Q_DX_DY, EXPERT_LINEAR_Q_DX_ENDS,
                                         EXPERT_LINEAR_Q_DX_ADD, EXPERT_LINEAR_Q_DX_DX, true});
}

/* An expert's bytes and its decoded tile. */
static size_t expert_linear_q_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    (void)threads;
    int64_t bytes = tensor_bytes(desc[EXPERT_LINEAR_Q_W]) / tensor_count(desc[EXPERT_LINEAR_Q_ENDS]);
    int64_t k = quantised_columns(&op->attr, bytes);
    return (size_t)bytes + blocks_workspace(&op->attr, k);
}
const struct emitter pjrt_expert_linear_q = {.kernel = {.workspace = expert_linear_q_workspace},
                                             .emit = emit_expert_linear_q};
const struct emitter pjrt_expert_linear_q_dx = {.kernel = {.workspace = expert_linear_q_workspace},
                                                .emit = emit_expert_linear_q_dx};

/* The tile's rows of x, those of others 0. */
static struct hlo_value own_rows(const struct tiles *t, const struct tile *tile, struct hlo_value x)
{
    struct hlo_value v = hlo_window(t->h, x, tile->at, t->size);
    return hlo_select(t->h, hlo_over(t->h, tile->mine, v, 0), v, hlo_like(t->h, v, 0));
}

static void emit_expert_linear_dw(struct emit *e)
{
    static const struct hlo_pairs pairs = {.sum = 1, .a_sum = {0}, .b_sum = {0}};
    struct hlo *h = e->h;
    const struct tensor *out = emit_out_tensor(e, EXPERT_LINEAR_DW_DW);
    struct hlo_value dy = part_rows_in(e, EXPERT_LINEAR_DW_DY, out->dim[1]);
    struct hlo_value x = part_rows_in(e, EXPERT_LINEAR_DW_X, out->dim[2]);
    struct tiles t = tiles_of(e, EXPERT_LINEAR_DW_ENDS, x.dim[0]);
    struct hlo_value dw = hlo_fill(h, HLO_F32, 0, out->ndim, out->dim);
    if (e->accumulate) dw = hlo_convert(h, emit_old(e, EXPERT_LINEAR_DW_DW), HLO_F32);
    struct hlo_loop loop;
    hlo_loop_begin_times(h, &loop, t.count, 1, &dw);
    struct tile tile = tile_at(&t, loop.index);
    struct hlo_value part = hlo_dot(h, own_rows(&t, &tile, dy), own_rows(&t, &tile, x), &pairs);
    struct hlo_value old = hlo_window(h, dw, tile.expert, 1);
    dw = hlo_replace_at(h, dw, hlo_add(h, old, hlo_reshape(h, part, old.ndim, old.dim)), tile.expert);
    hlo_loop_end(h, &loop, &dw);
    emit_out(e, EXPERT_LINEAR_DW_DW, dw);
}

/* The gradient in F32. */
static size_t expert_linear_dw_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    (void)op, (void)threads;
    return (size_t)tensor_count(desc[OP_MAX_IN + EXPERT_LINEAR_DW_DW]) * sizeof(float);
}
const struct emitter pjrt_expert_linear_dw = {.kernel = {.workspace = expert_linear_dw_workspace},
                                              .emit = emit_expert_linear_dw};
