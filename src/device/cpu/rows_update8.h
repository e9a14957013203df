/* rows_update8.h - the row function of AdamW on moments of 8 bits. See rows.h and tensor/quant8.h.
 *
 * A block's moments are decoded into two small arrays, stepped there, and encoded again once their largest
 * magnitudes are known; the arrays never leave the first cache. Decoding and encoding look tables up one element at
 * a time: no instruction set has a cheap gather from a thousand entries, and two loads and a comparison are few. */
#ifndef PLIM_DEVICE_CPU_ROWS_UPDATE8_H
#define PLIM_DEVICE_CPU_ROWS_UPDATE8_H

#include "device/cpu/rows_update.h"
#include "tensor/quant8.h"
#include <float.h>
#include <math.h>

VEC_BEGIN

struct block8 {
    float m[QUANT8_BLOCK], v[QUANT8_BLOCK];
    float m_scale, v_scale;
    vf top_m, top_v;
};

VEC_FN void decode8(const struct quant8_map *map, float *x, const uint8_t *codes, int n)
{
    for (int i = 0; i < n; i++) x[i] = map->value[codes[i]];
    for (int i = n; i % VEC_LANES; i++) x[i] = 0;
}

VEC_FN float size8(float x, float inverse) { return fabsf(x * inverse); }

/* The upper 16 bits of a number without sign. */
VEC_FN uint16_t upper8(float size)
{
    uint32_t bits;
    memcpy(&bits, &size, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* Four at a time: stores of bytes would otherwise keep the compiler from loading ahead. Entries of `cell` beyond the
 * block's end are in range too. */
VEC_FN void look_up8(const uint8_t *restrict table, const float *restrict middles, uint8_t *restrict below,
                     float *restrict middle, const uint16_t *restrict cell)
{
    for (int i = 0; i < QUANT8_BLOCK; i += 4) {
        uint8_t a = table[cell[i]], b = table[cell[i + 1]], c = table[cell[i + 2]], d = table[cell[i + 3]];
        below[i] = a, below[i + 1] = b, below[i + 2] = c, below[i + 3] = d;
        middle[i] = middles[a], middle[i + 1] = middles[b];
        middle[i + 2] = middles[c], middle[i + 3] = middles[d];
    }
}

/* Codes of one block; returns the scale to be stored. Three loops, of which the compiler makes vectors but for the
 * look-ups; in bytes where bytes will do, and without branches, because signs are random. */
VEC_FN float encode8(const struct quant8_map *map, uint8_t *restrict codes, const float *restrict x,
                     float top, int n)
{
    float middle[QUANT8_BLOCK];
    uint8_t below[QUANT8_BLOCK];
    uint16_t cell[QUANT8_BLOCK];
    bool tiny = !(top >= FLT_MIN);
    float inverse = tiny ? 0 : 1 / top;
    uint8_t zero = (uint8_t)map->zero;
    for (int i = 0; i < n; i++) {
        uint16_t c = upper8(size8(x[i], inverse));
        c = c < QUANT8_FIRST_CELL ? QUANT8_FIRST_CELL : c;
        c = c > QUANT8_LAST_CELL ? QUANT8_LAST_CELL : c;
        cell[i] = (uint16_t)(c - QUANT8_FIRST_CELL);
    }
    for (int i = n; i < QUANT8_BLOCK; i++) cell[i] = 0;
    look_up8(map->below, map->middle + zero, below, middle, cell);
    if (zero) {
        for (int i = 0; i < n; i++) {
            uint8_t above = size8(x[i], inverse) > middle[i], minus = x[i] < 0;
            uint8_t k = (uint8_t)(below[i] + above), flip = (uint8_t)-minus;
            k = (uint8_t)(k - ((k >> 7) & minus)); /* -1 has no code: the lowest is the nearest */
            codes[i] = (uint8_t)(zero + (uint8_t)((k ^ flip) - flip));
        }
    } else {
        for (int i = 0; i < n; i++) {
            float size = size8(x[i], inverse);
            uint8_t above = size > middle[i], some = size > 0;
            uint8_t k = (uint8_t)(below[i] + above);
            codes[i] = k > some ? k : some; /* above 0 stays above 0 */
        }
    }
    return tiny ? 0 : top;
}

VEC_FN void adamw8_at(enum dtype t, const struct row_update *u, struct block8 *b, int64_t first, int64_t i,
                      int k)
{
    vf m = v_mul(v_load_f32(b->m + i), v_all(b->m_scale)), none = v_all(0);
    vf v = v_mul(v_load_f32(b->v + i), v_all(b->v_scale));
    vf p = adamw_step(u, load_param(t, u, first + i, k), load_grad(t, u, first + i, k), &m, &v);
    v_store_f32(b->m + i, m), v_store_f32(b->v + i, v);
    b->top_m = v_max(b->top_m, v_max(m, v_sub(none, m)));
    b->top_v = v_max(b->top_v, v);
    store_param(t, u, first + i, k, p, words_if_needed(u, first + i));
}

VEC_FN void adamw8_block(enum dtype t, const struct row_update *u, const struct quant8_map *const *maps,
                         int64_t block, int n)
{
    struct block8 b;
    int64_t first = block * QUANT8_BLOCK;
    b.top_m = b.top_v = v_all(0);
    b.m_scale = u->m_scale_in[block], b.v_scale = u->v_scale_in[block];
    decode8(maps[0], b.m, u->mq_in + first, n);
    decode8(maps[1], b.v, u->vq_in + first, n);
    VEC_EACH(n, adamw8_at(t, u, &b, first, i, k))
    u->m_scale[block] = encode8(maps[0], u->mq + first, b.m, v_top(b.top_m), n);
    u->v_scale[block] = encode8(maps[1], u->vq + first, b.v, v_top(b.top_v), n);
}

VEC_FN void adamw8_span(enum dtype t, const struct row_update *u, int64_t n)
{
    const struct quant8_map *const maps[2] = {quant8_signed(), quant8_unsigned()};
    for (int64_t block = 0; block * QUANT8_BLOCK < n; block++) {
        int64_t left = n - block * QUANT8_BLOCK;
        adamw8_block(t, u, maps, block, left < QUANT8_BLOCK ? (int)left : QUANT8_BLOCK);
    }
}

ROW_FN void row_adamw8(enum dtype t, const struct row_update *update, int64_t n)
{
    const struct row_update u = *update;
    VEC_TYPES(t, adamw8_span(T, &u, n))
}

VEC_END

#endif
