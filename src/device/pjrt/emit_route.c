/* emit_route.c - the router of experts, its losses, and rows to and from experts. */
#include "device/pjrt/emit_parts.h"

#include <math.h>

/* Probabilities of each row of x[R,E], and lse[R]. */
static struct hlo_value softmax(struct hlo *h, struct hlo_value x, struct hlo_value *lse)
{
    struct hlo_value top = hlo_reduce(h, "maximum", x, 1u << 1);
    struct hlo_value p = hlo_unary(h, "exponential", hlo_sub(h, x, hlo_over(h, top, x, 0)));
    struct hlo_value sum = hlo_reduce(h, "add", p, 1u << 1);
    *lse = hlo_add(h, top, hlo_unary(h, "log", sum));
    return hlo_div(h, p, hlo_over(h, sum, x, 0));
}

/* 1 where a row is a token, 0 where it is padding: [R], F32. */
static struct hlo_value tokens(struct emit *e, int lengths_slot, int64_t rows)
{
    struct hlo *h = e->h;
    if (!emit_has(e, lengths_slot)) return hlo_fill(h, HLO_F32, 1, HLO_SHAPE(rows));
    struct hlo_value lengths = emit_in(e, lengths_slot);
    struct hlo_value t = hlo_iota(h, HLO_I32, 1, HLO_SHAPE(lengths.dim[0], rows / lengths.dim[0]));
    struct hlo_value is = hlo_compare(h, "LT", t, hlo_over(h, lengths, t, 0));
    return hlo_convert(h, hlo_reshape(h, is, HLO_SHAPE(rows)), HLO_F32);
}

/* all[R,K] with a column [R] in place of column `index`. */
static struct hlo_value with_column(struct hlo *h, struct hlo_value all, struct hlo_value column,
                                    struct hlo_value index)
{
    struct hlo_value at = hlo_iota(h, HLO_I32, 1, all.ndim, all.dim);
    struct hlo_value is = hlo_compare(h, "EQ", at, hlo_over(h, index, at, 0));
    return hlo_select(h, is, hlo_over(h, column, all, 0), all);
}

/* A row's K largest logits, one after the other: their experts [R,K], their probabilities, and how often each expert was chosen
 * [R,E]. */
struct choice {
    struct hlo_value expert, weight, times;
};

static struct choice choose(struct hlo *h, struct hlo_value x, struct hlo_value p, int64_t top)
{
    struct hlo_value zero = hlo_like(h, p, 0), none = hlo_like(h, x, -INFINITY);
    struct hlo_value carried[] = {x, hlo_fill(h, HLO_I32, 0, HLO_SHAPE(x.dim[0], top)),
                                  hlo_fill(h, HLO_F32, 0, HLO_SHAPE(x.dim[0], top)), zero};
    struct hlo_loop loop;
    hlo_loop_begin(h, &loop, top, 4, carried);
    struct hlo_value best = hlo_argmax(h, carried[0]), at = hlo_iota(h, HLO_I32, 1, x.ndim, x.dim);
    struct hlo_value is = hlo_compare(h, "EQ", at, hlo_over(h, best, at, 0));
    struct hlo_value weight = hlo_reduce(h, "add", hlo_select(h, is, p, zero), 1u << 1);
    carried[0] = hlo_select(h, is, none, carried[0]);
    carried[1] = with_column(h, carried[1], best, loop.index);
    carried[2] = with_column(h, carried[2], weight, loop.index);
    carried[3] = hlo_add(h, carried[3], hlo_convert(h, is, HLO_F32));
    hlo_loop_end(h, &loop, carried);
    return (struct choice){carried[1], carried[2], carried[3]};
}

