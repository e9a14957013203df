/* attention_plain.cuh - tiles of floats in shared memory and products of their rows, for attention_plain*.cu.
 *
 * 128 threads; thread (r, c) = (thread / 8, thread % 8) has rows r + 16 i and columns c + 8 j of a product of two
 * tiles, so the eight threads of a row are neighbours in one warp. Elements of every type become f32 on the way
 * in. A row takes an odd number of 16-byte pieces, the last one filled with zeros.
 */
#pragma once

#include "device/cuda/attention.cuh"
#include "device/cuda/attention_ptx.cuh"
#include "tape/bias_bucket.h"

enum {
    PLAIN_THREADS = 128,
    PLAIN_WIDE = 128
}; /* head sizes above PLAIN_WIDE have tiles of 16 rows, others 32 */

/* ROWS, COLUMNS: of a product, per thread. QUADS: pieces of four elements of its rows of a result, per thread. */
template <int tile> struct plain {
    enum { ROWS = tile / 16, COLUMNS = tile / 8, QUADS = tile == 32 ? 4 : 8, PITCH = tile + 1 };
};

static __host__ __device__ __forceinline__ int plain_pitch(int size) { return ((size + 3) / 4 | 1) * 4; }

ON_GPU float plain_element(const struct attn &a, const void *x, int64_t i)
{
    if (a.type == DT_F32) return ((const float *)x)[i];
    uint32_t bits = ((const uint16_t *)x)[i];
    return a.type == DT_BF16 ? type_bf16::low(bits) : type_f16::low(bits);
}

ON_GPU void plain_put(const struct attn &a, void *x, int64_t i, float value)
{
    if (a.type == DT_F32)
        ((float *)x)[i] = value;
    else
        ((uint16_t *)x)[i] =
            (uint16_t)(a.type == DT_BF16 ? type_bf16::pack(value, 0) : type_f16::pack(value, 0));
}

/* bias_bucket on the GPU; offset: key - query. */
ON_GPU int plain_bucket(const struct bias_buckets &b, int offset)
{
    int distance = offset < 0 ? -offset : b.two_sided ? offset : 0, bucket = 0;
    while (bucket + 1 < b.side && b.begins[bucket + 1] <= distance) bucket++;
    return bucket + (b.two_sided && offset > 0 ? b.side : 0);
}

/* Keys that no query of a tile sees because of holes; the lanes of a warp have the tile's queries. Empty where x > y. */
ON_GPU int2 plain_hidden(const struct attn &a, int b, int t)
{
    int2 hole = attn_hole(a, b, t);
    if (a.mask != MASK_BLOCKS) return hole;
    bool none = hole.x > hole.y;
    return make_int2(__reduce_max_sync(0xffffffffu, none ? INT_MAX : hole.x),
                     __reduce_min_sync(0xffffffffu, none ? -1 : hole.y));
}

/* Rows [row, row + tile) of a head, zeros outside [from, end). */
template <int tile>
static __device__ void plain_load(const struct attn &a, float *to, const void *x, int64_t base,
                                  int64_t stride, int row, int from, int end)
{
    const int pitch = plain_pitch(a.size), quads = (a.size + 3) / 4;
    for (int i = threadIdx.x; i < tile * quads; i += PLAIN_THREADS) {
        int r = i / quads, column = i % quads * 4;
        bool have = row + r >= from && row + r < end;
        int64_t at = base + (row + r) * stride + column;
        float4 v = make_float4(0, 0, 0, 0);
        if (have && a.type == DT_F32 && a.size % 4 == 0) {
            v = *(const float4 *)((const float *)x + at);
        } else if (have) {
            v.x = plain_element(a, x, at);
            if (column + 1 < a.size) v.y = plain_element(a, x, at + 1);
            if (column + 2 < a.size) v.z = plain_element(a, x, at + 2);
            if (column + 3 < a.size) v.w = plain_element(a, x, at + 3);
        }
        *(float4 *)(to + r * pitch + column) = v;
    }
}

