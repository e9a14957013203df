/* test_contract.c - a tape with everything an encoder may have (full mask, lengths, shared bias, soft-caps, dropout, norms of
 * heads, rotation, any activation): gradients against differences of its loss, and the same bits under
 * recomputation, accumulation and any number of threads. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/rng.h"
#include "exec/exec.h"
#include "tape/bias_bucket.h"
#include "tape/dropout.h"
#include "tape/pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 4,
    TIME = 6,
    WIDTH = 16,
    HEADS = 2,
    SIZE = 8,
    VOCAB = 11,
    BUCKETS = 8,
    LAYERS = 2,
    PARAMS_MOST = 32
};

struct rig {
    struct tape tape;
    struct layout layout;
    struct device *device;
    struct exec exec;
    struct plim_error err;
    int64_t batch;
    int layer;
};

static void must(struct rig *r, enum plim_status status)
{
    if (status != PLIM_OK) fail_msg("%s", r->err.text);
}

/* --- the tape ------------------------------------------------------------------------------------------- */

static int tensor(struct rig *r, struct tensor t)
{
    t.layer = r->layer, t.view_of = t.owner = -1;
    while (t.ndim < TENSOR_MAX_DIM && t.dim[t.ndim]) t.ndim++;
    return tape_tensor(&r->tape, &t);
}

static int param(struct rig *r, const char *label, int64_t rows, int64_t columns)
{
    return tensor(
        r, (struct tensor){.label = label, .cls = CLASS_PARAM, .flags = TENSOR_KEPT, .dim = {rows, columns}});
}

static int act(struct rig *r, const char *label, int64_t heads, int64_t last)
{
    return tensor(r, (struct tensor){.label = label,
                                     .cls = CLASS_ACT,
                                     .dim = {r->batch, TIME, heads ? heads : last, heads ? last : 0}});
}

static int stat(struct rig *r, const char *label, int64_t a, int64_t b, int64_t c)
{
    return tensor(r, (struct tensor){
                         .label = label, .cls = CLASS_ACT, .flags = TENSOR_STAT, .dim = {r->batch, a, b, c}});
}

static int input(struct rig *r, const char *label, int64_t columns)
{
    return tensor(r, (struct tensor){.label = label,
                                     .type = DT_I32,
                                     .cls = CLASS_IO,
                                     .flags = TENSOR_INPUT,
                                     .dim = {r->batch, columns}});
}

static int linear(struct rig *r, int x, int w, int y)
{
    struct op op = tape_op(OP_LINEAR, r->layer);
    op.in[LINEAR_X] = x, op.in[LINEAR_W] = w, op.out[LINEAR_Y] = y;
    tape_append(&r->tape, &op);
    return y;
}

/* RMSNorm of 1 + w over the last dimension, here of every head. */
static int norm(struct rig *r, int x, int y, int st)
{
    struct op op = tape_op(OP_NORM, r->layer);
    op.attr.plus_one = true, op.attr.eps = 1e-5f;
    op.in[NORM_X] = x, op.in[NORM_W] = param(r, "norm%d", SIZE, 0), op.out[NORM_Y] = y,
    op.out[NORM_STAT] = st;
    tape_append(&r->tape, &op);
    return y;
}

static int rope(struct rig *r, int x, int table, int y)
{
    struct op op = tape_op(OP_ROPE, r->layer);
    op.in[ROPE_X] = x, op.in[ROPE_TABLE] = table, op.out[ROPE_Y] = y;
    tape_append(&r->tape, &op);
    return y;
}

static int heads(struct rig *r, int x, const char *w, const char *y)
{
    return linear(r, x, param(r, w, WIDTH, WIDTH), act(r, y, HEADS, SIZE));
}

struct shared {
    int table, lengths, bias, scalars;
};

