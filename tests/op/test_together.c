/* test_together.c - ops given to a device at once (device_ops.run_many) leave the bits that they leave one by one.
 *
 *     OP_DEVICE  cuda, or the CPU behind a device with its own memory (default), which tests the test
 *     OP_SEED    other operands
 *
 * More tensors than one launch holds, of all sizes that matter to blocks and packets, of one type or of several mixed;
 * most in place and at aligned addresses, as in training, some not. Everything the device has been given is compared, so
 * what is written beside an operand shows. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "support/op_device.h"
#include "support/pace.h"
#include "tape/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS = 2 * TAPE_GROUP_MOST + 21, OPERANDS = OP_MAX_IN + OP_MAX_OUT, ALIGN = 256, SLACK = 64 };

static struct plim_error err;

/* --- random numbers ---------------------------------------------------------------------------------------- */

static uint32_t draw(uint32_t *random)
{
    *random = *random * 1664525u + 1013904223u;
    return *random >> 8;
}

static uint32_t below(uint32_t *random, uint32_t n) { return draw(random) % n; }

/* Sizes from 2^-24 to 2^3: common exponents and rare ones. */
static float number(uint32_t *random)
{
    float x = (float)(1 + below(random, 255)) / (float)(1u << below(random, 25)) / 32.0f;
    return draw(random) & 1 ? x : -x;
}

static void put_number(void *to, enum dtype type, int64_t i, float x)
{
    if (type == DT_F32) ((float *)to)[i] = x;
    if (type == DT_BF16) ((uint16_t *)to)[i] = f32_to_bf16(x);
    if (type == DT_F16) ((uint16_t *)to)[i] = f32_to_f16(x);
}

/* --- an arena of operands ---------------------------------------------------------------------------------- */

/* Calls over an image of the arena; pointers are offsets until they are bound to a device. Scratch comes last. */
struct scene {
    struct device *dev;
    uint32_t random;
    unsigned char *image;
    size_t bytes, room, used; /* used: without scratch */
    struct op op[TENSORS];
    struct tensor desc[TENSORS][OPERANDS];
    size_t at[TENSORS][OPERANDS], work[TENSORS];
    bool present[TENSORS][OPERANDS], accumulate[TENSORS];
};

/* `shift` bytes off an aligned address. */
static size_t place(struct scene *s, size_t bytes, size_t shift)
{
    size_t begin = s->bytes, at = begin + shift;
    s->bytes = (at + bytes + SLACK + ALIGN - 1) / ALIGN * ALIGN;
    if (s->bytes > s->room) {
        s->room = 2 * s->bytes;
        s->image = realloc(s->image, s->room);
        assert_non_null(s->image);
    }
    memset(s->image + begin, 0xa5, s->bytes - begin);
    return at;
}

static void describe(struct scene *s, int i, int slot, enum dtype type, int64_t count, size_t at)
{
    s->desc[i][slot] = (struct tensor){
        .label = "t", .layer = -1, .type = type, .ndim = 1, .dim = {count}, .view_of = -1, .owner = -1};
    s->at[i][slot] = at, s->present[i][slot] = true;
}

/* An input of random numbers, none below 0 where they are squares. */
static void add_input(struct scene *s, int i, int slot, enum dtype type, int64_t count, size_t shift,
                      bool squares)
{
    size_t at = place(s, (size_t)count * dtype_size(type), shift);
    describe(s, i, slot, type, count, at);
    for (int64_t k = 0; k < count; k++) {
        float x = number(&s->random);
        if (type == DT_U16)
            ((uint16_t *)(s->image + at))[k] = (uint16_t)draw(&s->random);
        else
            put_number(s->image + at, type, k, squares ? x * x : x);
    }
}

/* Output `out` on the bytes of input `in`, or on its own. */
static void add_output(struct scene *s, int i, int out, int in, bool in_place)
{
    const struct tensor *t = &s->desc[i][in];
    size_t at = in_place ? s->at[i][in] : place(s, (size_t)tensor_bytes(t), 0);
    describe(s, i, OP_MAX_IN + out, t->type, t->dim[0], at);
}

static int64_t any_size(struct scene *s, int i)
{
    static const int64_t sizes[] = {0,    1,    7,    8,    9,    2048,  2048, 4095,
                                    4096, 4097, 8191, 8192, 8193, 12345, 20480};
    static const int64_t large[] = {100003, (1 << 20) + 5, 1 << 20, 65536};
    if (i % 37 == 5) return large[i / 37 % 4];
    return sizes[below(&s->random, sizeof sizes / sizeof *sizes)];
}

static void scene_open(struct scene *s, struct device *dev, uint32_t seed)
{
    memset(s, 0, sizeof *s);
    s->dev = dev, s->random = seed;
}

