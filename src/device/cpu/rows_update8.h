/* rows_update8.h - the row function of AdamW with 8-bit moments. See rows.h and tensor/quant8.h.
 *
 * An element needs four look-ups, two to decode its moments and two to encode them. Each is a separate load: no instruction
 * set has a cheap gather from so many entries. So everything else is kept out of their way:
 *
 *  - A number's code takes one look-up and no comparison (quant8_rise).
 *  - While a block is stepped, the look-ups that encode the previous block are interleaved: roots and divisions occupy the
 *    vector units and leave the others idle.
 *  - Indices and results pass through small arrays that stay in the first-level cache and are read long after they were
 *    written: no processor can load, as one vector, words that were just stored one by one.
 *
 * A block with an infinity or NaN is encoded element by element, as defined. The code assumes little-endian byte order, as on
 * all supported machines. */
#pragma once

#include "device/cpu/rows_update.h"
#include "tensor/quant8.h"
#include <float.h>
#include <math.h>

VEC_BEGIN

/* A block's moments after the step. */
struct moments8 {
    _Alignas(64) float m[QUANT8_BLOCK], v[QUANT8_BLOCK];
};

/* One moment of a block, on its way to codes. */
struct coding8 {
    _Alignas(64) uint32_t bits[QUANT8_BLOCK]; /* of moment / scale */
    uint32_t rise[QUANT8_BLOCK];              /* results of rise8 for these */
    bool done;                                /* the codes are stored already */
};

struct block8 {
    struct coding8 m, v;
};

/* State of the block being updated: scales, and the largest magnitudes so far. */
struct scales8 {
    vf m, v, top_m, top_v;
};

struct maps8 {
    const struct quant8_map *m, *v;
};

typedef float vec_q4 __attribute__((vector_size(16)));
typedef uint16_t vec_h8 __attribute__((vector_size(16)));
typedef uint8_t vec_b16 __attribute__((vector_size(16)));
typedef int8_t vec_c16 __attribute__((vector_size(16)));

#define AT8(j)   table[word[(j) / 8] >> (j) % 8 * 8 & 255]
#define FOUR8(j) AT8(j), AT8((j) + 1), AT8((j) + 2), AT8((j) + 3)

/* Decodes sixteen codes. Eight codes are one load. */
VEC_FN vf decode8(const float *table, const uint8_t *codes)
{
    uint64_t word[2];
    memcpy(word, codes, sizeof word);
#if defined(VEC_AVX512)
    return (vf){{FOUR8(0), FOUR8(4), FOUR8(8), FOUR8(12)}};
#elif defined(VEC_AVX2)
    return (vf){{FOUR8(0), FOUR8(4)}, {FOUR8(8), FOUR8(12)}};
#else
    return (vf){{FOUR8(0)}, {FOUR8(4)}, {FOUR8(8)}, {FOUR8(12)}};
#endif
}

#undef AT8
#undef FOUR8

/* Decodes k codes; 0 in the other lanes. */
VEC_FN vf decode_head8(const struct quant8_map *map, const uint8_t *codes, int k)
{
    uint8_t part[VEC_LANES];
    if (k == VEC_LANES) return decode8(map->value, codes);
    memset(part, map->zero, sizeof part);
    memcpy(part, codes, (size_t)k);
    return decode8(map->value, part);
}

/* Look-ups for sixteen elements from i on. Two indices are one load; all loads of four elements come before
 * their stores, because the compiler may not move them past stores. */
VEC_FN void rise8(const struct quant8_map *map, struct coding8 *c, int64_t i)
{
    for (int64_t end = i + VEC_LANES; i < end; i += 4) {
        uint64_t pair[2];
        memcpy(pair, c->bits + i, sizeof pair);
        uint32_t r0 = quant8_rise(map, (uint32_t)pair[0]), r1 = quant8_rise(map, (uint32_t)(pair[0] >> 32));
        uint32_t r2 = quant8_rise(map, (uint32_t)pair[1]), r3 = quant8_rise(map, (uint32_t)(pair[1] >> 32));
        c->rise[i] = r0, c->rise[i + 1] = r1, c->rise[i + 2] = r2, c->rise[i + 3] = r3;
    }
}

