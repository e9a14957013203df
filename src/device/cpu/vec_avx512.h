/* vec_avx512.h - the vector layer (vec.h) for AVX-512 F, BW, DQ and VL: sixteen lanes are one register.
 *
 * Rounding to bf16 is done in integers even where vcvtneps2bf16 exists: that instruction flushes denormals.
 */
#pragma once

#include "device/cpu/vec_base.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define VEC_BEGIN VEC_PUSH("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#define VEC_END   VEC_POP

VEC_BEGIN

typedef struct {
    __m512 v;
} vf;

typedef struct {
    __m512d a, b;
} vd;

VEC_FN vf v_all(float x) { return (vf){_mm512_set1_ps(x)}; }
VEC_FN vf v_load_f32(const float *p) { return (vf){_mm512_loadu_ps(p)}; }
VEC_FN void v_store_f32(float *p, vf x) { _mm512_storeu_ps(p, x.v); }

VEC_FN __m256i vec_halves(const uint16_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
VEC_FN __m512i vec_upper(__m256i halves) { return _mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16); }
VEC_FN vf v_load_bf16(const uint16_t *p) { return (vf){_mm512_castsi512_ps(vec_upper(vec_halves(p)))}; }

/* The lower half word of every lane. */
VEC_FN void vec_store_halves(uint16_t *p, __m512i x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(x));
}

/* Nearest even: add 0x7fff and the lowest bit that stays; NaN keeps its upper bits and is made quiet. */
VEC_FN void v_store_bf16(uint16_t *p, vf x)
{
    __m512i bits = _mm512_castps_si512(x.v);
    __m512i stays = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), stays);
    __mmask16 is_nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
    vec_store_halves(p, _mm512_srli_epi32(rounded, 16));
}

VEC_FN vf v_load_f16(const uint16_t *p) { return (vf){_mm512_cvtph_ps(vec_halves(p))}; }

VEC_FN void v_store_f16(uint16_t *p, vf x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}

VEC_FN vf v_load_master(const uint16_t *weight, const uint16_t *low)
{
    __m512i bits = _mm512_or_si512(vec_upper(vec_halves(weight)), _mm512_cvtepu16_epi32(vec_halves(low)));
    return (vf){_mm512_castsi512_ps(_mm512_sub_epi32(bits, _mm512_set1_epi32(0x8000)))};
}

VEC_FN void v_store_master(uint16_t *weight, uint16_t *low, vf x)
{
    __m512i bits = _mm512_add_epi32(_mm512_castps_si512(x.v), _mm512_set1_epi32(0x8000));
    vec_store_halves(weight, _mm512_srli_epi32(bits, 16));
    vec_store_halves(low, bits);
}

/* Stores of whole lines past the caches, at multiples of 64 bytes; masters: of 32 elements. v_stream_end before others read them. */
#define VEC_STREAMS
VEC_FN void v_stream_f32(float *p, vf x) { _mm512_stream_ps(p, x.v); }
VEC_FN void v_stream_end(void) { _mm_sfence(); }

VEC_FN void vec_stream_halves(uint16_t *p, __m512i x, __m512i y)
{
    __m512i low = _mm512_castsi256_si512(_mm512_cvtepi32_epi16(x));
    _mm512_stream_si512((__m512i *)(void *)p, _mm512_inserti64x4(low, _mm512_cvtepi32_epi16(y), 1));
}

VEC_FN void v_stream_masters(uint16_t *weight, uint16_t *low, vf x, vf y)
{
    __m512i a = _mm512_add_epi32(_mm512_castps_si512(x.v), _mm512_set1_epi32(0x8000));
    __m512i b = _mm512_add_epi32(_mm512_castps_si512(y.v), _mm512_set1_epi32(0x8000));
    vec_stream_halves(weight, _mm512_srli_epi32(a, 16), _mm512_srli_epi32(b, 16));
    vec_stream_halves(low, a, b);
}

VEC_FN vf v_add(vf x, vf y) { return (vf){_mm512_add_ps(x.v, y.v)}; }
VEC_FN vf v_sub(vf x, vf y) { return (vf){_mm512_sub_ps(x.v, y.v)}; }
VEC_FN vf v_mul(vf x, vf y) { return (vf){_mm512_mul_ps(x.v, y.v)}; }
VEC_FN vf v_div(vf x, vf y) { return (vf){_mm512_div_ps(x.v, y.v)}; }
VEC_FN vf v_fma(vf x, vf y, vf z) { return (vf){_mm512_fmadd_ps(x.v, y.v, z.v)}; }
VEC_FN vf v_fnma(vf x, vf y, vf z) { return (vf){_mm512_fnmadd_ps(x.v, y.v, z.v)}; }
VEC_FN vf v_min(vf x, vf y) { return (vf){_mm512_min_ps(x.v, y.v)}; }
VEC_FN vf v_max(vf x, vf y) { return (vf){_mm512_max_ps(x.v, y.v)}; }
VEC_FN vf v_sqrt(vf x) { return (vf){_mm512_sqrt_ps(x.v)}; }

VEC_FN vf v_exponent(vf x)
{
    return (vf){_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x.v), 23))};
}

VEC_FN float v_sum(vf x)
{
    __m256 o = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(o), _mm256_extractf128_ps(o, 1));
    __m128 h = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_shuffle_ps(h, h, 1)));
}

VEC_FN float v_top(vf x) { return _mm512_reduce_max_ps(x.v); }

VEC_FN vd vd_zero(void) { return (vd){_mm512_setzero_pd(), _mm512_setzero_pd()}; }

VEC_FN __m512d vec_square(__m512d sum, __m256 x)
{
    __m512d wide = _mm512_cvtps_pd(x);
    return _mm512_fmadd_pd(wide, wide, sum);
}

VEC_FN vd vd_add_square(vd s, vf x)
{
    s.a = vec_square(s.a, _mm512_castps512_ps256(x.v));
    s.b = vec_square(s.b, _mm512_extractf32x8_ps(x.v, 1));
    return s;
}

VEC_FN double vd_sum(vd s)
{
    __m512d h = _mm512_add_pd(s.a, s.b);
    __m256d o = _mm256_add_pd(_mm512_castpd512_pd256(h), _mm512_extractf64x4_pd(h, 1));
    __m128d q = _mm_add_pd(_mm256_castpd256_pd128(o), _mm256_extractf128_pd(o, 1));
    return _mm_cvtsd_f64(_mm_add_sd(q, _mm_unpackhi_pd(q, q)));
}

VEC_END

#endif
