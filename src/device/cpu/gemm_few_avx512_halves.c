/* gemm_few_avx512_halves.c - few rows with AVX-512 in fp32 along k, B in fp16 or bf16: see gemm_few.h.
 *
 * Numbers of 16 bits are turned before they are widened, which takes two fifths of the shuffles, and only one of the two units
 * that multiply can shuffle. They are stored, and widened by the loads that multiply them, once for all rows. A piece of a
 * line is a cache line, read once and whole. Two groups of lines share what is spread of A. */
#include "device/cpu/gemm_few_x86.h"
#include "device/cpu/turn_avx512.h"

#if defined(__x86_64__)
#include "device/cpu/vec_base.h"

#define AVX512_CODE TURN_CODE

enum {
    PIECE = 32, /* of k: a cache line of each line */
    DEEP = 8,   /* of k that lie in order when turned */
    GROUPS = 2, /* of WIDE lines, side by side */
    LINES = GROUPS * WIDE,
    MOST = 8, /* rows that share what is widened */
    HELD = PIECE * WIDE,
};

/* PIECE of k of some groups of lines. [group][k / 16][k % 8][k / 8 % 2][line] */
struct pieces {
    _Alignas(64) uint16_t half[GROUPS * HELD];
};

/* Eight lines: eight of k in each quarter of a register become one of k of all lines. */
AVX512_CODE FEW_INLINE void turn_eight(__m512i out[8], const char *b, int64_t step)
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

/* A group of lines. Not inline: between other loops, compilers keep what it loads in memory. */
AVX512_CODE static __attribute__((noinline)) void turn_piece(uint16_t held[HELD], const char *b, int64_t step)
{
    const __m512i near = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                  far = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    __m512i r[8], s[8];
    turn_eight(r, b, step);
    turn_eight(s, b + 8 * step, step);
    for (int i = 0; i < 8; i++, held += 2 * WIDE) {
        _mm512_store_si512(held, _mm512_permutex2var_epi64(r[i], near, s[i]));
        _mm512_store_si512(held + HELD / 2, _mm512_permutex2var_epi64(r[i], far, s[i]));
    }
}

typedef __m512 widen(const uint16_t *held);

AVX512_CODE FEW_INLINE __m512 widen_f16(const uint16_t *held)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)held));
}

AVX512_CODE FEW_INLINE __m512 widen_bf16(const uint16_t *held)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_load_si256((const __m256i *)(const void *)held));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* Adds `deep` of k to the sums of some rows and groups: constants in every caller. */
AVX512_CODE FEW_INLINE void add_deep(widen *wide, const uint16_t *held, int deep, const float *a,
                                     __m512 s[MOST][GROUPS], int rows, int groups)
{
    VEC_UNROLL(8)
    for (int i = 0; i < deep; i++) {
        __m512 w[GROUPS];
        for (int g = 0; g < groups; g++) w[g] = wide(held + g * HELD + i * 2 * WIDE);
        for (int r = 0; r < rows; r++) {
            __m512 with = _mm512_set1_ps(a[r * GEMM_KC + i]);
            for (int g = 0; g < groups; g++) s[r][g] = _mm512_fmadd_ps(with, w[g], s[r][g]);
        }
    }
}

/* `rows` rows of A by `k` of some groups: sums of a row LINES apart. */
AVX512_CODE FEW_INLINE void multiply_rows(widen *wide, const uint16_t *held, int k, const float *a,
                                          float *sums, int rows, int groups)
{
    __m512 s[MOST][GROUPS];
    for (int r = 0; r < rows; r++)
        for (int g = 0; g < groups; g++) s[r][g] = _mm512_load_ps(sums + r * LINES + g * WIDE);
    for (int i = 0; i < k; i += 2 * DEEP, held += 2 * DEEP * WIDE, a += 2 * DEEP)
        for (int j = 0; j < 2 && i + j * DEEP < k; j++) {
            int left = k - i - j * DEEP;
            add_deep(wide, held + j * WIDE, left < DEEP ? left : DEEP, a + j * DEEP, s, rows, groups);
        }
    for (int r = 0; r < rows; r++)
        for (int g = 0; g < groups; g++) _mm512_store_ps(sums + r * LINES + g * WIDE, s[r][g]);
}

