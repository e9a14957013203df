/* quantised_items.cuh - what a warp of quantised_product.cu multiplies, and its copies to shared memory.
 *
 *     copies<W> c;
 *     copy_first<B>(p, c, first_item<W>());        // as many chunks as there are stages
 *     await_chunk(p, stage, turn);                 // one is here
 *     copy_next<B>(p, c);                          // after all lanes have read it: its place is the next one's
 */
#pragma once

#include "device/cuda/attention_ptx.cuh"
#include "device/cuda/barrier.cuh"
#include "device/cuda/quantised_tiles.cuh"

namespace
{

/* Panels of a part, and rows [first, end) of y, which begin at `row` in x. Panels behind the last are the last once more, and
 * written by nobody. */
template <int PANELS> struct item {
    const cuda_q_part *part;
    int panel; /* the first */
    const unsigned char *from[PANELS];
    int first, end, row;
};

/* The first row of an expert in scratch: every expert's begin a tile. */
ON_GPU int expert_begin(int first, int expert) { return (first / TILE + expert) * TILE; }

template <class W> ON_GPU item<W::panels> item_of(const problem &p, int number)
{
    const int expert = p.q.ends ? number / p.groups : 0;
    int group = number - expert * p.groups, row = 0, i = 0;
    if (W::gated) i = number % 2, group = p.begin[i] + number / 2; /* a panel of the gate, then one of `up` */
    if (p.across > 1) group = number / p.across, row = number - group * p.across;
    while (i + 1 < p.q.parts && group >= p.begin[i + 1]) i++;
    item<W::panels> it;
    it.part = &p.q.part[i], it.panel = (group - p.begin[i]) * W::panels;
    const int last = (int)((it.part->lines - 1) / LINES);
#pragma unroll
    for (int n = 0; n < W::panels; n++)
        it.from[n] = it.part->w + expert * p.q.expert_bytes + min(it.panel + n, last) * p.panel_bytes;
    it.first = it.row = row * W::tiles * TILE;
    it.end = min((int)p.q.rows, it.first + W::tiles * TILE);
    if (p.q.ends) {
        it.first = expert ? p.q.ends[expert - 1] : 0, it.end = p.q.ends[expert];
        it.row = expert_begin(it.first, expert);
    }
    return it;
}

/* Chunks of a warp's item, chain after chain; -1: there is none, or it was the last. */
template <class W> ON_GPU int first_chain(void) { return (int)threadIdx.x / 32 % W::warps * W::chains; }
template <class W> ON_GPU int first_chunk(const problem &p)
{
    return first_chain<W>() < p.chunks ? first_chain<W>() : -1;
}
template <class W> ON_GPU int chunk_after(const problem &p, int c)
{
    if (c + CHAINS < p.chunks) return c + CHAINS;
    const int chain = c % CHAINS + 1;
    return chain % W::chains && chain < p.chunks ? chain : -1;
}

template <class W> ON_GPU int first_item(void)
{
    return blockIdx.x * (WARPS / W::warps) + (int)threadIdx.x / 32 / W::warps;
}
template <class W> ON_GPU int items_apart(void) { return gridDim.x * (WARPS / W::warps); }

/* The next copy of a warp. Those of its next item follow, except where experts' rows must be known first. */
template <class W> struct copies {
    item<W::panels> it;
    int number, chunk, stage;
};

/* Where a warp's chunks lie. */
template <class B, class W> ON_GPU char *ring_of(const problem &p, int stage)
{
    return shared_pool() + ((threadIdx.x / 32) * p.stages + stage) * (W::panels * B::chunk_bytes);
}

ON_GPU int blocks_in(const problem &p, int chunk)
{
    return min(CHUNK_BLOCKS, p.blocks - chunk * CHUNK_BLOCKS);
}

#if __CUDA_ARCH__ >= 900

/* A barrier for each of a warp's stages; lane 0 begins copies for all. */
ON_GPU uint32_t barrier_of(int stage)
{
    __shared__ uint64_t barriers[WARPS][DEPTH];
    return shared_address(&barriers[threadIdx.x / 32][stage]);
}

ON_GPU void copies_init(void)
{
    if (threadIdx.x % 32 == 0)
        for (int s = 0; s < DEPTH; s++) barrier_init(barrier_of(s), 1);
    barrier_publish();
    __syncwarp();
}

template <class B, int PANELS>
ON_GPU void copy_chunk(char *to, const unsigned char *const (&from)[PANELS], int64_t at, int blocks,
                       int stage)
{
    const int bytes = blocks * 32 / B::elements * B::block_bytes;
    if (threadIdx.x % 32) return;
    barrier_expect(barrier_of(stage), PANELS * bytes);
#pragma unroll
    for (int i = 0; i < PANELS; i++)
        barrier_copy(shared_address(to) + i * B::chunk_bytes, from[i] + at, bytes, barrier_of(stage));
}

ON_GPU void await_chunk(const problem &, int stage, int turn) { barrier_wait(barrier_of(stage), turn & 1); }

#else

ON_GPU void copies_init(void) {}

template <class B, int PANELS>
ON_GPU void copy_chunk(char *to, const unsigned char *const (&from)[PANELS], int64_t at, int blocks, int)
{
#pragma unroll
    for (int i = 0; i < PANELS; i++)
        for (int n = threadIdx.x % 32 * 16; n < blocks * 32 / B::elements * B::block_bytes; n += 512)
            copy16(shared_address(to) + i * B::chunk_bytes + n, from[i] + at + n, true);
}

ON_GPU void await_chunk(const problem &p, int, int)
{
    if (p.stages == 1)
        copy_wait<0>();
    else if (p.stages == 2)
        copy_wait<1>();
    else
        copy_wait<DEPTH - 1>();
    __syncwarp();
}

#endif

/* Begins one copy, or none where all are done. */
template <class B, class W> ON_GPU void copy_next(const problem &p, copies<W> &c)
{
    if (c.chunk >= 0 && c.number < p.items) {
        copy_chunk<B>(ring_of<B, W>(p, c.stage), c.it.from, (int64_t)c.chunk * B::chunk_bytes,
                      blocks_in(p, c.chunk), c.stage);
        c.stage = c.stage + 1 == p.stages ? 0 : c.stage + 1, c.chunk = chunk_after<W>(p, c.chunk);
        if (c.chunk < 0 && !p.q.ends) {
            c.number += items_apart<W>(), c.chunk = first_chunk<W>(p);
            if (c.number < p.items) c.it = item_of<W>(p, c.number);
        }
    }
#if __CUDA_ARCH__ < 900
    copy_commit(); /* a group for each call */
#endif
}

template <class B, class W> ON_GPU void copy_first(const problem &p, copies<W> &c, int number)
{
    c.number = number, c.chunk = first_chunk<W>(p);
    if (number < p.items) c.it = item_of<W>(p, number);
#pragma unroll 1
    for (int s = 0; s < p.stages; s++) copy_next<B>(p, c);
}

} // namespace
