/* blocks_4bit.h - bitsandbytes' NF4 and FP4 as blocks; internal to blocks.h, and for those who read bitsandbytes' files.
 *
 * A block is 64 elements: the largest magnitude in fp32, then 32 bytes of codes. An element is table[code] * magnitude, in
 * fp32. Of every 32 elements, 16 bytes hold the first 16 in their low halves and the others in their high halves, as Q4_0
 * does; bitsandbytes' files have neighbours in one byte, the first in the high half (block4_from_pairs).
 *
 * A block with double quantisation is 256 elements: offset and scale in fp32, four codes of 8 bits for the magnitudes of its
 * 64-element parts, then the elements' codes. A magnitude is block4_map(code) * scale + offset, rounded after each step.
 */
#pragma once

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define BLOCK4_FUNCTION static __host__ __device__ inline
#else
#define BLOCK4_FUNCTION static inline
#endif

enum { BLOCK4_BYTES = 36, BLOCK4_DQ_BYTES = 140, BLOCK4_PART = 64 };

extern const float block4_nf4[16], block4_fp4[16];

/* Boundary i of an even division of [0.1, 1] into n parts, from the nearer end. */
BLOCK4_FUNCTION float block4_boundary(int i, int n)
{
    float step = (1.0f - 0.1f) / (float)n;
    return i < (n + 1) / 2 ? fmaf(step, (float)i, 0.1f) : fmaf(-step, (float)(n - i), 1.0f);
}

/* The number of an 8-bit code, from -1 to 1; codes are in order of their numbers: seven decades with 1, 2, 4, ... 64 numbers each, the
 * middles of even parts. 127 is zero and 255 is one. The same bits on a GPU. */
BLOCK4_FUNCTION float block4_map(int code)
{
    const float decade[7] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
    if (code == 127) return 0;
    if (code == 255) return 1;
    int place = code > 127 ? code - 127 : 127 - code, which = 0;
    while (place >> (which + 1)) which++;
    int parts = 1 << which, part = place - parts;
    float size = (block4_boundary(part, parts) + block4_boundary(part + 1, parts)) / 2 * decade[which];
    return code > 127 ? size : -size;
}

void block4_read(const unsigned char *in, float *out, int64_t n, const float *table);
void block4_read_dq(const unsigned char *in, float *out, int64_t n, const float *table);
void block4_write(const float *in, unsigned char *out, int64_t n, const float *table);

/* The magnitude that an 8-bit code stands for. */
float block4_dq_magnitude(float offset, float scale, int code);

/* The codes of 64 elements in bitsandbytes' order to a block's. */
void block4_from_pairs(const unsigned char *pairs, unsigned char *codes);
