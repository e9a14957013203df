/* linear_q_neon.c - products with weights in blocks with the dot products of AArch64 (FEAT_DotProd). See linear_q.h.
 *
 * linear_q_i8mm.c has the products of two rows by two lines that newer ones have. */
#include "device/cpu/linear_q.h"

#if defined(__aarch64__)
#include "device/cpu/vec_base.h"
#include <arm_neon.h>

VEC_PUSH_ARCH("armv8.2-a+dotprod")

/* gcc would move loads ahead until sums no longer fit the registers, and take new ones for each sum of vdotq_lane_s32. */
#if !defined(__clang__)
#pragma GCC optimize("no-schedule-insns")
#endif
#define SDOT(sum, w, x, lane) __asm__("sdot %0.4s, %1.16b, %2.4b[" #lane "]" : "+w"(sum) : "w"(w), "w"(x))

#define LINEAR_Q_SDOT
#include "device/cpu/linear_q_sdot.h"
#include "device/cpu/linear_q_k_neon.h"

enum { NEAR = 32 }; /* blocks of a panel that stay in the first cache while all rows meet them */

/* Blocks of k from `begin` on; add: to what out has from blocks before. */
struct blocks {
    int64_t begin, end;
    bool add;
};

/* Rows of x from `at` on by some lines; the shape and from are constants. */
VEC_FN void multiply_shape(const struct panel8 *w, enum source from, const struct x8 *x, int64_t at,
                           struct sdot_shape of, struct blocks k, float *out)
{
    int64_t blocks = x->k / X8_BLOCK;
    struct row8 row[SDOT_ROWS];
    float32x4_t y[SDOT_ROWS][4];
    out += at * PANEL_LINES;
    for (int r = 0; r < of.rows; r++) {
        row[r] = (struct row8){x->codes + (at + r) * x->k, 8, X8_BLOCK};
        for (int i = of.first; i < of.first + of.fours; i++)
            y[r][i] = k.add ? vld1q_f32(out + r * PANEL_LINES + 4 * i) : vdupq_n_f32(0);
    }
    for (int64_t b = k.begin; b < k.end; b++) {
        float with[SDOT_ROWS][2];
        int32_t start[SDOT_ROWS];
        for (int r = 0; r < of.rows; r++) {
            const struct x8_block *q = x->blocks + (at + r) * blocks + b;
            with[r][0] = q->scale, with[r][1] = q->total;
            start[r] = SUM_START + (from == FROM_Q4_0 ? (q->lift[0] + q->lift[1]) / 16 : 0);
        }
        sdot_block(w, from, b, row, start, with, of, y);
    }
    for (int r = 0; r < of.rows; r++)
        for (int i = of.first; i < of.first + of.fours; i++)
            vst1q_f32(out + r * PANEL_LINES + 4 * i, y[r][i]);
}

/* Four rows share the loads of half of the lines, two and one those of all. */
VEC_FN void add_blocks(const struct panel8 *w, enum source from, const struct x8 *x, struct blocks k,
                       float *out)
{
    int64_t r = 0;
    for (; r + 4 <= x->rows; r += 4) {
        multiply_shape(w, from, x, r, (struct sdot_shape){4, 0, 2}, k, out);
        multiply_shape(w, from, x, r, (struct sdot_shape){4, 2, 2}, k, out);
    }
    for (; r + 2 <= x->rows; r += 2) multiply_shape(w, from, x, r, (struct sdot_shape){2, 0, 4}, k, out);
    if (r < x->rows) multiply_shape(w, from, x, r, (struct sdot_shape){1, 0, 4}, k, out);
}

VEC_FN void multiply_all(const struct panel8 *w, enum source from, const struct x8 *x, float *out)
{
    int64_t blocks = x->k / X8_BLOCK;
    for (int64_t at = 0; at < blocks; at += NEAR)
        add_blocks(w, from, x, (struct blocks){at, at + NEAR < blocks ? at + NEAR : blocks, at > 0}, out);
}

VEC_FN void one_of_k(const unsigned char *panel, enum source from, const struct x8 *x, float *out)
{
    const struct x8_block *q = x->blocks;
    const int8_t *codes = x->codes;
    float32x4_t y[4];
    for (int i = 0; i < 4; i++) y[i] = vdupq_n_f32(0);
    for (int64_t b = 0; b < x->k / K_BLOCK; b++, panel += k_bytes(from)) {
        struct x_block block[K_PARTS];
        for (int p = 0; p < K_PARTS; p++, q++, codes += X8_BLOCK)
            block[p] = (struct x_block){codes, q->scale, q->total};
        one_row_k(panel, from, block, 8, y);
    }
    for (int i = 0; i < 4; i++) vst1q_f32(out + 4 * i, y[i]);
}

/* Several rows: 256 elements at a time are unpacked near. */
VEC_FN void few_of_k(const unsigned char *panel, enum source from, const struct x8 *x, float *out)
{
    if (x->rows == 1) {
        one_of_k(panel, from, x, out);
        return;
    }
    _Alignas(64) char scratch[K_BLOCK * (PANEL_LINES + 8)];
    for (int64_t b = 0; b < x->k / K_BLOCK; b++, panel += k_bytes(from)) {
        struct panel8 w;
        struct x8 rows = {x->codes + b * K_BLOCK, x->blocks + b * K_PARTS, x->k, x->rows, 0};
        unpack_panel_k(panel, from, K_BLOCK, false, scratch, &w);
        w.parts = from == FROM_Q6_K ? 2 : 1;
        if (from == FROM_Q6_K) w.least = NULL;
        add_blocks(&w, FROM_PANEL8, &rows, (struct blocks){0, K_PARTS, b > 0}, out);
    }
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

LINEAR_Q_UNPACK_K_NEON(false)
LINEAR_Q_FEW_K_NEON

VEC_POP_ARCH

const struct linear_q_level linear_q_dotprod =
    LINEAR_Q_TABLE("neon sdot", 1, quantise_row, LINEAR_Q_FEW_ALL, NULL, NULL);
#endif
