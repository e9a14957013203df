/* test_fused.c - products with adapters that a device fuses (plan/fuse.h) against the same ops one by one.
 *
 *     OP_DEVICE  cuda, or the CPU behind a device with its own memory (default), which tests the test
 *     OP_SEED    other operands
 *
 * Two ops (a narrow product and the scale after it, forward and backward) leave the same bits. Three (with the weight's gradient) read
 * dy once and sum in another order: there a tolerance counts. The device must accept every run, so its kernels really run here. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "support/op_device.h"
#include "support/pace.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS = 12, OPS = 3, ALIGN = 256 };

static struct plim_error err;

/* Ops over an image of the arena. */
struct scene {
    struct device *dev;
    uint32_t random;
    unsigned char *image;
    size_t bytes, at[TENSORS], work[OPS];
    struct tensor tensor[TENSORS];
    int tensors, ops;
    struct op op[OPS];
    bool accumulate;
};

static void must(enum plim_status status)
{
    if (status != PLIM_OK) fail_msg("%s", err.text);
}

static size_t place(struct scene *s, size_t bytes)
{
    size_t at = s->bytes;
    s->bytes = (at + bytes + ALIGN - 1) / ALIGN * ALIGN;
    s->image = realloc(s->image, s->bytes);
    assert_non_null(s->image);
    memset(s->image + at, 0x3c, s->bytes - at);
    return at;
}

static float drawn(struct scene *s)
{
    s->random = s->random * 1664525u + 1013904223u;
    return (float)(s->random >> 8) / (float)(1 << 23) - 1;
}

