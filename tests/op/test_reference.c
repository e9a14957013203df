/* test_reference.c - proofs of the reference itself: gradients by central differences, the rest by
 * identities.
 *
 * A forward op with outputs y_j is made a number L = sum_j sum_i w_ji y_ji with random weights w. What the
 * backward op makes of w must equal dL/dx for every single element of every differentiable input. Everything
 * is double, so differences are good to about nine digits.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "support/ref_probe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- gradients -------------------------------------------------------------------------------------------
 */

/* Central differences of the forward op against a gradient of its input `slot`. */
static void check_gradient(struct probe *forward, int slot, const double *grad)
{
    const double h = 1e-5;
    int64_t n = tensor_count(&forward->desc[slot]);
    double *x = forward->call.in[slot].f, largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(grad[i]));
    for (int64_t i = 0; i < n; i++) {
        double at = x[i];
        x[i] = at + h;
        double above = probe_value(forward);
        x[i] = at - h;
        double below = probe_value(forward), slope = (above - below) / (2 * h);
        x[i] = at;
        if (!(fabs(slope - grad[i]) <= 1e-7 * (1 + largest)))
            fail_msg("%s input %d element %lld: gradient %.12g, differences give %.12g",
                     op_name(forward->op.kind), slot, (long long)i, grad[i], slope);
    }
}

static void embed_gradient_of(float scale)
{
    struct probe f = probe_make(OP_EMBED, 1), b = probe_make(OP_EMBED_BWD, 2);
    f.op.attr.scale = b.op.attr.scale = scale;
    probe_in(&f, EMBED_IDS, DT_I32, "2 5");
    probe_ints(&f, EMBED_IDS, (const int[]){3, 0, 3, 6, 1, 1, 3, 2, 2, 2}, 10);
    probe_in(&f, EMBED_W, DT_F32, "7 3");
    probe_in(&f, EMBED_ADD, DT_F32, "2 5 3");
    probe_out(&f, EMBED_Y, DT_F32, "2 5 3");
    probe_weigh(&f, EMBED_Y);
    probe_use(&b, EMBED_BWD_IDS, f.call.in[EMBED_IDS], &f.desc[EMBED_IDS]);
    probe_use(&b, EMBED_BWD_DY, f.weight[EMBED_Y], probe_out_desc(&f, EMBED_Y));
    probe_out(&b, EMBED_BWD_DW, DT_F32, "7 3");
    probe_run(&b);
    check_gradient(&f, EMBED_W, b.call.out[EMBED_BWD_DW].f);
    check_gradient(&f, EMBED_ADD, f.weight[EMBED_Y].f); /* the addend's gradient is dy: no op is needed */
    probe_free(&f), probe_free(&b);
}

static void embed_gradient(void **state)
{
    (void)state;
    embed_gradient_of(0);
    embed_gradient_of(1.7f);
}

static void norm_gradient_of(bool layer, bool bias, bool plus_one)
{
    struct probe f = probe_make(OP_NORM, 3), b = probe_make(OP_NORM_BWD, 4);
    f.op.attr.layer_norm = b.op.attr.layer_norm = layer;
    f.op.attr.plus_one = b.op.attr.plus_one = plus_one;
    f.op.attr.eps = b.op.attr.eps = 1e-2f;
    probe_in(&f, NORM_X, DT_F32, "2 3 7");
    probe_in(&f, NORM_W, DT_F32, "7");
    if (bias) probe_in(&f, NORM_BIAS, DT_F32, "7");
    probe_out(&f, NORM_Y, DT_F32, "2 3 7");
    probe_out(&f, NORM_STAT, DT_F32, layer ? "2 3 2" : "2 3 1");
    probe_weigh(&f, NORM_Y);
    probe_run(&f);
    probe_use(&b, NORM_BWD_DY, f.weight[NORM_Y], probe_out_desc(&f, NORM_Y));
    probe_use(&b, NORM_BWD_X, f.call.in[NORM_X], &f.desc[NORM_X]);
    probe_use(&b, NORM_BWD_W, f.call.in[NORM_W], &f.desc[NORM_W]);
    probe_copy(&b, NORM_BWD_STAT, f.call.out[NORM_STAT], probe_out_desc(&f, NORM_STAT));
    probe_out(&b, NORM_BWD_DX, DT_F32, "2 3 7");
    probe_out(&b, NORM_BWD_DW, DT_F32, "7");
    if (bias) probe_out(&b, NORM_BWD_DBIAS, DT_F32, "7");
    probe_run(&b);
    check_gradient(&f, NORM_X, b.call.out[NORM_BWD_DX].f);
    check_gradient(&f, NORM_W, b.call.out[NORM_BWD_DW].f);
    if (bias) check_gradient(&f, NORM_BIAS, b.call.out[NORM_BWD_DBIAS].f);
    probe_free(&f), probe_free(&b);
}

