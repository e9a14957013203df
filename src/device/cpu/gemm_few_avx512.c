/* gemm_few_avx512.c - few rows with AVX-512 in fp32, B in fp32, bf16 or fp16: see gemm_few.h.
 *
 * As gemm_few_avx2.c, twice as wide and with twice the registers: 16 of k of 16 lines, widened and turned, stay in half of
 * them while eight rows of A multiply them. A piece of a line is a cache line, read once and whole: lines whose length is a
 * multiple of 4 KiB share one set of the first cache, which holds fewer of them than are read side by side. */
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
    int lines; /* 16, 8, or none */
};
static const struct ahead nothing = {0};

/* `rows` rows of A by `deep` vectors; `rows` is a constant in every caller. */
AVX512_CODE FEW_INLINE void multiply_rows(const __m512 w[WIDE], int deep, const float *a, float *sums,
                                          int64_t width, int rows, struct ahead next)
{
    __m512 s[8];
    for (int r = 0; r < rows; r++) s[r] = _mm512_load_ps(sums + r * width);
    for (int i = 0; i < deep; i++) {
        if (next.lines && i % (WIDE / next.lines) == 0)
            _mm_prefetch(next.b, _MM_HINT_T0), next.b += next.step;
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

/* ---- along k ---- */

/* A piece of 16 lines, read at once. */
AVX512_CODE FEW_INLINE void copy_pieces(char held[WIDE * PIECE], const char *b, int64_t step)
{
    for (int l = 0; l < WIDE; l++, b += step) _mm512_store_si512(held + l * PIECE, _mm512_loadu_si512(b));
}

AVX512_CODE FEW_INLINE void turn_pieces(load_wide *load, __m512 w[WIDE], const char *held)
{
    for (int l = 0; l < WIDE; l++) w[l] = load(held + l * PIECE, 0xffff);
    turn_16x16(w);
}

/* `groups` whole groups from b on, k in whole pieces. */
AVX512_CODE FEW_INLINE void groups_along(load_wide *load, int size, const char *b, int64_t step, int64_t k,
                                         const float *a, float *sums, int rows, int groups)
{
    _Alignas(64) char held[WIDE * PIECE];
    int turns = PIECE / size / WIDE, lines = WIDE / turns;
    for (int64_t i = 0; i < k; i += PIECE / size)
        for (int g = 0; g < groups; g++) {
            const char *piece = b + g * WIDE * step + i * size;
            copy_pieces(held, piece, step);
            for (int j = 0; j < turns; j++) {
                __m512 w[WIDE];
                turn_pieces(load, w, held + j * WIDE * size);
                multiply(w, WIDE, a + i + j * WIDE, sums + g * WIDE, LINES, rows,
                         (struct ahead){piece + AHEAD + j * lines * step, step, lines});
            }
        }
}

/* Up to 16 lines, up to 16 of k. The zeros after k are not multiplied: they could change the sign of a zero. */
AVX512_CODE FEW_INLINE void rest_along(load_wide *load, const char *b, int64_t step, int64_t k,
                                       const float *a, float *sums, int rows, int lines)
{
    __m512 w[WIDE];
    for (int l = 0; l < WIDE; l++) w[l] = load(b + l * step, l < lines ? first(k) : 0);
    turn_16x16(w);
    multiply(w, (int)k, a, sums, LINES, rows, nothing);
}

AVX512_CODE FEW_INLINE void along(load_wide *load, int size, const struct gemm_few_block *p, int rows)
{
    const float *a = p->a;
    const char *b = p->b;
    int64_t step = p->step * size, piece = PIECE / size, whole = p->k / piece * piece;
    int groups = p->cols / WIDE, left = p->cols % WIDE;
    for (int i = 0; i < rows * LINES; i++) p->sums[i] = 0;
    if (groups == GROUPS)
        groups_along(load, size, b, step, whole, a, p->sums, rows, GROUPS);
    else
        groups_along(load, size, b, step, whole, a, p->sums, rows, groups);
    for (int g = 0; g < groups + (left > 0); g++)
        for (int64_t i = g < groups ? whole : 0; i < p->k; i += WIDE)
            rest_along(load, b + g * WIDE * step + i * size, step, p->k - i < WIDE ? p->k - i : WIDE, a + i,
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
#define BY_ROWS(way, type, size)                                                                             \
    AVX512_CODE static void way##_##type(const struct gemm_few_block *p)                                     \
    {                                                                                                        \
        if (p->rows == 1)                                                                                    \
            way(wide_##type, size, p, 1);                                                                    \
        else if (p->rows == 8)                                                                               \
            way(wide_##type, size, p, 8);                                                                    \
        else                                                                                                 \
            way(wide_##type, size, p, p->rows);                                                              \
    }
#define BY_TYPE(type, size)                                                                                  \
    BY_ROWS(along, type, size)                                                                               \
    BY_ROWS(across, type, size)                                                                              \
    const struct gemm_few gemm_few_avx512_##type = {"avx512 fma",   ROWS,         LINES,        4,           \
                                                    gemm_few_widen, along_##type, across_##type};
BY_TYPE(f32, 4)
BY_TYPE(bf16, 2)
BY_TYPE(f16, 2)

#endif
