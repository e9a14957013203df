/* experts.c - see experts.h.
 *
 *     logits = linear(h)                                          [B,T,E]
 *     weight, place, ends = route(logits)                         [R,K], R = B T
 *     rows = dispatch(h)                                          [R K, C], expert after expert
 *     y = x + combine(down(act(gate(rows)) * up(rows)))           products of each expert with its rows
 *     y += sigmoid(weight(h)) * shared_down(act(shared_gate(h)) * shared_up(h))      where there is a shared expert
 */
#include "model/experts.h"
#include "model/decoder.h"

static int declare(struct builder *b, struct tensor t)
{
    t.layer = b->layer, t.view_of = -1, t.owner = -1;
    return tape_tensor(b->tape, &t);
}

static struct op start(const struct builder *b, int kind)
{
    struct op op = tape_op(kind, b->layer);
    op.part = b->part;
    return op;
}

/* A small table that keeps its type under every precision. */
static int table(struct builder *b, const char *label, enum dtype type, int64_t rows, int64_t columns)
{
    struct tensor t = {.label = label, .type = type, .cls = CLASS_ACT, .flags = TENSOR_STAT};
    if (rows) t.dim[t.ndim++] = rows;
    t.dim[t.ndim++] = columns;
    return declare(b, t);
}

/* Rows of experts. */
static int rows_of(struct builder *b, const char *label, int64_t columns)
{
    int64_t rows = b->shape->batch * b->shape->time * b->spec->experts_per_token;
    return declare(
        b,
        (struct tensor){.label = label, .type = DT_F32, .cls = CLASS_ACT, .ndim = 2, .dim = {rows, columns}});
}

struct build_router build_router(struct builder *b)
{
    int64_t layers = model_mixtures(b->spec, b->spec->num_layers);
    int stat = declare(b, (struct tensor){.label = "router.stat",
                                          .type = DT_F32,
                                          .cls = CLASS_ACT,
                                          .flags = TENSOR_STAT,
                                          .ndim = 3,
                                          .dim = {layers, 3, b->spec->num_experts}});
    bool loss = build_learns(b);
    return (struct build_router){stat, loss ? build_feed(b, "lengths", b->shape->batch, 0) : -1};
}

static int layer_stat(struct builder *b, int stat)
{
    struct tensor t = b->tape->tensors[stat];
    t.label = "router.stat[%d]", t.layer = b->layer;
    t.ndim = 2, t.dim[0] = 3, t.dim[1] = b->spec->num_experts;
    t.view_of = stat;
    t.view_offset = model_mixtures(b->spec, b->layer) * 3 * t.dim[1] * (int64_t)sizeof(float);
    return tape_tensor(b->tape, &t);
}

static struct op build_route(struct builder *b, const struct build_router *shared, int h)
{
    int64_t rows = b->shape->batch * b->shape->time, top = b->spec->experts_per_token;
    struct build_linear router = {.weight = build_param(b, P_ROUTER), .bias = -1, .add = -1};
    int logits = build_linear(b, h, &router, build_act(b, "router.logits[%d]", b->spec->num_experts));
    struct op op = start(b, OP_ROUTE);
    op.attr.norm_topk = b->spec->norm_topk;
    op.in[ROUTE_LOGITS] = logits, op.in[ROUTE_LENGTHS] = shared->lengths;
    op.out[ROUTE_WEIGHT] = table(b, "router.weight[%d]", DT_F32, rows, top);
    op.out[ROUTE_EXPERT] = table(b, "router.expert[%d]", DT_I32, rows, top);
    op.out[ROUTE_PLACE] = table(b, "router.place[%d]", DT_I32, rows, top);
    op.out[ROUTE_ENDS] = table(b, "router.ends[%d]", DT_I32, 0, b->spec->num_experts);
    op.out[ROUTE_STAT] = layer_stat(b, shared->stat);
    tape_append(b->tape, &op);
    return op;
}

static int build_dispatch(struct builder *b, int h, int place)
{
    struct op op = start(b, OP_DISPATCH);
    op.in[DISPATCH_X] = h, op.in[DISPATCH_PLACE] = place;
    op.out[DISPATCH_Y] = rows_of(b, "mlp.rows[%d]", b->spec->hidden_size);
    tape_append(b->tape, &op);
    return op.out[DISPATCH_Y];
}

static int build_expert_linear(struct builder *b, int x, int row, int ends, int y)
{
    struct op op = start(b, OP_EXPERT_LINEAR);
    op.in[EXPERT_LINEAR_X] = x, op.in[EXPERT_LINEAR_W] = build_param(b, row),
    op.in[EXPERT_LINEAR_ENDS] = ends;
    op.out[EXPERT_LINEAR_Y] = y;
    tape_append(b->tape, &op);
    return y;
}

