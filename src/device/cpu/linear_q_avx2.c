/* linear_q_avx2.c - products with weights in blocks with AVX2. See linear_q.h.
 *
 * vpmaddubsw multiplies unsigned with signed bytes and adds neighbours in 16 bits. The size of a code (at most 128) times
 * x with the code's sign (at most 127) stays below 2^15 in pairs, so nothing is cut off. */
#include "device/cpu/linear_q.h"

#if defined(__x86_64__)
#include "device/cpu/vec_base.h"
#include <immintrin.h>

VEC_PUSH("avx2,fma,f16c")

VEC_FN void half16(float *out, const unsigned char *in)
{
    const __m128i *half = (const __m128i *)(const void *)in;
    _mm256_storeu_ps(out, _mm256_cvtph_ps(_mm_loadu_si128(half)));
    _mm256_storeu_ps(out + 8, _mm256_cvtph_ps(_mm_loadu_si128(half + 1)));
}

#define LINEAR_Q_HALF16
#include "device/cpu/linear_q_body.h"

VEC_FN __m256i load_codes(const int8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }

/* Eight lines over groups [first, end) of a block. */
VEC_FN __m256i dot_half(const int8_t *w, const int8_t *x, int first, int end)
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum = _mm256_setzero_si256();
    for (int g = first; g < end; g++) {
        int32_t four;
        memcpy(&four, x + 4 * g, sizeof four);
        __m256i code = load_codes(w + g * 64), with = _mm256_set1_epi32(four);
        __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(with, code));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
    }
    return sum;
}

/* Eight lines of one row from `line` on. */
VEC_FN __m256 multiply_lines(const struct panel8 *w, const int8_t *x, const struct x8_block *q,
                             int64_t blocks, int line, int parts)
{
    __m256 y = _mm256_setzero_ps();
    for (int64_t b = 0; b < blocks; b++, q++, x += X8_BLOCK) {
        const int8_t *codes = w->codes + b * w->step + 4 * line;
        const float *scale = w->scale + b * parts * PANEL_LINES + line;
        __m256 with = _mm256_set1_ps(q->scale);
        for (int p = 0; p < parts; p++) {
            __m256i sum = dot_half(codes, x, p * PANEL8_GROUP / parts, (p + 1) * PANEL8_GROUP / parts);
            y = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum),
                                _mm256_mul_ps(_mm256_loadu_ps(scale + p * PANEL_LINES), with), y);
        }
        if (w->least)
            y = _mm256_fnmadd_ps(_mm256_loadu_ps(w->least + b * PANEL_LINES + line), _mm256_set1_ps(q->total),
                                 y);
    }
    return y;
}

static void multiply_panel(const struct panel8 *w, const struct x8 *x, float *out)
{
    int64_t blocks = x->k / X8_BLOCK;
    for (int64_t r = 0; r < x->rows; r++)
        for (int line = 0; line < PANEL_LINES; line += 8) {
            const int8_t *codes = x->codes + r * x->k;
            const struct x8_block *q = x->blocks + r * blocks;
            __m256 y = w->parts == 1 ? multiply_lines(w, codes, q, blocks, line, 1)
                                     : multiply_lines(w, codes, q, blocks, line, 2);
            _mm256_storeu_ps(out + r * PANEL_LINES + line, y);
        }
}

VEC_POP

const struct linear_q_level linear_q_avx2 = LINEAR_Q_TABLE("avx2", 1, quantise_row, {NULL}, NULL, NULL);
#endif
