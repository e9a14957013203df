/* gemm_few_neon_fmlal.c - few rows of fp16 on AArch64 by fmlal: see gemm_few_strands.h.
 *
 * fmlal multiplies fp16 and adds to fp32 with one rounding: the bits of fmla on widened operands, without widening them,
 * which a Neoverse V1 does four times slower than it multiplies. */
#if defined(__clang__)
#define STRANDS_CODE __attribute__((target("fp16fml")))
#else
#define STRANDS_CODE __attribute__((target("arch=armv8.2-a+fp16fml")))
#endif
#define STRANDS_A uint16_t
#define STRANDS_W float16x8_t
#include "device/cpu/gemm_few_strands.h"

#if defined(__aarch64__)

STRANDS_CODE FEW_INLINE void eight_k(const struct work *w, int64_t j, float32x4_t s[SUMS], int rows,
                                     int lines)
{
    for (int l = 0; l < lines; l++) {
        float16x8_t b = vreinterpretq_f16_u16(vld1q_u16(w->b[l] + j));
        for (int r = 0; r < rows; r++) {
            float16x8_t a = vreinterpretq_f16_u16(vld1q_u16(w->a + j * rows + r * DEEP));
            s[r * lines + l] = vfmlalq_low_f16(s[r * lines + l], b, a);
            s[r * lines + l] = vfmlalq_high_f16(s[r * lines + l], b, a);
        }
    }
}

STRANDS_CODE FEW_INLINE float16x8_t load_columns(const uint16_t *b)
{
    return vreinterpretq_f16_u16(vld1q_u16(b));
}

STRANDS_CODE FEW_INLINE void add_columns(float32x4_t s[2], float16x8_t w, const uint16_t *factor)
{
    float16x8_t x = vreinterpretq_f16_u16(vld1q_dup_u16(factor));
    s[0] = vfmlalq_low_f16(s[0], w, x), s[1] = vfmlalq_high_f16(s[1], w, x);
}

const struct gemm_few gemm_few_fmlal = STRANDS_TABLE("neon fmlal");

#endif
