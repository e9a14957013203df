/* linear_q_i8mm.c - products with weights in blocks with the 8-bit matrix products of AArch64 (FEAT_I8MM). See linear_q.h.
 *
 * smmla multiplies two rows by two lines over eight of k. So rows of x lie in pairs, eight codes of one and eight of the
 * other, and an unpacked panel is pairs of lines in the same way; scales of both lie as the four sums of a product
 * do. Of panels as they lie in memory two groups of four of k are zipped to lines of eight in registers: that is as fast
 * for few rows. Eight rows by four lines are multiplied at once, over some blocks of k that stay in the first cache. */
#include "device/cpu/linear_q.h"

#if defined(__aarch64__)
#include "device/cpu/vec_base.h"
#include <arm_neon.h>

VEC_PUSH_ARCH("armv8.2-a+dotprod+i8mm+fp16fml")

#if !defined(__clang__)
#pragma GCC optimize("no-schedule-insns")
#endif
#define SDOT(sum, w, x, lane) __asm__("sdot %0.4s, %1.16b, %2.4b[" #lane "]" : "+w"(sum) : "w"(w), "w"(x))
#define LINEAR_Q_SDOT
#define LINEAR_Q_FMLAL
#define LINEAR_Q_UNPACK_Q4_0
#include "device/cpu/linear_q_sdot.h"
#include "device/cpu/linear_q_k_neon.h"

enum {
    ROWS = PANEL8_FEW, /* at once */
    PAIRS = ROWS / 2,
    CHUNK = 24, /* blocks that all lines of a panel meet before the next */
    AHEAD = 16, /* blocks of a panel as it lies in memory that are asked for before they are read */
};

/* Data of a block of two rows, apart from its codes. */
struct x8_pair {
    float scale[4]; /* first row, first row, second row, second row */
    float total[2];
    int32_t start[2]; /* of sums with codes that are 8 too large */
};
_Static_assert(sizeof(struct x8_pair) == 2 * sizeof(struct x8_block), "a pair takes the place of two blocks");

/* ---- rows of x ---- */

/* Eight rows: [k / 32][4 pairs][4 x 8 of k][2 rows][8] codes and [k / 32][4] of what is beside them. */
enum { PAIR_CODES = 2 * X8_BLOCK, EIGHT_CODES = PAIRS * PAIR_CODES };

static void quantise_in_pair(const void *x, enum dtype type, int64_t k, int64_t row, int8_t *codes,
                             struct x8_block *blocks)
{
    int64_t first = row / ROWS * ROWS, at_pair = row % ROWS / 2, second = row % 2;
    struct x8_pair *pair = (struct x8_pair *)(void *)(blocks + first * (k / X8_BLOCK)) + at_pair;
    codes += first * k + at_pair * PAIR_CODES + 8 * second;
    for (int64_t at = 0; at < k; at += X8_BLOCK, pair += PAIRS, codes += EIGHT_CODES) {
        float wide[X8_BLOCK];
        int8_t code[X8_BLOCK];
        struct x8_block block;
        widen_block(x, type, at, wide);
        quantise_block(wide, code, &block);
        for (int i = 0; i < 4; i++) memcpy(codes + 16 * i, code + 8 * i, 8);
        pair->scale[2 * second] = pair->scale[2 * second + 1] = block.scale;
        pair->total[second] = block.total;
        pair->start[second] = SUM_START + (block.lift[0] + block.lift[1]) / 16;
    }
}

/* ---- panels ---- */

VEC_FN int8x16x2_t zip_groups(int8x16_t even, int8x16_t odd)
{
    int32x4_t a = vreinterpretq_s32_s8(even), b = vreinterpretq_s32_s8(odd);
    int8x16x2_t out = {{vreinterpretq_s8_s32(vzip1q_s32(a, b)), vreinterpretq_s8_s32(vzip2q_s32(a, b))}};
    return out;
}

/* A block's codes as pairs of lines: [4 x 8 of k][8 pairs][2 lines][8]. The two may be the same. */
VEC_FN void pair_lines(const int8_t *from, int8_t *to)
{
    for (int g = 0; g < PANEL8_GROUP; g += 2, from += 128, to += 128) {
        int8x16x2_t two[4];
        for (int i = 0; i < 4; i++)
            two[i] = zip_groups(vld1q_s8(from + 16 * i), vld1q_s8(from + 64 + 16 * i));
        for (int i = 0; i < 8; i++) vst1q_s8(to + 16 * i, two[i / 2].val[i % 2]);
    }
}

