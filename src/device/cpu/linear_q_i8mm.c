/* linear_q_i8mm.c - products with weights in blocks with the 8-bit matrix products of AArch64 (FEAT_I8MM). See linear_q.h.
 *
 * smmla multiplies two rows by two lines over eight of k. Two groups of four of k are zipped to lines of eight in registers;
 * a row that is left over goes the way of sdot. */
#include "device/cpu/linear_q.h"

#if defined(__aarch64__)
#include "device/cpu/vec_base.h"
#include <arm_neon.h>

VEC_PUSH("arch=armv8.2-a+dotprod+i8mm")

#define LINEAR_Q_SDOT
#include "device/cpu/linear_q_sdot.h"

/* Four lines of a group and of the next, as two registers of two lines by eight of k. */
VEC_FN int8x16x2_t lines_of_eight(const int8_t *codes)
{
    int32x4_t a = vreinterpretq_s32_s8(vld1q_s8(codes)), b = vreinterpretq_s32_s8(vld1q_s8(codes + 64));
    int8x16x2_t out = {{vreinterpretq_s8_s32(vzip1q_s32(a, b)), vreinterpretq_s8_s32(vzip2q_s32(a, b))}};
    return out;
}

/* Sums of two rows over half a block, four lines: sum[row]. */
VEC_FN void dot_half(const int8_t *codes, const int8_t *x0, const int8_t *x1, int32x4_t *sum)
{
    int32x4_t low = vdupq_n_s32(0), high = low;
    for (int g = 0; g < 2; g++) {
        int8x16_t x = vcombine_s8(vld1_s8(x0 + 8 * g), vld1_s8(x1 + 8 * g));
        int8x16x2_t w = lines_of_eight(codes + 128 * g);
        low = vmmlaq_s32(low, x, w.val[0]);
        high = vmmlaq_s32(high, x, w.val[1]);
    }
    sum[0] = vcombine_s32(vget_low_s32(low), vget_low_s32(high));
    sum[1] = vcombine_s32(vget_high_s32(low), vget_high_s32(high));
}

VEC_FN float32x4_t add_scaled(float32x4_t y, int32x4_t sum, const float *scale, float with)
{
    return vfmaq_f32(y, vcvtq_f32_s32(sum), vmulq_n_f32(vld1q_f32(scale), with));
}

/* Block b of two rows, 16 lines: y[row][4]. */
VEC_FN void add_block2(const struct panel8 *w, int64_t b, const int8_t *const *x,
                       const struct x8_block *const *q, int parts, float32x4_t (*y)[4])
{
    const int8_t *codes = w->codes + b * w->step;
    const float *scale = w->scale + b * parts * PANEL_LINES;
    for (int i = 0; i < 4; i++) {
        int32x4_t first[2], second[2];
        dot_half(codes + 16 * i, x[0] + b * X8_BLOCK, x[1] + b * X8_BLOCK, first);
        dot_half(codes + 256 + 16 * i, x[0] + b * X8_BLOCK + 16, x[1] + b * X8_BLOCK + 16, second);
        for (int r = 0; r < 2; r++) {
            const struct x8_block *with = q[r] + b;
            int32x4_t sum = parts == 1 ? vaddq_s32(first[r], second[r]) : first[r];
            y[r][i] = add_scaled(y[r][i], sum, scale + 4 * i, with->scale);
            if (parts == 2)
                y[r][i] = add_scaled(y[r][i], second[r], scale + PANEL_LINES + 4 * i, with->scale);
            if (w->least)
                y[r][i] = vfmsq_f32(y[r][i], vld1q_f32(w->least + b * PANEL_LINES + 4 * i),
                                    vdupq_n_f32(with->total));
        }
    }
}

VEC_FN void multiply_pairs(const struct panel8 *w, const struct x8 *x, int parts, float *out)
{
    int64_t blocks = x->k / X8_BLOCK;
    for (int64_t r = 0; r + 2 <= x->rows; r += 2) {
        const int8_t *codes[2] = {x->codes + r * x->k, x->codes + (r + 1) * x->k};
        const struct x8_block *q[2] = {x->blocks + r * blocks, x->blocks + (r + 1) * blocks};
        float32x4_t y[2][4];
        for (int i = 0; i < 8; i++) y[i / 4][i % 4] = vdupq_n_f32(0);
        for (int64_t b = 0; b < blocks; b++) add_block2(w, b, codes, q, parts, y);
        for (int i = 0; i < 8; i++) vst1q_f32(out + r * PANEL_LINES + 4 * i, y[i / 4][i % 4]);
    }
}

static void multiply_panel(const struct panel8 *w, const struct x8 *x, float *out)
{
    int64_t pairs = x->rows / 2 * 2;
    if (w->parts == 1)
        multiply_pairs(w, x, 1, out);
    else
        multiply_pairs(w, x, 2, out);
    struct x8 last = {x->codes + pairs * x->k, x->blocks + pairs * (x->k / X8_BLOCK), x->k, x->rows - pairs};
    if (last.rows) multiply_sdot(w, &last, out + pairs * PANEL_LINES);
}

VEC_POP

const struct linear_q_level linear_q_i8mm = LINEAR_Q_TABLE("neon smmla", {NULL});
#endif
