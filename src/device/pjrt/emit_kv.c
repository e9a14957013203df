/* emit_kv.c - emitters that write keys and values: into a cache of rows, and into a pool of blocks. */
#include "device/pjrt/emit_parts.h"
#include "tensor/kv8.h"

#include <math.h>

static void append(struct emit *e, int from, int to)
{
    struct hlo *h = e->h;
    struct hlo_value rows = emit_in(e, from), pos = emit_in(e, KV_APPEND_POS), cache = emit_old(e, to);
    int64_t batch = cache.dim[0], keys = cache.dim[1], heads = cache.dim[2], size = cache.dim[3];
    struct hlo_value row = hlo_times(h, hlo_iota(h, HLO_I32, 0, pos.ndim, pos.dim), (double)keys);
    struct hlo_value ids =
        hlo_select(h, hlo_compare_to(h, "LT", pos, (double)keys), hlo_add(h, row, pos), hlo_like(h, pos, -1));
    cache = hlo_reshape(h, cache, HLO_SHAPE(batch * keys, heads, size));
    emit_out(e, to, hlo_put(h, cache, ids, rows, false));
}

static void emit_kv_append(struct emit *e)
{
    append(e, KV_APPEND_K, KV_APPEND_NEW_KC);
    append(e, KV_APPEND_V, KV_APPEND_NEW_VC);
}
const struct emitter pjrt_kv_append = {.emit = emit_kv_append};

/* --- blocks -------------------------------------------------------------------------------------------------- */

/* Tokens on their way into a pool. */
struct put {
    struct emit *e;
    int64_t tokens, heads, size, chunk; /* chunk: elements of a head's keys or values in a block */
    struct hlo_value slots;             /* [N] of a type that counts the pool's elements; -1: nowhere */
    struct hlo_value pool;              /* flat */
};

static struct put put_of(struct emit *e)
{
    const struct tensor *k = emit_in_tensor(e, KV_PUT_K), *pool = emit_in_tensor(e, KV_PUT_POOL);
    struct put p = {.e = e, .tokens = k->dim[0] * k->dim[1], .heads = k->dim[2], .size = k->dim[3]};
    int64_t count = tensor_count(pool);
    p.chunk = pool->dim[3];
    p.slots = hlo_convert(e->h, emit_in(e, KV_PUT_SLOTS), count >> 31 ? HLO_I64 : HLO_I32);
    p.slots = hlo_reshape(e->h, p.slots, HLO_SHAPE(p.tokens));
    p.pool = hlo_reshape(e->h, emit_in(e, KV_PUT_POOL), HLO_SHAPE(count));
    return p;
}

/* Index of element `inner` of each token and head in the pool, whose place in a chunk is inner * step + position * stride + first:
 * [N,K,inner]. */
static struct hlo_value places(const struct put *p, bool value, int64_t inner, int64_t step, int64_t stride,
                               int64_t first)
{
    struct hlo *h = p->e->h;
    int64_t parts = p->e->desc[KV_PUT_POOL]->dim[1], layer = p->e->op->layer > 0 ? p->e->op->layer : 0;
    int64_t shape[] = {p->tokens, p->heads, inner};
    struct hlo_value block = hlo_div(h, p->slots, hlo_like(h, p->slots, KV_BLOCK));
    struct hlo_value at = hlo_sub(h, p->slots, hlo_times(h, block, KV_BLOCK));
    struct hlo_value token = hlo_add(h, hlo_times(h, block, (double)(parts * p->heads * p->chunk)),
                                     hlo_times(h, at, (double)stride));
    token = hlo_plus(h, token, (double)((2 * layer + value) * p->heads * p->chunk + first));
    struct hlo_value head = hlo_times(h, hlo_iota(h, token.type, 1, 3, shape), (double)p->chunk);
    struct hlo_value each = hlo_times(h, hlo_iota(h, token.type, 2, 3, shape), (double)step);
    struct hlo_value nowhere = hlo_over(h, hlo_compare_to(h, "LT", p->slots, 0), head, 0);
    struct hlo_value all = hlo_add(h, hlo_over(h, token, head, 0), hlo_add(h, head, each));
    return hlo_select(h, nowhere, hlo_like(h, all, -1), all);
}

/* Keys are [D,16]: each element has a place of its own. */
static void put_keys(struct put *p, struct hlo_value k)
{
    struct hlo_value ids = places(p, false, p->size, KV_BLOCK, 1, 0);
    p->pool = hlo_put(p->e->h, p->pool, ids, hlo_reshape(p->e->h, k, ids.ndim, ids.dim), false);
}

