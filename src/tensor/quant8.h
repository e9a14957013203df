/* quant8.h - eight bits for a number of an optimizer's moment: blocks with one scale, codes spaced by decades.
 *
 * A block of QUANT8_BLOCK elements shares its largest magnitude, the scale; an element is value[code] * scale. The
 * codes are "dynamic tree" maps (Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2021), which spend
 * half of them on the decade below 1 and half as many on each decade further down, seven in all:
 *
 *     decade d = 0..6 is (10^(d-7), 10^(d-6)]; it is cut into n equal parts and the middle of each is a value
 *     signed map (first moment):     n = 2^d, both signs, and 0 and 1        127 + 1 + 127 + 1 = 256
 *     unsigned map (second moment):  n = 2^(d+1), and 0 and 1                        254 + 2 = 256
 *
 * Values ascend with the code: signed code 127 is 0 and 255 is 1; unsigned code 0 is 0 and 255 is 1. Each value is the
 * formula in fp64, rounded to fp32.
 *
 *     const struct quant8_map *map = quant8_signed();
 *     float x = map->value[code] * scale;
 *     uint8_t code = quant8_code(map, x * (1 / scale));      // the nearest; the one nearer to 0 on a tie
 *
 * The tables are made once, on first use, and are the same on every machine. Other devices copy value and middle.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum {
    QUANT8_BLOCK = 256,
    QUANT8_CODES = 256,
    /* Cells of the look-up table: the upper 16 bits of a float from 2^-25 to 1. No cell has two midpoints in it. */
    QUANT8_FIRST_CELL = 102 << 7,
    QUANT8_LAST_CELL = 127 << 7,
    QUANT8_CELLS = QUANT8_LAST_CELL - QUANT8_FIRST_CELL + 1,
    QUANT8_RISES = 1 << 14, /* all cells of floats below 2 */
};

struct quant8_map {
    float value[QUANT8_CODES];  /* ascending */
    float middle[QUANT8_CODES]; /* between value[i] and value[i + 1]; the last is infinity */
    /* For a cell of magnitudes: number of midpoints above 0 that lie below the whole cell. */
    uint8_t below[QUANT8_CELLS];
    int zero; /* code of 0 */
    /* Like below, but also carries the cell's midpoint, for code without time to compare; see quant8_rise. */
    uint32_t rise[QUANT8_RISES];
};

const struct quant8_map *quant8_signed(void);
const struct quant8_map *quant8_unsigned(void);

static inline int64_t quant8_blocks(int64_t elements) { return (elements + QUANT8_BLOCK - 1) / QUANT8_BLOCK; }

/* The cell of |x|; everything below the first and above the last cell counts as in them. */
static inline uint32_t quant8_cell(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits = (bits & 0x7fffffffu) >> 16;
    if (bits < QUANT8_FIRST_CELL) bits = QUANT8_FIRST_CELL;
    if (bits > QUANT8_LAST_CELL) bits = QUANT8_LAST_CELL;
    return bits - QUANT8_FIRST_CELL;
}

/* The code whose value is nearest to x in [-1,1] (signed) or [0,1] (unsigned), nearer to 0 on a tie. */
static inline uint8_t quant8_code(const struct quant8_map *map, float x)
{
    float size = x < 0 ? -x : x;
    int k = map->below[quant8_cell(x)];
    k += size > map->middle[map->zero + k];
    if (x < 0) return (uint8_t)(k < map->zero ? map->zero - k : 0);
    return (uint8_t)(map->zero + k);
}

/* Returns the number to add to the bits of x, |x| < 2, so that they become sign << 31 | k << 16 | anything, where k
 * is the distance in codes between x and 0 (signed: 128 may be too low for the code, there is no -1). In the unsigned
 * map every x above 0 is at least one code away: the rule for second moments (tape/op.h). For an x of 2 or more the
 * result belongs to some other number. */
static inline uint32_t quant8_rise(const struct quant8_map *map, uint32_t bits)
{
    return map->rise[bits >> 16 & (QUANT8_RISES - 1)];
}