static int attention(struct rig *r, int x, const struct shared *s)
{
    struct op op = tape_op(OP_ATTN, r->layer);
    int q = norm(r, heads(r, x, "wq%d", "q0"), act(r, "q1", HEADS, SIZE), stat(r, "qs", TIME, HEADS, 1));
    op.in[ATTN_Q] = rope(r, q, s->table, act(r, "q2", HEADS, SIZE));
    op.in[ATTN_K] = heads(r, x, "wk%d", "k"), op.in[ATTN_V] = heads(r, x, "wv%d", "v");
    op.in[ATTN_LENGTHS] = s->lengths, op.in[ATTN_BIAS] = s->bias, op.in[ATTN_SCALARS] = s->scalars;
    op.out[ATTN_O] = act(r, "o", HEADS, SIZE), op.out[ATTN_LSE] = stat(r, "lse", HEADS, TIME, 0);
    op.attr = (struct op_attr){.mask = MASK_FULL,
                               .scale = 0.4f,
                               .cap = 3,
                               .two_sided = true,
                               .bias_reach = 5,
                               .dropout = 0.2f,
                               .stream = (uint32_t)(100 + r->layer)};
    tape_append(&r->tape, &op);
    return op.out[ATTN_O];
}

static int dropout(struct rig *r, int x, int add, const struct shared *s)
{
    struct op op = tape_op(OP_DROPOUT, r->layer);
    op.attr.dropout = 0.3f, op.attr.stream = (uint32_t)(200 + r->layer);
    op.in[DROPOUT_X] = x, op.in[DROPOUT_SCALARS] = s->scalars, op.in[DROPOUT_ADD] = add;
    op.out[DROPOUT_Y] = act(r, "dropped", 0, WIDTH);
    tape_append(&r->tape, &op);
    return op.out[DROPOUT_Y];
}

static int activate(struct rig *r, int x, enum activation kind)
{
    struct op op = tape_op(OP_ACT, r->layer);
    op.attr.activation = kind;
    op.in[ACT_X] = x, op.out[ACT_Y] = act(r, "act", 0, WIDTH);
    tape_append(&r->tape, &op);
    return op.out[ACT_Y];
}

static int gate(struct rig *r, int x)
{
    struct op op = tape_op(OP_GLU, r->layer);
    op.attr.activation = ACTIVATION_GELU;
    op.in[GLU_GATE] = linear(r, x, param(r, "wg%d", WIDTH, WIDTH), act(r, "gate", 0, WIDTH));
    op.in[GLU_UP] = linear(r, x, param(r, "wu%d", WIDTH, WIDTH), act(r, "up", 0, WIDTH));
    op.out[GLU_H] = act(r, "h", 0, WIDTH);
    tape_append(&r->tape, &op);
    return op.out[GLU_H];
}

static void loss(struct rig *r, int x, int scalars)
{
    struct op op = tape_op(OP_XENT, -1);
    struct tensor sum = {
        .label = "loss", .type = DT_F64, .cls = CLASS_IO, .flags = TENSOR_OUTPUT | TENSOR_STAT, .dim = {2}};
    linear(r, x, param(r, "head", VOCAB, WIDTH), act(r, "logits", 0, VOCAB));
    r->tape.ops[r->tape.nops - 1].part = op.part = PART_HEAD;
    op.accumulate = ACC_AFTER_FIRST, op.attr.cap = 2;
    op.in[XENT_LOGITS] = r->tape.ops[r->tape.nops - 1].out[LINEAR_Y];
    op.in[XENT_TARGETS] = input(r, "targets", TIME), op.in[XENT_SCALARS] = scalars;
    op.out[XENT_LOSS] = tensor(r, sum);
    tape_append(&r->tape, &op);
}

static int embed(struct rig *r)
{
    struct op op = tape_op(OP_EMBED, -1);
    op.attr.scale = 4;
    op.in[EMBED_IDS] = input(r, "ids", TIME), op.in[EMBED_W] = param(r, "embedding", VOCAB, WIDTH);
    op.out[EMBED_Y] = act(r, "x", 0, WIDTH);
    tape_append(&r->tape, &op);
    return op.out[EMBED_Y];
}

