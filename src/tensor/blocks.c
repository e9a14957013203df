/* blocks.c - the block types of GGUF, by their numbers, and our own. See blocks.h.
 *
 * Numbers lie in little-endian order and at any address; the machines we run on are little-endian.
 */
#include "tensor/blocks.h"
#include "tensor/blocks_4bit.h"
#include "tensor/dtype.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static uint16_t u16_at(const unsigned char *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static float scale_at(const unsigned char *p) { return f16_to_f32(u16_at(p)); }

static void read_f32(const unsigned char *in, float *out, int64_t n)
{
    memcpy(out, in, (size_t)n * sizeof *out);
}

/* By way of a copy, since they may lie at an odd address. */
static void read_halves(const unsigned char *in, float *out, int64_t n, enum dtype type)
{
    enum { PIECE = 1024 };
    uint16_t halves[PIECE];
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t here = n - i < PIECE ? n - i : PIECE;
        memcpy(halves, in + 2 * i, (size_t)here * sizeof *halves);
        dtype_convert(out + i, DT_F32, halves, type, here);
    }
}

static void read_f16(const unsigned char *in, float *out, int64_t n) { read_halves(in, out, n, DT_F16); }
static void read_bf16(const unsigned char *in, float *out, int64_t n) { read_halves(in, out, n, DT_BF16); }

/* scale, 32 signed bytes: scale * q */
static void read_q8_0(const unsigned char *in, float *out, int64_t n)
{
    for (; n > 0; n--, in += 34, out += 32) {
        float d = scale_at(in);
        for (int i = 0; i < 32; i++) out[i] = d * (float)(int8_t)in[2 + i];
    }
}

/* scale, 16 bytes: low halves are the first 16 elements, high halves the others; scale * (q - 8) */
static void read_q4_0(const unsigned char *in, float *out, int64_t n)
{
    for (; n > 0; n--, in += 18, out += 32) {
        float d = scale_at(in);
        for (int i = 0; i < 16; i++) {
            out[i] = d * (float)((in[2 + i] & 15) - 8);
            out[i + 16] = d * (float)((in[2 + i] >> 4) - 8);
        }
    }
}

/* Scale and minimum of part j of eight: 6 bits each in 12 bytes. The first four parts have theirs in the low bits of bytes
 * 0 to 3 and 4 to 7; the others have four bits in bytes 8 to 11 and two above those of the first. */
struct part {
    float scale, least;
};

static struct part part_of(const unsigned char *packed, int j, float d, float dmin)
{
    int scale = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
    int least = j < 4 ? packed[j + 4] & 63 : packed[j + 4] >> 4 | packed[j] >> 6 << 4;
    return (struct part){d * (float)scale, dmin * (float)least};
}

/* scale, scale of minima, 12 bytes of parts, 128 bytes: 32 of them are two parts, low halves and high halves;
 * part scale * q - part minimum */
static void read_q4_k(const unsigned char *in, float *out, int64_t n)
{
    for (; n > 0; n--, in += 144) {
        float d = scale_at(in), dmin = scale_at(in + 2);
        const unsigned char *q = in + 16;
        for (int j = 0; j < 8; j++, out += 32) {
            struct part p = part_of(in + 4, j, d, dmin);
            const unsigned char *bytes = q + j / 2 * 32;
            for (int i = 0; i < 32; i++)
                out[i] = p.scale * (float)(j % 2 ? bytes[i] >> 4 : bytes[i] & 15) - p.least;
        }
    }
}

/* As Q4_K, with a fifth bit of each element: bit j of byte i is that of element i of part j. */
static void read_q5_k(const unsigned char *in, float *out, int64_t n)
{
    for (; n > 0; n--, in += 176) {
        float d = scale_at(in), dmin = scale_at(in + 2);
        const unsigned char *high = in + 16, *q = in + 48;
        for (int j = 0; j < 8; j++, out += 32) {
            struct part p = part_of(in + 4, j, d, dmin);
            const unsigned char *bytes = q + j / 2 * 32;
            for (int i = 0; i < 32; i++) {
                int low = j % 2 ? bytes[i] >> 4 : bytes[i] & 15;
                out[i] = p.scale * (float)(low | (high[i] >> j & 1) << 4) - p.least;
            }
        }
    }
}

/* 128 bytes of four low bits, 64 of two high bits, 16 signed scales, scale. Each half of the block has 64 and 32 of those
 * bytes: elements 0 to 31 and 32 to 63 are low halves of the first and second 32 bytes, 64 to 127 their high halves; the
 * two high bits of all four lie in one byte. scale * part scale * (q - 32), a part is 16 elements. */
static void read_q6_k(const unsigned char *in, float *out, int64_t n)
{
    for (; n > 0; n--, in += 210) {
        float d = scale_at(in + 208);
        for (int i = 0; i < 256; i++, out++) {
            int half = i / 128, quarter = i % 128 / 32, at = i % 32;
            int low = in[half * 64 + quarter % 2 * 32 + at] >> (quarter / 2 * 4) & 15;
            int high = in[128 + half * 32 + at] >> (quarter * 2) & 3;
            *out = d * (float)(int8_t)in[192 + i / 16] * (float)((low | high << 4) - 32);
        }
    }
}