/* Steps k elements from i on of the block that begins at `first`. Look-ups for the previous block are
 * interleaved where the step waits. */
VEC_FN void adamw8_at(enum dtype t, const struct row_update *u, const struct maps8 *maps, struct moments8 *to,
                      struct scales8 *s, struct block8 *before, int64_t first, int64_t i, int k)
{
    vf m = v_mul(decode_head8(maps->m, u->mq_in + first + i, k), s->m), none = v_all(0);
    vf v = v_mul(decode_head8(maps->v, u->vq_in + first + i, k), s->v);
    rise8(maps->m, &before->m, i);
    vf p = adamw_step(u, load_param(t, u, first + i, k), load_grad(t, u, first + i, k), &m, &v);
    rise8(maps->v, &before->v, i);
    v_store_f32(to->m + i, m), v_store_f32(to->v + i, v);
    s->top_m = v_max(s->top_m, v_max(m, v_sub(none, m)));
    s->top_v = v_max(s->top_v, v);
    store_param(t, u, first + i, k, p, words_if_needed(u, first + i));
}

/* Encodes by the definition, for any x. */
static __attribute__((noinline, cold, unused)) void encode_any8(const struct quant8_map *map, uint8_t *codes,
                                                                const float *x, float inverse, int n)
{
    for (int i = 0; i < n; i++) {
        float size = fabsf(x[i] * inverse);
        int k = map->below[quant8_cell(size)];
        k += size > map->middle[map->zero + k];
        if (map->zero == 0)
            codes[i] = (uint8_t)(k == 0 && size > 0 ? 1 : k);
        else
            codes[i] = (uint8_t)(x[i] < 0 ? map->zero - (k < map->zero ? k : map->zero) : map->zero + k);
    }
}

/* Divides n elements of a block by their scale, which is returned, and leaves the bits for rise8. If a
 * quotient is not below 2, the block's codes are stored at once. x has zeros above n. */
VEC_FN float settle8(const struct quant8_map *map, struct coding8 *to, uint8_t *codes, const float *x,
                     float top, int n)
{
    bool tiny = !(top >= FLT_MIN);
    float inverse = tiny ? 0 : 1 / top;
    vec_w4 any = {0};
    for (int i = 0; i < QUANT8_BLOCK; i += VEC_LANES) {
        vec_q4 q[4];
        for (int j = 0; j < 4; j++) {
            memcpy(&q[j], x + i + 4 * j, sizeof q[j]);
            q[j] *= inverse;
            any |= (vec_w4)q[j];
            memcpy(to->bits + i + 4 * j, &q[j], sizeof q[j]);
        }
    }
    to->done = ((any[0] | any[1] | any[2] | any[3]) & 0x40000000) != 0;
    if (to->done) encode_any8(map, codes, x, inverse, n);
    return tiny ? 0 : top;
}

/* Every second element of two consecutive vectors, starting with the first or the second. */
#define ODD8(x, y)   __builtin_shufflevector(x, y, 1, 3, 5, 7, 9, 11, 13, 15)
#define EVEN16(x, y) __builtin_shufflevector(x, y, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
#define ODD16(x, y)  __builtin_shufflevector(x, y, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)

/* Eight half words sign << 15 | k, see quant8_rise. */
VEC_FN vec_h8 risen8(const struct coding8 *c, int i)
{
    vec_w4 x, y, rise_x, rise_y;
    memcpy(&x, c->bits + i, sizeof x), memcpy(&y, c->bits + i + 4, sizeof y);
    memcpy(&rise_x, c->rise + i, sizeof x), memcpy(&rise_y, c->rise + i + 4, sizeof y);
    vec_h8 a = (vec_h8)(x + rise_x), b = (vec_h8)(y + rise_y);
    return ODD8(a, b);
}

/* Branch-free: signs are random. */
VEC_FN vec_b16 codes8(const struct coding8 *c, int i, bool with_sign)
{
    vec_b16 a = (vec_b16)risen8(c, i), b = (vec_b16)risen8(c, i + 8), k = EVEN16(a, b);
    if (!with_sign) return k;
    vec_b16 flip = (vec_b16)((vec_c16)ODD16(a, b) < 0);
    k -= (k >> 7) & flip; /* -1 has no code: the lowest is the nearest */
    return 127 + ((k ^ flip) - flip);
}

