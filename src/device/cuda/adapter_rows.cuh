/* adapter_rows.cuh - which rows a block of adapter_linear's tiles has: rows of one slot, wherever they stand.
 *
 *     few rows for the slots            one row, with the slot of that row
 *     some for each, SPANNED at most    the rows of one slot among SPAN (decoding many requests)
 *     many for each, or more rows       a tile: up to so many rows of one slot among all (prompts, and requests that decode beside them)
 *
 * Tiles are counted slot by slot. Each block counts the rows of all slots to find its own tile, so that no block has rows of two
 * adapters and none looks for rows twice. */
#pragma once

#include "device/cuda/vec.cuh"

template <class T> struct adapted {
    const T *x, *w, *add;
    const int *slot;
    T *y;
    const T *gate; /* y is silu(gate) times the product; NULL: the product */
    int64_t rows, m, k, x_width, slots;
    int64_t ends[OP_LINE_PARTS]; /* lines where parts end; one part: m in the first */
};

/* The first column of x that a line reads. */
template <class T> ON_GPU int64_t column_of(const adapted<T> &a, int64_t line)
{
    return line < a.ends[0] ? 0 : line < a.ends[1] ? a.k : 2 * a.k;
}

/* Behind the rows from `first` on, below `end`, that have the slot of the first. */
template <class T> ON_GPU int64_t run_end(const adapted<T> &a, int64_t first, int64_t end)
{
    int64_t next = first + 1;
    while (next < end && a.slot[next] == a.slot[first]) next++;
    return next;
}

namespace
{

enum {
    TILE_WARPS = 8,
    TILE_THREADS = 32 * TILE_WARPS,
    SPAN = TILE_THREADS,
    SPANNED = 2 * SPAN,
    SLOTS_MOST = 1024, /* of tiles */
    NO_SLOT = 1 << 30
};

struct block_rows {
    int64_t first;
    int slot;      /* -1: rows without adapter; NO_SLOT: the block has nothing to do */
    int count;     /* of rows, all of this slot */
    int row[SPAN]; /* counted from the first */
    int warps[TILE_WARPS];
};

template <class T> ON_GPU int slot_of(const adapted<T> &a, int64_t row) { return max(a.slot[row], -1); }

/* The sum of n over the threads before this one. */
ON_GPU int sum_before(int (&warps)[TILE_WARPS], int n)
{
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, sum = n;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        int other = __shfl_up_sync(0xffffffffu, sum, by);
        if (lane >= by) sum += other;
    }
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILE_WARPS; i++) sum += i < warp ? warps[i] : 0;
    return sum - n;
}

/* Block y has row y. */
template <class T> ON_GPU void take_row(const adapted<T> &a, block_rows *s)
{
    if (threadIdx.x == 0)
        s->first = blockIdx.y, s->slot = slot_of(a, blockIdx.y), s->count = 1, s->row[0] = 0;
    __syncthreads();
}

/* Block (y, z) has slot y, the last one rows without, of the rows from z SPAN on. */
template <class T> ON_GPU void take_from_span(const adapted<T> &a, block_rows *s)
{
    int64_t first = (int64_t)blockIdx.z * SPAN, row = first + threadIdx.x;
    int slot = blockIdx.y == a.slots ? -1 : (int)blockIdx.y, lane = (int)threadIdx.x % 32, before = 0,
        total = 0;
    bool has = row < a.rows && slot_of(a, row) == slot;
    unsigned all = __ballot_sync(0xffffffffu, has);
    if (lane == 0) s->warps[threadIdx.x / 32] = __popc(all);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILE_WARPS; i++)
        before += i < (int)threadIdx.x / 32 ? s->warps[i] : 0, total += s->warps[i];
    if (has) s->row[before + __popc(all & ((1u << lane) - 1))] = (int)threadIdx.x;
    if (threadIdx.x == 0) s->first = first, s->count = total, s->slot = total ? slot : NO_SLOT;
    __syncthreads();
}

struct tile_search {
    int rows[SLOTS_MOST + 1]; /* of each slot, those without first */
    int skip;                 /* rows of the slot before the tile */
    int warps[TILE_WARPS];
};

/* Which slot the tile has, and how many tiles of it come before. */
template <class T> ON_GPU void find_tile(const adapted<T> &a, tile_search *f, block_rows *s, int size)
{
    const int slots = (int)a.slots + 1, each = (slots + TILE_THREADS - 1) / TILE_THREADS,
              begin = min(slots, (int)threadIdx.x * each), end = min(slots, begin + each);
    int tiles = 0;
    for (int i = begin; i < end; i++) tiles += (f->rows[i] + size - 1) / size;
    int left = (int)blockIdx.y - sum_before(f->warps, tiles);
    if (left < 0 || left >= tiles) return;
    for (int i = begin; i < end; i++) {
        int here = (f->rows[i] + size - 1) / size;
        if (left >= 0 && left < here) {
            s->slot = i - 1, f->skip = left * size;
            s->count = min(size, f->rows[i] - left * size);
        }
        left -= here;
    }
}

/* Block y has tile y, if there are so many. A thread looks at neighbouring rows. */
template <class T> ON_GPU void take_tile(const adapted<T> &a, tile_search *f, block_rows *s, int size)
{
    const int64_t each = (a.rows + TILE_THREADS - 1) / TILE_THREADS,
                  begin = min(a.rows, (int64_t)threadIdx.x * each), end = min(a.rows, begin + each);
    for (int i = (int)threadIdx.x; i <= (int)a.slots; i += TILE_THREADS) f->rows[i] = 0;
    if (threadIdx.x == 0) s->first = 0, s->slot = NO_SLOT, s->count = 0;
    __syncthreads();
    for (int64_t row = begin, next; row < end; row = next) {
        next = run_end(a, row, end);
        atomicAdd(&f->rows[slot_of(a, row) + 1], (int)(next - row));
    }
    __syncthreads();
    find_tile(a, f, s, size);
    __syncthreads();
    const int slot = s->slot;
    if (slot == NO_SLOT) return;
    int mine = 0;
    for (int64_t row = begin; row < end; row++) mine += slot_of(a, row) == slot;
    int at = sum_before(s->warps, mine) - f->skip;
    for (int64_t row = begin; row < end && mine; row++) {
        if (slot_of(a, row) != slot) continue;
        if (at >= 0 && at < size) s->row[at] = (int)row;
        at++;
    }
    __syncthreads();
}

} // namespace
