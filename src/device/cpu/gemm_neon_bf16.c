/* gemm_neon_bf16.c - the bf16 micro-kernel of AArch64: bfmmla, an 8x12 tile of C. See gemm_neon.h.
 *
 * bfmmla multiplies a 2x4 block of A by a 4x2 block of B: an accumulator holds a 2x2 block of C, and rows are
 * put together at the end. A tile that is complete leaves the registers as bf16 without a detour through
 * memory: stores are what this kernel has least of.
 */
#include "device/cpu/gemm_neon.h"

#if defined(__aarch64__)

#define INLINE      static inline __attribute__((always_inline))
#define MM(c, a, b) "bfmmla %[s" #c "].4s, v" #a ".8h, v" #b ".8h\n"

/* v0..v3: row pairs of A; v4..v7: column pairs of B in turn, six per step of four k. The block of row pair r
 * and column pair j accumulates in s(8 + 6r + j). Two steps per turn of the loop. Uses a, b and n of the
 * function. */
/* clang-format off */
#define BF16_LOOP                                                                                          \
    __asm__ volatile(                                                                                      \
        LD(0, a, 0) LD(4, b, 0) LD(1, a, 16) LD(2, a, 32) LD(3, a, 48) LD(5, b, 16)                        \
        LD(6, b, 32) LD(7, b, 48)                                                                          \
        ZERO_ALL STEP(2) "b.lt 2f\n"                                                                       \
        ".p2align 6\n"                                                                                     \
        "1:\n"                                                                                             \
        MM(26, 3, 4) MM(8, 0, 4) MM(20, 2, 4) MM(14, 1, 4) LD(4, b, 64)                                    \
        MM(9, 0, 5) MM(10, 0, 6) MM(15, 1, 5) MM(11, 0, 7) MM(21, 2, 5) MM(27, 3, 5)                       \
        MM(16, 1, 6) MM(22, 2, 6) MM(28, 3, 6) LD(5, b, 80)                                                \
        MM(17, 1, 7) MM(23, 2, 7) MM(29, 3, 7) MM(12, 0, 4) LD(7, b, 112) LD(6, b, 96)                     \
        MM(24, 2, 4) MM(30, 3, 4) MM(18, 1, 4) LD(4, b, 128)                                               \
        MM(19, 1, 5) LD(1, a, 80) MM(13, 0, 5) MM(25, 2, 5) LD(0, a, 64) LD(2, a, 96)                      \
        MM(31, 3, 5) LD(3, a, 112) LD(5, b, 144)                                                           \
        MM(21, 2, 7) MM(8, 0, 6) MM(14, 1, 6) MM(20, 2, 6) MM(26, 3, 6) MM(15, 1, 7) MM(27, 3, 7)          \
        LD(6, b, 160)                                                                                      \
        MM(30, 3, 6) MM(9, 0, 7) LD(7, b, 176)                                                             \
        MM(10, 0, 4) MM(22, 2, 4) MM(16, 1, 4) MM(17, 1, 5) MM(28, 3, 4) LD(4, b, 192)                     \
        MM(11, 0, 5) MM(23, 2, 5) MM(29, 3, 5) LD(5, b, 208)                                               \
        MM(19, 1, 7) MM(24, 2, 6) MM(12, 0, 6) MM(18, 1, 6) LD(6, b, 224)                                  \
        MM(13, 0, 7) LD(0, a, 128) LD(1, a, 144) MM(25, 2, 7) LD(2, a, 160) MM(31, 3, 7) LD(3, a, 176)     \
        ADD(a, 128) LD(7, b, 240) ADD(b, 192) STEP(2) "b.ge 1b\n"                                          \
        "2:\n"                                                                                             \
        "tbz %[n], #0, 3f\n"                                                                               \
        MM(8, 0, 4) MM(14, 1, 4) MM(20, 2, 4) MM(26, 3, 4) LD(4, b, 64)                                    \
        MM(9, 0, 5) MM(15, 1, 5) MM(21, 2, 5) MM(27, 3, 5) LD(5, b, 80)                                    \
        MM(10, 0, 6) MM(16, 1, 6) MM(22, 2, 6) MM(28, 3, 6)                                                \
        MM(11, 0, 7) MM(17, 1, 7) MM(23, 2, 7) MM(29, 3, 7)                                                \
        MM(12, 0, 4) MM(18, 1, 4) MM(24, 2, 4) MM(30, 3, 4)                                                \
        MM(13, 0, 5) MM(19, 1, 5) MM(25, 2, 5) MM(31, 3, 5)                                                \
        "3:\n"                                                                                             \
        : ACCUMULATOR_OUTPUTS, [a] "+r"(a), [b] "+r"(b), [n] "+r"(n)                                       \
        :                                                                                                  \
        : OPERAND_REGISTERS, "cc", "memory")
/* clang-format on */

GEMM_BF16_CODE static void bf16_8x12(const void *a, const void *b, int64_t k, float *c, int64_t ldc,
                                     const struct gemm_onto *onto)
{
    int64_t n = (k + 3) / 4;
    ACCUMULATORS;
    gemm_prefetch_tile(c, ldc, onto);
    BF16_LOOP;
    GEMM_PUT_ONTO(onto, GEMM_PUT_PAIRS)
}

