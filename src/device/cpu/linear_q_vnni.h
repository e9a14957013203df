/* linear_q_vnni.h - one panel with AVX-512 VNNI, for the levels that have it: 64 products an instruction. See linear_q.h.
 *
 * vpdpbusd needs one unsigned operand: codes of w are passed as code + 128, and sums begin at -128 times the sum of x's codes
 * (x8_block.lift). Included between VEC_PUSH and VEC_POP of the instruction set, with LINEAR_Q_VNNI defined. */
#pragma once

#if defined(LINEAR_Q_VNNI)
#include <immintrin.h>

VEC_FN void half16(float *out, const unsigned char *in)
{
    _mm512_storeu_ps(out, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)in)));
}

#define LINEAR_Q_HALF16
#include "device/cpu/linear_q_body.h"

VEC_FN __m512i spread4(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}

/* `rows` rows of x; rows, parts and least are constants in every caller. */
VEC_FN void multiply_rows(const struct panel8 *w, const int8_t *x, const struct x8_block *q, int64_t k,
                          int rows, int parts, bool least, float *out)
{
    const __m512i sign = _mm512_set1_epi8(-128);
    int64_t blocks = k / X8_BLOCK;
    __m512 y[8];
    for (int r = 0; r < rows; r++) y[r] = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b++) {
        const int8_t *codes = w->codes + b * w->step;
        __m512i code[PANEL8_GROUP];
        for (int g = 0; g < PANEL8_GROUP; g++) {
            code[g] = _mm512_xor_si512(_mm512_loadu_si512(codes + g * 64), sign);
            _mm_prefetch((const char *)codes + g * 64 + 2048, _MM_HINT_T0);
        }
        __m512 first = _mm512_loadu_ps(w->scale + b * parts * PANEL_LINES), second = first, low = first;
        if (parts == 2) second = _mm512_loadu_ps(w->scale + (b * 2 + 1) * PANEL_LINES);
        if (least) low = _mm512_loadu_ps(w->least + b * PANEL_LINES);
        for (int r = 0; r < rows; r++) {
            const int8_t *xr = x + r * k + b * X8_BLOCK;
            const struct x8_block *qr = q + r * blocks + b;
            __m512i sum0 = _mm512_set1_epi32(qr->lift[0]), sum1 = _mm512_set1_epi32(qr->lift[1]);
            for (int g = 0; g < 4; g++) {
                sum0 = _mm512_dpbusd_epi32(sum0, code[g], spread4(xr + 4 * g));
                sum1 = _mm512_dpbusd_epi32(sum1, code[g + 4], spread4(xr + 16 + 4 * g));
            }
            __m512 with = _mm512_set1_ps(qr->scale);
            if (parts == 1) sum0 = _mm512_add_epi32(sum0, sum1);
            y[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum0), _mm512_mul_ps(first, with), y[r]);
            if (parts == 2)
                y[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum1), _mm512_mul_ps(second, with), y[r]);
            if (least) y[r] = _mm512_fnmadd_ps(low, _mm512_set1_ps(qr->total), y[r]);
        }
    }
    for (int r = 0; r < rows; r++) _mm512_storeu_ps(out + r * PANEL_LINES, y[r]);
}

VEC_FN void multiply_kind(const struct panel8 *w, const struct x8 *x, int parts, bool least, float *out)
{
    int64_t blocks = x->k / X8_BLOCK;
    for (int64_t r = 0; r < x->rows;) {
        const int8_t *codes = x->codes + r * x->k;
        const struct x8_block *q = x->blocks + r * blocks;
        int64_t left = x->rows - r;
        if (left >= 8)
            multiply_rows(w, codes, q, x->k, 8, parts, least, out + r * PANEL_LINES), r += 8;
        else if (left >= 4)
            multiply_rows(w, codes, q, x->k, 4, parts, least, out + r * PANEL_LINES), r += 4;
        else if (left >= 2)
            multiply_rows(w, codes, q, x->k, 2, parts, least, out + r * PANEL_LINES), r += 2;
        else
            multiply_rows(w, codes, q, x->k, 1, parts, least, out + r * PANEL_LINES), r += 1;
    }
}

