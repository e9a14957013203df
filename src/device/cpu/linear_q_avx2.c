/* linear_q_avx2.c - products with weights in blocks with AVX2. See linear_q.h.
 *
 * vpmaddubsw multiplies unsigned with signed bytes and adds neighbours in 16 bits. Codes of 4 to 6 bits go without their sign,
 * and sums of several groups fit in 16 bits before they are widened: two instructions for 32 products, where codes of 8 bits
 * take four (the size of a code, at most 128, times x with the code's sign, at most 127, stays below 2^15 in pairs).
 *
 * Codes of Q4_0 and Q6_K are multiplied without their offset. Sums begin at a lift instead, which also keeps them in 16 bits.
 *
 * Eight lines by 32 of k stay in eight registers while all rows meet them, of which eight are summed at once. Few rows meet a
 * panel as it lies in memory, more of them one that was unpacked. */
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
#define LINEAR_Q_UNPACK_Q4_0
#define LINEAR_Q_UNPACK_K
#include "device/cpu/linear_q_body.h"

enum {
    LINES = 8,
    ROWS = PANEL8_FEW,
    SCALES = 16 * PANEL_LINES,
    MINIMA = 8 * PANEL_LINES,
    AHEAD = 4096, /* bytes */
};

/* The type of codes: the form of a struct panel8, and what a panel in memory has. */
enum source { FROM_Q8_0, FROM_Q4_0, FROM_Q4_K, FROM_Q5_K, FROM_Q6_K };

/* Constants in every caller. */
struct kind {
    short bytes;    /* of a panel's 16 blocks */
    short each;     /* blocks of 32 in a block */
    short together; /* groups whose pairs' products fit in 16 bits; 1: codes have a sign */
    short parts;    /* scales in a block of 32 */
    short over;     /* codes are so much too large: sums begin at a lift, and fit in 16 bits at the end */
    bool least;
};

VEC_FN struct kind kind_of(enum source from)
{
    static const struct kind kinds[] = {
        [FROM_Q8_0] = {544, 1, 1, 1, 0, false},   [FROM_Q4_0] = {288, 1, 8, 1, 8, false},
        [FROM_Q4_K] = {2304, 8, 8, 1, 0, true},   [FROM_Q5_K] = {2816, 8, 4, 1, 0, true},
        [FROM_Q6_K] = {3360, 8, 4, 2, 32, false},
    };
    return kinds[from];
}

/* ---- codes: a block of 32 of eight lines ---- */

struct eight {
    __m256i size[PANEL8_GROUP]; /* unsigned bytes */
    const unsigned char *sign;  /* of Q8_0: the codes themselves, groups 64 bytes apart */
};

VEC_FN __m256i load_32(const unsigned char *at)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}

/* Lower or upper halves of 32 bytes. */
VEC_FN __m256i four_bits(const unsigned char *at, bool upper)
{
    __m256i two = load_32(at);
    return _mm256_and_si256(upper ? _mm256_srli_epi16(two, 4) : two, _mm256_set1_epi8(15));
}

/* Those of `mask` in the bytes at `at`, moved up by `up` bits, or down. */
VEC_FN __m256i bits_at(const unsigned char *at, int up, char mask)
{
    __m256i bits = load_32(at);
    if (up > 0) bits = _mm256_slli_epi16(bits, up);
    if (up < 0) bits = _mm256_srli_epi16(bits, -up);
    return _mm256_and_si256(bits, _mm256_set1_epi8(mask));
}

/* Group g of block j of 32 of those at `in`, lines from `line` on. */
VEC_FN __m256i size_of(const unsigned char *in, enum source from, int j, int g, int line)
{
    const unsigned char *at = in + 4 * line;
    switch (from) {
    case FROM_Q8_0:
        return _mm256_abs_epi8(load_32(at + 32 + g * 64));
    case FROM_Q4_0:
        return four_bits(at + 32 + g % 4 * 64, g >= 4);
    case FROM_Q4_K:
        return four_bits(at + 256 + j / 2 * CODES + g * 64, j % 2);
    case FROM_Q5_K:
        return _mm256_or_si256(four_bits(at + 768 + j / 2 * CODES + g * 64, j % 2),
                               bits_at(at + 256 + g * 64, 4 - j, 16));
    default:
        return _mm256_or_si256(four_bits(at + j / 4 * 1024 + j % 2 * CODES + g * 64, j % 4 >= 2),
                               bits_at(at + 2048 + j / 4 * CODES + g * 64, 4 - j % 4 * 2, 48));
    }
}