GEMM_BF16_CODE INLINE uint16_t *round_row(uint16_t *c, int64_t ldc, float32x4_t x, float32x4_t y,
                                          float32x4_t z)
{
    vst1q_u16(c, gemm_bfcvt2(x, y));
    vst1_u16(c + 8, gemm_bfcvt(z));
    return c + ldc;
}

/* Values added to a tile before it is stored: the sums of earlier blocks of k, then add + bias. */
struct extras {
    const float *sums;
    const uint16_t *add;
    bool late; /* there is an add or a bias */
    float32x4_t bias[3];
};

/* One row of twelve: complete it, round it, store it. */
GEMM_BF16_CODE INLINE uint16_t *finish_row(uint16_t *c, int64_t ldc, float32x4_t x, float32x4_t y,
                                           float32x4_t z, struct extras *e)
{
    if (e->sums) {
        x = vaddq_f32(vld1q_f32(e->sums), x);
        y = vaddq_f32(vld1q_f32(e->sums + 4), y);
        z = vaddq_f32(vld1q_f32(e->sums + 8), z);
        e->sums += GEMM_NEON_NR;
    }
    if (e->late) {
        float32x4_t p = e->bias[0], q = e->bias[1], r = e->bias[2];
        if (e->add) {
            uint16x8_t low = vld1q_u16(e->add);
            p = vaddq_f32(vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(low), 16)), p);
            q = vaddq_f32(vreinterpretq_f32_u32(vshll_high_n_u16(low, 16)), q);
            r = vaddq_f32(vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(e->add + 8), 16)), r);
            e->add += ldc;
        }
        x = vaddq_f32(x, p), y = vaddq_f32(y, q), z = vaddq_f32(z, r);
    }
    return round_row(c, ldc, x, y, z);
}

/* Two rows from six 2x2 blocks. */
GEMM_BF16_CODE INLINE uint16_t *finish_pair(uint16_t *c, int64_t ldc, float32x4_t x0, float32x4_t x1,
                                            float32x4_t x2, float32x4_t x3, float32x4_t x4, float32x4_t x5,
                                            struct extras *e)
{
    c = finish_row(c, ldc, GEMM_JOIN(vzip1q_f64, x0, x1), GEMM_JOIN(vzip1q_f64, x2, x3),
                   GEMM_JOIN(vzip1q_f64, x4, x5), e);
    return finish_row(c, ldc, GEMM_JOIN(vzip2q_f64, x0, x1), GEMM_JOIN(vzip2q_f64, x2, x3),
                      GEMM_JOIN(vzip2q_f64, x4, x5), e);
}

#define FINISH_PAIRS(e)                                                                                      \
    c = finish_pair(c, ldc, c0, c1, c2, c3, c4, c5, e);                                                      \
    c = finish_pair(c, ldc, c6, c7, c8, c9, c10, c11, e);                                                    \
    c = finish_pair(c, ldc, c12, c13, c14, c15, c16, c17, e);                                                \
    finish_pair(c, ldc, c18, c19, c20, c21, c22, c23, e)

GEMM_BF16_CODE static void bf16_run_round(const void *ap, const void *bp, int64_t k, const float *sums,
                                          const uint16_t *add, const float *bias, uint16_t *c, int64_t ldc)
{
    const uint16_t *a = ap, *b = bp;
    int64_t n = (k + 3) / 4;
    ACCUMULATORS;
    for (int r = 0; add && r < GEMM_NEON_MR; r++) {
        __builtin_prefetch(add + r * ldc, 0, 3);
        __builtin_prefetch(add + r * ldc + GEMM_NEON_NR - 1, 0, 3);
    }
    BF16_LOOP;
    struct extras e = {sums, add, add || bias, {{0}}};
    if (!sums && !e.late) {
        struct extras none = {0};
        FINISH_PAIRS(&none);
        return;
    }
    for (int j = 0; bias && j < 3; j++) e.bias[j] = vld1q_f32(bias + 4 * j);
    FINISH_PAIRS(&e);
}

static void bf16_onto(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows,
                      const struct gemm_onto *onto)
{
    gemm_neon_onto(bf16_8x12, a, b, k, c, ldc, rows, onto);
}

static void bf16_run(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows,
                     bool accumulate)
{
    gemm_neon_run(bf16_8x12, a, b, k, c, ldc, rows, accumulate);
}

GEMM_BF16_CODE static void round_bfcvt(uint16_t *c, int64_t ldc, const float *tile, int rows, int cols)
{
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
    .pack_a = {[DT_BF16] = gemm_neon_bf16_pack_a, [DT_F32] = gemm_neon_bf16_round_a},
    .pack_b = {[DT_BF16] = gemm_neon_bf16_pack_b, [DT_F32] = gemm_neon_bf16_round_b},
    .run = bf16_run,
    .round = round_bfcvt,
    .run_round = bf16_run_round,
    .run_onto = bf16_onto,
};

#endif