/* ---- writing ---- */

static void put_u16(unsigned char *p, uint16_t v) { memcpy(p, &v, sizeof v); }

/* Four elements of a block at once: compilers do not make vectors of comparisons by themselves. */
typedef float f32x4 __attribute__((vector_size(16)));
typedef int32_t i32x4 __attribute__((vector_size(16)));

static inline f32x4 load4(const float *in)
{
    f32x4 v;
    memcpy(&v, in, sizeof v);
    return v;
}

static inline f32x4 choose4(i32x4 mask, f32x4 yes, f32x4 no)
{
    return (f32x4)(((i32x4)yes & mask) | ((i32x4)no & ~mask));
}

static inline f32x4 lesser4(f32x4 a, f32x4 b) { return choose4(a < b, a, b); }
static inline f32x4 greater4(f32x4 a, f32x4 b) { return choose4(a > b, a, b); }

/* To whole numbers, ties to even: adding and taking 1.5 * 2^23. */
static inline f32x4 round4(f32x4 x)
{
    const f32x4 magic = {12582912.0f, 12582912.0f, 12582912.0f, 12582912.0f};
    return (x + magic) - magic;
}

/* Largest of 32 numbers by magnitude. */
static float largest(const float *in)
{
    const i32x4 size = {INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX};
    f32x4 most = {0};
    for (int i = 0; i < 32; i += 4) most = greater4((f32x4)((i32x4)load4(in + i) & size), most);
    float a = most[0] > most[1] ? most[0] : most[1], b = most[2] > most[3] ? most[2] : most[3];
    return a > b ? a : b;
}

/* The scale is the largest number's share of 127, rounded to 16 bits before elements are divided by it. */
static void write_q8_0(const float *in, unsigned char *out, int64_t n)
{
    const f32x4 end = {127, 127, 127, 127};
    for (; n > 0; n--, in += 32, out += 34) {
        uint16_t scale = f32_to_f16(largest(in) / 127.0f);
        float d = f16_to_f32(scale), inverse = d > 0 ? 1.0f / d : 0;
        put_u16(out, scale);
        for (int i = 0; i < 32; i += 4) {
            f32x4 q = greater4(lesser4(round4(load4(in + i) * inverse), end), -end);
            i32x4 code = __builtin_convertvector(q, i32x4);
            for (int j = 0; j < 4; j++) out[2 + i + j] = (unsigned char)code[j];
        }
    }
}

/* Codes of a block of 32 under a scale; returns the squared error. */
static float code_q4(const float *in, float d, float *code)
{
    const f32x4 end = {7, 7, 7, 7}, begin = {-8, -8, -8, -8};
    const float inverse = d != 0 ? 1.0f / d : 0;
    f32x4 error = {0};
    for (int i = 0; i < 32; i += 4) {
        f32x4 x = load4(in + i), q = round4(greater4(lesser4(x * inverse, end), begin)), miss = x - d * q;
        memcpy(code + i, &q, sizeof q);
        error += miss * miss;
    }
    return (error[0] + error[1]) + (error[2] + error[3]);
}

/* Tries several scales and keeps the one with the smallest squared error. Codes go from -8 to 7, so a scale may be
 * negative: the largest number then has the code -8. */
static void write_q4_0(const float *in, unsigned char *out, int64_t n)
{
    static const float parts[] = {8.0f, -8.0f, 7.4f, -7.4f, 6.8f, -6.8f, 8.6f, -8.6f}; /* of the largest */
    for (; n > 0; n--, in += 32, out += 18) {
        float most = largest(in), least = INFINITY, code[32] = {0}, best[32] = {0};
        uint16_t scale = 0;
        for (size_t i = 0; i < sizeof parts / sizeof *parts && most > 0; i++) {
            uint16_t s = f32_to_f16(most / parts[i]);
            float error = code_q4(in, f16_to_f32(s), code);
            if (!(error < least)) continue;
            least = error, scale = s;
            memcpy(best, code, sizeof best);
        }
        put_u16(out, scale);
        for (int i = 0; i < 16; i++)
            out[2 + i] = (unsigned char)(((int)best[i] + 8) | ((int)best[i + 16] + 8) << 4);
    }
}

/* ---- bitsandbytes' types ---- */

static void read_nf4(const unsigned char *in, float *out, int64_t n) { block4_read(in, out, n, block4_nf4); }
static void read_fp4(const unsigned char *in, float *out, int64_t n) { block4_read(in, out, n, block4_fp4); }

static void read_nf4_dq(const unsigned char *in, float *out, int64_t n)
{
    block4_read_dq(in, out, n, block4_nf4);
}

static void read_fp4_dq(const unsigned char *in, float *out, int64_t n)
{
    block4_read_dq(in, out, n, block4_fp4);
}

