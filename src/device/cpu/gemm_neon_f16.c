/* gemm_neon_f16.c - products of fp16 on AArch64: see gemm_neon.h.
 *
 * With few rows a line of B is read as it lies: lane j of a sum gets every fourth k from j on (gemm_few_strands.h). Those are the strands
 * of a block of k, and here are the same sums for many rows. Packing widens to fp32 and sorts k by strand, and the fp32 kernel multiplies
 * one strand after the other: products of fp16 are exact in fp32, and so fmla and fmlal give the same bits. */
#include "device/cpu/gemm_neon.h"
#include "base/minmax.h"

#if defined(__aarch64__)

#define INLINE static inline __attribute__((always_inline))

enum { STRANDS = 4 };

/* Elements of k that a strand has, with zeros at its end. */
static inline int64_t strand_length(int64_t k) { return (k + STRANDS - 1) / STRANDS; }

/* ---- packing: panel[k % STRANDS][k / STRANDS][line] ---- */

struct panel {
    float *at;
    int width;
    int64_t strand; /* elements of a strand */
};

INLINE float *place(const struct panel *p, int64_t k)
{
    return p->at + k % STRANDS * p->strand + k / STRANDS * p->width;
}

INLINE float widen(uint16_t half)
{
    float x;
    dtype_convert(&x, DT_F32, &half, DT_F16, 1);
    return x;
}

INLINE float32x4_t widen_4(const uint16_t *src) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(src))); }

/* k .. k + 3 of four lines: one of each strand. */
INLINE void turn_4x4(float *dst, int64_t strand, const uint16_t *const row[4], int64_t k)
{
    float32x4_t r0 = widen_4(row[0] + k), r1 = widen_4(row[1] + k), r2 = widen_4(row[2] + k),
                r3 = widen_4(row[3] + k);
    float64x2_t t0 = vreinterpretq_f64_f32(vtrn1q_f32(r0, r1)),
                t1 = vreinterpretq_f64_f32(vtrn2q_f32(r0, r1)),
                t2 = vreinterpretq_f64_f32(vtrn1q_f32(r2, r3)),
                t3 = vreinterpretq_f64_f32(vtrn2q_f32(r2, r3));
    vst1q_f32(dst, vreinterpretq_f32_f64(vzip1q_f64(t0, t2)));
    vst1q_f32(dst + strand, vreinterpretq_f32_f64(vzip1q_f64(t1, t3)));
    vst1q_f32(dst + 2 * strand, vreinterpretq_f32_f64(vzip2q_f64(t0, t2)));
    vst1q_f32(dst + 3 * strand, vreinterpretq_f32_f64(vzip2q_f64(t1, t3)));
}

/* Lines that are contiguous over k. */
INLINE void panel_along_k(const struct panel *p, int width, const uint16_t *src, int64_t ls, int64_t lines,
                          int64_t k)
{
    const uint16_t *row[GEMM_NEON_NR];
    for (int l = 0; l < width; l++) row[l] = src + min64(l, lines - 1) * ls;
    int64_t i = 0;
    for (; i + STRANDS <= k; i += STRANDS)
        for (int l = 0; l < width; l += 4) turn_4x4(place(p, i) + l, p->strand, row + l, i);
    for (; i < k; i++)
        for (int l = 0; l < width; l++) place(p, i)[l] = widen(row[l][i]);
}

/* Lines that are contiguous, or any. */
INLINE void panel_along_lines(const struct panel *p, const uint16_t *src, int64_t ls, int64_t ks,
                              int64_t lines, int64_t k)
{
    for (int64_t i = 0; i < k; i++, src += ks) {
        float *to = place(p, i);
        int64_t l = 0;
        for (; ls == 1 && l + 4 <= lines; l += 4) vst1q_f32(to + l, widen_4(src + l));
        for (; l < lines; l++) to[l] = widen(src[l * ls]);
    }
}

INLINE void pack(float *dst, int64_t stride, int width, const uint16_t *src, int64_t ls, int64_t ks,
                 int64_t lines, int64_t k)
{
    struct panel p = {dst, width, strand_length(k) * width};
    for (int64_t l = 0; l < lines; l += width, p.at += stride) {
        int64_t here = min64(width, lines - l);
        if (ks == 1)
            panel_along_k(&p, width, src + l * ls, ls, here, k);
        else
            panel_along_lines(&p, src + l * ls, ls, ks, here, k);
        for (int64_t i = k; i % STRANDS != 0; i++)
            for (int j = 0; j < width; j++) place(&p, i)[j] = 0;
    }
}

static GEMM_PACK(pack_a, GEMM_NEON_MR, pack)

    static GEMM_PACK(pack_b, GEMM_NEON_NR, pack)

    /* ---- multiplying ---- */

    static void run(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows, bool accumulate)
{
    int64_t length = strand_length(k);
    for (int s = 0; s < STRANDS; s++)
        gemm_neon_f32_run((const float *)a + s * length * GEMM_NEON_MR,
                          (const float *)b + s * length * GEMM_NEON_NR, length, c, ldc, rows,
                          accumulate || s > 0);
}

const struct gemm_kernel gemm_neon_f16 = {
    .name = "neon fmla 8x12 in strands",
    .mr = GEMM_NEON_MR,
    .nr = GEMM_NEON_NR,
    .kg = STRANDS,
    .type = DT_F32,
    .strands = STRANDS,
    .pack_a = {[DT_F16] = pack_a},
    .pack_b = {[DT_F16] = pack_b},
    .run = run,
    .round = gemm_neon_round,
};

#endif
