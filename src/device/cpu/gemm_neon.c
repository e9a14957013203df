/* gemm_neon.c - AArch64 micro-kernels: fp32 by-element fmla and bf16 bfmmla, both with an 8x12 tile of C.
 *
 * The tile fills v8..v31; v0..v7 carry the operands. The loops are written out in assembly because the order of
 * the instructions decides the speed: multiplies column by column with every load placed where its register
 * becomes free run at 92 % (bfmmla) and 97 % (fmla) of the machine's rate on a Neoverse V1, the orders below at
 * over 99 %. They were found by moving instructions and measuring; any order that respects the data flow gives
 * the same bits, because each accumulator sees its products in increasing k.
 *
 * A loop loads the operands of the next step before it knows whether there is one: panels are followed by
 * GEMM_SLACK readable bytes.
 *
 * bfmmla multiplies a 2x4 block of A by a 4x2 block of B: an accumulator holds a 2x2 block of C, and rows are
 * put together at the end. Fewer than eight rows take smaller kernels with the same sums.
 */
#include "device/cpu/gemm_kernel.h"

#if defined(__aarch64__)
#include "device/cpu/gemm_neon.h"

/* clang-format off */
#define ACC(i, reg) register float32x4_t c##i __asm__(#reg)
#define ACCUMULATORS                                                                  \
    ACC(0, v8);   ACC(1, v9);   ACC(2, v10);  ACC(3, v11);  ACC(4, v12);  ACC(5, v13);  \
    ACC(6, v14);  ACC(7, v15);  ACC(8, v16);  ACC(9, v17);  ACC(10, v18); ACC(11, v19); \
    ACC(12, v20); ACC(13, v21); ACC(14, v22); ACC(15, v23); ACC(16, v24); ACC(17, v25); \
    ACC(18, v26); ACC(19, v27); ACC(20, v28); ACC(21, v29); ACC(22, v30); ACC(23, v31)
#define ACCUMULATOR_OUTPUTS                                                                                    \
    "=w"(c0), "=w"(c1), "=w"(c2), "=w"(c3), "=w"(c4), "=w"(c5), "=w"(c6), "=w"(c7), "=w"(c8), "=w"(c9),        \
        "=w"(c10), "=w"(c11), "=w"(c12), "=w"(c13), "=w"(c14), "=w"(c15), "=w"(c16), "=w"(c17), "=w"(c18),     \
        "=w"(c19), "=w"(c20), "=w"(c21), "=w"(c22), "=w"(c23)

/* The assembly's vocabulary. */
#define ZERO(i) "movi v" #i ".4s, #0\n"
#define ZERO_ALL                                                                      \
    ZERO(8)  ZERO(9)  ZERO(10) ZERO(11) ZERO(12) ZERO(13) ZERO(14) ZERO(15) ZERO(16)  \
    ZERO(17) ZERO(18) ZERO(19) ZERO(20) ZERO(21) ZERO(22) ZERO(23) ZERO(24) ZERO(25)  \
    ZERO(26) ZERO(27) ZERO(28) ZERO(29) ZERO(30) ZERO(31)
#define LD(reg, base, off)  "ldr q" #reg ", [%[" #base "], #" #off "]\n"
#define ADD(base, n)        "add %[" #base "], %[" #base "], #" #n "\n"
#define STEP(n)             "subs %[n], %[n], #" #n "\n"
#define FM(c, a, lane, b)   "fmla v" #c ".4s, v" #b ".4s, v" #a ".s[" #lane "]\n"
#define MM(c, a, b)         "bfmmla v" #c ".4s, v" #a ".8h, v" #b ".8h\n"
#define OPERAND_REGISTERS   "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7"

/* One column vector of B against the eight rows, lanes of two A registers: rows r of column vector j accumulate
 * in v(8 + 3r + j). */
