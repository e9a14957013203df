/* run-tests: not=tsan */
/* test_cost.c - the planner's clock reads the right rate, and rates survive the file that remembers them. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "device/calibration.h"
#include "plan/cost.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 512 };

static int square(struct tape *tape, enum dtype type)
{
    return tape_tensor(tape, &(struct tensor){.label = "x",
                                              .type = type,
                                              .cls = CLASS_ACT,
                                              .layer = -1,
                                              .ndim = 2,
                                              .dim = {N, N},
                                              .view_of = -1,
                                              .owner = -1});
}

/* Q8_0 blocks of N x N numbers. */
static int in_blocks(struct tape *tape)
{
    int id = square(tape, DT_U8);
    tape->tensors[id].ndim = 1, tape->tensors[id].dim[0] = N * N / 32 * 34;
    return id;
}

static struct tape_time time_of(const struct tape *tape, const struct device_facts *facts)
{
    struct tape_time out;
    assert_int_equal(tape_time_of(tape, facts, false, &out, NULL), PLIM_OK);
    return out;
}

/* A product of two squares on a device where but for moving its operands nothing else takes time. */
static double product_seconds(enum dtype type, bool tf32, double tf32_flops, double bandwidth)
{
    struct device_facts facts = {.bandwidth = bandwidth, .lower_bandwidth = 1, .tf32_flops = tf32_flops};
    struct tape tape;
    struct op op = tape_op(OP_LINEAR, -1);
    facts.flops[DT_F32] = 1e12, facts.flops[DT_BF16] = 8e12;
    tape_init(&tape);
    op.in[LINEAR_X] = square(&tape, type), op.in[LINEAR_W] = square(&tape, type),
    op.out[LINEAR_Y] = square(&tape, type);
    op.attr.tf32 = tf32;
    tape_append(&tape, &op);
    tape.loop_end = tape.nops;
    double out = time_of(&tape, &facts).loop_seconds;
    tape_release(&tape);
    return out;
}

static double seconds(enum dtype type, bool tf32, double tf32_flops)
{
    return product_seconds(type, tf32, tf32_flops, INFINITY);
}

static void tf32_has_a_rate_of_its_own(void **state)
{
    const double flops = 2.0 * N * N * N;
    (void)state;
    assert_true(fabs(seconds(DT_F32, true, 4e12) * 4e12 / flops - 1) < 1e-9);
    assert_true(fabs(seconds(DT_F32, false, 4e12) * 1e12 / flops - 1) < 1e-9);
    assert_true(fabs(seconds(DT_BF16, true, 4e12) * 8e12 / flops - 1) < 1e-9);
    assert_true(fabs(seconds(DT_F32, true, 0) * 1e12 / flops - 1) < 1e-9); /* not known: as exact fp32 */
}

/* The shorter of computing and moving is hidden in part. */
static void moving_is_not_all_hidden(void **state)
{
    (void)state;
    const double compute = 2.0 * N * N * N / 1e12, bytes = 3.0 * N * N * 4;
    double before = compute;
    for (double share = 0.25; share <= 1; share *= 2) { /* moving, of computing */
        double took = product_seconds(DT_F32, false, 0, bytes / (share * compute));
        assert_true(took > 1.01 * before && took < compute * (1 + share));
        before = took;
    }
}

/* Two experts share N rows of width N. */
static double expert_seconds(enum dtype type, double share)
{
    struct device_facts facts = {.bandwidth = INFINITY, .lower_bandwidth = 1, .expert_share = share};
    struct tape tape;
    struct op op = tape_op(OP_EXPERT_LINEAR, -1);
    facts.flops[DT_F32] = 1e12, facts.flops[DT_BF16] = 8e12;
    tape_init(&tape);
    struct tensor w = {
        .label = "w", .type = type, .cls = CLASS_PARAM, .layer = -1, .ndim = 3, .dim = {2, N, N}};
    struct tensor ends = {
        .label = "ends", .type = DT_I32, .cls = CLASS_ACT, .layer = -1, .ndim = 1, .dim = {2}};
    w.view_of = w.owner = ends.view_of = ends.owner = -1;
    op.in[EXPERT_LINEAR_X] = square(&tape, type), op.in[EXPERT_LINEAR_W] = tape_tensor(&tape, &w);
    op.in[EXPERT_LINEAR_ENDS] = tape_tensor(&tape, &ends), op.out[EXPERT_LINEAR_Y] = square(&tape, type);
    tape_append(&tape, &op);
    tape.loop_end = tape.nops;
    double out = time_of(&tape, &facts).loop_seconds;
    tape_release(&tape);
    return out;
}

