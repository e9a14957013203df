/* attention_mma.cuh - tiles in shared memory and what a warp does with them on the tensor cores.
 *
 * A tile is rows of `width` 16-bit elements, the head size rounded up to 64, 96 or 128 and filled with zeros. A
 * row takes 8 elements more than it holds: an odd number of 16-byte pieces, so eight rows of a matrix lie in
 * different banks and every address is a base and a constant.
 */
#pragma once

#include "device/cuda/attention.cuh"
#include "device/cuda/attention_ptx.cuh"

enum { MMA_THREADS = 128, MMA_WARPS = 4 };

template <int width> struct tile {
    enum { PITCH = width + 8, ROW_BYTES = 2 * (width + 8), PIECES = width / 8 };
};

/* The rows of one head in global memory. */
struct head_rows {
    const uint16_t *base; /* of row 0 */
    int64_t stride;
    int size;
};

ON_GPU struct head_rows query_rows(const struct attn &a, const void *x, int b, int h)
{
    struct head_rows r = {(const uint16_t *)x + attn_query_at(a, b, 0, h), (int64_t)a.heads * a.size, a.size};
    return r;
}

ON_GPU struct head_rows key_rows(const struct attn &a, const void *x, int b, int n)
{
    struct head_rows r = {(const uint16_t *)x + attn_key_at(a, b, 0, n), (int64_t)a.kv_heads * a.size,
                          a.size};
    return r;
}

/* Starts copying rows [row, row + rows) with 128 threads; those outside [from, end) become zeros. */
template <int rows, int width>
ON_GPU void load_rows(uint32_t to, struct head_rows x, int row, int from, int end)
{
    const int pieces = tile<width>::PIECES, step = width == 64 ? 16 : 8; /* rows the threads take at once */
    const int thread = thread_again(), r = thread / pieces, p = thread % pieces;
    const uint16_t *src = x.base + (row + r) * x.stride + p * 8;
    to += r * tile<width>::ROW_BYTES + p * 16;
    from = p * 8 < x.size ? from : INT_MAX;
    if (r >= step) return;
#pragma unroll
    for (int i = 0; i < rows; i += step) {
        copy16(to + i * tile<width>::ROW_BYTES, src, row + r + i >= from && row + r + i < end);
        src += step * x.stride;
    }
}

/* Where a lane's row of the four matrices of a fragment begins. A: 16 rows by 16. B: 16 rows by 16 of a tile whose
 * rows are the columns of B. Turned: 16 by 16 of a tile whose rows are the rows of B. */
template <int width> ON_GPU uint32_t lane_a(int lane)
{
    return (lane % 16) * tile<width>::ROW_BYTES + lane / 16 * 16;
}

template <int width> ON_GPU uint32_t lane_b(int lane)
{
    return (lane % 8 + lane / 16 * 8) * tile<width>::ROW_BYTES + lane / 8 % 2 * 16;
}

template <int width> ON_GPU uint32_t lane_turned(int lane) { return lane_a<width>(lane); }

/* c[m][columns/8] += A B' over one step of 16 elements: `columns` rows of a tile, b names its lane_b. */
template <class type, int width, int high, int columns>
ON_GPU void multiply_rows(float (&c)[high][columns / 8][4], const uint32_t (&a)[high][4], uint32_t b)
{
#pragma unroll
    for (int n = 0; n < columns / 16; n++) {
        uint32_t r[4];
        load_matrices(r, b + n * 16 * tile<width>::ROW_BYTES);
#pragma unroll
        for (int m = 0; m < high; m++) {
            type::multiply(c[m][2 * n], a[m], r[0], r[1]);
            type::multiply(c[m][2 * n + 1], a[m], r[2], r[3]);
        }
    }
}

/* c[m][width/8] += A X for 16 rows X of a tile, b names its lane_turned. */
template <class type, int width, int high>
ON_GPU void multiply_turned(float (&c)[high][width / 8][4], const uint32_t (&a)[high][4], uint32_t b)
{
#pragma unroll
    for (int n = 0; n < width / 16; n++) {
        uint32_t r[4];
        load_matrices_turned(r, b + n * 32);
#pragma unroll
        for (int m = 0; m < high; m++) {
            type::multiply(c[m][2 * n], a[m], r[0], r[1]);
            type::multiply(c[m][2 * n + 1], a[m], r[2], r[3]);
        }
    }
}

/* Fragment A of columns [16 step, 16 step + 16) of values in C tiles. */
template <class type, int high, int tiles>
ON_GPU void pack_step(uint32_t (&a)[high][4], const float (&c)[high][tiles][4], int step)
{
#pragma unroll
    for (int m = 0; m < high; m++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *x = &c[m][2 * step + i / 2][i % 2 * 2];
            a[m][i] = type::pack(x[0], x[1]);
        }
    }
}

/* A warp's 16 high rows of C tiles, times by[m][half], through its rows of a tile in shared memory to global
 * memory: rows [row, end) of x. */
template <class type, int width, int high>
ON_GPU void store_rows(char *room, const float (&c)[high][width / 8][4], const float (&by)[high][2],
                       struct head_rows x, int row, int end)
{
    const int lane = threadIdx.x % 32, pieces = tile<width>::PIECES;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < high; m++) {
#pragma unroll
        for (int n = 0; n < width / 8; n++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                char *to = room + (m * 16 + half * 8 + lane / 4) * tile<width>::ROW_BYTES;
                *(uint32_t *)(to + n * 16 + lane % 4 * 4) =
                    type::pack(c[m][n][2 * half] * by[m][half], c[m][n][2 * half + 1] * by[m][half]);
            }
        }
    }
    __syncwarp();
#pragma unroll 4
    for (int i = lane; i < high * 16 * pieces; i += 32) {
        int r = i / pieces, p = i % pieces;
        if (row + r >= end || p * 8 >= x.size) continue;
        *(uint4 *)(x.base + (row + r) * x.stride + p * 8) =
            *(const uint4 *)(room + r * tile<width>::ROW_BYTES + p * 16);
    }
}

/* Picks the instance of a kernel template for the call's type and head size. */
#define MMA_KERNEL(kernel, a)                                                                                \
    ((a)->type == DT_BF16 ? ((a)->size <= 64   ? kernel<type_bf16, 64>                                       \
                             : (a)->size <= 96 ? kernel<type_bf16, 96>                                       \
                                               : kernel<type_bf16, 128>)                                     \
                          : ((a)->size <= 64   ? kernel<type_f16, 64>                                        \
                             : (a)->size <= 96 ? kernel<type_f16, 96>                                        \
                                               : kernel<type_f16, 128>))

static inline int mma_width(const struct attn *a) { return a->size <= 64 ? 64 : a->size <= 96 ? 96 : 128; }
