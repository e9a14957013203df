/* gemm_few_avx2.c - few rows with AVX2 and FMA: see gemm_few.h. fp16 along k is in gemm_few_avx2_f16.c.
 *
 * Along k, a step is 16 of k of 8 lines: turned, and widened, they are 16 vectors of one k each, and a row of A multiplies
 * them by its 16 elements one after the other, as the packed kernel does. Four groups of lines go on side by side, so that
 * one's products fill the other's latency. So many instructions lie between two loads of a line that too few misses are
 * under way at once: lines are asked for AHEAD, which makes reading from memory half again as fast. Across columns nothing is turned: a vector is 8 columns of one k. */
#include "device/cpu/gemm_few_x86.h"

#if defined(__x86_64__)

#define AVX2_CODE __attribute__((target("avx2,fma,f16c")))

enum { STEP = 16, ROWS = 8, AHEAD = 128 }; /* AHEAD: bytes, two cache lines */

/* w[k] = STEP of k of eight lines. */
typedef void load_lines(__m256 w[STEP], const char *b, int64_t step);
/* Eight columns, widened. */
typedef __m256 load_columns(const char *b);

AVX2_CODE FEW_INLINE __m256i load_256(const char *at)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}

AVX2_CODE FEW_INLINE __m128i load_128(const char *at)
{
    return _mm_loadu_si128((const __m128i *)(const void *)at);
}

AVX2_CODE FEW_INLINE void lines_f32(__m256 w[STEP], const char *b, int64_t step)
{
    for (int half = 0; half < 2; half++) {
        __m256i r[8];
        for (int l = 0; l < 8; l++) r[l] = load_256(b + l * step + 32 * half);
        few_turn_8x8(r);
        for (int i = 0; i < 8; i++) w[8 * half + i] = _mm256_castsi256_ps(r[i]);
    }
}

AVX2_CODE FEW_INLINE void lines_bf16(__m256 w[STEP], const char *b, int64_t step)
{
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000u);
    __m256i r[8];
    for (int l = 0; l < 8; l++) r[l] = load_256(b + l * step);
    few_turn_8x8(r);
    for (int i = 0; i < 8; i++) {
        w[2 * i] = _mm256_castsi256_ps(_mm256_slli_epi32(r[i], 16));
        w[2 * i + 1] = _mm256_castsi256_ps(_mm256_and_si256(r[i], upper));
    }
}

/* `rows` rows of A by w: sums of 8 lines, FEW_LINES apart. `rows` is a constant in every caller. */
AVX2_CODE FEW_INLINE void multiply_lines(const __m256 w[STEP], const float *a, float *sums, int rows)
{
    __m256 s[4];
    for (int r = 0; r < rows; r++) s[r] = _mm256_load_ps(sums + r * FEW_LINES);
    for (int i = 0; i < STEP; i++)
        for (int r = 0; r < rows; r++)
            s[r] = _mm256_fmadd_ps(_mm256_broadcast_ss(a + r * GEMM_KC + i), w[i], s[r]);
    for (int r = 0; r < rows; r++) _mm256_store_ps(sums + r * FEW_LINES, s[r]);
}

/* `rows` rows of A by 16 lines: an element of A is spread once for two vectors. */
AVX2_CODE FEW_INLINE void multiply_two(const __m256 w[2][STEP], const float *a, float *sums, int rows)
{
    __m256 s[4][2];
    for (int r = 0; r < rows; r++)
        for (int g = 0; g < 2; g++) s[r][g] = _mm256_load_ps(sums + r * FEW_LINES + g * FEW_GROUP);
    for (int i = 0; i < STEP; i++)
        for (int r = 0; r < rows; r++) {
            __m256 with = _mm256_broadcast_ss(a + r * GEMM_KC + i);
            for (int g = 0; g < 2; g++) s[r][g] = _mm256_fmadd_ps(with, w[g][i], s[r][g]);
        }
    for (int r = 0; r < rows; r++)
        for (int g = 0; g < 2; g++) _mm256_store_ps(sums + r * FEW_LINES + g * FEW_GROUP, s[r][g]);
}

