/* linear_f8.cu - rows of x as e4m3 numbers, and products of few such rows with a weight that is read once.
 *
 * A block of threads has a row of x: it makes it, of a norm's or a gated unit's operands too, finds its largest number and writes its
 * codes. Any number of rows is made in this way, at the rate of the memory.
 *
 * A product's block has 16 lines of W; its warps take 128 of k in turn. Lane (g, t) = (lane / 4, lane % 4) loads 16 codes of lines g and g + 8
 * and of row g of x: 4 t words of a part of 64. Every e4m3 number is exactly an fp16 number, so tensor cores multiply fp16 and add fp32; a
 * word is 16 of k for one product of theirs. The order of a sum depends on k alone. */
#include "device/cuda/linear_f8.h"
#include "device/cuda/attention_codes.cuh"
#include "device/cuda/attention_ptx.cuh"
#include "device/cuda/fp8_scale.cuh"
#include "device/cuda/overlap.cuh"
#include "device/cuda/quantised_rows.cuh"
#include <cuda_fp8.h>

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32, LINES = 16, TILE = 8, PART = 64, STEP = 2 * PART };

/* --- rows --------------------------------------------------------------------------------------------------- */

ON_GPU unsigned two_codes(float x, float y)
{
    return __nv_cvt_float2_to_fp8x2(make_float2(x, y), __NV_SATFINITE, __NV_E4M3);
}

/* The packets of a row that a thread holds: every ROW-th, and the last one instead of those behind it. */
template <class T, int ROW, int PACKETS> struct held {
    packet<T, 8> at[PACKETS];
    int count; /* of the row */

    static __device__ __forceinline__ int index(int j) { return threadIdx.x + j * ROW; }
    __device__ __forceinline__ bool has(int j) const { return index(j) < count; }
    __device__ __forceinline__ packet<T, 8> of(const T *from, int j) const
    {
        return fetch<T, 8>(from + min(index(j), count - 1) * 8);
    }
};

/* 1 / the root of a row's mean square. */
template <class T, int ROW, int PACKETS>
ON_GPU float rstd_of_held(const cuda_q_product &q, const held<T, ROW, PACKETS> &row, float *partial)
{
    float square = 0;
#pragma unroll
    for (int j = 0; j < PACKETS; j++) {
        if (!row.has(j)) continue;
        float v[8];
        unpack(row.at[j], v);
#pragma unroll
        for (int n = 0; n < 8; n++) square = fmaf(v[n], v[n], square);
    }
    return 1.0f / sqrtf(block_sum<ROW>(square, partial) / (float)q.k + q.eps);
}

/* Makes x of a norm's or a gated unit's operands. */
template <class T, int ROW, int PACKETS, few_source SOURCE>
ON_GPU void make_held(const cuda_q_product &q, held<T, ROW, PACKETS> &row, const held<T, ROW, PACKETS> &other,
                      T *to, float rstd)
{
#pragma unroll
    for (int j = 0; j < PACKETS; j++) {
        if (!row.has(j)) continue;
        float v[8];
        make8<T>(q, SOURCE, {row.at[j], other.at[j]}, rstd, to ? to + row.index(j) * 8 : NULL, v);
        row.at[j] = pack<T>(v);
    }
}

/* The largest number of the row, as bits; those of infinity, if there is one. */
template <class T, int ROW, int PACKETS>
ON_GPU unsigned largest_held(const held<T, ROW, PACKETS> &row, unsigned *slots)
{
    float most = 0;
#pragma unroll
    for (int j = 0; j < PACKETS; j++) {
        if (!row.has(j)) continue;
        float v[8];
        unpack(row.at[j], v);
#pragma unroll
        for (int n = 0; n < 8; n++) most = fmaxf(most, fabsf(v[n]));
    }
    return block_largest<ROW / 32>(__float_as_uint(most), slots);
}