/* Positions of pairs when they are sorted by expert, and where each expert's end. */
static void emit_places(struct emit *e, struct hlo_value expert, int64_t experts)
{
    struct hlo *h = e->h;
    int64_t pairs = hlo_count(&expert);
    struct hlo_value key = hlo_reshape(h, expert, HLO_SHAPE(pairs));
    struct hlo_value each = hlo_iota(h, HLO_I32, 1, HLO_SHAPE(pairs, experts));
    struct hlo_value upto = hlo_compare(h, "LE", hlo_over(h, key, each, 0), each);
    emit_out(e, ROUTE_ENDS, hlo_reduce(h, "add", hlo_convert(h, upto, HLO_I32), 1));
    struct hlo_value pair = hlo_iota(h, HLO_I32, 0, HLO_SHAPE(pairs)), at = pair;
    hlo_sort(h, &key, &pair);
    emit_out(e, ROUTE_PLACE, hlo_put(h, hlo_like(h, at, 0), pair, at, false));
}

static struct hlo_value sum_rows(struct hlo *h, struct hlo_value v)
{
    return hlo_convert(h, hlo_reduce(h, "add", hlo_convert(h, v, HLO_F64), 1), HLO_F32);
}

static void emit_route(struct emit *e)
{
    struct hlo *h = e->h;
    const struct tensor *weight = emit_out_tensor(e, ROUTE_WEIGHT);
    int64_t rows = weight->dim[0], experts = tensor_count(emit_out_tensor(e, ROUTE_ENDS));
    struct hlo_value x = part_rows(e, ROUTE_LOGITS, experts), lse, p = softmax(h, x, &lse);
    struct choice c = choose(h, x, p, weight->dim[1]);
    struct hlo_value sum = hlo_reduce(h, "add", c.weight, 1u << 1);
    if (e->op->attr.norm_topk) c.weight = hlo_div(h, c.weight, hlo_over(h, sum, c.weight, 0));
    struct hlo_value live = tokens(e, ROUTE_LENGTHS, rows), each = hlo_over(h, live, p, 0);
    struct hlo_value squares = sum_rows(h, hlo_mul(h, hlo_mul(h, lse, lse), live));
    struct hlo_value stat =
        hlo_concat(h, 0, sum_rows(h, hlo_mul(h, c.times, each)), sum_rows(h, hlo_mul(h, p, each)));
    stat = hlo_concat(h, 0, stat, hlo_reshape(h, squares, HLO_SHAPE(1)));
    if (experts > 1) stat = hlo_concat(h, 0, stat, hlo_fill(h, HLO_F32, 0, HLO_SHAPE(experts - 1)));
    emit_places(e, c.expert, experts);
    emit_out(e, ROUTE_WEIGHT, c.weight);
    emit_out(e, ROUTE_EXPERT, c.expert);
    emit_out(e, ROUTE_STAT, stat);
}
const struct emitter pjrt_route = {.emit = emit_route};

/* With s = the sum of p over the row's experts, D and t as in op.h, dp is D, with norm_topk (D - t) / s of the row's experts, plus
 * the losses' factor; dlogits = p (dp - sum of p dp + the z-loss's part). */
