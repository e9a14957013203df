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

/* Source of the codes: a struct panel8, or a panel in memory. */
enum source { FROM_PANEL8, FROM_Q8_0, FROM_Q4_0, FROM_Q4_K, FROM_Q5_K, FROM_Q6_K };

/* A block of 32 of 16 lines: codes as unsigned bytes, scales of its halves (parts == 1: the first), minima. */
struct vnni_block {
    __m512i code[PANEL8_GROUP];
    __m512 scale[2], least;
};

/* Constants in every caller. sums begin at x8_block.lift >> shift; shift < 0: at 0. */
struct vnni_kind {
    enum source from;
    int parts;
    bool least;
    int shift;
};

VEC_FN struct vnni_kind kind_of(enum source from, int parts, bool least)
{
    static const int8_t shift[] = {[FROM_Q4_0] = 4, [FROM_Q4_K] = -1, [FROM_Q5_K] = -1, [FROM_Q6_K] = 2};
    return (struct vnni_kind){from, parts, least, shift[from]}; /* codes are 128, 8 and 32 too large */
}

/* Adds a block to rows of y. */
VEC_FN void add_block(const struct vnni_block *w, struct vnni_kind of, const int8_t *x,
                      const struct x8_block *q, int64_t k, int rows, __m512 *y)
{
    for (int r = 0; r < rows; r++, x += k, q += k / X8_BLOCK) {
        __m512i sum0 = _mm512_setzero_si512(), sum1 = sum0;
        if (of.shift >= 0)
            sum0 = _mm512_set1_epi32(q->lift[0] >> of.shift),
            sum1 = _mm512_set1_epi32(q->lift[1] >> of.shift);
        for (int g = 0; g < 4; g++) {
            sum0 = _mm512_dpbusd_epi32(sum0, w->code[g], spread4(x + 4 * g));
            sum1 = _mm512_dpbusd_epi32(sum1, w->code[g + 4], spread4(x + 16 + 4 * g));
        }
        __m512 with = _mm512_set1_ps(q->scale);
        if (of.parts == 1) sum0 = _mm512_add_epi32(sum0, sum1);
        y[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum0), _mm512_mul_ps(w->scale[0], with), y[r]);
        if (of.parts == 2)
            y[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum1), _mm512_mul_ps(w->scale[1], with), y[r]);
        if (of.least) y[r] = _mm512_fnmadd_ps(w->least, _mm512_set1_ps(q->total), y[r]);
    }
}

/* ---- codes and scales ---- */

VEC_FN void load_panel8(const struct panel8 *w, struct vnni_kind of, int64_t b, struct vnni_block *out)
{
    const int8_t *codes = w->codes + b * w->step;
    for (int g = 0; g < PANEL8_GROUP; g++) {
        out->code[g] = _mm512_xor_si512(_mm512_loadu_si512(codes + g * 64), _mm512_set1_epi8(-128));
        _mm_prefetch((const char *)codes + g * 64 + 2048, _MM_HINT_T0);
    }
    for (int p = 0; p < of.parts; p++)
        out->scale[p] = _mm512_loadu_ps(w->scale + (b * of.parts + p) * PANEL_LINES);
    if (of.least) out->least = _mm512_loadu_ps(w->least + b * PANEL_LINES);
}

VEC_FN __m512 halves16(const unsigned char *in)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)in));
}

/* Lower or upper halves of 64 bytes. */
VEC_FN __m512i four_bits(const unsigned char *at, bool upper)
{
    __m512i two = _mm512_loadu_si512(at);
    return _mm512_and_si512(upper ? _mm512_srli_epi16(two, 4) : two, _mm512_set1_epi8(15));
}

