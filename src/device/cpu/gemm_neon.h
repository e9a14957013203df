/* gemm_neon.h - shared by the files of the AArch64 kernels only: gemm_neon.c, gemm_neon_bf16.c, gemm_neon_f16.c and
 * gemm_neon_split.c multiply packed panels, gemm_few_neon*.c multiply few rows by an unpacked B, gemm_neon_pack.c packs.
 *
 * The kernels' loops are written in assembly because the order of instructions determines the speed. Multiplying column by
 * column, with every load placed where its register becomes free, runs at 92 % (bfmmla) and 97 % (fmla) of the machine's
 * rate on a Neoverse V1; the orders used here exceed 99 %. They were found by moving instructions and measuring. Any order
 * that respects the data flow gives the same bits, because each accumulator sees its products in increasing k.
 *
 * A loop loads the operands of the next step before it knows whether there is one: hence GEMM_SLACK.
 */
#pragma once

#include "device/cpu/gemm_kernel.h"

#if defined(__aarch64__)
#include <arm_neon.h>

/* Functions that use FEAT_BF16 instructions. */
#if defined(__clang__)
#define GEMM_BF16_CODE __attribute__((target("bf16")))
#else
#define GEMM_BF16_CODE __attribute__((target("+bf16")))
#endif

enum { GEMM_NEON_MR = 8, GEMM_NEON_NR = 12 };

gemm_pack gemm_neon_f32_pack_a, gemm_neon_f32_pack_b, gemm_neon_bf16_pack_a, gemm_neon_bf16_pack_b;
gemm_pack gemm_neon_bf16_round_a, gemm_neon_bf16_round_b;
gemm_tile gemm_neon_f32_run;
gemm_round gemm_neon_round;

/* ---- assembly: the tile of C is in s8..s31, operands pass through v0..v7 ---- */

/* clang-format off */
/* The compiler gives the sums what is left of the registers; the loop calls them by their numbers. */
#define ACCUMULATORS                                                                  \
    float32x4_t c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, c16, c17, \
        c18, c19, c20, c21, c22, c23
#define ACCUMULATOR_OUTPUTS                                                           \
    [s8] "=w"(c0), [s9] "=w"(c1), [s10] "=w"(c2), [s11] "=w"(c3), \
    [s12] "=w"(c4), [s13] "=w"(c5), [s14] "=w"(c6), [s15] "=w"(c7), \
    [s16] "=w"(c8), [s17] "=w"(c9), [s18] "=w"(c10), [s19] "=w"(c11), \
    [s20] "=w"(c12), [s21] "=w"(c13), [s22] "=w"(c14), [s23] "=w"(c15), \
    [s24] "=w"(c16), [s25] "=w"(c17), [s26] "=w"(c18), [s27] "=w"(c19), \
    [s28] "=w"(c20), [s29] "=w"(c21), [s30] "=w"(c22), [s31] "=w"(c23)

#define ZERO(i) "movi %[s" #i "].4s, #0\n"
#define ZERO_ALL                                                                      \
    ZERO(8)  ZERO(9)  ZERO(10) ZERO(11) ZERO(12) ZERO(13) ZERO(14) ZERO(15) ZERO(16)  \
    ZERO(17) ZERO(18) ZERO(19) ZERO(20) ZERO(21) ZERO(22) ZERO(23) ZERO(24) ZERO(25)  \
    ZERO(26) ZERO(27) ZERO(28) ZERO(29) ZERO(30) ZERO(31)
#define LD(reg, base, off)  "ldr q" #reg ", [%[" #base "], #" #off "]\n"
#define ADD(base, n)        "add %[" #base "], %[" #base "], #" #n "\n"
#define STEP(n)             "subs %[n], %[n], #" #n "\n"
#define OPERAND_REGISTERS   "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7"
/* clang-format on */

/* ---- rows of C ---- */

/* Values added to a tile before it is stored to C: see struct gemm_onto. */
struct gemm_neon_start {
    const float *add; /* of the current row, or NULL */
    bool biased;
    float32x4_t bias[3];
};

/* Writes twelve columns; returns the start of the next row. */
static inline __attribute__((always_inline)) float *
gemm_put_row(float *c, int64_t ldc, float32x4_t x, float32x4_t y, float32x4_t z, struct gemm_neon_start *s)
{
    bool any = s->add || s->biased;
    float32x4_t p = s->bias[0], q = s->bias[1], r = s->bias[2];
    if (s->add) {
        float32x4_t u = vld1q_f32(s->add), v = vld1q_f32(s->add + 4), w = vld1q_f32(s->add + 8);
        p = s->biased ? vaddq_f32(u, p) : u;
        q = s->biased ? vaddq_f32(v, q) : v;
        r = s->biased ? vaddq_f32(w, r) : w;
        s->add += ldc;
    }
    vst1q_f32(c, any ? vaddq_f32(p, x) : x);
    vst1q_f32(c + 4, any ? vaddq_f32(q, y) : y);
    vst1q_f32(c + 8, any ? vaddq_f32(r, z) : z);
    return c + ldc;
}

/* PUT(&start) writes a tile's rows; instantiated for tiles with a bias, with an addition, and with
 * neither. */
