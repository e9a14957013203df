/* gemm_neon_bf16.c - the bf16 micro-kernel of AArch64: bfmmla, an 8x12 tile of C. See gemm_neon.h.
 *
 * bfmmla multiplies a 2x4 block of A by a 4x2 block of B: an accumulator holds a 2x2 block of C, and rows are
 * put together at the end. A tile that is complete leaves the registers as bf16 without a detour through
 * memory: stores are what this kernel has least of.
 */
#include "device/cpu/gemm_neon.h"

#if defined(__aarch64__)

#define MM(c, a, b) "bfmmla v" #c ".4s, v" #a ".8h, v" #b ".8h\n"

/* v0..v3: row pairs of A; v4..v7: column pairs of B in turn, six per step of four k. The block of row pair r
 * and column pair j accumulates in v(8 + 6r + j). Two steps per turn of the loop. Uses a, b and n of the
 * function. */
/* clang-format off */
#define BF16_LOOP                                                                                               \
    __asm__ volatile(                                                                                           \
        LD(0, a, 0) LD(4, b, 0) LD(1, a, 16) LD(2, a, 32) LD(3, a, 48) LD(5, b, 16) LD(6, b, 32) LD(7, b, 48)   \
        ZERO_ALL STEP(2) "b.lt 2f\n"                                                                            \
        ".p2align 6\n"                                                                                          \
        "1:\n"                                                                                                  \
        MM(26, 3, 4) MM(8, 0, 4) MM(20, 2, 4) MM(14, 1, 4) LD(4, b, 64)                                         \
        MM(9, 0, 5) MM(10, 0, 6) MM(15, 1, 5) MM(11, 0, 7) MM(21, 2, 5) MM(27, 3, 5)                            \
        MM(16, 1, 6) MM(22, 2, 6) MM(28, 3, 6) LD(5, b, 80)                                                     \
        MM(17, 1, 7) MM(23, 2, 7) MM(29, 3, 7) MM(12, 0, 4) LD(7, b, 112) LD(6, b, 96)                          \
        MM(24, 2, 4) MM(30, 3, 4) MM(18, 1, 4) LD(4, b, 128)                                                    \
        MM(19, 1, 5) LD(1, a, 80) MM(13, 0, 5) MM(25, 2, 5) LD(0, a, 64) LD(2, a, 96)                           \
        MM(31, 3, 5) LD(3, a, 112) LD(5, b, 144)                                                                \
        MM(21, 2, 7) MM(8, 0, 6) MM(14, 1, 6) MM(20, 2, 6) MM(26, 3, 6) MM(15, 1, 7) MM(27, 3, 7) LD(6, b, 160) \
        MM(30, 3, 6) MM(9, 0, 7) LD(7, b, 176)                                                                  \
        MM(10, 0, 4) MM(22, 2, 4) MM(16, 1, 4) MM(17, 1, 5) MM(28, 3, 4) LD(4, b, 192)                          \
        MM(11, 0, 5) MM(23, 2, 5) MM(29, 3, 5) LD(5, b, 208)                                                    \
        MM(19, 1, 7) MM(24, 2, 6) MM(12, 0, 6) MM(18, 1, 6) LD(6, b, 224)                                       \
        MM(13, 0, 7) LD(0, a, 128) LD(1, a, 144) MM(25, 2, 7) LD(2, a, 160) MM(31, 3, 7) LD(3, a, 176)          \
        ADD(a, 128) LD(7, b, 240) ADD(b, 192) STEP(2) "b.ge 1b\n"                                               \
        "2:\n"                                                                                                  \
        "tbz %[n], #0, 3f\n"                                                                                    \
        MM(8, 0, 4) MM(14, 1, 4) MM(20, 2, 4) MM(26, 3, 4) LD(4, b, 64)                                         \
        MM(9, 0, 5) MM(15, 1, 5) MM(21, 2, 5) MM(27, 3, 5) LD(5, b, 80)                                         \
        MM(10, 0, 6) MM(16, 1, 6) MM(22, 2, 6) MM(28, 3, 6)                                                     \
        MM(11, 0, 7) MM(17, 1, 7) MM(23, 2, 7) MM(29, 3, 7)                                                     \
        MM(12, 0, 4) MM(18, 1, 4) MM(24, 2, 4) MM(30, 3, 4)                                                     \
        MM(13, 0, 5) MM(19, 1, 5) MM(25, 2, 5) MM(31, 3, 5)                                                     \
        "3:\n"                                                                                                  \
        : ACCUMULATOR_OUTPUTS, [a] "+r"(a), [b] "+r"(b), [n] "+r"(n)                                            \
        :                                                                                                       \
        : OPERAND_REGISTERS, "cc", "memory")
/* clang-format on */

GEMM_BF16_CODE static void bf16_8x12(const uint16_t *a, const uint16_t *b, int64_t k, float *c, int64_t ldc,
                                     bool accumulate) {
    int64_t n = (k + 3) / 4;
    ACCUMULATORS;
    gemm_prefetch_tile(c, ldc);
    BF16_LOOP;
#define STORE_PAIRS(add)                                                                                     \
    c = gemm_put_pair(c, ldc, c0, c1, c2, c3, c4, c5, add);                                                  \
    c = gemm_put_pair(c, ldc, c6, c7, c8, c9, c10, c11, add);                                                \
    c = gemm_put_pair(c, ldc, c12, c13, c14, c15, c16, c17, add);                                            \
    gemm_put_pair(c, ldc, c18, c19, c20, c21, c22, c23, add)
    if (accumulate) {
        STORE_PAIRS(true);
    } else {
        STORE_PAIRS(false);
    }
}

