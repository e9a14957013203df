/* f8_lines.h - a matrix of e4m3 numbers with one scale for each line (tape/op.h, linear_f8).
 *
 *     int64_t bytes = f8_bytes(lines, k);                     // [lines][k] codes, then [lines] scales in fp32
 *     scales[i] = f8_write_line(values, k, codes + i * k);    // an element is code * scale
 *
 * Lines are whole and one after the other, because that is what libraries for tensor cores multiply. A scale that is made here is a
 * power of two: it rounds nothing. Files may bring others.
 */
#pragma once

#include "tensor/dtype.h"
#include <stdbool.h>

enum {
    F8_UNIT = 16,          /* lines and columns are multiples of it: tensor cores want that */
    F8_COLUMNS_MAX = 65536 /* what a GPU's kernel holds of a row */
};

static inline int64_t f8_bytes(int64_t lines, int64_t k) { return lines * (k + (int64_t)sizeof(float)); }
static inline int64_t f8_columns(int64_t bytes, int64_t lines)
{
    return bytes / lines - (int64_t)sizeof(float);
}

/* The largest e with 2^e largest <= 448, at most 100; 0 for zero. */
int f8_exponent(float largest);

/* k numbers as codes under the scale that is returned: to nearest, ties to even. NaN and infinity become NaN, and do not count for
 * the scale. */
float f8_write_line(const float *x, int64_t k, uint8_t *codes);