/* Scratch of each call for itself, behind all else. */
static void add_scratch(struct scene *s)
{
    s->used = s->bytes;
    for (int i = 0; i < TENSORS; i++) {
        const struct tensor *desc[OPERANDS];
        for (int k = 0; k < OPERANDS; k++) desc[k] = s->present[i][k] ? &s->desc[i][k] : NULL;
        const struct kernel *kernel = s->dev->kernels[s->op[i].kind];
        size_t bytes = 0;
        if (s->dev->ops->workspace)
            bytes = s->dev->ops->workspace(s->dev, desc, &s->op[i]);
        else if (kernel->workspace)
            bytes = kernel->workspace(desc, &s->op[i], s->dev->facts.threads);
        s->work[i] = place(s, bytes, 0);
    }
}

static struct kernel_call call_of(const struct scene *s, int i)
{
    char *base = s->dev->ops->base(s->dev);
    struct kernel_call call = {.op = &s->op[i], .accumulate = s->accumulate[i], .team = s->dev->team};
    for (int k = 0; k < OPERANDS; k++) {
        if (!s->present[i][k]) continue;
        call.desc[k] = &s->desc[i][k];
        *(k < OP_MAX_IN ? &call.in[k] : &call.out[k - OP_MAX_IN]) = base + s->at[i][k];
    }
    call.work = base + s->work[i];
    return call;
}

static void must(enum plim_status status)
{
    if (status != PLIM_OK) fail_msg("%s", err.text);
}

/* The image as it is when all ops have run, `most` of them at a time. */
static unsigned char *run_all(const struct scene *s, int most)
{
    const struct device_ops *ops = s->dev->ops;
    unsigned char *after = malloc(s->bytes);
    assert_non_null(after);
    must(ops->write(s->dev, 0, s->image, s->bytes, &err));
    for (int i = 0; i < TENSORS; i += most) {
        struct kernel_call calls[TAPE_GROUP_MOST];
        int count = TENSORS - i < most ? TENSORS - i : most;
        for (int k = 0; k < count; k++) calls[k] = call_of(s, i + k);
        if (count > 1)
            ops->run_many(s->dev, calls, count);
        else
            ops->run(s->dev, &calls[0]);
    }
    must(ops->sync(s->dev, &err));
    must(ops->read(s->dev, 0, after, s->bytes, &err));
    return after;
}

/* Which operand byte `at` belongs to, for the message. */
static void complain(const struct scene *s, size_t at, int most, const char *what)
{
    for (int i = 0; i < TENSORS; i++)
        for (int k = 0; k < OPERANDS; k++) {
            size_t begin = s->at[i][k], bytes = (size_t)tensor_bytes(&s->desc[i][k]);
            if (s->present[i][k] && at >= begin && at < begin + bytes)
                fail_msg("%s, %d at once: byte %zu of %zu of operand %d of tensor %d (%lld elements) differs",
                         what, most, at - begin, bytes, k, i, (long long)s->desc[i][0].dim[0]);
        }
    fail_msg("%s, %d at once: byte %zu, which is no operand's, differs", what, most, at);
}

static void compare(struct scene *s, const char *what)
{
    static const int most[] = {2, 7, TAPE_GROUP_MOST};
    add_scratch(s);
    must(s->dev->ops->commit(s->dev, s->bytes, &err));
    unsigned char *single = run_all(s, 1);
    assert_true(memcmp(single, s->image, s->used) != 0);
    for (int m = 0; m < 3; m++) {
        unsigned char *many = run_all(s, most[m]);
        for (size_t at = 0; at < s->used; at++)
            if (single[at] != many[at]) complain(s, at, most[m], what);
        free(many);
    }
    free(single);
    free(s->image);
}

/* --- sums of squares --------------------------------------------------------------------------------------- */

static struct device *device_of(void **state)
{
    struct device *dev = *state;
    if (!dev->ops->run_many) skip();
    return dev;
}

static uint32_t seed(void)
{
    const char *text = getenv("OP_SEED");
    return text && *text ? (uint32_t)strtoul(text, NULL, 10) : 1;
}

static void sums_of_squares(void **state)
{
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    static struct scene s;
    scene_open(&s, device_of(state), seed());
    size_t sums = place(&s, TENSORS * sizeof(double), 0);
    for (int i = 0; i < TENSORS; i++) {
        enum dtype type = types[below(&s.random, 3)];
        double before = (double)i;
        s.op[i] = tape_op(OP_SUMSQ, -1);
        add_input(&s, i, SUMSQ_GRAD, type, any_size(&s, i), below(&s.random, 8) ? 0 : dtype_size(type),
                  false);
        describe(&s, i, OP_MAX_IN + SUMSQ_SUM, DT_F64, 1, sums + (size_t)i * sizeof before);
        memcpy(s.image + s.at[i][OP_MAX_IN + SUMSQ_SUM], &before, sizeof before);
        s.accumulate[i] = below(&s.random, 2);
    }
    compare(&s, "sumsq");
}

