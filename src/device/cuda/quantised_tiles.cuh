/* quantised_tiles.cuh - products of a chunk of W with tiles of 8 rows of x, for quantised_product.cuh: which see.
 *
 *     multiply_chunk<B, W>(sum, chunk, prepared, x, c, blocks, then, ahead, ready);       // sum += W's chunk c times all tiles
 *
 * B is a block type (quantised_types.cuh), W a way to share the work out. */
#pragma once

#include "device/cuda/quantised_rows.cuh"
#include "device/cuda/quantised_types.cuh"

namespace
{

enum {
    THREADS = ROW_THREADS,
    WARPS = ROW_WARPS,
    CHAINS = 8,
    TILE = 8,  /* rows of x in a product of the tensor cores */
    DEPTH = 3, /* chunks of a warp under way, at most */
    LINES = PANEL_LINES
};
static_assert((int)CHUNK == (int)CUDA_Q_CHUNK && (int)CHAINS == (int)WARPS, "a warp has a chain");

/* Parts of one block type, and the rows they meet. */
struct problem {
    cuda_q_product q;
    rounded_rows x;          /* in scratch; in shared memory as it is there */
    int begin[CUDA_Q_PARTS]; /* the first group of panels of each part */
    int64_t panel_bytes;
    int chunks, blocks; /* of k */
    int stages;         /* chunks of a warp that shared memory has room for */
    int ring;           /* bytes of shared memory before x */
    int groups, across; /* of panels, in all parts; of rows */
    int items;          /* groups of panels with a group of rows, or of an expert */
    bool rounds;        /* every block of threads rounds x for itself */
};

static problem problem_of(const struct cuda_queue *queue, const struct cuda_q_product *q)
{
    problem p = {*q};
    const bool one = !q->ends && cuda_q_in_shared(queue->warpgroups, q->type, q->rows, q->k);
    p.rounds = one && !(q->source == FEW_GLU && cuda_q_gates_apart(q->k));
    p.x.at = (char *)q->work, p.x.rows = one ? 1 : (int)cuda_q_rows(q->rows, q->ends ? q->experts : 0);
    p.x.tile = one ? 1 : TILE;
    p.chunks = (int)parts_of(q->k, CHUNK), p.blocks = (int)(q->k / 32);
    return p;
}

/* How a kernel works: tiles of rows, panels of an item, warps that share it, x in shared memory, one row (quantised_one.cuh), of which a gated
 * unit is made (quantised_gated.cuh). */
template <int TILE_COUNT, int PANEL_COUNT, int WARP_COUNT, bool X_SHARED, bool ONE_ROW = false,
          bool GATED = false>
struct way {
    static constexpr int tiles = TILE_COUNT, panels = PANEL_COUNT, warps = WARP_COUNT;
    static constexpr bool shared = X_SHARED, one = ONE_ROW, gated = GATED;
    template <class B> static constexpr int prepared = one ? 0 : B::prepared;
    static constexpr int chains = CHAINS / warps;     /* of a warp */
    static constexpr int step = shared ? 4 : 1;       /* blocks of x that are loaded together */
    static constexpr int wanted = tiles == 8 ? 1 : 2; /* blocks of threads on a multiprocessor */
    /* Sums of warps in shared memory; no bank meets two lanes. */
    static constexpr int stride = LINES * panels + 4, sums = gated        ? WARPS * LINES * 4
                                                             : warps == 1 ? 0
                                                                          : WARPS * tiles * TILE * stride * 4;
    static constexpr int sum_places = tiles <= 2 ? 2 : 1; /* two in turn: one barrier less */
};

/* --- products of a block ------------------------------------------------------------------------------------ */

/* Sums begin at the bits of 1.5 * 2^23 and stay below 2^22: as floats they are that number more. */
enum { SUM_BEGIN = 0x4b400000 };
ON_GPU float sum_of(int bits) { return __int_as_float(bits) - 12582912.0f; }

/* scale * sum_of(bits), to the bit: a scale has 19 bits at most, so that its product with 1.5 * 2^23 is exact. One
 * operation where many sums have the scale. */
ON_GPU float scaled_sum(float scale, int bits)
{
    return fmaf(scale, __int_as_float(bits), scale * -12582912.0f);
}

ON_GPU void multiply32(int (&c)[4], const uint32_t (&a)[4], const uint2 &b)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(SUM_BEGIN));
}

ON_GPU void multiply16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%7, %7, %7, %7};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(SUM_BEGIN));
}

/* N blocks of x as a lane has them, of each tile: codes of row g, scales and sums of rows 2 t and 2 t + 1. */
template <int TILES, int N> struct x_blocks {
    uint2 code[TILES][N];
    float scale[TILES][2][N], sum[TILES][2][N];
};

/* Where a lane reads x. */
struct lane_rows {
    const char *codes, *scales;
    int64_t chunk; /* bytes between chunks */
};

