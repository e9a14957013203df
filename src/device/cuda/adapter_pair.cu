/* adapter_pair.cu - both products of an adapter, y = (x A') B' + y, as one launch when requests are decoded (9.0 and later).
 *
 * A cluster of blocks has one slot, or one row. Its warps share out the columns of A; each block leaves the sums of its warps in shared memory, and all
 * blocks add those of all blocks, in order. Then each has x A' of the slot's rows, and multiplies its share of B's lines. The result of x A' is not
 * written: nobody else reads it (plan/fuse.h). While x is awaited, A is loaded and B is on its way to the cache. */
#include "device/cuda/adapter_pair.h"
#include "device/cuda/adapter_tiles.cuh"
#include "device/cuda/barrier.cuh"

namespace
{

enum { BLOCKS = 4, ALL_WARPS = BLOCKS * TILE_WARPS, MOST_LINES = 64, AT_ONCE = 2 };

template <class T> struct adapter_pair {
    adapted<T> a, b; /* a's lines are b's columns */
};

/* `at` in the block of this number. */
ON_GPU float from_block(const float *at, int block)
{
    float v = 0;
#if __CUDA_ARCH__ >= 900
    unsigned here = (unsigned)__cvta_generic_to_shared(at), there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(block));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(there) : "memory");
#endif
    return v;
}

ON_GPU void all_blocks(void)
{
#if __CUDA_ARCH__ >= 900
    cluster_wait();
#endif
}

template <class T, int TILES> struct pair_work {
    static constexpr int lines = TILES * TILE_LINES, stride = lines + 8;
    float sums[TILE_WARPS][GROUP * lines];
    float own[GROUP * lines]; /* of the block */
    alignas(16) T u[GROUP * stride];

    static constexpr int STEPS = TILES <= 2   ? 4
                                 : TILES <= 4 ? 2
                                              : 1; /* chunks whose lines are loaded at once */

    /* Lines of this warp's STEPS chunks from chunk `from` on. */
    __device__ __forceinline__ void load_steps(const adapted<T> &a, const T *w, int64_t from,
                                               uint4 (&line)[STEPS][TILES]) const
    {
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            load_lines<T, TILES>(w, a.k, 0, a.m, (from + i * ALL_WARPS) * CHUNK + (int)threadIdx.x % 4 * 8,
                                 line[i]);
    }

    /* The sums of the block's columns, for the rows of a group; `line` has the first lines. */
    __device__ __forceinline__ void sum_columns(const adapted<T> &a, const struct tile_pair &p, const T *w,
                                                int64_t mine, uint4 (&line)[STEPS][TILES])
    {
        float sum[TILES][4] = {};
        for (int64_t from = mine; from * CHUNK < a.k; from += STEPS * ALL_WARPS) {
            if (from != mine) load_steps(a, w, from, line);
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                int64_t c = (from + i * ALL_WARPS) * CHUNK + (int)threadIdx.x % 4 * 8;
                multiply_lines<T, TILES>(sum, a.x + c, a.x_width, p, w && c < a.k, line[i]);
            }
        }
        put_sums<TILES>(sums[threadIdx.x / 32], sum);
        __syncthreads();
        for (int at = (int)threadIdx.x; at < GROUP * lines; at += TILE_THREADS) {
            float all = sums[0][at];
#pragma unroll
            for (int i = 1; i < TILE_WARPS; i++) all += sums[i][at];
            own[at] = all;
        }
    }

    /* Adds the blocks' sums. */
    __device__ __forceinline__ void join(void)
    {
        for (int at = (int)threadIdx.x; at < GROUP * lines; at += TILE_THREADS) {
            float part[BLOCKS];
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) part[i] = from_block(own + at, i);
#pragma unroll
            for (int i = 1; i < BLOCKS; i++) part[0] += part[i];
            put_number(u + at / lines * stride + at % lines, part[0]);
        }
    }

    __device__ __forceinline__ void run(const adapter_pair<T> &p, const tile_rows *s, int slot,
                                        bool first_time)
    {
        const adapted<T> &a = p.a, &b = p.b;
        const T *w = slot < 0 ? NULL : a.w + slot * a.m * a.k,
                *wide = slot < 0 ? NULL : b.w + slot * b.m * b.k;
        int64_t mine = (int64_t)blockIdx.x * TILE_WARPS + threadIdx.x / 32;
        for (int group = 0; group < s->count; group += GROUP) {
            struct tile_pair pair = pair_of(s, group);
            uint4 line[STEPS][TILES];
            load_steps(a, w, mine, line);
            if (first_time) prefetch(b, wide, mine), await_previous(), first_time = false;
            sum_columns(a, pair, w, mine, line);
            all_blocks();
            join();
            all_blocks(); /* nobody reads this block's sums any more, and u is whole */
            for (int64_t top = mine * WIDE; top < b.m; top += AT_ONCE * ALL_WARPS * WIDE)
                multiply_some(b, pair, wide, top);
        }
    }

    /* AT_ONCE times WIDE lines of B: numbers that are added, and lines, are loaded before the first is needed. */
    __device__ __forceinline__ void multiply_some(const adapted<T> &b, const struct tile_pair &pair,
                                                  const T *wide, int64_t top) const
    {
        float sum[AT_ONCE][4][4] = {};
        uint4 more[AT_ONCE][2];
        int g = (int)threadIdx.x % 32 / 4;
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int64_t line = top + n * ALL_WARPS * WIDE,
                        at = pair.row[i] * b.m + line + (int)threadIdx.x % 4 * 8;
                more[n][i] = piece(b.add + at, b.add && pair.have[i] && line < b.m);
            }
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            int64_t line = top + n * ALL_WARPS * WIDE;
            const T *row = u + (line < b.m ? column_of(b, line) : 0);
            multiply_wide(sum[n], wide && line < b.m ? wide + line * b.k : NULL, b.k, row + g * stride,
                          row + (g + 8) * stride, true, true);
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int64_t line = top + n * ALL_WARPS * WIDE;
                if (pair.have[i] && line < b.m) put_wide(b, sum[n], i, pair.row[i], line, more[n][i]);
            }
    }

    /* The lines of B that a warp multiplies later. */
    __device__ __forceinline__ void prefetch(const adapted<T> &b, const T *wide, int64_t mine) const
    {
        int64_t bytes = WIDE * b.k * (int64_t)sizeof(T);
        for (int64_t top = mine * WIDE; wide && top < b.m; top += ALL_WARPS * WIDE)
            for (int64_t at = (int)threadIdx.x % 32 * 128; at < bytes; at += 32 * 128)
                asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)(wide + top * b.k) + at));
    }
};