/* --- AdamW ------------------------------------------------------------------------------------------------- */

static const struct variant {
    const char *name;
    enum dtype param, grad, state;
    bool master, stochastic;
} variants[] = {
    {"bf16, rounded at random", DT_BF16, DT_BF16, DT_BF16, false, true},
    {"bf16 with wide gradients, rounded at random", DT_BF16, DT_F32, DT_BF16, false, true},
    {"bf16 with a master", DT_BF16, DT_F32, DT_F32, true, false},
    {"bf16 with a master and narrow state", DT_BF16, DT_BF16, DT_BF16, true, true},
    {"f32", DT_F32, DT_F32, DT_F32, false, false},
    {"f32 with narrow state", DT_F32, DT_F32, DT_BF16, false, true},
    {"f16 with a master", DT_F16, DT_F16, DT_F32, true, false},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

/* What all ops share. */
struct step {
    size_t scalars, coef;
    bool clipped;
};

static struct step any_step(struct scene *s, bool clipped, bool finite)
{
    struct step step = {place(s, SCALAR_COUNT * sizeof(float), 0), place(s, CLIP_COUNT * sizeof(float), 0),
                        clipped};
    float *scalars = (float *)(s->image + step.scalars), *coef = (float *)(s->image + step.coef);
    memset(scalars, 0, SCALAR_COUNT * sizeof *scalars);
    scalars[SCALAR_LR] = 0.01f, scalars[SCALAR_BIAS1] = 0.271f, scalars[SCALAR_BIAS2] = 0.143f;
    scalars[SCALAR_KEY_LOW] = (float)below(&s->random, 65536);
    scalars[SCALAR_KEY_HIGH] = (float)below(&s->random, 65536);
    coef[CLIP_MULTIPLIER] = 0.3f, coef[CLIP_NORM] = 3, coef[CLIP_FINITE] = finite, coef[3] = 0;
    return step;
}

static void add_adamw(struct scene *s, int i, const struct variant *v, const struct step *step)
{
    int64_t count = any_size(s, i);
    bool in_place = below(&s->random, 12) != 0;
    size_t shift = below(&s->random, 12) ? 0 : 4;
    struct op_attr *attr = &s->op[i].attr;
    s->op[i] = tape_op(OP_ADAMW, -1);
    attr->beta1 = 0.9f, attr->beta2 = 0.95f, attr->eps = below(&s->random, 20) ? 1e-8f : 1e-6f;
    attr->decay = draw(&s->random) & 1 ? 0.1f : 0;
    attr->stochastic = v->stochastic, attr->stream = draw(&s->random),
    attr->first = (int64_t)draw(&s->random);
    add_input(s, i, ADAMW_P, v->param, count, 0, false);
    add_input(s, i, ADAMW_G, v->grad, count, shift, false);
    add_input(s, i, ADAMW_M, v->state, count, 0, false);
    add_input(s, i, ADAMW_V, v->state, count, 0, true);
    if (v->master) add_input(s, i, ADAMW_MASTER, dtype_master(v->param), count, 0, false);
    describe(s, i, ADAMW_SCALARS, DT_F32, SCALAR_COUNT, step->scalars);
    if (step->clipped) describe(s, i, ADAMW_COEF, DT_F32, CLIP_COUNT, step->coef);
    add_output(s, i, ADAMW_NEW_P, ADAMW_P, in_place);
    add_output(s, i, ADAMW_NEW_M, ADAMW_M, in_place);
    add_output(s, i, ADAMW_NEW_V, ADAMW_V, in_place);
    if (v->master) add_output(s, i, ADAMW_NEW_MASTER, ADAMW_MASTER, in_place);
}

static void adamw_of_one_type(void **state)
{
    static struct scene s;
    for (int v = 0; v < VARIANTS; v += EVERY) {
        scene_open(&s, device_of(state), seed() + 100 * (uint32_t)v);
        struct step step = any_step(&s, v % 2, true);
        for (int i = 0; i < TENSORS; i++) add_adamw(&s, i, &variants[v], &step);
        compare(&s, variants[v].name);
    }
}

static void adamw_of_all_types(void **state)
{
    static struct scene s;
    scene_open(&s, device_of(state), seed() + 1000);
    struct step steps[2] = {any_step(&s, true, true), any_step(&s, true, false)}; /* one is skipped */
    for (int i = 0; i < TENSORS; i++)
        add_adamw(&s, i, &variants[below(&s.random, VARIANTS)], &steps[below(&s.random, 4) == 0]);
    compare(&s, "all types");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_squares),
        cmocka_unit_test(adamw_of_one_type),
        cmocka_unit_test(adamw_of_all_types),
    };
    return cmocka_run_group_tests(tests, op_device_open_fake, op_device_close);
}