static float get(enum dtype type, const void *from, int64_t i)
{
    if (type == DT_F32) return ((const float *)from)[i];
    uint16_t bits = ((const uint16_t *)from)[i];
    return type == DT_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

static void put(enum dtype type, void *to, int64_t i, float x)
{
    if (type == DT_F32)
        ((float *)to)[i] = x;
    else
        ((uint16_t *)to)[i] = type == DT_BF16 ? f32_to_bf16(x) : f32_to_f16(x);
}

/* A tensor on the bytes of another, or with bytes of its own. */
static int tensor(struct scene *s, enum dtype type, int64_t rows, int64_t columns, int on)
{
    int id = s->tensors++;
    assert_true(id < TENSORS);
    struct tensor *t = &s->tensor[id];
    *t = (struct tensor){.label = "t",
                         .layer = -1,
                         .type = type,
                         .ndim = 2,
                         .dim = {rows, columns},
                         .view_of = -1,
                         .owner = -1};
    s->at[id] = on >= 0 ? s->at[on] : place(s, (size_t)tensor_bytes(t));
    return id;
}

static int filled(struct scene *s, enum dtype type, int64_t rows, int64_t columns)
{
    int id = tensor(s, type, rows, columns, -1);
    for (int64_t i = 0; i < rows * columns; i++) put(type, s->image + s->at[id], i, drawn(s));
    return id;
}

static struct kernel_call call_of(const struct scene *s, int i)
{
    char *base = s->dev->ops->base(s->dev);
    const struct op *op = &s->op[i];
    struct kernel_call call = {.op = op, .accumulate = s->accumulate, .team = s->dev->team};
    for (int k = 0; k < OP_MAX_IN; k++)
        if (op->in[k] >= 0) call.desc[k] = &s->tensor[op->in[k]], call.in[k] = base + s->at[op->in[k]];
    for (int k = 0; k < OP_MAX_OUT; k++)
        if (op->out[k] >= 0)
            call.desc[OP_MAX_IN + k] = &s->tensor[op->out[k]], call.out[k] = base + s->at[op->out[k]];
    call.work = base + s->work[i];
    return call;
}

static void add_scratch(struct scene *s)
{
    for (int i = 0; i < s->ops; i++) {
        struct kernel_call call = call_of(s, i);
        const struct kernel *kernel = s->dev->kernels[s->op[i].kind];
        const struct tensor *const *desc = call.desc;
        size_t bytes = 0;
        if (s->dev->ops->workspace)
            bytes = s->dev->ops->workspace(s->dev, desc, &s->op[i]);
        else if (kernel->workspace)
            bytes = kernel->workspace(desc, &s->op[i], s->dev->facts.threads);
        s->work[i] = place(s, bytes);
    }
}

static unsigned char *run(const struct scene *s, int together)
{
    const struct device_ops *ops = s->dev->ops;
    unsigned char *after = malloc(s->bytes);
    struct kernel_call calls[OPS];
    assert_non_null(after);
    must(ops->write(s->dev, 0, s->image, s->bytes, &err));
    for (int i = 0; i < s->ops; i++) calls[i] = call_of(s, i);
    if (together) {
        assert_true(ops->fuses(s->dev, calls, s->ops));
        ops->run_many(s->dev, calls, s->ops);
    }
    for (int i = 0; i < s->ops && !together; i++) ops->run(s->dev, &calls[i]);
    must(ops->sync(s->dev, &err));
    must(ops->read(s->dev, 0, after, s->bytes, &err));
    return after;
}

/* `size` is that of a sum's terms together. */
static void compare(const struct scene *s, const unsigned char *a, const unsigned char *b, int id,
                    double size)
{
    const struct tensor *t = &s->tensor[id];
    for (int64_t i = 0; i < tensor_count(t); i++) {
        double x = (double)get(t->type, a + s->at[id], i), y = (double)get(t->type, b + s->at[id], i);
        if (!(fabs(x - y) <= (size > 0 ? fabs(x) / 48 + size * 1e-3 : 0)))
            fail_msg("tensor %d, element %lld: %g one by one, %g fused", id, (long long)i, x, y);
    }
}

static void check(struct scene *s, const int *results, int count, double size)
{
    add_scratch(s);
    must(s->dev->ops->commit(s->dev, s->bytes, &err));
    unsigned char *single = run(s, false), *fused = run(s, true);
    for (int i = 0; i < count; i++) {
        size_t at = s->at[results[i]], bytes = (size_t)tensor_bytes(&s->tensor[results[i]]);
        assert_memory_not_equal(single + at, s->image + at, bytes);
        compare(s, single, fused, results[i], size);
    }
    free(single);
    free(fused);
    free(s->image);
}

static void scene_open(struct scene *s, void **state, int form)
{
    const char *text = getenv("OP_SEED");
    memset(s, 0, sizeof *s);
    s->dev = *state;
    s->random = (uint32_t)form + 1000 * (text && *text ? (uint32_t)strtoul(text, NULL, 10) : 1);
    if (!s->dev->ops->fuses) skip();
}

static struct op *add_op(struct scene *s, int kind)
{
    struct op *op = &s->op[s->ops++];
    *op = tape_op(kind, -1);
    if (kind == OP_ACT || kind == OP_ACT_BWD) op->attr.activation = ACTIVATION_SCALE, op->attr.scale = 0.3f;
    return op;
}

/* --- the runs ---------------------------------------------------------------------------------------------- */

enum { ROWS = 333, WIDE = 2056, MANY_ROWS = 6200, WIDER = 4104 };
static const int64_t ranks[] = {8, 16, 24, 32, 48}; /* the last: three of 16 in one product */
static const enum dtype types[] = {DT_BF16, DT_F16};

/* u = x A', su = s u; su on the bytes of u, too. */
static void a_product_and_its_scale(void **state)
{
    for (int form = 0; form < 20; form += EVERY) {
        struct scene s;
        int64_t r = ranks[form % 5];
        enum dtype type = types[form / 5 % 2];
        bool in_place = form / 10;
        scene_open(&s, state, form);
        int x = filled(&s, type, ROWS, WIDE), a = filled(&s, type, r, WIDE),
            u = tensor(&s, type, ROWS, r, -1);
        int su = tensor(&s, type, ROWS, r, in_place ? u : -1);
        struct op *product = add_op(&s, OP_LINEAR), *scale = add_op(&s, OP_ACT);
        product->in[LINEAR_X] = x, product->in[LINEAR_W] = a, product->out[LINEAR_Y] = u;
        scale->in[ACT_X] = u, scale->out[ACT_Y] = su;
        check(&s, (int[]){su, u}, 2, 0);
    }
}

/* Queries, keys and values: lines of B. */
static const int64_t thirds[] = {1032, 512, 512};
static_assert(WIDE == 1032 + 512 + 512, "they are all of it");

/* d(su) = dy B, d(u) = s d(su), and su = s u where it was not kept; then, of three, dB = dy' su. parts: of B, 1 or 3. */
static void gradients(void **state, int count, int64_t rows, int64_t wide, int step, int parts)
{
    for (int form = 0; form < 32; form += step * EVERY) {
        struct scene s;
        int64_t r = ranks[form % 4];
        enum dtype type = types[form / 4 % 2], grad = form % 3 ? DT_F32 : type;
        bool again = form / 8 % 2, in_place = form / 16 % 2;
        scene_open(&s, state, form);
        s.accumulate = form % 7 < 4;
        int dy = filled(&s, type, rows, wide), b = filled(&s, type, wide, r),
            u = filled(&s, type, rows, r * parts);
        int dsu = tensor(&s, type, rows, r * parts, -1),
            du = tensor(&s, type, rows, r * parts, in_place ? dsu : -1);
        int su =
            again ? tensor(&s, type, rows, r * parts, in_place ? u : -1) : filled(&s, type, rows, r * parts);
        int db = filled(&s, grad, wide, r);
        struct op *dx = add_op(&s, OP_LINEAR_DX), *scale = add_op(&s, OP_ACT_BWD);
        dx->in[LINEAR_DX_DY] = dy, dx->in[LINEAR_DX_W] = b, dx->out[LINEAR_DX_DX] = dsu;
        for (int i = 0; i < parts && parts > 1; i++) dx->attr.lines[i].lines = thirds[i];
        scale->in[ACT_BWD_DY] = dsu, scale->in[ACT_BWD_X] = u, scale->out[ACT_BWD_DX] = du;
        if (again) scale->out[ACT_BWD_Y] = su;
        if (count == 3) {
            struct op *dw = add_op(&s, OP_LINEAR_DW);
            dw->in[LINEAR_DW_DY] = dy, dw->in[LINEAR_DW_X] = su, dw->out[LINEAR_DW_DW] = db;
        }
        int results[4] = {du, dsu}, made = 2;
        if (again) results[made++] = su;
        if (count == 3) results[made++] = db;
        check(&s, results, made, count == 3 ? sqrt((double)(rows > wide ? rows : wide)) : 0);
    }
}

static void gradients_of_a_product_and_its_scale(void **state) { gradients(state, 2, ROWS, WIDE, 1, 1); }

static void gradients_of_parts_and_their_scale(void **state) { gradients(state, 2, ROWS, WIDE, 1, 3); }

/* A card makes one pass only over a dy that its cache does not hold. */
static void gradients_with_the_weights(void **state)
{
    bool card = op_device_is_card();
    int step = EVERY > 1 ? 32 : 5; /* one form where a CPU stands for a card: they are large */
    gradients(state, 3, card ? MANY_ROWS : ROWS, card ? WIDER : WIDE, step, 1);
}

/* --- adapters of rows ---------------------------------------------------------------------------------------- */

enum { SLOTS = 5, RANK = 16, LONG = 530 };

static int parameter(struct scene *s, enum dtype type, int64_t slots, int64_t lines, int64_t columns)
{
    int id = filled(s, type, (slots ? slots : 1) * lines, columns);
    s->tensor[id].cls = CLASS_PARAM;
    if (slots) s->tensor[id].ndim = 3, s->tensor[id].dim[0] = slots, s->tensor[id].dim[1] = lines;
    if (slots) s->tensor[id].dim[2] = columns;
    return id;
}

static int slots_of(struct scene *s, int64_t rows)
{
    int id = tensor(s, DT_I32, rows, 1, -1);
    s->tensor[id].ndim = 1;
    for (int64_t i = 0; i < rows; i++)
        ((int32_t *)(void *)(s->image + s->at[id]))[i] = (int32_t)(i / 7 % (SLOTS + 1)) - 1;
    return id;
}

static int adapt(struct scene *s, int slot, int x, int w, int add)
{
    const struct tensor *t = &s->tensor[w];
    int y = tensor(s, t->type, s->tensor[x].dim[0], t->dim[1], -1);
    struct op *op = add_op(s, OP_ADAPTER_LINEAR);
    op->in[ADAPTER_LINEAR_X] = x, op->in[ADAPTER_LINEAR_W] = w, op->in[ADAPTER_LINEAR_ADD] = add;
    op->in[ADAPTER_LINEAR_SLOT] = slot, op->out[ADAPTER_LINEAR_Y] = y;
    return y;
}

static int multiply(struct scene *s, int x, int w)
{
    const struct tensor *t = &s->tensor[w];
    int y = tensor(s, t->type, s->tensor[x].dim[0], t->dim[0], -1);
    struct op *op = add_op(s, OP_LINEAR);
    op->in[LINEAR_X] = x, op->in[LINEAR_W] = w, op->out[LINEAR_Y] = y;
    return y;
}

/* x A' beside x W', and beside both what another product's adapters add to it. */
static void adapters_beside_a_product(void **state)
{
    for (int form = 0; form < 4; form++) {
        struct scene s;
        enum dtype type = types[form % 2];
        scene_open(&s, state, form);
        int x = filled(&s, type, LONG, 520), slot = slots_of(&s, LONG), results[3], made = 0;
        results[made++] = adapt(&s, slot, x, parameter(&s, type, SLOTS, RANK, 520), -1);
        results[made++] = multiply(&s, x, parameter(&s, type, 0, 256, 520));
        if (form / 2) {
            int u = filled(&s, type, LONG, RANK), other = filled(&s, type, LONG, 256);
            results[made++] = adapt(&s, slot, u, parameter(&s, type, SLOTS, 256, RANK), other);
        }
        check(&s, results, made, 0);
    }
}

/* u B' with the gated unit that it is for, in long steps and short ones. */
static void adapters_of_a_gated_unit(void **state)
{
    for (int form = 0; form < 4; form++) {
        struct scene s;
        enum dtype type = types[form % 2];
        int64_t rows = form / 2 ? LONG : 40;
        scene_open(&s, state, form);
        int slot = slots_of(&s, rows), gate = filled(&s, type, rows, 256), u = filled(&s, type, rows, RANK);
        int up = adapt(&s, slot, u, parameter(&s, type, SLOTS, 256, RANK), filled(&s, type, rows, 256));
        int h = tensor(&s, type, rows, 256, -1);
        struct op *glu = add_op(&s, OP_GLU);
        glu->in[GLU_GATE] = gate, glu->in[GLU_UP] = up, glu->out[GLU_H] = h;
        check(&s, &h, 1, 0);
    }
}

/* Of few rows. */
static void a_norm_with_adapters(void **state)
{
    for (int form = 0; form < 2; form++) {
        struct scene s;
        enum dtype type = types[form];
        scene_open(&s, state, form);
        int x = filled(&s, type, 5, 512), slot = slots_of(&s, 5), y = tensor(&s, type, 5, 512, -1),
            stat = tensor(&s, DT_F32, 5, 1, -1), w = parameter(&s, type, 0, 1, 512);
        s.tensor[w].ndim = s.tensor[stat].ndim = 1, s.tensor[w].dim[0] = 512;
        struct op *norm = add_op(&s, OP_NORM);
        norm->attr.eps = 1e-5f;
        norm->in[NORM_X] = x, norm->in[NORM_W] = w, norm->out[NORM_Y] = y, norm->out[NORM_STAT] = stat;
        int u = adapt(&s, slot, y, parameter(&s, type, SLOTS, RANK, 512), -1);
        int product = multiply(&s, y, parameter(&s, type, 0, 256, 512));
        check(&s, (int[]){y, u, product}, 3, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_product_and_its_scale),
        cmocka_unit_test(gradients_of_a_product_and_its_scale),
        cmocka_unit_test(gradients_of_parts_and_their_scale),
        cmocka_unit_test(gradients_with_the_weights),
        cmocka_unit_test(adapters_beside_a_product),
        cmocka_unit_test(adapters_of_a_gated_unit),
        cmocka_unit_test(a_norm_with_adapters),
    };
    return cmocka_run_group_tests(tests, op_device_open_fake, op_device_close);
}