static struct shared shared_of(struct rig *r)
{
    struct tensor scalars = {.label = "step.scalars",
                             .cls = CLASS_IO,
                             .flags = TENSOR_INPUT | TENSOR_STAT | TENSOR_KEPT,
                             .dim = {SCALAR_COUNT}};
    struct tensor freq = {
        .label = "freq", .cls = CLASS_IO, .flags = TENSOR_KEPT | TENSOR_STAT, .dim = {SIZE / 2}};
    struct op op = tape_op(OP_ROPE_TABLE, -1);
    op.in[ROPE_TABLE_POS] = input(r, "pos", TIME), op.in[ROPE_TABLE_INV_FREQ] = tensor(r, freq);
    op.out[ROPE_TABLE_TABLE] = stat(r, "table", TIME, SIZE, 0);
    tape_append(&r->tape, &op);
    return (struct shared){op.out[ROPE_TABLE_TABLE], input(r, "lengths", 0), param(r, "bias", BUCKETS, HEADS),
                           tensor(r, scalars)};
}

static void build(struct rig *r, enum recompute policy)
{
    tape_init(&r->tape);
    r->layer = -1;
    int x = embed(r);
    struct shared s = shared_of(r);
    for (r->layer = 0; r->layer < LAYERS; r->layer++) {
        int o = linear(r, attention(r, x, &s), param(r, "wo%d", WIDTH, WIDTH), act(r, "proj", 0, WIDTH));
        x = dropout(r, o, x, &s);
        x = linear(r, gate(r, x), param(r, "wd%d", WIDTH, WIDTH), act(r, "down", 0, WIDTH));
        x = activate(r, x, r->layer ? ACTIVATION_TANH : ACTIVATION_GELU_TANH);
    }
    r->layer = -1;
    loss(r, x, s.scalars);
    r->tape.loop_end = r->tape.nops;
    must(r, pass_grad(&r->tape, &r->err));
    must(r, pass_recompute(&r->tape, &(struct recompute_options){.policy = policy}, &r->err));
    for (int i = 0; i < r->tape.ntensors; i++)
        if (r->tape.tensors[i].cls == CLASS_GRAD) r->tape.tensors[i].flags |= TENSOR_OUTPUT;
    must(r, tape_verify(&r->tape, &r->err));
}

/* --- running -------------------------------------------------------------------------------------------- */

static void put(struct rig *r, const char *label, const void *data, size_t bytes)
{
    must(r, exec_write(&r->exec, tape_find(&r->tape, label, -1), data, 0, (int64_t)bytes, &r->err));
}

static void put_params(struct rig *r)
{
    static const float freq[SIZE / 2] = {1, 0.3f, 0.1f, 0.03f};
    float w[WIDTH * WIDTH];
    for (int i = 0; i < r->tape.ntensors; i++) {
        const struct tensor *t = &r->tape.tensors[i];
        if (t->cls != CLASS_PARAM) continue;
        rng_fill_normal(5, (uint64_t)i, 0, w, (size_t)tensor_count(t), 0, 0.3f);
        must(r, exec_write(&r->exec, i, w, 0, tensor_bytes(t), &r->err));
    }
    put(r, "freq", freq, sizeof freq);
}

static void open_rig(struct rig *r, int64_t batch, enum recompute policy, int threads)
{
    memset(r, 0, sizeof *r);
    r->batch = batch;
    build(r, policy);
    must(r, device_cpu_open(NULL, threads, &r->device, &r->err));
    struct layout_options options = {.facts = &r->device->facts, .accumulation = ROWS / batch};
    must(r, layout_make(&r->tape, &options, &r->layout, &r->err));
    must(r, r->device->ops->commit(r->device, (size_t)r->layout.arena_bytes, &r->err));
    must(r, exec_open(&r->exec, r->device, &r->tape, &r->layout, NULL, &r->err));
    put_params(r);
}