#define FM_LOW0(a, b)  FM(8, a, 0, b)  FM(11, a, 1, b) FM(14, a, 2, b) FM(17, a, 3, b)
#define FM_HIGH0(a, b) FM(20, a, 0, b) FM(23, a, 1, b) FM(26, a, 2, b) FM(29, a, 3, b)
#define FM_LOW1(a, b)  FM(9, a, 0, b)  FM(12, a, 1, b) FM(15, a, 2, b) FM(18, a, 3, b)
#define FM_HIGH1(a, b) FM(21, a, 0, b) FM(24, a, 1, b) FM(27, a, 2, b) FM(30, a, 3, b)
#define FM_LOW2(a, b)  FM(10, a, 0, b) FM(13, a, 1, b) FM(16, a, 2, b) FM(19, a, 3, b)
#define FM_HIGH2(a, b) FM(22, a, 0, b) FM(25, a, 1, b) FM(28, a, 2, b) FM(31, a, 3, b)
/* clang-format on */

static inline void prefetch_tile(const float *c, int64_t ldc)
{
    for (int m = 0; m < GEMM_NEON_MR; m++) {
        __builtin_prefetch(c + m * ldc, 1, 3);
        __builtin_prefetch(c + m * ldc + GEMM_NEON_NR - 1, 1, 3);
    }
}

#define PUT(p, x) vst1q_f32(p, accumulate ? vaddq_f32(vld1q_f32(p), x) : (x))

static inline __attribute__((always_inline)) float *put_row(float *c, int64_t ldc, float32x4_t x,
                                                            float32x4_t y, float32x4_t z, bool accumulate)
{
    PUT(c, x);
    PUT(c + 4, y);
    PUT(c + 8, z);
    return c + ldc;
}

static void f32_8x12(const float *a, const float *b, int64_t k, float *c, int64_t ldc, bool accumulate)
{
    int64_t n = k;
    ACCUMULATORS;
    prefetch_tile(c, ldc);
    /* v0,v1 and v2,v3: the eight rows of A at even and odd k; v4,v5,v6: twelve columns of B. */
    /* clang-format off */
    __asm__ volatile(
        LD(0, a, 0) LD(4, b, 0) LD(1, a, 16) LD(5, b, 16) LD(6, b, 32) LD(2, a, 32) LD(3, a, 48)
        ZERO_ALL STEP(2) "b.lt 2f\n"
        ".p2align 6\n"
        "1:\n"
        FM_LOW0(0, 4) FM_HIGH0(1, 4) LD(4, b, 48)
        FM_LOW1(0, 5) FM_HIGH1(1, 5) LD(5, b, 64)
        FM_LOW2(0, 6) LD(0, a, 64) FM_HIGH2(1, 6) LD(1, a, 80) LD(6, b, 80)
        FM_LOW0(2, 4) FM_HIGH0(3, 4)
        FM(9, 2, 0, 5) FM(12, 2, 1, 5) FM(15, 2, 2, 5) LD(4, b, 96) FM(18, 2, 3, 5)
        FM_HIGH1(3, 5) LD(5, b, 112)
        FM_LOW2(2, 6) LD(2, a, 96) FM_HIGH2(3, 6) LD(3, a, 112) LD(6, b, 128)
        ADD(a, 64) ADD(b, 96) STEP(2) "b.ge 1b\n"
        "2:\n"
        "tbz %[n], #0, 3f\n"
        FM_LOW0(0, 4) FM_HIGH0(1, 4) FM_LOW1(0, 5) FM_HIGH1(1, 5) FM_LOW2(0, 6) FM_HIGH2(1, 6)
        "3:\n"
        : ACCUMULATOR_OUTPUTS, [a] "+r"(a), [b] "+r"(b), [n] "+r"(n)
        :
        : OPERAND_REGISTERS, "cc", "memory");
    /* clang-format on */
#define STORE_ROWS(add)                                                                                        \
    c = put_row(c, ldc, c0, c1, c2, add);                                                                      \
    c = put_row(c, ldc, c3, c4, c5, add);                                                                      \
    c = put_row(c, ldc, c6, c7, c8, add);                                                                      \
    c = put_row(c, ldc, c9, c10, c11, add);                                                                    \
    c = put_row(c, ldc, c12, c13, c14, add);                                                                   \
    c = put_row(c, ldc, c15, c16, c17, add);                                                                   \
    c = put_row(c, ldc, c18, c19, c20, add);                                                                   \
    put_row(c, ldc, c21, c22, c23, add)
    if (accumulate) {
        STORE_ROWS(true);
    } else {
        STORE_ROWS(false);
    }
}

