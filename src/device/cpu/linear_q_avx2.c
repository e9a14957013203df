/* linear_q_avx2.c - products with weights in blocks with AVX2. See linear_q.h.
 *
 * vpmaddubsw multiplies unsigned with signed bytes and adds neighbours in 16 bits. The size of a code (at most 128) times
 * x with the code's sign (at most 127) stays below 2^15 in pairs, so nothing is cut off. Few rows meet codes of 4 to 6 bits as they lie in memory,
 * without their sign: pairs of several groups are added in 16 bits before they are widened. */
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

/* ---- few rows: panels as they lie in memory ---- */

enum source { FROM_Q4_0, FROM_Q4_K, FROM_Q5_K, FROM_Q6_K };

/* A block of 32 of eight lines: codes as unsigned bytes, scales of its halves (Q6_K; others: the first), minima. */
struct avx2_block {
    __m256i code[PANEL8_GROUP];
    __m256 scale[2], least;
};

VEC_FN __m256 halves8(const unsigned char *in)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)in));
}

VEC_FN __m128i lines8(const unsigned char *in) { return _mm_loadl_epi64((const __m128i *)(const void *)in); }

VEC_FN __m256 times8(__m256 d, __m256i codes) { return _mm256_mul_ps(d, _mm256_cvtepi32_ps(codes)); }

/* Lower or upper halves of 32 bytes. */
VEC_FN __m256i four_bits(const unsigned char *at, bool upper)
{
    __m256i two = _mm256_loadu_si256((const __m256i *)(const void *)at);
    return _mm256_and_si256(upper ? _mm256_srli_epi16(two, 4) : two, _mm256_set1_epi8(15));
}

/* Part j of Q4_K or Q5_K, lines from `line` on; scales as in part_of of tensor/blocks.c. */
VEC_FN void load_minima(const unsigned char *in, bool fifth, int j, int line, struct avx2_block *out)
{
    const unsigned char *packed = in + 64 + line,
                        *codes = in + (fifth ? 768 : 256) + j / 2 * CODES + 4 * line,
                        *high = in + 256 + 4 * line;
    const __m128i six = _mm_set1_epi8(63), four = _mm_set1_epi8(15), two = _mm_set1_epi8(0x30);
    __m128i a = lines8(packed + j % 4 * PANEL_LINES), b = lines8(packed + (j % 4 + 4) * PANEL_LINES),
            c = lines8(packed + (j % 4 + 8) * PANEL_LINES), scale = _mm_and_si128(a, six),
            least = _mm_and_si128(b, six);
    if (j >= 4) {
        scale = _mm_or_si128(_mm_and_si128(c, four), _mm_and_si128(_mm_srli_epi16(a, 2), two));
        least =
            _mm_or_si128(_mm_and_si128(_mm_srli_epi16(c, 4), four), _mm_and_si128(_mm_srli_epi16(b, 2), two));
    }
    out->scale[0] = times8(halves8(in + 2 * line), _mm256_cvtepu8_epi32(scale));
    out->least = times8(halves8(in + 32 + 2 * line), _mm256_cvtepu8_epi32(least));
    const __m128i up = _mm_cvtsi32_si128(7 - j);
    for (int g = 0; g < PANEL8_GROUP; g++) {
        out->code[g] = four_bits(codes + g * 64, j % 2);
        if (!fifth) continue;
        __m256i bit =
            _mm256_sll_epi16(_mm256_loadu_si256((const __m256i *)(const void *)(high + g * 64)), up);
        bit = _mm256_and_si256(_mm256_srli_epi16(bit, 3), _mm256_set1_epi8(16)); /* bit j was at 7 */
        out->code[g] = _mm256_or_si256(out->code[g], bit);
    }
}

/* Block j of 32 of Q6_K, with codes that are 32 too large. */
VEC_FN void load_q6(const unsigned char *in, int j, int line, struct avx2_block *out)
{
    const unsigned char *low = in + j / 4 * 1024 + j % 2 * CODES + 4 * line,
                        *high = in + 2048 + j / 4 * CODES + 4 * line;
    const __m128i down = _mm_cvtsi32_si128(j % 4 * 2);
    for (int g = 0; g < PANEL8_GROUP; g++) {
        __m256i two =
            _mm256_srl_epi16(_mm256_loadu_si256((const __m256i *)(const void *)(high + g * 64)), down);
        two = _mm256_slli_epi16(_mm256_and_si256(two, _mm256_set1_epi8(3)), 4);
        out->code[g] = _mm256_or_si256(four_bits(low + g * 64, j % 4 >= 2), two);
    }
    for (int p = 0; p < 2; p++)
        out->scale[p] = times8(halves8(in + 3328 + 2 * line),
                               _mm256_cvtepi8_epi32(lines8(in + 3072 + (2 * j + p) * PANEL_LINES + line)));
}

