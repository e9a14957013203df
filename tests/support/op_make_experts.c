/* op_make_experts.c - makers of cases with experts: loads are even, skewed, all on one expert, or leave some without rows. */
#include "support/op_make.h"

#include <math.h>
#include <stdlib.h>

struct sizes {
    int64_t rows, experts, top;
};

static struct sizes any_sizes(struct op_case *c, int64_t most)
{
    struct sizes s = {.rows = PICK(c, 1, 2, 13, 64, 100, 257, 600), .experts = PICK(c, 1, 2, 3, 8, 37, 64)};
    if (s.rows > most) s.rows = most;
    s.top = 1 + case_below(c, s.experts < 8 ? s.experts : 8);
    if (case_below(c, 6) == 0) s.top = s.experts;
    return s;
}

/* The expert of the next of `left` pairs: any, mostly the first ones, or always the same. */
static int64_t draw(struct op_case *c, const struct sizes *s, int64_t kind)
{
    double u = case_uniform(c, 0, 1);
    if (kind == 2) return s->experts / 2;
    return (int64_t)((kind == 1 ? u * u * u : u) * (double)s->experts) % s->experts;
}

/* Ends for `pairs` rows, and, unless place is -1, a place for each. */
static void fill_routes(struct op_case *c, const struct sizes *s, int ends, int place)
{
    int64_t pairs = s->rows * s->top, kind = case_below(c, 3);
    int32_t *of = malloc((size_t)pairs * sizeof *of), at = 0;
    if (!of) abort();
    for (int64_t i = 0; i < pairs; i++) of[i] = (int32_t)draw(c, s, kind);
    for (int64_t e = 0; e < s->experts; e++) {
        for (int64_t i = 0; i < pairs; i++) {
            if (of[i] != e) continue;
            if (place >= 0) case_set_int(c, place, i, at);
            at++;
        }
        if (ends >= 0) case_set_int(c, ends, e, at);
    }
    free(of);
    case_note(c, "%s load, %d of %d",
              kind == 0   ? "even"
              : kind == 1 ? "skewed"
                          : "single",
              (int)s->top, (int)s->experts);
}

/* Rows of tokens that the rows are of, with padding behind them. */
static void any_padding(struct op_case *c, int slot, int64_t rows)
{
    int64_t time = PICK(c, 1, 2, 5, 13, 16, 50);
    if (rows % time) time = rows;
    if (case_flip(c)) case_lengths(c, slot, rows / time, time);
}

void make_route(struct op_case *c)
{
    struct sizes s = any_sizes(c, 600);
    double heat = (double)PICK(c, 1, 1, 10);
    c->op.attr.norm_topk = case_flip(c);
    case_in(c, ROUTE_LOGITS, c->type, DIMS(s.rows, s.experts));
    case_fill(c, ROUTE_LOGITS, 0, heat);
    bool equal = case_below(c, 5) == 0; /* of equal logits the first experts are chosen */
    for (int64_t i = 0; i < s.rows * s.experts && equal; i++) case_set(c, ROUTE_LOGITS, i, (double)(i % 3));
    any_padding(c, ROUTE_LENGTHS, s.rows);
    case_out(c, ROUTE_WEIGHT, DT_F32, DIMS(s.rows, s.top));
    case_out(c, ROUTE_EXPERT, DT_I32, DIMS(s.rows, s.top));
    case_out(c, ROUTE_PLACE, DT_I32, DIMS(s.rows, s.top));
    case_out(c, ROUTE_ENDS, DT_I32, DIMS(s.experts));
    case_out(c, ROUTE_STAT, DT_F32, DIMS(3, s.experts));
    c->inner[ROUTE_WEIGHT] = c->inner[ROUTE_STAT] = 16 * F32_UNIT * (1 + heat);
    case_note(c, "heat %.0f, %d of %d%s", heat, (int)s.top, (int)s.experts, equal ? ", equal" : "");
}

void make_route_bwd(struct op_case *c)
{
    struct sizes s = any_sizes(c, 300);
    double heat = (double)PICK(c, 1, 5);
    c->op.attr.norm_topk = case_flip(c);
    case_in(c, ROUTE_BWD_DWEIGHT, DT_F32, DIMS(s.rows, s.top));
    case_in(c, ROUTE_BWD_LOGITS, c->type, DIMS(s.rows, s.experts));
    case_fill(c, ROUTE_BWD_LOGITS, 0, heat);
    case_in(c, ROUTE_BWD_EXPERT, DT_I32, DIMS(s.rows, s.top));
    for (int64_t r = 0; r < s.rows; r++) {
        int64_t first = case_below(c, s.experts);
        for (int64_t i = 0; i < s.top; i++)
            case_set_int(c, ROUTE_BWD_EXPERT, r * s.top + i, (int32_t)((first + i) % s.experts));
    }
    if (case_flip(c)) case_in(c, ROUTE_BWD_FACTOR, DT_F32, DIMS(2, s.experts));
    any_padding(c, ROUTE_BWD_LENGTHS, s.rows);
    case_out(c, ROUTE_BWD_DLOGITS, c->type, DIMS(s.rows, s.experts));
    c->inner[ROUTE_BWD_DLOGITS] = 16 * F32_UNIT * (1 + heat);
    c->scale[ROUTE_BWD_DLOGITS] = 4; /* differences of numbers about 1 */
    case_note(c, "heat %.0f, %d of %d", heat, (int)s.top, (int)s.experts);
}

