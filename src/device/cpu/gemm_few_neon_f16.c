/* gemm_few_neon_f16.c - few rows of fp16 on AArch64 by fmla: see gemm_few_strands.h. A is widened when it is packed, B in registers. */
#define STRANDS_CODE
#define STRANDS_A float
#define STRANDS_W struct eight
#include "device/cpu/gemm_few_neon.h"

#if defined(__aarch64__)

struct eight {
    float32x4_t low, high;
};
#include "device/cpu/gemm_few_strands.h"

FEW_INLINE struct eight widen(const uint16_t *x)
{
    float16x8_t half = vreinterpretq_f16_u16(vld1q_u16(x));
    return (struct eight){vcvt_f32_f16(vget_low_f16(half)), vcvt_high_f32_f16(half)};
}

/* As vfmaq_f32, for whose sums gcc takes new registers. */
FEW_INLINE float32x4_t fmla(float32x4_t s, float32x4_t x, float32x4_t y)
{
    __asm__("fmla %0.4s, %1.4s, %2.4s" : "+w"(s) : "w"(x), "w"(y));
    return s;
}

/* Four k, of lines that are widened. */
FEW_INLINE void four_k(const float32x4_t b[MOST_LINES], const float *a, float32x4_t s[SUMS], int rows,
                       int lines)
{
    for (int r = 0; r < rows; r++) {
        float32x4_t x = vld1q_f32(a + r * DEEP);
        for (int l = 0; l < lines; l++) s[r * lines + l] = fmla(s[r * lines + l], b[l], x);
    }
}

FEW_INLINE void eight_k(const struct work *w, int64_t j, float32x4_t s[SUMS], int rows, int lines)
{
    float32x4_t low[MOST_LINES], high[MOST_LINES];
    for (int l = 0; l < lines; l++) {
        struct eight b = widen(w->b[l] + j);
        low[l] = b.low, high[l] = b.high;
    }
    four_k(low, w->a + j * rows, s, rows, lines);
    four_k(high, w->a + (j + DEEP) * rows, s, rows, lines);
}

FEW_INLINE struct eight load_columns(const uint16_t *b) { return widen(b); }

FEW_INLINE void add_columns(float32x4_t s[2], struct eight w, const float *factor)
{
    s[0] = vfmaq_n_f32(s[0], w.low, *factor), s[1] = vfmaq_n_f32(s[1], w.high, *factor);
}

const struct gemm_few gemm_few_neon_f16 = STRANDS_TABLE("neon fmla in strands");

#endif