/* Infinity must not become the largest number: it is none from here on. */
template <class T, int ROW, int PACKETS> ON_GPU void forget_infinities(held<T, ROW, PACKETS> &row)
{
#pragma unroll
    for (int j = 0; j < PACKETS; j++) {
        float v[8];
        unpack(row.at[j], v);
#pragma unroll
        for (int n = 0; n < 8; n++) v[n] = isinf(v[n]) ? NAN : v[n];
        row.at[j] = pack<T>(v);
    }
}

/* All of a row is under way at once, and stays in registers until its scale is known. */
template <class T, int ROW, int PACKETS, few_source SOURCE>
__global__ void __launch_bounds__(ROW, (PACKETS > 2 || sizeof(T) > 2 ? 1024 : 1536) / ROW)
    round_rows(const cuda_q_product q, unsigned char *codes, float *scales)
{
    __shared__ float partial[ROW / 32];
    __shared__ unsigned slots[2][ROW / 32];
    const int64_t at = blockIdx.x * q.k;
    const T *a = (const T *)(SOURCE == FEW_PLAIN ? q.x : q.a) + at;
    const T *b = (const T *)q.b + (SOURCE == FEW_GLU ? at : 0);
    held<T, ROW, PACKETS> row, other;
    row.count = other.count = (int)(q.k / 8);
    next_may_begin();
    await_previous();
#pragma unroll
    for (int j = 0; j < PACKETS; j++) {
        row.at[j] = row.of(a, j);
        if (SOURCE != FEW_PLAIN) other.at[j] = other.of(b, j);
    }
    if constexpr (SOURCE == FEW_NORM) {
        const float rstd = rstd_of_held(q, row, partial);
        if (q.stat && threadIdx.x == 0) q.stat[blockIdx.x] = rstd;
        make_held<T, ROW, PACKETS, SOURCE>(q, row, other, q.x ? (T *)q.x + at : NULL, rstd);
    } else if constexpr (SOURCE == FEW_GLU) {
        make_held<T, ROW, PACKETS, SOURCE>(q, row, other, NULL, 0);
    }
    unsigned most = largest_held(row, slots[0]);
    if (most >= 0x7f800000u) { /* of every thread, and rare */
        forget_infinities(row);
        most = largest_held(row, slots[1]);
    }
    const int e = exponent_for(most, TOP_E4M3);
    const float factor = power_of_two(e);
    if (threadIdx.x == 0) scales[blockIdx.x] = power_of_two(-e);
#pragma unroll
    for (int j = 0; j < PACKETS; j++) {
        if (!row.has(j)) continue;
        float v[8];
        unsigned two[4];
        unpack(row.at[j], v);
#pragma unroll
        for (int n = 0; n < 4; n++) two[n] = two_codes(v[2 * n] * factor, v[2 * n + 1] * factor);
        *reinterpret_cast<uint2 *>(codes + at + row.index(j) * 8) =
            make_uint2(two[0] | two[1] << 16, two[2] | two[3] << 16);
    }
}

/* --- few rows ------------------------------------------------------------------------------------------------ */

struct few_call {
    cuda_q_product q;
    int begin[CUDA_Q_PARTS + 1]; /* blocks of threads before each part */
    const unsigned char *codes;
    const float *scales;
};

/* 16 codes of a weight, which no kernel writes meanwhile. Volatile: it stays before await_previous. */
ON_GPU uint4 fetch_codes(const unsigned char *from)
{
    uint4 x;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from));
    return x;
}

/* Four codes as two pairs of fp16. */
struct two_pairs {
    uint32_t low, high;
};

/* Numbers of W: none is NaN. */
ON_GPU two_pairs widen(uint32_t codes) { return {codes_e4m3::pair(codes), codes_e4m3::pair(codes >> 16)}; }

ON_GPU two_pairs widen_x(uint32_t codes)
{
#if __CUDA_ARCH__ >= 890
    return widen(codes);
#else
    const __half2_raw a = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)codes, __NV_E4M3),
                      b = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(codes >> 16), __NV_E4M3);
    return {a.x | (uint32_t)a.y << 16, b.x | (uint32_t)b.y << 16};