void make_router_loss(struct op_case *c)
{
    int64_t layers = PICK(c, 1, 2, 5, 33), experts = PICK(c, 1, 2, 7, 64, 129);
    c->op.attr.top_k = 1 + (int)case_below(c, experts);
    c->op.attr.balance = case_flip(c) ? 0.01f : 0, c->op.attr.z_loss = case_flip(c) ? 0.001f : 0;
    case_in(c, ROUTER_LOSS_STAT, DT_F32, DIMS(layers, 3, experts));
    for (int64_t i = 0; i < 3 * layers * experts; i++)
        case_set(c, ROUTER_LOSS_STAT, i, (double)case_below(c, 50) + (i == 0));
    case_scalars(c, ROUTER_LOSS_SCALARS);
    case_set(c, ROUTER_LOSS_SCALARS, SCALAR_AUX_GRAD, case_flip(c) ? 1 : 0.125);
    case_acc(c, ROUTER_LOSS_LOSS, DT_F64, DIMS(3));
    case_acc(c, ROUTER_LOSS_LOAD, DT_F32, DIMS(layers, experts));
    case_out(c, ROUTER_LOSS_FACTOR, DT_F32, DIMS(2, experts));
    c->inner[ROUTER_LOSS_LOSS] = c->inner[ROUTER_LOSS_LOAD] = c->inner[ROUTER_LOSS_FACTOR] = 4 * F32_UNIT;
}

static int64_t any_width(struct op_case *c) { return PICK(c, 1, 3, 16, 37, 64, 131, 520); }

void make_dispatch(struct op_case *c)
{
    struct sizes s = any_sizes(c, 100);
    int64_t width = any_width(c);
    case_in(c, DISPATCH_X, c->type, DIMS(s.rows, width));
    case_in(c, DISPATCH_PLACE, DT_I32, DIMS(s.rows, s.top));
    if (case_flip(c)) case_in(c, DISPATCH_WEIGHT, DT_F32, DIMS(s.rows, s.top));
    case_out(c, DISPATCH_Y, c->type, DIMS(s.rows * s.top, width));
    fill_routes(c, &s, -1, DISPATCH_PLACE);
    c->inner[DISPATCH_Y] = F32_UNIT;
}

void make_combine(struct op_case *c)
{
    struct sizes s = any_sizes(c, 100);
    int64_t width = any_width(c);
    case_in(c, COMBINE_X, c->type, DIMS(s.rows * s.top, width));
    case_in(c, COMBINE_PLACE, DT_I32, DIMS(s.rows, s.top));
    if (case_flip(c)) case_in(c, COMBINE_WEIGHT, DT_F32, DIMS(s.rows, s.top));
    if (case_flip(c)) case_in(c, COMBINE_ADD, c->type, DIMS(s.rows, width));
    case_out(c, COMBINE_Y, c->type, DIMS(s.rows, width));
    fill_routes(c, &s, -1, COMBINE_PLACE);
    c->inner[COMBINE_Y] = sum_error(s.top);
    c->scale[COMBINE_Y] = sqrt((double)s.top);
}

void make_combine_dw(struct op_case *c)
{
    struct sizes s = any_sizes(c, 100);
    int64_t width = any_width(c);
    case_in(c, COMBINE_DW_DY, c->type, DIMS(s.rows, width));
    case_in(c, COMBINE_DW_X, c->type, DIMS(s.rows * s.top, width));
    case_in(c, COMBINE_DW_PLACE, DT_I32, DIMS(s.rows, s.top));
    case_out(c, COMBINE_DW_DWEIGHT, DT_F32, DIMS(s.rows, s.top));
    fill_routes(c, &s, -1, COMBINE_DW_PLACE);
    c->inner[COMBINE_DW_DWEIGHT] = sum_error(width);
    c->scale[COMBINE_DW_DWEIGHT] = sqrt((double)width);
}

/* Gates from nearly shut to nearly open. */
static struct lead any_gates(struct op_case *c, int slot)
{
    struct lead lead = case_lead(c, 200);
    case_in_rows(c, slot, c->type, lead, 1);
    case_fill(c, slot, 0, (double)PICK(c, 1, 4, 20));
    return lead;
}

