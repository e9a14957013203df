/* gemm_neon_pack.c - packing for the AArch64 kernels.
 *
 * Two directions for each type. Where k is contiguous a few lines are read along k and transposed in
 * registers. Where lines are contiguous the source is read a few k at a time across all panels: rows of the
 * source are then read whole, once, which matters when they are a power of two apart and would evict each
 * other from the cache before the next panel came back for them. Every store sequence fills the panel front
 * to back.
 *
 * Lines missing in the last panel: copies of the last line where lines are strided, whatever was there where
 * they are contiguous. Their products are never stored.
 */
#include "device/cpu/gemm_neon.h"
#include "base/minmax.h"

#if defined(__aarch64__)

#define INLINE static inline __attribute__((always_inline))

enum { AHEAD = 8 }; /* k steps to prefetch ahead where every k is another row of the source */

/* ---- fp32: panel[k][line] ---- */

static inline void transpose_4x4(float *dst, int width, const float *const row[4], int64_t i)
{
    float32x4_t r0 = vld1q_f32(row[0] + i), r1 = vld1q_f32(row[1] + i);
    float32x4_t r2 = vld1q_f32(row[2] + i), r3 = vld1q_f32(row[3] + i);
    float64x2_t t0 = vreinterpretq_f64_f32(vtrn1q_f32(r0, r1)),
                t1 = vreinterpretq_f64_f32(vtrn2q_f32(r0, r1));
    float64x2_t t2 = vreinterpretq_f64_f32(vtrn1q_f32(r2, r3)),
                t3 = vreinterpretq_f64_f32(vtrn2q_f32(r2, r3));
    vst1q_f32(dst, vreinterpretq_f32_f64(vzip1q_f64(t0, t2)));
    vst1q_f32(dst + width, vreinterpretq_f32_f64(vzip1q_f64(t1, t3)));
    vst1q_f32(dst + 2 * width, vreinterpretq_f32_f64(vzip2q_f64(t0, t2)));
    vst1q_f32(dst + 3 * width, vreinterpretq_f32_f64(vzip2q_f64(t1, t3)));
}

/* One panel of lines that are contiguous over k. */
INLINE void f32_panel_along_k(float *dst, int width, const float *src, int64_t ls, int64_t lines, int64_t k)
{
    const float *row[GEMM_NEON_NR];
    for (int l = 0; l < width; l++) row[l] = src + min64(l, lines - 1) * ls;
    int64_t i = 0;
    for (; i + 4 <= k; i += 4, dst += 4 * width) {
        for (int l = 0; l < width; l += 4) transpose_4x4(dst + l, width, row + l, i);
    }
    for (; i < k; i++, dst += width) {
        for (int l = 0; l < width; l++) dst[l] = row[l][i];
    }
}

/* Up to four k of a panel's `lines` contiguous lines; ks apart in the source. */
INLINE void f32_block_along_lines(float *dst, int width, const float *src, int64_t ks, int64_t k,
                                  int64_t lines)
{
    for (int64_t i = 0; i < k; i++, src += ks, dst += width) {
        int64_t l = 0;
        for (; l + 4 <= lines; l += 4) vst1q_f32(dst + l, vld1q_f32(src + l));
        for (; l < lines; l++) dst[l] = src[l];
    }
}

INLINE void f32_along_lines(float *dst, int64_t stride, int width, const float *src, int64_t ks,
                            int64_t lines, int64_t k)
{
    int64_t whole = lines / width * width;
    for (int64_t i = 0; i < k; i += 4) {
        int64_t here = min64(4, k - i);
        const float *from = src + i * ks;
        float *to = dst + i * width;
        for (int64_t l = 0; l < whole; l += 16) {
            for (int64_t p = 0; p < here; p++) __builtin_prefetch(from + (AHEAD + p) * ks + l, 0, 3);
        }
        for (int64_t l = 0; l < whole; l += width, to += stride) {
            f32_block_along_lines(to, width, from + l, ks, here, width);
        }
        if (whole < lines) f32_block_along_lines(to, width, from + whole, ks, here, lines - whole);
    }
}

INLINE void f32_pack(float *dst, int64_t stride, int width, const float *src, int64_t ls, int64_t ks,
                     int64_t lines, int64_t k)
{
    if (ls == 1) {
        f32_along_lines(dst, stride, width, src, ks, lines, k);
    } else if (ks == 1) {
        for (int64_t l = 0; l < lines; l += width, dst += stride) {
            f32_panel_along_k(dst, width, src + l * ls, ls, min64(width, lines - l), k);
        }
    } else {
        gemm_pack_f32_plain(dst, stride, width, src, ls, ks, lines, k);
    }
}

GEMM_PACK(gemm_neon_f32_pack_a, GEMM_NEON_MR, f32_pack)
GEMM_PACK(gemm_neon_f32_pack_b, GEMM_NEON_NR, f32_pack)

/* ---- bf16: panel[k / 4][line][k % 4] ---- */

