/* linear_q_body.h - code shared by every level of linear_q.h, as loops that compilers vectorise.
 *
 * A .c file includes this between VEC_PUSH and VEC_POP of its instruction set and defines its own multiply_panel(). With
 * LINEAR_Q_HALF16 it has defined half16(), f16 of 16 lines to f32; with LINEAR_Q_CODES_OF, codes_of(); with
 * LINEAR_Q_UNPACK_Q4_0 it will define unpack_q4_0(), with LINEAR_Q_UNPACK_K those of Q4_K, Q5_K and Q6_K.
 */
#pragma once

#include "device/cpu/linear_q.h"
#include "device/cpu/vec_base.h"
#include <float.h>
#include <math.h>

#define LINEAR_Q_FN static __attribute__((unused))

#if !defined(LINEAR_Q_HALF16)
VEC_FN void half16(float *out, const unsigned char *in)
{
    uint16_t half[PANEL_LINES];
    memcpy(half, in, sizeof half);
    for (int i = 0; i < PANEL_LINES; i++) out[i] = f16_to_f32(half[i]);
}
#endif

/* ---- rows of x ---- */

VEC_FN int32_t bits_of(float f)
{
    int32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

VEC_FN float float_of(int32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

#if !defined(LINEAR_Q_CODES_OF)
/* Codes of a block, and the sums of its halves. Rounds to nearest, ties to even: adding 1.5 * 2^23 leaves the
 * integer in the low bits. */
VEC_FN void codes_of(const float *x, float inverse, int8_t *codes, int32_t *sum)
{
    const float magic = 12582912.0f;
    int32_t code[X8_BLOCK];
    for (int i = 0; i < X8_BLOCK; i++) code[i] = bits_of(x[i] * inverse + magic) - bits_of(magic);
    for (int i = 0; i < X8_BLOCK; i++) codes[i] = (int8_t)code[i];
    sum[0] = sum[1] = 0;
    for (int i = 0; i < X8_BLOCK / 2; i++) sum[0] += code[i];
    for (int i = X8_BLOCK / 2; i < X8_BLOCK; i++) sum[1] += code[i];
}
#endif

VEC_FN void quantise_block(const float *x, int8_t *codes, struct x8_block *block)
{
    int32_t most = 0, sum[2] = {0, 0};
    for (int i = 0; i < X8_BLOCK; i++) {
        int32_t size = bits_of(x[i]) & 0x7fffffff;
        most = size > most ? size : most;
    }
    float largest = float_of(most),
          inverse = largest > 0x1p-100f && largest <= FLT_MAX ? 127.0f / largest : 0;
    if (inverse > 0)
        codes_of(x, inverse, codes, sum);
    else
        memset(codes, 0, X8_BLOCK);
    block->scale = largest <= FLT_MAX ? (inverse > 0 ? largest / 127.0f : 0) : NAN;
    block->total = block->scale * (float)(sum[0] + sum[1]);
    block->lift[0] = -128 * sum[0], block->lift[1] = -128 * sum[1];
}

/* The block of 32 at element `at` of a row, as f32. */
VEC_FN void widen_block(const void *x, enum dtype type, int64_t at, float *wide)
{
    const uint16_t *narrow = (const uint16_t *)x + at;
    switch (type) {
    case DT_F32:
        memcpy(wide, (const float *)x + at, X8_BLOCK * sizeof *wide);
        break;
    case DT_BF16:
        for (int i = 0; i < X8_BLOCK; i++) wide[i] = bf16_to_f32(narrow[i]);
        break;
    case DT_F16:
        for (int i = 0; i < X8_BLOCK; i += 16) half16(wide + i, (const unsigned char *)(narrow + i));
        break;
    default:
        __builtin_trap();
    }
}

LINEAR_Q_FN void quantise_row(const void *x, enum dtype type, int64_t k, int64_t row, int8_t *codes,
                              struct x8_block *blocks)
{
    codes += row * k, blocks += row * (k / X8_BLOCK);
    for (int64_t at = 0; at < k; at += X8_BLOCK) {
        float wide[X8_BLOCK];
        widen_block(x, type, at, wide);
        quantise_block(wide, codes + at, blocks + at / X8_BLOCK);
    }
}

/* ---- panels ---- */

enum { CODES = PANEL8_GROUP * PANEL_LINES * 4 }; /* bytes of a block of 32 */

/* Positions of codes, scales and minima of a panel in its scratch. */
VEC_FN struct panel8 lay_out(void *scratch, int64_t k, int parts, bool least)
{
    float *scale = (float *)((char *)scratch + k * PANEL_LINES);
    int64_t each = k / X8_BLOCK * PANEL_LINES;
    return (struct panel8){scratch, CODES, scale, least ? scale + each * parts : NULL, parts, false, 0};
}

LINEAR_Q_FN void unpack_q8_0(const unsigned char *in, int64_t k, void *scratch, struct panel8 *out)
{
    *out = lay_out(scratch, k, 1, false);
    float *scale = (float *)(uintptr_t)out->scale;
    out->codes = (const int8_t *)in + 32, out->step = 544;
    for (int64_t b = 0; b < k / 32; b++) half16(scale + b * PANEL_LINES, in + b * 544);
}

#if !defined(LINEAR_Q_UNPACK_Q4_0)
LINEAR_Q_FN void unpack_q4_0(const unsigned char *in, int64_t k, void *scratch, struct panel8 *out)
{
    *out = lay_out(scratch, k, 1, false);
    int8_t *codes = scratch;
    float *scale = (float *)(uintptr_t)out->scale;
    for (int64_t b = 0; b < k / 32; b++, in += 288, codes += CODES, scale += PANEL_LINES) {
        half16(scale, in);
        for (int i = 0; i < CODES / 2; i++) {
            codes[i] = (int8_t)((in[32 + i] & 15) - 8);
            codes[CODES / 2 + i] = (int8_t)((in[32 + i] >> 4) - 8);
        }
    }
}
#endif

#if !defined(LINEAR_Q_UNPACK_K)
/* Scales and minima of part j of eight, of 16 lines; see part_of in tensor/blocks.c. */
VEC_FN void scales_k(const unsigned char *packed, int j, const float *d, const float *dmin, float *scale,
                     float *least)
{
    const unsigned char *a = packed + (j < 4 ? j : j + 4) * PANEL_LINES,
                        *b = packed + (j < 4 ? j + 4 : j) * PANEL_LINES,
                        *c = packed + (j < 4 ? j : j - 4) * PANEL_LINES;
    for (int l = 0; l < PANEL_LINES; l++) {
        int s = j < 4 ? a[l] & 63 : (a[l] & 15) | c[l] >> 6 << 4;
        int m = j < 4 ? b[l] & 63 : a[l] >> 4 | b[l] >> 6 << 4;
        scale[l] = d[l] * (float)s, least[l] = dmin[l] * (float)m;
    }
}

/* Q4_K and Q5_K: the latter has a fifth bit per code; one byte holds those of one position. */
VEC_FN void unpack_k(const unsigned char *in, int64_t k, void *scratch, struct panel8 *out, bool fifth)
{
    *out = lay_out(scratch, k, 1, true);
    int8_t *codes = scratch;
    float *scale = (float *)(uintptr_t)out->scale, *least = (float *)(uintptr_t)out->least;
    const unsigned char *high = in + 256;
    for (int64_t b = 0; b < k / 256; b++, in += fifth ? 2816 : 2304) {
        float d[PANEL_LINES], dmin[PANEL_LINES];
        half16(d, in), half16(dmin, in + 32);
        high = in + 256;
        for (int j = 0; j < 8; j++, codes += CODES, scale += PANEL_LINES, least += PANEL_LINES) {
            const unsigned char *q = in + (fifth ? 768 : 256) + j / 2 * CODES;
            scales_k(in + 64, j, d, dmin, scale, least);
            for (int i = 0; i < CODES; i++) {
                int low = j % 2 ? q[i] >> 4 : q[i] & 15;
                codes[i] = (int8_t)(fifth ? low | (high[i] >> j & 1) << 4 : low);
            }
        }
    }
}

LINEAR_Q_FN void unpack_q4_k(const unsigned char *in, int64_t k, void *scratch, struct panel8 *out)
{
    unpack_k(in, k, scratch, out, false);
}

LINEAR_Q_FN void unpack_q5_k(const unsigned char *in, int64_t k, void *scratch, struct panel8 *out)
{
    unpack_k(in, k, scratch, out, true);
}

LINEAR_Q_FN void unpack_q6_k(const unsigned char *in, int64_t k, void *scratch, struct panel8 *out)
{
    *out = lay_out(scratch, k, 2, false);
    int8_t *codes = scratch;
    float *scale = (float *)(uintptr_t)out->scale;
    for (int64_t b = 0; b < k / 256; b++, in += 3360) {
        float d[PANEL_LINES];
        half16(d, in + 3328);
        for (int p = 0; p < 8; p++, codes += CODES) {
            const unsigned char *low = in + (p / 4 * 64 + p % 2 * 32) * 16, *high = in + 2048 + p / 4 * CODES;
            int low_shift = p % 4 / 2 * 4, high_shift = p % 4 * 2;
            for (int i = 0; i < CODES; i++)
                codes[i] = (int8_t)(((low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4) - 32);
        }
        for (int i = 0; i < 16; i++, scale += PANEL_LINES)
            for (int l = 0; l < PANEL_LINES; l++)
                scale[l] = d[l] * (float)(int8_t)in[3072 + i * PANEL_LINES + l];
    }
}
#endif

/* ---- y ---- */

LINEAR_Q_FN void put16(void *y, enum dtype type, const float *value, const float *extra, int n)
{
    float sum[PANEL_LINES];
    uint16_t narrow[PANEL_LINES];
    for (int i = 0; i < PANEL_LINES; i++) sum[i] = value[i] + extra[i];
    if (type == DT_F32) {
        memcpy(y, sum, (size_t)n * sizeof *sum);
        return;
    }
    if (type == DT_BF16)
        for (int i = 0; i < PANEL_LINES; i++) narrow[i] = f32_to_bf16(sum[i]);
    else
        dtype_convert(narrow, type, sum, DT_F32, PANEL_LINES);
    if (n == PANEL_LINES)
        memcpy(y, narrow, sizeof narrow);
    else
        memcpy(y, narrow, (size_t)n * sizeof *narrow);
}

/* side and quantise, followed by few, arrange and multiply_two. */
#define LINEAR_Q_TABLE(text, side, quantise, ...)                                                            \
    {                                                                                                        \
        text, side, quantise,                                                                                \
            {[BLOCK_Q4_0] = unpack_q4_0,                                                                     \
             [BLOCK_Q8_0] = unpack_q8_0,                                                                     \
             [BLOCK_Q4_K] = unpack_q4_k,                                                                     \
             [BLOCK_Q5_K] = unpack_q5_k,                                                                     \
             [BLOCK_Q6_K] = unpack_q6_k},                                                                    \
            multiply_panel, put16, __VA_ARGS__                                                               \
    }
