/* attention_paged_decode.cu - tokens that are alone in their row, on the tensor cores: what memory gives is the limit.
 *
 * A block of threads has one token and up to 16 query heads of one kv head. It takes keys in pieces of CUDA_PAGED_PIECE, a warp
 * 64 of them: four blocks. A lane loads 16 bytes of keys or values as they lie, and all of a warp's loads are under way
 * before the first is used. The order of the sums inside a product of matrices is free, so nothing is moved between
 * lanes: with g = lane / 4 and t = lane % 4
 *
 *     scores   lane (g, t) has 8 keys of half a block, 8 g .. 8 g + 7 of the 64, for elements t, t + 4, t + 8, t + 12 of
 *              every 16 of the head. Words of two elements of one key are B of product j for key 8 g + j; what comes out,
 *              columns 2 t and 2 t + 1 of product j, are keys 16 t + j and 16 t + 8 + j: block t
 *     output   so lane (g, t) has the probabilities of block t, four of them for each step, as A; it loads elements
 *              8 g .. 8 g + 7 of the same keys' values, and product j is for elements 8 g + j
 *
 * Invariants
 *  1. A warp joins its chunks of one piece after the other, in order, and at the end the warps are joined, in order. Where
 *     there are few tokens a piece is a block's work and a second kernel joins the chunks by the same operations: a
 *     token's bits depend on its own row alone.
 *  2. Blocks behind the token's position are not read, and values of such positions count as 0.
 *  3. Keys before the row's context are older than this step: they are read before what was queued earlier has ended
 *     (overlap.cuh), those of the step itself afterwards.
 */
#include "device/cuda/attention_paged.cuh"
#include "device/cuda/attention_ptx.cuh"
#include "device/cuda/overlap.cuh"

