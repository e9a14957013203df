/* gemm_neon_few.c - few rows of A times a B that is read in place (AArch64).
 *
 * With a handful of rows (generation) every element of B is used a few times only: packing it would cost more
 * than the multiplication, so twelve lines of B are read along k and put in order in registers. The sums are
 * those of the packed kernels, product by product. The lines of the next panel are prefetched at the same k:
 * a line is too short for the hardware to notice the stream before it ends.
 */
#include "device/cpu/gemm_neon.h"

#if defined(__aarch64__)

enum { MR = GEMM_NEON_MR, NR = GEMM_NEON_NR };

/* ---- fp32: four k of four lines are transposed, then multiplied by lanes of A ---- */

struct quad {
    float32x4_t k[4];
};

static inline struct quad turned(const float *b, int64_t ls) {
    float32x4_t r0 = vld1q_f32(b), r1 = vld1q_f32(b + ls), r2 = vld1q_f32(b + 2 * ls),
                r3 = vld1q_f32(b + 3 * ls);
    float32x4_t t0 = vtrn1q_f32(r0, r1), t1 = vtrn2q_f32(r0, r1);
    float32x4_t t2 = vtrn1q_f32(r2, r3), t3 = vtrn2q_f32(r2, r3);
    struct quad q = {{GEMM_JOIN(vzip1q_f64, t0, t2), GEMM_JOIN(vzip1q_f64, t1, t3),
                      GEMM_JOIN(vzip2q_f64, t0, t2), GEMM_JOIN(vzip2q_f64, t1, t3)}};
    return q;
}

/* One to four lines, up to three k: the rest of a block. */
static inline struct quad gathered(const float *b, int64_t ls, int64_t k) {
    float x[4][4] = {{0}};
    for (int64_t i = 0; i < k; i++) {
        for (int l = 0; l < 4; l++) x[i][l] = b[l * ls + i];
    }
    struct quad q = {{vld1q_f32(x[0]), vld1q_f32(x[1]), vld1q_f32(x[2]), vld1q_f32(x[3])}};
    return q;
}

#define F32_FEW(R)                                                                                           \
    static void f32_few_##R(const float *a, const float *b, int64_t ls, int64_t k, float *tile) {            \
        float32x4_t s[R][3] = {{{0}}};                                                                       \
        for (int64_t i = 0; i < k; i += 4) {                                                                 \
            if (i % 16 == 0) {                                                                               \
                for (int l = 0; l < NR; l++) __builtin_prefetch(b + (NR + l) * ls + i, 0, 3);                \
            }                                                                                                \
            int64_t here = k - i < 4 ? k - i : 4;                                                            \
            for (int j = 0; j < 3; j++) {                                                                    \
                const float *at = b + 4 * j * ls + i;                                                        \
                struct quad q = here == 4 ? turned(at, ls) : gathered(at, ls, here);                         \
                for (int64_t p = 0; p < here; p++) {                                                         \
                    for (int r = 0; r < R; r++) s[r][j] = vfmaq_n_f32(s[r][j], q.k[p], a[(i + p) * MR + r]); \
                }                                                                                            \
            }                                                                                                \
        }                                                                                                    \
        for (int r = 0; r < R; r++) tile = gemm_put_row(tile, NR, s[r][0], s[r][1], s[r][2], false);         \
    }
F32_FEW(1)
F32_FEW(2)
F32_FEW(4)

void gemm_neon_f32_few(const void *a, const void *b, int64_t ls, int64_t k, float *c, int64_t ldc, int rows,
                       bool accumulate) {
    float tile[MR * NR];
    if (rows == 1) {
        f32_few_1(a, b, ls, k, tile);
    } else if (rows == 2) {
        f32_few_2(a, b, ls, k, tile);
    } else {
        f32_few_4(a, b, ls, k, tile);
        if (rows > 4) f32_few_4((const float *)a + 4, b, ls, k, tile + 4 * NR);
    }
    gemm_put_tile(tile, c, ldc, rows, accumulate);
}

/* ---- bf16: eight k of two lines are two operands of bfmmla ---- */

static inline uint16x8_t up_to_eight(const uint16_t *b, int64_t k) {
    uint16_t x[8] = {0};
    if (k >= 8) return vld1q_u16(b);
    memcpy(x, b, (size_t)k * sizeof *x);
    return vld1q_u16(x);
}

#define BF16_FEW(R)                                                                                          \
    GEMM_BF16_CODE static void bf16_few_##R(const uint16_t *a, const uint16_t *b, int64_t ls, int64_t k,     \
                                            float *tile) {                                                   \
        float32x4_t s[R][6] = {{{0}}};                                                                       \
        for (int64_t i = 0; i < k; i += 8, a += 8 * MR) {                                                    \
            if (i % 32 == 0) {                                                                               \
                for (int l = 0; l < NR; l++) __builtin_prefetch(b + (NR + l) * ls + i, 0, 3);                \
            }                                                                                                \
            for (int j = 0; j < 6; j++) {                                                                    \
                const uint16_t *at = b + 2 * j * ls + i;                                                     \
                uint64x2_t x = vreinterpretq_u64_u16(up_to_eight(at, k - i));                                \
                uint64x2_t y = vreinterpretq_u64_u16(up_to_eight(at + ls, k - i));                           \
                uint16x8_t first = vreinterpretq_u16_u64(vzip1q_u64(x, y));                                  \
                uint16x8_t second = vreinterpretq_u16_u64(vzip2q_u64(x, y));                                 \
                for (int r = 0; r < R; r++) s[r][j] = gemm_bfmmla(s[r][j], vld1q_u16(a + 8 * r), first);     \
                if (k - i <= 4) continue;                                                                    \
                for (int r = 0; r < R; r++) {                                                                \
                    s[r][j] = gemm_bfmmla(s[r][j], vld1q_u16(a + 4 * MR + 8 * r), second);                   \
                }                                                                                            \
            }                                                                                                \
        }                                                                                                    \
        for (int r = 0; r < R; r++) {                                                                        \
            tile = gemm_put_pair(tile, NR, s[r][0], s[r][1], s[r][2], s[r][3], s[r][4], s[r][5], false);     \
        }                                                                                                    \
    }
BF16_FEW(1)
BF16_FEW(2)

void gemm_neon_bf16_few(const void *a, const void *b, int64_t ls, int64_t k, float *c, int64_t ldc, int rows,
                        bool accumulate) {
    float tile[MR * NR];
    if (rows <= 2) {
        bf16_few_1(a, b, ls, k, tile);
    } else {
        bf16_few_2(a, b, ls, k, tile);
        if (rows > 4) bf16_few_2((const uint16_t *)a + 16, b, ls, k, tile + 4 * NR);
    }
    gemm_put_tile(tile, c, ldc, rows, accumulate);
}

#endif
