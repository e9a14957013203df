/* gemm_few_avx512_bf16.c - few rows of bf16 with vdpbf16ps: see gemm_few.h.
 *
 * As gemm_few_avx2.c, but a turned cell, two neighbours in k of 8 lines, is an operand as it is. Registers are of 256 bits:
 * turning wider ones is no faster, and vdpbf16ps gives an element the same bits in either. */
#include "device/cpu/gemm_few_x86.h"

#if defined(__x86_64__)

#define BF16_CODE __attribute__((target("avx2,avx512f,avx512bw,avx512vl,avx512bf16")))

enum { STEP = 16, CELLS = STEP / 2, ROWS = 8 };

BF16_CODE FEW_INLINE void load_cells(__m256i r[CELLS], const uint16_t *b, int64_t step)
{
    for (int l = 0; l < FEW_GROUP; l++)
        r[l] = _mm256_loadu_si256((const __m256i *)(const void *)(b + l * step));
    few_turn_8x8(r);
}

/* Two of k for 8 lines or columns. */
BF16_CODE FEW_INLINE __m256 multiply_cell(__m256 sum, const uint16_t *a, __m256i cell)
{
    int32_t two;
    memcpy(&two, a, sizeof two);
    return _mm256_dpbf16_ps(sum, (__m256bh)_mm256_set1_epi32(two), (__m256bh)cell);
}

/* `rows` is a constant in every caller. */
BF16_CODE FEW_INLINE void multiply_lines(const __m256i w[CELLS], int cells, const uint16_t *a, float *sums,
                                         int64_t width, int rows)
{
    __m256 s[4];
    for (int r = 0; r < rows; r++) s[r] = _mm256_load_ps(sums + r * width);
    for (int i = 0; i < cells; i++)
        for (int r = 0; r < rows; r++) s[r] = multiply_cell(s[r], a + r * GEMM_KC + 2 * i, w[i]);
    for (int r = 0; r < rows; r++) _mm256_store_ps(sums + r * width, s[r]);
}

BF16_CODE FEW_INLINE void multiply(const __m256i w[CELLS], int cells, const uint16_t *a, float *sums,
                                   int64_t width, int rows)
{
    int r = 0;
    for (; r + 4 <= rows; r += 4) multiply_lines(w, cells, a + r * GEMM_KC, sums + r * width, width, 4);
    for (; r + 2 <= rows; r += 2) multiply_lines(w, cells, a + r * GEMM_KC, sums + r * width, width, 2);
    if (r < rows) multiply_lines(w, cells, a + r * GEMM_KC, sums + r * width, width, 1);
}

BF16_CODE FEW_INLINE void groups_along(const uint16_t *b, int64_t step, int64_t k, const uint16_t *a,
                                       float *sums, int rows, int groups)
{
    for (int64_t i = 0; i < k; i += STEP)
        for (int g = 0; g < groups; g++) {
            const uint16_t *from = b + g * FEW_GROUP * step + i;
            __m256i w[CELLS];
            load_cells(w, from, step);
            multiply(w, CELLS, a + i, sums + g * FEW_GROUP, FEW_LINES, rows);
        }
}

/* With an odd k the last pair contains a zero, as in packed data; pairs after it are not multiplied. */
BF16_CODE FEW_INLINE void rest_along(const uint16_t *b, int64_t step, int64_t k, const uint16_t *a,
                                     float *sums, int rows, int lines)
{
    uint16_t copy[FEW_GROUP * STEP];
    __m256i w[CELLS];
    few_copy_lines((char *)copy, STEP * 2, FEW_GROUP, (const char *)b, 2 * step, lines, 2 * k);
    load_cells(w, copy, STEP);
    multiply(w, (int)(k + 1) / 2, a, sums, FEW_LINES, rows);
}

BF16_CODE FEW_INLINE void along_rows(const struct gemm_few_block *p, int rows)
{
    const uint16_t *a = p->a, *b = p->b;
    int64_t whole = p->k / STEP * STEP;
    int groups = p->cols / FEW_GROUP, left = p->cols % FEW_GROUP;
    for (int i = 0; i < rows * FEW_LINES; i++) p->sums[i] = 0;
    if (groups == FEW_LINES / FEW_GROUP)
        groups_along(b, p->step, whole, a, p->sums, rows, FEW_LINES / FEW_GROUP);
    else
        groups_along(b, p->step, whole, a, p->sums, rows, groups);
    for (int g = 0; g < groups && whole < p->k; g++)
        rest_along(b + g * FEW_GROUP * p->step + whole, p->step, p->k - whole, a + whole,
                   p->sums + g * FEW_GROUP, rows, FEW_GROUP);
    for (int64_t i = 0; i < p->k && left; i += STEP)
        rest_along(b + groups * FEW_GROUP * p->step + i, p->step, p->k - i < STEP ? p->k - i : STEP, a + i,
                   p->sums + groups * FEW_GROUP, rows, left);
}

BF16_CODE static void along(const struct gemm_few_block *p)
{
    if (p->rows == 1)
        along_rows(p, 1);
    else
        along_rows(p, p->rows);
}

/* ---- across columns: two of k side by side ---- */

BF16_CODE FEW_INLINE __m256i pair_columns(const uint16_t *even, const uint16_t *odd)
{
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)even),
            y = odd ? _mm_loadu_si128((const __m128i *)(const void *)odd) : _mm_setzero_si128();
    return _mm256_set_m128i(_mm_unpackhi_epi16(x, y), _mm_unpacklo_epi16(x, y));
}

/* Eight columns over `deep` of k. */
BF16_CODE FEW_INLINE void step_across(const uint16_t *b, int64_t step, int deep, const uint16_t *a,
                                      float *sums, int64_t width, int rows)
{
    __m256i w[CELLS];
    for (int i = 0; i < deep; i += 2)
        w[i / 2] = pair_columns(b + i * step, i + 1 < deep ? b + (i + 1) * step : NULL);
    multiply(w, (deep + 1) / 2, a, sums, width, rows);
}

BF16_CODE static void across(const struct gemm_few_block *p)
{
    const uint16_t *a = p->a;
    int64_t step = p->step, whole = p->cols / 8 * 8, left = p->cols - whole;
    for (int i = 0; i < p->rows * p->width; i++) p->sums[i] = 0;
    for (int64_t k = 0; k < p->k; k += STEP) {
        const uint16_t *b = (const uint16_t *)p->b + k * step;
        int deep = (int)(p->k - k < STEP ? p->k - k : STEP);
        for (int64_t n = 0; n < whole && deep == STEP; n += 8) {
            if (n % 32 == 0) few_prefetch((const char *)(b + STEP * step + n), 2 * step, STEP);
            step_across(b + n, step, STEP, a + k, p->sums + n, p->width, p->rows);
        }
        for (int64_t n = 0; n < whole && deep < STEP; n += 8)
            step_across(b + n, step, deep, a + k, p->sums + n, p->width, p->rows);
        if (!left) continue;
        uint16_t copy[STEP * 8];
        few_copy_lines((char *)copy, 16, deep, (const char *)(b + whole), 2 * step, deep, 2 * left);
        step_across(copy, 8, deep, a + k, p->sums + whole, p->width, p->rows);
    }
}

const struct gemm_few gemm_few_vdpbf16ps = {"avx512 vdpbf16ps", ROWS,  FEW_LINES, 2,
                                            gemm_few_keep,      along, across};

#endif