/* Four numbers as two pairs that are there twice, from the last on: the two may overlap. */
VEC_FN void double_pairs(const float *from, float *to, int64_t count)
{
    for (int64_t i = count - 4; i >= 0; i -= 4) {
        float64x2_t four = vreinterpretq_f64_f32(vld1q_f32(from + i));
        vst1q_f32(to + 2 * i, vreinterpretq_f32_f64(vzip1q_f64(four, four)));
        vst1q_f32(to + 2 * i + 4, vreinterpretq_f32_f64(vzip2q_f64(four, four)));
    }
}

/* Eight of k of four lines, from the lower or the upper halves of bytes. */
VEC_FN int8x16x2_t pair_halves(const unsigned char *at, bool upper)
{
    int8x16_t group[2];
    for (int i = 0; i < 2; i++) {
        uint8x16_t both = vld1q_u8(at + 64 * i);
        both = upper ? vshrq_n_u8(both, 4) : vandq_u8(both, vdupq_n_u8(15));
        group[i] = vsubq_s8(vreinterpretq_s8_u8(both), vdupq_n_s8(8));
    }
    return zip_groups(group[0], group[1]);
}

/* Straight into pairs of lines: what pair_up does of the other types. */
static void unpack_q4_0(const unsigned char *in, int64_t k, void *scratch, struct panel8 *out)
{
    *out = lay_out(scratch, k, 1, false);
    int8_t *codes = scratch;
    float *scale = (float *)(uintptr_t)out->scale, wide[PANEL_LINES];
    for (int64_t b = 0; b < k / X8_BLOCK; b++, in += 288, scale += 2 * PANEL_LINES) {
        half16(wide, in);
        double_pairs(wide, scale, PANEL_LINES);
        for (int eight = 0; eight < 4; eight++)
            for (int i = 0; i < 4; i++, codes += 32) {
                int8x16x2_t two = pair_halves(in + 32 + eight % 2 * 128 + 16 * i, eight >= 2);
                vst1q_s8(codes, two.val[0]), vst1q_s8(codes + 16, two.val[1]);
            }
    }
    out->arranged = true;
}

/* Scales and minima grow in their place: scratch has room for them twice. */
static void pair_up(int64_t k, void *scratch, struct panel8 *w)
{
    int64_t each = k / X8_BLOCK * PANEL_LINES;
    float *scale = (float *)(uintptr_t)w->scale;
    if (w->arranged) return;
    for (int64_t b = 0; b < k / X8_BLOCK; b++)
        pair_lines(w->codes + b * w->step, (int8_t *)scratch + b * CODES);
    if (w->least) {
        double_pairs(w->least, scale + 2 * each * w->parts, each);
        w->least = scale + 2 * each * w->parts;
    }
    double_pairs(scale, scale, each * w->parts);
    w->codes = scratch, w->step = CODES, w->arranged = true;
}

/* ---- products ---- */

/* Four lines from line 4 * i on by eight of k. */
VEC_FN int8x16x2_t lines_of_eight(const int8_t *codes, enum source from, int eight, int i)
{
    int8x16x2_t two;
    if (from == FROM_PANEL8) {
        two.val[0] = vld1q_s8(codes + 128 * eight + 32 * i);
        two.val[1] = vld1q_s8(codes + 128 * eight + 32 * i + 16);
        return two;
    }
    const int8_t *at = codes + (from == FROM_Q4_0 ? eight % 2 : eight) * 128 + 16 * i;
    two = zip_groups(vld1q_s8(at), vld1q_s8(at + 64));
    for (int j = 0; j < 2 && from == FROM_Q4_0; j++) {
        uint8x16_t both = vreinterpretq_u8_s8(two.val[j]);
        two.val[j] = vreinterpretq_s8_u8(eight < 2 ? vandq_u8(both, vdupq_n_u8(15)) : vshrq_n_u8(both, 4));
    }
    return two;
}

