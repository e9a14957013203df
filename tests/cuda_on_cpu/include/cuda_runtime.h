/* cuda_runtime.h - CUDA's words for C++ on the CPU: what src/device/cuda uses of them, and no more (README.md).
 *
 * Launching and everything that threads of a block do together is in block.h, machine instructions are in ptx.h. */
#pragma once

#include "cuda_runtime_api.h"

#include <limits.h>
#include <math.h>
#include <string.h>
extern "C" {
#include "tensor/dtype.h"
}

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

/* --- vectors --------------------------------------------------------------------------------------------- */

struct uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct uint3 {
    unsigned x, y, z;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

/* --- numbers --------------------------------------------------------------------------------------------- */

template <class To, class From> static inline To cuda_cpu_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "the same bytes");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

static inline float __uint_as_float(unsigned x) { return cuda_cpu_bits<float>(x); }
static inline float __int_as_float(int x) { return cuda_cpu_bits<float>(x); }
static inline unsigned __float_as_uint(float x) { return cuda_cpu_bits<unsigned>(x); }
static inline int __float_as_int(float x) { return cuda_cpu_bits<int>(x); }
static inline double __hiloint2double(int high, int low)
{
    return cuda_cpu_bits<double>((uint64_t)(unsigned)high << 32 | (unsigned)low);
}

static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1 / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fdividef(float a, float b) { return a / b; }
#define __expf(a) expf(a) /* a name of the C library, too */
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double rsqrt(double a) { return 1 / sqrt(a); }
static inline void sincospi(double a, double *s, double *c)
{
    double turns = a - 2 * rint(a / 2); /* exact */
    *s = sin(M_PI * turns), *c = cos(M_PI * turns);
}
static inline float rsqrtf(float a) { return (float)(1 / sqrt((double)a)); }

/* To nearest, ties to even; what is too large is the largest, and NaN is 0. */
static inline int __float2int_rn(float x)
{
    if (isnan(x)) return 0;
    return x >= 0x1p31f ? INT_MAX : x < -0x1p31f ? INT_MIN : (int)rintf(x);
}

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }

/* Four of the eight bytes of high:low, each named by four bits. */
static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned which)
{
    const uint64_t all = (uint64_t)high << 32 | low;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        unsigned byte = (unsigned)(all >> ((which >> 4 * i & 7) * 8)) & 0xff;
        if (which >> 4 * i & 8) byte = byte & 0x80 ? 0xff : 0; /* its sign, eight times */
        out |= byte << 8 * i;
    }
    return out;
}

static inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 4; i++) c += (int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
    return c;
}

#define CUDA_CPU_LEAST_MOST(T)                                                                               \
    static inline T min(T a, T b) { return b < a ? b : a; }                                                  \
    static inline T max(T a, T b) { return a < b ? b : a; }
CUDA_CPU_LEAST_MOST(int)
CUDA_CPU_LEAST_MOST(unsigned)
CUDA_CPU_LEAST_MOST(long)
CUDA_CPU_LEAST_MOST(unsigned long)
CUDA_CPU_LEAST_MOST(long long)
#undef CUDA_CPU_LEAST_MOST
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }

#include "block.h"
#include "ptx.h"
