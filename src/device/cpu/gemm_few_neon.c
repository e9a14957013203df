/* gemm_few_neon.c - few rows on AArch64, B in fp32 or bf16 by fmla, and in bf16 by bfmmla: see gemm_few.h.
 *
 * Lines are read 8 of k at a time, sixteen side by side. For fmla four of them are turned, and widened if they are narrow,
 * into one vector for each k; for bfmmla eight k of two lines are two operands. Sums stay in registers over a block of k, up
 * to four rows at once: more rows read the block again while it is in the first-level cache. Of the lines that are read there are no
 * prefetches: measured faster without. bfmmla asks for those of the next tile, which follow each other in memory, from end to end. */
#include "device/cpu/gemm_few_neon.h"

#if defined(__aarch64__)

/* ---- fmla ---- */

/* w[k] = STEP of k of four lines. */
typedef void load_lines(float32x4_t w[STEP], const char *b, int64_t step);

FEW_INLINE void lines_f32(float32x4_t w[STEP], const char *b, int64_t step)
{
    for (int i = 0; i < STEP; i += 4, b += 16) {
        float32x4_t r[4];
        for (int l = 0; l < 4; l++) r[l] = vld1q_f32((const float *)(const void *)(b + l * step));
        float32x4_t t0 = vtrn1q_f32(r[0], r[1]), t1 = vtrn2q_f32(r[0], r[1]);
        float32x4_t t2 = vtrn1q_f32(r[2], r[3]), t3 = vtrn2q_f32(r[2], r[3]);
        w[i] = GEMM_JOIN(vzip1q_f64, t0, t2), w[i + 1] = GEMM_JOIN(vzip1q_f64, t1, t3);
        w[i + 2] = GEMM_JOIN(vzip2q_f64, t0, t2), w[i + 3] = GEMM_JOIN(vzip2q_f64, t1, t3);
    }
}

FEW_INLINE float32x4_t widen_bf16(uint16x4_t x) { return vreinterpretq_f32_u32(vshll_n_u16(x, 16)); }

FEW_INLINE void lines_bf16(float32x4_t w[STEP], const char *b, int64_t step)
{
    uint16x8_t lines[4], turned[4];
    few_load_16(lines, b, step);
    few_turn_16(turned, lines);
    for (int i = 0; i < 4; i++) {
        w[i] = widen_bf16(vget_low_u16(turned[i]));
        w[i + 4] = widen_bf16(vget_high_u16(turned[i]));
    }
}

FEW_INLINE float32x4_t multiply_step(float32x4_t s, const float32x4_t w[STEP], const float *a)
{
    float32x4_t x = vld1q_f32(a), y = vld1q_f32(a + 4);
    s = vfmaq_laneq_f32(s, w[0], x, 0), s = vfmaq_laneq_f32(s, w[1], x, 1);
    s = vfmaq_laneq_f32(s, w[2], x, 2), s = vfmaq_laneq_f32(s, w[3], x, 3);
    s = vfmaq_laneq_f32(s, w[4], y, 0), s = vfmaq_laneq_f32(s, w[5], y, 1);
    s = vfmaq_laneq_f32(s, w[6], y, 2), s = vfmaq_laneq_f32(s, w[7], y, 3);
    return s;
}

/* Handles the rest of k after whole steps, row by row; the zeros after it are not multiplied. */
FEW_INLINE void rest_along(load_lines *load, int size, struct lines from, int64_t k, const float *a,
                           float32x4_t s[ROWS_AT_ONCE][GROUPS], int rows)
{
    _Alignas(16) char copy[LINES * STEP * 4];
    few_copy_lines(copy, STEP * size, LINES, from.b, from.step, LINES, k * size);
    for (int g = 0; g < GROUPS; g++) {
        float32x4_t w[STEP];
        load(w, copy + g * GROUP * STEP * size, STEP * size);
        for (int r = 0; r < rows; r++)
            for (int64_t i = 0; i < k; i++) s[r][g] = vfmaq_n_f32(s[r][g], w[i], a[r * GEMM_KC + i]);
    }
}