static void write_nf4(const float *in, unsigned char *out, int64_t n)
{
    block4_write(in, out, n, block4_nf4);
}

static void write_fp4(const float *in, unsigned char *out, int64_t n)
{
    block4_write(in, out, n, block4_fp4);
}

/* By number; those without a reader are named in errors and have the size that checks a file. */
static const struct block_type types[] = {
    [0] = {"F32", 1, 4, read_f32},
    [1] = {"F16", 1, 2, read_f16},
    [2] = {"Q4_0", 32, 18, read_q4_0, {{0, 2, 2}, {2, 16, 4}}, write_q4_0, {0, 1, false}},
    [3] = {"Q4_1", 32, 20, 0},
    [6] = {"Q5_0", 32, 22, 0},
    [7] = {"Q5_1", 32, 24, 0},
    [8] = {"Q8_0", 32, 34, read_q8_0, {{0, 2, 2}, {2, 32, 4}}, write_q8_0, {0, 1, false}},
    [10] = {"Q2_K", 256, 84, 0},
    [11] = {"Q3_K", 256, 110, 0},
    [12] = {"Q4_K", 256, 144, read_q4_k, {{0, 4, 2}, {4, 12, 1}, {16, 128, 4}}, 0, {0, 2, false}},
    [13] =
        {"Q5_K", 256, 176, read_q5_k, {{0, 4, 2}, {4, 12, 1}, {16, 32, 4}, {48, 128, 4}}, 0, {0, 2, false}},
    [14] = {"Q6_K",
            256,
            210,
            read_q6_k,
            {{0, 128, 4}, {128, 64, 4}, {192, 16, 1}, {208, 2, 2}},
            0,
            {208, 1, false}},
    [16] = {"IQ2_XXS", 256, 66, 0},
    [17] = {"IQ2_XS", 256, 74, 0},
    [18] = {"IQ3_XXS", 256, 98, 0},
    [19] = {"IQ1_S", 256, 50, 0},
    [20] = {"IQ4_NL", 32, 18, 0},
    [21] = {"IQ3_S", 256, 110, 0},
    [22] = {"IQ2_S", 256, 82, 0},
    [23] = {"IQ4_XS", 256, 136, 0},
    [24] = {"I8", 1, 1, 0},
    [25] = {"I16", 1, 2, 0},
    [26] = {"I32", 1, 4, 0},
    [27] = {"I64", 1, 8, 0},
    [28] = {"F64", 1, 8, 0},
    [29] = {"IQ1_M", 256, 56, 0},
    [30] = {"BF16", 1, 2, read_bf16},
    [34] = {"TQ1_0", 256, 54, 0},
    [35] = {"TQ2_0", 256, 66, 0},
    [39] = {"MXFP4", 32, 17, 0},
#define FOUR_BITS(name, reader, writer, table)                                                               \
    {                                                                                                        \
        name, 64, BLOCK4_BYTES, reader, {{0, 4, 4}, {4, 32, 4}}, writer, {0, 1, true}, table                 \
    }
#define FOUR_BITS_DQ(name, reader, table)                                                                    \
    {                                                                                                        \
        name, 256, BLOCK4_DQ_BYTES, reader, {{0, 8, 4}, {8, 4, 4}, {12, 128, 4}}, NULL, {0, 2, true}, table  \
    }
    [BLOCK_NF4] = FOUR_BITS("NF4", read_nf4, write_nf4, block4_nf4),
    [BLOCK_FP4] = FOUR_BITS("FP4", read_fp4, write_fp4, block4_fp4),
    [BLOCK_NF4_DQ] = FOUR_BITS_DQ("NF4_DQ", read_nf4_dq, block4_nf4),
    [BLOCK_FP4_DQ] = FOUR_BITS_DQ("FP4_DQ", read_fp4_dq, block4_fp4),
};

static bool is_finite(const struct block_scales *s, const unsigned char *p)
{
    uint32_t wide = 0;
    memcpy(&wide, p, s->wide ? 4 : 2);
    return s->wide ? (wide & 0x7f800000u) != 0x7f800000u : (wide & 0x7c00u) != 0x7c00u;
}

int64_t block_find_bad_scale(const struct block_type *type, const unsigned char *blocks, int64_t n)
{
    const struct block_scales *s = &type->scales;
    for (int64_t b = 0; b < n; b++)
        for (int i = 0; i < s->count; i++)
            if (!is_finite(s, blocks + b * type->bytes + s->at + i * (s->wide ? 4 : 2))) return b;
    return -1;
}

const struct block_type *block_type_of(uint32_t number)
{
    bool known = number < sizeof types / sizeof *types && types[number].name;
    return known ? &types[number] : NULL;
}

int block_type_number(const char *name)
{
    for (int i = 0; i < (int)(sizeof types / sizeof *types); i++)
        if (types[i].name && !strcmp(types[i].name, name)) return i;
    return -1;
}
