/* attention_paged_lines.cuh - what attention of single tokens over blocks has in common for all types of keys: which keys a block of
 * threads has, how results are joined, and the kernels, of a WALK (attention_paged_decode.cu has its invariants). A WALK is a struct
 *
 *     sets, halves     groups of 64 elements of a head, of 8 lines
 *     at               where the chunk's keys and values begin (struct places)
 *     load_queries     fragments of the queries, in the order of elements in which keys come
 *     load_old         begins to load what precedes the step; load_rest loads the others
 *     meet             the lines over one chunk; begins to load the next one's
 */
#pragma once

#include "device/cuda/attention_paged.cuh"
#include "device/cuda/attention_ptx.cuh"
#include "device/cuda/overlap.cuh"

namespace
{

enum { WARPS = CUDA_PAGED_WARPS, THREADS = 32 * WARPS, CHUNK = 64, ROWS = 16 };
static_assert(CUDA_PAGED_PIECE == WARPS * CHUNK, "a warp has a chunk of each piece");

/* The token a block of threads has; row < 0: there is none, and o is 0 if the token is one at all. */
struct item {
    int row, token, position, context;
};

/* By token where there are as many rows, else by row: those of one token. Asked by whole warps. A token that is only there to fill the step up
 * has no row, and there may be hundreds of them: lanes look through the rows together. */
ON_GPU struct item item_of(const struct paged &a, int index)
{
    struct item it = {-1, -1, 0, 0};
    if (a.tokens > a.nrows) {
        if (a.rows[3 * index + 1] != 1) return it;
        it.row = index, it.token = a.rows[3 * index];
    } else {
        it.token = index;
        auto has = [&](int r) { return index >= a.rows[3 * r] && index < a.rows[3 * r] + a.rows[3 * r + 1]; };
        if (has(index)) it.row = index; /* so the engine lays them out when all decode */
        for (int r = threadIdx.x % 32; it.row < 0 && r - (int)threadIdx.x % 32 < a.nrows; r += 32)
            it.row = __reduce_max_sync(0xffffffffu, r < a.nrows && has(r) ? r : -1);
        if (it.row < 0) return it;
    }
    it.context = a.rows[3 * it.row + 2], it.position = it.context + it.token - a.rows[3 * it.row];
    return it;
}

/* A warp's part of the lines' keys. SETS: groups of 64 elements of the head; HALVES: groups of 8 lines. */
template <int SETS, int HALVES> struct lines {
    float out[SETS][8][4]; /* lane (g, t): lines g and g + 8, elements 16 t + j and 16 t + 8 + j of a set */
    float top[HALVES], sum[HALVES];

    __device__ __forceinline__ void clear(void)
    {
#pragma unroll
        for (int half = 0; half < HALVES; half++) top[half] = -INFINITY, sum[half] = 0;
#pragma unroll
        for (int set = 0; set < SETS; set++)
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) out[set][j][i] = 0;
    }

    /* Those of a further chunk. */
    __device__ __forceinline__ void join(const lines &more, float scale2)
    {
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            const float a = top[half], b = sum[half], c = more.top[half], d = more.sum[half];
#pragma unroll
            for (int set = 0; set < SETS; set++)
#pragma unroll
                for (int j = 0; j < 8; j++)
#pragma unroll
                    for (int i = 2 * half; i < 2 * half + 2; i++)
                        out[set][j][i] =
                            paged_joined(out[set][j][i], a, b, more.out[set][j][i], c, d, scale2);
            top[half] = paged_joined_top(a, b, c, d), sum[half] = paged_joined(b, a, b, d, c, d, scale2);
        }
    }

    /* to(line): where a line's elements go, 16 bytes at a time, and behind them maximum and sum. */
    template <class F> __device__ __forceinline__ void leave(int size, int heads, F to) const
    {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            if (g + 8 * half >= heads) continue;
            float *line = to(g + 8 * half);
            if (t == 0) line[size] = top[half], line[size + 1] = sum[half];
#pragma unroll
            for (int set = 0; set < SETS; set++)
#pragma unroll
                for (int i = 0; i < 2; i++)
#pragma unroll
                    for (int j = 0; j < 8; j += 4)
                        if (int d = set * 64 + 16 * t + 8 * i + j; d < size)
                            *(float4 *)(line + d) =
                                make_float4(out[set][j][2 * half + i], out[set][j + 1][2 * half + i],
                                            out[set][j + 2][2 * half + i], out[set][j + 3][2 * half + i]);
        }
    }
};

/* Where a lane's keys and values of a chunk begin; below 0: it is behind the token's position. */
struct places {
    int64_t k, v;
};

