/* gemm_x86_pack.c - packing for the x86-64 kernels; see gemm_x86.h.
 *
 * Where k is contiguous, four lines are read along k and 4x4 cells transposed. Where lines are contiguous the
 * source is read a few k at a time across all panels, so that its rows are read whole, once. Missing lines of
 * the last panel: copies of the last line where lines are strided, zero where they are contiguous.
 */
#include "device/cpu/gemm_x86.h"

#if defined(__x86_64__)
#include <emmintrin.h>

#define INLINE static inline __attribute__((always_inline))

enum { MOST_LINES = 32 };

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE __m128 load_cells(const char *at)
{
    return _mm_castsi128_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
}

/* ---- lines strided, k contiguous: cells[k][line] from lines[line][k] ---- */

/* Four cells of each of four lines. */
INLINE void turn_4x4(float *dst, int width, const char *const line[4], int64_t at)
{
    __m128 r0 = load_cells(line[0] + at), r1 = load_cells(line[1] + at);
    __m128 r2 = load_cells(line[2] + at), r3 = load_cells(line[3] + at);
    _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
    _mm_storeu_ps(dst, r0);
    _mm_storeu_ps(dst + width, r1);
    _mm_storeu_ps(dst + 2 * width, r2);
    _mm_storeu_ps(dst + 3 * width, r3);
}

/* Four cells of each of two lines. */
INLINE void turn_2x4(float *dst, int width, const char *const line[2], int64_t at)
{
    __m128 r0 = load_cells(line[0] + at), r1 = load_cells(line[1] + at);
    __m128 low = _mm_unpacklo_ps(r0, r1), high = _mm_unpackhi_ps(r0, r1);
    _mm_storel_pi((__m64 *)(void *)dst, low);
    _mm_storeh_pi((__m64 *)(void *)(dst + width), low);
    _mm_storel_pi((__m64 *)(void *)(dst + 2 * width), high);
    _mm_storeh_pi((__m64 *)(void *)(dst + 3 * width), high);
}

/* One panel; ls in bytes. Returns how many cells of each line were packed: a multiple of four. */
INLINE int64_t panel_along_k(float *dst, int width, const char *src, int64_t ls, int64_t lines, int64_t cells)
{
    const char *line[MOST_LINES];
    int64_t i = 0;
    for (int l = 0; l < width; l++) line[l] = src + least(l, lines - 1) * ls;
    for (; i + 4 <= cells; i += 4, dst += 4 * width) {
        int l = 0;
        for (; l + 4 <= width; l += 4) turn_4x4(dst + l, width, line + l, 4 * i);
        for (; l + 2 <= width; l += 2) turn_2x4(dst + l, width, line + l, 4 * i);
    }
    return i;
}

/* ---- fp32 ---- */

INLINE void f32_along_lines(float *dst, int64_t stride, int width, const float *src, int64_t ks,
                            int64_t lines, int64_t k)
{
    int64_t whole = lines / width * width;
    for (int64_t i = 0; i < k; i += 4) {
        int64_t stop = least(i + 4, k);
        for (int64_t l = 0; l < whole; l += width) {
            for (int64_t p = i; p < stop; p++) {
                memcpy(dst + l / width * stride + p * width, src + p * ks + l, (size_t)width * sizeof *dst);
            }
        }
    }
    gemm_pack_f32_plain(dst + whole / width * stride, stride, width, src + whole, 1, ks, lines - whole, k);
}

INLINE void f32_along_k(float *dst, int64_t stride, int width, const float *src, int64_t ls, int64_t lines,
                        int64_t k)
{
    for (int64_t l = 0; l < lines; l += width, dst += stride) {
        int64_t here = least(width, lines - l);
        const float *from = src + l * ls;
        int64_t done = panel_along_k(dst, width, (const char *)from, ls * 4, here, k);
        gemm_pack_f32_plain(dst + done * width, stride, width, from + done, ls, 1, here, k - done);
    }
}

INLINE void f32_pack(void *dst, int64_t stride, int width, const void *src, int64_t ls, int64_t ks,
                     int64_t lines, int64_t k)
{
    if (ls == 1) {
        f32_along_lines(dst, stride, width, src, ks, lines, k);
    } else if (ks == 1) {
        f32_along_k(dst, stride, width, src, ls, lines, k);
    } else {
        gemm_pack_f32_plain(dst, stride, width, src, ls, ks, lines, k);
    }
}

GEMM_PACK(gemm_x86_f32_pack_6, 6, f32_pack)
GEMM_PACK(gemm_x86_f32_pack_16, 16, f32_pack)

/* ---- bf16, two k to a cell ---- */

/* Two k of up to eight contiguous lines. */
INLINE void pair_lines(uint16_t *dst, const uint16_t *x, const uint16_t *y, int lines)
{
    if (lines == 8) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)x);
        __m128i b = _mm_loadu_si128((const __m128i *)(const void *)y);
        _mm_storeu_si128((__m128i *)(void *)dst, _mm_unpacklo_epi16(a, b));
        _mm_storeu_si128((__m128i *)(void *)(dst + 8), _mm_unpackhi_epi16(a, b));
    } else {
        for (int l = 0; l < lines; l++) dst[2 * l] = x[l], dst[2 * l + 1] = y[l];
    }
}

INLINE void bf16_along_lines(uint16_t *dst, int64_t stride, int width, const uint16_t *src, int64_t ks,
                             int64_t lines, int64_t k)
{
    int64_t whole = lines / width * width, even = k / 2 * 2;
    for (int64_t i = 0; i < even; i += 2) {
        const uint16_t *from = src + i * ks;
        for (int64_t l = 0; l < whole; l += width) {
            uint16_t *to = dst + l / width * stride + i * width;
            for (int p = 0; p < width; p += 8) {
                pair_lines(to + 2 * p, from + l + p, from + ks + l + p, width - p < 8 ? width - p : 8);
            }
        }
    }
    if (even < k) {
        gemm_pack_bf16_plain(dst + even * width, stride, width, 2, src + even * ks, 1, ks, whole, k - even);
    }
    gemm_pack_bf16_plain(dst + whole / width * stride, stride, width, 2, src + whole, 1, ks, lines - whole,
                         k);
}

INLINE void bf16_along_k(uint16_t *dst, int64_t stride, int width, const uint16_t *src, int64_t ls,
                         int64_t lines, int64_t k)
{
    for (int64_t l = 0; l < lines; l += width, dst += stride) {
        int64_t here = least(width, lines - l);
        const uint16_t *from = src + l * ls;
        int64_t done =
            2 * panel_along_k((float *)(void *)dst, width, (const char *)from, ls * 2, here, k / 2);
        gemm_pack_bf16_plain(dst + done * width, stride, width, 2, from + done, ls, 1, here, k - done);
    }
}

INLINE void bf16_pack(void *dst, int64_t stride, int width, const void *src, int64_t ls, int64_t ks,
                      int64_t lines, int64_t k)
{
    if (ls == 1) {
        bf16_along_lines(dst, stride, width, src, ks, lines, k);
    } else if (ks == 1) {
        bf16_along_k(dst, stride, width, src, ls, lines, k);
    } else {
        gemm_pack_bf16_plain(dst, stride, width, 2, src, ls, ks, lines, k);
    }
}

GEMM_PACK(gemm_x86_bf16_pack_14, 14, bf16_pack)
GEMM_PACK(gemm_x86_bf16_pack_32, 32, bf16_pack)

#endif