static int build_plain(struct builder *b, int x, int row, const char *label, int64_t width)
{
    struct build_linear l = {.weight = build_param(b, row), .bias = -1, .add = -1};
    return build_linear(b, x, &l, build_act(b, label, width));
}

/* y + the shared expert's result of h. */
static int build_shared(struct builder *b, int h, int y)
{
    int64_t inner = b->spec->shared_size, width = b->spec->hidden_size;
    struct op glu = start(b, OP_GLU), gate = start(b, OP_ROW_GATE);
    glu.attr.activation = b->spec->arch->act;
    glu.in[GLU_GATE] = build_plain(b, h, P_SHARED_GATE, "mlp.shared.gate[%d]", inner);
    glu.in[GLU_UP] = build_plain(b, h, P_SHARED_UP, "mlp.shared.up[%d]", inner);
    glu.out[GLU_H] = build_act(b, "mlp.shared.h[%d]", inner);
    tape_append(b->tape, &glu);
    gate.in[ROW_GATE_X] = build_plain(b, glu.out[GLU_H], P_SHARED_DOWN, "mlp.shared.down[%d]", width);
    gate.in[ROW_GATE_GATE] = build_plain(b, h, P_SHARED_WEIGHT, "mlp.shared.weight[%d]", 1);
    gate.in[ROW_GATE_ADD] = y;
    gate.out[ROW_GATE_Y] = build_act(b, "mlp.shared.residual[%d]", width);
    tape_append(b->tape, &gate);
    return gate.out[ROW_GATE_Y];
}

int build_experts(struct builder *b, const struct build_router *router, int h, int x)
{
    int64_t inner = b->spec->intermediate_size, width = b->spec->hidden_size;
    struct op route = build_route(b, router, h);
    int ends = route.out[ROUTE_ENDS], rows = build_dispatch(b, h, route.out[ROUTE_PLACE]);
    struct op glu = start(b, OP_GLU), sum = start(b, OP_COMBINE);
    glu.attr.activation = b->spec->arch->act;
    glu.in[GLU_GATE] = build_expert_linear(b, rows, P_EXPERT_GATE, ends, rows_of(b, "mlp.gate[%d]", inner));
    glu.in[GLU_UP] = build_expert_linear(b, rows, P_EXPERT_UP, ends, rows_of(b, "mlp.up[%d]", inner));
    glu.out[GLU_H] = rows_of(b, "mlp.h[%d]", inner);
    tape_append(b->tape, &glu);
    sum.in[COMBINE_X] =
        build_expert_linear(b, glu.out[GLU_H], P_EXPERT_DOWN, ends, rows_of(b, "mlp.down[%d]", width));
    sum.in[COMBINE_PLACE] = route.out[ROUTE_PLACE], sum.in[COMBINE_WEIGHT] = route.out[ROUTE_WEIGHT];
    sum.in[COMBINE_ADD] = x;
    sum.out[COMBINE_Y] = build_act(b, "mlp.residual[%d]", width);
    tape_append(b->tape, &sum);
    return b->spec->shared_size > 0 ? build_shared(b, h, sum.out[COMBINE_Y]) : sum.out[COMBINE_Y];
}

void build_router_loss(struct builder *b, const struct build_router *router)
{
    const struct model_spec *spec = b->spec;
    struct op op = start(b, OP_ROUTER_LOSS);
    struct tensor loss = {.label = "router.loss", .type = DT_F64, .ndim = 1, .dim = {3}},
                  load = {.label = "router.load",
                          .type = DT_F32,
                          .ndim = 2,
                          .dim = {model_mixtures(spec, spec->num_layers), spec->num_experts}};
    loss.cls = load.cls = CLASS_IO, loss.flags = load.flags = TENSOR_OUTPUT | TENSOR_STAT;
    op.accumulate = ACC_AFTER_FIRST;
    op.attr.top_k = spec->experts_per_token;
    op.attr.balance = spec->router_losses ? (float)spec->balance_coef : 0;
    op.attr.z_loss = (float)spec->z_coef;
    op.in[ROUTER_LOSS_STAT] = router->stat, op.in[ROUTER_LOSS_SCALARS] = build_scalars(b);
    op.out[ROUTER_LOSS_LOSS] = declare(b, loss), op.out[ROUTER_LOSS_LOAD] = declare(b, load);
    op.out[ROUTER_LOSS_FACTOR] = table(b, "router.factor", DT_F32, 2, spec->num_experts);
    tape_append(b->tape, &op);
}
