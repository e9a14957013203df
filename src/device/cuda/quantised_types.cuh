/* quantised_types.cuh - block types as operands of the tensor cores' 8-bit products. A new type is a struct here, a row
 * in with_blocks, a quantised_product_TYPE.cu and, for many rows and tables, a reader in quantised.cu.
 *
 * A kernel has a chunk in shared memory: 256 of k of the 16 lines of a panel (tensor/panels.h), or fewer at a line's end.
 * Block b of a chunk is 32 of k. operand has what lane (g, t) = (lane / 4, lane % 4) holds of it:
 *
 *     a[0], a[1]   codes of k 4 t .. 4 t + 3 for lines g and g + 8        a[2], a[3]   k 16 more
 *     scale        of those lines; with two scales, of the first and the last 16 of k
 *     least        what each element has too much, in types with minima
 *
 * An element is scale * code - least. Codes that a type stores without a sign are shifted to the top of a byte, where
 * changing one bit subtracts their middle; `factor` or the scale takes the shift back.
 *
 * `read` fills all of an operand. For a single row (quantised_one.cuh), `codes` fills a, and `take` reads the scales and minima of blocks
 * t and t + 4. */
#pragma once

#include "device/cuda/vec.cuh"
extern "C" {
#include "tensor/panels.h"
}
#include <stdint.h>

enum { CHUNK = 256, CHUNK_BLOCKS = CHUNK / 32, PREPARED = 1024 };

template <int SCALES> struct operand {
    uint32_t a[4];
    float scale[SCALES][2], least[2];
};

/* Scales of lines g and g + 8 (first index), blocks t and t + 4 of a chunk (second). */
template <int SCALES> struct two_blocks {
    float scale[SCALES][2][2], least[2][2];
};

ON_GPU uint32_t word_at(const char *p) { return *reinterpret_cast<const uint32_t *>(p); }
ON_GPU float half_at(const char *p) { return __half2float(*reinterpret_cast<const __half *>(p)); }

/* ELEMENTS and BYTES of a block, SCALES for 32 elements, minima or not. */
template <int ELEMENTS, int BYTES, int SCALE_COUNT, bool WITH_LEAST> struct block_shape {
    static constexpr int elements = ELEMENTS, scales = SCALE_COUNT;
    static constexpr int block_bytes = BYTES * PANEL_LINES;                    /* of 16 lines */
    static constexpr int chunk_bytes = CHUNK / ELEMENTS * BYTES * PANEL_LINES; /* of 16 lines */
    static constexpr bool minima = WITH_LEAST;
    static constexpr int prepared = ELEMENTS == CHUNK ? PREPARED : 0;
    static constexpr float factor = 1; /* that all sums of codes lack */
    using part = operand<SCALE_COUNT>;
    using pair = two_blocks<SCALE_COUNT>;
    /* Types with one scale for a block of 32 read it where it is. */
    ON_GPU void prepare(const char *, char *, int) {}
};

template <int TYPE> struct blocks;

/* One scale in f16 before the codes of each block of 32. */
template <class S> ON_GPU typename S::part read_small(const char *chunk, int b, int g, int t)
{
    const char *scale = chunk + b * S::block_bytes + g * 2;
    typename S::part w = {{}, {{half_at(scale), half_at(scale + 16)}}};
    S::codes(w.a, chunk, b, g, t);
    return w;
}

template <class S> ON_GPU typename S::pair take_small(const char *chunk, int g, int t)
{
    const char *first = chunk + t * S::block_bytes + g * 2, *second = first + 4 * S::block_bytes;
    return {{{{half_at(first), half_at(second)}, {half_at(first + 16), half_at(second + 16)}}}};
}

template <> struct blocks<BLOCK_Q8_0> : block_shape<32, 34, 1, false> {
    ON_GPU void codes(uint32_t (&a)[4], const char *chunk, int b, int g, int t)
    {
        const char *at = chunk + b * block_bytes + 32 + t * 64 + g * 4;
        a[0] = word_at(at), a[1] = word_at(at + 32), a[2] = word_at(at + 256), a[3] = word_at(at + 288);
    }
    ON_GPU part read(const char *chunk, const char *, int b, int g, int t)
    {
        return read_small<blocks>(chunk, b, g, t);
    }
    ON_GPU pair take(const char *chunk, int g, int t) { return take_small<blocks>(chunk, g, t); }
};

