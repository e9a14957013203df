/* gemm_few_neon_f16.c - few rows of fp16 on AArch64 by fmlal: see gemm_few.h.
 *
 * fmlal multiplies fp16 and adds to fp32 with one rounding: the bits of fmla on widened operands, without widening them,
 * which a Neoverse V1 does four times slower than it multiplies. Both operands are read as they lie, eight k at a time: lane j of a
 * sum gets every fourth k from j on, one of the four strands of a block of k (gemm_neon_f16.c has the same sums). Turning lines, so that
 * a lane were a line, took as many instructions as multiplying and half of the speed.
 *
 * Four lines are read side by side from end to end, and the lines after them are asked for meanwhile in the order in which they
 * lie in memory: more of them fight for the sets of the first cache where they are 16 KiB long, fewer leave too few sums under way.
 *
 * Where k ends within a piece, zeros are multiplied. They change nothing: a sum that starts at +0 never becomes -0, since
 * products of fp16 are too large to vanish in fp32. */
#include "device/cpu/gemm_few_neon.h"

#if defined(__aarch64__)

#if defined(__clang__)
#define FMLAL_CODE __attribute__((target("fp16fml")))
#else
#define FMLAL_CODE __attribute__((target("arch=armv8.2-a+fp16fml")))
#endif

enum {
    PIECE = 32, /* of k: a cache line */
    STRANDS = 4,
    SUMS = 16, /* under way at once: rows by lines */
    MOST_ROWS = 2 * ROWS,
    NEAR = 32 << 10, /* half of the first cache */
};

/* ---- along k ---- */

/* Lines and rows that are multiplied together. */
struct work {
    const char *b[GROUP];
    const uint16_t *a; /* rows GEMM_KC apart */
    const char *ahead;
};

/* So many rows by so many lines, constants in every caller; k is whole pieces. */
FMLAL_CODE FEW_INLINE void multiply(struct work *w, int64_t k, float32x4_t s[SUMS], int rows, int lines)
{
    for (int64_t i = 0; i < k; i += PIECE) {
        for (int l = 0; l < lines; l++) __builtin_prefetch(w->ahead + 64 * l, 0, 2);
        w->ahead += 64 * lines;
        for (int64_t j = i; j < i + PIECE; j += STEP)
            for (int l = 0; l < lines; l++) {
                float16x8_t b = vld1q_f16((const float16_t *)(const void *)w->b[l] + j);
                for (int r = 0; r < rows; r++) {
                    float16x8_t a = vld1q_f16((const float16_t *)(const void *)w->a + r * GEMM_KC + j);
                    s[r * lines + l] = vfmlalq_low_f16(s[r * lines + l], b, a);
                    s[r * lines + l] = vfmlalq_high_f16(s[r * lines + l], b, a);
                }
            }
    }
}

/* value = value + strand, of four sums, one strand after the other. */
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
FMLAL_CODE FEW_INLINE void multiply_rest(const struct work *w, int64_t whole, int64_t k, float32x4_t s[SUMS],
                                         int rows, int lines)
{
    _Alignas(64) uint16_t rest[GROUP][PIECE] = {{0}};
    struct work last = {.a = w->a + whole, .ahead = (const char *)rest};
    for (int l = 0; l < lines; l++) {
        memcpy(rest[l], w->b[l] + 2 * whole, (size_t)(2 * (k - whole)));
        last.b[l] = (const char *)rest[l];
    }
    multiply(&last, PIECE, s, rows, lines);
}

/* A part of a tile: from one row, line and k on. */
struct part {
    int row, line;
    int64_t k, end;
};

/* `there` of the `lines` values of each row, a constant number where none is missing. */
FEW_INLINE void copy_values(float *dst, int dst_step, const float *src, int src_step, int rows, int lines,
                            int there)
{
    for (int r = 0; r < rows; r++, dst += dst_step, src += src_step)
        if (there == lines)
            memcpy(dst, src, (size_t)lines * sizeof *dst);
        else
            memcpy(dst, src, (size_t)there * sizeof *dst);
}

/* So many lines; those that are missing are the last once more. Returns what is to be asked for next. */
FMLAL_CODE FEW_INLINE const char *lines_along(const struct gemm_few_tile *p, struct part at,
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
            w.b[l] = (const char *)p->b + 2 * ((at.line + (l < there ? l : there - 1)) * p->step + k);
        w.a =
            (const uint16_t *)(const void *)((const char *)p->a + k / GEMM_KC * p->a_step) + at.row * GEMM_KC;
        multiply(&w, whole, s, rows, lines);
        if (whole < here) multiply_rest(&w, whole, here, s, rows, lines);
        for (int i = 0; i < rows * lines; i += 4)
            vst1q_f32(value + i, add_strands(vld1q_f32(value + i), s + i));
    }
    copy_values(to, p->width, value, lines, rows, lines, there);
    return w.ahead;
}