static void emit_route_bwd(struct emit *e)
{
    struct hlo *h = e->h;
    struct hlo_value dweight = emit_in(e, ROUTE_BWD_DWEIGHT), expert = emit_in(e, ROUTE_BWD_EXPERT), lse;
    int64_t rows = dweight.dim[0], top = dweight.dim[1],
            experts = tensor_count(emit_in_tensor(e, ROUTE_BWD_LOGITS)) / rows;
    struct hlo_value p = softmax(h, part_rows(e, ROUTE_BWD_LOGITS, experts), &lse);
    struct hlo_value at = hlo_iota(h, HLO_I32, 2, HLO_SHAPE(rows, top, experts));
    struct hlo_value is = hlo_convert(h, hlo_compare(h, "EQ", at, hlo_over(h, expert, at, 0)), HLO_F32);
    struct hlo_value d = hlo_reduce(h, "add", hlo_mul(h, is, hlo_over(h, dweight, is, 0)), 1u << 1);
    if (e->op->attr.norm_topk) {
        struct hlo_value mine = hlo_reduce(h, "add", is, 1u << 1), share = hlo_mul(h, p, mine);
        struct hlo_value sum = hlo_over(h, hlo_reduce(h, "add", share, 1u << 1), p, 0);
        struct hlo_value t = hlo_reduce(h, "add", hlo_mul(h, hlo_div(h, share, sum), d), 1u << 1);
        d = hlo_mul(h, hlo_div(h, hlo_sub(h, d, hlo_over(h, t, d, 0)), sum), mine);
    }
    struct hlo_value z = hlo_like(h, lse, 0);
    if (emit_has(e, ROUTE_BWD_FACTOR)) {
        struct hlo_value factor = emit_in(e, ROUTE_BWD_FACTOR), live = tokens(e, ROUTE_BWD_LENGTHS, rows);
        struct hlo_value first = hlo_reshape(h, hlo_slice(h, factor, 0, 0, 1), HLO_SHAPE(experts));
        d = hlo_add(h, d, hlo_mul(h, hlo_over(h, first, d, 1), hlo_over(h, live, d, 0)));
        z = hlo_over(h, emit_scalar(e, ROUTE_BWD_FACTOR, (int)experts), lse, 0);
        z = hlo_mul(h, hlo_mul(h, z, lse), live);
    }
    struct hlo_value all = hlo_reduce(h, "add", hlo_mul(h, p, d), 1u << 1);
    emit_out(e, ROUTE_BWD_DLOGITS, hlo_mul(h, p, hlo_add(h, d, hlo_over(h, hlo_sub(h, z, all), d, 0))));
}
const struct emitter pjrt_route_bwd = {.emit = emit_route_bwd};

/* Line i of stat[L,3,E], summed over the layers, in F64. */
static struct hlo_value stat_sum(struct hlo *h, struct hlo_value stat, int i)
{
    struct hlo_value line = hlo_reduce(h, "add", hlo_slice(h, hlo_convert(h, stat, HLO_F64), 1, i, 1), 1);
    return hlo_reshape(h, line, HLO_SHAPE(stat.dim[2]));
}

static void emit_router_loss(struct emit *e)
{
    struct hlo *h = e->h;
    const struct op_attr *attr = &e->op->attr;
    struct hlo_value stat = emit_in(e, ROUTER_LOSS_STAT), n = stat_sum(h, stat, 0), p = stat_sum(h, stat, 1);
    int64_t layers = stat.dim[0], experts = stat.dim[2];
    struct hlo_value z = hlo_reshape(h, hlo_slice(h, stat_sum(h, stat, 2), 0, 0, 1), 0, NULL);
    struct hlo_value rows = hlo_times(h, hlo_reduce(h, "add", n, 1), 1 / (double)attr->top_k);
    struct hlo_value s = hlo_convert(h, emit_scalar(e, ROUTER_LOSS_SCALARS, SCALAR_AUX_GRAD), HLO_F64);
    struct hlo_value weight =
        hlo_div(h, hlo_scalar(h, HLO_F64, (double)attr->balance * (double)experts), hlo_mul(h, rows, rows));
    struct hlo_value balance = hlo_mul(h, hlo_reduce(h, "add", hlo_mul(h, n, p), 1), weight);
    struct hlo_value z_weight = hlo_div(h, hlo_scalar(h, HLO_F64, (double)attr->z_loss), rows);
    struct hlo_value loss = hlo_concat(h, 0, hlo_reshape(h, balance, HLO_SHAPE(1)),
                                       hlo_reshape(h, hlo_mul(h, z, z_weight), HLO_SHAPE(1)));
    emit_sum(e, ROUTER_LOSS_LOSS, hlo_concat(h, 0, loss, hlo_fill(h, HLO_F64, 1, HLO_SHAPE(1))));
    emit_sum(e, ROUTER_LOSS_LOAD, hlo_reshape(h, hlo_slice(h, stat, 1, 0, 1), HLO_SHAPE(layers, experts)));
    struct hlo_value factor = hlo_mul(h, n, hlo_over(h, hlo_mul(h, weight, s), n, 0));
    struct hlo_value second = hlo_times(h, hlo_mul(h, z_weight, s), 2);
    factor = hlo_concat(h, 0, factor, hlo_reshape(h, second, HLO_SHAPE(1)));
    if (experts > 1) factor = hlo_concat(h, 0, factor, hlo_fill(h, HLO_F64, 0, HLO_SHAPE(experts - 1)));
    emit_out(e, ROUTER_LOSS_FACTOR, factor);
}
const struct emitter pjrt_router_loss = {.emit = emit_router_loss};

