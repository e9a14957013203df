/* gemm_few_avx2_f16.c - few rows with AVX2 along k, B in fp16: see gemm_few.h.
 *
 * Halves are turned before they are widened, which takes half the shuffles: a register has 16 of k of a line, and after three
 * steps two of k of eight lines. They are stored, and widened by the loads that multiply them: a conversion from memory needs
 * no shuffle. A piece of a line is a cache line, read once and whole. Four groups of lines share what is spread of A. */
#include "device/cpu/gemm_few_x86.h"

#if defined(__x86_64__)
#include "device/cpu/vec_base.h"

#define AVX2_CODE __attribute__((target("avx2,fma,f16c")))

enum {
    PIECE = 32,  /* of k: a cache line of each line */
    TURN = 16,   /* of k turned at once */
    DEEP = 8,    /* of k that lie in order when turned */
    AHEAD = 128, /* bytes, two cache lines */
    GROUPS = FEW_LINES / FEW_GROUP,
    HELD = PIECE * FEW_GROUP, /* elements of a group */
};

/* PIECE of k of some groups of lines. [group][k / 16][k % 8][k / 8 % 2][line] */
struct pieces {
    _Alignas(64) uint16_t half[GROUPS * HELD];
};

AVX2_CODE FEW_INLINE void turn_halves(__m256i r[8])
{
    __m256i two[8], four[8];
    for (int i = 0; i < 8; i += 2)
        two[i] = _mm256_unpacklo_epi16(r[i], r[i + 1]), two[i + 1] = _mm256_unpackhi_epi16(r[i], r[i + 1]);
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++)
            four[i + 2 * j] = _mm256_unpacklo_epi32(two[i + j], two[i + j + 2]),
                         four[i + 2 * j + 1] = _mm256_unpackhi_epi32(two[i + j], two[i + j + 2]);
    for (int i = 0; i < 4; i++)
        r[2 * i] = _mm256_unpacklo_epi64(four[i], four[i + 4]),
              r[2 * i + 1] = _mm256_unpackhi_epi64(four[i], four[i + 4]);
}

AVX2_CODE FEW_INLINE __m256i load_16(const char *at)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}

/* A group of lines. Not inline: between other loops, compilers keep what it loads in memory. */
AVX2_CODE static __attribute__((noinline)) void turn_piece(uint16_t held[HELD], const char *b, int64_t step)
{
    for (int i = 0; i < PIECE; i += TURN, b += 2 * TURN, held += TURN * FEW_GROUP) {
        const char *b3 = b + 3 * step, *b6 = b3 + 3 * step;
        __m256i r[8] = {load_16(b),  load_16(b + step),  load_16(b + 2 * step),
                        load_16(b3), load_16(b3 + step), load_16(b3 + 2 * step),
                        load_16(b6), load_16(b6 + step)};
        if (i == 0) {
            few_prefetch(b + AHEAD, step, 3);
            few_prefetch(b3 + AHEAD, step, 3);
            few_prefetch(b6 + AHEAD, step, 2);
        }
        turn_halves(r);
        for (int j = 0; j < 8; j++) _mm256_store_si256((__m256i *)(void *)(held + j * TURN), r[j]);
    }
}

/* Adds `deep` of k to the sums of some rows and groups: constants in every caller. */
AVX2_CODE FEW_INLINE void add_deep(const uint16_t *held, int deep, const float *a, __m256 s[3][GROUPS],
                                   int rows, int groups)
{
    VEC_UNROLL(8)
    for (int i = 0; i < deep; i++) {
        __m256 with[3];
        for (int r = 0; r < rows; r++) with[r] = _mm256_broadcast_ss(a + r * GEMM_KC + i);
        for (int g = 0; g < groups; g++) {
            __m256 w = _mm256_cvtph_ps(
                _mm_load_si128((const __m128i *)(const void *)(held + g * HELD + i * 2 * FEW_GROUP)));
            for (int r = 0; r < rows; r++) s[r][g] = _mm256_fmadd_ps(with[r], w, s[r][g]);
        }
    }
}

