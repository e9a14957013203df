/* op_make_fp8.c - makers of cases with fp8 numbers. Dimensions of products are multiples of 16, which is all that tensor cores take. */
#include "support/op_make.h"

#include "tensor/f8_lines.h"

#include <math.h>
#include <string.h>

static enum dtype any_fp8(struct op_case *c) { return case_flip(c) ? DT_E4M3 : DT_E5M2; }

/* Sizes from next to nothing to next to infinity, zeros, and numbers that are none. */
void make_quantise8(struct op_case *c)
{
    struct lead lead = case_lead(c, 200);
    int64_t width = PICK(c, 1, 3, 16, 31, 64, 97, 128, 257);
    double size = c->type == DT_F16 ? pow(10, (double)PICK(c, -4, 0, 3))
                                    : pow(10, (double)PICK(c, -40, -32, -20, -4, 0, 0, 4, 25, 36));
    enum dtype type = any_fp8(c);
    int layouts = 1 + (int)case_below(c, 3);
    c->op.accumulate = case_below(c, 8) ? ACC_OVERWRITE : ACC_ADD;
    case_in_rows(c, QUANTISE8_X, c->type, lead, width);
    case_fill(c, QUANTISE8_X, 0, case_below(c, 8) ? size : 0);
    for (int64_t i = 0; i < case_count(c, QUANTISE8_X); i += 1 + case_below(c, 50))
        case_set(c, QUANTISE8_X, i, PICK(c, 0, 1, 2) * size / 64);
    if (case_below(c, 6) == 0) case_set(c, QUANTISE8_X, case_below(c, case_count(c, QUANTISE8_X)), INFINITY);
    if (case_below(c, 6) == 0) case_set(c, QUANTISE8_X, case_below(c, case_count(c, QUANTISE8_X)), NAN);
    if (layouts & 1) case_out(c, QUANTISE8_Y, type, DIMS(lead.rows, width));
    if (layouts & 2) case_out(c, QUANTISE8_T, type, DIMS(width, lead.rows));
    case_out(c, QUANTISE8_SCALE, DT_F32, DIMS(1));
    c->exact = true;
    case_note(c, "size %g", size);
}

/* Normal numbers and a scale; returns the scale. */
static double fill_fp8(struct op_case *c, int slot, int scale_slot, enum dtype type, int64_t rows,
                       int64_t columns)
{
    double scale = ldexp(1, (int)case_below(c, 9) - 6);
    case_in(c, slot, type, DIMS(rows, columns));
    case_in(c, scale_slot, DT_F32, DIMS(1));
    case_set(c, scale_slot, 0, scale);
    for (int64_t i = 0; i < rows * columns; i++) {
        float x = (float)case_normal(c);
        ((uint8_t *)c->in[slot])[i] = type == DT_E4M3 ? f32_to_e4m3(x) : f32_to_e5m2(x);
    }
    return scale;
}

void make_linear8(struct op_case *c)
{
    int64_t rows = PICK(c, 16, 32, 64, 208), m = PICK(c, 16, 48, 64, 128, 256),
            k = PICK(c, 16, 64, 176, 528, 1040);
    enum dtype x = any_fp8(c);
    c->type = DT_BF16;
    double scale = fill_fp8(c, LINEAR8_X, LINEAR8_X_SCALE, x, rows, k) *
                   fill_fp8(c, LINEAR8_W, LINEAR8_W_SCALE, DT_E4M3, m, k);
    if (case_flip(c)) case_in(c, LINEAR8_BIAS, c->type, DIMS(m));
    if (case_flip(c)) case_in(c, LINEAR8_ADD, c->type, DIMS(rows / 16, 16, m));
    case_out(c, LINEAR8_Y, c->type, DIMS(rows / 16, 16, m));
    c->op.attr.fast_sums = case_flip(c);
    c->inner[LINEAR8_Y] = sum_error(k);
    c->scale[LINEAR8_Y] = scale * sqrt((double)k) + 1;
    case_note(c, "scale %g", scale);
}

void make_linear8_dw(struct op_case *c)
{
    int64_t rows = PICK(c, 16, 64, 208, 1040), m = PICK(c, 16, 48, 128), k = PICK(c, 16, 64, 176);
    bool kn = c->op.attr.weight_kn = case_flip(c);
    enum dtype dy = any_fp8(c), type = case_flip(c) ? DT_F32 : DT_BF16;
    c->type = type;
    double scale = fill_fp8(c, LINEAR8_DW_DY, LINEAR8_DW_DY_SCALE, dy, m, rows) *
                   fill_fp8(c, LINEAR8_DW_X, LINEAR8_DW_X_SCALE, DT_E4M3, k, rows);
    case_acc(c, LINEAR8_DW_DW, type, DIMS(kn ? k : m, kn ? m : k));
    c->inner[LINEAR8_DW_DW] = sum_error(rows);
    c->scale[LINEAR8_DW_DW] = scale * sqrt((double)rows);
    case_note(c, "scale %g, dW %s", scale, kn ? "[in,out]" : "[out,in]");
}

/* Any number of rows. A scale may be any number, as files have them. */
void make_linear_f8(struct op_case *c)
{
    struct lead lead = case_lead(c, PICK(c, 1, 8, 16, 40, 200));
    int64_t m = PICK(c, 16, 48, 64, 128, 272), k = PICK(c, 16, 64, 144, 176, 528, 1040, 2560);
    double size = c->type == DT_F16 ? 0.1 : pow(10, (double)PICK(c, -3, 0, 0, 2));
    if (c->index % 40 == 39) lead = case_lead(c, 900), m = 1312, k = 64; /* several slices of lines */
    c->op.attr.lines[0].lines = m;
    case_in(c, LINEAR_F8_W, DT_U8, DIMS(f8_bytes(m, k)));
    uint8_t *w = c->in[LINEAR_F8_W];
    for (int64_t i = 0; i < m * k; i++) w[i] = f32_to_e4m3((float)(8 * case_normal(c)));
    for (int64_t i = 0; i < m; i++) {
        float scale = (float)((case_flip(c) ? 0.125 : 0.1) * (double)PICK(c, 1, 2, -1));
        memcpy(w + m * k + 4 * i, &scale, sizeof scale);
    }
    case_in_rows(c, LINEAR_F8_X, c->type, lead, k);
    case_fill(c, LINEAR_F8_X, 0, size);
    for (int64_t i = 0; i < k; i++) /* a row of zeros, one with an outlier */
        case_set(c, LINEAR_F8_X, i, case_below(c, 9) ? 0.0 : size);
    case_set(c, LINEAR_F8_X, case_below(c, case_count(c, LINEAR_F8_X)), 300 * size);
    if (case_flip(c)) case_in(c, LINEAR_F8_BIAS, c->type, DIMS(m));
    if (case_flip(c)) case_in_rows(c, LINEAR_F8_ADD, c->type, lead, m);
    case_out_rows(c, LINEAR_F8_Y, c->type, lead, m);
    /* Tensor cores may keep fewer bits of a sum than fp32 has, where y has fewer still. */
    c->inner[LINEAR_F8_Y] = sum_error(k) + (c->type == DT_F32 ? 0 : 0x1p-12);
    c->scale[LINEAR_F8_Y] = 300 * size * sqrt((double)k);
    case_note(c, "size %g", size);
}
