/* cuda_bf16.h - see cuda_runtime.h. */
#pragma once

#include "cuda_runtime.h"

struct __nv_bfloat16 {
    unsigned short bits;
};
struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return {{f32_to_bf16(x)}, {f32_to_bf16(y)}};
}