static void norm_gradient(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) norm_gradient_of(i & 1, i & 2, false);
    norm_gradient_of(false, false, true);
}

static void pool_gradient_of(struct op_attr attr)
{
    struct probe f = probe_make(OP_POOL, 21), b = probe_make(OP_POOL_BWD, 22);
    f.op.attr = b.op.attr = attr;
    probe_in(&f, POOL_X, DT_F32, "3 5 4");
    probe_in(&f, POOL_LENGTHS, DT_I32, "3");
    probe_ints(&f, POOL_LENGTHS, (const int[]){5, 1, 3}, 3);
    probe_out(&f, POOL_Y, DT_F32, "3 4");
    probe_out(&f, POOL_STAT, DT_F32, "3");
    probe_weigh(&f, POOL_Y);
    probe_run(&f);
    probe_use(&b, POOL_BWD_DY, f.weight[POOL_Y], probe_out_desc(&f, POOL_Y));
    probe_copy(&b, POOL_BWD_Y, f.call.out[POOL_Y], probe_out_desc(&f, POOL_Y));
    probe_copy(&b, POOL_BWD_STAT, f.call.out[POOL_STAT], probe_out_desc(&f, POOL_STAT));
    probe_use(&b, POOL_BWD_LENGTHS, f.call.in[POOL_LENGTHS], &f.desc[POOL_LENGTHS]);
    probe_out(&b, POOL_BWD_DX, DT_F32, "3 5 4");
    probe_run(&b);
    check_gradient(&f, POOL_X, b.call.out[POOL_BWD_DX].f);
    probe_free(&f), probe_free(&b);
}

static void pool_gradient(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++)
        pool_gradient_of((struct op_attr){
            .pooling = (enum pooling)(i & 1), .normalize = i & 2, .scale = i & 4 ? 2.5f : 0});
}

static void linear_gradient_of(bool kn)
{
    struct probe f = probe_make(OP_LINEAR, 5), dx = probe_make(OP_LINEAR_DX, 6),
                 dw = probe_make(OP_LINEAR_DW, 7);
    f.op.attr.weight_kn = dx.op.attr.weight_kn = dw.op.attr.weight_kn = kn;
    probe_in(&f, LINEAR_X, DT_F32, "2 3 5");
    probe_in(&f, LINEAR_W, DT_F32, kn ? "5 4" : "4 5");
    probe_in(&f, LINEAR_BIAS, DT_F32, "4");
    probe_in(&f, LINEAR_ADD, DT_F32, "2 3 4");
    probe_out(&f, LINEAR_Y, DT_F32, "2 3 4");
    probe_weigh(&f, LINEAR_Y);
    probe_use(&dx, LINEAR_DX_DY, f.weight[LINEAR_Y], probe_out_desc(&f, LINEAR_Y));
    probe_use(&dx, LINEAR_DX_W, f.call.in[LINEAR_W], &f.desc[LINEAR_W]);
    probe_out(&dx, LINEAR_DX_DX, DT_F32, "2 3 5");
    probe_use(&dw, LINEAR_DW_DY, f.weight[LINEAR_Y], probe_out_desc(&f, LINEAR_Y));
    probe_use(&dw, LINEAR_DW_X, f.call.in[LINEAR_X], &f.desc[LINEAR_X]);
    probe_out(&dw, LINEAR_DW_DW, DT_F32, kn ? "5 4" : "4 5");
    probe_out(&dw, LINEAR_DW_DBIAS, DT_F32, "4");
    probe_run(&dx);
    probe_run(&dw);
    check_gradient(&f, LINEAR_X, dx.call.out[LINEAR_DX_DX].f);
    check_gradient(&f, LINEAR_W, dw.call.out[LINEAR_DW_DW].f);
    check_gradient(&f, LINEAR_BIAS, dw.call.out[LINEAR_DW_DBIAS].f);
    check_gradient(&f, LINEAR_ADD, f.weight[LINEAR_Y].f);
    probe_free(&f), probe_free(&dx), probe_free(&dw);
}