template <> struct blocks<BLOCK_Q4_0> : block_shape<32, 18, 1, false> {
    static constexpr float factor = 0.0625f;
    ON_GPU void codes(uint32_t (&a)[4], const char *chunk, int b, int g, int t)
    {
        const char *at = chunk + b * block_bytes + 32 + t * 64 + g * 4;
        const uint32_t u = word_at(at), v = word_at(at + 32), high = 0xf0f0f0f0u, middle = 0x80808080u;
        a[0] = (u << 4 & high) ^ middle, a[1] = (v << 4 & high) ^ middle;
        a[2] = (u & high) ^ middle, a[3] = (v & high) ^ middle;
    }
    ON_GPU part read(const char *chunk, const char *, int b, int g, int t)
    {
        return read_small<blocks>(chunk, b, g, t);
    }
    ON_GPU pair take(const char *chunk, int g, int t) { return take_small<blocks>(chunk, g, t); }
};

/* Q4_K and Q5_K: scales and minima of the parts of 32 are unpacked once for a chunk, to [8 parts][16 lines]. A lane has two
 * j of a line, each with parts j and j + 4 (tensor/blocks.c, part_of). */
struct two_parts {
    float2 low, high; /* scale and minimum of parts j and j + 4 */
};

ON_GPU two_parts parts_of(const char *chunk, int line, int j)
{
    const float d = half_at(chunk + line * 2), dmin = half_at(chunk + 32 + line * 2);
    const unsigned char *bytes = reinterpret_cast<const unsigned char *>(chunk) + (4 + j) * 16 + line;
    const int low = bytes[0], high = bytes[4 * 16], last = bytes[8 * 16];
    return {
        make_float2(d * (float)(low & 63), dmin * (float)(high & 63)),
        make_float2(d * (float)((last & 15) | low >> 6 << 4), dmin * (float)(last >> 4 | high >> 6 << 4))};
}

ON_GPU void prepare_parts(const char *chunk, char *prepared, int lane)
{
    const int line = lane % 16;
    float2 *to = reinterpret_cast<float2 *>(prepared) + line;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int j = lane / 16 * 2 + i;
        const two_parts parts = parts_of(chunk, line, j);
        to[j * 16] = parts.low, to[(j + 4) * 16] = parts.high;
    }
}

/* Part j is block j of a chunk. */
ON_GPU two_blocks<1> take_two_parts(const char *chunk, int g, int t)
{
    two_blocks<1> w;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const two_parts parts = parts_of(chunk, g + 8 * i, t);
        w.scale[0][i][0] = parts.low.x, w.least[i][0] = parts.low.y;
        w.scale[0][i][1] = parts.high.x, w.least[i][1] = parts.high.y;
    }
    return w;
}

template <class P> ON_GPU void take_parts(P *w, const char *prepared, int b, int g)
{
    const float2 *from = reinterpret_cast<const float2 *>(prepared) + b * 16 + g;
    const float2 u = from[0], v = from[8];
    w->scale[0][0] = u.x, w->scale[0][1] = v.x, w->least[0] = u.y, w->least[1] = v.y;
}

template <> struct blocks<BLOCK_Q4_K> : block_shape<256, 144, 1, true> {
    ON_GPU void prepare(const char *chunk, char *prepared, int lane) { prepare_parts(chunk, prepared, lane); }
    ON_GPU void codes(uint32_t (&a)[4], const char *chunk, int b, int g, int t)
    {
        const char *at = chunk + 256 + b / 2 * 512 + t * 64 + g * 4;
        const int shift = b % 2 * 4;
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = word_at(at + i / 2 * 256 + i % 2 * 32) >> shift & 0x0f0f0f0fu;
    }
    ON_GPU part read(const char *chunk, const char *prepared, int b, int g, int t)
    {
        part w;
        codes(w.a, chunk, b, g, t);
        take_parts(&w, prepared, b, g);
        return w;
    }
    ON_GPU pair take(const char *chunk, int g, int t) { return take_two_parts(chunk, g, t); }
};