static void close_rig(struct rig *r)
{
    exec_close(&r->exec);
    r->device->ops->close(r->device);
    layout_release(&r->layout);
    tape_release(&r->tape);
}

/* The loss of all rows, in micro-batches; numbered says whether each is told where it stands. */
static double run(struct rig *r, bool numbered)
{
    static const int32_t lengths[ROWS] = {6, 1, 4, 0};
    double sum[2];
    for (int64_t first = 0; first < ROWS; first += r->batch) {
        int32_t ids[ROWS * TIME], targets[ROWS * TIME], pos[ROWS * TIME];
        float scalars[SCALAR_COUNT] = {[SCALAR_LOSS_GRAD] = 1, [SCALAR_KEY_LOW] = 77, [SCALAR_KEY_HIGH] = 5};
        for (int64_t i = 0; i < r->batch * TIME; i++) {
            int64_t at = first * TIME + i;
            ids[i] = (int32_t)(at * 5 % VOCAB), targets[i] = (int32_t)(at * 3 % VOCAB),
            pos[i] = (int32_t)(i % TIME);
        }
        size_t bytes = (size_t)(r->batch * TIME) * sizeof *ids;
        scalars[SCALAR_FIRST_ROW] = numbered ? (float)first : 0;
        put(r, "ids", ids, bytes), put(r, "targets", targets, bytes), put(r, "pos", pos, bytes);
        put(r, "lengths", lengths + first, (size_t)r->batch * sizeof *lengths);
        put(r, "step.scalars", scalars, sizeof scalars);
        must(r, exec_loop(&r->exec, first / r->batch, &r->err));
    }
    must(r, exec_read(&r->exec, tape_find(&r->tape, "loss", -1), sum, 0, sizeof sum, &r->err));
    return sum[0];
}

/* --- tests ---------------------------------------------------------------------------------------------- */

/* Along the gradient of each parameter the loss rises by the gradient's square. */
static void gradients_are_slopes(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r, ROWS, RECOMPUTE_NONE, 2);
    int tested = 0, tensors = r.tape.ntensors;
    for (int i = 0; i < tensors; i++) {
        const struct tensor t = r.tape.tensors[i];
        if (t.cls != CLASS_GRAD) continue;
        float grad[WIDTH * WIDTH], w[WIDTH * WIDTH], moved[WIDTH * WIDTH];
        double square = 0, value[2];
        int64_t n = tensor_count(&t);
        run(&r, true);
        must(&r, exec_read(&r.exec, i, grad, 0, n * 4, &r.err));
        must(&r, exec_read(&r.exec, t.owner, w, 0, n * 4, &r.err));
        for (int64_t j = 0; j < n; j++) square += (double)grad[j] * (double)grad[j];
        double h = 0.001 / sqrt(square);
        for (int side = 0; side < 2; side++) {
            for (int64_t j = 0; j < n; j++) moved[j] = w[j] + (float)(side ? -h : h) * grad[j];
            must(&r, exec_write(&r.exec, t.owner, moved, 0, n * 4, &r.err));
            value[side] = run(&r, true);
        }
        must(&r, exec_write(&r.exec, t.owner, w, 0, n * 4, &r.err));
        double slope = (value[0] - value[1]) / (2 * h);
        if (!(fabs(slope - square) < 0.01 * square))
            fail_msg("%s: %g along its gradient, differences give %g", r.tape.tensors[t.owner].label, square,
                     slope);
        tested++;
    }
    assert_int_equal(tested,
                     3 + 8 * LAYERS); /* embedding, bias, head; four products, three more and a norm each */
    close_rig(&r);
}

