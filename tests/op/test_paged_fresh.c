/* test_paged_fresh.c - heads that are split, kept in blocks and attended with as one launch against the three ops one by one: the same bits in
 * the result and in the pool.
 *
 *     OP_DEVICE  cuda, or the CPU behind a device with its own memory (default), which tests the test
 *     OP_SEED    other operands
 *
 * Rows of one token, of all of a step's and of some, tokens without a row; contexts that begin and end at blocks, chunks and pieces or between
 * them. What the pool has in the places of the step's own keys is not-a-number: nobody may take it for a key. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "support/op_device.h"
#include "support/pace.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KV_HEADS = 2, LAYERS = 2, LAYER = 1, MOST_TOKENS = 8, ALIGN = 256, OPS = 3, RUNS = 2 };
enum { X, TABLE, SLOTS, POOL, ROWS, BLOCKS, Q, K, V, O, TENSORS };

static struct plim_error err;

struct scene {
    struct device *dev;
    uint32_t random;
    struct tensor tensor[TENSORS];
    size_t at[TENSORS], bytes;
    unsigned char *image;
    struct op op[OPS];
};

static uint32_t below(struct scene *s, uint32_t n)
{
    s->random = s->random * 1664525u + 1013904223u;
    return (s->random >> 8) % n;
}

static uint16_t drawn(struct scene *s, enum dtype type)
{
    float x = ((float)below(s, 2001) - 1000.0f) / 700.0f;
    return type == DT_BF16 ? f32_to_bf16(x) : f32_to_f16(x);
}

static void *add(struct scene *s, int id, enum dtype type, int ndim, const int64_t *dim)
{
    struct tensor *t = &s->tensor[id];
    *t = (struct tensor){
        .label = "t", .layer = -1, .type = type, .cls = CLASS_ACT, .ndim = ndim, .view_of = -1, .owner = -1};
    memcpy(t->dim, dim, (size_t)ndim * sizeof *dim);
    s->at[id] = s->bytes;
    s->bytes += ((size_t)tensor_bytes(t) + ALIGN - 1) / ALIGN * ALIGN;
    s->image = realloc(s->image, s->bytes);
    assert_non_null(s->image);
    memset(s->image + s->at[id], 0, s->bytes - s->at[id]);
    return s->image + s->at[id];
}

/* How a step's tokens are rows: all one row, each one of its own, or some of both, with a token that has none. */
enum rows_of_step { ALONE, TOGETHER, MIXED, KINDS_OF_ROWS };

struct form {
    enum dtype type;
    int size, group, tokens, reach, window;
    float cap;
    enum rows_of_step rows;
    int context;
};

static void add_rows(struct scene *s, const struct form *f)
{
    const int n = f->tokens;
    int32_t *row = add(s, ROWS, DT_I32, 2, (int64_t[]){n, 3});
    int32_t *blocks = add(s, BLOCKS, DT_I32, 2, (int64_t[]){n, f->reach});
    int32_t *slots = add(s, SLOTS, DT_I32, 2, (int64_t[]){1, n});
    for (int i = 0; i < n * f->reach; i++) blocks[i] = (i * 7 + 3) % (n * f->reach);
    for (int i = 0; i < n; i++) slots[i] = -1;
    for (int r = 0, token = 0; r < n && token < n; r++) {
        int count = f->rows == TOGETHER ? n : f->rows == MIXED && r == 1 ? 3 : 1;
        if (count > n - token) count = n - token;
        if (f->rows == MIXED && r == 2) token++; /* in no row */
        if (token + count > n) break;
        int context = f->context + 5 * r;
        if (context + count > f->reach * KV_BLOCK) context = f->reach * KV_BLOCK - count;
        row[3 * r] = token, row[3 * r + 1] = count, row[3 * r + 2] = context;
        for (int i = 0; i < count; i++, token++, context++)
            slots[token] = blocks[r * f->reach + context / KV_BLOCK] * KV_BLOCK + context % KV_BLOCK;
    }
}

static bool is_new(const struct scene *s, int tokens, int slot)
{
    const int32_t *slots = (const int32_t *)(void *)(s->image + s->at[SLOTS]);
    for (int i = 0; i < tokens; i++)
        if (slots[i] == slot) return true;
    return false;
}

