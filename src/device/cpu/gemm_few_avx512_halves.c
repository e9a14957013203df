/* gemm_few_avx512_halves.c - few rows with AVX-512 in fp32 along k, B in fp16 or bf16: see gemm_few.h.
 *
 * Lines are turned as they are, a cache line of each, and widened by the loads that multiply them, once for eight rows
 * (turn_avx512.h). Sixteen lines are read side by side: with twice as many, one row read memory up to a tenth slower. Where
 * they end, the first pieces of what comes next are asked for. */
#include "device/cpu/gemm_few_x86.h"
#include "device/cpu/turn_avx512.h"

#if defined(__x86_64__)
#include "device/cpu/vec_base.h"

#define AVX512_CODE TURN_CODE

enum {
    MOST = 8,               /* rows that share what is widened */
    AHEAD = TURN_AHEAD / 2, /* of k */
};

/* Adds `deep` of a run of k to the sums of some rows: constants in every caller. */
AVX512_CODE FEW_INLINE void add_run(widen_turned *wide, const uint16_t *held, int deep, const float *a,
                                    __m512 s[MOST], int rows)
{
    VEC_UNROLL(8)
    for (int i = 0; i < deep; i++) {
        __m512 w = wide(held + i * 2 * WIDE);
        for (int r = 0; r < rows; r++) s[r] = _mm512_fmadd_ps(_mm512_set1_ps(a[r * GEMM_KC + i]), w, s[r]);
    }
}

/* `rows` rows of A by `k` of a piece: sums of a row WIDE apart. */
AVX512_CODE FEW_INLINE void multiply_rows(widen_turned *wide, const struct turned *p, int k, const float *a,
                                          float *sums, int rows)
{
    __m512 s[MOST];
    for (int r = 0; r < rows; r++) s[r] = _mm512_load_ps(sums + r * WIDE);
    for (int i = 0; i < k; i += TURNED_RUN)
        add_run(wide, p->held + turned_at(i), k - i < TURNED_RUN ? k - i : TURNED_RUN, a + i, s, rows);
    for (int r = 0; r < rows; r++) _mm512_store_ps(sums + r * WIDE, s[r]);
}

AVX512_CODE FEW_INLINE void multiply(widen_turned *wide, const struct turned *p, int k, const float *a,
                                     float *sums, int rows)
{
    int r = 0;
    for (; r + 8 <= rows; r += 8) multiply_rows(wide, p, k, a + r * GEMM_KC, sums + r * WIDE, 8);
    for (; r + 4 <= rows; r += 4) multiply_rows(wide, p, k, a + r * GEMM_KC, sums + r * WIDE, 4);
    for (; r + 2 <= rows; r += 2) multiply_rows(wide, p, k, a + r * GEMM_KC, sums + r * WIDE, 2);
    if (r < rows) multiply_rows(wide, p, k, a + r * GEMM_KC, sums + r * WIDE, 1);
}

/* Sixteen lines, k in whole pieces. */
AVX512_CODE FEW_INLINE void lines_along(widen_turned *wide, const struct gemm_few_block *p, int64_t k,
                                        int rows)
{
    const float *a = p->a;
    const char *b = p->b, *next = p->next ? p->next : b;
    int64_t step = p->step * 2;
    struct turned piece;
    for (int64_t i = 0; i < k; i += TURNED) {
        int64_t soon = i + AHEAD;
        turn_halves(&piece, b + 2 * i, step, soon < k ? b + 2 * soon : next + 2 * (soon - k));
        multiply(wide, &piece, TURNED, a + i, p->sums, rows);
    }
}

/* k from `done` on that fill no piece, or all of fewer lines. The zeros after k are not multiplied: they could change the
 * sign of a zero. */
AVX512_CODE FEW_INLINE void rest_along(widen_turned *wide, const struct gemm_few_block *p, int64_t done,
                                       int rows)
{
    const float *a = p->a;
    struct turned piece;
    char copy[WIDE * TURNED * 2];
    for (int64_t i = done; i < p->k; i += TURNED) {
        int deep = (int)(p->k - i < TURNED ? p->k - i : TURNED);
        few_copy_lines(copy, TURNED * 2, WIDE, (const char *)p->b + 2 * i, p->step * 2, p->cols, deep * 2);
        turn_halves(&piece, copy, TURNED * 2, copy);
        for (int r = 0; r < rows; r++)
            multiply_rows(wide, &piece, deep, a + r * GEMM_KC + i, p->sums + r * WIDE, 1);
    }
}

AVX512_CODE FEW_INLINE void along(widen_turned *wide, const struct gemm_few_block *p, int rows)
{
    int64_t whole = p->cols == WIDE ? p->k / TURNED * TURNED : 0;
    for (int i = 0; i < rows * WIDE; i++) p->sums[i] = 0;
    lines_along(wide, p, whole, rows);
    rest_along(wide, p, whole, rows);
}

/* One row and eight, the usual numbers, have loops without a choice. */
#define BY_ROWS(type)                                                                                        \
    AVX512_CODE void few_avx512_along_##type(const struct gemm_few_block *p)                                 \
    {                                                                                                        \
        if (p->rows == 1)                                                                                    \
            along(turned_##type, p, 1);                                                                      \
        else if (p->rows == 8)                                                                               \
            along(turned_##type, p, 8);                                                                      \
        else                                                                                                 \
            along(turned_##type, p, p->rows);                                                                \
    }
BY_ROWS(bf16)
BY_ROWS(f16)

#endif