/* `rows` is a constant in every caller. */
FEW_INLINE void rows_along(load_lines *load, int size, struct lines from, int64_t k, const float *a,
                           float *sums, int rows)
{
    float32x4_t s[ROWS_AT_ONCE][GROUPS] = {{{0}}};
    int64_t i = 0;
    for (; i + STEP <= k; i += STEP, from.b += STEP * size)
        for (int g = 0; g < GROUPS; g++) {
            float32x4_t w[STEP];
            load(w, from.b + g * GROUP * from.step, from.step);
            for (int r = 0; r < rows; r++) s[r][g] = multiply_step(s[r][g], w, a + r * GEMM_KC + i);
        }
    if (i < k) rest_along(load, size, from, k - i, a + i, s, rows);
    for (int r = 0; r < rows; r++)
        for (int g = 0; g < GROUPS; g++) vst1q_f32(sums + r * LINES + g * GROUP, s[r][g]);
}

FEW_INLINE void along(load_lines *load, int size, const struct gemm_few_block *p)
{
    struct copied copy;
    struct lines from = find_lines(p, size, false, &copy);
    const float *a = p->a;
    float *sums = p->sums;
    int r = 0;
    for (; r + 4 <= p->rows; r += 4, a += 4 * GEMM_KC, sums += 4 * LINES)
        rows_along(load, size, from, p->k, a, sums, 4);
    if (p->rows - r == 3) rows_along(load, size, from, p->k, a, sums, 3);
    if (p->rows - r == 2) rows_along(load, size, from, p->k, a, sums, 2);
    if (p->rows - r == 1) rows_along(load, size, from, p->k, a, sums, 1);
}

/* ---- fmla across columns: a vector is four columns of one k ---- */

enum { WIDE = 8 }; /* columns of a step */

/* Eight columns, widened. */
typedef void load_columns(float32x4_t w[2], const char *b);

FEW_INLINE void columns_f32(float32x4_t w[2], const char *b)
{
    w[0] = vld1q_f32((const float *)(const void *)b), w[1] = vld1q_f32((const float *)(const void *)(b + 16));
}

FEW_INLINE void columns_bf16(float32x4_t w[2], const char *b)
{
    uint16x8_t x = vld1q_u16((const uint16_t *)(const void *)b);
    w[0] = widen_bf16(vget_low_u16(x)), w[1] = widen_bf16(vget_high_u16(x));
}

FEW_INLINE void step_across(load_columns *load, const char *b, int64_t step, int deep, const float *a,
                            float *sums, int64_t width, int rows)
{
    float32x4_t w[STEP][2];
    for (int i = 0; i < deep; i++) load(w[i], b + i * step);
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < 2; h++) {
            float *at = sums + r * width + 4 * h;
            float32x4_t s = vld1q_f32(at);
            for (int i = 0; i < deep; i++) s = vfmaq_n_f32(s, w[i][h], a[r * GEMM_KC + i]);
            vst1q_f32(at, s);
        }
}

FEW_INLINE void across(load_columns *load, int size, const struct gemm_few_block *p)
{
    const float *a = p->a;
    int64_t step = p->step * size, whole = p->cols / WIDE * WIDE, left = p->cols - whole;
    memset(p->sums, 0, (size_t)(p->rows * p->width) * sizeof *p->sums);
    for (int64_t k = 0; k < p->k; k += STEP) {
        const char *b = (const char *)p->b + k * step;
        int deep = (int)(p->k - k < STEP ? p->k - k : STEP);
        for (int64_t n = 0; n < whole; n += WIDE) {
            for (int i = 0; i < STEP && n * size % 64 == 0; i++)
                __builtin_prefetch(b + (STEP + i) * step + n * size, 0, 3);
            if (deep == STEP)
                step_across(load, b + n * size, step, STEP, a + k, p->sums + n, p->width, p->rows);
            else
                step_across(load, b + n * size, step, deep, a + k, p->sums + n, p->width, p->rows);
        }
        if (!left) continue;
        _Alignas(16) char copy[STEP * WIDE * 4];
        few_copy_lines(copy, WIDE * size, deep, b + whole * size, step, deep, left * size);
        step_across(load, copy, WIDE * size, deep, a + k, p->sums + whole, p->width, p->rows);
    }
}

#define BY_TYPE(type, size)                                                                                  \
    static void along_##type(const struct gemm_few_block *p) { along(lines_##type, size, p); }               \
    static void across_##type(const struct gemm_few_block *p) { across(columns_##type, size, p); }           \
    const struct gemm_few gemm_few_neon_##type = {"neon fmla",    ROWS,         LINES,        4,             \
                                                  gemm_few_widen, along_##type, across_##type};