VEC_FN void take(const unsigned char *in, enum source from, int j, int line, struct eight *out)
{
    VEC_UNROLL(8)
    for (int g = 0; g < PANEL8_GROUP; g++) out->size[g] = size_of(in, from, j, g, line);
    out->sign = in + 32 + 4 * line;
}

/* ---- scales and minima of all lines ---- */

VEC_FN __m128i lines16(const unsigned char *in) { return _mm_loadu_si128((const __m128i *)(const void *)in); }

VEC_FN __m256 halves8(const unsigned char *in)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)in));
}

/* 16 codes times d. */
VEC_FN void put_scales(float *out, const __m256 d[2], __m128i codes, bool with_sign)
{
    for (int h = 0; h < 2; h++, codes = _mm_srli_si128(codes, 8)) {
        __m256i wide = with_sign ? _mm256_cvtepi8_epi32(codes) : _mm256_cvtepu8_epi32(codes);
        _mm256_storeu_ps(out + LINES * h, _mm256_mul_ps(d[h], _mm256_cvtepi32_ps(wide)));
    }
}

/* The eight parts of Q4_K and Q5_K; see part_of in tensor/blocks.c. */
VEC_FN void scales_with_minima(const unsigned char *in, float *scale, float *least)
{
    const unsigned char *packed = in + 64;
    const __m128i six = _mm_set1_epi8(63), four = _mm_set1_epi8(15), two = _mm_set1_epi8(0x30);
    __m256 d[2], dmin[2];
    for (int h = 0; h < 2; h++) d[h] = halves8(in + 16 * h), dmin[h] = halves8(in + 32 + 16 * h);
    for (int j = 0; j < 4; j++, scale += PANEL_LINES, least += PANEL_LINES) {
        __m128i a = lines16(packed + j * PANEL_LINES), b = lines16(packed + (j + 4) * PANEL_LINES),
                c = lines16(packed + (j + 8) * PANEL_LINES);
        put_scales(scale, d, _mm_and_si128(a, six), false);
        put_scales(least, dmin, _mm_and_si128(b, six), false);
        a = _mm_and_si128(_mm_srli_epi16(a, 2), two), b = _mm_and_si128(_mm_srli_epi16(b, 2), two);
        put_scales(scale + 4 * PANEL_LINES, d, _mm_or_si128(_mm_and_si128(c, four), a), false);
        c = _mm_and_si128(_mm_srli_epi16(c, 4), four);
        put_scales(least + 4 * PANEL_LINES, dmin, _mm_or_si128(c, b), false);
    }
}

/* Scales and minima of a block: scale[SCALES], least[MINIMA]. */
VEC_FN void take_scales(const unsigned char *in, enum source from, float *scale, float *least)
{
    if (from == FROM_Q4_K || from == FROM_Q5_K)
        scales_with_minima(in, scale, least);
    else if (from == FROM_Q6_K) {
        __m256 d[2] = {halves8(in + 3328), halves8(in + 3344)};
        for (int i = 0; i < 16; i++)
            put_scales(scale + i * PANEL_LINES, d, lines16(in + 3072 + i * PANEL_LINES), true);
    } else
        half16(scale, in);
}

/* ---- products ---- */

/* A row's four codes of group g, for all lines. */
VEC_FN __m256i spread4(const int8_t *x, int g)
{
    int32_t four;
    memcpy(&four, x + 4 * g, sizeof four);
    return _mm256_set1_epi32(four);
}

/* Sums of a part of a block: pairs of some groups in 16 bits, those before them in 32. */
struct sums {
    __m256i pairs, wide;
};

/* Adds group g; `first`: there is no wide sum before it. */
VEC_FN void add_group(struct sums *s, enum source from, int g, bool first, __m256i size,
                      const unsigned char *sign, __m256i with)
{
    const struct kind of = kind_of(from);
    if (from == FROM_Q8_0) with = _mm256_sign_epi8(with, load_32(sign + 64 * g));
    __m256i next = _mm256_maddubs_epi16(size, with);
    s->pairs = g % of.together || of.over ? _mm256_add_epi16(s->pairs, next) : next;
    if (g % of.together < of.together - 1) return;
    next = _mm256_madd_epi16(s->pairs, _mm256_set1_epi16(1));
    s->wide = first ? next : _mm256_add_epi32(s->wide, next);
}