/* step_along for two groups of lines. */
AVX2_CODE FEW_INLINE void step_two(load_lines *load, const char *b, int64_t step, const float *a, float *sums,
                                   int rows)
{
    __m256 w[2][STEP];
    int r = 0;
    for (int g = 0; g < 2; g++) load(w[g], b + g * FEW_GROUP * step, step);
    for (; r + 4 <= rows; r += 4) multiply_two(w, a + r * GEMM_KC, sums + r * FEW_LINES, 4);
    for (; r + 2 <= rows; r += 2) multiply_two(w, a + r * GEMM_KC, sums + r * FEW_LINES, 2);
    if (r < rows) multiply_two(w, a + r * GEMM_KC, sums + r * FEW_LINES, 1);
}

AVX2_CODE FEW_INLINE void step_along(load_lines *load, const char *b, int64_t step, const float *a,
                                     float *sums, int rows)
{
    __m256 w[STEP];
    int r = 0;
    load(w, b, step);
    for (; r + 4 <= rows; r += 4) multiply_lines(w, a + r * GEMM_KC, sums + r * FEW_LINES, 4);
    for (; r + 2 <= rows; r += 2) multiply_lines(w, a + r * GEMM_KC, sums + r * FEW_LINES, 2);
    if (r < rows) multiply_lines(w, a + r * GEMM_KC, sums + r * FEW_LINES, 1);
}

/* `groups` whole groups from b on, k a multiple of STEP. */
AVX2_CODE FEW_INLINE void groups_along(load_lines *load, int size, const char *b, int64_t step, int64_t k,
                                       const float *a, float *sums, int rows, int groups)
{
    for (int64_t i = 0; i < k; i += STEP)
        for (int g = 0; g < groups;) {
            int together = rows > 1 && g + 2 <= groups ? 2 : 1;
            const char *from = b + g * FEW_GROUP * step + i * size;
            if (i * size % 64 == 0) few_prefetch(from + AHEAD, step, together * FEW_GROUP);
            if (together == 2)
                step_two(load, from, step, a + i, sums + g * FEW_GROUP, rows);
            else
                step_along(load, from, step, a + i, sums + g * FEW_GROUP, rows);
            g += together;
        }
}

/* Handles the rest of k after whole steps. The zeros after it are not multiplied: they could change the sign of a
 * zero. */
AVX2_CODE FEW_INLINE void rest_along(load_lines *load, int size, const char *b, int64_t step, int64_t k,
                                     const float *a, float *sums, int rows, int lines)
{
    _Alignas(32) char copy[FEW_GROUP * STEP * 4];
    __m256 w[STEP];
    few_copy_lines(copy, STEP * size, FEW_GROUP, b, step, lines, k * size);
    load(w, copy, STEP * size);
    for (int r = 0; r < rows; r++) {
        __m256 s = _mm256_load_ps(sums + r * FEW_LINES);
        for (int64_t i = 0; i < k; i++)
            s = _mm256_fmadd_ps(_mm256_broadcast_ss(a + r * GEMM_KC + i), w[i], s);
        _mm256_store_ps(sums + r * FEW_LINES, s);
    }
}

AVX2_CODE FEW_INLINE void along(load_lines *load, int size, const struct gemm_few_block *p, int rows)
{
    const float *a = p->a;
    const char *b = p->b;
    int64_t step = p->step * size, whole = p->k / STEP * STEP;
    int groups = p->cols / FEW_GROUP, left = p->cols % FEW_GROUP;
    for (int i = 0; i < rows * FEW_LINES; i++) p->sums[i] = 0;
    if (groups == FEW_LINES / FEW_GROUP)
        groups_along(load, size, b, step, whole, a, p->sums, rows, FEW_LINES / FEW_GROUP);
    else
        groups_along(load, size, b, step, whole, a, p->sums, rows, groups);
    for (int g = 0; g < groups && whole < p->k; g++)
        rest_along(load, size, b + g * FEW_GROUP * step + whole * size, step, p->k - whole, a + whole,
                   p->sums + g * FEW_GROUP, rows, FEW_GROUP);
    for (int64_t i = 0; i < p->k && left; i += STEP) {
        int64_t here = p->k - i < STEP ? p->k - i : STEP;
        rest_along(load, size, b + groups * FEW_GROUP * step + i * size, step, here, a + i,
                   p->sums + groups * FEW_GROUP, rows, left);
    }
}