void make_row_gate(struct op_case *c)
{
    int64_t width = any_width(c);
    struct lead lead = any_gates(c, ROW_GATE_GATE);
    case_in_rows(c, ROW_GATE_X, c->type, lead, width);
    if (case_flip(c)) case_in_rows(c, ROW_GATE_ADD, c->type, lead, width);
    case_out_rows(c, ROW_GATE_Y, c->type, lead, width);
    c->inner[ROW_GATE_Y] = 8 * F32_UNIT;
}

void make_row_gate_bwd(struct op_case *c)
{
    int64_t width = any_width(c);
    struct lead lead = any_gates(c, ROW_GATE_BWD_GATE);
    case_in_rows(c, ROW_GATE_BWD_DY, c->type, lead, width);
    case_in_rows(c, ROW_GATE_BWD_X, c->type, lead, width);
    case_out_rows(c, ROW_GATE_BWD_DX, c->type, lead, width);
    case_out_rows(c, ROW_GATE_BWD_DGATE, c->type, lead, 1);
    c->inner[ROW_GATE_BWD_DX] = 8 * F32_UNIT;
    c->inner[ROW_GATE_BWD_DGATE] = sum_error(width);
    c->scale[ROW_GATE_BWD_DGATE] = sqrt((double)width);
}

/* Sizes of the products: some are whole tiles of a tensor core's kernel, some are nothing of the kind. */
struct product {
    struct sizes s;
    int64_t pairs, m, k;
};

static struct product any_product(struct op_case *c)
{
    struct product p = {.s = any_sizes(c, 150)};
    if (p.s.experts > 8) p.s.experts = 8 + case_below(c, 9);
    if (p.s.top > 4) p.s.top = 4;
    if (p.s.top > p.s.experts) p.s.top = p.s.experts;
    p.m = PICK(c, 1, 5, 16, 37, 64, 136, 264), p.k = PICK(c, 1, 3, 16, 32, 67, 128, 200);
    if (case_below(c, 8) == 0) p.k = 520, p.m = 24;
    p.pairs = p.s.rows * p.s.top;
    return p;
}

void make_expert_linear(struct op_case *c)
{
    struct product p = any_product(c);
    case_in(c, EXPERT_LINEAR_X, c->type, DIMS(p.pairs, p.k));
    case_in(c, EXPERT_LINEAR_W, c->type, DIMS(p.s.experts, p.m, p.k));
    case_in(c, EXPERT_LINEAR_ENDS, DT_I32, DIMS(p.s.experts));
    case_out(c, EXPERT_LINEAR_Y, c->type, DIMS(p.pairs, p.m));
    fill_routes(c, &p.s, EXPERT_LINEAR_ENDS, -1);
    c->inner[EXPERT_LINEAR_Y] = sum_error(p.k);
    c->scale[EXPERT_LINEAR_Y] = sqrt((double)p.k);
}

void make_expert_linear_dx(struct op_case *c)
{
    struct product p = any_product(c);
    case_in(c, EXPERT_LINEAR_DX_DY, c->type, DIMS(p.pairs, p.m));
    case_in(c, EXPERT_LINEAR_DX_W, c->type, DIMS(p.s.experts, p.m, p.k));
    case_in(c, EXPERT_LINEAR_DX_ENDS, DT_I32, DIMS(p.s.experts));
    if (case_flip(c)) case_in(c, EXPERT_LINEAR_DX_ADD, c->type, DIMS(p.pairs, p.k));
    case_out(c, EXPERT_LINEAR_DX_DX, c->type, DIMS(p.pairs, p.k));
    fill_routes(c, &p.s, EXPERT_LINEAR_DX_ENDS, -1);
    c->inner[EXPERT_LINEAR_DX_DX] = sum_error(p.m);
    c->scale[EXPERT_LINEAR_DX_DX] = sqrt((double)p.m);
}

void make_expert_linear_dw(struct op_case *c)
{
    struct product p = any_product(c);
    if (case_below(c, 8) == 0) { /* more rows than a kernel sums in one go */
        p.s.rows = 9001, p.s.top = 1, p.pairs = 9001;
        p.m = PICK(c, 16, 136), p.k = PICK(c, 24, 136);
    }
    case_in(c, EXPERT_LINEAR_DW_DY, c->type, DIMS(p.pairs, p.m));
    case_in(c, EXPERT_LINEAR_DW_X, c->type, DIMS(p.pairs, p.k));
    case_in(c, EXPERT_LINEAR_DW_ENDS, DT_I32, DIMS(p.s.experts));
    case_acc(c, EXPERT_LINEAR_DW_DW, case_flip(c) ? DT_F32 : c->type, DIMS(p.s.experts, p.m, p.k));
    fill_routes(c, &p.s, EXPERT_LINEAR_DW_ENDS, -1);
    c->inner[EXPERT_LINEAR_DW_DW] = sum_error(p.pairs);
    c->scale[EXPERT_LINEAR_DW_DW] = sqrt((double)p.pairs);
}
