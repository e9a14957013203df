/* attention_codes.cuh - codes of keys and values in 8 bits (tensor/kv8.h) as fp16 numbers: all of them are such numbers exactly. */
#pragma once

#include "device/cuda/vec.cuh"

/* e4m3 numbers, none of them NaN. */
struct codes_e4m3 {
    /* The codes in the lower two bytes, as a pair. */
    ON_GPU uint32_t pair(uint32_t codes)
    {
#if __CUDA_ARCH__ >= 890
        uint32_t p;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(p) : "h"((uint16_t)codes));
        return p;
#else
        /* Exponent and fraction in fp16's places are the number times 2^-8, subnormal ones too; NaN is not among the codes. */
        const uint32_t above = __byte_perm(codes, 0, 0x1404);
        uint32_t p = (above & 0x80008000u) | (above & 0x7f007f00u) >> 1;
        asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(p) : "r"(0x5c005c00u)); /* 256 */
        return p;
#endif
    }
    /* Likewise those in the upper two. */
    ON_GPU uint32_t pair_high(uint32_t codes)
    {
#if __CUDA_ARCH__ >= 890
        uint32_t p;
        asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, high;\n}"
            : "=r"(p)
            : "r"(codes));
        return p;
#else
        return pair(codes >> 16);
#endif
    }
};

/* Signed bytes: 1024 + (code + 128) is fp16's 0x64 above the byte. */
struct codes_i8 {
    ON_GPU uint32_t pair(uint32_t codes)
    {
        uint32_t above = __byte_perm(codes ^ 0x8080u, 0x64646464u, 0x4140), p;
        asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(p) : "r"(above), "r"(0x64806480u)); /* 1152 */
        return p;
    }
    ON_GPU uint32_t pair_high(uint32_t codes) { return pair(codes >> 16); }
};