static void experts_reach_a_share_of_the_rate(void **state)
{
    const double flops = 2.0 * N * N * N;
    (void)state;
    assert_true(fabs(expert_seconds(DT_BF16, 0.5) * 4e12 / flops - 1) < 1e-9);
    assert_true(fabs(expert_seconds(DT_F32, 0.5) * 1e12 / flops - 1) < 1e-9);
    assert_true(fabs(expert_seconds(DT_BF16, 0) * 8e12 / flops - 1) < 1e-9); /* not known: as one weight */
}

/* Codes of 8 bits take longer than their bytes where the device says so. */
static void codes_have_a_rate(void **state)
{
    struct device_facts facts = {.bandwidth = INFINITY, .lower_bandwidth = 1, .coded_rate = 1e9};
    struct tape tape;
    struct op op = tape_op(OP_ADAMW8, -1);
    (void)state;
    tape_init(&tape);
    for (int i = ADAMW8_P; i <= ADAMW8_VS; i++)
        op.in[i] = square(&tape, i == ADAMW8_MQ || i == ADAMW8_VQ ? DT_U8 : DT_F32);
    tape_append(&tape, &op);
    double coded = time_of(&tape, &facts).update_seconds;
    facts.coded_rate = 0;
    assert_true(fabs(coded - N * N / 1e9) < 1e-9);
    assert_true(time_of(&tape, &facts).update_seconds < 1e-9);
    tape_release(&tape);
}

/* So do activations, and products of many rows beyond their flops. */
static void activations_and_products_have_costs(void **state)
{
    struct device_facts facts = {.bandwidth = INFINITY, .lower_bandwidth = 1, .curve_rate = 1e9};
    struct tape tape;
    struct op glu = tape_op(OP_GLU, -1), bwd = tape_op(OP_GLU_BWD, -1), linear = tape_op(OP_LINEAR, -1);
    (void)state;
    for (int t = 0; t < DT_COUNT; t++) facts.flops[t] = INFINITY;
    tape_init(&tape);
    for (int i = GLU_GATE; i <= GLU_UP; i++) glu.in[i] = square(&tape, DT_F32);
    glu.out[GLU_H] = square(&tape, DT_F32);
    tape_append(&tape, &glu);
    assert_true(fabs(time_of(&tape, &facts).update_seconds - N * N / 1e9) < 1e-9);
    for (int i = GLU_BWD_DH; i <= GLU_BWD_UP; i++) bwd.in[i] = square(&tape, DT_F32);
    for (int i = GLU_BWD_DGATE; i <= GLU_BWD_H; i++) bwd.out[i] = square(&tape, DT_F32);
    tape_append(&tape, &bwd);
    assert_true(fabs(time_of(&tape, &facts).update_seconds - 3.5 * N * N / 1e9) < 1e-9);
    facts.curve_rate = 0, facts.matmul_seconds = 0.5;
    assert_true(time_of(&tape, &facts).update_seconds < 1e-9);
    linear.in[LINEAR_X] = square(&tape, DT_F32), linear.in[LINEAR_W] = square(&tape, DT_F32);
    linear.out[LINEAR_Y] = square(&tape, DT_F32);
    tape_append(&tape, &linear);
    assert_true(fabs(time_of(&tape, &facts).update_seconds - 0.5) < 1e-9);
    struct tensor few = tape.tensors[linear.in[LINEAR_X]];
    few.dim[0] = 16; /* read the weight as it lies */
    tape.tensors[linear.in[LINEAR_X]] = tape.tensors[linear.out[LINEAR_Y]] = few;
    assert_true(time_of(&tape, &facts).update_seconds < 1e-9);
    tape_release(&tape);
}