/* Those of Q8_0 plus 128; those of Q4_0 unchanged, which are 8 too large. */
VEC_FN void load_32(const unsigned char *panel, enum source from, struct vnni_block *out)
{
    const unsigned char *at = panel + 32;
    out->scale[0] = halves16(panel);
    for (int g = 0; g < PANEL8_GROUP; g++)
        out->code[g] = from == FROM_Q8_0
                           ? _mm512_xor_si512(_mm512_loadu_si512(at + g * 64), _mm512_set1_epi8(-128))
                           : four_bits(at + g % 4 * 64, g >= 4);
}

VEC_FN __m128i lines16(const unsigned char *in) { return _mm_loadu_si128((const __m128i *)(const void *)in); }

/* Part j of Q4_K or Q5_K; scales as in part_of of tensor/blocks.c. */
VEC_FN void load_minima(const unsigned char *in, bool fifth, int j, struct vnni_block *out)
{
    const unsigned char *packed = in + 64, *codes = in + (fifth ? 768 : 256) + j / 2 * CODES;
    const __m128i six = _mm_set1_epi8(63), four = _mm_set1_epi8(15), two = _mm_set1_epi8(0x30);
    __m128i a = lines16(packed + j % 4 * PANEL_LINES), b = lines16(packed + (j % 4 + 4) * PANEL_LINES),
            c = lines16(packed + (j % 4 + 8) * PANEL_LINES), scale = _mm_and_si128(a, six),
            least = _mm_and_si128(b, six);
    if (j >= 4) {
        scale = _mm_or_si128(_mm_and_si128(c, four), _mm_and_si128(_mm_srli_epi16(a, 2), two));
        least =
            _mm_or_si128(_mm_and_si128(_mm_srli_epi16(c, 4), four), _mm_and_si128(_mm_srli_epi16(b, 2), two));
    }
    out->scale[0] = _mm512_mul_ps(halves16(in), _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(scale)));
    out->least = _mm512_mul_ps(halves16(in + 32), _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(least)));
    for (int g = 0; g < PANEL8_GROUP; g++) {
        __m512i code = four_bits(codes + g * 64, j % 2);
        if (fifth) {
            __mmask64 set = _mm512_test_epi8_mask(_mm512_loadu_si512(in + 256 + g * 64),
                                                  _mm512_set1_epi8((char)(1 << j)));
            code = _mm512_mask_add_epi8(code, set, code, _mm512_set1_epi8(16));
        }
        out->code[g] = code;
    }
}

/* Block j of 32 of Q6_K, with codes that are 32 too large. */
VEC_FN void load_q6(const unsigned char *in, int j, struct vnni_block *out)
{
    const unsigned char *low = in + j / 4 * 1024 + j % 2 * CODES, *high = in + 2048 + j / 4 * CODES;
    const __m128i down = _mm_cvtsi32_si128(j % 4 * 2);
    for (int g = 0; g < PANEL8_GROUP; g++) {
        __m512i two =
            _mm512_and_si512(_mm512_srl_epi16(_mm512_loadu_si512(high + g * 64), down), _mm512_set1_epi8(3));
        out->code[g] = _mm512_or_si512(four_bits(low + g * 64, j % 4 >= 2), _mm512_slli_epi16(two, 4));
    }
    for (int p = 0; p < 2; p++) {
        __m512i scale = _mm512_cvtepi8_epi32(lines16(in + 3072 + (2 * j + p) * PANEL_LINES));
        out->scale[p] = _mm512_mul_ps(halves16(in + 3328), _mm512_cvtepi32_ps(scale));
    }
}

/* Bytes of a panel's 16 blocks, and blocks of 32 in them. */
VEC_FN int source_bytes(enum source from)
{
    static const short bytes[] = {
        [FROM_Q8_0] = 544, [FROM_Q4_0] = 288, [FROM_Q4_K] = 2304, [FROM_Q5_K] = 2816, [FROM_Q6_K] = 3360};
    return bytes[from];
}