template <> struct blocks<BLOCK_Q5_K> : block_shape<256, 176, 1, true> {
    ON_GPU void prepare(const char *chunk, char *prepared, int lane) { prepare_parts(chunk, prepared, lane); }
    ON_GPU void codes(uint32_t (&a)[4], const char *chunk, int b, int g, int t)
    {
        const char *fifth = chunk + 256 + t * 64 + g * 4, *four = fifth + 512 + b / 2 * 512;
        const int shift = b % 2 * 4;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = i / 2 * 256 + i % 2 * 32;
            a[i] = (word_at(four + at) >> shift & 0x0f0f0f0fu) | (word_at(fifth + at) >> b & 0x01010101u)
                                                                     << 4;
        }
    }
    ON_GPU part read(const char *chunk, const char *prepared, int b, int g, int t)
    {
        part w;
        codes(w.a, chunk, b, g, t);
        take_parts(&w, prepared, b, g);
        return w;
    }
    ON_GPU pair take(const char *chunk, int g, int t) { return take_two_parts(chunk, g, t); }
};

/* Scales of parts of 16: [16 parts][16 lines]. */
template <> struct blocks<BLOCK_Q6_K> : block_shape<256, 210, 2, false> {
    ON_GPU void prepare(const char *chunk, char *prepared, int lane)
    {
        const int line = lane % 16, first = lane / 16 * 8;
        const float d = half_at(chunk + 208 * 16 + line * 2) * 0.25f;
        const signed char *bytes = reinterpret_cast<const signed char *>(chunk) + (192 + first) * 16 + line;
        float *to = reinterpret_cast<float *>(prepared) + first * 16 + line;
#pragma unroll
        for (int i = 0; i < 8; i++) to[i * 16] = d * (float)bytes[i * 16];
    }
    ON_GPU void codes(uint32_t (&a)[4], const char *chunk, int b, int g, int t)
    {
        const int half = b / 4, quarter = b % 4;
        const char *low = chunk + half * 1024 + quarter % 2 * 512 + t * 64 + g * 4,
                   *high = chunk + 2048 + half * 512 + t * 64 + g * 4;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = i / 2 * 256 + i % 2 * 32;
            a[i] = ((word_at(low + at) >> quarter / 2 * 4 & 0x0f0f0f0fu) << 2 |
                    (word_at(high + at) >> quarter * 2 & 0x03030303u) << 6) ^
                   0x80808080u;
        }
    }
    ON_GPU part read(const char *chunk, const char *prepared, int b, int g, int t)
    {
        const float *from = reinterpret_cast<const float *>(prepared) + b * 32 + g;
        part w = {{}, {{from[0], from[8]}, {from[16], from[24]}}};
        codes(w.a, chunk, b, g, t);
        return w;
    }
    ON_GPU pair take(const char *chunk, int g, int t)
    {
        const signed char *bytes = reinterpret_cast<const signed char *>(chunk) + (192 + 2 * t) * 16 + g;
        pair w;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float d = half_at(chunk + 208 * 16 + (g + 8 * i) * 2) * 0.25f;
#pragma unroll
            for (int n = 0; n < 4; n++) /* half n % 2 of block t + n / 2 * 4 */
                w.scale[n % 2][i][n / 2] = d * (float)bytes[(n / 2 * 8 + n % 2) * 16 + 8 * i];
        }
        return w;
    }
};

template <int TYPE> struct number_tag {
    static constexpr int value = TYPE;
};

/* f(number_tag<TYPE>) of a block type. */
template <class F> static inline int with_blocks(int type, F f)
{
    switch (type) {
    case BLOCK_Q8_0:
        return f(number_tag<BLOCK_Q8_0>());
    case BLOCK_Q4_0:
        return f(number_tag<BLOCK_Q4_0>());
    case BLOCK_Q4_K:
        return f(number_tag<BLOCK_Q4_K>());
    case BLOCK_Q5_K:
        return f(number_tag<BLOCK_Q5_K>());
    case BLOCK_Q6_K:
        return f(number_tag<BLOCK_Q6_K>());
    default:
        return (int)cudaErrorInvalidValue;
    }
}
