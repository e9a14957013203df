/* linear_q_sdot.h - one panel with sdot, for the levels of AArch64. See linear_q.h. Included between VEC_PUSH and VEC_POP. */
#ifndef PLIM_DEVICE_CPU_LINEAR_Q_SDOT_H
#define PLIM_DEVICE_CPU_LINEAR_Q_SDOT_H

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

#define LINEAR_Q_HALF16
#include "device/cpu/linear_q_body.h"

/* Four lines over 16 of k: groups [0, 4) from w on. */
#define DOT4(sum, w, x)                                                                                      \
    do {                                                                                                     \
        sum = vdotq_laneq_s32(sum, vld1q_s8(w), x, 0);                                                       \
        sum = vdotq_laneq_s32(sum, vld1q_s8((w) + 64), x, 1);                                                \
        sum = vdotq_laneq_s32(sum, vld1q_s8((w) + 128), x, 2);                                               \
        sum = vdotq_laneq_s32(sum, vld1q_s8((w) + 192), x, 3);                                               \
    } while (0)

/* Block b of one row, 16 lines. */
VEC_FN void add_block(const struct panel8 *w, int64_t b, const int8_t *x, const struct x8_block *q, int parts,
                      float32x4_t *y)
{
    const int8_t *codes = w->codes + b * w->step;
    const float *scale = w->scale + b * parts * PANEL_LINES;
    int8x16_t x0 = vld1q_s8(x), x1 = vld1q_s8(x + 16);
    for (int i = 0; i < 4; i++) {
        int32x4_t sum0 = vdupq_n_s32(0), sum1 = sum0;
        DOT4(sum0, codes + 16 * i, x0);
        DOT4(sum1, codes + 256 + 16 * i, x1);
        if (parts == 1) sum0 = vaddq_s32(sum0, sum1);
        y[i] = vfmaq_f32(y[i], vcvtq_f32_s32(sum0), vmulq_n_f32(vld1q_f32(scale + 4 * i), q->scale));
        if (parts == 2)
            y[i] = vfmaq_f32(y[i], vcvtq_f32_s32(sum1),
                             vmulq_n_f32(vld1q_f32(scale + PANEL_LINES + 4 * i), q->scale));
        if (w->least)
            y[i] = vfmsq_f32(y[i], vld1q_f32(w->least + b * PANEL_LINES + 4 * i), vdupq_n_f32(q->total));
    }
}

VEC_FN void multiply_kind(const struct panel8 *w, const struct x8 *x, int parts, float *out)
{
    int64_t blocks = x->k / X8_BLOCK;
    for (int64_t r = 0; r < x->rows; r++) {
        const int8_t *codes = x->codes + r * x->k;
        float32x4_t y[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
        for (int64_t b = 0; b < blocks; b++)
            add_block(w, b, codes + b * X8_BLOCK, x->blocks + r * blocks + b, parts, y);
        for (int i = 0; i < 4; i++) vst1q_f32(out + r * PANEL_LINES + 4 * i, y[i]);
    }
}

static void multiply_sdot(const struct panel8 *w, const struct x8 *x, float *out)
{
    if (w->parts == 1)
        multiply_kind(w, x, 1, out);
    else
        multiply_kind(w, x, 2, out);
}

#endif
#endif