AVX512_CODE FEW_INLINE void multiply(widen *wide, const struct pieces *held, int k, const float *a,
                                     float *sums, int rows, int groups)
{
    int r = 0;
    for (; r + 8 <= rows; r += 8)
        multiply_rows(wide, held->half, k, a + r * GEMM_KC, sums + r * LINES, 8, groups);
    for (; r + 4 <= rows; r += 4)
        multiply_rows(wide, held->half, k, a + r * GEMM_KC, sums + r * LINES, 4, groups);
    for (; r + 2 <= rows; r += 2)
        multiply_rows(wide, held->half, k, a + r * GEMM_KC, sums + r * LINES, 2, groups);
    if (r < rows) multiply_rows(wide, held->half, k, a + r * GEMM_KC, sums + r * LINES, 1, groups);
}

/* `groups` whole groups, k in whole pieces. */
AVX512_CODE FEW_INLINE void groups_along(widen *wide, const char *b, int64_t step, int64_t k, const float *a,
                                         float *sums, int rows, int groups)
{
    struct pieces held;
    for (int64_t i = 0; i < k; i += PIECE) {
        for (int g = 0; g < groups; g++) turn_piece(held.half + g * HELD, b + g * WIDE * step + 2 * i, step);
        multiply(wide, &held, PIECE, a + i, sums, rows, groups);
    }
}

/* Up to 16 lines, any k. The zeros after k are not multiplied: they could change the sign of a zero. */
AVX512_CODE FEW_INLINE void rest_along(widen *wide, const char *b, int64_t step, int64_t k, const float *a,
                                       float *sums, int rows, int lines)
{
    struct pieces held;
    char copy[WIDE * PIECE * 2];
    for (int64_t i = 0; i < k; i += PIECE) {
        int deep = (int)(k - i < PIECE ? k - i : PIECE);
        few_copy_lines(copy, PIECE * 2, WIDE, b + 2 * i, step, lines, deep * 2);
        turn_piece(held.half, copy, PIECE * 2);
        for (int r = 0; r < rows; r++)
            multiply_rows(wide, held.half, deep, a + r * GEMM_KC + i, sums + r * LINES, 1, 1);
    }
}

AVX512_CODE FEW_INLINE void along(widen *wide, const struct gemm_few_block *p, int rows)
{
    const float *a = p->a;
    const char *b = p->b;
    int64_t step = p->step * 2, whole = p->k / PIECE * PIECE;
    int groups = p->cols / WIDE;
    for (int i = 0; i < rows * LINES; i++) p->sums[i] = 0;
    if (groups == GROUPS)
        groups_along(wide, b, step, whole, a, p->sums, rows, GROUPS);
    else if (groups)
        groups_along(wide, b, step, whole, a, p->sums, rows, 1);
    for (int n = 0; n < p->cols; n += WIDE) {
        int lines = p->cols - n < WIDE ? p->cols - n : WIDE;
        int64_t done = lines == WIDE ? whole : 0;
        rest_along(wide, b + n * step + 2 * done, step, p->k - done, a + done, p->sums + n, rows, lines);
    }
}

/* One row and eight, the usual numbers, have loops without a choice. */
#define BY_ROWS(type)                                                                                        \
    AVX512_CODE void few_avx512_along_##type(const struct gemm_few_block *p)                                 \
    {                                                                                                        \
        if (p->rows == 1)                                                                                    \
            along(widen_##type, p, 1);                                                                       \
        else if (p->rows == 8)                                                                               \
            along(widen_##type, p, 8);                                                                       \
        else                                                                                                 \
            along(widen_##type, p, p->rows);                                                                 \
    }
BY_ROWS(bf16)
BY_ROWS(f16)

#endif