/* Two lines, eight k: two steps of four. */
static inline void pair_of_lines(uint16_t *dst, int width, const uint16_t *x, const uint16_t *y)
{
    uint64x2_t a = vreinterpretq_u64_u16(vld1q_u16(x)), b = vreinterpretq_u64_u16(vld1q_u16(y));
    vst1q_u16(dst, vreinterpretq_u16_u64(vzip1q_u64(a, b)));
    vst1q_u16(dst + 4 * width, vreinterpretq_u16_u64(vzip2q_u64(a, b)));
}

INLINE void bf16_panel_along_k(uint16_t *dst, int width, const uint16_t *src, int64_t ls, int64_t lines,
                               int64_t k)
{
    const uint16_t *row[GEMM_NEON_NR];
    for (int l = 0; l < width; l++) row[l] = src + min64(l, lines - 1) * ls;
    int64_t i = 0;
    for (; i + 8 <= k; i += 8, dst += 8 * width) {
        for (int l = 0; l < width; l += 2) pair_of_lines(dst + 4 * l, width, row[l] + i, row[l + 1] + i);
    }
    for (; i < k; i += 4, dst += 4 * width) {
        for (int l = 0; l < width; l++) {
            for (int j = 0; j < 4; j++) dst[4 * l + j] = i + j < k ? row[l][i + j] : 0;
        }
    }
}

/* Four k of eight contiguous lines. */
static inline void transpose_4x8(uint16_t *dst, const uint16_t *src, int64_t ks)
{
    uint16x8_t r0 = vld1q_u16(src), r1 = vld1q_u16(src + ks);
    uint16x8_t r2 = vld1q_u16(src + 2 * ks), r3 = vld1q_u16(src + 3 * ks);
    uint32x4_t low01 = vreinterpretq_u32_u16(vzip1q_u16(r0, r1));
    uint32x4_t low23 = vreinterpretq_u32_u16(vzip1q_u16(r2, r3));
    uint32x4_t high01 = vreinterpretq_u32_u16(vzip2q_u16(r0, r1));
    uint32x4_t high23 = vreinterpretq_u32_u16(vzip2q_u16(r2, r3));
    vst1q_u16(dst, vreinterpretq_u16_u32(vzip1q_u32(low01, low23)));
    vst1q_u16(dst + 8, vreinterpretq_u16_u32(vzip2q_u32(low01, low23)));
    vst1q_u16(dst + 16, vreinterpretq_u16_u32(vzip1q_u32(high01, high23)));
    vst1q_u16(dst + 24, vreinterpretq_u16_u32(vzip2q_u32(high01, high23)));
}

/* Four k of four contiguous lines. */
static inline void transpose_4x4h(uint16_t *dst, const uint16_t *src, int64_t ks)
{
    uint16x4_t r0 = vld1_u16(src), r1 = vld1_u16(src + ks), r2 = vld1_u16(src + 2 * ks);
    uint16x4_t r3 = vld1_u16(src + 3 * ks);
    uint32x4_t r01 = vreinterpretq_u32_u16(vzip1q_u16(vcombine_u16(r0, r0), vcombine_u16(r1, r1)));
    uint32x4_t r23 = vreinterpretq_u32_u16(vzip1q_u16(vcombine_u16(r2, r2), vcombine_u16(r3, r3)));
    vst1q_u16(dst, vreinterpretq_u16_u32(vzip1q_u32(r01, r23)));
    vst1q_u16(dst + 8, vreinterpretq_u16_u32(vzip2q_u32(r01, r23)));
}

/* Four k of the `lines` first lines of a panel, eight and four at a time; what is left one by one. */
INLINE void bf16_block_along_lines(uint16_t *dst, const uint16_t *src, int64_t ks, int64_t lines)
{
    int64_t l = 0;
    for (; l + 8 <= lines; l += 8) transpose_4x8(dst + 4 * l, src + l, ks);
    for (; l + 4 <= lines; l += 4) transpose_4x4h(dst + 4 * l, src + l, ks);
    for (; l < lines; l++) {
        for (int j = 0; j < 4; j++) dst[4 * l + j] = src[l + j * ks];
    }
}

INLINE void bf16_along_lines(uint16_t *dst, int64_t stride, int width, const uint16_t *src, int64_t ks,
                             int64_t lines, int64_t k)
{
    int64_t whole = lines / width * width, even = k / 4 * 4;
    for (int64_t i = 0; i < even; i += 4) {
        const uint16_t *from = src + i * ks;
        uint16_t *to = dst + i * width;
        for (int64_t l = 0; l < whole; l += 32) {
            for (int64_t p = 0; p < 4; p++) __builtin_prefetch(from + (AHEAD + p) * ks + l, 0, 3);
        }
        for (int64_t l = 0; l < whole; l += width, to += stride) {
            bf16_block_along_lines(to, from + l, ks, width);
        }
        if (whole < lines) bf16_block_along_lines(to, from + whole, ks, lines - whole);
    }
    if (even < k) {
        gemm_pack_bf16_plain(dst + even * width, stride, width, 4, src + even * ks, 1, ks, lines, k - even);
    }
}

