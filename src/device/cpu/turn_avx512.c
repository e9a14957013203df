/* turn_avx512.c - see turn_avx512.h. Not inline: between other loops, compilers keep what is loaded here in memory. */
#include "device/cpu/turn_avx512.h"

#if defined(__x86_64__)

/* Eight lines: eight of k in each quarter of a register become one of k of all lines. */
TURN_CODE TURN_INLINE void turn_eight(__m512i out[8], const char *b, int64_t step)
{
    const char *b3 = b + 3 * step, *b6 = b3 + 3 * step;
    __m512i r[8] = {_mm512_loadu_si512(b),  _mm512_loadu_si512(b + step),  _mm512_loadu_si512(b + 2 * step),
                    _mm512_loadu_si512(b3), _mm512_loadu_si512(b3 + step), _mm512_loadu_si512(b3 + 2 * step),
                    _mm512_loadu_si512(b6), _mm512_loadu_si512(b6 + step)};
    __m512i two[8], four[8];
    for (int i = 0; i < 8; i += 2)
        two[i] = _mm512_unpacklo_epi16(r[i], r[i + 1]), two[i + 1] = _mm512_unpackhi_epi16(r[i], r[i + 1]);
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++)
            four[i + 2 * j] = _mm512_unpacklo_epi32(two[i + j], two[i + j + 2]),
                         four[i + 2 * j + 1] = _mm512_unpackhi_epi32(two[i + j], two[i + j + 2]);
    for (int i = 0; i < 4; i++)
        out[2 * i] = _mm512_unpacklo_epi64(four[i], four[i + 4]),
                out[2 * i + 1] = _mm512_unpackhi_epi64(four[i], four[i + 4]);
}

TURN_CODE void turn_halves(struct turned *out, const char *b, int64_t step, const char *soon)
{
    const __m512i near = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                  far = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    __m512i r[8], s[8];
    turn_eight(r, b, step);
    turn_eight(s, b + 8 * step, step);
    for (int l = 0; l < WIDE; l++, soon += step) _mm_prefetch(soon, _MM_HINT_T0);
    for (int i = 0; i < 8; i++) {
        _mm512_store_si512(out->held + turned_at(i), _mm512_permutex2var_epi64(r[i], near, s[i]));
        _mm512_store_si512(out->held + turned_at(16 + i), _mm512_permutex2var_epi64(r[i], far, s[i]));
    }
}

#endif
