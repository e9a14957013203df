/* gemm_few_strands.h - few rows of fp16 on AArch64 in strands: the loops of gemm_few_neon_f16.c and gemm_few_neon_fmlal.c.
 *
 * Both operands are read in place, eight k at a time: lane j of a sum gets every fourth k from j on, one of the four strands
 * of a block of k (gemm_neon_f16.c has the same sums). Transposing lines, so that a lane is a line, took as many
 * instructions as multiplying and halved the speed.
 *
 * Two to eight lines are read side by side from end to end, while the following lines are prefetched in memory order. More
 * lines would compete for the sets of the first-level cache if they are 16 KiB long; fewer leave too few sums in progress.
 *
 * If k ends within a piece, zeros are multiplied. They change nothing: a sum that starts at +0 never becomes -0, because
 * products of fp16 are too large to vanish in fp32.
 *
 * A .c file defines STRANDS_CODE, its instruction set, STRANDS_A, an element of packed A, and STRANDS_W, eight columns of B
 * ready to be multiplied; it includes this and defines its own eight_k(), load_columns() and add_columns(). */
#pragma once

#include "device/cpu/gemm_few_neon.h"

#if defined(__aarch64__) && defined(STRANDS_A)

enum {
    PIECE = 32, /* of k: a cache line */
    STRANDS = 4,
    SUMS = 16, /* in progress at once: rows by lines */
    MOST_LINES = 8,
    MOST_ROWS = 2 * ROWS,
    NEAR = 32 << 10,               /* half of the first cache */
    DEEP = 16 / sizeof(STRANDS_A), /* of A that a register holds */
};

/* ---- packing A: [k / DEEP][row][DEEP] for each ROWS rows ---- */

/* Rows multiplied together if this many are left. One may be missing; it is zero. */
FEW_INLINE int together(int left) { return left >= ROWS ? ROWS : left > GROUP ? (left + 1) / 2 * 2 : left; }

/* Start of row r: its k are consecutive, DEEP at a time. */
FEW_INLINE int64_t row_begin(int r) { return r / ROWS * ROWS * GEMM_KC + r % ROWS * DEEP; }

/* Distance from DEEP k of a row to the next. */
FEW_INLINE int64_t row_step(int r, int rows) { return together(rows - r / ROWS * ROWS) * DEEP; }

static void pack_f16(void *dst, const void *src, enum dtype type, int64_t rs, int rows, int64_t k)
{
    enum dtype packed = sizeof(STRANDS_A) == 4 ? DT_F32 : DT_F16;
    int64_t whole = (k + PIECE - 1) / PIECE * PIECE;
    int all = rows / ROWS * ROWS + together(rows % ROWS);
    STRANDS_A line[GEMM_KC];
    for (int r = 0; r < all; r++) {
        STRANDS_A *to = (STRANDS_A *)dst + row_begin(r);
        int64_t here = r < rows ? k : 0;
        dtype_convert(line, packed, (const uint16_t *)src + r * rs, type, here);
        memset(line + here, 0, (size_t)(whole - here) * sizeof *line);
        for (int64_t i = 0; i < whole; i += DEEP, to += row_step(r, rows))
            memcpy(to, line + i, sizeof *line * DEEP);
    }
}

/* ---- along k ---- */

/* Otherwise gcc would move loads ahead until sums no longer fit the registers, which halves the speed. */
#if !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("no-schedule-insns")
#endif

/* Lines and rows multiplied together. */
struct work {
    const uint16_t *b[MOST_LINES];
    const STRANDS_A *a; /* [k / DEEP][rows][DEEP] */
    const char *ahead;
};

/* Eight k from j on, for these rows and lines. */
STRANDS_CODE FEW_INLINE void eight_k(const struct work *w, int64_t j, float32x4_t s[SUMS], int rows,
                                     int lines);

/* Multiplies these rows and lines, constants in every caller; k is whole pieces. */
STRANDS_CODE FEW_INLINE void multiply(struct work *w, int64_t k, float32x4_t s[SUMS], int rows, int lines)
{
    for (int64_t i = 0; i < k; i += PIECE) {
        for (int l = 0; l < lines; l++) __builtin_prefetch(w->ahead + 64 * l, 0, 2);
        w->ahead += 64 * lines;
        for (int64_t j = i; j < i + PIECE; j += STEP) eight_k(w, j, s, rows, lines);
    }
}

