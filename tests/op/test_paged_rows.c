/* test_paged_rows.c - attention over blocks: a token's result has the same bits alone and among others.
 *
 *     OP_DEVICE  cuda, or the CPU behind a device with its own memory (default)
 *
 * Alone, a GPU cuts a long context into pieces that are joined by a second kernel; among enough others it does not. Tokens of a prompt share
 * tiles of queries, which begin elsewhere when other rows come before, or when less of the prompt is read in the step. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "support/op_device.h"
#include "tensor/kv8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    KV_HEADS = 8,
    OTHERS = 70,
    KEYS = 713,
    REACH = (KEYS + KV_BLOCK - 1) / KV_BLOCK,
    SLOTS = 5,
    LEAST = 7,   /* tokens of a prompt that are compared */
    MOST = 4096, /* numbers of a token */
    ALIGN = 256
};
static_assert(OTHERS * KV_HEADS > 512, "blocks of threads enough to leave contexts whole");

static struct plim_error err;
static uint32_t random_state = 1;

static uint32_t draw(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}

static float number(void) { return ((float)(draw() % 2001) - 1000.0f) / 700.0f; }

/* Operands of the op in the order of its slots, the result last. */
struct scene {
    struct device *dev;
    struct op op;
    struct tensor t[SLOTS];
    size_t at[SLOTS], bytes;
    unsigned char *image;
};

static void *operand(struct scene *s, int slot, enum dtype type, int ndim, const int64_t *dim)
{
    struct tensor *t = &s->t[slot];
    *t = (struct tensor){
        .label = "t", .type = type, .cls = CLASS_ACT, .ndim = ndim, .view_of = -1, .owner = -1};
    memcpy(t->dim, dim, (size_t)ndim * sizeof *dim);
    s->at[slot] = s->bytes;
    s->bytes += ((size_t)tensor_bytes(t) + ALIGN - 1) / ALIGN * ALIGN;
    s->image = realloc(s->image, s->bytes);
    assert_non_null(s->image);
    memset(s->image + s->at[slot], 0, s->bytes - s->at[slot]);
    return s->image + s->at[slot];
}

/* A pool of numbers of the type, or of codes and scales. */
static void add_pool(struct scene *s, bool coded, int64_t size)
{
    int64_t chunk = coded ? kv8_bytes(KV_BLOCK, size) : KV_BLOCK * size;
    unsigned char *at =
        operand(s, ATTN_PAGED_POOL, coded ? DT_U8 : DT_BF16, 4, (int64_t[]){REACH, 2, KV_HEADS, chunk});
    for (int64_t i = 0; !coded && i < REACH * 2 * KV_HEADS * chunk; i++) {
        uint16_t x = f32_to_bf16(number());
        memcpy(at + 2 * i, &x, sizeof x);
    }
    for (int64_t c = 0; coded && c < REACH * 2 * KV_HEADS; c++, at += chunk) {
        for (int64_t i = 0; i < KV_BLOCK * size; i++)
            at[i] = (unsigned char)(draw() % 2 * 128 + draw() % 127);
        for (int64_t i = 0; i < KV_BLOCK; i++) {
            float scale = (float)(1 + draw() % 7) / 1024.0f;
            memcpy(at + KV_BLOCK * size + i * KV8_SCALE, &scale, sizeof scale);
        }
    }
}

struct shape {
    int kind;
    bool e4m3;
    int64_t size, group;
    int window;
};

/* The op's operands but queries, rows and results. Blocks are in another order than positions. */
static void open_pool(struct scene *s, struct device *dev, const struct shape *shape)
{
    *s = (struct scene){.dev = dev, .op = tape_op(shape->kind, -1)};
    random_state = 1;
    add_pool(s, shape->kind == OP_ATTN_PAGED8, shape->size);
    struct op_attr *attr = &s->op.attr;
    attr->heads = (int)(KV_HEADS * shape->group), attr->kv_heads = KV_HEADS,
    attr->head_dim = (int)shape->size;
    attr->e4m3 = shape->e4m3, attr->scale = (float)(1 / sqrt((double)shape->size));
    attr->window = shape->window, s->op.layer = 0;
}

static void add_table(struct scene *s, int rows)
{
    int32_t *table = operand(s, ATTN_PAGED_BLOCKS, DT_I32, 2, (int64_t[]){rows, REACH});
    for (int i = 0; i < rows * REACH; i++) table[i] = (i % REACH * 11 + 3) % REACH;
}

/* Queries of tokens; token t's are those of number(last - t). */
static void add_queries(struct scene *s, int tokens, const struct shape *shape)
{
    const int64_t heads = KV_HEADS * shape->group, line = heads * shape->size;
    uint16_t own[4096], *q = operand(s, ATTN_PAGED_Q, DT_BF16, 4, (int64_t[]){1, tokens, heads, shape->size});
    for (int64_t i = 0; i < 4096; i++) own[i] = f32_to_bf16(number());
    for (int64_t t = 0; t < tokens; t++) /* the last ones' do not depend on how many there are */
        for (int64_t i = 0; i < line; i++) q[t * line + i] = own[(i * 7 + (tokens - 1 - t) * 13) % 4096];
}

