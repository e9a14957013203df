/* turn_avx512.h - numbers of each of sixteen lines, widened to fp32 and transposed; shared by packing and the kernels for few
 * rows only.
 *
 *     struct turned piece;                                     // 16-bit numbers, where k is contiguous
 *     turn_halves(&piece, b, step, b + TURN_AHEAD);            // TURNED of k of WIDE lines
 *     __m512 w = turned_f16(piece.held + turned_at(k));        // one k of all lines
 *
 * Numbers of 16 bits are turned before they are widened, which takes two fifths of the shuffles, and only one of the two units
 * that multiply can shuffle. They are stored, and widened by the loads that use them. */
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#include <stdint.h>

#define TURN_CODE   __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")))
#define TURN_INLINE static inline __attribute__((always_inline))

enum { WIDE = 16 }; /* lines, and numbers per line, that are transposed at once */

/* Sixteen numbers of a line, widened; those excluded by `here` are zero and not read. */
typedef __m512 load_wide(const char *b, __mmask16 here);

TURN_CODE TURN_INLINE __m512 wide_f32(const char *b, __mmask16 here)
{
    return _mm512_maskz_loadu_ps(here, b);
}

TURN_CODE TURN_INLINE __m512 wide_bf16(const char *b, __mmask16 here)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(here, b)), 16));
}

TURN_CODE TURN_INLINE __m512 wide_f16(const char *b, __mmask16 here)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(here, b));
}

TURN_CODE TURN_INLINE __mmask16 first(int64_t n) { return (__mmask16)(n < WIDE ? (1u << n) - 1 : 0xffff); }

/* w[i] = element i of all vectors. */
TURN_CODE TURN_INLINE void turn_16x16(__m512 w[WIDE])
{
    __m512 t[WIDE];
    for (int i = 0; i < WIDE; i += 2)
        t[i] = _mm512_unpacklo_ps(w[i], w[i + 1]), t[i + 1] = _mm512_unpackhi_ps(w[i], w[i + 1]);
    for (int i = 0; i < WIDE; i += 4)
        for (int j = 0; j < 2; j++) {
            __m512d x = _mm512_castps_pd(t[i + j]), y = _mm512_castps_pd(t[i + j + 2]);
            w[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
            w[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
        }
    for (int i = 0; i < WIDE; i += 8)
        for (int j = 0; j < 4; j++) {
            t[i + j] = _mm512_shuffle_f32x4(w[i + j], w[i + j + 4], 0x88);
            t[i + j + 4] = _mm512_shuffle_f32x4(w[i + j], w[i + j + 4], 0xdd);
        }
    for (int i = 0; i < 8; i++) {
        w[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        w[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    }
}

/* ---- 16 bits, turned before they are widened ---- */

enum {
    TURNED = 32,         /* of k: a cache line of each line, read once and whole */
    TURNED_RUN = 8,      /* of k that lie at even distances */
    TURN_AHEAD = 6 * 64, /* bytes of a line that are worth asking for */
};

/* [k / 16][k % 8][k / 8 % 2][line] */
struct turned {
    _Alignas(64) uint16_t held[TURNED * WIDE];
};

/* Where a k begins; it and the rest of its run are 2 * WIDE apart. */
TURN_INLINE int turned_at(int k) { return (k / 16 * 16 + k % 8 * 2 + k / 8 % 2) * WIDE; }

/* Reads WIDE lines, step bytes apart, and asks for the piece at `soon` of each. */
void turn_halves(struct turned *out, const char *b, int64_t step, const char *soon);

/* One k of all lines, widened. */
typedef __m512 widen_turned(const uint16_t *held);

TURN_CODE TURN_INLINE __m512 turned_f16(const uint16_t *held)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)held));
}

TURN_CODE TURN_INLINE __m512 turned_bf16(const uint16_t *held)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_load_si256((const __m256i *)(const void *)held));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
#endif