ON_GPU struct places find_chunk(const struct paged &a, const struct item &it, int kv, int key)
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int32_t *table = a.blocks + (int64_t)it.row * a.reach + key / KV_BLOCK;
    struct places p = {-1, -1};
    if (key + g / 2 * KV_BLOCK <= it.position) p.k = paged_at(a, table[g / 2], kv) + g % 2 * 8;
    if (key + t * KV_BLOCK <= it.position) p.v = paged_at(a, table[t], kv) + a.plane + g * 8;
    return p;
}

/* Products of a line's 16 keys in this lane become probabilities against the maximum of the 64 from `key` on. */
ON_GPU void soften(const struct paged &a, float (&s)[8][4], int half, int position, int key, float &top,
                   float &sum)
{
    const int mine = key + threadIdx.x % 4 * KV_BLOCK, last = position - mine;
    const int first = (a.window ? max(position - a.window + 1, 0) : 0) - mine;
    top = -INFINITY, sum = 0;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float *x = &s[j][2 * half + i];
            int at = 8 * i + j;
            *x = at < first || at > last ? -INFINITY : paged_score(a, *x);
            top = fmaxf(top, *x);
        }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float p = exp2_fast((s[j][2 * half + i] - base) * a.scale2);
            s[j][2 * half + i] = p, sum += p;
        }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
}

/* A line as `leave` lays it out, padded to whole steps of 16 bytes. */
ON_GPU int line_floats(int size) { return size + CUDA_PAGED_STAT; }

/* The warps' results of a line, in order; stride: floats from one warp's to the next. Warps without keys have the sum 0. */
ON_GPU float join_warps(const float *line, int stride, int size, int d, float scale2)
{
    float top = -INFINITY, sum = 0, x = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) top = fmaxf(top, line[w * stride + size]);
    const float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        const float fade = exp2f((line[w * stride + size] - base) * scale2);
        sum = __fmaf_rn(fade, line[w * stride + size + 1], sum);
        x = __fmaf_rn(fade, line[w * stride + d], x);
    }
    return x / sum;
}

ON_GPU float *part_at(const struct paged &a, int64_t line, int piece, int warp)
{
    return a.parts + ((line * a.splits + piece) * WARPS + warp) * line_floats(a.size);
}

template <class type> ON_GPU void put(const struct paged &a, int64_t at, float x)
{
    ((uint16_t *)a.o)[at] = (uint16_t)type::pack(x, 0);
}

struct type_either { /* bf16 or fp16, as a.type says: for kernels that compute in neither */
};
template <> __device__ __forceinline__ void put<type_either>(const struct paged &a, int64_t at, float x)
{
    ((uint16_t *)a.o)[at] = (uint16_t)(a.type == DT_BF16 ? type_bf16::pack(x, 0) : type_f16::pack(x, 0));
}

/* Work of one thread block. */
struct work {
    struct item it;
    int kv, head, heads, from, end, split; /* pieces [from, end); split < 0: all of them */
    int64_t line;                          /* of parts */
};

ON_GPU struct work work_of(const struct paged &a)
{
    const int chunks = (a.group + ROWS - 1) / ROWS;
    int index = blockIdx.x;
    struct work w;
    w.split = a.splits > 1 ? index % a.splits : -1, index /= a.splits;
    const int chunk = index % chunks;
    index /= chunks;
    w.kv = index % a.kv_heads, index /= a.kv_heads;
    w.it = item_of(a, index);
    w.head = w.kv * a.group + chunk * ROWS, w.heads = min(ROWS, (w.kv + 1) * a.group - w.head);
    w.line = (int64_t)index * a.heads + w.head;
    const int first = a.window ? max(w.it.position - a.window + 1, 0) : 0;
    w.from = first / CUDA_PAGED_PIECE, w.end = w.it.position / CUDA_PAGED_PIECE + 1;
    if (w.split >= 0) w.from = max(w.from, w.split), w.end = min(w.end, w.split + 1);
    return w;
}

/* A token without a row. */
template <class type> ON_GPU void blank(const struct paged &a, const struct work &w)
{
    if (w.split > 0 || w.it.token < 0) return;
    for (int i = threadIdx.x; i < w.heads * a.size; i += THREADS)
        put<type>(a, ((int64_t)w.it.token * a.heads + w.head) * a.size + i, 0);
}