/* Attention of B rows of T tokens with heads of D, on a device that has only the parts of a score and of a row. */
static double attn_op_parts(struct op op, int64_t batch, int64_t time, int64_t size,
                            struct device_facts facts)
{
    struct tape tape;
    tape_init(&tape);
    struct tensor x = {.label = "x",
                       .type = DT_BF16,
                       .cls = CLASS_ACT,
                       .layer = -1,
                       .ndim = 4,
                       .dim = {batch, time, 2, size}};
    x.view_of = x.owner = -1;
    int id = tape_tensor(&tape, &x);
    if (op.kind == OP_ATTN)
        op.in[ATTN_Q] = op.in[ATTN_K] = op.in[ATTN_V] = op.out[ATTN_O] = id;
    else
        op.in[ATTN_BWD_Q] = op.in[ATTN_BWD_K] = op.out[ATTN_BWD_DQ] = id;
    tape_append(&tape, &op);
    facts.bandwidth = INFINITY, facts.lower_bandwidth = 1;
    for (int t = 0; t < DT_COUNT; t++)
        if (!facts.attn_flops[t]) facts.attn_flops[t] = INFINITY;
    double out = time_of(&tape, &facts).update_seconds;
    tape_release(&tape);
    return out;
}

static double attn_parts(int kind, int64_t batch, int64_t time, int64_t size, struct device_facts facts)
{
    return attn_op_parts(tape_op(kind, -1), batch, time, size, facts);
}

/* Scores cost what they cost for heads of any size, and short rows have as many rows as long ones. */
static void attention_is_more_than_products(void **state)
{
    (void)state;
    const struct device_facts scores = {.score_rate = 1}, rows = {.score_row_rate = 1};
    assert_true(attn_parts(OP_ATTN, 3, 64, 16, scores) == 3 * 2 * 64 * 65 / 2);
    assert_true(attn_parts(OP_ATTN, 3, 64, 128, scores) == 3 * 2 * 64 * 65 / 2);
    assert_true(fabs(attn_parts(OP_ATTN, 3, 64, 64, rows) / (3 * 64 * 2) - 1) < 1e-9);
    assert_true(attn_parts(OP_ATTN, 6, 32, 16, rows) == attn_parts(OP_ATTN, 3, 64, 16, rows));
    assert_true(attn_parts(OP_ATTN, 6, 32, 16, rows) < attn_parts(OP_ATTN, 6, 32, 64, rows));
    assert_true(attn_parts(OP_ATTN_BWD, 3, 64, 16, scores) == 1.5 * 3 * 2 * 64 * 65 / 2);
    struct device_facts flops = {.attn_flops = {[DT_BF16] = 1}};
    double back = attn_parts(OP_ATTN_BWD, 1, 8, 4, flops);
    assert_true(back == 10 * 2 * 4 * 8 * 9 / 2);
    flops.attn_bwd_share = 0.5;
    assert_true(attn_parts(OP_ATTN_BWD, 1, 8, 4, flops) == 2 * back);
    assert_true(attn_parts(OP_ATTN, 1, 8, 4, flops) == 0.4 * back);
}

/* Attention with another mask, a bias, lengths, a cap or dropout has kernels of its own on some devices. */
static void general_attention_has_a_rate(void **state)
{
    (void)state;
    struct op op = tape_op(OP_ATTN, -1), back = tape_op(OP_ATTN_BWD, -1);
    assert_true(op_attn_is_simple(&op) && op_attn_is_simple(&back));
    op.in[ATTN_BIAS] = back.in[ATTN_BWD_LENGTHS] = 0;
    assert_false(op_attn_is_simple(&op) || op_attn_is_simple(&back));
    op = back = tape_op(OP_ATTN, -1);
    op.attr.mask = MASK_FULL, back.attr.cap = 30;
    assert_false(op_attn_is_simple(&op) || op_attn_is_simple(&back));
    struct device_facts all = {.attn_flops = {[DT_BF16] = 1}}, slower = all;
    slower.attn_general_share = 0.25;
    for (int kind = OP_ATTN; kind >= 0; kind = kind == OP_ATTN ? OP_ATTN_BWD : -1) {
        struct op capped = tape_op(kind, -1);
        capped.attr.cap = 30;
        assert_true(attn_parts(kind, 1, 8, 4, slower) == attn_parts(kind, 1, 8, 4, all));
        assert_true(attn_op_parts(capped, 1, 8, 4, slower) == 4 * attn_op_parts(capped, 1, 8, 4, all));
    }
}

