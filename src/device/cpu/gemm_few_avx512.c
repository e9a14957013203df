/* gemm_few_avx512.c - few rows with AVX-512 in fp32: see gemm_few.h. 16 bits along k are in gemm_few_avx512_halves.c.
 *
 * As gemm_few_avx2.c, twice as wide and with twice the registers: 16 of k of 16 lines, turned, stay in half of them while eight
 * rows of A multiply them. A piece of a line is a cache line, read once and whole: lines whose length is a multiple of 4 KiB
 * share one set of the first cache, which holds fewer of them than are read side by side. */
#include "device/cpu/gemm_few_x86.h"
#include "device/cpu/turn_avx512.h"

#if defined(__x86_64__)

#define AVX512_CODE TURN_CODE

enum {
    PIECE = 64, /* bytes of a line that are read at once */
    GROUPS = 2, /* of WIDE lines, side by side: one's products fill the other's latency */
    LINES = GROUPS * WIDE,
    ROWS = 16,
    AHEAD = 4 * PIECE,
};

/* Pieces of B that come next, asked for between products: at once they would be more than the cache has under way. */
struct ahead {
    const char *b;
    int64_t step;
    bool there;
};
static const struct ahead nothing = {0};

/* `rows` rows of A by `deep` vectors; `rows` is a constant in every caller. */
AVX512_CODE FEW_INLINE void multiply_rows(const __m512 w[WIDE], int deep, const float *a, float *sums,
                                          int64_t width, int rows, struct ahead next)
{
    __m512 s[8];
    for (int r = 0; r < rows; r++) s[r] = _mm512_load_ps(sums + r * width);
    for (int i = 0; i < deep; i++) {
        if (next.there) _mm_prefetch(next.b + i * next.step, _MM_HINT_T0);
        for (int r = 0; r < rows; r++) s[r] = _mm512_fmadd_ps(_mm512_set1_ps(a[r * GEMM_KC + i]), w[i], s[r]);
    }
    for (int r = 0; r < rows; r++) _mm512_store_ps(sums + r * width, s[r]);
}

AVX512_CODE FEW_INLINE void multiply(const __m512 w[WIDE], int deep, const float *a, float *sums,
                                     int64_t width, int rows, struct ahead next)
{
    int r = 0;
    for (; r + 8 <= rows; r += 8, next = nothing)
        multiply_rows(w, deep, a + r * GEMM_KC, sums + r * width, width, 8, next);
    for (; r + 4 <= rows; r += 4, next = nothing)
        multiply_rows(w, deep, a + r * GEMM_KC, sums + r * width, width, 4, next);
    for (; r + 2 <= rows; r += 2, next = nothing)
        multiply_rows(w, deep, a + r * GEMM_KC, sums + r * width, width, 2, next);
    if (r < rows) multiply_rows(w, deep, a + r * GEMM_KC, sums + r * width, width, 1, next);
}

/* ---- along k, fp32 ---- */

/* A piece of 16 lines, read at once. */
AVX512_CODE FEW_INLINE void copy_pieces(char held[WIDE * PIECE], const char *b, int64_t step)
{
    for (int l = 0; l < WIDE; l++, b += step) _mm512_store_si512(held + l * PIECE, _mm512_loadu_si512(b));
}

/* `groups` whole groups from b on, k in whole pieces. */
AVX512_CODE FEW_INLINE void groups_along(const char *b, int64_t step, int64_t k, const float *a, float *sums,
                                         int rows, int groups)
{
    _Alignas(64) char held[WIDE * PIECE];
    for (int64_t i = 0; i < k; i += WIDE)
        for (int g = 0; g < groups; g++) {
            const char *piece = b + g * WIDE * step + i * 4;
            __m512 w[WIDE];
            copy_pieces(held, piece, step);
            for (int l = 0; l < WIDE; l++) w[l] = _mm512_load_ps(held + l * PIECE);
            turn_16x16(w);
            multiply(w, WIDE, a + i, sums + g * WIDE, LINES, rows, (struct ahead){piece + AHEAD, step, true});
        }
}