/* The start of the sums of part p: see quantise_with_lifts. */
VEC_FN struct sums begin(const struct kind of, const struct x8_block *q, int p)
{
    struct sums s = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    if (of.over == 32) s.pairs = _mm256_slli_epi16(_mm256_set1_epi32(q->lift[p]), 2);
    if (of.over == 8)
        s.pairs = _mm256_add_epi16(_mm256_set1_epi32(q->lift[0]), _mm256_set1_epi32(q->lift[1]));
    return s;
}

/* Lifts of a block: -8 times the sums of the first and of the second two of each four codes of x, 16 bits each, of each
 * half; codes of 6 bits need four times as much. Sums may wrap on their way, but they end at 8 products of at most
 * 32 * 127, or 16 of at most 8 * 127, which fit. */
static void quantise_with_lifts(const void *x, enum dtype type, int64_t k, int64_t row, int8_t *codes,
                                struct x8_block *blocks)
{
    quantise_row(x, type, k, row, codes, blocks);
    codes += row * k, blocks += row * (k / X8_BLOCK);
    for (int64_t b = 0; b < k / X8_BLOCK; b++) {
        __m256i s = load_32((const unsigned char *)codes + b * X8_BLOCK);
        s = _mm256_maddubs_epi16(_mm256_set1_epi8(8), s);
        s = _mm256_add_epi16(s, _mm256_shuffle_epi32(s, 0x4e));
        s = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_add_epi16(s, _mm256_shuffle_epi32(s, 0xb1)));
        blocks[b].lift[0] = _mm256_extract_epi32(s, 0);
        blocks[b].lift[1] = _mm256_extract_epi32(s, 4);
    }
}

VEC_FN __m256 add_scaled(__m256i whole, __m256 scale, __m256 with, __m256 y)
{
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), _mm256_mul_ps(scale, with), y);
}

/* Adds a block of eight lines to rows of y; scale: [parts][PANEL_LINES], as least. */
VEC_FN void add_block(const struct eight *w, enum source from, const float *scale, const float *least,
                      const int8_t *x, const struct x8_block *q, int64_t k, int64_t rows, __m256 *y)
{
    const struct kind of = kind_of(from);
    const int each = PANEL8_GROUP / of.parts;
    for (int64_t r = 0; r < rows; r++, x += k, q += k / X8_BLOCK, y += 2) {
        __m256 with = _mm256_set1_ps(q->scale), sum = *y;
        VEC_UNROLL(2)
        for (int p = 0; p < of.parts; p++) {
            struct sums s = begin(of, q, p);
            VEC_UNROLL(8)
            for (int i = 0, g = p * each; i < each; i++, g++)
                add_group(&s, from, g, i < of.together, w->size[g], w->sign, spread4(x, g));
            sum = add_scaled(s.wide, _mm256_loadu_ps(scale + p * PANEL_LINES), with, sum);
        }
        if (of.least) sum = _mm256_fnmadd_ps(_mm256_loadu_ps(least), _mm256_set1_ps(q->total), sum);
        *y = sum;
    }
}

/* Scales of a panel for one row. Those of Q6_K are made of its codes where they are used, once. */
struct scales {
    __m256 d[2];
    float scale[SCALES], least[MINIMA];
};

VEC_FN __m256 scale_of(const struct scales *s, const unsigned char *in, enum source from, int part, int half)
{
    const int at = part * PANEL_LINES + LINES * half;
    if (from != FROM_Q6_K) return _mm256_loadu_ps(s->scale + at);
    __m128i codes = _mm_loadl_epi64((const __m128i *)(const void *)(in + 3072 + at));
    return _mm256_mul_ps(s->d[half], _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)));
}