template <class T, int TILES>
__global__ void __launch_bounds__(TILE_THREADS) multiply_pair(adapter_pair<T> p, adapter_sharing h)
{
    __shared__ tile_rows s;
    __shared__ pair_work<T, TILES> work;
    next_may_begin();
    int mine = slot_in_span(p.a.slot, p.a.rows, (int64_t)blockIdx.z * h.span, h.span);
    bool first_time = true;
    if (threadIdx.x == 0) s.first = (int64_t)blockIdx.z * h.span;
    for (int slot = first_slot(&s, mine, h); slot != NO_SLOT;
         slot = h.slots ? NO_SLOT : next_slot(&s, mine, slot)) {
        list_rows(&s, mine == slot);
        if (s.count) work.run(p, &s, slot, first_time), first_time = false;
    }
    if (first_time) await_previous();
}

template <class T, int TILES>
static int run_tiles(const struct cuda_queue *queue, const adapter_pair<T> &p, const adapter_sharing &h)
{
    dim3 blocks(BLOCKS, (unsigned)(h.slots ? h.slots + 1 : 1), (unsigned)parts_of(p.a.rows, h.span));
    return launch_clusters(queue, multiply_pair<T, TILES>, blocks, BLOCKS, TILE_THREADS, 0, p, h);
}

template <class T> static adapter_pair<T> pair_of_calls(const struct kernel_call *calls)
{
    return {adapted_of<T>(&calls[0]), adapted_of<T>(&calls[1])};
}

template <class T> static bool suits(const struct kernel_call *calls)
{
    adapter_pair<T> p = pair_of_calls<T>(calls);
    int64_t slots = call_in(&calls[0], ADAPTER_LINEAR_W)->dim[0];
    return adapter_sharing_of(p.a.rows, slots).span != PROMPT_SPAN && !p.a.add && p.a.x_width == p.a.k &&
           p.a.m <= MOST_LINES && p.b.x_width == p.a.m && p.b.slot == p.a.slot && adapter_tiles_suit(p.a) &&
           adapter_tiles_suit(p.b) && adapter_is_wide(p.b);
}

template <class T> static int run(const struct cuda_queue *queue, const struct kernel_call *calls)
{
    adapter_pair<T> p = pair_of_calls<T>(calls);
    struct adapter_sharing h = adapter_sharing_of(p.a.rows, call_in(&calls[0], ADAPTER_LINEAR_W)->dim[0]);
    if (p.a.m <= 16) return run_tiles<T, 2>(queue, p, h);
    if (p.a.m <= 32) return run_tiles<T, 4>(queue, p, h);
    return p.a.m <= 48 ? run_tiles<T, 6>(queue, p, h) : run_tiles<T, 8>(queue, p, h);
}

} // namespace

extern "C" bool cuda_adapter_pair_suits(const struct cuda_queue *queue, const struct kernel_call *calls)
{
    enum dtype type = call_in(&calls[0], ADAPTER_LINEAR_X)->type;
    if (!queue->warpgroups || type == DT_F32) return false;
    return type == DT_BF16 ? suits<bf16>(calls) : suits<f16>(calls);
}

extern "C" int cuda_adapter_pair(const struct cuda_queue *queue, const struct kernel_call *calls)
{
    return call_in(&calls[0], ADAPTER_LINEAR_X)->type == DT_BF16 ? run<bf16>(queue, calls)
                                                                 : run<f16>(queue, calls);
}