static void gather(struct rig *r, float *all, double *value)
{
    int64_t at = 0;
    *value = run(r, true);
    for (int i = 0; i < r->tape.ntensors; i++) {
        const struct tensor *t = &r->tape.tensors[i];
        if (t->cls != CLASS_GRAD) continue;
        must(r, exec_read(&r->exec, i, all + at, 0, tensor_bytes(t), &r->err));
        at += tensor_count(t);
    }
}

static void ways_give_the_same_bits(void **state)
{
    static const struct {
        enum recompute policy;
        int threads;
    } ways[] = {{RECOMPUTE_NONE, 1}, {RECOMPUTE_NONE, 3}, {RECOMPUTE_SELECTIVE, 2}, {RECOMPUTE_FULL, 2}};
    static float first[PARAMS_MOST * WIDTH * WIDTH], other[PARAMS_MOST * WIDTH * WIDTH];
    double value[2];
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct rig r;
        open_rig(&r, ROWS, ways[i].policy, ways[i].threads);
        gather(&r, i ? other : first, &value[i > 0]);
        close_rig(&r);
        if (i == 0) continue;
        assert_true(value[0] == value[1]);
        assert_memory_equal(first, other, sizeof first);
    }
}

/* What is dropped follows the row's number in the batch of the step. */
static void micro_batches_drop_the_same(void **state)
{
    double value[3], misled;
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct rig r;
        open_rig(&r, ROWS >> i, RECOMPUTE_NONE, 2);
        value[i] = run(&r, true);
        misled = run(&r, false);
        close_rig(&r);
        assert_true(i == 0 || misled != value[i]);
    }
    assert_true(value[0] == value[1] && value[0] == value[2]);
}

/* Dropped shares, and neighbours that know nothing of each other. */
static void dropout_is_random(void **state)
{
    enum { LENGTH = 100000 };
    float scalars[SCALAR_COUNT] = {[SCALAR_KEY_LOW] = 123, [SCALAR_KEY_HIGH] = 45};
    struct op_attr attr = {.dropout = 0.1f, .stream = 7};
    (void)state;
    struct dropout d = dropout_of(&attr, scalars);
    for (int b = 0; b < 3; b++) {
        uint32_t line = dropout_row(&d, b), other = dropout_row(&d, b + 1);
        int dropped = 0, twice = 0, both = 0;
        for (uint64_t i = 0; i < LENGTH; i++) {
            bool here = !dropout_keeps(&d, line, i);
            dropped += here, twice += here && !dropout_keeps(&d, line, i + 1),
                both += here && !dropout_keeps(&d, other, i);
        }
        assert_true(abs(dropped - LENGTH / 10) < 500); /* five deviations */
        assert_true(abs(twice - LENGTH / 100) < 160 && abs(both - LENGTH / 100) < 160);
    }
    assert_true(fabsf(d.scale - 1 / 0.9f) < 1e-6f);
}

/* T5's own numbers (transformers, 32 buckets to 128): where each bucket of a side begins. */
static void buckets_are_t5s(void **state)
{
    static const int two[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91};
    static const int one[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113};
    (void)state;
    struct bias_buckets b = bias_buckets(32, &(struct op_attr){.two_sided = true, .bias_reach = 128});
    assert_memory_equal(b.begins, two, sizeof two);
    assert_int_equal(bias_bucket(&b, 0), 0);
    assert_int_equal(bias_bucket(&b, -5000), 15);
    assert_int_equal(bias_bucket(&b, 12), 16 + 9);
    b = bias_buckets(32, &(struct op_attr){.bias_reach = 128});
    assert_memory_equal(b.begins, one, sizeof one);
    assert_int_equal(bias_bucket(&b, 3), 0);
    assert_int_equal(bias_bucket(&b, -113), 31);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_slopes),
        cmocka_unit_test(ways_give_the_same_bits),
        cmocka_unit_test(micro_batches_drop_the_same),
        cmocka_unit_test(dropout_is_random),
        cmocka_unit_test(buckets_are_t5s),
    };
    return cmocka_run_group_tests_name("contract", tests, NULL, NULL);
}
