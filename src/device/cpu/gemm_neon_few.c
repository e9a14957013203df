/* gemm_neon_few.c - few rows of A times a B that is read in place (AArch64).
 *
 * With a handful of rows (generation) every element of B is used a few times only: packing it would cost more
 * than the multiplication, so twelve lines of B are read along k and put in order in registers. The sums are
 * those of the packed kernels, product by product. There are no prefetches: the hardware follows twelve lines
 * well, and measured faster without help.
 */
#include "device/cpu/gemm_neon.h"

#if defined(__aarch64__)

enum { MR = GEMM_NEON_MR, NR = GEMM_NEON_NR };

#define INLINE static inline __attribute__((always_inline))

/* ---- fp32: four k of four lines are transposed, then multiplied by lanes of A (one to four rows) ---- */

INLINE void f32_four_k(float32x4_t *s, int rows, int j, const float *a, const float *b, int64_t ls)
{
    float32x4_t r0 = vld1q_f32(b), r1 = vld1q_f32(b + ls), r2 = vld1q_f32(b + 2 * ls),
                r3 = vld1q_f32(b + 3 * ls);
    float32x4_t t0 = vtrn1q_f32(r0, r1), t1 = vtrn2q_f32(r0, r1);
    float32x4_t t2 = vtrn1q_f32(r2, r3), t3 = vtrn2q_f32(r2, r3);
    float32x4_t k[4] = {GEMM_JOIN(vzip1q_f64, t0, t2), GEMM_JOIN(vzip1q_f64, t1, t3),
                        GEMM_JOIN(vzip2q_f64, t0, t2), GEMM_JOIN(vzip2q_f64, t1, t3)};
    for (int p = 0; p < 4; p++) {
        float32x4_t lanes = vld1q_f32(a + p * MR);
        s[j] = vfmaq_laneq_f32(s[j], k[p], lanes, 0);
        if (rows > 1) s[3 + j] = vfmaq_laneq_f32(s[3 + j], k[p], lanes, 1);
        if (rows > 2) s[6 + j] = vfmaq_laneq_f32(s[6 + j], k[p], lanes, 2);
        if (rows > 3) s[9 + j] = vfmaq_laneq_f32(s[9 + j], k[p], lanes, 3);
    }
}

INLINE void f32_one_k(float32x4_t *s, int rows, const float *a, const float *b, int64_t ls)
{
    float line[NR];
    for (int l = 0; l < NR; l++) line[l] = b[l * ls];
    for (int r = 0; r < rows; r++) {
        for (int j = 0; j < 3; j++) s[3 * r + j] = vfmaq_n_f32(s[3 * r + j], vld1q_f32(line + 4 * j), a[r]);
    }
}

INLINE void f32_few(const float *a, const float *b, int64_t ls, int64_t k, float *tile, int rows)
{
    float32x4_t s[4 * 3] = {{0}};
    int64_t i = 0;
    for (; i + 4 <= k; i += 4, a += 4 * MR) {
        for (int j = 0; j < 3; j++) f32_four_k(s, rows, j, a, b + 4 * j * ls + i, ls);
    }
    for (; i < k; i++, a += MR) f32_one_k(s, rows, a, b + i, ls);
    for (int r = 0; r < rows; r++) tile = gemm_put_row(tile, NR, s[3 * r], s[3 * r + 1], s[3 * r + 2], false);
}

void gemm_neon_f32_few(const void *a, const void *b, int64_t ls, int64_t k, float *c, int64_t ldc, int rows,
                       bool accumulate)
{
    float tile[MR * NR];
    if (rows == 1) {
        f32_few(a, b, ls, k, tile, 1);
    } else if (rows == 2) {
        f32_few(a, b, ls, k, tile, 2);
    } else {
        for (int r = 0; r < rows; r += 4) f32_few((const float *)a + r, b, ls, k, tile + r * NR, 4);
    }
    gemm_put_tile(tile, c, ldc, rows, accumulate);
}

/* ---- bf16: eight k of two lines are two operands of bfmmla ---- */

GEMM_BF16_CODE INLINE float32x4_t bfmmla(float32x4_t sum, uint16x8_t a, uint16x8_t b)
{
    __asm__("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(a), "w"(b));
    return sum;
}

GEMM_BF16_CODE INLINE void bf16_eight_k(float32x4_t *s, int pairs, const uint16_t *a, const uint16_t *b,
                                        int64_t ls, bool both)
{
    for (int j = 0; j < 6; j++, b += 2 * ls) {
        uint64x2_t x = vreinterpretq_u64_u16(vld1q_u16(b)), y = vreinterpretq_u64_u16(vld1q_u16(b + ls));
        uint16x8_t first = vreinterpretq_u16_u64(vzip1q_u64(x, y));
        uint16x8_t second = vreinterpretq_u16_u64(vzip2q_u64(x, y));
        for (int r = 0; r < pairs; r++) {
            float32x4_t *at = s + 6 * r + j;
            *at = bfmmla(*at, vld1q_u16(a + 8 * r), first);
            if (both) *at = bfmmla(*at, vld1q_u16(a + 4 * MR + 8 * r), second);
        }
    }
}

GEMM_BF16_CODE INLINE void bf16_few(const uint16_t *a, const uint16_t *b, int64_t ls, int64_t k, float *tile,
                                    int pairs)
{
    float32x4_t s[2 * 6] = {{0}};
    int64_t i = 0;
    for (; i + 8 <= k; i += 8, a += 8 * MR) {
        bf16_eight_k(s, pairs, a, b + i, ls, true);
    }
    if (i < k) {
        uint16_t rest[NR * 8] = {0};
        for (int l = 0; l < NR; l++) memcpy(rest + 8 * l, b + l * ls + i, (size_t)(k - i) * sizeof *rest);
        bf16_eight_k(s, pairs, a, rest, 8, k - i > 4);
    }
    for (int r = 0; r < pairs; r++) {
        float32x4_t *p = s + 6 * r;
        tile = gemm_put_pair(tile, NR, p[0], p[1], p[2], p[3], p[4], p[5], false);
    }
}

GEMM_BF16_CODE void gemm_neon_bf16_few(const void *a, const void *b, int64_t ls, int64_t k, float *c,
                                       int64_t ldc, int rows, bool accumulate)
{
    float tile[MR * NR];
    if (rows <= 2) {
        bf16_few(a, b, ls, k, tile, 1);
    } else {
        for (int r = 0; r < rows; r += 4) bf16_few((const uint16_t *)a + 4 * r, b, ls, k, tile + r * NR, 2);
    }
    gemm_put_tile(tile, c, ldc, rows, accumulate);
}

#endif