static void linear_gradient(void **state)
{
    (void)state;
    linear_gradient_of(false);
    linear_gradient_of(true);
}

/* A way of attention: attributes, and operands that are there when they are not NULL. */
struct attn_way {
    struct op_attr attr;
    const int *pos, *lengths; /* [2][5], [2] */
    bool bias;
    const char *queries, *keys; /* shapes; NULL: "2 5 4 3", "2 5 2 3" */
};

/* What both ops take beside q, k and v. */
static void attn_extras(struct probe *f, struct probe *b, const struct attn_way *way)
{
    if (way->pos) probe_in(f, ATTN_POS, DT_I32, "2 5"), probe_ints(f, ATTN_POS, way->pos, 10);
    if (way->lengths) probe_in(f, ATTN_LENGTHS, DT_I32, "2"), probe_ints(f, ATTN_LENGTHS, way->lengths, 2);
    if (way->bias) probe_in(f, ATTN_BIAS, DT_F32, "8 4");
    if (way->attr.dropout > 0) {
        probe_in(f, ATTN_SCALARS, DT_F32, "16");
        for (int i = 0; i < SCALAR_COUNT; i++) f->call.in[ATTN_SCALARS].f[i] = 100 + i;
    }
    static const int slots[][2] = {{ATTN_POS, ATTN_BWD_POS},
                                   {ATTN_LENGTHS, ATTN_BWD_LENGTHS},
                                   {ATTN_BIAS, ATTN_BWD_BIAS},
                                   {ATTN_SCALARS, ATTN_BWD_SCALARS}};
    for (int i = 0; i < 4; i++)
        if (f->call.in[slots[i][0]].f)
            probe_use(b, slots[i][1], f->call.in[slots[i][0]], &f->desc[slots[i][0]]);
}

static void attn_gradient_of(struct attn_way way)
{
    struct probe f = probe_make(OP_ATTN, 10), b = probe_make(OP_ATTN_BWD, 11);
    const char *queries = way.queries ? way.queries : "2 5 4 3", *keys = way.keys ? way.keys : "2 5 2 3";
    way.attr.scale = 0.7f;
    f.op.attr = b.op.attr = way.attr;
    probe_in(&f, ATTN_Q, DT_F32, queries);
    probe_in(&f, ATTN_K, DT_F32, keys);
    probe_in(&f, ATTN_V, DT_F32, keys);
    attn_extras(&f, &b, &way);
    probe_out(&f, ATTN_O, DT_F32, queries);
    probe_out(&f, ATTN_LSE, DT_F32, way.queries ? "2 4 3" : "2 4 5");
    probe_weigh(&f, ATTN_O);
    probe_run(&f);
    probe_use(&b, ATTN_BWD_DO, f.weight[ATTN_O], probe_out_desc(&f, ATTN_O));
    probe_use(&b, ATTN_BWD_Q, f.call.in[ATTN_Q], &f.desc[ATTN_Q]);
    probe_use(&b, ATTN_BWD_K, f.call.in[ATTN_K], &f.desc[ATTN_K]);
    probe_use(&b, ATTN_BWD_V, f.call.in[ATTN_V], &f.desc[ATTN_V]);
    probe_copy(&b, ATTN_BWD_O, f.call.out[ATTN_O], probe_out_desc(&f, ATTN_O));
    probe_copy(&b, ATTN_BWD_LSE, f.call.out[ATTN_LSE], probe_out_desc(&f, ATTN_LSE));
    probe_out(&b, ATTN_BWD_DQ, DT_F32, queries);
    probe_out(&b, ATTN_BWD_DK, DT_F32, keys);
    probe_out(&b, ATTN_BWD_DV, DT_F32, keys);
    if (way.bias) probe_out(&b, ATTN_BWD_DBIAS, DT_F32, "8 4");
    probe_run(&b);
    check_gradient(&f, ATTN_Q, b.call.out[ATTN_BWD_DQ].f);
    check_gradient(&f, ATTN_K, b.call.out[ATTN_BWD_DK].f);
    check_gradient(&f, ATTN_V, b.call.out[ATTN_BWD_DV].f);
    if (way.bias) check_gradient(&f, ATTN_BIAS, b.call.out[ATTN_BWD_DBIAS].f);
    probe_free(&f), probe_free(&b);
}