#undef ODD8
#undef EVEN16
#undef ODD16

/* Stores the codes of n elements whose look-ups have been made. */
VEC_FN void finish8(const struct coding8 *c, uint8_t *codes, int n, bool with_sign)
{
    int i = 0;
    if (c->done) return;
    for (; i + VEC_LANES <= n; i += VEC_LANES) {
        vec_b16 k = codes8(c, i, with_sign);
        memcpy(codes + i, &k, sizeof k);
    }
    if (i == n) return;
    vec_b16 k = codes8(c, i, with_sign);
    memcpy(codes + i, &k, (size_t)(n - i));
}

/* Steps the first n elements of a block, fewer than all, and makes all look-ups of the previous block. */
VEC_FN void adamw8_short(enum dtype t, const struct row_update *u, const struct maps8 *maps,
                         struct moments8 *to, struct scales8 *s, struct block8 *before, int64_t first, int n)
{
    memset(to, 0, sizeof *to);
    for (int i = 0; i < QUANT8_BLOCK; i += VEC_LANES) {
        int k = n - i < VEC_LANES ? n - i : VEC_LANES;
        if (k > 0)
            adamw8_at(t, u, maps, to, s, before, first, i, k);
        else
            rise8(maps->m, &before->m, i), rise8(maps->v, &before->v, i);
    }
}

/* Steps n elements of a block and makes the look-ups of the previous block. */
VEC_FN void adamw8_block(enum dtype t, const struct row_update *u, const struct maps8 *maps, int64_t block,
                         int n, struct block8 *to, struct block8 *before)
{
    struct moments8 x;
    int64_t first = block * QUANT8_BLOCK;
    struct scales8 s = {v_all(u->m_scale_in[block]), v_all(u->v_scale_in[block]), v_all(0), v_all(0)};
    if (n < QUANT8_BLOCK) {
        adamw8_short(t, u, maps, &x, &s, before, first, n);
    } else {
        for (int i = 0; i < QUANT8_BLOCK; i += VEC_LANES)
            adamw8_at(t, u, maps, &x, &s, before, first, i, VEC_LANES);
    }
    u->m_scale[block] = settle8(maps->m, &to->m, u->mq + first, x.m, v_top(s.top_m), n);
    u->v_scale[block] = settle8(maps->v, &to->v, u->vq + first, x.v, v_top(s.top_v), n);
}

VEC_FN void adamw8_finish(const struct row_update *u, const struct block8 *b, int64_t block, int n)
{
    finish8(&b->m, u->mq + block * QUANT8_BLOCK, n, true);
    finish8(&b->v, u->vq + block * QUANT8_BLOCK, n, false);
}

/* Block b is in two[b % 2]. Before the first there is an empty one, whose codes are discarded. */
VEC_FN void adamw8_span(enum dtype t, const struct row_update *u, int64_t n)
{
    const struct maps8 maps = {quant8_signed(), quant8_unsigned()};
    struct block8 two[2];
    int64_t block = 0;
    memset(two, 0, sizeof two);
    for (; n > 0; block++, n -= QUANT8_BLOCK) {
        struct block8 *before = &two[(block + 1) % 2];
        adamw8_block(t, u, &maps, block, n < QUANT8_BLOCK ? (int)n : QUANT8_BLOCK, &two[block % 2], before);
        if (block > 0) adamw8_finish(u, before, block - 1, QUANT8_BLOCK);
    }
    if (block-- == 0) return;
    struct block8 *last = &two[block % 2];
    for (int64_t i = 0; i < QUANT8_BLOCK; i += VEC_LANES)
        rise8(maps.m, &last->m, i), rise8(maps.v, &last->v, i);
    adamw8_finish(u, last, block, (int)(n + QUANT8_BLOCK));
}

ROW_FN void row_adamw8(enum dtype t, const struct row_update *update, int64_t n)
{
    const struct row_update u = *update;
    VEC_TYPES(t, adamw8_span(T, &u, n))
}

VEC_END