/* Scales of lines as sums have them: line, next line, line, next line. */
VEC_FN void scales_of(const struct panel8 *w, enum source from, const int8_t *codes, int64_t part, int i,
                      float32x4_t *scale)
{
    if (from == FROM_PANEL8) {
        scale[0] = vld1q_f32(w->scale + part * 2 * PANEL_LINES + 8 * i);
        scale[1] = vld1q_f32(w->scale + part * 2 * PANEL_LINES + 8 * i + 4);
    } else {
        float64x2_t four = vreinterpretq_f64_f32(half_scales(codes, i));
        scale[0] = vreinterpretq_f32_f64(vzip1q_f64(four, four));
        scale[1] = vreinterpretq_f32_f64(vzip2q_f64(four, four));
    }
}

/* How many rows meet how many lines at once: `pairs` times `fours` is 4 at most. Constants in every caller. */
struct tile {
    enum source from;
    int pairs, fours; /* pairs of rows, four lines each */
    int parts;
    bool least;
};

/* Sums of a part of a block. Those of Q4_0 begin at x8_pair.start; its codes of 16 elements are in the same bytes as the next 16. */
VEC_FN void sum_part(const int8_t *codes, struct tile t, int part, int i, const int8_t *x,
                     int32x4_t (*sum)[4][2])
{
    for (int n = 0; n < 4 / t.parts; n++) {
        int eight = t.from == FROM_Q4_0 ? n / 2 + n % 2 * 2 : 4 / t.parts * part + n;
        for (int j = 0; j < t.fours; j++) {
            int8x16x2_t two = lines_of_eight(codes, t.from, eight, i + j);
            for (int r = 0; r < t.pairs; r++) {
                int8x16_t rows = vld1q_s8(x + r * PAIR_CODES + 16 * eight);
                sum[r][j][0] = vmmlaq_s32(sum[r][j][0], rows, two.val[0]);
                sum[r][j][1] = vmmlaq_s32(sum[r][j][1], rows, two.val[1]);
            }
        }
    }
}

/* Block b by lines from line 4 * i on: y[pair][four lines][two lines]. */
VEC_FN void add_block(const struct panel8 *w, struct tile t, int64_t b, const struct x8 *x, int i,
                      float32x4_t (*y)[4][2])
{
    const int8_t *codes = w->codes + b * w->step;
    const struct x8_pair *q = (const struct x8_pair *)(const void *)x->blocks + b * PAIRS;
    for (int p = 0; p < t.parts; p++) {
        int32x4_t sum[PAIRS][4][2];
        for (int r = 0; r < t.pairs; r++) {
            int32x4_t start = vdupq_n_s32(SUM_START);
            if (t.from == FROM_Q4_0) {
                start = vreinterpretq_s32_f32(vld1q_f32(q[r].total));
                start = vzip2q_s32(start, start);
            }
            for (int j = 0; j < t.fours; j++) sum[r][j][0] = sum[r][j][1] = start;
        }
        sum_part(codes, t, p, i, x->codes + b * EIGHT_CODES, sum);
        for (int j = 0; j < t.fours; j++) {
            float32x4_t scale[2];
            scales_of(w, t.from, codes, b * t.parts + p, i + j, scale);
            for (int r = 0; r < t.pairs; r++) {
                float32x4_t with = vld1q_f32(q[r].scale);
                for (int h = 0; h < 2; h++)
                    y[r][j][h] = vfmaq_f32(y[r][j][h], sum_as_float(sum[r][j][h]), vmulq_f32(scale[h], with));
            }
        }
    }
    for (int j = 0; j < t.fours && t.least; j++)
        for (int r = 0; r < t.pairs; r++) {
            const float *least = w->least + b * 2 * PANEL_LINES + 8 * (i + j);
            float32x4_t total = vld1q_f32(q[r].total);
            total = vzip1q_f32(total, total);
            for (int h = 0; h < 2; h++) y[r][j][h] = vfmsq_f32(y[r][j][h], vld1q_f32(least + 4 * h), total);
        }
}