#endif
}

ON_GPU uint32_t word_of(const uint4 &v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

template <int TILES>
ON_GPU void multiply_part(float (&c)[TILES][4], const uint4 (&w)[2], const uint4 (&x)[TILES])
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const two_pairs upper = widen(word_of(w[0], j)), lower = widen(word_of(w[1], j));
        const uint32_t a[4] = {upper.low, lower.low, upper.high, lower.high};
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            const two_pairs b = widen_x(word_of(x[n], j));
            type_f16::multiply(c[n], a, b.low, b.high);
        }
    }
}

/* WHOLE: all of k's steps are. */
template <bool WHOLE>
ON_GPU void load_weights(uint4 (&w)[2][2], const unsigned char *const (&row)[2], int64_t k, int64_t end)
{
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            w[i][half] =
                WHOLE || k + i * PART < end ? fetch_codes(row[half] + k + i * PART) : make_uint4(0, 0, 0, 0);
}

template <class T> ON_GPU float addend(const void *from, int64_t i)
{
    float v[1] = {0};
    if (from) load<1>((const T *)from + i, v);
    return v[0];
}

/* Rows behind the last are the last once more, and written by nobody. */
template <class T, bool WHOLE, int TILES>
__global__ void __launch_bounds__(THREADS, 2) by_tile(const few_call f)
{
    constexpr int STRIDE = WARPS * STEP, ROWS = TILES * TILE,
                  DEPTH = TILES == 1 ? 4 : 2; /* steps under way */
    __shared__ float sums[WARPS][ROWS][LINES + 1];
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    int n = 0;
    while (n + 1 < f.q.parts && (int)blockIdx.x >= f.begin[n + 1]) n++;
    const cuda_q_part &part = f.q.part[n];
    const int64_t first = (int64_t)((int)blockIdx.x - f.begin[n]) * LINES, k_all = f.q.k;
    const unsigned char *const row[2] = {part.w + (first + g) * k_all + t * 16,
                                         part.w + (first + g + 8) * k_all + t * 16};
    const unsigned char *x_row[TILES];
#pragma unroll
    for (int i = 0; i < TILES; i++)
        x_row[i] = f.codes + min((int64_t)(i * TILE + g), f.q.rows - 1) * k_all + t * 16;
    const int64_t end = k_all - t * 16;
    uint4 w[DEPTH][2][2], x[DEPTH][2][TILES];
    float c[2][TILES][4] = {}; /* of a step's parts */
    int64_t k = warp * STEP;
    next_may_begin();
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
        if (k + d * STRIDE < k_all) load_weights<WHOLE>(w[d], row, k + d * STRIDE, end);
    await_previous();
    for (; k < k_all; k += DEPTH * STRIDE) {
#pragma unroll
        for (int n = 0; n < DEPTH * 2 * TILES; n++) {
            const int d = n / (2 * TILES), i = n / TILES % 2;
            const int64_t at = k + d * STRIDE + i * PART;
            x[d][i][n % TILES] =
                at < end ? *reinterpret_cast<const uint4 *>(x_row[n % TILES] + at) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const int64_t at = k + d * STRIDE, next = at + DEPTH * STRIDE;
            if (at >= k_all) continue;
            multiply_part<TILES>(c[0], w[d][0], x[d][0]);
            multiply_part<TILES>(c[1], w[d][1], x[d][1]);
            if (next < k_all) load_weights<WHOLE>(w[d], row, next, end);
        }
    }
#pragma unroll
    for (int i = 0; i < TILES * 4; i++)
        sums[warp][i / 4 * TILE + 2 * t + i % 2][g + i % 4 / 2 * 8] = c[0][i / 4][i % 4] + c[1][i / 4][i % 4];
    __syncthreads();
    for (int i = threadIdx.x; i < (int)f.q.rows * LINES; i += THREADS) {
        const int r = i / LINES, line = i % LINES;
        const int64_t column = first + line, at = r * part.m + column;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < WARPS; j++) sum += sums[j][r][line];
        const float by = reinterpret_cast<const float *>(part.w + part.m * k_all)[column];
        float v[1] = {sum * f.scales[r] * by + addend<T>(part.bias, column) + addend<T>(part.add, at)};
        save<1>((T *)part.y + at, v);
    }
}

