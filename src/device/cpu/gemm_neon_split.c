/* gemm_neon_split.c - fp32 products by bfmmla: see gemm.h for what two parts mean, and gemm_neon.h.
 *
 * Of two parts of A and two of B three products are made: a0 b1, a0 b0 and a1 b0. bfmmla has four times the rate of fmla, and so they
 * take three quarters of fp32's time.
 */
#include "device/cpu/gemm_neon.h"
#include "base/minmax.h"

#if defined(__aarch64__)

#define INLINE GEMM_BF16_CODE static inline __attribute__((always_inline))

enum {
    KG = 8,
    STEP_K = 4, /* of bfmmla: a group of k has two steps */
    PARTS = 2,
};

/* ---- products ---- */

#define MM(c, a, b) "bfmmla %[s" #c "].4s, v" #a ".8h, v" #b ".8h\n"

/* v0..v3: row pairs of a part of A; v4..v7: column pairs of B in turn. The block of row pair r and column pair j accumulates in
 * s(8 + 6r + j). In a step b1 comes first, then b0, both with a0; four pairs of b0 stay for a1, and two are loaded again. */
GEMM_BF16_CODE static void split_8x12(const void *a, const void *b, int64_t k, float *c, int64_t ldc,
                                      const struct gemm_onto *onto)
{
    int64_t n = (k + KG - 1) / KG;
    ACCUMULATORS;
    gemm_prefetch_tile(c, ldc, onto);
    /* clang-format off */
    __asm__ volatile(
        LD(0, a, 0) LD(1, a, 16) LD(2, a, 32) LD(3, a, 48)
        LD(4, b, 0) LD(5, b, 16) LD(6, b, 32) LD(7, b, 48)
        ZERO_ALL STEP(1) "b.lt 2f\n"
        ".p2align 6\n"
        "1:\n"
        MM(14, 1, 4) MM(9, 0, 5) MM(8, 0, 4) MM(20, 2, 4) MM(26, 3, 4) MM(10, 0, 6) MM(21, 2, 5)
        MM(15, 1, 5) LD(4, b, 64) MM(22, 2, 6) MM(27, 3, 5) MM(16, 1, 6) MM(11, 0, 7) MM(28, 3, 6)
        MM(12, 0, 4) LD(5, b, 80) MM(17, 1, 7) MM(29, 3, 7) MM(18, 1, 4) MM(23, 2, 7) MM(24, 2, 4)
        MM(13, 0, 5) LD(6, b, 96) MM(30, 3, 4) MM(25, 2, 5) MM(31, 3, 5) MM(19, 1, 5) LD(4, b, 128)
        LD(7, b, 112) MM(8, 0, 6) MM(9, 0, 7) MM(26, 3, 6) LD(5, b, 144) MM(15, 1, 7) MM(20, 2, 6)
        MM(27, 3, 7) MM(14, 1, 6) MM(21, 2, 7) MM(11, 0, 5) MM(16, 1, 4) MM(10, 0, 4) MM(22, 2, 4)
        MM(28, 3, 4) LD(6, b, 160) MM(29, 3, 5) MM(17, 1, 5) LD(7, b, 176) MM(24, 2, 6) MM(18, 1, 6)
        MM(12, 0, 6) MM(23, 2, 5) MM(30, 3, 6) MM(13, 0, 7) LD(0, a, 64) MM(19, 1, 7) LD(1, a, 80)
        MM(25, 2, 7) MM(16, 1, 4) LD(2, a, 96) MM(31, 3, 7) LD(3, a, 112) MM(22, 2, 4) MM(10, 0, 4)
        MM(28, 3, 4) LD(4, b, 96) MM(11, 0, 5) MM(17, 1, 5) MM(29, 3, 5) MM(23, 2, 5) MM(12, 0, 6)
        MM(18, 1, 6) LD(5, b, 112) MM(24, 2, 6) MM(21, 2, 5) MM(30, 3, 6) MM(13, 0, 7) MM(19, 1, 7)
        LD(6, b, 192) MM(25, 2, 7) MM(31, 3, 7) MM(14, 1, 4) MM(20, 2, 4) LD(2, a, 160) MM(26, 3, 4)
        MM(8, 0, 4) LD(4, b, 224) LD(7, b, 208) MM(9, 0, 5) MM(15, 1, 5) LD(1, a, 144) MM(27, 3, 5)
        LD(5, b, 240) LD(0, a, 128) MM(8, 0, 6) LD(3, a, 176) MM(26, 3, 6) MM(15, 1, 7) MM(9, 0, 7)
        MM(20, 2, 6) MM(27, 3, 7) MM(16, 1, 4) MM(14, 1, 6) LD(6, b, 256) MM(21, 2, 7) MM(10, 0, 4)
        MM(22, 2, 4) MM(28, 3, 4) MM(11, 0, 5) LD(7, b, 272) MM(23, 2, 5) MM(17, 1, 5) MM(29, 3, 5)
        MM(12, 0, 6) LD(4, b, 288) MM(24, 2, 6) MM(18, 1, 6) MM(30, 3, 6) LD(5, b, 304) MM(25, 2, 7)
        MM(13, 0, 7) MM(19, 1, 7) MM(31, 3, 7) MM(15, 1, 5) MM(14, 1, 4) LD(6, b, 320) MM(8, 0, 4)
        MM(20, 2, 4) MM(9, 0, 5) MM(26, 3, 4) MM(21, 2, 5) LD(7, b, 336) MM(27, 3, 5) LD(5, b, 368)
        MM(16, 1, 6) MM(10, 0, 6) MM(22, 2, 6) MM(11, 0, 7) MM(28, 3, 6) LD(4, b, 352) MM(17, 1, 7)
        MM(23, 2, 7) MM(12, 0, 4) MM(29, 3, 7) MM(24, 2, 4) MM(13, 0, 5) MM(30, 3, 4) LD(0, a, 192)
        MM(19, 1, 5) MM(18, 1, 4) MM(25, 2, 5) MM(11, 0, 7) MM(31, 3, 5) LD(2, a, 224) LD(1, a, 208)
        MM(10, 0, 6) MM(22, 2, 6) LD(3, a, 240) MM(16, 1, 6) MM(28, 3, 6) MM(23, 2, 7) MM(29, 3, 7)
        MM(12, 0, 4) MM(17, 1, 7) LD(6, b, 288) MM(24, 2, 4) MM(18, 1, 4) MM(30, 3, 4) LD(7, b, 304)
        MM(26, 3, 6) MM(9, 0, 7) LD(4, b, 384) MM(25, 2, 5) MM(13, 0, 5) MM(19, 1, 5) MM(31, 3, 5)
        LD(5, b, 400) MM(8, 0, 6) MM(20, 2, 6) MM(14, 1, 6) LD(0, a, 256) LD(6, b, 416) MM(15, 1, 7)
        LD(1, a, 272) MM(21, 2, 7) MM(27, 3, 7) LD(2, a, 288) LD(7, b, 432) LD(3, a, 304)
        ADD(a, 256) ADD(b, 384) STEP(1) "b.ge 1b\n"
        "2:\n"
        : ACCUMULATOR_OUTPUTS, [a] "+r"(a), [b] "+r"(b), [n] "+r"(n)
        :
        : OPERAND_REGISTERS, "cc", "memory");
    /* clang-format on */
    GEMM_PUT_ONTO(onto, GEMM_PUT_PAIRS)
}

