/* vec_neon.h - the vector layer (vec.h) for AArch64: sixteen lanes are four registers.
 *
 * With VEC_NEON_BF16 defined, rounding to bf16 is one instruction; the results are the same. It is written in assembly
 * because not every compiler declares the intrinsic unless the whole file is built for it. */
#pragma once

#include "device/cpu/vec_base.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#if !defined(VEC_NEON_BF16)
#define VEC_BEGIN
#define VEC_END
#elif defined(__clang__)
#define VEC_BEGIN VEC_PUSH("bf16")
#define VEC_END   VEC_POP
#else
#define VEC_BEGIN VEC_PUSH("arch=armv8.2-a+bf16")
#define VEC_END   VEC_POP
#endif

VEC_BEGIN

typedef struct {
    float32x4_t a, b, c, d;
} vf;

typedef struct {
    float64x2_t v[8];
} vd;

#define VEC_MAP1(f, x)    ((vf){f((x).a), f((x).b), f((x).c), f((x).d)})
#define VEC_MAP2(f, x, y) ((vf){f((x).a, (y).a), f((x).b, (y).b), f((x).c, (y).c), f((x).d, (y).d)})
#define VEC_MAP3(f, x, y, z)                                                                                 \
    ((vf){f((x).a, (y).a, (z).a), f((x).b, (y).b, (z).b), f((x).c, (y).c, (z).c), f((x).d, (y).d, (z).d)})

VEC_FN vf v_all(float x)
{
    float32x4_t q = vdupq_n_f32(x);
    return (vf){q, q, q, q};
}

VEC_FN vf v_load_f32(const float *p)
{
    return (vf){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}

VEC_FN void v_store_f32(float *p, vf x)
{
    vst1q_f32(p, x.a), vst1q_f32(p + 4, x.b), vst1q_f32(p + 8, x.c), vst1q_f32(p + 12, x.d);
}

VEC_FN float32x4_t vec_as_float(uint32x4_t bits) { return vreinterpretq_f32_u32(bits); }
VEC_FN uint32x4_t vec_as_bits(float32x4_t x) { return vreinterpretq_u32_f32(x); }

/* Interleaving with zeroes puts each half word into the upper half of its lane. */
VEC_FN vf v_load_bf16(const uint16_t *p)
{
    uint16x8_t lo = vld1q_u16(p), hi = vld1q_u16(p + 8), zero = vdupq_n_u16(0);
    return (vf){vreinterpretq_f32_u16(vzip1q_u16(zero, lo)), vreinterpretq_f32_u16(vzip2q_u16(zero, lo)),
                vreinterpretq_f32_u16(vzip1q_u16(zero, hi)), vreinterpretq_f32_u16(vzip2q_u16(zero, hi))};
}

#if defined(VEC_NEON_BF16)

VEC_FN uint16x8_t vec_round_bf16(float32x4_t x, float32x4_t y)
{
    uint16x8_t r;
    __asm__("bfcvtn %0.4h, %1.4s" : "=w"(r) : "w"(x));
    __asm__("bfcvtn2 %0.8h, %1.4s" : "+w"(r) : "w"(y));
    return r;
}

#else

/* Nearest even: add 0x7fff and the lowest bit that stays; NaN keeps its upper bits and is made quiet. */
VEC_FN uint32x4_t vec_round_up(float32x4_t x)
{
    uint32x4_t bits = vec_as_bits(x), stays = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), stays);
    return vbslq_u32(vceqq_f32(x, x), rounded, vorrq_u32(bits, vdupq_n_u32(0x400000)));
}

VEC_FN uint16x8_t vec_round_bf16(float32x4_t x, float32x4_t y)
{
    return vuzp2q_u16(vreinterpretq_u16_u32(vec_round_up(x)), vreinterpretq_u16_u32(vec_round_up(y)));
}

#endif

VEC_FN void v_store_bf16(uint16_t *p, vf x)
{
    vst1q_u16(p, vec_round_bf16(x.a, x.b));
    vst1q_u16(p + 8, vec_round_bf16(x.c, x.d));
}

VEC_FN vf v_load_f16(const uint16_t *p)
{
    float16x8_t lo = vreinterpretq_f16_u16(vld1q_u16(p)), hi = vreinterpretq_f16_u16(vld1q_u16(p + 8));
    return (vf){vcvt_f32_f16(vget_low_f16(lo)), vcvt_high_f32_f16(lo), vcvt_f32_f16(vget_low_f16(hi)),
                vcvt_high_f32_f16(hi)};
}

VEC_FN void v_store_f16(uint16_t *p, vf x)
{
    vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.a), x.b)));
    vst1q_u16(p + 8, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.c), x.d)));
}

VEC_FN float32x4_t vec_join(uint16x8_t halves)
{
    return vec_as_float(vsubq_u32(vreinterpretq_u32_u16(halves), vdupq_n_u32(0x8000)));
}