/* Seconds of one op on squares, of whose facts only these are known. */
static double square_seconds(int kind, const int *in, const int *out, struct device_facts facts)
{
    struct tape tape;
    struct op op = tape_op(kind, -1);
    tape_init(&tape);
    for (int i = 0; in[i] >= 0; i++) op.in[in[i]] = square(&tape, DT_F32);
    for (int i = 0; out[i] >= 0; i++) op.out[out[i]] = square(&tape, DT_F32);
    tape_append(&tape, &op);
    facts.bandwidth = INFINITY, facts.lower_bandwidth = 1;
    for (int t = 0; t < DT_COUNT; t++) facts.flops[t] = INFINITY;
    double seconds = time_of(&tape, &facts).update_seconds;
    tape_release(&tape);
    return seconds;
}

static void simple_ops_have_rates(void **state)
{
    (void)state;
    const struct device_facts plain = {.plain_rate = N * N}, update = {.update_rate = N * N},
                              curve = {.curve_rate = N * N}, pack = {.pack_bandwidth = 4 * N * N}, none = {0};
    const int linear[] = {LINEAR_X, LINEAR_W, -1}, y[] = {LINEAR_Y, -1}, adamw[] = {ADAMW_P, ADAMW_G, -1};
    const int xent[] = {XENT_LOGITS, -1}, loss[] = {-1}, both[] = {XENT_DLOGITS, -1},
              grad[] = {SUMSQ_GRAD, -1};
    assert_true(square_seconds(OP_ADAMW, adamw, loss, update) == 1);
    assert_true(square_seconds(OP_SUMSQ, grad, loss, plain) == 0.5);
    double sum = square_seconds(OP_XENT, xent, loss, curve);
    assert_true(sum > 0.5 && sum <= 1);
    assert_true(square_seconds(OP_XENT, xent, both, curve) == 2 * sum); /* again for the gradient */
    assert_true(square_seconds(OP_LINEAR, linear, y, pack) == 1);
    assert_true(square_seconds(OP_LINEAR, linear, y, none) < 1e-9);
    const int x[] = {NORM_X, -1}, dy[] = {NORM_BWD_DY, NORM_BWD_X, -1};
    double norm = square_seconds(OP_NORM, x, loss, plain);
    assert_true(norm > 1 && norm < 1.2); /* rows have ends */
    assert_true(square_seconds(OP_NORM_BWD, dy, loss, plain) == 2 * norm);
}

/* Ops of one second each on the lanes of a device: a product, a copy of a square either way, an update by the host. */
struct lanes {
    struct tape tape;
    struct device_facts facts;
};

static struct lanes lanes_begin(void)
{
    struct lanes l = {.facts = {.bandwidth = INFINITY,
                                .lower_bandwidth = 4.0 * N * N,
                                .host_bandwidth = 4.0 * 5 * N * N,
                                .host_total = 1.5 * 4.0 * 5 * N * N,
                                .duplex_cost = 0.5,
                                .host_op_seconds = 130e-6}};
    facts_set_memory(&l.facts, MEMORY_CARD);
    l.facts.flops[DT_F32] = 2.0 * N * N * N;
    tape_init(&l.tape);
    return l;
}

static double lanes_end(struct lanes *l)
{
    double out = time_of(&l->tape, &l->facts).update_seconds;
    tape_release(&l->tape);
    return out;
}

static int multiply(struct lanes *l, int x)
{
    struct op op = tape_op(OP_LINEAR, -1);
    op.in[LINEAR_X] = x, op.in[LINEAR_W] = square(&l->tape, DT_F32),
    op.out[LINEAR_Y] = square(&l->tape, DT_F32);
    tape_append(&l->tape, &op);
    return op.out[LINEAR_Y];
}

static int move(struct lanes *l, int kind, int x)
{
    struct op op = tape_op(kind, -1);
    op.in[MOVE_FROM] = x, op.out[MOVE_TO] = square(&l->tape, DT_F32);
    tape_append(&l->tape, &op);
    return op.out[MOVE_TO];
}

/* Three operands are read, two of them written. */
static int update_on_host(struct lanes *l, int grad)
{
    struct op op = tape_op(OP_SGD, -1);
    op.attr.on_host = true;
    op.in[SGD_P] = square(&l->tape, DT_F32), op.in[SGD_G] = grad, op.in[SGD_M] = square(&l->tape, DT_F32);
    op.out[SGD_NEW_P] = op.in[SGD_P], op.out[SGD_NEW_M] = op.in[SGD_M];
    tape_append(&l->tape, &op);
    return op.out[SGD_NEW_P];
}