static void run_onto(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows,
                     const struct gemm_onto *onto)
{
    gemm_neon_onto(split_8x12, a, b, k, c, ldc, rows, onto);
}

static void run(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows, bool accumulate)
{
    gemm_neon_run(split_8x12, a, b, k, c, ldc, rows, accumulate);
}

/* ---- packing: panel[k / 4][part][line][k % 4]; of A part 0 comes first, of B part 1 ---- */

INLINE float32x4_t widen(uint16x4_t x) { return vreinterpretq_f32_u32(vshll_n_u16(x, 16)); }

/* Four k of two lines; the parts go to places of their own. */
INLINE void put_parts(uint16_t *part0, uint16_t *part1, float32x4_t x, float32x4_t y)
{
    uint16x8_t parts = gemm_bfcvt2(x, y);
    vst1q_u16(part0, parts);
    x = vsubq_f32(x, widen(vget_low_u16(parts)));
    y = vsubq_f32(y, widen(vget_high_u16(parts)));
    vst1q_u16(part1, gemm_bfcvt2(x, y));
}

/* Numbers [i, i + 4) of a line, zeros behind k. */
INLINE float32x4_t four_of(const float *line, int64_t ks, int64_t i, int64_t k)
{
    float x[STEP_K] = {0};
    if (ks == 1 && i + STEP_K <= k) return vld1q_f32(line + i);
    for (int64_t j = 0; j < STEP_K && i + j < k; j++) x[j] = line[(i + j) * ks];
    return vld1q_f32(x);
}

INLINE void pack(uint16_t *dst, int64_t stride, int width, bool side_a, const float *src, int64_t ls,
                 int64_t ks, int64_t lines, int64_t k)
{
    int part0 = side_a ? 0 : STEP_K * width, part1 = side_a ? STEP_K * width : 0;
    for (int64_t first = 0; first < lines; first += width, dst += 2 * stride) {
        const float *row[GEMM_NEON_NR];
        for (int l = 0; l < width; l++) row[l] = src + min64(first + l, lines - 1) * ls;
        uint16_t *to = dst;
        for (int64_t i = 0; i < (k + KG - 1) / KG * KG; i += STEP_K, to += PARTS * STEP_K * width)
            for (int l = 0; l < width; l += 2)
                put_parts(to + part0 + STEP_K * l, to + part1 + STEP_K * l, four_of(row[l], ks, i, k),
                          four_of(row[l + 1], ks, i, k));
    }
}

GEMM_BF16_CODE static void pack_a(void *dst, int64_t stride, const void *src, int64_t ls, int64_t ks,
                                  int64_t lines, int64_t k)
{
    pack(dst, stride, GEMM_NEON_MR, true, src, ls, ks, lines, k);
}

GEMM_BF16_CODE static void pack_b(void *dst, int64_t stride, const void *src, int64_t ls, int64_t ks,
                                  int64_t lines, int64_t k)
{
    pack(dst, stride, GEMM_NEON_NR, false, src, ls, ks, lines, k);
}

const struct gemm_kernel gemm_neon_split = {
    .name = "neon bfmmla 8x12, fp32 in two parts",
    .mr = GEMM_NEON_MR,
    .nr = GEMM_NEON_NR,
    .kg = KG,
    .parts = PARTS,
    .own_bytes = 192 << 10,
    .type = DT_F32,
    .pack_a = {[DT_F32] = pack_a},
    .pack_b = {[DT_F32] = pack_b},
    .run = run,
    .run_onto = run_onto,
};

#endif
