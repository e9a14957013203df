/* gemm_avx512_pack.c - packing for the AVX-512 kernel of fp32, from fp32, bf16 or fp16, which are widened on the way; see gemm_kernel.h.
 *
 * Where k is contiguous, sixteen lines are read sixteen at a time and turned; of 16 bits, a cache line of each. Where lines are
 * contiguous, each k is a copy. Missing lines of the last panel are zero. */
#include "device/cpu/gemm_x86.h"
#include "device/cpu/turn_avx512.h"

#if defined(__x86_64__)
#include "device/cpu/vec_base.h"

/* One panel of `lines` lines over k, `width` of them apart; step in bytes. */
TURN_CODE TURN_INLINE void panel_along_k(load_wide *load, int size, float *dst, int width, const char *src,
                                         int64_t step, int64_t lines, int64_t k)
{
    for (int64_t i = 0; i < k; i += WIDE, dst += WIDE * width, src += WIDE * size) {
        __mmask16 here = first(k - i);
        int deep = (int)(k - i < WIDE ? k - i : WIDE);
        for (int l = 0; l < width; l += WIDE) {
            __mmask16 wanted = first(width - l);
            __m512 w[WIDE];
            for (int j = 0; j < WIDE; j++)
                w[j] = l + j < lines ? load(src + (l + j) * step, here) : _mm512_setzero_ps();
            turn_16x16(w);
            for (int j = 0; j < deep; j++) _mm512_mask_storeu_ps(dst + j * width + l, wanted, w[j]);
        }
    }
}

/* A panel of 16 bits, k in whole pieces; WIDE lines can be read wherever a group begins. `next` is read after it. */
TURN_CODE TURN_INLINE void panel_of_pieces(widen_turned *wide, float *dst, int width, const char *src,
                                           int64_t step, int64_t k, const char *next)
{
    struct turned piece;
    for (int l = 0; l < width; l += WIDE, src += WIDE * step) {
        const char *then = l + WIDE < width ? src + WIDE * step : next;
        for (int64_t i = 0; i < k; i += TURNED) {
            int64_t soon = 2 * i + TURN_AHEAD;
            float *to = dst + i * width + l;
            turn_halves(&piece, src + 2 * i, step, soon < 2 * k ? src + soon : then + soon - 2 * k);
            VEC_UNROLL(32)
            for (int j = 0; j < TURNED; j++)
                _mm512_mask_storeu_ps(to + j * width, first(width - l), wide(piece.held + turned_at(j)));
        }
    }
}

TURN_CODE TURN_INLINE void panel_along_lines(load_wide *load, int size, float *dst, int width,
                                             const char *src, int64_t step, int64_t lines, int64_t k)
{
    for (int64_t i = 0; i < k; i++, dst += width, src += step)
        for (int l = 0; l < width; l += WIDE)
            _mm512_mask_storeu_ps(dst + l, first(width - l),
                                  l < lines ? load(src + l * size, first(lines - l)) : _mm512_setzero_ps());
}

/* Strides of any kind, one number at a time. */
TURN_CODE TURN_INLINE void panel_scattered(load_wide *load, int size, float *dst, int width, const char *src,
                                           int64_t ls, int64_t ks, int64_t lines, int64_t k)
{
    for (int64_t i = 0; i < k; i++)
        for (int l = 0; l < width; l++)
            dst[i * width + l] = l < lines ? _mm512_cvtss_f32(load(src + (l * ls + i * ks) * size, 1)) : 0.0f;
}

/* `wide` is NULL for fp32. */
TURN_CODE TURN_INLINE void pack(load_wide *load, widen_turned *wide, int size, int width, void *dst,
                                int64_t stride, const void *src, int64_t ls, int64_t ks, int64_t lines,
                                int64_t k)
{
    int64_t whole = k / TURNED * TURNED, readable = (width + WIDE - 1) / WIDE * WIDE;
    for (int64_t l = 0; l < lines; l += width) {
        float *to = (float *)dst + l / width * stride;
        const char *from = (const char *)src + l * ls * size;
        int64_t here = lines - l < width ? lines - l : width;
        if (wide && ks == 1 && lines - l >= readable) {
            const char *next = lines - l >= width + readable ? from + width * ls * size : from;
            panel_of_pieces(wide, to, width, from, ls * size, whole, next);
            panel_along_k(load, size, to + whole * width, width, from + whole * size, ls * size, width,
                          k - whole);
        } else if (ks == 1 && here == width)
            panel_along_k(load, size, to, width, from, ls * size, width, k);
        else if (ks == 1)
            panel_along_k(load, size, to, width, from, ls * size, here, k);
        else if (ls == 1)
            panel_along_lines(load, size, to, width, from, ks * size, here, k);
        else
            panel_scattered(load, size, to, width, from, ls, ks, here, k);
    }
}

#define PACK(type, size, width, wide)                                                                        \
    TURN_CODE void gemm_avx512_##type##_pack_##width(void *dst, int64_t stride, const void *src, int64_t ls, \
                                                     int64_t ks, int64_t lines, int64_t k)                   \
    {                                                                                                        \
        pack(wide_##type, wide, size, width, dst, stride, src, ls, ks, lines, k);                            \
    }
PACK(f32, 4, 14, NULL)
PACK(f32, 4, 32, NULL)
PACK(bf16, 2, 14, turned_bf16)
PACK(bf16, 2, 32, turned_bf16)
PACK(f16, 2, 14, turned_f16)
PACK(f16, 2, 32, turned_f16)

#endif