/* Up to 16 lines, up to 16 of k. The zeros after k are not multiplied: they could change the sign of a zero. */
AVX512_CODE FEW_INLINE void rest_along(const char *b, int64_t step, int64_t k, const float *a, float *sums,
                                       int rows, int lines)
{
    __m512 w[WIDE];
    for (int l = 0; l < WIDE; l++) w[l] = wide_f32(b + l * step, l < lines ? first(k) : 0);
    turn_16x16(w);
    multiply(w, (int)k, a, sums, LINES, rows, nothing);
}

AVX512_CODE FEW_INLINE void along(const struct gemm_few_block *p, int rows)
{
    const float *a = p->a;
    const char *b = p->b;
    int64_t step = p->step * 4, whole = p->k / WIDE * WIDE;
    int groups = p->cols / WIDE, left = p->cols % WIDE;
    for (int i = 0; i < rows * LINES; i++) p->sums[i] = 0;
    if (groups == GROUPS)
        groups_along(b, step, whole, a, p->sums, rows, GROUPS);
    else
        groups_along(b, step, whole, a, p->sums, rows, groups);
    for (int g = 0; g < groups + (left > 0); g++)
        for (int64_t i = g < groups ? whole : 0; i < p->k; i += WIDE)
            rest_along(b + g * WIDE * step + i * 4, step, p->k - i < WIDE ? p->k - i : WIDE, a + i,
                       p->sums + g * WIDE, rows, g < groups ? WIDE : left);
}

/* ---- across columns ---- */

AVX512_CODE FEW_INLINE void across(load_wide *load, int size, const struct gemm_few_block *p, int rows)
{
    const float *a = p->a;
    int64_t step = p->step * size;
    for (int i = 0; i < rows * p->width; i++) p->sums[i] = 0;
    for (int64_t k = 0; k < p->k; k += WIDE) {
        const char *b = (const char *)p->b + k * step;
        int deep = (int)(p->k - k < WIDE ? p->k - k : WIDE);
        for (int64_t n = 0; n < p->cols; n += WIDE) {
            __m512 w[WIDE];
            __mmask16 here = first(p->cols - n);
            if (n * size % 64 == 0) few_prefetch(b + WIDE * step + n * size, step, WIDE);
            for (int i = 0; i < WIDE; i++) w[i] = load(b + i * step + n * size, i < deep ? here : 0);
            if (deep == WIDE)
                multiply(w, WIDE, a + k, p->sums + n, p->width, rows, nothing);
            else
                multiply(w, deep, a + k, p->sums + n, p->width, rows, nothing);
        }
    }
}

/* One row and eight, the usual numbers, have loops without a choice. */
AVX512_CODE static void along_f32(const struct gemm_few_block *p)
{
    if (p->rows == 1)
        along(p, 1);
    else if (p->rows == 8)
        along(p, 8);
    else
        along(p, p->rows);
}

#define BY_TYPE(type, size, along_k, lines)                                                                  \
    AVX512_CODE static void across_##type(const struct gemm_few_block *p)                                    \
    {                                                                                                        \
        if (p->rows == 1)                                                                                    \
            across(wide_##type, size, p, 1);                                                                 \
        else if (p->rows == 8)                                                                               \
            across(wide_##type, size, p, 8);                                                                 \
        else                                                                                                 \
            across(wide_##type, size, p, p->rows);                                                           \
    }                                                                                                        \
    const struct gemm_few gemm_few_avx512_##type = {"avx512 fma",   ROWS,    lines,        4,                \
                                                    gemm_few_widen, along_k, across_##type};
BY_TYPE(f32, 4, along_f32, LINES)
BY_TYPE(bf16, 2, few_avx512_along_bf16, WIDE)
BY_TYPE(f16, 2, few_avx512_along_f16, WIDE)

#endif
