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

#include <stdint.h>

enum { BLOCK4_BYTES = 36, BLOCK4_DQ_BYTES = 140, BLOCK4_PART = 64 };

extern const float block4_nf4[16], block4_fp4[16];

/* The number of an 8-bit code, from -1 to 1; codes are in order of their numbers. */
float block4_map(int code);

void block4_read(const unsigned char *in, float *out, int64_t n, const float *table);
void block4_read_dq(const unsigned char *in, float *out, int64_t n, const float *table);
void block4_write(const float *in, unsigned char *out, int64_t n, const float *table);

/* The magnitude that an 8-bit code stands for. */
float block4_dq_magnitude(float offset, float scale, int code);

/* The codes of 64 elements in bitsandbytes' order to a block's. */
void block4_from_pairs(const unsigned char *pairs, unsigned char *codes);