/* Block j of those at `in`. */
VEC_FN void load_block(const unsigned char *in, enum source from, int j, struct vnni_block *out)
{
    if (from == FROM_Q6_K)
        load_q6(in, j, out);
    else if (from == FROM_Q4_K || from == FROM_Q5_K)
        load_minima(in, from == FROM_Q5_K, j, out);
    else
        load_32(in, from, out);
}

/* ---- products ---- */

/* `rows` rows of x by a panel, unpacked (w) or as it lies in memory; all but pointers and k are constants. */
VEC_FN void multiply_rows(const struct panel8 *w, const unsigned char *panel, struct vnni_kind of,
                          const int8_t *x, const struct x8_block *q, int64_t k, int rows, float *out)
{
    const int bytes = source_bytes(of.from), each = of.from >= FROM_Q4_K ? 8 : 1;
    struct vnni_block block;
    __m512 y[8];
    for (int r = 0; r < rows; r++) y[r] = _mm512_setzero_ps();
    for (int64_t b = 0; b < k / X8_BLOCK; b += each, panel += bytes)
        for (int j = 0; j < each; j++) {
            if (of.from == FROM_PANEL8)
                load_panel8(w, of, b, &block);
            else
                load_block(panel, of.from, j, &block);
            for (int i = 0; i < bytes / each; i += 64)
                _mm_prefetch((const char *)panel + bytes / each * j + i + 4096, _MM_HINT_T0);
            add_block(&block, of, x + (b + j) * X8_BLOCK, q + b + j, k, rows, y);
        }
    for (int r = 0; r < rows; r++) _mm512_storeu_ps(out + r * PANEL_LINES, y[r]);
}

VEC_FN void multiply_kind(const struct panel8 *w, const unsigned char *panel, struct vnni_kind of,
                          const struct x8 *x, float *out)
{
    for (int64_t r = 0; r < x->rows;) {
        const int8_t *codes = x->codes + r * x->k;
        const struct x8_block *q = x->blocks + r * (x->k / X8_BLOCK);
        int64_t left = x->rows - r;
        float *to = out + r * PANEL_LINES;
        if (left >= 8)
            multiply_rows(w, panel, of, codes, q, x->k, 8, to), r += 8;
        else if (left >= 4)
            multiply_rows(w, panel, of, codes, q, x->k, 4, to), r += 4;
        else if (left >= 2)
            multiply_rows(w, panel, of, codes, q, x->k, 2, to), r += 2;
        else
            multiply_rows(w, panel, of, codes, q, x->k, 1, to), r += 1;
    }
}

static void multiply_vnni(const struct panel8 *w, const struct x8 *x, float *out)
{
    if (w->parts == 2)
        multiply_kind(w, NULL, kind_of(FROM_PANEL8, 2, false), x, out);
    else if (w->least)
        multiply_kind(w, NULL, kind_of(FROM_PANEL8, 1, true), x, out);
    else
        multiply_kind(w, NULL, kind_of(FROM_PANEL8, 1, false), x, out);
}

#define FEW_ROWS(name, from, parts, least)                                                                   \
    static void name(const unsigned char *panel, const struct x8 *x, float *out)                             \
    {                                                                                                        \
        multiply_kind(NULL, panel, kind_of(from, parts, least), x, out);                                     \
    }
FEW_ROWS(few_q8_0, FROM_Q8_0, 1, false)
FEW_ROWS(few_q4_0, FROM_Q4_0, 1, false)
FEW_ROWS(few_q4_k, FROM_Q4_K, 1, true)
FEW_ROWS(few_q5_k, FROM_Q5_K, 1, true)
FEW_ROWS(few_q6_k, FROM_Q6_K, 2, false)

#define LINEAR_Q_FEW                                                                                         \
    {                                                                                                        \
        [BLOCK_Q8_0] = few_q8_0, [BLOCK_Q4_0] = few_q4_0, [BLOCK_Q4_K] = few_q4_k, [BLOCK_Q5_K] = few_q5_k,  \
        [BLOCK_Q6_K] = few_q6_k                                                                              \
    }

#endif