/* Values are [16,D]: rows of the pool, unless scales lie between them. */
static void put_values(struct put *p, struct hlo_value v)
{
    struct hlo *h = p->e->h;
    bool rows = p->chunk == KV_BLOCK * p->size;
    struct hlo_value ids = places(p, true, rows ? 1 : p->size, 1, p->size, 0);
    struct hlo_value pool = p->pool, size = hlo_like(h, ids, (double)p->size);
    v = hlo_reshape(h, v, HLO_SHAPE(p->tokens, p->heads, p->size));
    if (rows) {
        ids = hlo_select(h, hlo_compare_to(h, "LT", ids, 0), ids, hlo_div(h, ids, size));
        ids = hlo_reshape(h, ids, HLO_SHAPE(p->tokens, p->heads));
        pool = hlo_reshape(h, pool, HLO_SHAPE(pool.dim[0] / p->size, p->size));
    }
    p->pool = hlo_reshape(h, hlo_put(h, pool, ids, v, false), p->pool.ndim, p->pool.dim);
}

static void emit_kv_put(struct emit *e)
{
    struct put p = put_of(e);
    put_keys(&p, emit_in(e, KV_PUT_K));
    put_values(&p, emit_in(e, KV_PUT_V));
    emit_out(e, KV_PUT_NEW_POOL, p.pool);
}

/* Each element's index and value, which XLA's CPU compiler copies several times: 26 bytes were measured. Values without scales are
 * written by rows. */
static size_t put_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    (void)op, (void)threads;
    const struct tensor *pool = desc[KV_PUT_POOL];
    size_t index = tensor_count(pool) >> 31 ? 8 : 4, writes = pool->type == DT_U8 ? 2 : 1;
    return (size_t)tensor_count(desc[KV_PUT_K]) * writes * 7 * index;
}
const struct emitter pjrt_kv_put = {.kernel = {.workspace = put_workspace}, .emit = emit_kv_put};

/* --- 8 bits -------------------------------------------------------------------------------------------------- */

/* The 24 bits of a number's mantissa. */
static struct hlo_value mantissa(struct hlo *h, struct hlo_value bits)
{
    bits = hlo_binary(h, "and", bits, hlo_like(h, bits, 0x7fffff));
    return hlo_binary(h, "or", bits, hlo_like(h, bits, 0x800000));
}

static struct hlo_value exponent(struct hlo *h, struct hlo_value bits)
{
    return hlo_binary(h, "shift_right_logical", bits, hlo_like(h, bits, 23));
}

/* a / b and q as integers: with A, B and Q the mantissas, A 2^s is compared with Q B. Their difference is at most a few B, so it is
 * known from its low 32 bits. Below a power of two the next number is half as far. */
static struct hlo_value nearer(struct hlo *h, struct hlo_value a, struct hlo_value b, struct hlo_value q)
{
    struct hlo_value top = mantissa(h, q), by = mantissa(h, b);
    struct hlo_value shift = hlo_sub(h, hlo_sub(h, exponent(h, a), exponent(h, b)), exponent(h, q));
    shift = hlo_plus(h, shift, 127 + 23);
    struct hlo_value whole = hlo_binary(h, "shift_left", mantissa(h, a), shift);
    struct hlo_value left = hlo_bits(h, hlo_sub(h, whole, hlo_mul(h, top, by)), HLO_I32);
    struct hlo_value at_power =
        hlo_binary(h, "and", hlo_compare_to(h, "EQ", top, 0x800000), hlo_compare_to(h, "LT", left, 0));
    struct hlo_value twice = hlo_times(h, left, 2);
    twice = hlo_select(h, at_power, hlo_times(h, twice, 2), twice);
    by = hlo_bits(h, by, HLO_I32);
    struct hlo_value up = hlo_convert(h, hlo_compare(h, "GT", twice, by), HLO_U32);
    struct hlo_value down = hlo_compare(h, "LT", twice, hlo_unary(h, "negate", by));
    return hlo_sub(h, hlo_add(h, q, up), hlo_convert(h, down, HLO_U32));
}

/* v is at least `least` and finite. */
static struct hlo_value within(struct hlo *h, struct hlo_value v, double least)
{
    return hlo_binary(h, "and", hlo_compare_to(h, "GE", v, least), hlo_compare_to(h, "LT", v, INFINITY));
}