static void multiply_vnni(const struct panel8 *w, const struct x8 *x, float *out)
{
    if (w->parts == 2)
        multiply_kind(w, x, 2, false, out);
    else if (w->least)
        multiply_kind(w, x, 1, true, out);
    else
        multiply_kind(w, x, 1, false, out);
}

/* ---- few rows: panels as they lie in memory ---- */

/* A block's codes as unsigned bytes: those of Q8_0 plus 128; those of Q4_0 unchanged, which are 8 too
 * large. */
VEC_FN void load_codes(const unsigned char *group, bool four, __m512i *code)
{
    const unsigned char *at = group + 32;
    for (int g = 0; g < PANEL8_GROUP; g++) {
        if (!four) code[g] = _mm512_xor_si512(_mm512_loadu_si512(at + g * 64), _mm512_set1_epi8(-128));
        if (!four || g >= 4) continue;
        __m512i two = _mm512_loadu_si512(at + g * 64), low = _mm512_set1_epi8(15);
        code[g] = _mm512_and_si512(two, low);
        code[g + 4] = _mm512_and_si512(_mm512_srli_epi16(two, 4), low);
    }
}

/* multiply_rows for Q8_0 and Q4_0 without a copy: the integers are the same, and so are all results. */
VEC_FN void few_rows(const unsigned char *panel, bool four, const int8_t *x, const struct x8_block *q,
                     int64_t k, int rows, float *out)
{
    const int bytes = (four ? 18 : 34) * PANEL_LINES, shift = four ? 4 : 0; /* 8 is 128 >> 4 */
    int64_t blocks = k / X8_BLOCK;
    __m512 y[8];
    for (int r = 0; r < rows; r++) y[r] = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b++, panel += bytes) {
        __m512i code[PANEL8_GROUP];
        load_codes(panel, four, code);
        for (int i = 0; i < bytes; i += 64) _mm_prefetch((const char *)panel + i + 4096, _MM_HINT_T0);
        __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)panel));
        for (int r = 0; r < rows; r++) {
            const int8_t *xr = x + r * k + b * X8_BLOCK;
            const struct x8_block *qr = q + r * blocks + b;
            __m512i sum0 = _mm512_set1_epi32(qr->lift[0] >> shift),
                    sum1 = _mm512_set1_epi32(qr->lift[1] >> shift);
            for (int g = 0; g < 4; g++) {
                sum0 = _mm512_dpbusd_epi32(sum0, code[g], spread4(xr + 4 * g));
                sum1 = _mm512_dpbusd_epi32(sum1, code[g + 4], spread4(xr + 16 + 4 * g));
            }
            __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(sum0, sum1));
            y[r] = _mm512_fmadd_ps(sum, _mm512_mul_ps(scale, _mm512_set1_ps(qr->scale)), y[r]);
        }
    }
    for (int r = 0; r < rows; r++) _mm512_storeu_ps(out + r * PANEL_LINES, y[r]);
}

VEC_FN void few_kind(const unsigned char *panel, bool four, const struct x8 *x, float *out)
{
    int64_t blocks = x->k / X8_BLOCK;
    for (int64_t r = 0; r < x->rows;) {
        const int8_t *codes = x->codes + r * x->k;
        const struct x8_block *q = x->blocks + r * blocks;
        int64_t left = x->rows - r;
        if (left >= 8)
            few_rows(panel, four, codes, q, x->k, 8, out + r * PANEL_LINES), r += 8;
        else if (left >= 4)
            few_rows(panel, four, codes, q, x->k, 4, out + r * PANEL_LINES), r += 4;
        else if (left >= 2)
            few_rows(panel, four, codes, q, x->k, 2, out + r * PANEL_LINES), r += 2;
        else
            few_rows(panel, four, codes, q, x->k, 1, out + r * PANEL_LINES), r += 1;
    }
}

static void few_q8_0(const unsigned char *panel, const struct x8 *x, float *out)
{
    few_kind(panel, false, x, out);
}
static void few_q4_0(const unsigned char *panel, const struct x8 *x, float *out)
{
    few_kind(panel, true, x, out);
}

#define LINEAR_Q_FEW                                                                                         \
    {                                                                                                        \
        [BLOCK_Q8_0] = few_q8_0, [BLOCK_Q4_0] = few_q4_0                                                     \
    }

#endif