static void attn_gradient(void **state)
{
    (void)state;
    static const int straight[] = {0, 1, 2, 3, 4, 0, 1, 2, 3, 4}, packed[] = {0, 1, 0, 1, 2, 0, 0, 1, 2, 3},
                     short_row[] = {3, 0};
    attn_gradient_of((struct attn_way){.pos = straight});
    attn_gradient_of((struct attn_way){.pos = straight, .attr = {.window = 2}});
    attn_gradient_of((struct attn_way){.pos = packed});
    attn_gradient_of((struct attn_way){.pos = packed, .attr = {.window = 3}});
    attn_gradient_of((struct attn_way){.attr = {.mask = MASK_FULL}});
    attn_gradient_of((struct attn_way){.attr = {.mask = MASK_FULL}, .lengths = short_row});
    attn_gradient_of((struct attn_way){
        .attr = {.mask = MASK_CROSS}, .queries = "2 3 4 3", .keys = "2 5 2 3", .lengths = short_row});
    attn_gradient_of((struct attn_way){
        .pos = straight,
        .attr = {.mask = MASK_BLOCKS, .sparse_block = 1, .local_blocks = 2, .global_blocks = 1}});
    attn_gradient_of((struct attn_way){.pos = straight, .attr = {.cap = 0.9f}});
    attn_gradient_of(
        (struct attn_way){.attr = {.mask = MASK_FULL, .two_sided = true, .bias_reach = 4}, .bias = true});
    attn_gradient_of((struct attn_way){.pos = straight,
                                       .attr = {.bias_reach = 6, .cap = 2, .dropout = 0.3f},
                                       .bias = true,
                                       .lengths = short_row});
}

/* Ops on equal elements: `inputs` operands and one result; a backward op that takes the gradient of the result, then the
 * operands, and leaves their gradients. */
static void each_gradient_of(int kind, int backward, int inputs, struct op_attr attr)
{
    enum { RESULT = 0, GRADIENT = 0, OPERANDS };
    struct probe f = probe_make(kind, 12), b = probe_make(backward, 13);
    f.op.attr = b.op.attr = attr;
    for (int i = 0; i < inputs; i++) probe_in(&f, i, DT_F32, "5 9");
    probe_out(&f, RESULT, DT_F32, "5 9");
    probe_weigh(&f, RESULT);
    probe_use(&b, GRADIENT, f.weight[RESULT], probe_out_desc(&f, RESULT));
    for (int i = 0; i < inputs; i++) probe_use(&b, OPERANDS + i, f.call.in[i], &f.desc[i]);
    for (int i = 0; i < inputs; i++) probe_out(&b, i, DT_F32, "5 9");
    probe_run(&b);
    for (int i = 0; i < inputs; i++) check_gradient(&f, i, b.call.out[i].f);
    probe_free(&f), probe_free(&b);
}

static void activation_gradients(void **state)
{
    (void)state;
    for (int i = 0; i < ACTIVATION_COUNT; i++) {
        each_gradient_of(OP_GLU, OP_GLU_BWD, 2, (struct op_attr){.activation = (enum activation)i});
        each_gradient_of(OP_ACT, OP_ACT_BWD, 1,
                         (struct op_attr){.activation = (enum activation)i, .cap = 0.7f});
    }
}

/* dropout is its own gradient, rope that of the rotation back: both take the gradient in the place of x. */
static void same_op_gradient_of(int kind, struct op_attr attr, struct op_attr back, int other,
                                const char *other_shape)
{
    enum { X = 0, Y = 0 };
    struct probe f = probe_make(kind, 31), b = probe_make(kind, 32);
    f.op.attr = attr, b.op.attr = back;
    probe_in(&f, X, DT_F32, "2 3 2 4");
    probe_in(&f, other, DT_F32, other_shape);
    for (int64_t i = 0; kind == OP_DROPOUT && i < SCALAR_COUNT; i++) f.call.in[other].f[i] = (double)i;
    probe_out(&f, Y, DT_F32, "2 3 2 4");
    probe_weigh(&f, Y);
    probe_use(&b, X, f.weight[Y], probe_out_desc(&f, Y));
    probe_use(&b, other, f.call.in[other], &f.desc[other]);
    probe_out(&b, Y, DT_F32, "2 3 2 4");
    probe_run(&b);
    check_gradient(&f, X, b.call.out[Y].f);
    probe_free(&f), probe_free(&b);
}