#define JOIN(half, x, y)                                                                                       \
    vreinterpretq_f32_f64(half(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)))

/* Six 2x2 blocks are two rows of twelve. */
static inline __attribute__((always_inline)) float *put_pair(float *c, int64_t ldc, float32x4_t x0,
                                                             float32x4_t x1, float32x4_t x2, float32x4_t x3,
                                                             float32x4_t x4, float32x4_t x5, bool accumulate)
{
    c = put_row(c, ldc, JOIN(vzip1q_f64, x0, x1), JOIN(vzip1q_f64, x2, x3), JOIN(vzip1q_f64, x4, x5),
                accumulate);
    return put_row(c, ldc, JOIN(vzip2q_f64, x0, x1), JOIN(vzip2q_f64, x2, x3), JOIN(vzip2q_f64, x4, x5),
                   accumulate);
}

GEMM_BF16_CODE static void bf16_8x12(const uint16_t *a, const uint16_t *b, int64_t k, float *c, int64_t ldc, bool accumulate)
{
    int64_t n = (k + 3) / 4;
    ACCUMULATORS;
    prefetch_tile(c, ldc);
    /* v0..v3: row pairs of A; v4..v7: column pairs of B in turn, six per step of four k. The block of row pair r
     * and column pair j accumulates in v(8 + 6r + j). Two steps per turn of the loop. */
    /* clang-format off */
    __asm__ volatile(
        LD(0, a, 0) LD(4, b, 0) LD(1, a, 16) LD(2, a, 32) LD(3, a, 48) LD(5, b, 16) LD(6, b, 32) LD(7, b, 48)
        ZERO_ALL STEP(2) "b.lt 2f\n"
        ".p2align 6\n"
        "1:\n"
        MM(26, 3, 4) MM(8, 0, 4) MM(20, 2, 4) MM(14, 1, 4) LD(4, b, 64)
        MM(9, 0, 5) MM(10, 0, 6) MM(15, 1, 5) MM(11, 0, 7) MM(21, 2, 5) MM(27, 3, 5)
        MM(16, 1, 6) MM(22, 2, 6) MM(28, 3, 6) LD(5, b, 80)
        MM(17, 1, 7) MM(23, 2, 7) MM(29, 3, 7) MM(12, 0, 4) LD(7, b, 112) LD(6, b, 96)
        MM(24, 2, 4) MM(30, 3, 4) MM(18, 1, 4) LD(4, b, 128)
        MM(19, 1, 5) LD(1, a, 80) MM(13, 0, 5) MM(25, 2, 5) LD(0, a, 64) LD(2, a, 96)
        MM(31, 3, 5) LD(3, a, 112) LD(5, b, 144)
        MM(21, 2, 7) MM(8, 0, 6) MM(14, 1, 6) MM(20, 2, 6) MM(26, 3, 6) MM(15, 1, 7) MM(27, 3, 7) LD(6, b, 160)
        MM(30, 3, 6) MM(9, 0, 7) LD(7, b, 176)
        MM(10, 0, 4) MM(22, 2, 4) MM(16, 1, 4) MM(17, 1, 5) MM(28, 3, 4) LD(4, b, 192)
        MM(11, 0, 5) MM(23, 2, 5) MM(29, 3, 5) LD(5, b, 208)
        MM(19, 1, 7) MM(24, 2, 6) MM(12, 0, 6) MM(18, 1, 6) LD(6, b, 224)
        MM(13, 0, 7) LD(0, a, 128) LD(1, a, 144) MM(25, 2, 7) LD(2, a, 160) MM(31, 3, 7) LD(3, a, 176)
        ADD(a, 128) LD(7, b, 240) ADD(b, 192) STEP(2) "b.ge 1b\n"
        "2:\n"
        "tbz %[n], #0, 3f\n"
        MM(8, 0, 4) MM(14, 1, 4) MM(20, 2, 4) MM(26, 3, 4) LD(4, b, 64)
        MM(9, 0, 5) MM(15, 1, 5) MM(21, 2, 5) MM(27, 3, 5) LD(5, b, 80)
        MM(10, 0, 6) MM(16, 1, 6) MM(22, 2, 6) MM(28, 3, 6)
        MM(11, 0, 7) MM(17, 1, 7) MM(23, 2, 7) MM(29, 3, 7)
        MM(12, 0, 4) MM(18, 1, 4) MM(24, 2, 4) MM(30, 3, 4)
        MM(13, 0, 5) MM(19, 1, 5) MM(25, 2, 5) MM(31, 3, 5)
        "3:\n"
        : ACCUMULATOR_OUTPUTS, [a] "+r"(a), [b] "+r"(b), [n] "+r"(n)
        :
        : OPERAND_REGISTERS, "cc", "memory");
    /* clang-format on */
#define STORE_PAIRS(add)                                                                                       \
    c = put_pair(c, ldc, c0, c1, c2, c3, c4, c5, add);                                                         \
    c = put_pair(c, ldc, c6, c7, c8, c9, c10, c11, add);                                                       \
    c = put_pair(c, ldc, c12, c13, c14, c15, c16, c17, add);                                                   \
    put_pair(c, ldc, c18, c19, c20, c21, c22, c23, add)
    if (accumulate) {
        STORE_PAIRS(true);
    } else {
        STORE_PAIRS(false);
    }
}

