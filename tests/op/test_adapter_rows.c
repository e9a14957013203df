/* test_adapter_rows.c - adapter_linear: a row has the same bits alone and among others, in both products of an adapter, however rows
 * share adapters.
 *
 *     OP_DEVICE  cpu (default) or cuda
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "device/device.h"
#include "support/op_device.h"
#include "support/pace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 600, ALIGN = 256, ROOM = 96 << 20, MOST_LINES = 3072 };

static struct plim_error err;
static uint32_t random_state = 1;

static uint32_t draw(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}

static float small_number(void) { return ((float)(draw() % 2001) - 1000.0f) / 3000.0f; }

struct scene {
    struct device *dev;
    unsigned char *image;
    size_t bytes;
    struct tensor t[8];
    size_t at[8];
    int count;
};

static int add(struct scene *s, enum dtype type, enum tensor_class cls, int64_t a, int64_t b, int64_t c)
{
    int id = s->count++;
    s->t[id] = (struct tensor){.label = "t",
                               .type = type,
                               .cls = cls,
                               .ndim = c   ? 3
                                       : b ? 2
                                           : 1,
                               .dim = {a, b, c},
                               .view_of = -1,
                               .owner = -1};
    s->at[id] = s->bytes;
    s->bytes += ((size_t)tensor_bytes(&s->t[id]) + ALIGN - 1) / ALIGN * ALIGN;
    assert_true(s->bytes <= ROOM);
    uint16_t *to = (uint16_t *)(void *)(s->image + s->at[id]);
    for (int64_t i = 0; type == DT_BF16 && i < tensor_count(&s->t[id]); i++)
        to[i] = f32_to_bf16(small_number());
    return id;
}

/* An adapter of the layers of one product: x [ROWS,k] to lines in parts. */
struct shape {
    int64_t slots, k, r, part[OP_LINE_PARTS];
};