namespace
{

enum { WARPS = CUDA_PAGED_WARPS, THREADS = 32 * WARPS, CHUNK = 64, ROWS = 16 };
static_assert(CUDA_PAGED_PIECE == WARPS * CHUNK, "a warp has a chunk of each piece");

/* Eight neighbouring elements of the pool as 16-bit words. Keys and values of another type than the queries' are
 * another struct like this. */
struct kv_16bit {
    ON_GPU uint4 eight(const void *pool, int64_t at) { return *(const uint4 *)((const uint16_t *)pool + at); }
};

ON_GPU uint32_t word_of(const uint4 &x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }

/* Element j of x and of y as one word. */
ON_GPU uint32_t pair_of(const uint4 &x, const uint4 &y, int j)
{
    return __byte_perm(word_of(x, j / 2), word_of(y, j / 2), j % 2 ? 0x7632 : 0x5410);
}

/* The token a block of threads has; row < 0: there is none, and o is 0 if the token is one at all. */
struct item {
    int row, token, position, context;
};

/* By token where there are as many rows, else by row: those of one token. */
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
        for (int r = 0; r < a.nrows && it.row < 0; r++)
            if (has(r)) it.row = r;
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
template <int SETS> struct keys {
    uint4 at[SETS * 4][4];
};
struct values { /* of one set */
    uint4 at[4][4];
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

template <class KV, int SETS>
ON_GPU void load_keys(const struct paged &a, const struct places &p, keys<SETS> &k)
{
#pragma unroll
    for (int s = 0; s < SETS * 4; s++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int d = s * 16 + threadIdx.x % 4 + 4 * i;
            k.at[s][i] =
                p.k >= 0 && d < a.size ? KV::eight(a.pool, p.k + d * KV_BLOCK) : make_uint4(0, 0, 0, 0);
        }
}

/* Loads the values of set `set`; `last` is the token's position relative to the chunk's first key. */
template <class KV>
ON_GPU void load_values(const struct paged &a, const struct places &p, int set, int last, values &v)
{
    const int lane = threadIdx.x % 32, mine = lane % 4 * KV_BLOCK;
    const bool have = p.v >= 0 && set * 64 + lane / 4 * 8 < a.size;
#pragma unroll
    for (int s = 0; s < 4; s++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            v.at[s][i] = have && mine + 4 * s + i <= last
                             ? KV::eight(a.pool, p.v + (4 * s + i) * a.size + set * 64)
                             : make_uint4(0, 0, 0, 0);
}

/* Fragments of the queries, in the order of elements in which keys come. */
template <int SETS>
ON_GPU void load_queries(const struct paged &a, int64_t at, int heads, uint32_t (&q)[SETS * 4][4])
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint16_t *from = (const uint16_t *)a.q + at;
#pragma unroll
    for (int s = 0; s < SETS * 4; s++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int line = g + i % 2 * 8, d = s * 16 + t + i / 2 * 8;
            uint32_t low = line < heads && d < a.size ? from[line * a.size + d] : 0;
            uint32_t high = line < heads && d + 4 < a.size ? from[line * a.size + d + 4] : 0;
            q[s][i] = low | high << 16;
        }
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

template <class type, int SETS>
ON_GPU void multiply_keys(float (&s)[8][4], const uint32_t (&q)[SETS * 4][4], const keys<SETS> &k)
{
#pragma unroll
    for (int step = 0; step < SETS * 4; step++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            type::multiply(s[j], q[step], pair_of(k.at[step][0], k.at[step][1], j),
                           pair_of(k.at[step][2], k.at[step][3], j));
}

/* Step i: keys 4 i .. 4 i + 3 of the lane's block. */
template <class type> ON_GPU void multiply_values(float (&out)[8][4], const float (&s)[8][4], const values &v)
{
#pragma unroll
    for (int step = 0; step < 4; step++) {
        const int j = step % 2 * 4, i = step / 2;
        const uint32_t p[4] = {type::pack(s[j][i], s[j + 1][i]), type::pack(s[j][2 + i], s[j + 1][2 + i]),
                               type::pack(s[j + 2][i], s[j + 3][i]),
                               type::pack(s[j + 2][2 + i], s[j + 3][2 + i])};
#pragma unroll
        for (int n = 0; n < 8; n++)
            type::multiply(out[n], p, pair_of(v.at[step][0], v.at[step][1], n),
                           pair_of(v.at[step][2], v.at[step][3], n));
    }
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

/* The 64 keys that a warp has of a piece. */
template <class type, class KV, int SETS, int HALVES> struct walk {
    /* Loads of the next chunk begin while this one is worked on, where there are registers for them. */
    static constexpr bool AHEAD = SETS == 1 && HALVES == 1;
    struct places at;
    keys<SETS> k;
    values v;

    /* Loads the `old` keys of the chunk that precede the step; load_rest loads the others. Each lane holds 8 keys and
     * 16 values. */
    __device__ __forceinline__ void load_old(const struct paged &a, int old)
    {
        if (!AHEAD) return;
        const struct places here = {threadIdx.x % 32 / 4 * 8 + 8 <= old ? at.k : -1, at.v};
        load_keys<KV>(a, here, k), load_values<KV>(a, here, 0, old - 1, v);
    }

    __device__ __forceinline__ void load_rest(const struct paged &a, int old, int last)
    {
        if (!AHEAD) return;
        if (threadIdx.x % 32 / 4 * 8 + 8 > old) load_keys<KV>(a, at, k);
        if (threadIdx.x % 4 * KV_BLOCK + KV_BLOCK > old) load_values<KV>(a, at, 0, last, v);
    }

    /* The lines over the chunk alone; `more`: the next piece's will be met. */
    __device__ __forceinline__ void meet(const struct paged &a, const struct item &it, int kv, int key,
                                         bool more, const uint32_t (&q)[SETS * 4][4], lines<SETS, HALVES> &w)
    {
        const int last = it.position - key, next = key + CUDA_PAGED_PIECE;
        const struct places here = at;
        float s[8][4] = {};
        if (!AHEAD) load_keys<KV>(a, at, k);
        multiply_keys<type, SETS>(s, q, k);
        more = more && next <= it.position;
        if (more) at = find_chunk(a, it, kv, next);
        if (AHEAD && more) load_keys<KV>(a, at, k);
        if (!AHEAD) load_values<KV>(a, here, 0, last, v);
        w.clear();
#pragma unroll
        for (int half = 0; half < HALVES; half++)
            soften(a, s, half, it.position, key, w.top[half], w.sum[half]);
#pragma unroll
        for (int set = 0; set < SETS; set++) {
            if (set > 0) load_values<KV>(a, here, set, last, v);
            multiply_values<type>(w.out[set], s, v);
        }
        if (AHEAD && more) load_values<KV>(a, at, 0, it.position - next, v);
    }
};

template <class type, class KV, int SETS, int HALVES>
__global__ void __launch_bounds__(THREADS, 2) decode(const struct paged a)
{
    __shared__ __align__(16) float room[WARPS][8 * HALVES][SETS * 64 + CUDA_PAGED_STAT];
    const int warp = threadIdx.x / 32;
    next_may_begin();
    const struct work w = work_of(a);
    walk<type, KV, SETS, HALVES> c;
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
        load_queries<SETS>(a, at, w.heads, q);
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

template <class type, int SETS>
int start_lines(const struct cuda_queue *queue, const struct paged &a, int64_t blocks)
{
    return a.group <= 8 ? launch(queue, decode<type, kv_16bit, SETS, 1>, blocks, THREADS, 0, a)
                        : launch(queue, decode<type, kv_16bit, SETS, 2>, blocks, THREADS, 0, a);
}

template <class type> int start(const struct cuda_queue *queue, const struct paged &a)
{
    const int64_t items = fewest(a.tokens, a.nrows);
    const int64_t blocks = items * a.kv_heads * parts_of(a.group, ROWS) * a.splits;
    int failed =
        a.size <= 64 ? start_lines<type, 1>(queue, a, blocks) : start_lines<type, 2>(queue, a, blocks);
    if (failed || a.splits == 1) return failed;
    struct cuda_queue behind = *queue; /* the first kernel is one that awaits */
    behind.follows = queue->warpgroups;
    return launch(&behind, join<type>, items * a.heads, THREADS, 0, a);
}

} // namespace

int cuda_paged_decode(const struct cuda_queue *queue, const struct paged *a)
{
    return a->type == DT_BF16 ? start<type_bf16>(queue, *a) : start<type_f16>(queue, *a);
}
