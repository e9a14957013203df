/* attention_paged_ring.cuh - tiles of keys and values, handed from the warps that fill them to the warpgroups that multiply them (sm_90a).
 *
 * A ring of slots in shared memory, one tile in each, in an order that both sides know. Each slot has two mbarriers: `full` counts the
 * filling warps, `empty` the multiplying ones. Everybody goes round the ring at their own pace with a copy of struct ring of their own:
 *
 *     one side      in.await_empty();  write the tile, publish it;   in.announce();  in.move_on();
 *     other side    in.await_full();   multiply, wait for products;  in.release();   in.move_on();
 *
 * Invariants:
 *  1. The n-th time that a slot is filled ends phase n of `full`, the n-th time that it is released phase n of `empty`; `phase` is the
 *     parity of the round. Waiting for the phase before the first one succeeds at once, so slots begin empty.
 *  2. A warp arrives once for all its lanes, after a __syncwarp behind what they did with the tile.
 *  3. Tiles are released in nearly the order in which they are filled: of two neighbours, the first is released without waiting for more
 *     than the second. So a filling warp may keep SLOTS - 2 tiles to itself before it announces the oldest one.
 */
#pragma once

#include "device/cuda/attention_hopper.cuh"
#include "device/cuda/attention_paged_tiles.cuh"
#include "device/cuda/barrier.cuh"

namespace
{

/* How the work of a block of threads is cut. Heads of 128: a step of 128 keys takes all registers of two warpgroups, and halves what a step
 * costs beside its keys. Heads of 64 spend as long on exponentials as on products: three warpgroups keep both busy, with 64 keys to a step.
 *
 * The warpgroup behind the multiplying ones fills tiles. Codes are its own to widen, for which it needs registers. */
template <int width, bool coded> struct cut {
    enum {
        GROUPS = width == 64 ? 3 : 2, /* warpgroups that multiply */
        STEP = width == 64 ? 64 : 128,
        STEP_BLOCKS = STEP / KV_BLOCK,
        ELEMENT = coded ? 1 : 2, /* bytes in the pool */
        LINES = GROUPS * WG_ROWS,
        MULTIPLYING = GROUPS * WG_THREADS,
        THREADS = MULTIPLYING + WG_THREADS,
        WARPS = WG_THREADS / 32, /* of a warpgroup */
        /* Registers: together as many as all threads begin with. */
        TAKEN = width == 64 ? (coded ? 152 : 160) : 224,
        LEFT = width == 64 ? (coded ? 56 : 32) : 56,
        TILE = STEP * width * 2,
        SLOTS = width == 64 ? 12 : 6,
        BARRIERS_AT = SLOTS * TILE,           /* full, then empty */
        SCALES_AT = BARRIERS_AT + SLOTS * 16, /* of the keys of each slot, where they are applied to scores */
        OWN_AT = SCALES_AT +
                 (coded ? SLOTS * STEP * 4 : 0), /* scales of the tile that each filling warp works on */
        CODES_AT =
            OWN_AT + (coded ? WARPS * STEP * 4 : 0), /* codes on their way, sixteen of each filling thread */
        AHEAD = width == 64 ? 4 : 8,                 /* times */
        SHARED = WG_ALIGN + CODES_AT + (coded ? AHEAD * WG_THREADS * 16 : 0),
    };
    static_assert(MULTIPLYING * TAKEN + WG_THREADS * LEFT <= 65536, "a multiprocessor's registers");
};

template <class cut> struct ring {
    char *pool;
    int slot;
    uint32_t phase;

    __device__ __forceinline__ char *tile(void) const { return pool + slot * cut::TILE; }
    __device__ __forceinline__ uint32_t tile_address(void) const
    {
        return shared_address(pool) + slot * cut::TILE;
    }
    __device__ __forceinline__ float *scales(void) const
    {
        return (float *)(pool + cut::SCALES_AT) + slot * cut::STEP;
    }
    __device__ __forceinline__ uint32_t full(void) const
    {
        return shared_address(pool) + cut::BARRIERS_AT + slot * 8;
    }
    __device__ __forceinline__ uint32_t empty(void) const { return full() + cut::SLOTS * 8; }
    __device__ __forceinline__ void move_on(void)
    {
        if (++slot == cut::SLOTS) slot = 0, phase ^= 1;
    }

    __device__ __forceinline__ void await_full(void) const { barrier_wait(full(), phase); }
    __device__ __forceinline__ void await_empty(void) const { barrier_wait(empty(), phase ^ 1); }
    __device__ __forceinline__ void announce(void) const
    {
        wgmma_publish();
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(full());
    }
    __device__ __forceinline__ void release(void) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(empty());
    }
};

/* This thread's warpgroup, as a number that is visibly the same for the warp: a warpgroup's products may not lie behind branches on others. */
ON_GPU int own_warpgroup(void) { return __shfl_sync(0xffffffffu, (int)threadIdx.x / WG_THREADS, 0); }

/* The ring of a block of threads, all of which come here. */
template <class cut> ON_GPU struct ring<cut> open_ring(char *pool) {
    struct ring<cut> r = {
        pool, 0, 0
    };
    if (threadIdx.x == 0) {
        const uint32_t at = r.full();
        for (int i = 0; i < cut::SLOTS; i++) {
            barrier_init(at + i * 8, cut::WARPS);
            barrier_init(at + (cut::SLOTS + i) * 8, cut::GROUPS * cut::WARPS);
        }
        barrier_publish();
    }
    __syncthreads();
    return r;
}

/* The keys of a row's lines. Both sides take tiles in this order: keys of step 0; keys of step i + 1 and values of step i, for every i;
 * values of the last step. */
struct span_of_keys {
    int first, last, steps;
};

template <int step> ON_GPU struct span_of_keys keys_of(const struct paged &a, const struct lines &t)
{
    struct span_of_keys k;
    k.first = (a.window ? max(t.position - a.window + 1, 0) : 0) / step * step;
    k.last = t.position + t.count - 1;
    k.steps = (k.last - k.first) / step + 1;
    return k;
}

} // namespace