/* Blocks [at, end) of lines from 4 * i on. A panel as it lies in memory is asked for some blocks ahead by each of the passes. */
VEC_FN void add_blocks(const struct panel8 *w, struct tile t, int64_t at, int64_t end, const struct x8 *x,
                       int i, float32x4_t (*y)[PAIRS][2])
{
    float32x4_t here[PAIRS][4][2];
    for (int r = 0; r < t.pairs; r++)
        for (int j = 0; j < t.fours; j++) here[r][j][0] = y[i + j][r][0], here[r][j][1] = y[i + j][r][1];
    for (int64_t b = at; b < end; b++) {
        if (t.from != FROM_PANEL8 && t.fours == 1) {
            int each = t.from == FROM_Q4_0 ? 64 : 128;
            const int8_t *ahead = w->codes + (b + AHEAD) * w->step + each * i;
            for (int n = 0; n < each; n += 64) __builtin_prefetch(ahead + n);
        }
        add_block(w, t, b, x, i, here);
    }
    for (int r = 0; r < t.pairs; r++)
        for (int j = 0; j < t.fours; j++) y[i + j][r][0] = here[r][j][0], y[i + j][r][1] = here[r][j][1];
}

/* ---- eight rows by four lines: most of a prompt's time, which compilers make a quarter slower ---- */

/* v16..v23 are a block's sums, v24..v31 y, v0..v3 lines and then minima, v4..v11 rows, v12..v15 scales and totals. */
/* clang-format off */
#define ZERO_SUMS                                                                                            \
    "movi v16.4s, #0\n" "movi v17.4s, #0\n" "movi v18.4s, #0\n" "movi v19.4s, #0\n"                          \
    "movi v20.4s, #0\n" "movi v21.4s, #0\n" "movi v22.4s, #0\n" "movi v23.4s, #0\n"
#define SMMLA(sum, row, line)   "smmla v" #sum ".4s, v" #row ".16b, v" #line ".16b\n"
#define EIGHT_OF_K(at, p, q, r, s, c, d)                                                                     \
    "ldp q" #c ", q" #d ", [%[codes], #128 * " #at "]\n"                                                     \
    "ldr q" #p ", [%[x], #16 * " #at "]\n"        "ldr q" #q ", [%[x], #64 + 16 * " #at "]\n"                \
    "ldr q" #r ", [%[x], #128 + 16 * " #at "]\n"  "ldr q" #s ", [%[x], #192 + 16 * " #at "]\n"               \
    SMMLA(16, p, c) SMMLA(17, p, d) SMMLA(18, q, c) SMMLA(19, q, d)                                          \
    SMMLA(20, r, c) SMMLA(21, r, d) SMMLA(22, s, c) SMMLA(23, s, d)
#define FIRST_16   EIGHT_OF_K(0, 4, 5, 6, 7, 0, 1) EIGHT_OF_K(1, 8, 9, 10, 11, 2, 3)
#define SECOND_16  EIGHT_OF_K(2, 4, 5, 6, 7, 0, 1) EIGHT_OF_K(3, 8, 9, 10, 11, 2, 3)
#define ADD_PAIR(at, sum, next, y, z)                                                                        \
    "ldr q14, [%[q], #" #at "]\n"                                                                            \
    "scvtf v" #sum ".4s, v" #sum ".4s\n" "scvtf v" #next ".4s, v" #next ".4s\n"                              \
    "fmul v4.4s, v12.4s, v14.4s\n"       "fmul v5.4s, v13.4s, v14.4s\n"                                      \
    "fmla v" #y ".4s, v" #sum ".4s, v4.4s\n" "fmla v" #z ".4s, v" #next ".4s, v5.4s\n"
#define ADD_SUMS(at)                                                                                         \
    "ldp q12, q13, [%[scale], #" #at "]\n"                                                                   \
    ADD_PAIR(0, 16, 17, 24, 25)  ADD_PAIR(32, 18, 19, 26, 27) ADD_PAIR(64, 20, 21, 28, 29) ADD_PAIR(96, 22, 23, 30, 31)
#define TAKE_PAIR(at, y, z)                                                                                  \
    "ldr d15, [%[q], #" #at "]\n" "zip1 v15.4s, v15.4s, v15.4s\n"                                            \
    "fmls v" #y ".4s, v0.4s, v15.4s\n" "fmls v" #z ".4s, v1.4s, v15.4s\n"
#define TAKE_MINIMA                                                                                          \
    "ldp q0, q1, [%[least]], #128\n"                                                                         \
    TAKE_PAIR(16, 24, 25) TAKE_PAIR(48, 26, 27) TAKE_PAIR(80, 28, 29) TAKE_PAIR(112, 30, 31)
