/* gemm_few_avx512_halves.c - few rows with AVX-512 in fp32 along k, B in fp16 or bf16: see gemm_few.h.
 *
 * Numbers of 16 bits are turned before they are widened, which takes two fifths of the shuffles, and only one of the two units
 * that multiply can shuffle. They are stored, and widened by the loads that multiply them, once for eight rows. A piece of a
 * line is a cache line, read once and whole. Sixteen lines are read side by side: more are more than processors look ahead
 * in, and read memory up to a tenth slower. They begin every few KiB, so the first pieces of what comes next are asked
 * for, too. */
#include "device/cpu/gemm_few_x86.h"
#include "device/cpu/turn_avx512.h"

#if defined(__x86_64__)
#include "device/cpu/vec_base.h"

#define AVX512_CODE TURN_CODE

enum {
    PIECE = 32, /* of k: a cache line of each line */
    DEEP = 8,   /* of k that lie in order when turned */
    MOST = 8,   /* rows that share what is widened */
    AHEAD = 6 * PIECE,
};

/* PIECE of k of sixteen lines. [k / 16][k % 8][k / 8 % 2][line] */
struct piece {
    _Alignas(64) uint16_t held[PIECE * WIDE];
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

/* Asks for the piece at `soon` of each line. Not inline: between other loops, compilers keep what it loads in memory. */
AVX512_CODE static __attribute__((noinline)) void turn_piece(struct piece *p, const char *b, int64_t step,
                                                             const char *soon)
{
    uint16_t *held = p->held;
    const __m512i near = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                  far = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    __m512i r[8], s[8];
    turn_eight(r, b, step);
    turn_eight(s, b + 8 * step, step);
    few_prefetch(soon, step, WIDE);
    for (int i = 0; i < 8; i++, held += 2 * WIDE) {
        _mm512_store_si512(held, _mm512_permutex2var_epi64(r[i], near, s[i]));
        _mm512_store_si512(held + PIECE * WIDE / 2, _mm512_permutex2var_epi64(r[i], far, s[i]));
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

/* Adds `deep` of k to the sums of some rows: constants in every caller. */
AVX512_CODE FEW_INLINE void add_deep(widen *wide, const uint16_t *held, int deep, const float *a,
                                     __m512 s[MOST], int rows)
{
    VEC_UNROLL(8)
    for (int i = 0; i < deep; i++) {
        __m512 w = wide(held + i * 2 * WIDE);
        for (int r = 0; r < rows; r++) s[r] = _mm512_fmadd_ps(_mm512_set1_ps(a[r * GEMM_KC + i]), w, s[r]);
    }
}

/* `rows` rows of A by `k` of a piece: sums of a row WIDE apart. */
AVX512_CODE FEW_INLINE void multiply_rows(widen *wide, const struct piece *p, int k, const float *a,
                                          float *sums, int rows)
{
    const uint16_t *held = p->held;
    __m512 s[MOST];
    for (int r = 0; r < rows; r++) s[r] = _mm512_load_ps(sums + r * WIDE);
    for (int i = 0; i < k; i += 2 * DEEP, held += 2 * DEEP * WIDE, a += 2 * DEEP)
        for (int j = 0; j < 2 && i + j * DEEP < k; j++) {
            int left = k - i - j * DEEP;
            add_deep(wide, held + j * WIDE, left < DEEP ? left : DEEP, a + j * DEEP, s, rows);
        }
    for (int r = 0; r < rows; r++) _mm512_store_ps(sums + r * WIDE, s[r]);
}

AVX512_CODE FEW_INLINE void multiply(widen *wide, const struct piece *p, int k, const float *a, float *sums,
                                     int rows)
{
    int r = 0;
    for (; r + 8 <= rows; r += 8) multiply_rows(wide, p, k, a + r * GEMM_KC, sums + r * WIDE, 8);
    for (; r + 4 <= rows; r += 4) multiply_rows(wide, p, k, a + r * GEMM_KC, sums + r * WIDE, 4);
    for (; r + 2 <= rows; r += 2) multiply_rows(wide, p, k, a + r * GEMM_KC, sums + r * WIDE, 2);
    if (r < rows) multiply_rows(wide, p, k, a + r * GEMM_KC, sums + r * WIDE, 1);
}

/* Sixteen lines, k in whole pieces. */
AVX512_CODE FEW_INLINE void lines_along(widen *wide, const struct gemm_few_block *p, int64_t k, int rows)
{
    const float *a = p->a;
    const char *b = p->b, *next = p->next ? p->next : b;
    int64_t step = p->step * 2;
    struct piece piece;
    for (int64_t i = 0; i < k; i += PIECE) {
        int64_t soon = i + AHEAD;
        turn_piece(&piece, b + 2 * i, step, soon < k ? b + 2 * soon : next + 2 * (soon - k));
        multiply(wide, &piece, PIECE, a + i, p->sums, rows);
    }
}

/* k from `done` on that fill no piece, or all of fewer lines. The zeros after k are not multiplied: they could change the
 * sign of a zero. */
AVX512_CODE FEW_INLINE void rest_along(widen *wide, const struct gemm_few_block *p, int64_t done, int rows)
{
    const float *a = p->a;
    struct piece piece;
    char copy[WIDE * PIECE * 2];
    for (int64_t i = done; i < p->k; i += PIECE) {
        int deep = (int)(p->k - i < PIECE ? p->k - i : PIECE);
        few_copy_lines(copy, PIECE * 2, WIDE, (const char *)p->b + 2 * i, p->step * 2, p->cols, deep * 2);
        turn_piece(&piece, copy, PIECE * 2, copy);
        for (int r = 0; r < rows; r++)
            multiply_rows(wide, &piece, deep, a + r * GEMM_KC + i, p->sums + r * WIDE, 1);
    }
}

AVX512_CODE FEW_INLINE void along(widen *wide, const struct gemm_few_block *p, int rows)
{
    int64_t whole = p->cols == WIDE ? p->k / PIECE * PIECE : 0;
    for (int i = 0; i < rows * WIDE; i++) p->sums[i] = 0;
    lines_along(wide, p, whole, rows);
    rest_along(wide, p, whole, rows);
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