static void same_op_gradients(void **state)
{
    (void)state;
    struct op_attr drops = {.dropout = 0.4f, .stream = 3};
    same_op_gradient_of(OP_DROPOUT, drops, drops, DROPOUT_SCALARS, "16");
    same_op_gradient_of(OP_ROPE, (struct op_attr){0}, (struct op_attr){.back = true}, ROPE_TABLE, "2 3 4");
}

/* The loss op makes its own gradient, times scalars[LOSS_GRAD]; ignored rows have none. */
static void xent_gradient_of(float cap)
{
    struct probe f = probe_make(OP_XENT, 14);
    f.op.attr.cap = cap;
    probe_in(&f, XENT_LOGITS, DT_F32, "6 11");
    probe_in(&f, XENT_TARGETS, DT_I32, "6");
    probe_ints(&f, XENT_TARGETS, (const int[]){3, 10, -1, 0, -100, 7}, 6);
    probe_in(&f, XENT_SCALARS, DT_F32, "16");
    probe_out(&f, XENT_LOSS, DT_F64, "2");
    probe_weigh(&f, XENT_LOSS);
    f.weight[XENT_LOSS].f[0] = f.call.in[XENT_SCALARS].f[SCALAR_LOSS_GRAD] = 0.37;
    probe_out(&f, XENT_DLOGITS, DT_F32, "6 11");
    probe_run(&f);
    double gradient[66];
    memcpy(gradient, f.call.out[XENT_DLOGITS].f, sizeof gradient);
    assert_true(f.call.out[XENT_LOSS].f[1] == 4);
    for (int v = 0; v < 11; v++) assert_true(gradient[2 * 11 + v] == 0 && gradient[4 * 11 + v] == 0);
    check_gradient(&f, XENT_LOGITS, gradient);
    probe_free(&f);
}

static void xent_gradient(void **state)
{
    (void)state;
    xent_gradient_of(0);
    xent_gradient_of(0.8f);
}

/* The gradient of a rotation is the rotation back. */
static void split_gradient_of(bool turned)
{
    static const char *const parts[] = {
        [SPLIT3_Q] = "2 3 4 6", [SPLIT3_K] = "2 3 2 6", [SPLIT3_V] = "2 3 2 6"};
    struct probe f = probe_make(OP_SPLIT3, 15), b = probe_make(OP_JOIN3, 16);
    probe_in(&f, SPLIT3_X, DT_F32, "2 3 48");
    if (turned) probe_in(&f, SPLIT3_TABLE, DT_F32, "2 3 6");
    for (int i = SPLIT3_Q; i <= SPLIT3_V; i++) probe_out(&f, i, DT_F32, parts[i]), probe_weigh(&f, i);
    probe_use(&b, JOIN3_Q, f.weight[SPLIT3_Q], probe_out_desc(&f, SPLIT3_Q));
    probe_use(&b, JOIN3_K, f.weight[SPLIT3_K], probe_out_desc(&f, SPLIT3_K));
    probe_use(&b, JOIN3_V, f.weight[SPLIT3_V], probe_out_desc(&f, SPLIT3_V));
    if (turned) probe_use(&b, JOIN3_TABLE, f.call.in[SPLIT3_TABLE], &f.desc[SPLIT3_TABLE]);
    probe_out(&b, JOIN3_X, DT_F32, "2 3 48");
    probe_run(&b);
    check_gradient(&f, SPLIT3_X, b.call.out[JOIN3_X].f);
    probe_free(&f), probe_free(&b);
}

static void split_gradient(void **state)
{
    (void)state;
    split_gradient_of(false);
    split_gradient_of(true);
}

