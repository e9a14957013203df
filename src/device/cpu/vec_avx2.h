/* vec_avx2.h - the vector layer (vec.h) for AVX2, FMA and F16C: sixteen lanes are two registers. */
#pragma once

#include "device/cpu/vec_base.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define VEC_BEGIN VEC_PUSH("avx2,fma,f16c")
#define VEC_END   VEC_POP

VEC_BEGIN

typedef struct {
    __m256 a, b;
} vf;

typedef struct {
    __m256d a, b, c, d;
} vd;

#define VEC_MAP1(f, x)       ((vf){f((x).a), f((x).b)})
#define VEC_MAP2(f, x, y)    ((vf){f((x).a, (y).a), f((x).b, (y).b)})
#define VEC_MAP3(f, x, y, z) ((vf){f((x).a, (y).a, (z).a), f((x).b, (y).b, (z).b)})

VEC_FN vf v_all(float x) { return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
VEC_FN vf v_load_f32(const float *p) { return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
VEC_FN void v_store_f32(float *p, vf x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }

VEC_FN __m128i vec_halves(const uint16_t *p) { return _mm_loadu_si128((const __m128i *)(const void *)p); }

VEC_FN __m256 vec_widen(__m128i halves)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

VEC_FN vf v_load_bf16(const uint16_t *p)
{
    return (vf){vec_widen(vec_halves(p)), vec_widen(vec_halves(p + 8))};
}

/* Sixteen 32-bit lanes below 65536 to sixteen half words; the pack works inside 128-bit halves, hence the
 * permutation. */
VEC_FN void vec_store_halves(uint16_t *p, __m256i x, __m256i y)
{
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(x, y), 0xd8);
    _mm256_storeu_si256((__m256i *)(void *)p, packed);
}

/* Nearest even: add 0x7fff and the lowest bit that stays; NaN keeps its upper bits and is made quiet. */
VEC_FN __m256i vec_round_bf16(__m256 x)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i stays = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), stays);
    __m256i nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, nan, is_nan), 16);
}

VEC_FN void v_store_bf16(uint16_t *p, vf x) { vec_store_halves(p, vec_round_bf16(x.a), vec_round_bf16(x.b)); }

VEC_FN vf v_load_f16(const uint16_t *p)
{
    return (vf){_mm256_cvtph_ps(vec_halves(p)), _mm256_cvtph_ps(vec_halves(p + 8))};
}

VEC_FN void v_store_f16(uint16_t *p, vf x)
{
    __m128i *to = (__m128i *)(void *)p;
    _mm_storeu_si128(to, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(to + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}

VEC_FN __m256 vec_join(__m128i weight, __m128i low)
{
    __m256i bits =
        _mm256_or_si256(_mm256_slli_epi32(_mm256_cvtepu16_epi32(weight), 16), _mm256_cvtepu16_epi32(low));
    return _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_set1_epi32(0x8000)));
}

VEC_FN vf v_load_master(const uint16_t *weight, const uint16_t *low)
{
    return (vf){vec_join(vec_halves(weight), vec_halves(low)),
                vec_join(vec_halves(weight + 8), vec_halves(low + 8))};
}

VEC_FN void v_store_master(uint16_t *weight, uint16_t *low, vf x)
{
    __m256i half = _mm256_set1_epi32(0x8000), mask = _mm256_set1_epi32(0xffff);
    __m256i a = _mm256_add_epi32(_mm256_castps_si256(x.a), half);
    __m256i b = _mm256_add_epi32(_mm256_castps_si256(x.b), half);
    vec_store_halves(weight, _mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16));
    vec_store_halves(low, _mm256_and_si256(a, mask), _mm256_and_si256(b, mask));
}

/* Stores past the caches, at multiples of 64 bytes: halves of lines, which the processor joins. See vec_avx512.h. */
#define VEC_STREAMS
VEC_FN void v_stream_f32(float *p, vf x) { _mm256_stream_ps(p, x.a), _mm256_stream_ps(p + 8, x.b); }
VEC_FN void v_stream_end(void) { _mm_sfence(); }

