/* emit_update8.c - AdamW on moments of 8 bits (tensor/quant8.h): codes to numbers, adamw's step, numbers to codes. */
#include "device/pjrt/emit_update.h"
#include "tensor/quant8.h"

#include <math.h>

/* A vector of all elements in rows of blocks, [blocks, QUANT8_BLOCK], zeros behind the last element. */
static struct hlo_value in_blocks(struct hlo *h, struct hlo_value v)
{
    int64_t count = v.dim[0], blocks = quant8_blocks(count), rest = blocks * QUANT8_BLOCK - count;
    if (rest) v = hlo_concat(h, 0, v, hlo_fill(h, v.type, 0, HLO_SHAPE(rest)));
    return hlo_reshape(h, v, HLO_SHAPE(blocks, QUANT8_BLOCK));
}

/* A number of each block, for each element. */
static struct hlo_value of_block(struct hlo *h, struct hlo_value v, int64_t count)
{
    int64_t all = v.dim[0] * QUANT8_BLOCK;
    v = hlo_broadcast(h, v, (const int[]){0}, HLO_SHAPE(v.dim[0], QUANT8_BLOCK));
    return hlo_slice(h, hlo_reshape(h, v, HLO_SHAPE(all)), 0, 0, count);
}

/* map[code] * scale */
static struct hlo_value decoded(const struct update *u, const struct quant8_map *map, struct update_old codes,
                                struct update_old scales)
{
    struct hlo *h = u->e->h;
    double values[QUANT8_CODES];
    for (int i = 0; i < QUANT8_CODES; i++) values[i] = (double)map->value[i];
    struct hlo_value table = hlo_vector(h, HLO_F32, QUANT8_CODES, values);
    struct hlo_value x = hlo_take(h, table, hlo_convert(h, codes.v, HLO_I32));
    return hlo_mul(h, x, of_block(h, scales.v, u->count));
}

/* Midpoints above 0 that are below |x|: the distance of its code from that of 0. Halves the list eight times. */
static struct hlo_value steps_from_zero(struct hlo *h, const struct quant8_map *map, struct hlo_value size)
{
    double middles[QUANT8_CODES];
    for (int i = 0; i < QUANT8_CODES; i++)
        middles[i] = map->zero + i < QUANT8_CODES ? (double)map->middle[map->zero + i] : (double)INFINITY;
    struct hlo_value table = hlo_vector(h, HLO_F32, QUANT8_CODES, middles);
    struct hlo_value k = hlo_fill(h, HLO_I32, 0, size.ndim, size.dim);
    struct hlo_loop loop;
    hlo_loop_begin(h, &loop, 8, 1, &k); /* unrolled, it would be fused into one function of 2^8 look-ups */
    struct hlo_value step = hlo_like(h, loop.index, QUANT8_CODES / 2);
    step = hlo_over(h, hlo_binary(h, "shift_right_logical", step, loop.index), k, 0);
    struct hlo_value middle = hlo_take(h, table, hlo_plus(h, hlo_add(h, k, step), -1));
    struct hlo_value up = hlo_convert(h, hlo_compare(h, "LT", middle, size), HLO_I32);
    k = hlo_add(h, k, hlo_mul(h, up, step));
    hlo_loop_end(h, &loop, &k);
    return k;
}

/* Codes of the numbers x in [-1,1]. Of a second moment those above 0 are at least 1. */
static struct hlo_value codes_of(struct hlo *h, const struct quant8_map *map, struct hlo_value x)
{
    struct hlo_value k = steps_from_zero(h, map, hlo_unary(h, "abs", x));
    if (map->zero == 0) {
        struct hlo_value above = hlo_convert(h, hlo_compare_to(h, "GT", x, 0), HLO_I32);
        return hlo_convert(h, hlo_binary(h, "maximum", k, above), HLO_U8);
    }
    struct hlo_value zero = hlo_like(h, k, map->zero);
    struct hlo_value down = hlo_binary(h, "maximum", hlo_sub(h, zero, k), hlo_like(h, k, 0));
    struct hlo_value code = hlo_select(h, hlo_compare_to(h, "LT", x, 0), down, hlo_add(h, zero, k));
    return hlo_convert(h, code, HLO_U8);
}

/* A moment of the op: its map and where its codes and scales are. */
struct coded {
    const struct quant8_map *map;
    int new_codes, new_scales;
    struct update_old codes, scales;
};

static void emit_coded(const struct update *u, const struct coded *c, struct hlo_value x)
{
    struct hlo *h = u->e->h;
    struct hlo_value top = hlo_reduce(h, "maximum", in_blocks(h, hlo_unary(h, "abs", x)), 1u << 1);
    struct hlo_value tiny = hlo_compare_to(h, "LT", top, 0x1p-126), zero = hlo_like(h, top, 0);
    struct hlo_value factor = hlo_select(h, tiny, zero, hlo_div(h, hlo_like(h, top, 1), top));
    struct hlo_value codes = codes_of(h, c->map, hlo_mul(h, x, of_block(h, factor, u->count)));
    update_set(u, c->new_codes, c->codes, codes);
    update_set(u, c->new_scales, c->scales, hlo_select(h, tiny, zero, top));
}

static void emit_adamw8(struct emit *e)
{
    struct update u = update_begin(e);
    struct coded m = {quant8_signed(), ADAMW8_NEW_MQ, ADAMW8_NEW_MS, update_old(&u, ADAMW8_MQ),
                      update_old(&u, ADAMW8_MS)};
    struct coded v = {quant8_unsigned(), ADAMW8_NEW_VQ, ADAMW8_NEW_VS, update_old(&u, ADAMW8_VQ),
                      update_old(&u, ADAMW8_VS)};
    struct hlo_value p, new_m = decoded(&u, m.map, m.codes, m.scales),
                        new_v = decoded(&u, v.map, v.codes, v.scales);
    update_adamw(&u, &p, &new_m, &new_v);
    update_param(&u, p);
    emit_coded(&u, &m, new_m);
    emit_coded(&u, &v, new_v);
}

/* Both moments, and codes in 32 bits. */
static size_t adamw8_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    (void)op, (void)threads;
    return (size_t)tensor_count(desc[ADAMW8_P]) * 4 * sizeof(float);
}
const struct emitter pjrt_adamw8 = {.kernel = {.workspace = adamw8_workspace}, .emit = emit_adamw8};