#define SECONDS(l, want)                                                                                     \
    assert_true(fabs(lanes_end(&(l)) - (want)) < 1e-3) /* an op of the host wakes up within that */

static void copies_run_beside_computing(void **state)
{
    (void)state;
    struct lanes late = lanes_begin(), early = lanes_begin();
    multiply(&late, square(&late.tape, DT_F32));
    multiply(&late, move(&late, OP_FETCH, square(&late.tape, DT_F32)));
    SECONDS(late, 3);
    int x = move(&early, OP_FETCH, square(&early.tape, DT_F32));
    multiply(&early, square(&early.tape, DT_F32));
    multiply(&early, x);
    SECONDS(early, 2);
}

static void both_ways_at_once_are_slower(void **state)
{
    (void)state;
    struct lanes l = lanes_begin(), turn = lanes_begin();
    move(&l, OP_FETCH, square(&l.tape, DT_F32));
    move(&l, OP_STORE, square(&l.tape, DT_F32));
    SECONDS(l, 1.5);
    move(&turn, OP_STORE, move(&turn, OP_FETCH, square(&turn.tape, DT_F32)));
    SECONDS(turn, 2);
}

/* Down, updated, up: while one slice is updated its neighbours travel. */
static void slices_follow_each_other(void **state)
{
    (void)state;
    for (int slices = 1; slices <= 4; slices++) {
        struct lanes l = lanes_begin();
        l.facts.lower_bandwidth *= 1e6; /* so that only updates take time */
        for (int i = 0; i < slices; i++)
            move(&l, OP_FETCH, update_on_host(&l, move(&l, OP_STORE, square(&l.tape, DT_F32))));
        SECONDS(l, slices);
        l = lanes_begin();
        for (int i = 0; i < slices; i++)
            move(&l, OP_FETCH, update_on_host(&l, move(&l, OP_STORE, square(&l.tape, DT_F32))));
        assert_true(lanes_end(&l) < slices + 2 + 0.5 * slices + 1e-3);
    }
}

/* Before the norm: from one half of a pair to the other, so what is written is read first; behind the whole of a gradient; one
 * direction of two. What looks at the clip afterwards takes no time. */
static void updates_before_the_norm(void **state)
{
    (void)state;
    struct lanes l = lanes_begin();
    l.facts.lower_bandwidth *= 1e6, l.facts.host_total = 0;
    int grad = move(&l, OP_STORE, square(&l.tape, DT_F32)),
        half = tape_view_rows(&l.tape, grad, N / 2, N / 2);
    for (int way = HALF_HOME; way <= HALF_AWAY; way++) {
        update_on_host(&l, half);
        struct op *op = &l.tape.ops[l.tape.nops - 1];
        op->attr.guesses = true, op->attr.half = (unsigned char)way;
        op->out[SGD_NEW_P] = square(&l.tape, DT_F32), op->out[SGD_NEW_M] = square(&l.tape, DT_F32);
    }
    l.tape.tensors[half].dim[0] = N, l.tape.tensors[half].view_offset = 0; /* as much as without cutting */
    SECONDS(l, 7.0 / 5);
    l = lanes_begin();
    update_on_host(&l, square(&l.tape, DT_F32));
    l.tape.ops[0].attr.redoes = true, l.tape.ops[0].attr.half = HALF_HOME;
    SECONDS(l, 0);
    l = lanes_begin(); /* a gradient of which it reads a part comes as a whole */
    grad = move(&l, OP_STORE, square(&l.tape, DT_F32)), half = tape_view_rows(&l.tape, grad, N / 2, N / 2);
    update_on_host(&l, half);
    l.tape.ops[1].attr.guesses = true, l.tape.ops[1].attr.half = HALF_HOME;
    l.facts.host_bandwidth = 0;
    SECONDS(l, 1);
}

