/* gemm_few_x86.h - internal to the x86-64 kernels for few rows: transposing 8 lines of B.
 *
 * A cell is 32 bits of a line: an fp32, or two adjacent 16-bit numbers. Kernels along k have no prefetches if their loads
 * follow each other closely: the hardware tracks 64 lines well and measured up to a third faster without them. Rows read
 * across, a piece of each, do need prefetches. */
#pragma once

#include "device/cpu/gemm_few.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum {
    FEW_GROUP = 8,  /* lines transposed at once */
    FEW_LINES = 32, /* four groups: enough chains of sums to hide the latency of one */
};

gemm_few_multiply few_avx2_along_f16;                          /* gemm_few_avx2_f16.c */
gemm_few_multiply few_avx512_along_f16, few_avx512_along_bf16; /* gemm_few_avx512_halves.c */

/* r[i] = cell i of all lines, from r[line] = eight cells of a line. */
__attribute__((target("avx2"))) FEW_INLINE void few_turn_8x8(__m256i r[8])
{
    __m256i two[8], four[8];
    for (int i = 0; i < 8; i += 2)
        two[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]), two[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++)
            four[i + 2 * j] = _mm256_unpacklo_epi64(two[i + j], two[i + j + 2]),
                         four[i + 2 * j + 1] = _mm256_unpackhi_epi64(two[i + j], two[i + j + 2]);
    for (int i = 0; i < 4; i++)
        r[i] = _mm256_permute2x128_si256(four[i], four[i + 4], 0x20),
        r[i + 4] = _mm256_permute2x128_si256(four[i], four[i + 4], 0x31);
}

/* One cache line of each of `rows` rows, `step` bytes apart. */
FEW_INLINE void few_prefetch(const char *row, int64_t step, int rows)
{
    for (int r = 0; r < rows; r++, row += step) _mm_prefetch(row, _MM_HINT_T0);
}
#endif
