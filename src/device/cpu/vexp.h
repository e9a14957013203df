/* vexp.h - one machine register of floats and its exponential.
 *
 * `regf` is a vector register of REG_LANES floats, `regi` the same lanes as int32_t. Both support the C operators + - * & |
 * and comparisons lane by lane; functions provide the rest.
 *
 *     regf x = reg_load(p), y = reg_fma(x, reg_all(2), reg_all(1));      // 2 x + 1, rounded once
 *     reg_store(p, reg_exp2(y));
 *
 * The instruction set is chosen before the first include: VEXP_AVX2 (AVX2, FMA, F16C), VEXP_AVX512, VEXP_BF16 (NEON with
 * bfcvtn), else the architecture's baseline. Functions that call these must have REG_TARGET, so one file is for one
 * instruction set. Without AVX2 or AVX-512, multiply-add on x86-64 rounds twice.
 */
#pragma once

#include "device/cpu/vec_types.h"
#include "tensor/stochastic.h"
#include <stdint.h>
#include <string.h>
#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(VEXP_AVX2) || defined(VEXP_AVX512)
#include <immintrin.h>
#endif

#if defined(__aarch64__) && defined(VEXP_BF16) && defined(__clang__)
#define REG_TARGET __attribute__((target("bf16")))
#elif defined(__aarch64__) && defined(VEXP_BF16)
#define REG_TARGET __attribute__((target("arch=armv8.2-a+bf16")))
#elif defined(VEXP_AVX2)
#define REG_TARGET __attribute__((target("avx2,fma,f16c")))
#elif defined(VEXP_AVX512)
#define REG_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")))
#else
#define REG_TARGET
#endif
#define REG_FN REG_TARGET static inline __attribute__((always_inline))

/* Four lanes: available in every instruction set, and the unit of transposing blocks. */
typedef float quadf __attribute__((vector_size(16)));
typedef uint32_t quadu __attribute__((vector_size(16)));

#if defined(VEXP_AVX512)
enum { REG_LANES = 16 };
typedef float regf __attribute__((vector_size(64)));
typedef int32_t regi __attribute__((vector_size(64)));
typedef uint32_t regu __attribute__((vector_size(64)));
#elif defined(VEXP_AVX2)
enum { REG_LANES = 8 };
typedef float regf __attribute__((vector_size(32)));
typedef int32_t regi __attribute__((vector_size(32)));
typedef uint32_t regu __attribute__((vector_size(32)));
#else
enum { REG_LANES = 4 };
typedef quadf regf;
typedef int32_t regi __attribute__((vector_size(16)));
typedef quadu regu;
#endif

REG_FN regf reg_load(const float *p)
{
    regf x;
    memcpy(&x, p, sizeof x);
    return x;
}

REG_FN void reg_store(float *p, regf x) { memcpy(p, &x, sizeof x); }

REG_FN regi reg_load_i32(const int32_t *p)
{
    regi x;
    memcpy(&x, p, sizeof x);
    return x;
}

REG_FN regf reg_all(float x) { return (regf){0} + x; }