/* One token for each row: the last has KEYS keys, the others few. */
static void open_scene(struct scene *s, struct device *dev, int rows, const struct shape *shape)
{
    open_pool(s, dev, shape);
    add_queries(s, rows, shape);
    int32_t *row = operand(s, ATTN_PAGED_ROWS, DT_I32, 2, (int64_t[]){rows, 3});
    for (int r = 0; r < rows; r++)
        row[3 * r] = r, row[3 * r + 1] = 1, row[3 * r + 2] = r == rows - 1 ? KEYS - 1 : r;
    add_table(s, rows);
    operand(s, SLOTS - 1, DT_BF16, 4, (int64_t[]){1, rows, s->op.attr.heads, shape->size});
}

/* The last `count` tokens up to position KEYS, behind another row of `others` tokens. */
static void open_prompt(struct scene *s, struct device *dev, int count, int others, const struct shape *shape)
{
    open_pool(s, dev, shape);
    add_queries(s, others + count, shape);
    const int rows = others ? 2 : 1;
    int32_t *row = operand(s, ATTN_PAGED_ROWS, DT_I32, 2, (int64_t[]){rows, 3});
    if (others) row[1] = others, row[2] = 40, row += 3;
    row[0] = others, row[1] = count, row[2] = KEYS - count;
    add_table(s, rows);
    operand(s, SLOTS - 1, DT_BF16, 4, (int64_t[]){1, others + count, s->op.attr.heads, shape->size});
}

/* The last `count` numbers of the result. */
static void last_numbers(struct scene *s, uint16_t *out, int64_t count)
{
    const struct device_ops *ops = s->dev->ops;
    struct kernel_call call = {.op = &s->op, .team = s->dev->team};
    for (int k = 0; k < SLOTS; k++) call.desc[k == SLOTS - 1 ? OP_MAX_IN + (int)ATTN_PAGED_O : k] = &s->t[k];
    size_t scratch = op_device_scratch(s->dev, &call),
           end = s->at[SLOTS - 1] + (size_t)tensor_bytes(&s->t[SLOTS - 1]);
    assert_int_equal(ops->commit(s->dev, s->bytes + scratch + ALIGN, &err), PLIM_OK);
    assert_int_equal(ops->write(s->dev, 0, s->image, s->bytes, &err), PLIM_OK);
    char *base = ops->base(s->dev);
    for (int k = 0; k < SLOTS - 1; k++) call.in[k] = base + s->at[k];
    call.out[ATTN_PAGED_O] = base + s->at[SLOTS - 1], call.work = base + s->bytes;
    ops->run(s->dev, &call);
    assert_int_equal(ops->sync(s->dev, &err), PLIM_OK);
    assert_int_equal(
        ops->read(s->dev, end - (size_t)count * sizeof *out, out, (size_t)count * sizeof *out, &err),
        PLIM_OK);
    free(s->image);
}

static void a_token_does_not_know_the_others(void **state)
{
    static const struct shape cases[] = {
        {OP_ATTN_PAGED8, true, 128, 4, 0},  {OP_ATTN_PAGED8, false, 64, 12, 0},
        {OP_ATTN_PAGED8, true, 96, 1, 300}, {OP_ATTN_PAGED8, true, 72, 9, 0},
        {OP_ATTN_PAGED, false, 128, 4, 0},  {OP_ATTN_PAGED, false, 64, 4, 0}};
    static uint16_t alone[16 * 4096], among[16 * 4096];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct scene s;
        int64_t count = KV_HEADS * cases[i].group * cases[i].size;
        open_scene(&s, *state, 1, &cases[i]);
        last_numbers(&s, alone, count);
        open_scene(&s, *state, OTHERS, &cases[i]);
        last_numbers(&s, among, count);
        for (int64_t k = 0; k < count; k++)
            if (alone[k] != among[k])
                fail_msg("case %d, element %lld: %g alone, %g among others", (int)i, (long long)k,
                         (double)bf16_to_f32(alone[k]), (double)bf16_to_f32(among[k]));
        bool some = false;
        for (int64_t k = 0; k < count; k++) some = some || (alone[k] & 0x7fff);
        assert_true(some);
    }
}

static void a_prompt_does_not_know_its_tile(void **state)
{
    static const struct shape cases[] = {
        {OP_ATTN_PAGED8, true, 128, 4, 0},  {OP_ATTN_PAGED8, false, 128, 3, 200},
        {OP_ATTN_PAGED8, true, 64, 5, 90},  {OP_ATTN_PAGED, false, 128, 4, 0},
        {OP_ATTN_PAGED, false, 64, 3, 150}, {OP_ATTN_PAGED, false, 64, 8, 0}};
    /* Tokens of the row, and of the one before it. */
    static const int rows[][2] = {{LEAST, 0}, {LEAST + 30, 0}, {LEAST + 9, 41}};
    static uint16_t first[LEAST * MOST], other[LEAST * MOST];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t count = LEAST * KV_HEADS * cases[i].group * cases[i].size;
        assert_true(count <= LEAST * MOST);
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            struct scene s;
            open_prompt(&s, *state, rows[r][0], rows[r][1], &cases[i]);
            last_numbers(&s, r ? other : first, count);
            for (int64_t k = 0; r && k < count; k++)
                if (first[k] != other[k])
                    fail_msg("case %d, rows %d, element %lld: %g, and %g elsewhere", (int)i, (int)r,
                             (long long)k, (double)bf16_to_f32(first[k]), (double)bf16_to_f32(other[k]));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_does_not_know_the_others),
        cmocka_unit_test(a_prompt_does_not_know_its_tile),
    };
    return cmocka_run_group_tests(tests, op_device_open, op_device_close);
}
