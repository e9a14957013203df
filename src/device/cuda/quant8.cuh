/* quant8.cuh - the maps of tensor/quant8.h for the GPU, made by the compiler from the same formula.
 *
 * Only magnitudes are looked up when a number gets its code, so of the midpoints those above 0 are enough. A block
 * of threads copies the tables into shared memory first: neighbours look up anything. */
#pragma once

#include "device/cuda/vec.cuh"
extern "C" {
#include "tensor/quant8.h"
}

struct codes8 {
    float value[QUANT8_CODES]; /* ascending */
    /* [k]: between the k-th value from 0 upwards and the next; infinity at the end. */
    float middle[QUANT8_CODES];
    unsigned char below[QUANT8_CELLS + 3]; /* of a magnitude's cell: how many midpoints lie below all of it */
    int zero;
};

/* Value of the first number in a cell. */
static constexpr float cell_begin(int cell)
{
    int bits = cell + QUANT8_FIRST_CELL;
    float x = 1.0f + (float)(bits & 127) / 128.0f;
    for (int e = bits >> 7; e < 127; e++) x *= 0.5f;
    return x;
}

static constexpr codes8 make_codes8(bool with_sign)
{
    constexpr double tops[7] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
    codes8 c = {};
    int parts = with_sign ? 1 : 2, n = 0, below = 0;
    c.zero = with_sign ? 127 : 0;
    for (int d = 0; d < 7; d++, parts *= 2)
        for (int i = 0; i < parts; i++)
            c.value[c.zero + ++n] = (float)(tops[d] * (0.1 + 0.9 * (i + 0.5) / parts));
    c.value[c.zero + ++n] = 1;
    for (int i = 1; i <= c.zero; i++) c.value[c.zero - i] = -c.value[c.zero + i];
    for (int k = 0; k < n; k++)
        c.middle[k] = (float)(((double)c.value[c.zero + k] + (double)c.value[c.zero + k + 1]) / 2);
    for (int k = n; k < QUANT8_CODES; k++) c.middle[k] = INFINITY;
    for (int cell = 0; cell < QUANT8_CELLS; cell++) {
        while (c.middle[below] < cell_begin(cell)) below++;
        c.below[cell] = (unsigned char)below;
    }
    return c;
}

static constexpr codes8 codes8_signed = make_codes8(true), codes8_unsigned = make_codes8(false);

/* quant8_code, and for second moments the rule that what is above 0 stays above 0. */
ON_GPU unsigned code8(const codes8 &map, float x, bool with_sign)
{
    unsigned bits = __float_as_uint(x), size = bits & 0x7fffffffu, cell = size >> 16;
    cell = cell < QUANT8_FIRST_CELL ? QUANT8_FIRST_CELL : (cell > QUANT8_LAST_CELL ? QUANT8_LAST_CELL : cell);
    unsigned k = map.below[cell - QUANT8_FIRST_CELL];
    k += size > __float_as_uint(map.middle[k]);
    if (!with_sign) return k + (k == 0 && size > 0);
    if (bits >> 31) return k < 127 ? 127 - k : 0;
    return 127 + k;
}
