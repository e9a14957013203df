/* vec.cuh - what all kernels of the CUDA backend share: packets of elements, sums over threads, launching.
 *
 * A packet is N elements of type T as they lie in memory, moved by 16-byte accesses; arithmetic sees floats:
 *
 *     packet<T, N> x = fetch<T, N>(in + i * N);      // address a multiple of the packet's size
 *     float v[N];
 *     unpack(x, v);
 *     ...
 *     store(out + i * N, pack<T>(v));                // rounded to nearest, ties to even
 *
 * Kernels are written for any N. N == lanes<T> is the fast one; N == 1 does the same work element by element
 * and serves rows that do not begin at a multiple of 16 bytes. Everything is inlined; nothing here allocates.
 */
#pragma once

extern "C" {
#include "device/cuda/kernels.h"
}
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <float.h>
#include <math.h>

using bf16 = __nv_bfloat16;
using f16 = __half;

/* Elements in 16 bytes. */
template <class T> constexpr int lanes = 16 / (int)sizeof(T);

/* --- packets --------------------------------------------------------------------------------------------- */

template <class T, int N> struct packet {
    static constexpr int bytes = N * (int)sizeof(T), words = bytes < 4 ? 1 : bytes / 4;
    static_assert(bytes < 4 || bytes % 4 == 0, "whole words");
    unsigned w[words];
};

template <class T, int N> ON_GPU packet<T, N> fetch(const T *from)
{
    using P = packet<T, N>;
    P x;
    if constexpr (P::bytes % 16 == 0) {
#pragma unroll
        for (int i = 0; i < P::bytes / 16; i++) {
            uint4 q = reinterpret_cast<const uint4 *>(from)[i];
            x.w[4 * i] = q.x, x.w[4 * i + 1] = q.y, x.w[4 * i + 2] = q.z, x.w[4 * i + 3] = q.w;
        }
    } else if constexpr (P::bytes % 8 == 0) {
#pragma unroll
        for (int i = 0; i < P::bytes / 8; i++) {
            uint2 q = reinterpret_cast<const uint2 *>(from)[i];
            x.w[2 * i] = q.x, x.w[2 * i + 1] = q.y;
        }
    } else if constexpr (P::bytes == 4) {
        x.w[0] = *reinterpret_cast<const unsigned *>(from);
    } else if constexpr (P::bytes == 2) {
        x.w[0] = *reinterpret_cast<const unsigned short *>(from);
    } else {
        x.w[0] = *reinterpret_cast<const unsigned char *>(from);
    }
    return x;
}

template <class T, int N> ON_GPU void store(T *to, const packet<T, N> &x)
{
    using P = packet<T, N>;
    if constexpr (P::bytes % 16 == 0) {
#pragma unroll
        for (int i = 0; i < P::bytes / 16; i++)
            reinterpret_cast<uint4 *>(to)[i] =
                make_uint4(x.w[4 * i], x.w[4 * i + 1], x.w[4 * i + 2], x.w[4 * i + 3]);
    } else if constexpr (P::bytes % 8 == 0) {
#pragma unroll
        for (int i = 0; i < P::bytes / 8; i++)
            reinterpret_cast<uint2 *>(to)[i] = make_uint2(x.w[2 * i], x.w[2 * i + 1]);
    } else if constexpr (P::bytes == 4) {
        *reinterpret_cast<unsigned *>(to) = x.w[0];
    } else if constexpr (P::bytes == 2) {
        *reinterpret_cast<unsigned short *>(to) = (unsigned short)x.w[0];
    } else {
        *reinterpret_cast<unsigned char *>(to) = (unsigned char)x.w[0];
    }
}

template <class T, int N> ON_GPU packet<T, N> zeros()
{
    packet<T, N> x;
#pragma unroll
    for (int i = 0; i < packet<T, N>::words; i++) x.w[i] = 0;
    return x;
}

/* The two halves of a word, and a word of two. */
template <class T> struct halves;

template <> struct halves<bf16> {
    ON_GPU float low(unsigned w) { return __uint_as_float(w << 16); }
    ON_GPU float high(unsigned w) { return __uint_as_float(w & 0xffff0000u); }
    ON_GPU unsigned pair(float a, float b)
    {
        __nv_bfloat162 p = __floats2bfloat162_rn(a, b);
        return *reinterpret_cast<unsigned *>(&p);
    }
};

template <> struct halves<f16> {
    ON_GPU float low(unsigned w) { return __half2float(__ushort_as_half((unsigned short)(w & 0xffffu))); }
    ON_GPU float high(unsigned w) { return __half2float(__ushort_as_half((unsigned short)(w >> 16))); }
    ON_GPU unsigned pair(float a, float b)
    {
        __half2 p = __floats2half2_rn(a, b);
        return *reinterpret_cast<unsigned *>(&p);
    }
};

template <class T, int N> ON_GPU void unpack(const packet<T, N> &x, float (&v)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        if constexpr (sizeof(T) == 4)
            v[i] = __uint_as_float(x.w[i]);
        else
            v[i] = i % 2 ? halves<T>::high(x.w[i / 2]) : halves<T>::low(x.w[i / 2]);
    }
}

