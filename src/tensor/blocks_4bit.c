/* blocks_4bit.c - see blocks_4bit.h. */
#include "tensor/blocks_4bit.h"

#include <math.h>
#include <string.h>

/* Quantiles of a normal distribution, scaled to [-1, 1]. */
const float block4_nf4[16] = {-1.0f,
                              -0.6961928009986877f,
                              -0.5250730514526367f,
                              -0.39491748809814453f,
                              -0.28444138169288635f,
                              -0.18477343022823334f,
                              -0.09105003625154495f,
                              0.0f,
                              0.07958029955625534f,
                              0.16093020141124725f,
                              0.24611230194568634f,
                              0.33791524171829224f,
                              0.44070982933044434f,
                              0.5626170039176941f,
                              0.7229568362236023f,
                              1.0f};

/* A sign and three bits, over 12. */
const float block4_fp4[16] = {0.0f, 0.0625f / 12,  8.0f / 12,  1,  4.0f / 12,  0.5f,  2.0f / 12,  0.25f,
                              0.0f, -0.0625f / 12, -8.0f / 12, -1, -4.0f / 12, -0.5f, -2.0f / 12, -0.25f};

/* Codes in the order of their numbers. */
static const unsigned char nf4_order[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const unsigned char fp4_order[16] = {11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3};

/* --- magnitudes of 8 bits ------------------------------------------------------------------------------------ */

float block4_dq_magnitude(float offset, float scale, int code)
{
    float size = block4_map(code) * scale;
    return size + offset;
}

/* --- blocks --------------------------------------------------------------------------------------------------- */

/* 64 elements. */
static void read_part(const unsigned char *codes, float magnitude, float *out, const float *table)
{
    for (int i = 0; i < 32; i++) {
        float *at = out + i / 16 * 32 + i % 16;
        at[0] = table[codes[i] & 15] * magnitude;
        at[16] = table[codes[i] >> 4] * magnitude;
    }
}

void block4_read(const unsigned char *in, float *out, int64_t n, const float *table)
{
    for (; n > 0; n--, in += BLOCK4_BYTES, out += BLOCK4_PART) {
        float magnitude;
        memcpy(&magnitude, in, sizeof magnitude);
        read_part(in + 4, magnitude, out, table);
    }
}

void block4_read_dq(const unsigned char *in, float *out, int64_t n, const float *table)
{
    for (; n > 0; n--, in += BLOCK4_DQ_BYTES) {
        float head[2];
        memcpy(head, in, sizeof head);
        for (int p = 0; p < 4; p++, out += BLOCK4_PART)
            read_part(in + 12 + p * 32, block4_dq_magnitude(head[0], head[1], in[8 + p]), out, table);
    }
}

/* Midpoints between neighbours; the last is above every number. */
struct coder {
    const unsigned char *order;
    float middle[16];
};

static struct coder coder_of(const float *table)
{
    struct coder c = {table == block4_nf4 ? nf4_order : fp4_order, {0}};
    for (int i = 0; i < 15; i++) c.middle[i] = (table[c.order[i]] + table[c.order[i + 1]]) / 2;
    c.middle[15] = INFINITY;
    return c;
}

/* The code nearest to a number from -1 to 1; between two, the lower one. */
static int code_of(const struct coder *c, float x)
{
    int place = 0;
    for (int i = 0; i < 16; i++) place += x > c->middle[i];
    return c->order[place];
}

/* A block of zeros has the magnitude 0; its elements are divided by a number that is not. */
void block4_write(const float *in, unsigned char *out, int64_t n, const float *table)
{
    const struct coder c = coder_of(table);
    for (; n > 0; n--, in += BLOCK4_PART, out += BLOCK4_BYTES) {
        float most = 0;
        for (int i = 0; i < BLOCK4_PART; i++) most = fmaxf(most, fabsf(in[i]));
        float inverse = 1.0f / fmaxf(most, 1e-38f);
        memcpy(out, &most, sizeof most);
        for (int i = 0; i < 32; i++) {
            const float *at = in + i / 16 * 32 + i % 16;
            out[4 + i] = (unsigned char)(code_of(&c, at[0] * inverse) | code_of(&c, at[16] * inverse) << 4);
        }
    }
}

static int pair_code(const unsigned char *pairs, int i)
{
    return i % 2 ? pairs[i / 2] & 15 : pairs[i / 2] >> 4;
}

void block4_from_pairs(const unsigned char *pairs, unsigned char *codes)
{
    for (int i = 0; i < 32; i++) {
        int first = i / 16 * 32 + i % 16;
        codes[i] = (unsigned char)(pair_code(pairs, first) | pair_code(pairs, first + 16) << 4);
    }
}
