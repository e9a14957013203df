/* quant8.c - the two maps, made from their formula. See quant8.h. */
#include "tensor/quant8.h"

#include <math.h>
#include <pthread.h>

enum { DECADES = 7 };

static struct quant8_map maps[2]; /* signed, unsigned; written once, by make_maps */
static pthread_once_t made = PTHREAD_ONCE_INIT;

/* The values above 0, ascending: the middles of the parts of each decade, then 1. Returns how many. */
static int list_values(float *out, int parts)
{
    static const double tops[DECADES] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
    int n = 0;
    for (int d = 0; d < DECADES; d++, parts *= 2)
        for (int i = 0; i < parts; i++) out[n++] = (float)(tops[d] * (0.1 + 0.9 * (i + 0.5) / parts));
    out[n++] = 1;
    return n;
}

static float float_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static void make_cells(struct quant8_map *map)
{
    int below = 0;
    for (uint32_t cell = 0; cell < QUANT8_CELLS; cell++) {
        float low = float_of_bits((cell + QUANT8_FIRST_CELL) << 16);
        while (map->middle[map->zero + below] < low) below++;
        map->below[cell] = (uint8_t)below;
    }
}

static uint32_t bits_of_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

/* In a cell with a midpoint, numbers above it carry from the lower 16 bits into k. */
static void make_rises(struct quant8_map *map)
{
    const uint32_t most = QUANT8_CODES - 1 - (uint32_t)map->zero;
    uint32_t at[QUANT8_CODES], k = 0;
    for (uint32_t i = 0; i < most; i++) at[i] = bits_of_float(map->middle[map->zero + (int)i]);
    if (map->zero == 0) at[0] = 0; /* what is above 0 stays above 0 */
    at[most] = UINT32_MAX;
    for (uint32_t cell = 0; cell < QUANT8_RISES; cell++) {
        while (at[k] < cell << 16) k++;
        uint32_t carry = at[k] >> 16 == cell ? 0xffff - (at[k] & 0xffff) : 0;
        map->rise[cell] = ((k - cell) << 16) + carry;
    }
}

static void make_map(struct quant8_map *map, bool with_sign)
{
    float above[QUANT8_CODES];
    int n = list_values(above, with_sign ? 1 : 2);
    map->zero = with_sign ? n - 1 : 0; /* 1 has no counterpart below 0 */
    map->value[map->zero] = 0;
    for (int i = 0; i < n; i++) map->value[map->zero + 1 + i] = above[i];
    for (int i = 0; i < map->zero; i++) map->value[map->zero - 1 - i] = -above[i];
    for (int i = 0; i + 1 < QUANT8_CODES; i++)
        map->middle[i] = (float)(((double)map->value[i] + (double)map->value[i + 1]) / 2);
    map->middle[QUANT8_CODES - 1] = INFINITY;
    make_cells(map);
    make_rises(map);
}

static void make_maps(void)
{
    make_map(&maps[0], true);
    make_map(&maps[1], false);
}

const struct quant8_map *quant8_signed(void)
{
    pthread_once(&made, make_maps);
    return &maps[0];
}

const struct quant8_map *quant8_unsigned(void)
{
    pthread_once(&made, make_maps);
    return &maps[1];
}