template <class T, int N> ON_GPU packet<T, N> pack(const float (&v)[N])
{
    packet<T, N> x;
#pragma unroll
    for (int i = 0; i < packet<T, N>::words; i++) {
        if constexpr (sizeof(T) == 4)
            x.w[i] = __float_as_uint(v[i]);
        else
            x.w[i] = halves<T>::pair(v[2 * i], N == 1 ? 0.0f : v[(2 * i + 1) % N]);
    }
    return x;
}

template <int N, class T> ON_GPU void load(const T *from, float (&v)[N]) { unpack(fetch<T, N>(from), v); }

template <int N, class T> ON_GPU void save(T *to, const float (&v)[N]) { store(to, pack<T>(v)); }

/* One element. */
template <class T> ON_GPU float number(const T *at)
{
    float v[1];
    load(at, v);
    return v[0];
}

template <class T> ON_GPU void put_number(T *to, float x)
{
    const float v[1] = {x};
    save(to, v);
}

/* --- functions as exact as the type can show ------------------------------------------------------------- */

template <class T> ON_GPU float exp_for(float x)
{
    if constexpr (sizeof(T) == 4)
        return expf(x);
    else
        return __expf(x);
}

template <class T> ON_GPU float divide_for(float a, float b)
{
    if constexpr (sizeof(T) == 4)
        return a / b;
    else
        return __fdividef(a, b);
}

/* --- sums over threads: every thread gets the same bits -------------------------------------------------- */

template <class R> ON_GPU R warp_sum(R v)
{
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) v += __shfl_xor_sync(0xffffffffu, v, mask);
    return v;
}

ON_GPU float warp_top(float v)
{
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, mask));
    return v;
}

/* Sum over a block of THREADS; `slots` is shared, THREADS / 32 long and free again after another barrier. */
template <int THREADS, class R> ON_GPU R block_sum(R v, R *slots)
{
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = v;
    __syncthreads();
    R all = 0;
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) all += slots[i];
    return all;
}

/* --- indices --------------------------------------------------------------------------------------------- */

/* i = quotient * by + rest; 64-bit division is slow and rarely needed. */
ON_GPU int64_t divide(int64_t i, int64_t by, int64_t *rest)
{
    if (((uint64_t)i | (uint64_t)by) >> 32 == 0) {
        unsigned q = (unsigned)i / (unsigned)by;
        *rest = (unsigned)i - q * (unsigned)by;
        return q;
    }
    int64_t q = i / by;
    *rest = i - q * by;
    return q;
}

/* --- launching ------------------------------------------------------------------------------------------- */

static inline int64_t parts_of(int64_t n, int64_t part) { return (n + part - 1) / part; }

static inline int64_t fewest(int64_t a, int64_t b) { return a < b ? a : b; }

/* Null pointers are aligned: absent operands need no question. */
template <class... P> static inline bool aligned(P... pointers)
{
    return (((uintptr_t)pointers | ...) & 15) == 0;
}

static inline cudaStream_t stream_of(const struct cuda_queue *queue) { return queue->stream; }

static inline int launched(void) { return (int)cudaGetLastError(); }

/* For kernels that do not wait for the one before them; overlap.cuh has launch() for those that do. */
template <class... P, class... A>
static inline int start(const struct cuda_queue *queue, void (*kernel)(P...), dim3 blocks, dim3 threads,
                        size_t shared, A... args)
{
    kernel<<<blocks, threads, shared, stream_of(queue)>>>(P(args)...);
    return launched();
}

template <class T> struct type_tag {
    using type = T;
};

/* f(type_tag<T>) for the T of a floating dtype. */
template <class F> static inline int with_type(enum dtype type, F f)
{
    switch (type) {
    case DT_F32:
        return f(type_tag<float>());
    case DT_BF16:
        return f(type_tag<bf16>());
    case DT_F16:
        return f(type_tag<f16>());
    default:
        return (int)cudaErrorInvalidValue;
    }
}

/* Defines cuda_<name>(queue, call) as run<T>(queue, call) for the T of an operand, call_in(call, ...) or call_out(call, ...). */
#define CUDA_BY_TYPE(name, operand, run)                                                                     \
    int cuda_##name(const struct cuda_queue *queue, const struct kernel_call *call)                          \
    {                                                                                                        \
        return with_type((operand)->type,                                                                    \
                         [&](auto t) { return run<typename decltype(t)::type>(queue, call); });              \
    }

/* f(type_tag<T>, type_tag<G>): G, the type of parameters' gradients, is T or f32. */
template <class F> static inline int with_types(enum dtype type, enum dtype grad, F f)
{
    return with_type(type, [&](auto t) {
        if (grad == type) return f(t, t);
        return grad == DT_F32 ? f(t, type_tag<float>()) : (int)cudaErrorInvalidValue;
    });
}

/* column_sum.cu: out[i][width] (+)= the sum of rows [i * rows, (i + 1) * rows) of partial[.., width], in a fixed
 * order, for one or two outputs (out1 NULL: one). */
extern "C" int cuda_fold_rows(const struct cuda_queue *queue, const float *partial, int64_t rows,
                              int64_t width, void *out0, void *out1, enum dtype type, bool accumulate);
