/* cuda_fp8.h - see cuda_runtime.h. */
#pragma once

#include "cuda_fp16.h"

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

static inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t saturate,
                                                       __nv_fp8_interpretation_t type)
{
    const float most = type == __NV_E4M3 ? 448.0f : 57344.0f;
    if (saturate == __NV_SATFINITE && fabsf(x) > most) x = copysignf(most, x); /* NaN stays */
    return type == __NV_E4M3 ? f32_to_e4m3(x) : f32_to_e5m2(x);
}

static inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 x, __nv_saturation_t saturate,
                                                            __nv_fp8_interpretation_t type)
{
    return (__nv_fp8x2_storage_t)(__nv_cvt_float_to_fp8(x.x, saturate, type) |
                                  __nv_cvt_float_to_fp8(x.y, saturate, type) << 8);
}

static inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t x, __nv_fp8_interpretation_t type)
{
    auto wide = type == __NV_E4M3 ? e4m3_to_f32 : e5m2_to_f32;
    return {f32_to_f16(wide((uint8_t)x)), f32_to_f16(wide((uint8_t)(x >> 8)))};
}