/* Products of this thread's rows of x and columns (rows of y). */
template <int tile>
ON_GPU void plain_products(const struct attn &a, const float *x, const float *y,
                           float (&s)[plain<tile>::ROWS][plain<tile>::COLUMNS])
{
    const int pitch = plain_pitch(a.size), r = threadIdx.x / 8, c = threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < plain<tile>::ROWS; i++)
#pragma unroll
        for (int j = 0; j < plain<tile>::COLUMNS; j++) s[i][j] = 0;
    for (int column = 0; column < a.size; column += 4) {
        float4 u[plain<tile>::ROWS];
#pragma unroll
        for (int i = 0; i < plain<tile>::ROWS; i++)
            u[i] = *(const float4 *)(x + (r + 16 * i) * pitch + column);
#pragma unroll
        for (int j = 0; j < plain<tile>::COLUMNS; j++) {
            float4 v = *(const float4 *)(y + (c + 8 * j) * pitch + column);
#pragma unroll
            for (int i = 0; i < plain<tile>::ROWS; i++)
                s[i][j] = fmaf(u[i].x, v.x, fmaf(u[i].y, v.y, fmaf(u[i].z, v.z, fmaf(u[i].w, v.w, s[i][j]))));
        }
    }
}

/* A thread's part of result rows: rows r + 16 i, elements 4 c + 32 j .. + 3. */
template <int tile> struct plain_rows {
    float4 x[plain<tile>::ROWS][plain<tile>::QUADS];
};

template <int tile> ON_GPU void plain_clear(struct plain_rows<tile> &o)
{
#pragma unroll
    for (int i = 0; i < plain<tile>::ROWS; i++)
#pragma unroll
        for (int j = 0; j < plain<tile>::QUADS; j++) o.x[i][j] = make_float4(0, 0, 0, 0);
}

/* Rows of o += rows of w [tile][PITCH] times the tile y. Each row of w was written by threads of this warp. */
template <int tile>
ON_GPU void plain_collect(const struct attn &a, struct plain_rows<tile> &o, const float *w, const float *y)
{
    const int pitch = plain_pitch(a.size), r = threadIdx.x / 8, c = threadIdx.x % 8 * 4;
    for (int k = 0; k < tile; k++) {
#pragma unroll
        for (int j = 0; j < plain<tile>::QUADS; j++) {
            if (c + 32 * j >= a.size) continue;
            float4 v = *(const float4 *)(y + k * pitch + c + 32 * j);
#pragma unroll
            for (int i = 0; i < plain<tile>::ROWS; i++) {
                float by = w[(r + 16 * i) * plain<tile>::PITCH + k];
                float4 *x = &o.x[i][j];
                x->x = fmaf(by, v.x, x->x), x->y = fmaf(by, v.y, x->y);
                x->z = fmaf(by, v.z, x->z), x->w = fmaf(by, v.w, x->w);
            }
        }
    }
}

/* Rows of o times by[i] to rows [row, end) of a head. */
template <int tile>
ON_GPU void plain_store(const struct attn &a, const struct plain_rows<tile> &o,
                        const float (&by)[plain<tile>::ROWS], void *to, int64_t base, int64_t stride, int row,
                        int end)
{
    const int r = threadIdx.x / 8, c = threadIdx.x % 8 * 4;
#pragma unroll
    for (int i = 0; i < plain<tile>::ROWS; i++) {
        if (row + r + 16 * i >= end) continue;
#pragma unroll
        for (int j = 0; j < plain<tile>::QUADS; j++) {
            const float v[4] = {o.x[i][j].x, o.x[i][j].y, o.x[i][j].z, o.x[i][j].w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int column = c + 32 * j + e;
                if (column < a.size)
                    plain_put(a, to, base + (row + r + 16 * i) * stride + column, v[e] * by[i]);
            }
        }
    }
}