/* Tile i of N blocks from b on. */
template <bool MINIMA, int TILES, int N>
ON_GPU void load_tile(x_blocks<TILES, N> &x, int i, const lane_rows &from, int b)
{
    const char *codes = from.codes + i * TILE * RECORD, *scales = from.scales + i * TILE * RECORD;
#pragma unroll
    for (int n = 0; n < N; n++) {
        const char *scale = scales + (b + n) * TILE * 4;
        const float2 by = *reinterpret_cast<const float2 *>(scale);
        x.code[i][n] = *reinterpret_cast<const uint2 *>(codes + (b + n) * TILE * 32);
        x.scale[i][0][n] = by.x, x.scale[i][1][n] = by.y;
        if (MINIMA) {
            const float2 sums =
                *reinterpret_cast<const float2 *>(scale + TILE * (RECORD_SUMS - RECORD_SCALES));
            x.sum[i][0][n] = sums.x, x.sum[i][1][n] = sums.y;
        }
    }
}

template <bool MINIMA, int TILES, int N>
ON_GPU void load_x(x_blocks<TILES, N> &x, const lane_rows &from, int b)
{
#pragma unroll
    for (int i = 0; i < TILES; i++) load_tile<MINIMA>(x, i, from, b);
}

ON_GPU lane_rows at_chunk(const lane_rows &x, int c)
{
    return {x.codes + c * x.chunk, x.scales + c * x.chunk, x.chunk};
}

/* One block of 32: lines g and g + 8, rows 2 t and 2 t + 1 of a tile. */
template <class B>
ON_GPU void add_block(float (&sum)[4], const typename B::part &w, const uint2 &code, const float (&scale)[2],
                      const float (&codes_sum)[2])
{
    int c[4], d[4];
    if constexpr (B::scales == 2) {
        multiply16(c, w.a[0], w.a[1], code.x);
        multiply16(d, w.a[2], w.a[3], code.y);
    } else {
        multiply32(c, w.a, code);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float v = scaled_sum(w.scale[0][i / 2], c[i]);
        if constexpr (B::scales == 2) v = fmaf(w.scale[1][i / 2], sum_of(d[i]), v);
        if constexpr (B::minima) v = fmaf(-w.least[i / 2], codes_sum[i % 2], v);
        sum[i] = fmaf(v, scale[i % 2], sum[i]);
    }
}

/* Block b of a chunk, number n of those in x, times all tiles; then(i) when tile i is done. */
template <class B, class W, int N, class F>
ON_GPU void add_tiles(float (&sum)[W::panels][W::tiles][4], const char *chunk, const char *prepared, int b,
                      const x_blocks<W::tiles, N> &x, int n, F then)
{
    const int lane = threadIdx.x % 32;
    typename B::part w[W::panels];
#pragma unroll
    for (int p = 0; p < W::panels; p++)
        w[p] = B::read(chunk + p * B::chunk_bytes, prepared + p * PREPARED, b, lane / 4, lane % 4);
#pragma unroll
    for (int i = 0; i < W::tiles; i++) {
        const float scale[2] = {x.scale[i][0][n], x.scale[i][1][n]},
                    codes_sum[2] = {x.sum[i][0][n], x.sum[i][1][n]};
#pragma unroll
        for (int p = 0; p < W::panels; p++) add_block<B>(sum[p][i], w[p], x.code[i][n], scale, codes_sum);
        then(i);
    }
}

/* --- products of a chunk ------------------------------------------------------------------------------------ */

/* A chunk times all tiles. ahead: its first blocks of x where `ready`; where x is not in shared memory, those of the chunk
 * `then` (-1: unknown) when it returns. */
template <class B, class W>
ON_GPU void multiply_chunk(float (&sum)[W::panels][W::tiles][4], const char *chunk, char *prepared,
                           const lane_rows &x, int c, int blocks, int then,
                           x_blocks<W::tiles, W::step> &ahead, bool &ready)
{
    const lane_rows now = at_chunk(x, c);
    if constexpr (B::prepared > 0) {
#pragma unroll
        for (int i = 0; i < W::panels; i++)
            B::prepare(chunk + i * B::chunk_bytes, prepared + i * PREPARED, threadIdx.x % 32);
        __syncwarp();
    }
    if (blocks < CHUNK_BLOCKS) {
        x_blocks<W::tiles, 1> one;
        for (int b = 0; b < blocks; b++) {
            load_x<B::minima>(one, now, b);
            add_tiles<B, W>(sum, chunk, prepared, b, one, 0, [](int) {});
        }
        ready = false;
    } else if constexpr (W::shared) {
#pragma unroll
        for (int b = 0; b < CHUNK_BLOCKS; b += W::step) {
            load_x<B::minima>(ahead, now, b);
#pragma unroll
            for (int n = 0; n < W::step; n++)
                add_tiles<B, W>(sum, chunk, prepared, b + n, ahead, n, [](int) {});
        }
    } else {
        const lane_rows after = at_chunk(x, then);
        if (!ready) load_x<B::minima>(ahead, now, 0);
#pragma unroll 2
        for (int b = 0; b < CHUNK_BLOCKS; b++) {
            const bool here = b + 1 < CHUNK_BLOCKS, more = here || then >= 0;
            add_tiles<B, W>(sum, chunk, prepared, b, ahead, 0, [&](int i) {
                if (more) load_tile<B::minima>(ahead, i, here ? now : after, here ? b + 1 : 0);
            });
        }
        ready = then >= 0;
    }
}

} // namespace