#define EIGHT_Y(op)                                                                                          \
    op " q24, q25, [%[y]]\n" op " q26, q27, [%[y], #32]\n" op " q28, q29, [%[y], #64]\n" op " q30, q31, [%[y], #96]\n"

/* `block` for n blocks; scales of a block take `scales` bytes. */
#define EIGHT_BY_FOUR(block, scales)                                                                         \
    __asm__ volatile(EIGHT_Y("ldp")                                                                          \
        ".p2align 6\n" "1:\n" block                                                                          \
        "add %[codes], %[codes], #512\n" "add %[x], %[x], #256\n" "add %[q], %[q], #128\n"                   \
        "add %[scale], %[scale], #" #scales "\n" "subs %[n], %[n], #1\n" "b.ne 1b\n"                         \
        EIGHT_Y("stp")                                                                                       \
        : [codes] "+r"(codes), [x] "+r"(rows), [scale] "+r"(scale), [least] "+r"(least), [q] "+r"(q), [n] "+r"(n) \
        : [y] "r"(y)                                                                                         \
        : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", \
          "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31")

/* `n` blocks of arranged lines from 4 * i on: what add_blocks does with four pairs. */
VEC_FN void eight_by_four(const struct panel8 *w, struct tile t, int64_t at, int64_t n, const struct x8 *x, int i,
                          float32x4_t (*y)[2])
{
    const int8_t *codes = w->codes + at * CODES + 32 * i, *rows = x->codes + at * EIGHT_CODES;
    const float *scale = w->scale + at * t.parts * 2 * PANEL_LINES + 8 * i,
                *least = t.least ? w->least + at * 2 * PANEL_LINES + 8 * i : NULL;
    const struct x8_pair *q = (const struct x8_pair *)(const void *)x->blocks + at * PAIRS;
    if (t.parts == 2)
        EIGHT_BY_FOUR(ZERO_SUMS FIRST_16 ADD_SUMS(0) ZERO_SUMS SECOND_16 ADD_SUMS(128), 256);
    else if (t.least)
        EIGHT_BY_FOUR(ZERO_SUMS FIRST_16 SECOND_16 ADD_SUMS(0) TAKE_MINIMA, 128);
    else
        EIGHT_BY_FOUR(ZERO_SUMS FIRST_16 SECOND_16 ADD_SUMS(0), 128);
}
/* clang-format on */
_Static_assert(CODES == 512 && EIGHT_CODES == 256 && sizeof(struct x8_pair) == 32, "as the assembly counts");

/* Blocks [at, end) of all lines by some pairs of rows. */
VEC_FN void add_lines(const struct panel8 *w, struct tile t, int pairs, int64_t at, int64_t end,
                      const struct x8 *x, float32x4_t (*y)[PAIRS][2])
{
    t.pairs = pairs, t.fours = pairs == 1 ? 4 : pairs == 2 ? 2 : 1;
    for (int i = 0; i < 4; i += t.fours)
        if (t.from == FROM_PANEL8 && pairs == 4)
            eight_by_four(w, t, at, end - at, x, i, y[i]);
        else
            add_blocks(w, t, at, end, x, i, y);
}

/* The first `skip` and what is after `rows` are not written. */
VEC_FN void put_lines(float32x4_t (*y)[PAIRS][2], int64_t skip, int64_t rows, float *out)
{
    for (int i = 0; i < 4; i++)
        for (int r = 0; 2 * r < rows; r++) {
            float *to = out + 2 * r * PANEL_LINES + 4 * i;
            float64x2_t a = vreinterpretq_f64_f32(y[i][r][0]), b = vreinterpretq_f64_f32(y[i][r][1]);
            if (2 * r >= skip) vst1q_f32(to, vreinterpretq_f32_f64(vzip1q_f64(a, b)));
            if (2 * r + 1 < rows) vst1q_f32(to + PANEL_LINES, vreinterpretq_f32_f64(vzip2q_f64(a, b)));
        }
}

/* Rows [row, row + rows) of x, counted from the first eight on, that lie in the same eight; row is that of a pair. */
struct span {
    int64_t row, rows;
};

VEC_FN struct span span_from(const struct x8 *x, int64_t row)
{
    int64_t end = row / ROWS * ROWS + ROWS, last = x->skip + x->rows;
    return (struct span){row, (end < last ? end : last) - row};
}

/* A span's rows of x, from block `at` on. */
VEC_FN struct x8 span_rows(const struct x8 *x, struct span s, int64_t at)
{
    int64_t first = s.row / ROWS * ROWS, skip = s.row % ROWS;
    return (struct x8){x->codes + first * x->k + at * EIGHT_CODES + skip / 2 * PAIR_CODES,
                       x->blocks + first * (x->k / X8_BLOCK) + at * ROWS + skip, x->k, s.rows, 0};
}

VEC_FN void add_span(const struct panel8 *w, struct tile t, int64_t at, int64_t end, const struct x8 *x,
                     float32x4_t (*y)[PAIRS][2])
{
    if (x->rows > 6)
        add_lines(w, t, 4, at, end, x, y);
    else if (x->rows > 4)
        add_lines(w, t, 3, at, end, x, y);
    else if (x->rows > 2)
        add_lines(w, t, 2, at, end, x, y);
    else
        add_lines(w, t, 1, at, end, x, y);
}

/* All rows meet some blocks of `count` panels, one or two, before the next: a constant. The first pair may have a row of another's, the
 * last may have only one. */
VEC_FN void multiply_all(const struct panel8 *w, int count, struct tile t, const struct x8 *x, float *out)
{
    int64_t blocks = x->k / X8_BLOCK, begin = x->skip / 2 * 2, last = x->skip + x->rows;
    float32x4_t y[2][PANEL8_ROWS / ROWS + 1][4][PAIRS][2];
    for (int p = 0; p < count; p++) memset(y[p], 0, (size_t)((last + ROWS - 1) / ROWS) * sizeof *y[p]);
    for (int64_t at = 0; at < blocks; at += CHUNK)
        for (struct span s = span_from(x, begin); s.row < last; s = span_from(x, s.row + s.rows)) {
            struct x8 rows = span_rows(x, s, 0);
            for (int p = 0; p < count; p++)
                add_span(w + p, t, at, at + CHUNK < blocks ? at + CHUNK : blocks, &rows, y[p][s.row / ROWS]);
        }
    for (int p = 0; p < count; p++, out += PANEL8_ROWS * PANEL_LINES)
        for (struct span s = span_from(x, begin); s.row < last; s = span_from(x, s.row + s.rows))
            put_lines(y[p][s.row / ROWS], x->skip - s.row, s.rows, out + (s.row - x->skip) * PANEL_LINES);
}

/* A few rows of Q4_K, Q5_K or Q6_K: 256 elements at a time are unpacked near. */
VEC_FN void several_of_k(const unsigned char *panel, enum source from, const struct x8 *x, float *out)
{
    _Alignas(64) char scratch[K_BLOCK * (PANEL_LINES + 16)];
    const struct tile t = {.parts = from == FROM_Q6_K ? 2 : 1, .least = from != FROM_Q6_K};
    int64_t begin = x->skip / 2 * 2, last = x->skip + x->rows;
    float32x4_t y[2][4][PAIRS][2];
    memset(y, 0, sizeof y);
    for (int64_t b = 0; b < x->k / K_BLOCK; b++, panel += k_bytes(from)) {
        struct panel8 w;
        unpack_panel_k(panel, from, K_BLOCK, true, scratch, &w);
        for (struct span s = span_from(x, begin); s.row < last; s = span_from(x, s.row + s.rows)) {
            struct x8 rows = span_rows(x, s, b * K_PARTS);
            add_span(&w, t, 0, K_PARTS, &rows, y[s.row / ROWS]);
        }
    }
    for (struct span s = span_from(x, begin); s.row < last; s = span_from(x, s.row + s.rows))
        put_lines(y[s.row / ROWS], x->skip - s.row, s.rows, out + (s.row - x->skip) * PANEL_LINES);
}

VEC_FN void one_of_k(const unsigned char *panel, enum source from, const struct x8 *x, float *out)
{
    const struct x8_pair *q = (const struct x8_pair *)(const void *)x->blocks + x->skip / 2;
    const int8_t *codes = x->codes + x->skip / 2 * PAIR_CODES + x->skip % 2 * 8;
    int second = x->skip % 2;
    float32x4_t y[4];
    for (int i = 0; i < 4; i++) y[i] = vdupq_n_f32(0);
    for (int64_t b = 0; b < x->k / K_BLOCK; b++, panel += k_bytes(from)) {
        struct x_block block[K_PARTS];
        for (int p = 0; p < K_PARTS; p++, q += PAIRS, codes += EIGHT_CODES)
            block[p] = (struct x_block){codes, q->scale[2 * second], q->total[second]};
        one_row_k(panel, from, block, 16, y);
    }
    for (int i = 0; i < 4; i++) vst1q_f32(out + 4 * i, y[i]);
}

VEC_FN void few_of_k(const unsigned char *panel, enum source from, const struct x8 *x, float *out)
{
    if (x->rows == 1)
        one_of_k(panel, from, x, out);
    else
        several_of_k(panel, from, x, out);
}

/* One row of lines that are not in pairs, as an unpacked panel of one row and one that lies in memory: sdot needs no zips. */
VEC_FN void multiply_one(const struct panel8 *w, enum source from, const struct x8 *x, float *out)
{
    const struct x8_pair *q = (const struct x8_pair *)(const void *)x->blocks + x->skip / 2;
    struct row8 row = {x->codes + x->skip / 2 * PAIR_CODES + x->skip % 2 * 8, 16, EIGHT_CODES};
    int second = x->skip % 2;
    float32x4_t y[1][4];
    for (int i = 0; i < 4; i++) y[0][i] = vdupq_n_f32(0);
    for (int64_t b = 0; b < x->k / X8_BLOCK; b++, q += PAIRS) {
        float with[1][2] = {{q->scale[2 * second], q->total[second]}};
        int32_t start = from == FROM_Q4_0 ? q->start[second] : SUM_START;
        sdot_block(w, from, b, &row, &start, with, (struct sdot_shape){1, 0, 4}, y);
    }
    for (int i = 0; i < 4; i++) vst1q_f32(out + 4 * i, y[0][i]);
}

static void multiply_panel(const struct panel8 *w, const struct x8 *x, float *out)
{
    struct panel8 one = *w, two = *w;
    one.parts = 1, two.parts = 2, two.least = NULL;
    if (!w->arranged && w->parts == 1)
        multiply_one(&one, FROM_PANEL8, x, out);
    else if (!w->arranged)
        multiply_one(&two, FROM_PANEL8, x, out);
    else if (w->parts == 2)
        multiply_all(w, 1, (struct tile){.parts = 2}, x, out);
    else if (w->least)
        multiply_all(w, 1, (struct tile){.parts = 1, .least = true}, x, out);
    else
        multiply_all(w, 1, (struct tile){.parts = 1}, x, out);
}

VEC_FN bool is_plain(const struct panel8 *w) { return w->arranged && w->parts == 1 && !w->least; }

static void multiply_two(const struct panel8 *w, const struct x8 *x, float *out)
{
    if (is_plain(w) && is_plain(w + 1)) {
        multiply_all(w, 2, (struct tile){.parts = 1}, x, out);
        return;
    }
    for (int p = 0; p < 2; p++) multiply_panel(w + p, x, out + p * PANEL8_ROWS * PANEL_LINES);
}

VEC_FN void multiply_few(const unsigned char *panel, enum source from, const struct x8 *x, float *out)
{
    struct panel8 w = panel_as_it_lies(panel, from);
    if (x->rows == 1)
        multiply_one(&w, from, x, out);
    else
        multiply_all(&w, 1, (struct tile){.from = from, .parts = 1}, x, out);
}

static void few_q8_0(const unsigned char *panel, const struct x8 *x, float *out)
{
    multiply_few(panel, FROM_Q8_0, x, out);
}
static void few_q4_0(const unsigned char *panel, const struct x8 *x, float *out)
{
    multiply_few(panel, FROM_Q4_0, x, out);
}

LINEAR_Q_UNPACK_K_NEON(true)
LINEAR_Q_FEW_K_NEON

VEC_POP_ARCH

const struct linear_q_level linear_q_i8mm =
    LINEAR_Q_TABLE("neon smmla", ROWS, quantise_in_pair, LINEAR_Q_FEW_ALL, pair_up, multiply_two);
#endif