static const struct shape shapes[] = {
    {64, 512, 16, {256, 64, 64}}, {64, 2048, 16, {2048}}, {7, 1024, 8, {128}},   {64, 96, 32, {64, 32, 32}},
    {3, 4096, 16, {512}},         {200, 64, 16, {64}},    {1000, 64, 8, {32}},   {16, 520, 64, {96}},
    {16, 256, 24, {64, 32}},      {5, 256, 20, {64}},     {64, 264, 16, {1024}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

struct adapter {
    int x, slot, u, y;
    int64_t lines;
    struct op ops[2];
};

static int parts_of(const struct shape *h) { return h->part[2] ? 3 : h->part[1] ? 2 : 1; }

static struct adapter make(struct scene *s, struct device *dev, const struct shape *h)
{
    struct adapter a = {0};
    int parts = parts_of(h);
    *s = (struct scene){.dev = dev, .image = calloc(1, ROOM)};
    assert_non_null(s->image);
    assert_int_equal(dev->ops->commit(dev, ROOM, &err), PLIM_OK);
    for (int p = 0; p < parts; p++) a.lines += h->part[p];
    assert_true(a.lines <= MOST_LINES);
    a.x = add(s, DT_BF16, CLASS_ACT, ROWS, h->k, 0);
    int wa = add(s, DT_BF16, CLASS_PARAM, h->slots, parts * h->r, h->k),
        wb = add(s, DT_BF16, CLASS_PARAM, h->slots, a.lines, h->r);
    a.slot = add(s, DT_I32, CLASS_ACT, ROWS, 0, 0);
    a.u = add(s, DT_BF16, CLASS_ACT, ROWS, parts * h->r, 0),
    a.y = add(s, DT_BF16, CLASS_ACT, ROWS, a.lines, 0);
    for (int i = 0; i < 2; i++) {
        a.ops[i] = tape_op(OP_ADAPTER_LINEAR, -1);
        a.ops[i].in[ADAPTER_LINEAR_X] = i ? a.u : a.x, a.ops[i].in[ADAPTER_LINEAR_W] = i ? wb : wa;
        a.ops[i].in[ADAPTER_LINEAR_SLOT] = a.slot, a.ops[i].out[ADAPTER_LINEAR_Y] = i ? a.y : a.u;
    }
    a.ops[1].in[ADAPTER_LINEAR_ADD] = a.y;
    for (int p = 0; parts > 1 && p < parts; p++) a.ops[1].attr.lines[p].lines = h->part[p];
    return a;
}

/* Which adapters rows have. */
enum mix {
    ANY,     /* none or any */
    EACH,    /* all in turn */
    PROMPTS, /* runs of rows have one, with some rows of any before them */
    ONE,
    NONE,
    MIXES
};

static void mix_slots(struct scene *s, const struct adapter *a, int64_t slots, enum mix mix)
{
    int32_t *slot = (int32_t *)(void *)(s->image + s->at[a->slot]), of_run = 0;
    for (int i = 0; i < ROWS; i++) {
        int32_t any = (int32_t)(draw() % (uint32_t)(slots + 1)) - 1;
        if (i % 90 == 0) of_run = any;
        bool alone = mix == ANY || (mix == PROMPTS && i < 70);
        slot[i] = alone            ? any
                  : mix == EACH    ? (int32_t)(i % slots)
                  : mix == PROMPTS ? of_run
                  : mix == ONE     ? (int32_t)slots - 1
                                   : -1;
    }
}

/* Runs both ops over rows [first, first + rows). */
static void run(struct scene *s, const struct adapter *a, int64_t first, int64_t rows)
{
    static struct tensor cut[2][OP_MAX_IN + OP_MAX_OUT];
    struct kernel_call calls[2];
    char *base = s->dev->ops->base(s->dev);
    for (int i = 0; i < 2; i++) {
        calls[i] = (struct kernel_call){.op = &a->ops[i], .team = s->dev->team};
        for (int k = 0; k < OP_MAX_IN + OP_MAX_OUT; k++) {
            int id = k < OP_MAX_IN ? a->ops[i].in[k] : a->ops[i].out[k - OP_MAX_IN];
            if (id < 0) continue;
            struct tensor *t = &cut[i][k];
            *t = s->t[id];
            size_t skip = 0;
            if (t->cls == CLASS_ACT) skip = (size_t)(tensor_bytes(t) / ROWS * first), t->dim[0] = rows;
            calls[i].desc[k] = t;
            *(k < OP_MAX_IN ? &calls[i].in[k] : &calls[i].out[k - OP_MAX_IN]) = base + s->at[id] + skip;
        }
    }
    for (int i = 0; i < 2; i++) {
        size_t bytes = op_device_scratch(s->dev, &calls[i]);
        calls[i].work = base + s->bytes;
        assert_true(s->bytes + bytes <= ROOM);
    }
    assert_int_equal(s->dev->ops->write(s->dev, 0, s->image, s->bytes, &err), PLIM_OK);
    for (int i = 0; i < 2; i++) s->dev->ops->run(s->dev, &calls[i]);
    assert_int_equal(s->dev->ops->sync(s->dev, &err), PLIM_OK);
}

static void read_rows(struct scene *s, const struct adapter *a, int64_t first, int64_t rows, uint16_t *out)
{
    size_t width = (size_t)a->lines * sizeof *out;
    assert_int_equal(
        s->dev->ops->read(s->dev, s->at[a->y] + (size_t)first * width, out, (size_t)rows * width, &err),
        PLIM_OK);
}

static uint16_t all[ROWS * MOST_LINES], some[ROWS * MOST_LINES];

static void same_bits(struct scene *s, const struct adapter *a, int64_t first, int64_t rows, int shape,
                      int mix)
{
    run(s, a, first, rows);
    read_rows(s, a, first, rows, some);
    if (memcmp(some, all + first * a->lines, (size_t)(rows * a->lines) * sizeof *some))
        fail_msg("shape %d, mix %d: %lld rows from %lld on have other bits than among %d", shape, mix,
                 (long long)rows, (long long)first, ROWS);
}

static void rows_do_not_know_each_other(void **state)
{
    static const int64_t counts[] = {1, 2, 17, 40, 130};
    for (int h = 0; h < SHAPES; h++) {
        struct scene s;
        struct adapter a = make(&s, *state, &shapes[h]);
        for (int mix = h % EVERY; mix < MIXES; mix += EVERY) {
            mix_slots(&s, &a, shapes[h].slots, mix);
            run(&s, &a, 0, ROWS);
            read_rows(&s, &a, 0, ROWS, all);
            for (int64_t first = 0; first < ROWS; first += ROWS / 3)
                same_bits(&s, &a, first, ROWS / 3, h, mix);
            for (size_t c = 0; c < sizeof counts / sizeof *counts && mix == ANY; c += EVERY)
                same_bits(&s, &a, 8 * (int64_t)(draw() % 20), counts[c], h, mix);
        }
        free(s.image);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_do_not_know_each_other)};
    return cmocka_run_group_tests(tests, op_device_open, op_device_close);
}