/* ---- across columns ---- */

enum { DEEP = 8 }; /* of k between two visits to a sum */

AVX2_CODE FEW_INLINE __m256 columns_f32(const char *b) { return _mm256_castsi256_ps(load_256(b)); }

AVX2_CODE FEW_INLINE __m256 columns_bf16(const char *b)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(b)), 16));
}

AVX2_CODE FEW_INLINE __m256 columns_f16(const char *b) { return _mm256_cvtph_ps(load_128(b)); }

/* Eight columns over `deep` of k. */
AVX2_CODE FEW_INLINE void step_across(load_columns *load, const char *b, int64_t step, int deep,
                                      const float *a, float *sums, int64_t width, int rows)
{
    __m256 w[DEEP];
    for (int i = 0; i < deep; i++) w[i] = load(b + i * step);
    for (int r = 0; r < rows; r++) {
        __m256 s = _mm256_load_ps(sums + r * width);
        for (int i = 0; i < deep; i++) s = _mm256_fmadd_ps(_mm256_broadcast_ss(a + r * GEMM_KC + i), w[i], s);
        _mm256_store_ps(sums + r * width, s);
    }
}

AVX2_CODE FEW_INLINE void across(load_columns *load, int size, const struct gemm_few_block *p, int rows)
{
    const float *a = p->a;
    int64_t step = p->step * size, whole = p->cols / 8 * 8, left = p->cols - whole;
    for (int i = 0; i < rows * p->width; i++) p->sums[i] = 0;
    for (int64_t k = 0; k < p->k; k += DEEP) {
        const char *b = (const char *)p->b + k * step;
        int deep = (int)(p->k - k < DEEP ? p->k - k : DEEP);
        for (int64_t n = 0; n < whole && deep == DEEP; n += 8) {
            if (n * size % 64 == 0) few_prefetch(b + DEEP * step + n * size, step, DEEP);
            step_across(load, b + n * size, step, DEEP, a + k, p->sums + n, p->width, rows);
        }
        for (int64_t n = 0; n < whole && deep < DEEP; n += 8)
            step_across(load, b + n * size, step, deep, a + k, p->sums + n, p->width, rows);
        if (!left) continue;
        char copy[DEEP * 8 * 4];
        few_copy_lines(copy, 8 * size, deep, b + whole * size, step, deep, left * size);
        step_across(load, copy, 8 * size, deep, a + k, p->sums + whole, p->width, rows);
    }
}

/* One row keeps everything in registers. */
#define BY_ROWS(way, load, type, size)                                                                       \
    AVX2_CODE static void way##_##type(const struct gemm_few_block *p)                                       \
    {                                                                                                        \
        if (p->rows == 1)                                                                                    \
            way(load##_##type, size, p, 1);                                                                  \
        else                                                                                                 \
            way(load##_##type, size, p, p->rows);                                                            \
    }
BY_ROWS(along, lines, f32, 4)
BY_ROWS(along, lines, bf16, 2)
BY_ROWS(across, columns, f32, 4)
BY_ROWS(across, columns, bf16, 2)
BY_ROWS(across, columns, f16, 2)

const struct gemm_few gemm_few_avx2_f32 = {"avx2 fma",     ROWS,      FEW_LINES, 4,
                                           gemm_few_widen, along_f32, across_f32};
const struct gemm_few gemm_few_avx2_bf16 = {"avx2 fma",     ROWS,       FEW_LINES,  4,
                                            gemm_few_widen, along_bf16, across_bf16};
const struct gemm_few gemm_few_avx2_f16 = {"avx2 fma",         ROWS,      FEW_LINES, 4, gemm_few_widen,
                                           few_avx2_along_f16, across_f16};

#endif
