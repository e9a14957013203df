/* matmul_skinny_dw.cuh - sums over rows: what matmul_skinny_dw.cu and matmul_skinny_pair.cu share. */
#pragma once

#include "device/cuda/matmul_skinny.cuh"

namespace
{

enum { WARPS = SKINNY_WARPS, THREADS = SKINNY_THREADS, COLUMNS = SKINNY_STEP, GROUP = 16 };

/* The sum over rows of x[R,wide]' s[R,narrow]. */
template <class T> struct operands {
    const T *x, *s;
    float *partial; /* [blocks of rows][narrow][wide], or [..][wide][narrow] */
    int64_t rows, wide, narrow;
    int64_t x_step, s_step; /* numbers from one row to the next */
    int64_t per;            /* rows of a block */
    bool wide_first;
    float scale; /* of s; 0: none */
};

/* Halves of a and b: {low a, low b}, {high a, high b}. */
ON_GPU uint32_t lows(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); }
ON_GPU uint32_t highs(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }

/* 16 rows. Lane 4 g + q has rows 4 q to 4 q + 3: columns 8 g to 8 g + 7 of x, columns 2 g and 2 g + 1 of every 16 of s. */
template <class T, int TILES> struct group {
    uint4 x[4];
    uint32_t s[TILES][4];

    __device__ __forceinline__ void load(const operands<T> &p, int64_t top, int64_t end, int64_t base)
    {
        const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int64_t row = top + 4 * q + i, column = base + 8 * g;
            x[i] = skinny_piece(p.x + row * p.x_step + column, row < end && column < p.wide);
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                const int c = 16 * t + 2 * g;
                const bool have = row < end && c < p.narrow;
                s[t][i] = have ? *reinterpret_cast<const uint32_t *>(p.s + row * p.s_step + c) : 0;
            }
        }
    }

    /* s as it is after rounding. */
    __device__ __forceinline__ void scale_by(float scale)
    {
        using type = typename skinny_type<T>::type;
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[t][i] = type::pack(scale * type::low(s[t][i]), scale * type::high(s[t][i]));
    }

    /* sum[t][i]: columns 16 t + 2 g, + 1 of s with columns 16 q + i, + 8 of x. */
    __device__ __forceinline__ void multiply(float (&sum)[TILES][8][4]) const
    {
        using type = typename skinny_type<T>::type;
        const uint32_t words[4][4] = {{x[0].x, x[0].y, x[0].z, x[0].w},
                                      {x[1].x, x[1].y, x[1].z, x[1].w},
                                      {x[2].x, x[2].y, x[2].z, x[2].w},
                                      {x[3].x, x[3].y, x[3].z, x[3].w}};
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const uint32_t a[4] = {lows(s[t][0], s[t][1]), highs(s[t][0], s[t][1]), lows(s[t][2], s[t][3]),
                                   highs(s[t][2], s[t][3])};
#pragma unroll
            for (int w = 0; w < 4; w++) {
                type::multiply(sum[t][2 * w], a, lows(words[0][w], words[1][w]),
                               lows(words[2][w], words[3][w]));
                type::multiply(sum[t][2 * w + 1], a, highs(words[0][w], words[1][w]),
                               highs(words[2][w], words[3][w]));
            }
        }
    }
};

template <class T, int TILES>
ON_GPU void put_partial(const operands<T> &p, const float (&sum)[TILES][8][4], float *to, int64_t base)
{
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int eight = 0; eight < 2; eight++) {
            const int64_t column = base + 16 * q + 8 * eight, c = 16 * t + 2 * g;
            if (column >= p.wide || c >= p.narrow) continue;
            if (p.wide_first) {
#pragma unroll
                for (int i = 0; i < 8; i++)
                    *reinterpret_cast<float2 *>(to + (column + i) * p.narrow + c) =
                        make_float2(sum[t][i][eight], sum[t][i][2 + eight]);
            } else {
#pragma unroll
                for (int i = 0; i < 16; i += 4) {
                    const int at = i % 8, k = i / 8 * 2 + eight;
                    *reinterpret_cast<float4 *>(to + (c + i / 8) * p.wide + column + at) =
                        make_float4(sum[t][at][k], sum[t][at + 1][k], sum[t][at + 2][k], sum[t][at + 3][k]);
                }
            }
        }
}

/* out[width] = the sum of `parts` rows of partial[.., width] (+ add), four elements to a thread. */
template <class G> struct fold_job {
    const float *partial;
    int64_t parts, width;
    const G *add;
    skinny_results<G> to;
};

template <class G> ON_GPU void fold_at(const fold_job<G> &job, int64_t block)
{
    const int64_t at = (block * THREADS + threadIdx.x) * 4;
    if (at >= job.width) return;
    float sum[4] = {}, v[4];
#pragma unroll 4
    for (int64_t i = 0; i < job.parts; i++) {
        load(job.partial + i * job.width + at, v);
#pragma unroll
        for (int k = 0; k < 4; k++) sum[k] += v[k];
    }
    if (job.add) {
        load(job.add + at, v);
#pragma unroll
        for (int k = 0; k < 4; k++) sum[k] += v[k];
    }
    skinny_put(job.to, at, sum);
}

template <class G> int64_t fold_blocks(const fold_job<G> &job) { return parts_of(job.width, 4 * THREADS); }

template <class G> fold_job<G> fold_of(const struct skinny_product *p, const float *partial, int64_t parts)
{
    return {partial, parts, p->m * p->n, (const G *)p->c, skinny_results_of<G>(p)};
}

/* Which of the operands of a sum over rows is the narrow one. */
static inline bool is_wide_first(const struct skinny_product *p) { return p->m <= SKINNY_MOST; }

/* Numbers of a row of A and of B, which are operands of a sum over rows. */
static inline int64_t a_step(const struct skinny_product *p) { return p->a_step ? p->a_step : p->m; }
static inline int64_t b_step(const struct skinny_product *p) { return p->b_step ? p->b_step : p->n; }

static inline int64_t wide_of(const struct skinny_product *p) { return is_wide_first(p) ? p->n : p->m; }

} // namespace
