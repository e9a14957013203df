/* vec.h - sixteen fp32 lanes on any machine: the arithmetic of the CPU kernels, written once.
 *
 * A .c file names an instruction set before it includes this header, and puts its code between VEC_BEGIN and VEC_END, as
 * rows_avx2.c and others do; cpu_level() says which of them may run.
 *
 *     #define VEC_AVX2            // or VEC_NEON, VEC_NEON_BF16, VEC_AVX512; none of them: plain C
 *     #include "device/cpu/vec.h"
 *     VEC_BEGIN
 *     VEC_FN void silu_at(enum dtype t, void *y, const void *x, int64_t i, int k)
 *     {
 *         vf v = v_load(t, x, i, k);                                 // x[i .. i+k-1] as fp32, zeroes above
 *         v_store(t, y, i, k, v_div(v, v_one_plus_exp_minus(v)));    // rounded once
 *     }
 *     static void silu(enum dtype t, void *y, const void *x, int64_t n)
 *     {
 *         VEC_TYPES(t, VEC_EACH(n, silu_at(T, y, x, i, k)))
 *     }
 *     VEC_END
 *
 * An instruction set's header provides types vf (16 fp32 lanes) and vd (16 fp64 sums), and
 *
 *     v_all(x)                 x in every lane
 *     v_load_f32, _bf16, _f16, v_store_...               no alignment beyond the element's
 *     v_load_master, v_store_master                      master_join and master_split (dtype.h), exact
 *     v_add, v_sub, v_mul, v_div, v_sqrt, v_min, v_max   min and max give NaN when the second operand is NaN
 *     v_fma(a,b,c) = ab + c    v_fnma(a,b,c) = c - ab    one rounding, except in plain C
 *     v_exponent(x)            the float whose bits are the lowest 9 of x's, moved up by 23
 *     v_sum, v_top             over the lanes, always folding halves onto each other
 *     vd_zero, vd_add_square(s, x) = s + x^2, vd_sum
 *
 * An element's result does not depend on its lane or on k, so loops may be cut anywhere; a sum over a row depends only on
 * the row. Machines with fused multiply-add agree to the bit.
 */
#pragma once

#include "device/cpu/vec_base.h"

#if defined(VEC_NEON) || defined(VEC_NEON_BF16)
#include "device/cpu/vec_neon.h"
#elif defined(VEC_AVX2)
#include "device/cpu/vec_avx2.h"
#elif defined(VEC_AVX512)
#include "device/cpu/vec_avx512.h"
#else
#include "device/cpu/vec_plain.h"
#endif

/* Runs `call` for i = 0, 16, ... below n; k is the number of elements from i on: a constant 16, except at the
 * end. */
#define VEC_EACH(n, call)                                                                                    \
    {                                                                                                        \
        int64_t i = 0;                                                                                       \
        for (; i + VEC_LANES <= (n); i += VEC_LANES) {                                                       \
            enum { k = VEC_LANES };                                                                          \
            call;                                                                                            \
        }                                                                                                    \
        if (i < (n)) {                                                                                       \
            const int k = (int)((n)-i);                                                                      \
            call;                                                                                            \
        }                                                                                                    \
    }

/* Prefetches what a loop over x loads a few steps later, or what a loop over the next row loads: if rows come
 * from a cache shared by all cores, hardware prefetching is late. */
VEC_FN void v_ahead(enum dtype t, const void *x, int64_t i)
{
    enum { BYTES = 1536 };
    __builtin_prefetch((const char *)x + i * (int64_t)dtype_size(t) + BYTES);
}

VEC_BEGIN

VEC_FN vf vec_load_whole(enum dtype t, const void *p)
{
    need_compute(t);
    if (t == DT_BF16) return v_load_bf16((const uint16_t *)p);
    if (t == DT_F16) return v_load_f16((const uint16_t *)p);
    return v_load_f32((const float *)p);
}

VEC_FN void vec_store_whole(enum dtype t, void *p, vf x)
{
    need_compute(t);
    if (t == DT_BF16)
        v_store_bf16((uint16_t *)p, x);
    else if (t == DT_F16)
        v_store_f16((uint16_t *)p, x);
    else
        v_store_f32((float *)p, x);
}

/* Elements i .. i+k-1 of p, zeroes in the lanes above. */
VEC_FN vf v_load(enum dtype t, const void *p, int64_t i, int k)
{
    const char *at = (const char *)p + i * (int64_t)dtype_size(t);
    if (k == VEC_LANES) return vec_load_whole(t, at);
    char part[VEC_LANES * 4] = {0};
    memcpy(part, at, (size_t)k * dtype_size(t));
    return vec_load_whole(t, part);
}

