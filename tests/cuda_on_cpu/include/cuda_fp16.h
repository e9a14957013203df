/* cuda_fp16.h - see cuda_runtime.h. */
#pragma once

#include "cuda_runtime.h"

struct __half {
    unsigned short bits;
};
struct __half2 {
    __half x, y;
};
struct __half2_raw {
    unsigned short x, y;
};

static inline float __half2float(__half x) { return f16_to_f32(x.bits); }
static inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
static inline __half2 __floats2half2_rn(float x, float y) { return {{f32_to_f16(x)}, {f32_to_f16(y)}}; }
