/* linear_q_sdot.h - one panel with sdot, for the levels of AArch64. See linear_q.h. Included between VEC_PUSH_ARCH and VEC_POP_ARCH.
 *
 * sdot multiplies four lines by four k with one lane of x. Sums begin at the bits of 1.5 * 2^23 and grow by less than 2^22:
 * read as a float, minus 1.5 * 2^23, they are the integer. A subtraction has a higher throughput than a conversion. Q4_0 uses
 * its codes directly, which are 8 too large, so sums begin lower by 8 times x's codes. */
#pragma once

#if defined(LINEAR_Q_SDOT)
#include <arm_neon.h>

VEC_FN void half16(float *out, const unsigned char *in)
{
    for (int i = 0; i < PANEL_LINES; i += 4) {
        uint16x4_t half;
        memcpy(&half, in + 2 * i, sizeof half);
        vst1q_f32(out + i, vcvt_f32_f16(vreinterpret_f16_u16(half)));
    }
}

/* Replaces loops of linear_q_body.h for which compilers generate more instructions. */
VEC_FN void codes_of(const float *x, float inverse, int8_t *codes, int32_t *sum)
{
    const float32x4_t magic = vdupq_n_f32(12582912.0f);
    for (int h = 0; h < 2; h++, x += 16) {
        int32x4_t code[4];
        for (int i = 0; i < 4; i++)
            code[i] =
                vsubq_s32(vreinterpretq_s32_f32(vaddq_f32(vmulq_n_f32(vld1q_f32(x + 4 * i), inverse), magic)),
                          vreinterpretq_s32_f32(magic));
        sum[h] = vaddvq_s32(vaddq_s32(vaddq_s32(code[0], code[1]), vaddq_s32(code[2], code[3])));
        int16x8_t low = vcombine_s16(vmovn_s32(code[0]), vmovn_s32(code[1])),
                  high = vcombine_s16(vmovn_s32(code[2]), vmovn_s32(code[3]));
        vst1q_s8(codes + 16 * h, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
    }
}

#define LINEAR_Q_HALF16
#define LINEAR_Q_CODES_OF
#define LINEAR_Q_UNPACK_K
#include "device/cpu/linear_q_body.h"

#define SUM_START 0x4b400000 /* 1.5 * 2^23 */

/* Source of the codes: a struct panel8, or a panel in memory, where scales precede the codes of a block. */
enum source { FROM_PANEL8, FROM_Q8_0, FROM_Q4_0, FROM_Q4_K, FROM_Q5_K, FROM_Q6_K };

VEC_FN struct panel8 panel_as_it_lies(const unsigned char *panel, enum source from)
{
    return (struct panel8){(const int8_t *)panel + 32, from == FROM_Q4_0 ? 288 : 544, NULL, NULL, 1, false};
}

VEC_FN float32x4_t sum_as_float(int32x4_t sum)
{
    return vsubq_f32(vreinterpretq_f32_s32(sum), vreinterpretq_f32_s32(vdupq_n_s32(SUM_START)));
}

/* Four scales before the codes of a block, from line 4 * i on. */
VEC_FN float32x4_t half_scales(const int8_t *codes, int i)
{
    uint16x4_t half;
    memcpy(&half, codes - 32 + 8 * i, sizeof half);
    return vcvt_f32_f16(vreinterpret_f16_u16(half));
}

/* Four lines by four of k: group g of eight. */
VEC_FN int8x16_t group_of(const int8_t *codes, enum source from, int g, int i)
{
    if (from != FROM_Q4_0) return vld1q_s8(codes + 64 * g + 16 * i);
    uint8x16_t two = vreinterpretq_u8_s8(vld1q_s8(codes + 64 * (g % 4) + 16 * i));
    return vreinterpretq_s8_u8(g < 4 ? vandq_u8(two, vdupq_n_u8(15)) : vshrq_n_u8(two, 4));
}

/* A row of x: eight codes every `step` bytes, a block every `block` bytes. */
struct row8 {
    const int8_t *codes;
    int64_t step, block;
};

#if !defined(SDOT)
#define SDOT(sum, w, x, lane) sum = vdotq_lane_s32(sum, w, x, lane)
#endif

/* Numbers of rows and of groups of four lines, from `first` on. All are constants, so that sums and values
 * fit the registers. */
struct sdot_shape {
    int rows, first, fours;
};
enum { SDOT_ROWS = 4 };

/* Multiplies block b of some rows by some lines: y[row][four lines]. `with`: scale and total of the row's
 * block. */
VEC_FN void sdot_block(const struct panel8 *w, enum source from, int64_t b, const struct row8 *x,
                       const int32_t *start, const float (*with)[2], struct sdot_shape of,
                       float32x4_t (*y)[4])
{
    const int8_t *codes = w->codes + b * w->step;
    int parts = from == FROM_PANEL8 ? w->parts : 1, end = of.first + of.fours;
    for (int p = 0; p < parts; p++) {
        int32x4_t sum[SDOT_ROWS][4];
        for (int r = 0; r < of.rows; r++)
            for (int i = of.first; i < end; i++) sum[r][i] = vdupq_n_s32(start[r]);
        for (int g = 8 / parts * p; g < 8 / parts * (p + 1); g += 2)
            for (int i = of.first; i < end; i++) {
                int8x16_t even = group_of(codes, from, g, i), odd = group_of(codes, from, g + 1, i);
                for (int r = 0; r < of.rows; r++) {
                    int8x8_t eight = vld1_s8(x[r].codes + b * x[r].block + g / 2 * x[r].step);
                    SDOT(sum[r][i], even, eight, 0);
                    SDOT(sum[r][i], odd, eight, 1);
                }
            }
        for (int i = of.first; i < end; i++) {
            float32x4_t scale = from == FROM_PANEL8
                                    ? vld1q_f32(w->scale + (b * parts + p) * PANEL_LINES + 4 * i)
                                    : half_scales(codes, i);
            for (int r = 0; r < of.rows; r++)
                y[r][i] = vfmaq_f32(y[r][i], sum_as_float(sum[r][i]), vmulq_n_f32(scale, with[r][0]));
        }
    }
    for (int i = of.first; i < end && from == FROM_PANEL8 && w->least; i++)
        for (int r = 0; r < of.rows; r++)
            y[r][i] =
                vfmsq_f32(y[r][i], vld1q_f32(w->least + b * PANEL_LINES + 4 * i), vdupq_n_f32(with[r][1]));
}

#endif
