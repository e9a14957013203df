/* linear_q_neon.c - products with weights in blocks with the dot products of AArch64 (FEAT_DotProd). See linear_q.h.
 *
 * linear_q_i8mm.c has the products of two rows by two lines that newer ones have. */
#include "device/cpu/linear_q.h"

#if defined(__aarch64__)
#include "device/cpu/vec_base.h"
#include <arm_neon.h>

VEC_PUSH("arch=armv8.2-a+dotprod")

#define LINEAR_Q_SDOT
#include "device/cpu/linear_q_sdot.h"

/* Rows of x from `at` on by all lines; rows and from are constants: two share the loads of a panel. */
VEC_FN void multiply_rows(const struct panel8 *w, enum source from, const struct x8 *x, int64_t at, int rows,
                          float *out)
{
    int64_t blocks = x->k / X8_BLOCK;
    struct row8 row[SDOT_ROWS];
    float32x4_t y[SDOT_ROWS][4];
    for (int r = 0; r < rows; r++) row[r] = (struct row8){x->codes + (at + r) * x->k, 8, X8_BLOCK};
    for (int n = 0; n < 4 * rows; n++) y[n / 4][n % 4] = vdupq_n_f32(0);
    for (int64_t b = 0; b < blocks; b++) {
        float with[SDOT_ROWS][2];
        int32_t start[SDOT_ROWS];
        for (int r = 0; r < rows; r++) {
            const struct x8_block *q = x->blocks + (at + r) * blocks + b;
            with[r][0] = q->scale, with[r][1] = q->total;
            start[r] = SUM_START + (from == FROM_Q4_0 ? (q->lift[0] + q->lift[1]) / 16 : 0);
        }
        sdot_block(w, from, b, row, start, with, rows, y);
    }
    for (int n = 0; n < 4 * rows; n++) vst1q_f32(out + at * PANEL_LINES + 4 * n, y[n / 4][n % 4]);
}

VEC_FN void multiply_all(const struct panel8 *w, enum source from, const struct x8 *x, float *out)
{
    int64_t r = 0;
    for (; r + 2 <= x->rows; r += 2) multiply_rows(w, from, x, r, 2, out);
    if (r < x->rows) multiply_rows(w, from, x, r, 1, out);
}

static void multiply_panel(const struct panel8 *w, const struct x8 *x, float *out)
{
    struct panel8 one = *w, two = *w;
    one.parts = 1, two.parts = 2, two.least = NULL;
    if (w->parts == 1)
        multiply_all(&one, FROM_PANEL8, x, out);
    else
        multiply_all(&two, FROM_PANEL8, x, out);
}

static void few_q8_0(const unsigned char *panel, const struct x8 *x, float *out)
{
    struct panel8 w = panel_as_it_lies(panel, FROM_Q8_0);
    multiply_all(&w, FROM_Q8_0, x, out);
}
static void few_q4_0(const unsigned char *panel, const struct x8 *x, float *out)
{
    struct panel8 w = panel_as_it_lies(panel, FROM_Q4_0);
    multiply_all(&w, FROM_Q4_0, x, out);
}

VEC_POP

const struct linear_q_level linear_q_dotprod = LINEAR_Q_TABLE(
    "neon sdot", 1, quantise_row, {[BLOCK_Q8_0] = few_q8_0, [BLOCK_Q4_0] = few_q4_0}, NULL, NULL);
#endif