/* --- many rows ------------------------------------------------------------------------------------------------ */

/* A block of threads has a row. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    finish_sums(const cuda_q_part part, const float *by, const float *sums, const float *scales,
                int64_t first, int64_t lines)
{
    const int64_t r = blockIdx.x;
    for (int64_t i = threadIdx.x; i < lines; i += THREADS) {
        const int64_t column = first + i, at = r * part.m + column;
        float v[1] = {sums[r * lines + i] * scales[r] * by[column] + addend<T>(part.bias, column) +
                      addend<T>(part.add, at)};
        save<1>((T *)part.y + at, v);
    }
}

template <class T, few_source SOURCE>
static int start_rounding(const struct cuda_queue *queue, const struct cuda_q_product &q,
                          unsigned char *codes, float *scales)
{
    auto go = [&](auto kernel, int threads) {
        return launch(queue, kernel, q.rows, threads, 0, q, codes, scales);
    };
    if (q.k <= 4096) return go(round_rows<T, 256, 2, SOURCE>, 256);
    if (q.k <= 8192) return go(round_rows<T, 256, 4, SOURCE>, 256);
    if (q.k <= 16384) return go(round_rows<T, 512, 4, SOURCE>, 512);
    if (q.k <= 32768) return go(round_rows<T, 1024, 4, SOURCE>, 1024);
    return q.k <= 65536 ? go(round_rows<T, 1024, 8, SOURCE>, 1024) : (int)cudaErrorInvalidValue;
}

template <class T, int TILES>
static int run_few(const struct cuda_queue *queue, const few_call &f, int blocks)
{
    return launch(queue, f.q.k % STEP ? by_tile<T, false, TILES> : by_tile<T, true, TILES>, blocks, THREADS,
                  0, f);
}

} // namespace

extern "C" int cuda_f8_round(const struct cuda_queue *queue, const struct cuda_q_product *q,
                             unsigned char *codes, float *scales)
{
    return with_type(q->type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        if constexpr (sizeof(T) == 2) {
            if (q->source == FEW_NORM) return start_rounding<T, FEW_NORM>(queue, *q, codes, scales);
            if (q->source == FEW_GLU) return start_rounding<T, FEW_GLU>(queue, *q, codes, scales);
        }
        return start_rounding<T, FEW_PLAIN>(queue, *q, codes, scales);
    });
}

extern "C" int cuda_f8_few(const struct cuda_queue *queue, const struct cuda_q_product *q,
                           const unsigned char *codes, const float *scales)
{
    few_call f = {*q, {}, codes, scales};
    for (int i = 0; i < q->parts; i++) f.begin[i + 1] = f.begin[i] + (int)(q->part[i].m / LINES);
    const int blocks = f.begin[q->parts];
    return with_type(q->type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        return q->rows <= TILE ? run_few<T, 1>(queue, f, blocks) : run_few<T, 2>(queue, f, blocks);
    });
}

extern "C" int cuda_f8_finish(const struct cuda_queue *queue, const struct cuda_q_product *q,
                              const struct cuda_q_part *part, const float *sums, const float *scales,
                              int64_t first, int64_t lines)
{
    return with_type(q->type, [&](auto tag) {
        return start(queue, finish_sums<typename decltype(tag)::type>, (unsigned)q->rows, THREADS, 0, *part,
                     cuda_f8_scales(part, q->k), sums, scales, first, lines);
    });
}