/* `rows` rows of A by `k` of some groups: sums of a row FEW_LINES apart. */
AVX2_CODE FEW_INLINE void multiply_rows(const uint16_t *held, int k, const float *a, float *sums, int rows,
                                        int groups)
{
    __m256 s[3][GROUPS];
    for (int r = 0; r < rows; r++)
        for (int g = 0; g < groups; g++) s[r][g] = _mm256_load_ps(sums + r * FEW_LINES + g * FEW_GROUP);
    for (int i = 0; i < k; i += TURN, held += TURN * FEW_GROUP, a += TURN)
        for (int j = 0; j < TURN && i + j < k; j += DEEP)
            add_deep(held + j, k - i - j < DEEP ? k - i - j : DEEP, a + j, s, rows, groups);
    for (int r = 0; r < rows; r++)
        for (int g = 0; g < groups; g++) _mm256_store_ps(sums + r * FEW_LINES + g * FEW_GROUP, s[r][g]);
}

AVX2_CODE FEW_INLINE void multiply(const struct pieces *held, int k, const float *a, float *sums, int rows,
                                   int groups)
{
    int r = 0;
    for (; r + 3 <= rows; r += 3)
        multiply_rows(held->half, k, a + r * GEMM_KC, sums + r * FEW_LINES, 3, groups);
    if (rows - r == 2) multiply_rows(held->half, k, a + r * GEMM_KC, sums + r * FEW_LINES, 2, groups);
    if (rows - r == 1) multiply_rows(held->half, k, a + r * GEMM_KC, sums + r * FEW_LINES, 1, groups);
}

/* `groups` whole groups, k in whole pieces. */
AVX2_CODE FEW_INLINE void groups_along(const char *b, int64_t step, int64_t k, const float *a, float *sums,
                                       int rows, int groups)
{
    struct pieces held;
    for (int64_t i = 0; i < k; i += PIECE) {
        for (int g = 0; g < groups; g++)
            turn_piece(held.half + g * HELD, b + g * FEW_GROUP * step + 2 * i, step);
        multiply(&held, PIECE, a + i, sums, rows, groups);
    }
}

/* Up to eight lines, any k. The zeros after k are not multiplied: they could change the sign of a zero. */
AVX2_CODE FEW_INLINE void rest_along(const char *b, int64_t step, int64_t k, const float *a, float *sums,
                                     int rows, int lines)
{
    struct pieces held;
    char copy[FEW_GROUP * PIECE * 2];
    for (int64_t i = 0; i < k; i += PIECE) {
        int deep = (int)(k - i < PIECE ? k - i : PIECE);
        few_copy_lines(copy, PIECE * 2, FEW_GROUP, b + 2 * i, step, lines, deep * 2);
        turn_piece(held.half, copy, PIECE * 2);
        for (int r = 0; r < rows; r++)
            multiply_rows(held.half, deep, a + r * GEMM_KC + i, sums + r * FEW_LINES, 1, 1);
    }
}

AVX2_CODE FEW_INLINE void along(const struct gemm_few_block *p, int rows)
{
    const float *a = p->a;
    const char *b = p->b;
    int64_t step = p->step * 2, whole = p->k / PIECE * PIECE;
    int groups = p->cols / FEW_GROUP, g = 0;
    for (int i = 0; i < rows * FEW_LINES; i++) p->sums[i] = 0;
    if (groups == GROUPS) groups_along(b, step, whole, a, p->sums, rows, GROUPS), g = GROUPS;
    for (; g + 2 <= groups; g += 2)
        groups_along(b + g * FEW_GROUP * step, step, whole, a, p->sums + g * FEW_GROUP, rows, 2);
    if (g < groups) groups_along(b + g * FEW_GROUP * step, step, whole, a, p->sums + g * FEW_GROUP, rows, 1);
    for (g = 0; g < p->cols; g += FEW_GROUP) {
        int lines = p->cols - g < FEW_GROUP ? p->cols - g : FEW_GROUP;
        int64_t done = lines == FEW_GROUP ? whole : 0;
        rest_along(b + g * step + 2 * done, step, p->k - done, a + done, p->sums + g, rows, lines);
    }
}

/* One row keeps everything in registers. */
AVX2_CODE void few_avx2_along_f16(const struct gemm_few_block *p)
{
    if (p->rows == 1)
        along(p, 1);
    else
        along(p, p->rows);
}

#endif
