/* gemm_neon.c - the fp32 micro-kernel of AArch64: by-element fmla, an 8x12 tile of C. See gemm_neon.h. */
#include "device/cpu/gemm_neon.h"

#if defined(__aarch64__)

/* clang-format off */
#define FM(c, a, lane, b) "fmla %[s" #c "].4s, v" #b ".4s, v" #a ".s[" #lane "]\n"

/* One column vector of B against the eight rows, lanes of two A registers: row r of column vector j
 * accumulates in s(8 + 3r + j). */
#define FM_LOW0(a, b)  FM(8, a, 0, b)  FM(11, a, 1, b) FM(14, a, 2, b) FM(17, a, 3, b)
#define FM_HIGH0(a, b) FM(20, a, 0, b) FM(23, a, 1, b) FM(26, a, 2, b) FM(29, a, 3, b)
#define FM_LOW1(a, b)  FM(9, a, 0, b)  FM(12, a, 1, b) FM(15, a, 2, b) FM(18, a, 3, b)
#define FM_HIGH1(a, b) FM(21, a, 0, b) FM(24, a, 1, b) FM(27, a, 2, b) FM(30, a, 3, b)
#define FM_LOW2(a, b)  FM(10, a, 0, b) FM(13, a, 1, b) FM(16, a, 2, b) FM(19, a, 3, b)
#define FM_HIGH2(a, b) FM(22, a, 0, b) FM(25, a, 1, b) FM(28, a, 2, b) FM(31, a, 3, b)
/* clang-format on */

static void f32_8x12(const void *a, const void *b, int64_t k, float *c, int64_t ldc,
                     const struct gemm_onto *onto)
{
    int64_t n = k;
    ACCUMULATORS;
    gemm_prefetch_tile(c, ldc, onto);
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
#define PUT_ROWS(s)                                                                                          \
    c = gemm_put_row(c, ldc, c0, c1, c2, s);                                                                 \
    c = gemm_put_row(c, ldc, c3, c4, c5, s);                                                                 \
    c = gemm_put_row(c, ldc, c6, c7, c8, s);                                                                 \
    c = gemm_put_row(c, ldc, c9, c10, c11, s);                                                               \
    c = gemm_put_row(c, ldc, c12, c13, c14, s);                                                              \
    c = gemm_put_row(c, ldc, c15, c16, c17, s);                                                              \
    c = gemm_put_row(c, ldc, c18, c19, c20, s);                                                              \
    gemm_put_row(c, ldc, c21, c22, c23, s)
    GEMM_PUT_ONTO(onto, PUT_ROWS)
}

static void f32_onto(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows,
                     const struct gemm_onto *onto)
{
    gemm_neon_onto(f32_8x12, a, b, k, c, ldc, rows, onto);
}

void gemm_neon_f32_run(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows,
                       bool accumulate)
{
    gemm_neon_run(f32_8x12, a, b, k, c, ldc, rows, accumulate);
}

void gemm_neon_round(uint16_t *c, int64_t ldc, const float *tile, int rows, int cols)
{
    gemm_round_plain(c, ldc, tile, GEMM_NEON_NR, rows, cols);
}

const struct gemm_kernel gemm_neon_f32 = {
    .name = "neon fmla 8x12",
    .mr = GEMM_NEON_MR,
    .nr = GEMM_NEON_NR,
    .kg = 1,
    .type = DT_F32,
    .pack_a = {[DT_F32] = gemm_neon_f32_pack_a},
    .pack_b = {[DT_F32] = gemm_neon_f32_pack_b},
    .run = gemm_neon_f32_run,
    .round = gemm_neon_round,
    .run_onto = f32_onto,
};

#endif
