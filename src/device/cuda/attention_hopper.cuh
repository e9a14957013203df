/* attention_hopper.cuh - tiles for the warpgroup kernels: loading, fragments of owned rows, the two products. */
#pragma once

#include "device/cuda/attention_mma.cuh"
#include "device/cuda/attention_wgmma.cuh"

enum { WG_ROWS = 64, WG_THREADS = 128, WG_STREAM = 64, WG_ALIGN = 1024 };

/* A tile of 64 streaming rows. */
template <int width> struct wg_tile {
    enum { BLOCK = WG_STREAM * 128, BYTES = width / 64 * BLOCK, PIECES = width / 8 };
};

/* Copies blocks of 64 rows of two tensors of one shape, one after the other, with the first `threads` threads, 128
 * or 256. A thread keeps the address of its piece of the first row it copies. */
template <int width, int threads> struct wg_loader {
    enum { STEP = threads / wg_tile<width>::PIECES }; /* rows at once: a multiple of 8 */
    const uint16_t *x;                                /* of the first tensor */
    uint32_t to;                                      /* in a tile */
    int row;

    __device__ __forceinline__ void start(struct head_rows first, int at)
    {
        const int r = threadIdx.x / wg_tile<width>::PIECES, p = threadIdx.x % wg_tile<width>::PIECES;
        x = first.base + (at + r) * first.stride + p * 8;
        to = p / 8 * wg_tile<width>::BLOCK + r * 128 + ((p % 8) ^ (r % 8)) * 16;
        row = p * 8 < first.size ? at + r : 1 << 30;
    }
    __device__ __forceinline__ void advance(int64_t elements, int rows) { x += elements, row += rows; }

    /* Starts copying; rows outside [from, end) become zeros. second: bytes from the first tensor to the other. */
    __device__ __forceinline__ void load(uint32_t stage, int64_t second, int64_t stride, int from,
                                         int end) const
    {
        if (threadIdx.x >= threads) return;
#pragma unroll
        for (int i = 0; i < WG_STREAM; i += STEP) {
            const char *src = (const char *)(x + i * stride);
            const bool have = row + i >= from && row + i < end;
            copy16(stage + to + i * 128, src, have);
            copy16(stage + to + i * 128 + wg_tile<width>::BYTES, src + second, have);
        }
    }
};

/* Fragments of rows from `row` on of this warp's 16, straight from global memory; zeros from `end` on. */
template <int width>
ON_GPU void wg_fragments(uint32_t (&f)[width / 16][4], struct head_rows x, int row, int end)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < width / 16; step++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = row + lane / 4 + i % 2 * 8, column = step * 16 + lane % 4 * 2 + i / 2 * 8;
            f[step][i] = r < end && column < x.size ? *(const uint32_t *)(x.base + r * x.stride + column) : 0;
        }
    }
}

/* s[64][64] = F X' for the tile X. */
template <class type, int width>
ON_GPU void wg_scores(float (&s)[1][WG_STREAM / 8][4], const uint32_t (&f)[width / 16][4], uint32_t x)
{
#pragma unroll
    for (int step = 0; step < width / 16; step++)
        wgmma<type>::rows(s[0], f[step], wgmma_tile(x + step / 4 * wg_tile<width>::BLOCK + step % 4 * 32),
                          step > 0);
}

/* wg_scores with F in a tile of shared memory. */
template <class type, int width>
ON_GPU void wg_scores(float (&s)[1][WG_STREAM / 8][4], uint32_t f, uint32_t x)
{
#pragma unroll
    for (int step = 0; step < width / 16; step++) {
        const int at = step / 4 * wg_tile<width>::BLOCK + step % 4 * 32;
        wgmma<type>::rows(s[0], wgmma_tile(f + at), wgmma_tile(x + at), step > 0);
    }
}

/* out[64][width] += P X for the tile X; p: fragments over its 64 rows. */
template <class type, int width>
ON_GPU void wg_collect(float (&out)[1][width / 8][4], const uint32_t (&p)[WG_STREAM / 16][4], uint32_t x)
{
#pragma unroll
    for (int step = 0; step < WG_STREAM / 16; step++)
#pragma unroll
        for (int block = 0; block < width / 64; block++)
            wgmma<type>::turned(&out[0][block * 8], p[step],
                                wgmma_tile(x + block * wg_tile<width>::BLOCK + step * 2048), true);
}

/* Values in C tiles become fragments. */
template <class type>
ON_GPU void wg_pack(uint32_t (&p)[WG_STREAM / 16][4], const float (&s)[1][WG_STREAM / 8][4])
{
#pragma unroll
    for (int step = 0; step < WG_STREAM / 16; step++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *x = &s[0][2 * step + i / 2][i % 2 * 2];
            p[step][i] = type::pack(x[0], x[1]);
        }
}

/* The beginning of shared memory, where tiles may begin. */
ON_GPU char *wg_pool(void)
{
    char *pool = shared_pool();
    return pool + (WG_ALIGN - shared_address(pool) % WG_ALIGN) % WG_ALIGN;
}

/* A warpgroup kernel has a body only in code for sm_90a; elsewhere it stops. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WG_BODY 1
#else
#define WG_BODY 0
#endif