VEC_FN void load_block(const unsigned char *in, enum source from, int j, int line, struct avx2_block *out)
{
    if (from == FROM_Q6_K) load_q6(in, j, line, out);
    if (from == FROM_Q4_K || from == FROM_Q5_K) load_minima(in, from == FROM_Q5_K, j, line, out);
    if (from != FROM_Q4_0) return;
    out->scale[0] = halves8(in + 2 * line);
    for (int g = 0; g < PANEL8_GROUP; g++) out->code[g] = four_bits(in + 32 + g % 4 * 64 + 4 * line, g >= 4);
}

/* Sum over groups [first, end) of a row. `together`: so many groups' pairs are below 2^15. */
VEC_FN __m256i dot_unsigned(const struct avx2_block *w, const int8_t *x, int first, int end, int together)
{
    __m256i sum = _mm256_setzero_si256();
    for (int g = first; g < end; g += together) {
        __m256i pairs = _mm256_setzero_si256();
        for (int i = g; i < g + together; i++) {
            int32_t four;
            memcpy(&four, x + 4 * i, sizeof four);
            pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w->code[i], _mm256_set1_epi32(four)));
        }
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return sum;
}

/* A block added to eight lines of one row. Codes of Q4_0 are 8 too large, those of Q6_K 32: 128 >> 4 and 128 >> 2. */
VEC_FN __m256 add_block(const struct avx2_block *w, enum source from, const int8_t *x,
                        const struct x8_block *q, __m256 y)
{
    const int parts = from == FROM_Q6_K ? 2 : 1, each = PANEL8_GROUP / parts,
              together = from == FROM_Q6_K   ? 2
                         : from == FROM_Q5_K ? 4
                                             : 8; /* codes up to 63, 31, 15 */
    __m256 with = _mm256_set1_ps(q->scale);
    for (int p = 0; p < parts; p++) {
        __m256i sum = dot_unsigned(w, x, p * each, (p + 1) * each, together);
        if (from == FROM_Q4_0) sum = _mm256_add_epi32(sum, _mm256_set1_epi32((q->lift[0] + q->lift[1]) >> 4));
        if (from == FROM_Q6_K) sum = _mm256_add_epi32(sum, _mm256_set1_epi32(q->lift[p] >> 2));
        y = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(w->scale[p], with), y);
    }
    if (from == FROM_Q4_K || from == FROM_Q5_K) y = _mm256_fnmadd_ps(w->least, _mm256_set1_ps(q->total), y);
    return y;
}

/* y is in out between blocks. */
VEC_FN void few_rows(const unsigned char *panel, enum source from, const struct x8 *x, float *out)
{
    static const short sizes[] = {288, 2304, 2816, 3360};
    const int each = from == FROM_Q4_0 ? 1 : 8;
    int64_t blocks = x->k / X8_BLOCK;
    for (int64_t i = 0; i < x->rows * PANEL_LINES; i++) out[i] = 0;
    for (int64_t b = 0; b < blocks; b++) {
        const unsigned char *in = panel + b / each * sizes[from];
        for (int line = 0; line < PANEL_LINES; line += 8) {
            struct avx2_block w;
            load_block(in, from, (int)(b % each), line, &w);
            for (int64_t r = 0; r < x->rows; r++) {
                float *y = out + r * PANEL_LINES + line;
                _mm256_storeu_ps(y, add_block(&w, from, x->codes + r * x->k + b * X8_BLOCK,
                                              x->blocks + r * blocks + b, _mm256_loadu_ps(y)));
            }
        }
    }
}

#define FEW_ROWS(name, from)                                                                                 \
    static void name(const unsigned char *panel, const struct x8 *x, float *out)                             \
    {                                                                                                        \
        few_rows(panel, from, x, out);                                                                       \
    }
FEW_ROWS(few_q4_0, FROM_Q4_0)
FEW_ROWS(few_q4_k, FROM_Q4_K)
FEW_ROWS(few_q5_k, FROM_Q5_K)
FEW_ROWS(few_q6_k, FROM_Q6_K)

VEC_POP

const struct linear_q_level linear_q_avx2 = LINEAR_Q_TABLE(
    "avx2", 1, quantise_row,
    {[BLOCK_Q4_0] = few_q4_0, [BLOCK_Q4_K] = few_q4_k, [BLOCK_Q5_K] = few_q5_k, [BLOCK_Q6_K] = few_q6_k},
    NULL, NULL);
#endif