/* a b + c with one rounding. reg_max(limit, x) and reg_min(limit, x) are NaN if x is. */
#if defined(__aarch64__)
REG_FN regf reg_fma(regf a, regf b, regf c)
{
    return (regf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
REG_FN regf reg_max(regf a, regf b) { return (regf)vmaxq_f32((float32x4_t)a, (float32x4_t)b); }
REG_FN regf reg_min(regf a, regf b) { return (regf)vminq_f32((float32x4_t)a, (float32x4_t)b); }
#elif defined(VEXP_AVX512)
REG_FN regf reg_fma(regf a, regf b, regf c) { return (regf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
REG_FN regf reg_max(regf a, regf b) { return (regf)_mm512_max_ps((__m512)a, (__m512)b); }
REG_FN regf reg_min(regf a, regf b) { return (regf)_mm512_min_ps((__m512)a, (__m512)b); }
#elif defined(VEXP_AVX2)
REG_FN regf reg_fma(regf a, regf b, regf c) { return (regf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
REG_FN regf reg_max(regf a, regf b) { return (regf)_mm256_max_ps((__m256)a, (__m256)b); }
REG_FN regf reg_min(regf a, regf b) { return (regf)_mm256_min_ps((__m256)a, (__m256)b); }
#else
REG_FN regf reg_fma(regf a, regf b, regf c) { return a * b + c; }
REG_FN regf reg_max(regf a, regf b)
{
    regi first = a > b;
    return (regf)((first & (regi)a) | (~first & (regi)b));
}
REG_FN regf reg_min(regf a, regf b)
{
    regi first = a < b;
    return (regf)((first & (regi)a) | (~first & (regi)b));
}
#endif

/* 2^x for x < 128. It falls to exactly 0 at x = -127 and stays 0; 2^0 is exactly 1; NaN stays NaN.
 *
 * x = n + f with |f| <= 1/2: adding 1.5 * 2^23 rounds to the integer n, which is then in the low bits of the sum and is
 * shifted into the exponent of a polynomial for 2^f, minimax in relative error, with constant 1. */
REG_FN regf reg_split(regf x, regu *exponent)
{
    const regf magic = reg_all(0x1.8p23f);
    x = reg_max(reg_all(-127.0f), x);
    regf sum = x + magic;
    *exponent = (regu)sum << 23;
    return x - (sum - magic);
}

/* Within 1 ulp (2 without a fused multiply-add) for x >= -126. */
REG_FN regf reg_exp2(regf x)
{
    regu exponent;
    regf f = reg_split(x, &exponent), f2 = f * f;
    regf high = reg_fma(reg_all(0x1.5f3e54p-10f), f, reg_all(0x1.3b2d4cp-7f));
    regf middle = reg_fma(reg_all(0x1.c6aee8p-5f), f, reg_all(0x1.ebfbdcp-3f));
    regf low = reg_fma(reg_all(0x1.62e430p-1f), f, reg_all(1.0f));
    high = reg_fma(reg_all(0x1.41fbbcp-13f), f2, high);
    return (regf)((regu)reg_fma(reg_fma(high, f2, middle), f2, low) + exponent);
}

/* Within 3e-6 of the value: for results that will be rounded to bf16. */
REG_FN regf reg_exp2_short(regf x)
{
    regu exponent;
    regf f = reg_split(x, &exponent), f2 = f * f;
    regf high = reg_fma(reg_all(0x1.c9fc46p-5f), f, reg_all(0x1.ec0378p-3f));
    regf low = reg_fma(reg_all(0x1.62e12cp-1f), f, reg_all(1.0f));
    high = reg_fma(reg_all(0x1.3a02ccp-7f), f2, high);
    return (regf)((regu)reg_fma(high, f2, low) + exponent);
}

/* tanh x within 2 ulp: a polynomial in x^2 near 0, 1 - 2 / (1 + e^2x) elsewhere. NaN stays NaN. */
REG_FN regf reg_tanh(regf x)
{
    regu sign = (regu)x & 0x80000000u;
    regf size = (regf)((regu)x & 0x7fffffffu), square = x * x;
    regf p = reg_fma(square, reg_all(-0x1.51d878p-8f), reg_all(0x1.49826ap-6f));
    p = reg_fma(p, square, reg_all(-0x1.b6d21ep-5f));
    p = reg_fma(p, square, reg_all(0x1.10fbap-3f));
    p = reg_fma(p, square, reg_all(-0x1.5554fap-2f));
    regf near = reg_fma(p * square, x, x);
    regf power = size * reg_all(2.88539008f);
    regf far = reg_all(1) - reg_all(2) / (reg_all(1) + reg_exp2(-reg_max(reg_all(-100.0f), -power)));
    regi small = size < reg_all(0.7f);
    return (regf)((small & (regi)near) | (~small & (regi)((regu)far | sign)));
}

/* Sum of the lanes, halves folded onto each other. */
REG_FN float reg_sum(regf x)
{
    float lane[REG_LANES];
    memcpy(lane, &x, sizeof lane);
    for (int width = REG_LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lane[i] += lane[i + width];
    return lane[0];
}

REG_FN quadf quad_load(const float *p)
{
    quadf q;
    memcpy(&q, p, sizeof q);
    return q;
}

/* Four rows of four become four columns. */
REG_FN void quad_transpose(quadf *a, quadf *b, quadf *c, quadf *d)
{
    quadf ab0 = __builtin_shufflevector(*a, *b, 0, 4, 1, 5),
          ab1 = __builtin_shufflevector(*a, *b, 2, 6, 3, 7);
    quadf cd0 = __builtin_shufflevector(*c, *d, 0, 4, 1, 5),
          cd1 = __builtin_shufflevector(*c, *d, 2, 6, 3, 7);
    *a = __builtin_shufflevector(ab0, cd0, 0, 1, 4, 5);
    *b = __builtin_shufflevector(ab0, cd0, 2, 3, 6, 7);
    *c = __builtin_shufflevector(ab1, cd1, 0, 1, 4, 5);
    *d = __builtin_shufflevector(ab1, cd1, 2, 3, 6, 7);
}

/* Lanes 4i .. 4i+3. */
REG_FN quadf reg_quad(regf x, int i)
{
    quadf q;
    memcpy(&q, (const char *)&x + 16 * i, sizeof q);
    return q;
}