/* Adds block j of 16 lines to one row: both halves share what is spread of x. */
VEC_FN void add_block_1(const unsigned char *in, enum source from, int j, const struct scales *scales,
                        const int8_t *x, const struct x8_block *q, __m256 y[2])
{
    const struct kind of = kind_of(from);
    const int each = PANEL8_GROUP / of.parts;
    __m256 with = _mm256_set1_ps(q->scale);
    VEC_UNROLL(2)
    for (int p = 0; p < of.parts; p++) {
        struct sums s[2] = {begin(of, q, p), begin(of, q, p)};
        VEC_UNROLL(8)
        for (int i = 0, g = p * each; i < each; i++, g++)
            for (int h = 0; h < 2; h++)
                add_group(&s[h], from, g, i < of.together, size_of(in, from, j, g, LINES * h),
                          in + 32 + 4 * LINES * h, spread4(x, g));
        for (int h = 0; h < 2; h++)
            y[h] = add_scaled(s[h].wide, scale_of(scales, in, from, j * of.parts + p, h), with, y[h]);
    }
    for (int h = 0; h < 2 && of.least; h++)
        y[h] = _mm256_fnmadd_ps(_mm256_loadu_ps(scales->least + j * PANEL_LINES + LINES * h),
                                _mm256_set1_ps(q->total), y[h]);
}

VEC_FN void put_rows(const __m256 *y, int64_t rows, float *out)
{
    for (int64_t i = 0; i < 2 * rows; i++) _mm256_storeu_ps(out + LINES * i, y[i]);
}

/* ---- few rows: panels as they lie in memory ---- */

/* Parts share bytes: what a compiler keeps of one for the next costs more stores than it saves loads. */
VEC_FN void load_again(void) { __asm__ volatile("" ::: "memory"); }

/* Asks for what lies AHEAD of block j: a panel is several short streams, which the hardware does not fetch in time. */
VEC_FN void ask_ahead(const unsigned char *panel, const struct kind of, int j)
{
    const int bytes = of.bytes / of.each;
    for (int i = (j * bytes + 63) / 64 * 64; i < (j + 1) * bytes; i += 64)
        _mm_prefetch((const char *)panel + AHEAD + i, _MM_HINT_T0);
}

VEC_FN void one_row(const unsigned char *panel, enum source from, const struct x8 *x, float *out)
{
    const struct kind of = kind_of(from);
    struct scales scales;
    __m256 y[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t b = 0; b < x->k / X8_BLOCK; b += of.each, panel += of.bytes) {
        if (from == FROM_Q6_K)
            scales.d[0] = halves8(panel + 3328), scales.d[1] = halves8(panel + 3344);
        else
            take_scales(panel, from, scales.scale, scales.least);
        VEC_UNROLL(8)
        for (int j = 0; j < of.each; j++) {
            load_again();
            ask_ahead(panel, of, j);
            add_block_1(panel, from, j, &scales, x->codes + (b + j) * X8_BLOCK, x->blocks + b + j, y);
        }
    }
    put_rows(y, 1, out);
}

VEC_FN void few_rows(const unsigned char *panel, enum source from, const struct x8 *x, float *out)
{
    const struct kind of = kind_of(from);
    const int64_t rows = x->rows;
    float scale[SCALES], least[MINIMA];
    __m256 y[2 * ROWS];
    for (int64_t i = 0; i < 2 * rows; i++) y[i] = _mm256_setzero_ps();
    for (int64_t b = 0; b < x->k / X8_BLOCK; b += of.each, panel += of.bytes) {
        take_scales(panel, from, scale, least);
        for (int line = 0; line < PANEL_LINES; line += LINES) {
            VEC_UNROLL(8)
            for (int j = 0; j < of.each; j++) {
                struct eight w;
                load_again();
                if (line == 0) ask_ahead(panel, of, j);
                take(panel, from, j, line, &w);
                add_block(&w, from, scale + j * of.parts * PANEL_LINES + line, least + j * PANEL_LINES + line,
                          x->codes + (b + j) * X8_BLOCK, x->blocks + b + j, x->k, rows, y + line / LINES);
            }
        }
    }
    put_rows(y, rows, out);
}

/* ---- many rows: unpacked panels ---- */