BY_TYPE(f32, 4)
BY_TYPE(bf16, 2)

/* ---- bfmmla: A is packed in pairs of rows, [pair][k / 4][row of two][k % 4] ---- */

enum { PAIRS_AT_ONCE = 2, PAIR = 2 * GEMM_KC, LINE_PAIRS = LINES / 2 };

static void pack_pairs(void *dst, const void *src, enum dtype, int64_t rs, int rows, int64_t k)
{
    const uint16_t *from = src;
    uint16_t *to = dst;
    memset(to, 0, ROWS * GEMM_KC * sizeof *to);
    for (int r = 0; r < rows; r++)
        for (int64_t i = 0; i < k; i++) to[r / 2 * PAIR + i / 4 * 8 + r % 2 * 4 + i % 4] = from[r * rs + i];
}

GEMM_BF16_CODE FEW_INLINE float32x4_t bfmmla(float32x4_t sum, uint16x8_t a, uint16x8_t b)
{
    __asm__("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(a), "w"(b));
    return sum;
}

/* Eight k, or only the first four, of all lines. */
GEMM_BF16_CODE FEW_INLINE void eight_k(float32x4_t s[PAIRS_AT_ONCE][LINE_PAIRS], int pairs, const uint16_t *a,
                                       const char *b, int64_t step, bool both)
{
    for (int j = 0; j < LINE_PAIRS; j++, b += 2 * step) {
        uint64x2_t x = vreinterpretq_u64_u16(vld1q_u16((const uint16_t *)(const void *)b));
        uint64x2_t y = vreinterpretq_u64_u16(vld1q_u16((const uint16_t *)(const void *)(b + step)));
        uint16x8_t first = vreinterpretq_u16_u64(vzip1q_u64(x, y));
        uint16x8_t second = vreinterpretq_u16_u64(vzip2q_u64(x, y));
        for (int r = 0; r < pairs; r++) {
            s[r][j] = bfmmla(s[r][j], vld1q_u16(a + r * PAIR), first);
            if (both) s[r][j] = bfmmla(s[r][j], vld1q_u16(a + r * PAIR + 8), second);
        }
    }
}

/* `pairs` is a constant in every caller. */
GEMM_BF16_CODE FEW_INLINE void pairs_along(struct lines from, int64_t k, const uint16_t *a, float *sums,
                                           int pairs, int rows)
{
    float32x4_t s[PAIRS_AT_ONCE][LINE_PAIRS] = {{{0}}};
    int64_t i = 0;
    for (; i + STEP <= k; i += STEP, from.b += 2 * STEP, from.ahead += 2 * STEP * LINES) {
        for (int j = 0; j < 2 * STEP * LINES; j += 64) __builtin_prefetch(from.ahead + j, 0, 2);
        eight_k(s, pairs, a + 2 * i, from.b, from.step, true);
    }
    if (i < k) {
        _Alignas(16) char copy[LINES * STEP * 2];
        few_copy_lines(copy, STEP * 2, LINES, from.b, from.step, LINES, 2 * (k - i));
        eight_k(s, pairs, a + 2 * i, copy, STEP * 2, k - i > 4);
    }
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < LINE_PAIRS; j++) {
            float32x4_t x = s[r / 2][j];
            vst1_f32(sums + r * LINES + 2 * j, r % 2 ? vget_high_f32(x) : vget_low_f32(x));
        }
}

/* Lines so many bytes apart share so few sets of the first cache that the second pass would not find them. */
enum { CROWDED = 8 << 10 };

GEMM_BF16_CODE static void along_bfmmla(const struct gemm_few_block *p)
{
    struct copied copy;
    struct lines from = find_lines(p, 2, p->rows > 2 && p->step * 2 % CROWDED == 0, &copy);
    const uint16_t *a = p->a;
    int r = 0;
    for (; p->rows - r > 2; r += 4) {
        int rows = p->rows - r < 4 ? p->rows - r : 4;
        pairs_along(from, p->k, a + r / 2 * PAIR, p->sums + r * LINES, 2, rows);
    }
    if (r < p->rows) pairs_along(from, p->k, a + r / 2 * PAIR, p->sums + r * LINES, 1, p->rows - r);
}

const struct gemm_few gemm_few_bfmmla = {"neon bfmmla", ROWS, LINES, 2, pack_pairs, along_bfmmla, NULL};

#endif
