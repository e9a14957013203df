/* linear_q_plain.c - products with weights in blocks in portable C. See linear_q.h. */
#include "device/cpu/linear_q_body.h"

/* Sum over groups [first, end) of a block, of one line. */
static int32_t dot(const int8_t *w, const int8_t *x, int line, int first, int end)
{
    int32_t sum = 0;
    for (int g = first; g < end; g++)
        for (int i = 0; i < 4; i++) sum += w[(g * PANEL_LINES + line) * 4 + i] * x[g * 4 + i];
    return sum;
}

static void multiply_panel(const struct panel8 *w, const struct x8 *x, float *out)
{
    int64_t blocks = x->k / X8_BLOCK;
    for (int64_t i = 0; i < x->rows * PANEL_LINES; i++) {
        int64_t r = i / PANEL_LINES, line = i % PANEL_LINES;
        float y = 0;
        for (int64_t b = 0; b < blocks; b++) {
            const struct x8_block *q = &x->blocks[r * blocks + b];
            for (int p = 0; p < w->parts; p++) {
                int32_t sum = dot(w->codes + b * w->step, x->codes + r * x->k + b * X8_BLOCK, (int)line,
                                  p * PANEL8_GROUP / w->parts, (p + 1) * PANEL8_GROUP / w->parts);
                y = fmaf((float)sum, w->scale[(b * w->parts + p) * PANEL_LINES + line] * q->scale, y);
            }
            if (w->least) y = fmaf(-w->least[b * PANEL_LINES + line], q->total, y);
        }
        out[i] = y;
    }
}

const struct linear_q_level linear_q_plain = LINEAR_Q_TABLE("plain", 1, quantise_row, {NULL}, NULL, NULL);