/* Fewer rows: R vectors of rows (or row pairs) against the twelve columns, into a 8x12 tile beside C. */
#define F32_FEW(R)                                                                                             \
    static void f32_##R##x12(const float *a, const float *b, int64_t k, float *tile)                           \
    {                                                                                                          \
        float32x4_t s[R][3] = {{{0}}};                                                                         \
        for (int64_t i = 0; i < k; i++, a += GEMM_NEON_MR, b += GEMM_NEON_NR) {                                \
            float32x4_t b0 = vld1q_f32(b), b1 = vld1q_f32(b + 4), b2 = vld1q_f32(b + 8);                       \
            for (int r = 0; r < R; r++) {                                                                      \
                s[r][0] = vfmaq_n_f32(s[r][0], b0, a[r]);                                                      \
                s[r][1] = vfmaq_n_f32(s[r][1], b1, a[r]);                                                      \
                s[r][2] = vfmaq_n_f32(s[r][2], b2, a[r]);                                                      \
            }                                                                                                  \
        }                                                                                                      \
        for (int r = 0; r < R; r++) tile = put_row(tile, GEMM_NEON_NR, s[r][0], s[r][1], s[r][2], false);      \
    }
F32_FEW(1)
F32_FEW(2)
F32_FEW(4)

GEMM_BF16_CODE static inline float32x4_t bfmmla(float32x4_t sum, uint16x8_t a, uint16x8_t b)
{
    __asm__("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(a), "w"(b));
    return sum;
}

#define BF16_FEW(R)                                                                                            \
    GEMM_BF16_CODE static void bf16_##R##_pairs(const uint16_t *a, const uint16_t *b, int64_t k, float *tile)  \
    {                                                                                                          \
        float32x4_t s[R][6] = {{{0}}};                                                                         \
        for (int64_t i = 0; i < k; i += 4, a += 4 * GEMM_NEON_MR, b += 4 * GEMM_NEON_NR) {                     \
            for (int j = 0; j < 6; j++) {                                                                      \
                uint16x8_t bj = vld1q_u16(b + 8 * j);                                                          \
                for (int r = 0; r < R; r++) s[r][j] = bfmmla(s[r][j], vld1q_u16(a + 8 * r), bj);               \
            }                                                                                                  \
        }                                                                                                      \
        for (int r = 0; r < R; r++) {                                                                          \
            tile = put_pair(tile, GEMM_NEON_NR, s[r][0], s[r][1], s[r][2], s[r][3], s[r][4], s[r][5], false);  \
        }                                                                                                      \
    }
BF16_FEW(1)
BF16_FEW(2)

static void put_tile(const float *tile, float *c, int64_t ldc, int rows, bool accumulate)
{
    for (int r = 0; r < rows; r++, tile += GEMM_NEON_NR) {
        c = put_row(c, ldc, vld1q_f32(tile), vld1q_f32(tile + 4), vld1q_f32(tile + 8), accumulate);
    }
}

static void f32_run(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows, bool accumulate)
{
    float tile[GEMM_NEON_MR * GEMM_NEON_NR];
    if (rows == GEMM_NEON_MR) {
        f32_8x12(a, b, k, c, ldc, accumulate);
        return;
    }
    if (rows == 1) {
        f32_1x12(a, b, k, tile);
    } else if (rows == 2) {
        f32_2x12(a, b, k, tile);
    } else if (rows <= 4) {
        f32_4x12(a, b, k, tile);
    } else {
        f32_8x12(a, b, k, tile, GEMM_NEON_NR, false);
    }
    put_tile(tile, c, ldc, rows, accumulate);
}

static void bf16_run(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows, bool accumulate)
{
    float tile[GEMM_NEON_MR * GEMM_NEON_NR];
    if (rows == GEMM_NEON_MR) {
        bf16_8x12(a, b, k, c, ldc, accumulate);
        return;
    }
    if (rows <= 2) {
        bf16_1_pairs(a, b, k, tile);
    } else if (rows <= 4) {
        bf16_2_pairs(a, b, k, tile);
    } else {
        bf16_8x12(a, b, k, tile, GEMM_NEON_NR, false);
    }
    put_tile(tile, c, ldc, rows, accumulate);
}

static void round_plain(uint16_t *c, int64_t ldc, const float *tile, int rows, int cols)
{
    gemm_round_plain(c, ldc, tile, GEMM_NEON_NR, rows, cols);
}

GEMM_BF16_CODE static inline uint16x4_t bfcvtn(float32x4_t x)
{
    uint16x4_t y;
    __asm__("bfcvtn %0.4h, %1.4s" : "=w"(y) : "w"(x));
    return y;
}

GEMM_BF16_CODE static void round_bfcvt(uint16_t *c, int64_t ldc, const float *tile, int rows, int cols)
{
    if (cols < GEMM_NEON_NR) {
        round_plain(c, ldc, tile, rows, cols);
        return;
    }
    for (int m = 0; m < rows; m++, c += ldc, tile += GEMM_NEON_NR) {
        for (int n = 0; n < GEMM_NEON_NR; n += 4) vst1_u16(c + n, bfcvtn(vld1q_f32(tile + n)));
    }
}

const struct gemm_kernel gemm_neon_f32 = {
    .name = "neon fmla 8x12",
    .mr = GEMM_NEON_MR,
    .nr = GEMM_NEON_NR,
    .kg = 1,
    .type = DT_F32,
    .pack_a = gemm_neon_f32_pack_a,
    .pack_b = gemm_neon_f32_pack_b,
    .run = f32_run,
    .round = round_plain,
};

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
};

#endif