INLINE void bf16_pack(uint16_t *dst, int64_t stride, int width, const uint16_t *src, int64_t ls, int64_t ks,
                      int64_t lines, int64_t k)
{
    if (ls == 1) {
        bf16_along_lines(dst, stride, width, src, ks, lines, k);
    } else if (ks == 1) {
        for (int64_t l = 0; l < lines; l += width, dst += stride) {
            bf16_panel_along_k(dst, width, src + l * ls, ls, min64(width, lines - l), k);
        }
    } else {
        gemm_pack_bf16_plain(dst, stride, width, 4, src, ls, ks, lines, k);
    }
}

GEMM_PACK(gemm_neon_bf16_pack_a, GEMM_NEON_MR, bf16_pack)
GEMM_PACK(gemm_neon_bf16_pack_b, GEMM_NEON_NR, bf16_pack)

/* ---- bf16 from fp32 ---- */

/* Four k of two lines: one operand of bfmmla. */
GEMM_BF16_CODE INLINE void round_pair(uint16_t *dst, float32x4_t x, float32x4_t y)
{
    vst1q_u16(dst, gemm_bfcvt2(x, y));
}

GEMM_BF16_CODE INLINE void round_along_k(uint16_t *dst, int64_t stride, int width, const float *src,
                                         int64_t ls, int64_t lines, int64_t k)
{
    for (int64_t first = 0; first < lines; first += width, dst += stride) {
        const float *row[GEMM_NEON_NR];
        for (int l = 0; l < width; l++) row[l] = src + min64(first + l, lines - 1) * ls;
        uint16_t *to = dst;
        int64_t i = 0;
        for (; i + 4 <= k; i += 4, to += 4 * width) {
            for (int l = 0; l < width; l += 2)
                round_pair(to + 4 * l, vld1q_f32(row[l] + i), vld1q_f32(row[l + 1] + i));
        }
        for (int l = 0; i < k && l < width; l++) {
            for (int j = 0; j < 4; j++) to[4 * l + j] = i + j < k ? f32_to_bf16(row[l][i + j]) : 0;
        }
    }
}

/* Four k of four contiguous lines. */
GEMM_BF16_CODE INLINE void round_4x4(uint16_t *dst, const float *src, int64_t ks)
{
    float32x4_t r0 = vld1q_f32(src), r1 = vld1q_f32(src + ks);
    float32x4_t r2 = vld1q_f32(src + 2 * ks), r3 = vld1q_f32(src + 3 * ks);
    float32x4_t t0 = vtrn1q_f32(r0, r1), t1 = vtrn2q_f32(r0, r1), t2 = vtrn1q_f32(r2, r3),
                t3 = vtrn2q_f32(r2, r3);
    round_pair(dst, GEMM_JOIN(vzip1q_f64, t0, t2), GEMM_JOIN(vzip1q_f64, t1, t3));
    round_pair(dst + 8, GEMM_JOIN(vzip2q_f64, t0, t2), GEMM_JOIN(vzip2q_f64, t1, t3));
}

GEMM_BF16_CODE INLINE void round_along_lines(uint16_t *dst, int64_t stride, int width, const float *src,
                                             int64_t ks, int64_t lines, int64_t k)
{
    for (int64_t i = 0; i < k; i += 4) {
        for (int64_t l = 0; l < lines; l += 4) {
            uint16_t *to = dst + l / width * stride + i * width + l % width * 4;
            const float *from = src + i * ks + l;
            if (i + 4 <= k && l + 4 <= lines) {
                round_4x4(to, from, ks);
                continue;
            }
            for (int64_t e = 0; e < 16 && l + e / 4 < lines; e++) {
                to[e] = i + e % 4 < k ? f32_to_bf16(from[e % 4 * ks + e / 4]) : 0;
            }
        }
    }
}

/* Neither direction contiguous: one element at a time. */
static void round_strided(uint16_t *dst, int64_t stride, int width, const float *src, int64_t ls, int64_t ks,
                          int64_t lines, int64_t k)
{
    for (int64_t i = 0; i < (k + 3) / 4 * 4; i++) {
        for (int64_t l = 0; l < lines; l++) {
            uint16_t *to = dst + l / width * stride + (i / 4 * width + l % width) * 4 + i % 4;
            *to = i < k ? f32_to_bf16(src[l * ls + i * ks]) : 0;
        }
    }
}

GEMM_BF16_CODE INLINE void bf16_round(uint16_t *dst, int64_t stride, int width, const float *src, int64_t ls,
                                      int64_t ks, int64_t lines, int64_t k)
{
    if (ls == 1) {
        round_along_lines(dst, stride, width, src, ks, lines, k);
    } else if (ks == 1) {
        round_along_k(dst, stride, width, src, ls, lines, k);
    } else {
        round_strided(dst, stride, width, src, ls, ks, lines, k);
    }
}

GEMM_BF16_CODE GEMM_PACK(gemm_neon_bf16_round_a, GEMM_NEON_MR, bf16_round)
GEMM_BF16_CODE GEMM_PACK(gemm_neon_bf16_round_b, GEMM_NEON_NR, bf16_round)

#endif