/* Weights of the chosen, and of the statistics the sums of probabilities and of squares, through their factor. */
static void route_gradient_of(bool norm, bool padded)
{
    struct probe f = probe_make(OP_ROUTE, 21), b = probe_make(OP_ROUTE_BWD, 22);
    f.op.attr.norm_topk = b.op.attr.norm_topk = norm;
    probe_in(&f, ROUTE_LOGITS, DT_F32, "6 5");
    if (padded)
        probe_in(&f, ROUTE_LENGTHS, DT_I32, "2"), probe_ints(&f, ROUTE_LENGTHS, (const int[]){3, 1}, 2);
    probe_out(&f, ROUTE_WEIGHT, DT_F32, "6 2");
    probe_out(&f, ROUTE_EXPERT, DT_I32, "6 2"), probe_out(&f, ROUTE_PLACE, DT_I32, "6 2");
    probe_out(&f, ROUTE_ENDS, DT_I32, "5"), probe_out(&f, ROUTE_STAT, DT_F32, "3 5");
    probe_weigh(&f, ROUTE_WEIGHT), probe_weigh(&f, ROUTE_STAT);
    probe_run(&f);
    /* Counts have no gradient; d of lse^2 is 2 lse p. */
    double factor[10] = {0}, *stat = f.weight[ROUTE_STAT].f;
    for (int e = 0; e < 5; e++) factor[e] = stat[5 + e], stat[e] = 0;
    factor[5] = 2 * stat[10];
    probe_use(&b, ROUTE_BWD_DWEIGHT, f.weight[ROUTE_WEIGHT], probe_out_desc(&f, ROUTE_WEIGHT));
    probe_use(&b, ROUTE_BWD_LOGITS, f.call.in[ROUTE_LOGITS], &f.desc[ROUTE_LOGITS]);
    probe_copy(&b, ROUTE_BWD_EXPERT, f.call.out[ROUTE_EXPERT], probe_out_desc(&f, ROUTE_EXPERT));
    probe_in(&b, ROUTE_BWD_FACTOR, DT_F32, "2 5");
    memcpy(b.call.in[ROUTE_BWD_FACTOR].f, factor, sizeof factor);
    if (padded) probe_use(&b, ROUTE_BWD_LENGTHS, f.call.in[ROUTE_LENGTHS], &f.desc[ROUTE_LENGTHS]);
    probe_out(&b, ROUTE_BWD_DLOGITS, DT_F32, "6 5");
    probe_run(&b);
    check_gradient(&f, ROUTE_LOGITS, b.call.out[ROUTE_BWD_DLOGITS].f);
    probe_free(&f), probe_free(&b);
}

static void route_gradient(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) route_gradient_of(i & 1, i & 2);
}

/* --- optional addends and accumulation --------------------------------------------------------------------
 */

/* Running a probe with input `slot` present adds that input to output `out`. */
static void adds_input(struct probe *r, int slot, int out)
{
    int64_t n = tensor_count(probe_out_desc(r, out));
    double *plain = malloc((size_t)n * sizeof *plain), *addend = r->call.in[slot].f;
    assert_non_null(plain);
    r->call.in[slot].f = NULL;
    probe_run(r);
    memcpy(plain, r->call.out[out].f, (size_t)n * sizeof *plain);
    r->call.in[slot].f = addend;
    probe_run(r);
    for (int64_t i = 0; i < n; i++)
        assert_true(fabs(r->call.out[out].f[i] - plain[i] - addend[i]) < 1e-12 * (1 + fabs(plain[i])));
    free(plain);
}

static void addends(void **state)
{
    (void)state;
    struct probe dx = probe_make(OP_LINEAR_DX, 20), norm = probe_make(OP_NORM_BWD, 21);
    probe_in(&dx, LINEAR_DX_DY, DT_F32, "6 4"), probe_in(&dx, LINEAR_DX_W, DT_F32, "4 5"),
        probe_in(&dx, LINEAR_DX_ADD, DT_F32, "6 5");
    probe_out(&dx, LINEAR_DX_DX, DT_F32, "6 5");
    adds_input(&dx, LINEAR_DX_ADD, LINEAR_DX_DX);
    probe_in(&norm, NORM_BWD_DY, DT_F32, "6 4"), probe_in(&norm, NORM_BWD_X, DT_F32, "6 4"),
        probe_in(&norm, NORM_BWD_W, DT_F32, "4");
    probe_in(&norm, NORM_BWD_STAT, DT_F32, "6 1"), probe_in(&norm, NORM_BWD_ADD, DT_F32, "6 4");
    probe_out(&norm, NORM_BWD_DX, DT_F32, "6 4"), probe_out(&norm, NORM_BWD_DW, DT_F32, "4");
    adds_input(&norm, NORM_BWD_ADD, NORM_BWD_DX);
    probe_free(&dx), probe_free(&norm);
}