VEC_FN vf v_load_master(const uint16_t *weight, const uint16_t *low)
{
    uint16x8_t w0 = vld1q_u16(weight), w1 = vld1q_u16(weight + 8);
    uint16x8_t l0 = vld1q_u16(low), l1 = vld1q_u16(low + 8);
    return (vf){vec_join(vzip1q_u16(l0, w0)), vec_join(vzip2q_u16(l0, w0)), vec_join(vzip1q_u16(l1, w1)),
                vec_join(vzip2q_u16(l1, w1))};
}

VEC_FN uint16x8_t vec_split(float32x4_t x)
{
    return vreinterpretq_u16_u32(vaddq_u32(vec_as_bits(x), vdupq_n_u32(0x8000)));
}

VEC_FN void v_store_master(uint16_t *weight, uint16_t *low, vf x)
{
    uint16x8_t a = vec_split(x.a), b = vec_split(x.b), c = vec_split(x.c), d = vec_split(x.d);
    vst1q_u16(weight, vuzp2q_u16(a, b)), vst1q_u16(weight + 8, vuzp2q_u16(c, d));
    vst1q_u16(low, vuzp1q_u16(a, b)), vst1q_u16(low + 8, vuzp1q_u16(c, d));
}

VEC_FN float32x4_t vec_fma(float32x4_t a, float32x4_t b, float32x4_t c) { return vfmaq_f32(c, a, b); }
VEC_FN float32x4_t vec_fnma(float32x4_t a, float32x4_t b, float32x4_t c) { return vfmsq_f32(c, a, b); }

VEC_FN float32x4_t vec_exponent(float32x4_t x) { return vec_as_float(vshlq_n_u32(vec_as_bits(x), 23)); }

VEC_FN vf v_add(vf x, vf y) { return VEC_MAP2(vaddq_f32, x, y); }
VEC_FN vf v_sub(vf x, vf y) { return VEC_MAP2(vsubq_f32, x, y); }
VEC_FN vf v_mul(vf x, vf y) { return VEC_MAP2(vmulq_f32, x, y); }
VEC_FN vf v_div(vf x, vf y) { return VEC_MAP2(vdivq_f32, x, y); }
VEC_FN vf v_fma(vf x, vf y, vf z) { return VEC_MAP3(vec_fma, x, y, z); }
VEC_FN vf v_fnma(vf x, vf y, vf z) { return VEC_MAP3(vec_fnma, x, y, z); }
VEC_FN vf v_min(vf x, vf y) { return VEC_MAP2(vminq_f32, x, y); }
VEC_FN vf v_max(vf x, vf y) { return VEC_MAP2(vmaxq_f32, x, y); }
VEC_FN vf v_sqrt(vf x) { return VEC_MAP1(vsqrtq_f32, x); }
VEC_FN vf v_exponent(vf x) { return VEC_MAP1(vec_exponent, x); }

VEC_FN float v_sum(vf x)
{
    float32x4_t q = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
    float32x2_t h = vadd_f32(vget_low_f32(q), vget_high_f32(q));
    return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
}

VEC_FN float v_top(vf x) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.a, x.b), vmaxq_f32(x.c, x.d))); }

VEC_FN vd vd_zero(void)
{
    float64x2_t z = vdupq_n_f64(0);
    return (vd){{z, z, z, z, z, z, z, z}};
}

VEC_FN float64x2_t vec_square(float64x2_t sum, float64x2_t x) { return vfmaq_f64(sum, x, x); }

VEC_FN vd vd_add_square(vd s, vf x)
{
    s.v[0] = vec_square(s.v[0], vcvt_f64_f32(vget_low_f32(x.a)));
    s.v[1] = vec_square(s.v[1], vcvt_high_f64_f32(x.a));
    s.v[2] = vec_square(s.v[2], vcvt_f64_f32(vget_low_f32(x.b)));
    s.v[3] = vec_square(s.v[3], vcvt_high_f64_f32(x.b));
    s.v[4] = vec_square(s.v[4], vcvt_f64_f32(vget_low_f32(x.c)));
    s.v[5] = vec_square(s.v[5], vcvt_high_f64_f32(x.c));
    s.v[6] = vec_square(s.v[6], vcvt_f64_f32(vget_low_f32(x.d)));
    s.v[7] = vec_square(s.v[7], vcvt_high_f64_f32(x.d));
    return s;
}

VEC_FN double vd_sum(vd s)
{
    float64x2_t lo = vaddq_f64(vaddq_f64(s.v[0], s.v[4]), vaddq_f64(s.v[2], s.v[6]));
    float64x2_t hi = vaddq_f64(vaddq_f64(s.v[1], s.v[5]), vaddq_f64(s.v[3], s.v[7]));
    float64x2_t q = vaddq_f64(lo, hi);
    return vgetq_lane_f64(q, 0) + vgetq_lane_f64(q, 1);
}

#undef VEC_MAP1
#undef VEC_MAP2
#undef VEC_MAP3

VEC_END

#endif