/* value = value + strand, for four sums, one strand after the other. */
FEW_INLINE float32x4_t add_strands(float32x4_t value, const float32x4_t s[4])
{
    float64x2_t t0 = vreinterpretq_f64_f32(vtrn1q_f32(s[0], s[1])),
                t1 = vreinterpretq_f64_f32(vtrn2q_f32(s[0], s[1])),
                t2 = vreinterpretq_f64_f32(vtrn1q_f32(s[2], s[3])),
                t3 = vreinterpretq_f64_f32(vtrn2q_f32(s[2], s[3]));
    value = vaddq_f32(value, vreinterpretq_f32_f64(vzip1q_f64(t0, t2)));
    value = vaddq_f32(value, vreinterpretq_f32_f64(vzip1q_f64(t1, t3)));
    value = vaddq_f32(value, vreinterpretq_f32_f64(vzip2q_f64(t0, t2)));
    return vaddq_f32(value, vreinterpretq_f32_f64(vzip2q_f64(t1, t3)));
}

/* The last k, which do not fill a piece: copied, with zeros. */
STRANDS_CODE FEW_INLINE void multiply_rest(const struct work *w, int64_t whole, int64_t k,
                                           float32x4_t s[SUMS], int rows, int lines)
{
    _Alignas(64) uint16_t rest[MOST_LINES][PIECE] = {{0}};
    struct work last = {.a = w->a + whole * rows, .ahead = (const char *)rest};
    for (int l = 0; l < lines; l++) {
        memcpy(rest[l], w->b[l] + whole, (size_t)(2 * (k - whole)));
        last.b[l] = rest[l];
    }
    multiply(&last, PIECE, s, rows, lines);
}

/* A part of a tile, starting at a row, line and k. */
struct part {
    int row, line;
    int64_t k, end;
};

/* Copies `there` of the `lines` values of each row; the number is a constant if none is missing. */
FEW_INLINE void copy_values(float *dst, int dst_step, const float *src, int src_step, int rows, int lines,
                            int there)
{
    for (int r = 0; r < rows; r++, dst += dst_step, src += src_step)
        if (there == lines)
            memcpy(dst, src, (size_t)lines * sizeof *dst);
        else
            memcpy(dst, src, (size_t)there * sizeof *dst);
}

/* Processes this many lines; missing ones repeat the last. Returns the next address to prefetch. */
STRANDS_CODE FEW_INLINE const char *lines_along(const struct gemm_few_tile *p, struct part at,
                                                const char *ahead, int rows, int lines)
{
    _Alignas(16) float value[SUMS] = {0};
    int there = p->cols - at.line < lines ? p->cols - at.line : lines;
    float *to = p->value + at.row * p->width + at.line;
    struct work w = {.ahead = ahead};
    copy_values(value, lines, to, p->width, rows, lines, there);
    for (int64_t k = at.k; k < at.end; k += GEMM_KC) {
        int64_t here = at.end - k < GEMM_KC ? at.end - k : GEMM_KC, whole = here / PIECE * PIECE;
        float32x4_t s[SUMS];
        for (int i = 0; i < rows * lines; i++) s[i] = vdupq_n_f32(0);
        for (int l = 0; l < lines; l++)
            w.b[l] = (const uint16_t *)p->b + (at.line + (l < there ? l : there - 1)) * p->step + k;
        w.a = (const STRANDS_A *)(const void *)((const char *)p->a + k / GEMM_KC * p->a_step) +
              row_begin(at.row);
        multiply(&w, whole, s, rows, lines);
        if (whole < here) multiply_rest(&w, whole, here, s, rows, lines);
        for (int i = 0; i < rows * lines; i += 4)
            vst1q_f32(value + i, add_strands(vld1q_f32(value + i), s + i));
    }
    copy_values(to, p->width, value, lines, rows, lines, there);
    return w.ahead;
}

/* Processes all lines for this many rows. */
typedef const char *rows_along(const struct gemm_few_tile *p, struct part at, const char *ahead);
#define ROWS_ALONG(rows, lines)                                                                              \
    STRANDS_CODE static const char *along_##rows(const struct gemm_few_tile *p, struct part at,              \
                                                 const char *ahead)                                          \
    {                                                                                                        \
        for (; at.line < p->cols; at.line += lines) ahead = lines_along(p, at, ahead, rows, lines);          \
        return ahead;                                                                                        \
    }
ROWS_ALONG(1, 4)
ROWS_ALONG(2, 8)
ROWS_ALONG(3, 4)
ROWS_ALONG(4, 4)
ROWS_ALONG(6, 2)
ROWS_ALONG(8, 2)