/* Unpacked codes have no sign and stay too large. */
VEC_FN void unpack(const unsigned char *in, enum source from, int64_t k, void *scratch, struct panel8 *out)
{
    const struct kind of = kind_of(from);
    *out = lay_out(scratch, k, of.parts, of.least);
    out->form = from;
    unsigned char *codes = scratch;
    float *scale = (float *)(uintptr_t)out->scale, *least = (float *)(uintptr_t)out->least;
    for (int64_t b = 0; b < k / X8_BLOCK; b += of.each, in += of.bytes) {
        take_scales(in, from, scale, least);
        scale += of.each * of.parts * PANEL_LINES;
        if (of.least) least += of.each * PANEL_LINES;
        VEC_UNROLL(8)
        for (int j = 0; j < of.each; j++, codes += CODES)
            for (int i = 0; i < 2 * PANEL8_GROUP; i++)
                _mm256_storeu_si256((__m256i *)(void *)(codes + 32 * i),
                                    size_of(in, from, j, i / 2, i % 2 * LINES));
    }
}

VEC_FN void take_unpacked(const struct panel8 *w, enum source from, int64_t b, int line, struct eight *out)
{
    const unsigned char *codes = (const unsigned char *)w->codes + b * w->step + 4 * line;
    VEC_UNROLL(8)
    for (int g = 0; g < PANEL8_GROUP; g++) {
        out->size[g] = load_32(codes + g * 64);
        if (from == FROM_Q8_0) out->size[g] = _mm256_abs_epi8(out->size[g]);
    }
    out->sign = codes;
}

VEC_FN void many_rows(const struct panel8 *w, enum source from, const struct x8 *x, float *out)
{
    const int parts = kind_of(from).parts;
    int64_t blocks = x->k / X8_BLOCK, rows = 0;
    for (int64_t r = 0; r < x->rows; r += rows) {
        rows = x->rows - r < ROWS ? x->rows - r : ROWS;
        __m256 y[2 * ROWS];
        for (int64_t i = 0; i < 2 * rows; i++) y[i] = _mm256_setzero_ps();
        for (int64_t b = 0; b < blocks; b++)
            for (int line = 0; line < PANEL_LINES; line += LINES) {
                struct eight eight;
                take_unpacked(w, from, b, line, &eight);
                add_block(&eight, from, w->scale + b * parts * PANEL_LINES + line,
                          w->least + b * PANEL_LINES + line, x->codes + r * x->k + b * X8_BLOCK,
                          x->blocks + r * blocks + b, x->k, rows, y + line / LINES);
            }
        put_rows(y, rows, out + r * PANEL_LINES);
    }
}

/* ---- types ---- */

#define UNPACK(name, from)                                                                                   \
    static void unpack_##name(const unsigned char *in, int64_t k, void *scratch, struct panel8 *out)         \
    {                                                                                                        \
        unpack(in, from, k, scratch, out);                                                                   \
    }
UNPACK(q4_0, FROM_Q4_0)
UNPACK(q4_k, FROM_Q4_K)
UNPACK(q5_k, FROM_Q5_K)
UNPACK(q6_k, FROM_Q6_K)

#define BY_ROWS(name, from)                                                                                  \
    static void few_##name(const unsigned char *panel, const struct x8 *x, float *out)                       \
    {                                                                                                        \
        if (x->rows == 1)                                                                                    \
            one_row(panel, from, x, out);                                                                    \
        else                                                                                                 \
            few_rows(panel, from, x, out);                                                                   \
    }                                                                                                        \
    static void many_##name(const struct panel8 *w, const struct x8 *x, float *out)                          \
    {                                                                                                        \
        many_rows(w, from, x, out);                                                                          \
    }
BY_ROWS(q8_0, FROM_Q8_0)
BY_ROWS(q4_0, FROM_Q4_0)
BY_ROWS(q4_k, FROM_Q4_K)
BY_ROWS(q5_k, FROM_Q5_K)
BY_ROWS(q6_k, FROM_Q6_K)

static void multiply_panel(const struct panel8 *w, const struct x8 *x, float *out)
{
    static panel8_multiply *const many[] = {many_q8_0, many_q4_0, many_q4_k, many_q5_k, many_q6_k};
    many[w->form](w, x, out);
}

VEC_POP

const struct linear_q_level linear_q_avx2 = LINEAR_Q_TABLE("avx2", 1, quantise_with_lifts,
                                                           {[BLOCK_Q8_0] = few_q8_0,
                                                            [BLOCK_Q4_0] = few_q4_0,
                                                            [BLOCK_Q4_K] = few_q4_k,
                                                            [BLOCK_Q5_K] = few_q5_k,
                                                            [BLOCK_Q6_K] = few_q6_k},
                                                           NULL, NULL);
#endif
