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

STRANDS_CODE FEW_INLINE void columns_by_rows(const uint16_t *b, int64_t step, int deep, const uint16_t *a,
                                             float *sums, int64_t width, int rows)
{
    float16x8_t w[STEP];
    for (int i = 0; i < deep; i++) w[i] = vreinterpretq_f16_u16(vld1q_u16(b + i * step));
    for (int r = 0; r < rows; r++, a += STRAND, sums += width) {
        float32x4_t s = vld1q_f32(sums), t = vld1q_f32(sums + 4);
        for (int i = 0; i < deep; i++) {
            float16x8_t x = vreinterpretq_f16_u16(vld1q_dup_u16(a + i));
            s = vfmlalq_low_f16(s, w[i], x), t = vfmlalq_high_f16(t, w[i], x);
        }
        vst1q_f32(sums, s), vst1q_f32(sums + 4, t);
    }
}

const struct gemm_few gemm_few_fmlal = {.name = "neon fmlal",
                                        .rows = MOST_ROWS,
                                        .lines = LINES,
                                        .unit = sizeof(STRANDS_A),
                                        .strands = STRANDS,
                                        .pack = pack_f16,
                                        .whole = whole_f16,
                                        .across = across_f16};

#endif