/* WALK: how a warp meets the 64 keys that it has of a piece. */
template <class type, class WALK> __global__ void __launch_bounds__(THREADS, 2) decode(const struct paged a)
{
    constexpr int SETS = WALK::sets, HALVES = WALK::halves;
    __shared__ __align__(16) float room[WARPS][8 * HALVES][SETS * 64 + CUDA_PAGED_STAT];
    const int warp = threadIdx.x / 32;
    next_may_begin();
    const struct work w = work_of(a);
    WALK c;
    int key = w.from * CUDA_PAGED_PIECE + warp * CHUNK;
    const bool some = w.it.row >= 0 && w.from < w.end, mine = some && key <= w.it.position;
    const int old = w.it.context - key;
    if (mine) c.at = find_chunk(a, w.it, w.kv, key), c.load_old(a, old);
    await_previous();
    if (w.it.row < 0) blank<type>(a, w);
    if (!some) return;
    const int64_t at = ((int64_t)w.it.token * a.heads + w.head) * a.size;
    lines<SETS, HALVES> all;
    all.clear();
    if (mine) {
        c.load_rest(a, old, w.it.position - key);
        uint32_t q[SETS * 4][4];
        WALK::load_queries(a, at, w.heads, q);
        for (int piece = w.from; piece < w.end && key <= w.it.position; piece++, key += CUDA_PAGED_PIECE) {
            lines<SETS, HALVES> chunk;
            c.meet(a, w.it, w.kv, key, piece + 1 < w.end, q, chunk);
            all.join(chunk, a.scale2);
        }
    }
    if (w.split >= 0) {
        if (mine) all.leave(a.size, w.heads, [&](int l) { return part_at(a, w.line + l, w.split, warp); });
        return;
    }
    all.leave(a.size, w.heads, [&](int l) { return room[warp][l]; });
    __syncthreads();
    const int d = threadIdx.x % (SETS * 64), stride = sizeof room[0] / sizeof(float);
    for (int l = threadIdx.x / (SETS * 64); l < w.heads; l += THREADS / (SETS * 64))
        if (d < a.size)
            put<type>(a, at + l * a.size + d, join_warps(room[0][l], stride, a.size, d, a.scale2));
}

/* The chunks of a line, a block to a line: as decode does it where it has all pieces. */
template <class type> __global__ void __launch_bounds__(THREADS) join(const struct paged a)
{
    __shared__ float room[WARPS][ATTN_MMA_SIZE + CUDA_PAGED_STAT];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    next_may_begin();
    const struct item it = item_of(a, (int)(blockIdx.x / a.heads));
    await_previous();
    if (it.row < 0) return;
    const int first = a.window ? max(it.position - a.window + 1, 0) : 0;
    float top = -INFINITY, sum = 0, out[ATTN_MMA_SIZE / 32] = {};
    for (int piece = first / CUDA_PAGED_PIECE; piece * CUDA_PAGED_PIECE + warp * CHUNK <= it.position;
         piece++) {
        const float *part = part_at(a, blockIdx.x, piece, warp);
        const float more_top = part[a.size], more = part[a.size + 1];
#pragma unroll
        for (int j = 0; j < ATTN_MMA_SIZE / 32; j++)
            if (j * 32 + lane < a.size)
                out[j] = paged_joined(out[j], top, sum, part[j * 32 + lane], more_top, more, a.scale2);
        const float both = paged_joined(sum, top, sum, more, more_top, more, a.scale2);
        top = paged_joined_top(top, sum, more_top, more), sum = both;
    }
#pragma unroll
    for (int j = 0; j < ATTN_MMA_SIZE / 32; j++)
        if (j * 32 + lane < a.size) room[warp][j * 32 + lane] = out[j];
    if (lane == 0) room[warp][a.size] = top, room[warp][a.size + 1] = sum;
    __syncthreads();
    const int64_t at = ((int64_t)it.token * a.heads + blockIdx.x % a.heads) * a.size;
    if (threadIdx.x < a.size)
        put<type>(a, at + threadIdx.x,
                  join_warps(room[0], sizeof room[0] / sizeof(float), a.size, threadIdx.x, a.scale2));
}

/* Blocks of threads that have all work_of's. */
static int64_t decode_blocks(const struct paged &a)
{
    return fewest(a.tokens, a.nrows) * a.kv_heads * parts_of(a.group, ROWS) * a.splits;
}

/* Joins the pieces that a kernel before left, which is one that awaits. */
template <class type> int start_join(const struct cuda_queue *queue, const struct paged &a)
{
    if (a.splits == 1) return 0;
    struct cuda_queue behind = *queue;
    behind.follows = queue->warpgroups;
    return launch(&behind, join<type>, fewest(a.tokens, a.nrows) * a.heads, THREADS, 0, a);
}

/* WALK<sets, halves> of the shape. */
template <class type, template <int, int> class WALK>
int start_decode(const struct cuda_queue *queue, const struct paged &a)
{
    auto kernel = a.size <= 64   ? a.group <= 8 ? decode<type, WALK<1, 1>> : decode<type, WALK<1, 2>>
                    : a.group <= 8 ? decode<type, WALK<2, 1>>
                                 : decode<type, WALK<2, 2>>;
    int failed = launch(queue, kernel, decode_blocks(a), THREADS, 0, a);
    return failed ? failed : start_join<type>(queue, a);
}

} // namespace