GEMM_BF16_CODE static inline uint16x4_t bfcvtn(float32x4_t x) {
    uint16x4_t y;
    __asm__("bfcvtn %0.4h, %1.4s" : "=w"(y) : "w"(x));
    return y;
}

GEMM_BF16_CODE static inline uint16x8_t bfcvtn2(float32x4_t x, float32x4_t y) {
    uint16x8_t z = vcombine_u16(bfcvtn(x), vdup_n_u16(0));
    __asm__("bfcvtn2 %0.8h, %1.4s" : "+w"(z) : "w"(y));
    return z;
}

GEMM_BF16_CODE static inline uint16_t *round_row(uint16_t *c, int64_t ldc, float32x4_t x, float32x4_t y,
                                                 float32x4_t z) {
    vst1q_u16(c, bfcvtn2(x, y));
    vst1_u16(c + 8, bfcvtn(z));
    return c + ldc;
}

/* Two rows of twelve from six 2x2 blocks, rounded. */
GEMM_BF16_CODE static inline uint16_t *round_pair(uint16_t *c, int64_t ldc, float32x4_t x0, float32x4_t x1,
                                                  float32x4_t x2, float32x4_t x3, float32x4_t x4,
                                                  float32x4_t x5, const float *sums) {
    float32x4_t r0 = GEMM_JOIN(vzip1q_f64, x0, x1), r1 = GEMM_JOIN(vzip1q_f64, x2, x3),
                r2 = GEMM_JOIN(vzip1q_f64, x4, x5);
    float32x4_t r3 = GEMM_JOIN(vzip2q_f64, x0, x1), r4 = GEMM_JOIN(vzip2q_f64, x2, x3),
                r5 = GEMM_JOIN(vzip2q_f64, x4, x5);
    if (sums) {
        r0 = vaddq_f32(vld1q_f32(sums), r0), r1 = vaddq_f32(vld1q_f32(sums + 4), r1);
        r2 = vaddq_f32(vld1q_f32(sums + 8), r2), r3 = vaddq_f32(vld1q_f32(sums + 12), r3);
        r4 = vaddq_f32(vld1q_f32(sums + 16), r4), r5 = vaddq_f32(vld1q_f32(sums + 20), r5);
    }
    return round_row(round_row(c, ldc, r0, r1, r2), ldc, r3, r4, r5);
}

GEMM_BF16_CODE static void bf16_run_round(const void *ap, const void *bp, int64_t k, const float *sums,
                                          uint16_t *c, int64_t ldc) {
    const uint16_t *a = ap, *b = bp;
    int64_t n = (k + 3) / 4;
    ACCUMULATORS;
    BF16_LOOP;
#define ROUND_PAIRS(s0, s1, s2, s3)                                                                          \
    c = round_pair(c, ldc, c0, c1, c2, c3, c4, c5, s0);                                                      \
    c = round_pair(c, ldc, c6, c7, c8, c9, c10, c11, s1);                                                    \
    c = round_pair(c, ldc, c12, c13, c14, c15, c16, c17, s2);                                                \
    round_pair(c, ldc, c18, c19, c20, c21, c22, c23, s3)
    if (sums) {
        ROUND_PAIRS(sums, sums + 24, sums + 48, sums + 72);
    } else {
        ROUND_PAIRS(NULL, NULL, NULL, NULL);
    }
}

static void bf16_run(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows,
                     bool accumulate) {
    float tile[GEMM_NEON_MR * GEMM_NEON_NR];
    if (rows == GEMM_NEON_MR) {
        bf16_8x12(a, b, k, c, ldc, accumulate);
    } else {
        bf16_8x12(a, b, k, tile, GEMM_NEON_NR, false);
        gemm_put_tile(tile, c, ldc, rows, accumulate);
    }
}

GEMM_BF16_CODE static void round_bfcvt(uint16_t *c, int64_t ldc, const float *tile, int rows, int cols) {
    if (cols < GEMM_NEON_NR) {
        gemm_round_plain(c, ldc, tile, GEMM_NEON_NR, rows, cols);
        return;
    }
    for (int m = 0; m < rows; m++, tile += GEMM_NEON_NR) {
        c = round_row(c, ldc, vld1q_f32(tile), vld1q_f32(tile + 4), vld1q_f32(tile + 8));
    }
}

const struct gemm_kernel gemm_neon_bf16 = {
    .name = "neon bfmmla 8x12",
    .mr = GEMM_NEON_MR,
    .nr = GEMM_NEON_NR,
    .kg = 4,
    .type = DT_BF16,
    .pack_a = gemm_neon_bf16_pack_a,
    .pack_b = gemm_neon_bf16_pack_b,
    .run = bf16_run,
    .round = round_bfcvt,
    .run_round = bf16_run_round,
    .few = gemm_neon_bf16_few,
    .few_rows = GEMM_NEON_MR,
};

#endif