struct hlo_value part_nearest_quotient(struct hlo *h, struct hlo_value a, struct hlo_value b,
                                       struct hlo_value q)
{
    struct hlo_value whole = hlo_binary(h, "and", within(h, a, 0x1p-126), within(h, b, 0x1p-126));
    whole = hlo_binary(h, "and", whole, within(h, q, 0x1p-125));
    struct hlo_value over = hlo_bits(h, a, HLO_U32), by = hlo_bits(h, b, HLO_U32),
                     bits = hlo_bits(h, q, HLO_U32);
    for (int i = 0; i < 2; i++) bits = nearer(h, over, by, bits);
    return hlo_select(h, whole, hlo_bits(h, bits, HLO_F32), q);
}

/* most / 127 and 127 / most. Compilers multiply by a reciprocal or divide only nearly right (XLA's for CUDA does), and then a code that
 * lies between two would be another one than ours. */
static void scales_of(struct hlo *h, struct hlo_value most, struct hlo_value *scale,
                      struct hlo_value *inverse)
{
    int64_t rows = most.dim[0];
    struct hlo_value end = hlo_like(h, most, 127);
    struct hlo_value a = hlo_concat(h, 0, most, end), b = hlo_concat(h, 0, end, most);
    struct hlo_value q = part_nearest_quotient(h, a, b, hlo_div(h, a, b));
    *scale = hlo_slice(h, q, 0, 0, rows), *inverse = hlo_slice(h, q, 0, rows, rows);
}

/* tensor/kv8.h: the codes of heads [N,K,D], as bytes, and their scales [N,K]. */
static struct hlo_value codes_of(struct hlo *h, struct hlo_value x, struct hlo_value *scale)
{
    struct hlo_value size = hlo_unary(h, "abs", x);
    struct hlo_value finite = hlo_reduce(h, "and", hlo_compare_to(h, "LT", size, INFINITY), 1u << 2);
    struct hlo_value most = hlo_reduce(h, "maximum", size, 1u << 2);
    most = hlo_select(h, finite, most, hlo_like(h, most, NAN));
    struct hlo_value some = hlo_compare_to(h, "GT", most, 0), inverse;
    scales_of(h, most, scale, &inverse);
    inverse = hlo_select(h, some, inverse, hlo_like(h, most, 0));
    struct hlo_value y = hlo_unary(h, "round_nearest_even", hlo_mul(h, x, hlo_over(h, inverse, x, 0)));
    y = hlo_binary(h, "maximum", hlo_binary(h, "minimum", y, hlo_like(h, y, 127)), hlo_like(h, y, -127));
    y = hlo_select(h, hlo_over(h, some, y, 0), y, hlo_like(h, y, 0));
    struct hlo_value below = hlo_compare_to(h, "LT", y, 0);
    return hlo_convert(h, hlo_select(h, below, hlo_plus(h, y, 256), y), HLO_U8);
}

/* The bytes of the scales, the low one first: [N,K,4]. */
static struct hlo_value bytes_of(struct hlo *h, struct hlo_value scale)
{
    int64_t shape[] = {scale.dim[0], scale.dim[1], KV8_SCALE};
    struct hlo_value bits = hlo_broadcast(h, hlo_bits(h, scale, HLO_U32), (const int[]){0, 1}, 3, shape);
    struct hlo_value shift = hlo_times(h, hlo_iota(h, HLO_U32, 2, 3, shape), 8);
    bits = hlo_binary(h, "shift_right_logical", bits, shift);
    return hlo_convert(h, hlo_binary(h, "and", bits, hlo_like(h, bits, 255)), HLO_U8);
}

static void emit_kv_put8(struct emit *e)
{
    struct put p = put_of(e);
    for (int value = 0; value < 2; value++) {
        struct hlo_value x = emit_real(e, value ? KV_PUT_V : KV_PUT_K), scale;
        x = hlo_reshape(e->h, x, HLO_SHAPE(p.tokens, p.heads, p.size));
        struct hlo_value codes = codes_of(e->h, x, &scale);
        value ? put_values(&p, codes) : put_keys(&p, codes);
        struct hlo_value ids = places(&p, value, KV8_SCALE, 1, KV8_SCALE, KV_BLOCK * p.size);
        p.pool = hlo_put(e->h, p.pool, ids, bytes_of(e->h, scale), false);
    }
    emit_out(e, KV_PUT_NEW_POOL, p.pool);
}
const struct emitter pjrt_kv_put8 = {.kernel = {.workspace = put_workspace}, .emit = emit_kv_put8};
