/* fp8_scale.cuh - the scale of fp8 numbers by op.h's rule (quantise8): the largest power of two with which nothing exceeds the type's largest number. */
#pragma once

#include "device/cuda/vec.cuh"

/* Magnitudes are compared as the bits of floats. */
ON_GPU unsigned larger(unsigned a, unsigned b) { return a > b ? a : b; }

/* Bits of a finite magnitude; 0 of infinity and NaN. */
ON_GPU unsigned magnitude(float x)
{
    unsigned bits = __float_as_uint(x) & 0x7fffffffu;
    return bits < 0x7f800000u ? bits : 0;
}

/* The largest over a block of WARPS warps; `slots` is shared, WARPS long. */
template <int WARPS> ON_GPU unsigned block_largest(unsigned v, unsigned *slots)
{
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) v = larger(v, __shfl_xor_sync(0xffffffffu, v, mask));
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = v;
    __syncthreads();
    unsigned all = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) all = larger(all, slots[i]);
    return all;
}

/* Exponents of the largest numbers, 448 and 57344, which are both 1.75 times a power of two. */
enum { TOP_E4M3 = 8, TOP_E5M2 = 15 };

/* Numbers are multiplied by two to this power, and the scale is its reciprocal. */
ON_GPU int exponent_for(unsigned largest, int top)
{
    if (largest == 0) return 0;
    int e = top - ((int)(largest >> 23) - 127) - ((largest & 0x7fffffu) > 0x600000u);
    return e > 100 || largest < 0x800000u ? 100 : e;
}

ON_GPU float power_of_two(int e) { return __uint_as_float((unsigned)(e + 127) << 23); }