#define GEMM_PUT_ONTO(onto, PUT)                                                                             \
    if ((onto)->bias) {                                                                                      \
        const float *bias = (onto)->bias;                                                                    \
        struct gemm_neon_start s = {                                                                         \
            (onto)->add, true, {vld1q_f32(bias), vld1q_f32(bias + 4), vld1q_f32(bias + 8)}};                 \
        PUT(&s);                                                                                             \
    } else if ((onto)->add) {                                                                                \
        struct gemm_neon_start s = {.add = (onto)->add};                                                     \
        PUT(&s);                                                                                             \
    } else {                                                                                                 \
        struct gemm_neon_start s = {0};                                                                      \
        PUT(&s);                                                                                             \
    }

static inline void gemm_put_tile(const float *tile, float *c, int64_t ldc, int rows,
                                 const struct gemm_onto *onto)
{
#define PUT_TILE(s)                                                                                          \
    for (int r = 0; r < rows; r++, tile += GEMM_NEON_NR)                                                     \
    c = gemm_put_row(c, ldc, vld1q_f32(tile), vld1q_f32(tile + 4), vld1q_f32(tile + 8), s)
    GEMM_PUT_ONTO(onto, PUT_TILE)
#undef PUT_TILE
}

/* Computes a whole tile: the loop of a kernel. */
typedef void gemm_neon_tile(const void *a, const void *b, int64_t k, float *c, int64_t ldc,
                            const struct gemm_onto *onto);

/* run_onto of a kernel; a tile with fewer rows is computed in separate memory. */
static inline __attribute__((always_inline)) void gemm_neon_onto(gemm_neon_tile *whole, const void *a,
                                                                 const void *b, int64_t k, float *c,
                                                                 int64_t ldc, int rows,
                                                                 const struct gemm_onto *onto)
{
    float tile[GEMM_NEON_MR * GEMM_NEON_NR];
    if (rows == GEMM_NEON_MR) {
        whole(a, b, k, c, ldc, onto);
    } else {
        whole(a, b, k, tile, GEMM_NEON_NR, &(struct gemm_onto){0});
        gemm_put_tile(tile, c, ldc, rows, onto);
    }
}

/* run of a kernel. */
static inline __attribute__((always_inline)) void gemm_neon_run(gemm_neon_tile *whole, const void *a,
                                                                const void *b, int64_t k, float *c,
                                                                int64_t ldc, int rows, bool accumulate)
{
    gemm_neon_onto(whole, a, b, k, c, ldc, rows, &(struct gemm_onto){.add = accumulate ? c : NULL});
}

#define GEMM_JOIN(half, x, y) vreinterpretq_f32_f64(half(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)))

/* Six 2x2 blocks form two rows of twelve. */
static inline __attribute__((always_inline)) float *gemm_put_pair(float *c, int64_t ldc, float32x4_t x0,
                                                                  float32x4_t x1, float32x4_t x2,
                                                                  float32x4_t x3, float32x4_t x4,
                                                                  float32x4_t x5, struct gemm_neon_start *s)
{
    c = gemm_put_row(c, ldc, GEMM_JOIN(vzip1q_f64, x0, x1), GEMM_JOIN(vzip1q_f64, x2, x3),
                     GEMM_JOIN(vzip1q_f64, x4, x5), s);
    return gemm_put_row(c, ldc, GEMM_JOIN(vzip2q_f64, x0, x1), GEMM_JOIN(vzip2q_f64, x2, x3),
                        GEMM_JOIN(vzip2q_f64, x4, x5), s);
}

/* Row pairs of 2x2 blocks, as bfmmla leaves them in c0 to c23; uses c and ldc of the function. */
#define GEMM_PUT_PAIRS(s)                                                                                    \
    c = gemm_put_pair(c, ldc, c0, c1, c2, c3, c4, c5, s);                                                    \
    c = gemm_put_pair(c, ldc, c6, c7, c8, c9, c10, c11, s);                                                  \
    c = gemm_put_pair(c, ldc, c12, c13, c14, c15, c16, c17, s);                                              \
    gemm_put_pair(c, ldc, c18, c19, c20, c21, c22, c23, s)

/* Four, or two times four, fp32 rounded to bf16. */
GEMM_BF16_CODE static inline __attribute__((always_inline)) uint16x4_t gemm_bfcvt(float32x4_t x)
{
    uint16x4_t y;
    __asm__("bfcvtn %0.4h, %1.4s" : "=w"(y) : "w"(x));
    return y;
}

GEMM_BF16_CODE static inline __attribute__((always_inline)) uint16x8_t gemm_bfcvt2(float32x4_t x,
                                                                                   float32x4_t y)
{
    uint16x8_t z = vcombine_u16(gemm_bfcvt(x), vdup_n_u16(0));
    __asm__("bfcvtn2 %0.8h, %1.4s" : "+w"(z) : "w"(y));
    return z;
}

/* Prefetches the memory that the end of a tile needs, before its products are computed. A separate tile is close; C
 * itself may be far away. Always inlined: gcc drops a call to a function that only prefetches. */
static inline __attribute__((always_inline)) void gemm_prefetch_tile(const float *c, int64_t ldc,
                                                                     const struct gemm_onto *onto)
{
    const float *far = onto->add ? onto->add : c;
    for (int64_t i = 0; i < onto->bytes; i += 64) __builtin_prefetch(onto->next + i, 0, 2);
    if (ldc == GEMM_NEON_NR) return;
    for (int m = 0; m < GEMM_NEON_MR; m++) {
        __builtin_prefetch(far + m * ldc, 1, 3);
        __builtin_prefetch(far + m * ldc + GEMM_NEON_NR - 1, 1, 3);
    }
}
#endif