/* A launch takes a second here: updates that follow each other are one, with something between them they are two. */
static void updates_together_are_one_launch(void **state)
{
    (void)state;
    for (int between = 0; between <= 1; between++) {
        struct lanes l = lanes_begin();
        l.facts.op_seconds = 1, l.facts.flops[DT_F32] = INFINITY;
        for (int i = 0; i < 3; i++) {
            struct op op = tape_op(OP_SUMSQ, -1);
            op.in[SUMSQ_GRAD] = square(&l.tape, DT_F32), op.out[SUMSQ_SUM] = square(&l.tape, DT_F64);
            tape_append(&l.tape, &op);
            if (between && i == 0) multiply(&l, square(&l.tape, DT_F32));
        }
        SECONDS(l, between ? 3 : 1);
    }
}

/* What is stored may not be written before it has gone. */
static void a_store_holds_its_source(void **state)
{
    (void)state;
    struct lanes l = lanes_begin();
    struct op op = tape_op(OP_LINEAR, -1);
    int x = square(&l.tape, DT_F32);
    move(&l, OP_STORE, x);
    op.in[LINEAR_X] = square(&l.tape, DT_F32), op.in[LINEAR_W] = square(&l.tape, DT_F32),
    op.out[LINEAR_Y] = x;
    tape_append(&l.tape, &op);
    SECONDS(l, 2);
}

/* A square of its own on each of two ranks: half of it goes each way, in a second. */
static struct lanes ranks_begin(bool beside)
{
    struct lanes l = lanes_begin();
    facts_set_memory(&l.facts, MEMORY_PROCESS);
    l.facts.ranks = 2, l.facts.link_bandwidth = 2.0 * N * N, l.facts.async_exchanges = beside;
    return l;
}

static void exchanges_run_beside_computing(void **state)
{
    (void)state;
    for (int beside = 0; beside < 2; beside++) {
        struct lanes l = ranks_begin(beside);
        int x = move(&l, OP_GATHER, square(&l.tape, DT_F32));
        multiply(&l, square(&l.tape, DT_F32));
        multiply(&l, x);
        SECONDS(l, beside ? 2 : 3);
    }
}

/* Who carries the bytes computes meanwhile, and so computing takes longer while it lasts, but not beyond. */
static void exchanges_take_of_computing(void **state)
{
    (void)state;
    for (int longer = 0; longer < 2; longer++) {
        struct lanes l = ranks_begin(true);
        l.facts.link_load = 0.25;
        if (longer) l.facts.link_bandwidth /= 4;
        move(&l, OP_GATHER, square(&l.tape, DT_F32));
        multiply(&l, square(&l.tape, DT_F32));
        multiply(&l, square(&l.tape, DT_F32));
        SECONDS(l, longer ? 4 : 2.25);
        l = ranks_begin(true);
        l.facts.reduce_share = 0.5;
        move(&l, longer ? OP_REDUCE : OP_GATHER, square(&l.tape, DT_F32));
        SECONDS(l, longer ? 2 : 1);
    }
}

/* Beside computing an exchange has half of the link, and all of it from when computing waits for it: by its result, by a hold, or at the end.
 * What is exchanged behind it comes that much earlier, too. */
static void waiting_gives_the_link_its_rate(void **state)
{
    (void)state;
    for (int way = 0; way < 4; way++) {
        struct lanes l = ranks_begin(true);
        l.facts.link_beside = 0.5;
        int from = square(&l.tape, DT_F32), x = move(&l, OP_GATHER, from), behind = -1;
        struct op hold = tape_op(OP_HOLD, -1);
        hold.in[0] = from;
        if (way == 3) behind = move(&l, OP_GATHER, square(&l.tape, DT_F32));
        multiply(&l, square(&l.tape, DT_F32)); /* half of the exchange is left: half a second */
        if (way == 1) tape_append(&l.tape, &hold);
        if (way > 0) multiply(&l, x);
        if (way == 3) multiply(&l, behind); /* half of it came beside x's second */
        SECONDS(l, way == 0 ? 1.5 : way == 3 ? 4 : 2.5);
    }
}