/* Running twice with accumulation gives twice the overwriting result, in outputs `first` to `last`. */
static void doubles(struct probe *r, int first, int last)
{
    double once[OP_MAX_OUT][64];
    r->call.accumulate = false;
    probe_run(r);
    for (int i = first; i <= last; i++)
        memcpy(once[i], r->call.out[i].f, (size_t)tensor_count(probe_out_desc(r, i)) * sizeof(double));
    r->call.accumulate = true;
    probe_run(r);
    for (int i = first; i <= last; i++)
        for (int64_t j = 0; j < tensor_count(probe_out_desc(r, i)); j++)
            assert_true(fabs(r->call.out[i].f[j] - 2 * once[i][j]) < 1e-12 * (1 + fabs(once[i][j])));
    probe_free(r);
}

static void accumulation(void **state)
{
    (void)state;
    struct probe embed = probe_make(OP_EMBED_BWD, 22), norm = probe_make(OP_NORM_BWD, 23);
    struct probe linear = probe_make(OP_LINEAR_DW, 24), sumsq = probe_make(OP_SUMSQ, 25),
                 xent = probe_make(OP_XENT, 26);
    probe_in(&embed, EMBED_BWD_IDS, DT_I32, "3"), probe_in(&embed, EMBED_BWD_DY, DT_F32, "3 2"),
        probe_out(&embed, EMBED_BWD_DW, DT_F32, "4 2");
    doubles(&embed, EMBED_BWD_DW, EMBED_BWD_DW);
    probe_in(&norm, NORM_BWD_DY, DT_F32, "6 4"), probe_in(&norm, NORM_BWD_X, DT_F32, "6 4"),
        probe_in(&norm, NORM_BWD_W, DT_F32, "4");
    probe_in(&norm, NORM_BWD_STAT, DT_F32, "6 1"), probe_out(&norm, NORM_BWD_DX, DT_F32, "6 4");
    probe_out(&norm, NORM_BWD_DW, DT_F32, "4"), probe_out(&norm, NORM_BWD_DBIAS, DT_F32, "4");
    doubles(&norm, NORM_BWD_DW, NORM_BWD_DBIAS);
    probe_in(&linear, LINEAR_DW_DY, DT_F32, "6 4"), probe_in(&linear, LINEAR_DW_X, DT_F32, "6 5");
    probe_out(&linear, LINEAR_DW_DW, DT_F32, "4 5"), probe_out(&linear, LINEAR_DW_DBIAS, DT_F32, "4");
    doubles(&linear, LINEAR_DW_DW, LINEAR_DW_DBIAS);
    probe_in(&sumsq, SUMSQ_GRAD, DT_F32, "50"), probe_out(&sumsq, SUMSQ_SUM, DT_F64, "1");
    doubles(&sumsq, SUMSQ_SUM, SUMSQ_SUM);
    probe_in(&xent, XENT_LOGITS, DT_F32, "6 11"), probe_in(&xent, XENT_TARGETS, DT_I32, "6"),
        probe_in(&xent, XENT_SCALARS, DT_F32, "16");
    probe_out(&xent, XENT_LOSS, DT_F64, "2");
    doubles(&xent, XENT_LOSS, XENT_LOSS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_gradient),
        cmocka_unit_test(norm_gradient),
        cmocka_unit_test(linear_gradient),
        cmocka_unit_test(attn_gradient),
        cmocka_unit_test(activation_gradients),
        cmocka_unit_test(same_op_gradients),
        cmocka_unit_test(xent_gradient),
        cmocka_unit_test(split_gradient),
        cmocka_unit_test(route_gradient),
        cmocka_unit_test(pool_gradient),
        cmocka_unit_test(addends),
        cmocka_unit_test(accumulation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