static void add_pool(struct scene *s, const struct form *f)
{
    const int count = f->tokens * f->reach;
    uint16_t *pool =
        add(s, POOL, f->type, 4, (int64_t[]){count, 2 * LAYERS, KV_HEADS, (int64_t)KV_BLOCK * f->size});
    for (int b = 0; b < count; b++)
        for (int p = 0; p < 2 * LAYERS * KV_HEADS; p++)
            for (int i = 0; i < KV_BLOCK * f->size; i++, pool++) {
                int position = p / KV_HEADS % 2 ? i / f->size : i % KV_BLOCK;
                *pool = is_new(s, f->tokens, b * KV_BLOCK + position) ? 0x7fff : drawn(s, f->type);
            }
}

static void add_heads(struct scene *s, const struct form *f)
{
    const int64_t n = f->tokens, heads = (int64_t)KV_HEADS * f->group, all = heads + 2 * KV_HEADS;
    uint16_t *x = add(s, X, f->type, 3, (int64_t[]){1, n, all * f->size});
    for (int64_t i = 0; i < n * all * f->size; i++) x[i] = drawn(s, f->type);
    float *table = add(s, TABLE, DT_F32, 3, (int64_t[]){1, n, f->size});
    for (int64_t i = 0; i < n * f->size; i++) {
        float angle = (float)(i / f->size * 31 + i % (f->size / 2) * 7) * 0.11f;
        table[i] = i % f->size < f->size / 2 ? cosf(angle) : sinf(angle);
    }
    add(s, Q, f->type, 4, (int64_t[]){1, n, heads, f->size});
    add(s, K, f->type, 4, (int64_t[]){1, n, KV_HEADS, f->size});
    add(s, V, f->type, 4, (int64_t[]){1, n, KV_HEADS, f->size});
    add(s, O, f->type, 4, (int64_t[]){1, n, heads, f->size});
}

static void add_ops(struct scene *s, const struct form *f)
{
    struct op *split = &s->op[0], *put = &s->op[1], *attn = &s->op[2];
    *split = tape_op(OP_SPLIT3, LAYER), *put = tape_op(OP_KV_PUT, LAYER),
    *attn = tape_op(OP_ATTN_PAGED, LAYER);
    split->in[SPLIT3_X] = X, split->in[SPLIT3_TABLE] = TABLE;
    split->out[SPLIT3_Q] = Q, split->out[SPLIT3_K] = K, split->out[SPLIT3_V] = V;
    put->in[KV_PUT_K] = K, put->in[KV_PUT_V] = V, put->in[KV_PUT_SLOTS] = SLOTS, put->in[KV_PUT_POOL] = POOL;
    put->out[KV_PUT_NEW_POOL] = POOL;
    attn->in[ATTN_PAGED_Q] = Q, attn->in[ATTN_PAGED_POOL] = POOL, attn->in[ATTN_PAGED_ROWS] = ROWS;
    attn->in[ATTN_PAGED_BLOCKS] = BLOCKS, attn->out[ATTN_PAGED_O] = O;
    for (int i = 0; i < OPS; i++) {
        struct op_attr *attr = &s->op[i].attr;
        attr->heads = KV_HEADS * f->group, attr->kv_heads = KV_HEADS, attr->head_dim = f->size;
        attr->scale = 1 / sqrtf((float)f->size), attr->window = f->window, attr->cap = f->cap;
    }
}

/* Without a device's addresses there are those of the image. */
static void call_of(const struct scene *s, int i, char *base, char *work, struct kernel_call *out)
{
    const struct op *op = &s->op[i];
    *out = (struct kernel_call){.op = op, .team = s->dev->team, .work = work};
    for (int k = 0; k < OP_MAX_IN; k++)
        if (op->in[k] >= 0) out->desc[k] = &s->tensor[op->in[k]], out->in[k] = base + s->at[op->in[k]];
    for (int k = 0; k < OP_MAX_OUT; k++)
        if (op->out[k] >= 0)
            out->desc[OP_MAX_IN + k] = &s->tensor[op->out[k]], out->out[k] = base + s->at[op->out[k]];
}