/* Below a CPU a disk reads beside computing; a store takes as long as it does not fit the buffers. */
static void a_disk_runs_beside_the_cpu(void **state)
{
    (void)state;
    for (int ahead = 0; ahead < 2; ahead++) {
        struct lanes l = lanes_begin();
        facts_set_memory(&l.facts, MEMORY_PROCESS);
        int far = square(&l.tape, DT_F32), near;
        l.tape.tensors[far].tier = TIER_DISK;
        if (!ahead) multiply(&l, square(&l.tape, DT_F32));
        near = move(&l, OP_FETCH, far);
        if (ahead) multiply(&l, square(&l.tape, DT_F32));
        multiply(&l, near);
        SECONDS(l, ahead ? 2 : 3);
    }
    for (int half = 0; half < 2; half++) {
        struct lanes l = lanes_begin();
        facts_set_memory(&l.facts, MEMORY_PROCESS);
        l.facts.disk_depth = 1, l.facts.disk_piece = (size_t)4 * N * N / (half ? 2 : 1);
        int far = move(&l, OP_STORE, square(&l.tape, DT_F32));
        l.tape.tensors[far].tier = TIER_DISK;
        multiply(&l, square(&l.tape, DT_F32));
        SECONDS(l, half ? 1.5 : 1);
    }
}

/* A disk that reads three times as fast as it writes: a square by turns is as measured, and most of it is the store. */
static void a_disk_writes_slower_than_it_reads(void **state)
{
    (void)state;
    const double want[] = {0.5, 1.5, 2};
    for (int ways = 0; ways < 3; ways++) {
        struct lanes l = lanes_begin();
        facts_set_memory(&l.facts, MEMORY_PROCESS);
        l.facts.disk_read = 3, l.facts.disk_write = 1; /* lower_bandwidth: a square each second */
        l.facts.disk_depth = 1, l.facts.disk_piece = 1;
        int x = square(&l.tape, DT_F32);
        if (ways != 1) l.tape.tensors[x].tier = TIER_DISK, x = move(&l, OP_FETCH, x);
        if (ways != 0) l.tape.tensors[move(&l, OP_STORE, x)].tier = TIER_DISK;
        SECONDS(l, want[ways]);
    }
}

/* What is sent may be written when it has gone, which a hold says. */
static void a_hold_waits_for_an_exchange(void **state)
{
    (void)state;
    for (int held = 0; held < 2; held++) {
        struct lanes l = ranks_begin(true);
        struct op hold = tape_op(OP_HOLD, -1);
        hold.in[0] = square(&l.tape, DT_F32);
        move(&l, OP_REDUCE, hold.in[0]);
        if (held) tape_append(&l.tape, &hold);
        multiply(&l, square(&l.tape, DT_F32));
        SECONDS(l, held ? 2 : 1);
    }
}

/* Inside a node there is another link, and fewer take part. */
static void nodes_have_a_link_of_their_own(void **state)
{
    (void)state;
    struct lanes l = ranks_begin(false);
    l.facts.ranks = 8, l.facts.node_ranks = 2, l.facts.node_bandwidth = 0.5 * l.facts.link_bandwidth;
    move(&l, OP_GATHER, square(&l.tape, DT_F32));
    l.tape.ops[0].attr.among = AMONG_NODE;
    SECONDS(l, 2);
    l = ranks_begin(false);
    l.facts.ranks = 8, l.facts.node_ranks = 2;
    move(&l, OP_GATHER, square(&l.tape, DT_F32));
    l.tape.ops[0].attr.among = AMONG_NODES; /* three of four squares */
    SECONDS(l, 1.5);
}

static struct calibration numbers(double tf32)
{
    struct calibration c = {.tf32_flops = tf32,
                            .bandwidth = 1,
                            .cache_bandwidth = 1,
                            .lower_bandwidth = 1,
                            .host_bandwidth = 1,
                            .coded_rate = 1,
                            .curve_rate = 1,
                            .attn_bwd_share = 1,
                            .attn_general_share = 1,
                            .attn_wide_share = 1,
                            .attn_long_share = 1,
                            .score_rate = 1,
                            .score_row_rate = 1,
                            .pack_bandwidth = 1,
                            .plain_rate = 1,
                            .update_rate = 1,
                            .matmul_seconds = 1,
                            .op_seconds = 1};
    for (int i = 0; i < DT_COUNT; i++) c.flops[i] = c.attn_flops[i] = i + 1;
    return c;
}