VEC_FN void v_store(enum dtype t, void *p, int64_t i, int k, vf x)
{
    char *at = (char *)p + i * (int64_t)dtype_size(t);
    if (k == VEC_LANES) {
        vec_store_whole(t, at, x);
        return;
    }
    char part[VEC_LANES * 4];
    vec_store_whole(t, part, x);
    memcpy(at, part, (size_t)k * dtype_size(t));
}

/* The first k lanes of x, `fill` in the others. */
VEC_FN vf v_head(vf x, int k, float fill)
{
    if (k == VEC_LANES) return x;
    float lanes[VEC_LANES];
    v_store_f32(lanes, x);
    for (int j = k; j < VEC_LANES; j++) lanes[j] = fill;
    return v_load_f32(lanes);
}

/* e^(sign x) = significand * power, for x where sign x is in [-87.6, 89]; sign is a constant 1 or -1.
 * Let sign x = n ln2 + r with |r| <= ln2 / 2.
 *  - Adding 1.5 * 2^23 + 126 rounds to whole numbers and leaves n + 126 in the lowest bits: moved up by
 *    23, these are the float 2^(n-1), or 0 for n = -126.
 *  - ln2 is split so that n times its upper part is exact.
 *  - The significand is 2 e^r, because 2^127 is a float and 2^128 is not: a polynomial that is minimax
 *    with fp32 coefficients (relative error 3e-9), in s = sign r, whose odd powers carry the sign. */
VEC_FN void vec_exp(vf x, float sign, vf *significand, vf *power)
{
    const float whole = 0x1.8p23f + 126;
    vf z = v_fma(x, v_all(sign * 0x1.715476p+0f), v_all(whole));
    vf n = v_sub(z, v_all(whole));
    vf s = sign > 0 ? v_fnma(n, v_all(0x1.62ep-1f), x) : v_fma(n, v_all(0x1.62ep-1f), x);
    s = sign > 0 ? v_fnma(n, v_all(0x1.0bfbe8p-15f), s) : v_fma(n, v_all(0x1.0bfbe8p-15f), s);
    vf square = v_mul(s, s);
    vf p = v_fma(s, v_all(0x1.6a4d34p-9f), v_all(sign * 0x1.12398ep-6f));
    p = v_fma(p, square, v_fma(s, v_all(0x1.5558bp-4f), v_all(sign * 0x1.555492p-2f)));
    p = v_fma(p, square, v_fma(s, v_all(0x1.fffffcp-1f), v_all(sign * 2)));
    *significand = v_fma(p, s, v_all(2));
    *power = v_exponent(z);
}

/* e^x for x <= 88, within 1.1 ulp; 0 below -87, NaN for NaN. */
VEC_FN vf v_exp_low(vf x)
{
    vf significand, power;
    vec_exp(v_max(v_all(-87.6f), x), 1, &significand, &power);
    return v_mul(significand, power);
}

/* 1 + e^-x; infinity below -88.72. */
VEC_FN vf v_one_plus_exp_minus(vf x)
{
    vf significand, power;
    vec_exp(v_min(v_all(87.6f), v_max(v_all(-89.0f), x)), -1, &significand, &power);
    return v_fma(significand, power, v_all(1));
}

/* s = 1 / (1 + e^-x) and c = 1 - s, each with full precision even where the other is near 1. Neither gets
 * below e^-87. */
VEC_FN void v_sigmoid(vf x, vf *s, vf *c)
{
    vf significand, power;
    vec_exp(v_min(v_all(87.0f), v_max(v_all(-87.0f), x)), -1, &significand, &power);
    vf e = v_mul(significand, power);
    *s = v_div(v_all(1), v_add(v_all(1), e));
    *c = v_mul(e, *s);
}

/* tanh x within 3 ulp, NaN for NaN: a polynomial below 0.65, 2 sigmoid(2 x) - 1 above. */
VEC_FN vf v_tanh(vf x)
{
    vf low = v_min(v_all(0.7f), v_max(v_all(-0.7f), x)), square = v_mul(low, low), s, c;
    vf p = v_fma(square, v_all(-0x1.51d878p-8f), v_all(0x1.49826ap-6f));
    p = v_fma(p, square, v_all(-0x1.b6d21ep-5f));
    p = v_fma(p, square, v_all(0x1.10fbap-3f));
    p = v_fma(p, square, v_all(-0x1.5554fap-2f));
    vf near = v_fma(v_mul(p, square), low, low);
    v_sigmoid(v_add(x, x), &s, &c);
    vf above = v_mul(v_sub(v_max(v_sub(v_all(0), x), x), v_all(0.65f)), v_all(0x1p22f));
    above = v_min(v_all(1), v_max(v_all(0), above)); /* share of the second form: 0 or 1 except for a few x */
    return v_fma(above, v_sub(v_sub(s, c), near), near);
}

VEC_END
