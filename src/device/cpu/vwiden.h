/* vwiden.h - a register of fp32 from memory of any compute type. The including file has included vexp.h. */
#pragma once

#include "device/cpu/vexp.h"

/* REG_LANES elements as fp32. */
REG_FN regf widen_reg(const void *src, enum dtype type, int64_t i)
{
    const uint16_t *half = (const uint16_t *)src + i;
    need_compute(type);
    if (type == DT_F32) return reg_load((const float *)src + i);
#if defined(__aarch64__)
    if (type == DT_BF16) return (regf)vshll_n_u16(vld1_u16(half), 16);
    return (regf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(half)));
#elif defined(VEXP_AVX512)
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)half);
    if (type == DT_BF16) return (regf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
    return (regf)_mm512_cvtph_ps(h);
#elif defined(VEXP_AVX2)
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)half);
    if (type == DT_BF16) return (regf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16);
    return (regf)_mm256_cvtph_ps(h);
#else
    float lane[REG_LANES];
    for (int j = 0; j < REG_LANES; j++)
        lane[j] = type == DT_BF16 ? bf16_to_f32(half[j]) : f16_to_f32(half[j]);
    return reg_load(lane);
#endif
}