static void calibrations_are_remembered_by_key(void **state)
{
    char folder[] = "/tmp/plimsoll-cost-XXXXXX", remove[96];
    struct calibration c = numbers(7), got;
    struct device_facts facts = {0};
    (void)state;
    assert_non_null(mkdtemp(folder));
    struct context kept = {.cache = folder};
    calibration_save(&kept, "cuda", "a card, cuDNN 91900; a CPU, 8 threads", &c);
    assert_true(calibration_load(&kept, "cuda", "a card, cuDNN 91900; a CPU, 8 threads", &got));
    calibration_apply(&got, &facts);
    assert_true(facts.tf32_flops == 7 && facts.flops[DT_BF16] == c.flops[DT_BF16]);
    assert_false(calibration_load(&kept, "cuda", "a card, cuDNN 92000; a CPU, 8 threads", &got));
    assert_false(calibration_load(&kept, "cpu", "a card, cuDNN 91900; a CPU, 8 threads", &got));
    c = numbers(0); /* a file from before a number was measured */
    calibration_save(&kept, "cuda", "another", &c);
    assert_false(calibration_load(&kept, "cuda", "another", &got));
    snprintf(remove, sizeof remove, "rm -r '%s'", folder);
    assert_int_equal(system(remove), 0);
}

/* A weight in blocks that becomes numbers first: its codes are read, the numbers written and read. Each micro-batch pays for it. */
static void widening_takes_time(void **state)
{
    struct device_facts facts = {.bandwidth = 1e9, .lower_bandwidth = 1};
    struct tape tape;
    struct op dx = tape_op(OP_LINEAR_Q_DX, -1), linear = tape_op(OP_LINEAR_Q, -1);
    (void)state;
    for (int t = 0; t < DT_COUNT; t++) facts.flops[t] = INFINITY;
    tape_init(&tape);
    dx.attr.lines[0] = linear.attr.lines[0] = (struct op_lines){8 /* Q8_0 */, N};
    dx.in[LINEAR_Q_DX_DY] = square(&tape, DT_BF16), dx.in[LINEAR_Q_DX_W] = in_blocks(&tape);
    dx.out[LINEAR_Q_DX_DX] = square(&tape, DT_BF16);
    tape_append(&tape, &dx);
    double plain = time_of(&tape, &facts).update_seconds;
    facts.widens_blocks = true;
    double more = (N * N / 32.0 * 34 + 2 * N * N * 2) / 1e9;
    assert_true(fabs(time_of(&tape, &facts).update_seconds - plain - more) < 1e-9);
    linear.in[LINEAR_Q_X] = dx.in[LINEAR_Q_DX_DY], linear.in[LINEAR_Q_W] = dx.in[LINEAR_Q_DX_W];
    linear.out[LINEAR_Q_Y] = square(&tape, DT_BF16);
    tape.ops[0] = linear; /* rounds x to 8 bits and meets the codes */
    assert_true(fabs(time_of(&tape, &facts).update_seconds - plain) < 1e-9);
    tape.ops[0].attr.keep_x = true;
    assert_true(fabs(time_of(&tape, &facts).update_seconds - plain - more) < 1e-9);
    tape_release(&tape);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tf32_has_a_rate_of_its_own),
        cmocka_unit_test(moving_is_not_all_hidden),
        cmocka_unit_test(experts_reach_a_share_of_the_rate),
        cmocka_unit_test(attention_is_more_than_products),
        cmocka_unit_test(general_attention_has_a_rate),
        cmocka_unit_test(simple_ops_have_rates),
        cmocka_unit_test(codes_have_a_rate),
        cmocka_unit_test(activations_and_products_have_costs),
        cmocka_unit_test(widening_takes_time),
        cmocka_unit_test(copies_run_beside_computing),
        cmocka_unit_test(both_ways_at_once_are_slower),
        cmocka_unit_test(slices_follow_each_other),
        cmocka_unit_test(a_store_holds_its_source),
        cmocka_unit_test(updates_together_are_one_launch),
        cmocka_unit_test(exchanges_run_beside_computing),
        cmocka_unit_test(a_hold_waits_for_an_exchange),
        cmocka_unit_test(exchanges_take_of_computing),
        cmocka_unit_test(waiting_gives_the_link_its_rate),
        cmocka_unit_test(a_disk_runs_beside_the_cpu),
        cmocka_unit_test(a_disk_writes_slower_than_it_reads),
        cmocka_unit_test(updates_before_the_norm),
        cmocka_unit_test(nodes_have_a_link_of_their_own),
        cmocka_unit_test(calibrations_are_remembered_by_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
