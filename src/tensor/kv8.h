/* kv8.h - keys and values in 8 bits: a signed byte for each element and a scale for each position of a head.
 *
 *     x = code * scale,   scale = max|x| / 127,   code = x * (127 / max|x|) rounded to the nearest, ties to even
 *
 * A position of zeros has scale 0. What is no number, or infinite, makes its whole position no number: a scale that is none, so that
 * it is seen and not hidden. tape/op.h (kv_put8, attn_paged8) says how they lie in a block.
 */
#pragma once

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