/* --- rows to and from experts -------------------------------------------------------------------------------------- */

/* Which pair (r, i) is at each place. */
static void emit_dispatch(struct emit *e)
{
    struct hlo *h = e->h;
    struct hlo_value place = emit_in(e, DISPATCH_PLACE), x = emit_in(e, DISPATCH_X);
    int64_t rows = place.dim[0], top = place.dim[1], pairs = rows * top, width = hlo_count(&x) / rows;
    struct hlo_value pair = hlo_iota(h, HLO_I32, 0, HLO_SHAPE(pairs));
    pair = hlo_put(h, hlo_like(h, pair, 0), hlo_reshape(h, place, HLO_SHAPE(pairs)), pair, false);
    struct hlo_value row = hlo_div(h, pair, hlo_like(h, pair, (double)top));
    struct hlo_value y = hlo_take(h, hlo_reshape(h, x, HLO_SHAPE(rows, width)), row);
    if (emit_has(e, DISPATCH_WEIGHT)) {
        struct hlo_value weight = hlo_reshape(h, emit_in(e, DISPATCH_WEIGHT), HLO_SHAPE(pairs));
        y = hlo_convert(h, y, HLO_F32);
        y = hlo_mul(h, y, hlo_over(h, hlo_take(h, weight, pair), y, 0));
    }
    emit_out(e, DISPATCH_Y, y);
}
const struct emitter pjrt_dispatch = {.emit = emit_dispatch};

/* The experts' rows of each row: [R,K,C]. */
static struct hlo_value taken(struct emit *e, int x_slot, int place_slot)
{
    struct hlo_value place = emit_in(e, place_slot), x = emit_in(e, x_slot);
    int64_t pairs = hlo_count(&place);
    return hlo_take(e->h, hlo_reshape(e->h, x, HLO_SHAPE(pairs, hlo_count(&x) / pairs)), place);
}

static void emit_combine(struct emit *e)
{
    struct hlo *h = e->h;
    struct hlo_value x = hlo_convert(h, taken(e, COMBINE_X, COMBINE_PLACE), HLO_F32);
    if (emit_has(e, COMBINE_WEIGHT)) x = hlo_mul(h, x, hlo_over(h, emit_in(e, COMBINE_WEIGHT), x, 0));
    struct hlo_value y = hlo_reduce(h, "add", x, 1u << 1);
    if (emit_has(e, COMBINE_ADD)) y = hlo_add(h, y, part_rows(e, COMBINE_ADD, y.dim[1]));
    emit_out(e, COMBINE_Y, y);
}
const struct emitter pjrt_combine = {.emit = emit_combine};

static void emit_combine_dw(struct emit *e)
{
    struct hlo *h = e->h;
    struct hlo_value x = hlo_convert(h, taken(e, COMBINE_DW_X, COMBINE_DW_PLACE), HLO_F32);
    struct hlo_value dy = part_rows(e, COMBINE_DW_DY, x.dim[2]);
    dy = hlo_broadcast(h, dy, (const int[]){0, 2}, x.ndim, x.dim);
    emit_out(e, COMBINE_DW_DWEIGHT, hlo_reduce(h, "add", hlo_mul(h, x, dy), 1u << 2));
}
const struct emitter pjrt_combine_dw = {.emit = emit_combine_dw};