VEC_FN void v_stream_masters(uint16_t *weight, uint16_t *low, vf x, vf y)
{
    uint16_t part[2][2 * VEC_LANES];
    uint16_t *const to[] = {weight, low};
    v_store_master(part[0], part[1], x);
    v_store_master(part[0] + VEC_LANES, part[1] + VEC_LANES, y);
    for (int which = 0; which < 2; which++)
        for (int half = 0; half < 2; half++)
            _mm256_stream_si256(
                (__m256i *)(void *)(to[which] + half * VEC_LANES),
                _mm256_loadu_si256((const __m256i *)(const void *)(part[which] + half * VEC_LANES)));
}

VEC_FN __m256 vec_exponent(__m256 x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 23));
}

VEC_FN vf v_add(vf x, vf y) { return VEC_MAP2(_mm256_add_ps, x, y); }
VEC_FN vf v_sub(vf x, vf y) { return VEC_MAP2(_mm256_sub_ps, x, y); }
VEC_FN vf v_mul(vf x, vf y) { return VEC_MAP2(_mm256_mul_ps, x, y); }
VEC_FN vf v_div(vf x, vf y) { return VEC_MAP2(_mm256_div_ps, x, y); }
VEC_FN vf v_fma(vf x, vf y, vf z) { return VEC_MAP3(_mm256_fmadd_ps, x, y, z); }
VEC_FN vf v_fnma(vf x, vf y, vf z) { return VEC_MAP3(_mm256_fnmadd_ps, x, y, z); }
VEC_FN vf v_min(vf x, vf y) { return VEC_MAP2(_mm256_min_ps, x, y); }
VEC_FN vf v_max(vf x, vf y) { return VEC_MAP2(_mm256_max_ps, x, y); }
VEC_FN vf v_sqrt(vf x) { return VEC_MAP1(_mm256_sqrt_ps, x); }
VEC_FN vf v_exponent(vf x) { return VEC_MAP1(vec_exponent, x); }

VEC_FN float v_sum(vf x)
{
    __m256 o = _mm256_add_ps(x.a, x.b);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(o), _mm256_extractf128_ps(o, 1));
    __m128 h = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_shuffle_ps(h, h, 1)));
}

VEC_FN float v_top(vf x)
{
    __m256 o = _mm256_max_ps(x.a, x.b);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(o), _mm256_extractf128_ps(o, 1));
    __m128 h = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_shuffle_ps(h, h, 1)));
}

VEC_FN vd vd_zero(void)
{
    __m256d z = _mm256_setzero_pd();
    return (vd){z, z, z, z};
}

VEC_FN __m256d vec_square(__m256d sum, __m128 x)
{
    __m256d wide = _mm256_cvtps_pd(x);
    return _mm256_fmadd_pd(wide, wide, sum);
}

VEC_FN vd vd_add_square(vd s, vf x)
{
    s.a = vec_square(s.a, _mm256_castps256_ps128(x.a));
    s.b = vec_square(s.b, _mm256_extractf128_ps(x.a, 1));
    s.c = vec_square(s.c, _mm256_castps256_ps128(x.b));
    s.d = vec_square(s.d, _mm256_extractf128_ps(x.b, 1));
    return s;
}

VEC_FN double vd_sum(vd s)
{
    __m256d o = _mm256_add_pd(_mm256_add_pd(s.a, s.c), _mm256_add_pd(s.b, s.d));
    __m128d q = _mm_add_pd(_mm256_castpd256_pd128(o), _mm256_extractf128_pd(o, 1));
    return _mm_cvtsd_f64(_mm_add_sd(q, _mm_unpackhi_pd(q, q)));
}

#undef VEC_MAP1
#undef VEC_MAP2
#undef VEC_MAP3

VEC_END

#endif
