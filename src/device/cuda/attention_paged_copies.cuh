/* attention_paged_copies.cuh - how a warp's keys and values of a chunk come from blocks of the pool to shared memory.
 *
 * expect comes first and once for a chunk, copy for parts of its blocks, end_copy last; await waits for a chunk's keys and then for its values. From 9.0 on the memory's own machinery copies a block of a head as a whole (barrier.cuh), before that lanes copy 16 bytes each.
 */
#pragma once

#include "device/cuda/attention_paged_lines.cuh"
#include "device/cuda/barrier.cuh"

namespace
{

/* Bytes behind each block of keys and of values in shared memory, so that lanes read different banks. Behind the first block of
 * keys they are the warp's barriers. */
enum { BLOCKS = CHUNK / KV_BLOCK, PAD_KEYS = 16, PAD_VALUES = 32 };

/* Where a warp's keys and values lie in shared memory. `bytes`, here and below: of a head's keys in a block. */
struct room {
    char *keys, *values;
    int key_step, value_step; /* bytes of a block */
    bool shared;              /* values come to the place of the keys, where a card has no room for both */
};

static __host__ __device__ __forceinline__ int room_bytes(int bytes, bool shared)
{
    return BLOCKS * (shared ? bytes + PAD_VALUES : 2 * bytes + PAD_KEYS + PAD_VALUES);
}

ON_GPU struct room room_of(int bytes, bool shared)
{
    char *at = shared_pool() + threadIdx.x / 32 * room_bytes(bytes, shared);
    const int step = bytes + PAD_KEYS;
    return {at, shared ? at : at + BLOCKS * step, step, bytes + PAD_VALUES, shared};
}

/* Behind all of that a warp's lines, before the warps' are joined: floats of one warp. */
static __host__ __device__ __forceinline__ int lines_floats(const struct paged &a)
{
    return (a.group < ROWS ? a.group : ROWS) * (a.size + CUDA_PAGED_STAT);
}

ON_GPU float *lines_of(const struct paged &a, int bytes, bool shared, int warp)
{
    return (float *)(shared_pool() + WARPS * room_bytes(bytes, shared)) + warp * lines_floats(a);
}

/* in_bytes: a call whose distances in the pool are bytes. */
static struct paged in_bytes(struct paged a, int of_element)
{
    a.chunk *= of_element, a.plane *= of_element, a.block *= of_element, a.layer *= of_element;
    return a;
}

/* A chunk is what a warp has of a piece. */
struct chunk {
    int key, count, kv; /* the first key, blocks up to the token's position (0: none), and whose */
    int mine;           /* block lane % 4 of them in the pool */
};

/* In registers, which ?: is not. */
ON_GPU struct chunk either(bool x, const struct chunk &a, const struct chunk &b)
{
    return {x ? a.key : b.key, x ? a.count : b.count, x ? a.kv : b.kv, x ? a.mine : b.mine};
}

ON_GPU struct chunk chunk_at(const struct paged &a, const struct work &w, int key)
{
    const int count = min((w.it.position - key) / KV_BLOCK + 1, (int)BLOCKS), b = threadIdx.x % BLOCKS;
    const int32_t *table = a.blocks + (int64_t)w.it.row * a.reach + key / KV_BLOCK;
    return {key, count, w.kv, b < count ? table[b] : 0};
}

/* The first of a work; none where the token ends before it, or there is no token. */
ON_GPU struct chunk first_chunk(const struct paged &a, const struct work &w)
{
    const int key = w.from * CUDA_PAGED_PIECE + threadIdx.x / 32 * CHUNK;
    if (w.it.row < 0 || w.from >= w.end || key > w.it.position) return {};
    return chunk_at(a, w, key);
}

/* `values`: the chunk's values; else its keys. */
#if __CUDA_ARCH__ >= 900

ON_GPU uint32_t barrier_of(const struct room &r, bool values)
{
    return shared_address(r.keys + r.key_step - PAD_KEYS) + (values ? 8 : 0);
}

ON_GPU void copies_init(const struct room &r)
{
    if (threadIdx.x % 32 == 0) barrier_init(barrier_of(r, false), 1), barrier_init(barrier_of(r, true), 1);
    barrier_publish();
    __syncwarp();
}

ON_GPU void expect(const struct room &r, const struct chunk &c, bool values, int bytes)
{
    if (c.count && threadIdx.x % 32 == 0) barrier_expect(barrier_of(r, values), c.count * bytes);
}

/* By whole warps. */
ON_GPU void copy_block(const struct room &r, bool values, uint32_t to, const char *from, int bytes)
{
    if (threadIdx.x % 32 == 0) barrier_copy(to, from, bytes, barrier_of(r, values));
}

/* Behind writes to a place that copies will write again. */
ON_GPU void publish_to_copies(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

ON_GPU void end_copy(void) {}
ON_GPU void await(const struct room &r, bool values, uint32_t turn)
{
    barrier_wait(barrier_of(r, values), turn);
}

#else

ON_GPU void copies_init(const struct room &) {}
ON_GPU void expect(const struct room &, const struct chunk &, bool, int) {}
ON_GPU void publish_to_copies(void) {}

ON_GPU void copy_block(const struct room &, bool, uint32_t to, const char *from, int bytes)
{
#pragma unroll 1
    for (int i = threadIdx.x % 32 * 16; i < bytes; i += 512) copy16(to + i, from + i, true);
}

ON_GPU void end_copy(void) { copy_commit(); }
ON_GPU void await(const struct room &r, bool, uint32_t)
{
    if (r.shared)
        copy_wait<0>();
    else
        copy_wait<1>(); /* keys and values take turns */
    __syncwarp();
}

#endif

/* Begins to copy blocks [from, until) of a chunk. Distances in the pool are in bytes (in_bytes). */
ON_GPU void copy(const struct paged &a, const struct room &r, const struct chunk &c, bool values, int from,
                 int until, int bytes)
{
    const uint32_t to = shared_address(values ? r.values : r.keys);
    const int step = values ? r.value_step : r.key_step;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        const int64_t block = __shfl_sync(0xffffffffu, c.mine, b);
        const char *at = (const char *)a.pool + paged_at(a, (int)block, c.kv) + (values ? a.plane : 0);
        if (b >= from && b < until) copy_block(r, values, to + b * step, at, bytes);
    }
}

} // namespace