static void must(enum plim_status status)
{
    if (status != PLIM_OK) fail_msg("%s", err.text);
}

static unsigned char *run(const struct scene *s, bool together)
{
    const struct device_ops *ops = s->dev->ops;
    struct kernel_call calls[OPS];
    unsigned char *after = malloc(s->bytes);
    assert_non_null(after);
    call_of(s, 2, (char *)s->image, NULL, &calls[2]);
    must(ops->commit(s->dev, s->bytes + op_device_scratch(s->dev, &calls[2]), &err));
    must(ops->write(s->dev, 0, s->image, s->bytes, &err));
    char *base = ops->base(s->dev);
    for (int i = 0; i < OPS; i++) call_of(s, i, base, base + s->bytes, &calls[i]);
    if (together) {
        assert_true(ops->fuses(s->dev, calls, OPS));
        ops->run_many(s->dev, calls, OPS);
    }
    for (int i = 0; i < OPS && !together; i++) ops->run(s->dev, &calls[i]);
    must(ops->sync(s->dev, &err));
    must(ops->read(s->dev, 0, after, s->bytes, &err));
    return after;
}

static void same(const struct scene *s, const struct form *f, unsigned char *const *after, int id)
{
    const uint16_t *a = (const uint16_t *)(void *)(after[0] + s->at[id]),
                   *b = (const uint16_t *)(void *)(after[1] + s->at[id]);
    for (int64_t i = 0; i < tensor_count(&s->tensor[id]); i++)
        if (a[i] != b[i] || (id == O && (a[i] & 0x7fff) > 0x7f80))
            fail_msg(
                "%s, heads of %d, group %d, %d tokens, rows %d, behind %d, window %d: number %lld of %s is "
                "%#x one by one, %#x at once",
                dtype_name(f->type), f->size, f->group, f->tokens, (int)f->rows, f->context, f->window,
                (long long)i, id == O ? "the result" : "the pool", a[i], b[i]);
}

static void check(struct device *dev, const struct form *f, uint32_t seed)
{
    struct scene s = {.dev = dev, .random = seed};
    add_rows(&s, f), add_pool(&s, f), add_heads(&s, f), add_ops(&s, f);
    unsigned char *after[RUNS] = {run(&s, false), run(&s, true)};
    same(&s, f, after, POOL), same(&s, f, after, O);
    assert_memory_not_equal(after[0] + s.at[O], s.image + s.at[O], (size_t)tensor_bytes(&s.tensor[O]));
    free(after[0]);
    free(after[1]);
    free(s.image);
}

static void one_launch_has_the_bits_of_three(void **state)
{
    static const int contexts[] = {0, 1, 15, 16, 60, 63, 64, 200, 250, 255, 256, 300, 511, 700};
    static const int tokens[] = {1, 2, 5, MOST_TOKENS};
    static const struct {
        int size, group;
    } heads[] = {{64, 4}, {64, 1}, {128, 4}, {64, 12}, {128, 8}};
    enum { CONTEXTS = sizeof contexts / sizeof *contexts, HEADS = sizeof heads / sizeof *heads };
    const char *text = getenv("OP_SEED");
    const int seed = text && *text ? atoi(text) : 1;
    struct device *dev = *state;
    if (!dev->ops->fuses) skip();
    for (int i = 0, k = seed; i < CONTEXTS * HEADS; i++, k += 7) {
        struct form f = {i % 3 ? DT_BF16 : DT_F16, heads[(i + i / HEADS) % HEADS].size,
                         heads[(i + i / HEADS) % HEADS].group, tokens[k % 4]};
        f.context = contexts[i / HEADS], f.rows = (enum rows_of_step)(k / 4 % KINDS_OF_ROWS);
        f.reach = f.context < 400 && k % 2 ? 32 : 50; /* two pieces, and four: then each is work of its own */
        f.window = k % 5 == 0 ? 100 : 0, f.cap = k % 11 == 0 ? 20 : 0;
        if (i % EVERY == seed % EVERY) check(dev, &f, (uint32_t)(1000 * seed + i));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_launch_has_the_bits_of_three),
    };
    return cmocka_run_group_tests(tests, op_device_open_fake, op_device_close);
}