/* All lines by so many rows. */
typedef const char *rows_along(const struct gemm_few_tile *p, struct part at, const char *ahead);
#define ROWS_ALONG(rows, lines)                                                                              \
    FMLAL_CODE static const char *along_##rows(const struct gemm_few_tile *p, struct part at,                \
                                               const char *ahead)                                            \
    {                                                                                                        \
        for (; at.line < p->cols; at.line += lines) ahead = lines_along(p, at, ahead, rows, lines);          \
        return ahead;                                                                                        \
    }
ROWS_ALONG(1, 4)
ROWS_ALONG(2, 4)
ROWS_ALONG(3, 4)
ROWS_ALONG(4, 4)
ROWS_ALONG(6, 2)
ROWS_ALONG(8, 2)

static rows_along *const by_rows[ROWS + 1] = {NULL,    along_1, along_2, along_3, along_4,
                                              along_6, along_6, along_8, along_8};

/* Each line as far as what is needed of A for it stays near, then the next one. */
static void whole_f16(const struct gemm_few_tile *p)
{
    int64_t deep = NEAR / (2 * p->rows) / GEMM_KC * GEMM_KC;
    const char *ahead = p->ahead;
    for (int64_t k = 0; k < p->k; k += deep)
        for (int r = 0; r < p->rows; r += ROWS) {
            struct part at = {.row = r, .k = k, .end = p->k - k < deep ? p->k : k + deep};
            const char *next = by_rows[p->rows - r < ROWS ? p->rows - r : ROWS](p, at, ahead);
            if (r + ROWS >= p->rows) ahead = next;
        }
}

/* ---- across columns: a vector is eight columns of one k ---- */

FMLAL_CODE FEW_INLINE void step_across(const char *b, int64_t step, int deep, const uint16_t *a, float *sums,
                                       int64_t width, int rows)
{
    float16x8_t w[STEP];
    for (int i = 0; i < deep; i++) w[i] = vld1q_f16((const float16_t *)(const void *)(b + i * step));
    for (int r = 0; r < rows; r++) {
        float *at = sums + r * width;
        float32x4_t s = vld1q_f32(at), t = vld1q_f32(at + 4);
        for (int i = 0; i < deep; i++) {
            float16x8_t x = vreinterpretq_f16_u16(vld1q_dup_u16(a + r * GEMM_KC + i * STRANDS));
            s = vfmlalq_low_f16(s, w[i], x), t = vfmlalq_high_f16(t, w[i], x);
        }
        vst1q_f32(at, s), vst1q_f32(at + 4, t);
    }
}

FMLAL_CODE static void across_f16(const struct gemm_few_block *p)
{
    int64_t step = p->step * 2 * STRANDS, whole = p->cols / STEP * STEP, left = p->cols - whole;
    int64_t length = (p->k - p->strand + STRANDS - 1) / STRANDS;
    const char *b = (const char *)p->b + p->strand * p->step * 2;
    const uint16_t *a = (const uint16_t *)p->a + p->strand;
    memset(p->sums, 0, (size_t)(p->rows * p->width) * sizeof *p->sums);
    for (int64_t k = 0; k < length; k += STEP, b += STEP * step, a += STEP * STRANDS) {
        int deep = (int)(length - k < STEP ? length - k : STEP);
        for (int64_t n = 0; n < whole; n += STEP) {
            for (int i = 0; i < STEP && n % PIECE == 0; i++)
                __builtin_prefetch(b + (STEP + i) * step + n * 2, 0, 3);
            if (deep == STEP)
                step_across(b + n * 2, step, STEP, a, p->sums + n, p->width, p->rows);
            else
                step_across(b + n * 2, step, deep, a, p->sums + n, p->width, p->rows);
        }
        if (!left) continue;
        _Alignas(16) char copy[STEP * STEP * 2];
        few_copy_lines(copy, STEP * 2, deep, b + whole * 2, step, deep, left * 2);
        step_across(copy, STEP * 2, deep, a, p->sums + whole, p->width, p->rows);
    }
}

const struct gemm_few gemm_few_fmlal = {.name = "neon fmlal",
                                        .rows = MOST_ROWS,
                                        .lines = LINES,
                                        .unit = 2,
                                        .strands = STRANDS,
                                        .pack = gemm_few_keep,
                                        .whole = whole_f16,
                                        .across = across_f16};

#endif