static rows_along *const by_rows[ROWS + 1] = {
    [1] = along_1, [2] = along_2, [3] = along_3, [4] = along_4, [6] = along_6, [8] = along_8};

/* Processes each line as far as the needed part of A stays in the cache, then the next one. */
static void whole_f16(const struct gemm_few_tile *p)
{
    int64_t deep = NEAR / ((int)sizeof(STRANDS_A) * p->rows) / GEMM_KC * GEMM_KC;
    const char *ahead = p->ahead;
    for (int64_t k = 0; k < p->k; k += deep)
        for (int r = 0; r < p->rows; r += ROWS) {
            struct part at = {.row = r, .k = k, .end = p->k - k < deep ? p->k : k + deep};
            const char *next = by_rows[together(p->rows - r)](p, at, ahead);
            if (r + ROWS >= p->rows) ahead = next;
        }
}
_Static_assert(NEAR / (sizeof(STRANDS_A) * MOST_ROWS) >= GEMM_KC, "a block of k of all rows is near");

#if !defined(__clang__)
#pragma GCC pop_options
#endif

/* ---- across columns: a vector is eight columns of one k ---- */

enum { STRAND = GEMM_KC / STRANDS }; /* maximum factors of a strand in a row */

STRANDS_CODE FEW_INLINE STRANDS_W load_columns(const uint16_t *b);
STRANDS_CODE FEW_INLINE void add_columns(float32x4_t s[2], STRANDS_W w, const STRANDS_A *factor);

/* sums[rows][8] += `deep` factors of a strand, STRAND apart from row to row, by as many rows of b. */
STRANDS_CODE FEW_INLINE void columns_by_rows(const uint16_t *b, int64_t step, int deep, const STRANDS_A *a,
                                             float *sums, int64_t width, int rows)
{
    STRANDS_W w[STEP] = {0};
    for (int i = 0; i < deep; i++) w[i] = load_columns(b + i * step);
    for (int r = 0; r < rows; r++, a += STRAND, sums += width) {
        float32x4_t s[2] = {vld1q_f32(sums), vld1q_f32(sums + 4)};
        for (int i = 0; i < deep; i++) add_columns(s, w[i], a + i);
        vst1q_f32(sums, s[0]), vst1q_f32(sums + 4, s[1]);
    }
}

/* Collects the factors of a strand, contiguous for each row. */
static void find_factors(const struct gemm_few_block *p, int64_t length, STRANDS_A *out)
{
    for (int r = 0; r < p->rows; r++) {
        const STRANDS_A *row = (const STRANDS_A *)p->a + row_begin(r);
        for (int64_t i = 0; i < length; i++) {
            int64_t k = i * STRANDS + p->strand;
            out[r * STRAND + i] = row[k / DEEP * row_step(r, p->rows) + k % DEEP];
        }
    }
}

STRANDS_CODE static void across_f16(const struct gemm_few_block *p)
{
    int64_t step = p->step * STRANDS, whole = p->cols / STEP * STEP, left = p->cols - whole;
    int64_t length = (p->k - p->strand + STRANDS - 1) / STRANDS;
    const uint16_t *b = (const uint16_t *)p->b + p->strand * p->step;
    STRANDS_A a[MOST_ROWS * STRAND];
    find_factors(p, length, a);
    memset(p->sums, 0, (size_t)(p->rows * p->width) * sizeof *p->sums);
    for (int64_t k = 0; k < length; k += STEP, b += STEP * step) {
        int deep = (int)(length - k < STEP ? length - k : STEP);
        for (int64_t n = 0; n < whole; n += STEP) {
            for (int i = 0; i < STEP && n % PIECE == 0; i++)
                __builtin_prefetch(b + (STEP + i) * step + n, 0, 3);
            if (deep == STEP)
                columns_by_rows(b + n, step, STEP, a + k, p->sums + n, p->width, p->rows);
            else
                columns_by_rows(b + n, step, deep, a + k, p->sums + n, p->width, p->rows);
        }
        if (!left) continue;
        uint16_t copy[STEP * STEP];
        few_copy_lines((char *)copy, STEP * 2, deep, (const char *)(b + whole), step * 2, deep, left * 2);
        columns_by_rows(copy, STEP, deep, a + k, p->sums + whole, p->width, p->rows);
    }
}

#define STRANDS_TABLE(text)                                                                                  \
    {                                                                                                        \
        .name = text, .rows = MOST_ROWS, .lines = LINES, .unit = sizeof(STRANDS_A), .strands = STRANDS,      \
        .pack = pack_f16, .whole = whole_f16, .across = across_f16                                           \
    }

#endif
