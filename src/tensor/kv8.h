/* kv8.h - keys and values in 8 bits: a signed byte or an e4m3 number for each element, and a scale for each position of a head.
 *
 *     x = code * scale,   scale = max|x| / 127,   code = x * (127 / max|x|) rounded to the nearest, ties to even
 *
 * A position of zeros has scale 0. An e4m3 number has the scale of tensor/f8_lines.h, a power of two, and is rounded in the same way. What is no number, or infinite, makes its whole position no number: a scale that is none, so that
 * it is seen and not hidden. tape/op.h (kv_put8, attn_paged8) says how they lie in a block.
 */
#pragma once

#include "tensor/f8_lines.h"
#include <math.h>
#include <stdint.h>

#define KV8_SCALE 4    /* bytes of a scale: fp32 */
#define KV8_MOST  1024 /* elements of a head, at most */

/* Bytes of `positions` of a head of d elements. */
static inline int64_t kv8_bytes(int64_t positions, int64_t d) { return positions * (d + KV8_SCALE); }

/* The largest |x|; NaN when one of them is no number or infinite. */
static inline float kv8_most(const float *x, int64_t d)
{
    float most = 0;
    for (int64_t j = 0; j < d; j++) {
        float a = fabsf(x[j]);
        if (!(a < INFINITY)) return NAN;
        most = a > most ? a : most;
    }
    return most;
}

static inline float kv8_scale(float most) { return most / 127; }
static inline float kv8_inverse(float most) { return most > 0 ? 127 / most : 0; }
static inline int8_t kv8_code(float x, float inverse)
{
    float y = rintf(x * inverse);
    return inverse > 0 ? (int8_t)(y > 127 ? 127 : y < -127 ? -127 : y) : 0;
}

/* e4m3: the scale, and what x is multiplied with before it is rounded; 0 where the position is no number. */
static inline float kv8_e4m3_scale(float most)
{
    return most < INFINITY ? ldexpf(1, -f8_exponent(most)) : NAN;
}
static inline float kv8_e4m3_inverse(float most)
{
    return most < INFINITY ? ldexpf(1, f8_exponent(most)) : 0;
}
static inline uint8_t kv8_e4m3_code(float x, float inverse)
{
    return inverse > 0 ? f32_to_e4m3(x * inverse) : 0;
}
