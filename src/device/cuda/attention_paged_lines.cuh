/* attention_paged_lines.cuh - attention of single tokens over blocks: which keys a block of threads has, and how results of parts of them are
 * joined (attention_paged_decode.cuh has the invariants). */
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

/* A row as the step has it; read ahead of item_of by who takes several. */
struct row_words {
    int first, count, context;
};

ON_GPU struct row_words row_words_of(const struct paged &a, int row)
{
    if (row >= a.nrows) return {};
    return {a.rows[3 * row], a.rows[3 * row + 1], a.rows[3 * row + 2]};
}

/* By token where there are as many rows, else by row: those of one token. `own` is row `index`, which has that token when all
 * decode. Asked by whole warps. A token that is only there to fill the step up has no row, and there may be hundreds of them:
 * lanes look through the rows together. */
ON_GPU struct item item_of(const struct paged &a, int index, struct row_words own)
{
    struct item it = {-1, -1, 0, 0};
    if (a.tokens > a.nrows) {
        if (own.count != 1) return it;
        it.row = index, it.token = own.first;
    } else {
        it.token = index;
        auto has = [&](struct row_words r) { return index >= r.first && index < r.first + r.count; };
        if (has(own)) it.row = index;
        for (int r = threadIdx.x % 32; it.row < 0 && r - (int)threadIdx.x % 32 < a.nrows; r += 32) {
            it.row = __reduce_max_sync(0xffffffffu, has(row_words_of(a, r)) ? r : -1);
            if (it.row >= 0) own = row_words_of(a, it.row);
        }
        if (it.row < 0) return it;
    }
    it.context = own.context, it.position = it.context + it.token - own.first;
    return it;
}

ON_GPU struct item item_of(const struct paged &a, int index)
{
    return item_of(a, index, row_words_of(a, index));
}

/* True if a line at `position` sees all 64 keys from `key` on. */
ON_GPU bool sees_all(const struct paged &a, int position, int key)
{
    return key + CHUNK - 1 <= position && (!a.window || position - a.window + 1 <= key);
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

ON_GPU void put(const struct paged &a, int64_t at, float x)
{
    ((uint16_t *)a.o)[at] = (uint16_t)(a.type == DT_BF16 ? type_bf16::pack(x, 0) : type_f16::pack(x, 0));
}

/* Work of one thread block, or of one turn of it. */
struct work {
    struct item it;
    int kv, head, heads, from, end, split; /* pieces [from, end); split < 0: all of them */
    int64_t line;                          /* of parts */
};

/* Works without their pieces: each token has its kv heads' lines, 16 at a time. Where pieces are works of their own, those of all first pieces
 * come first, and so on. */
ON_GPU int works_of_item(const struct paged &a) { return (a.group + ROWS - 1) / ROWS * a.kv_heads; }
ON_GPU int works_of_piece(const struct paged &a) { return min(a.tokens, a.nrows) * works_of_item(a); }

ON_GPU int item_of_work(const struct paged &a, int index)
{
    return (a.splits > 1 ? index % works_of_piece(a) : index) / works_of_item(a);
}

/* How many of `works` have a key: a table has room for longer rows than the step has. Asked by whole warps. */
ON_GPU int works_with_keys(const struct paged &a, int works)
{
    int keys = 1;
    if (a.splits == 1) return works;
    for (int r = threadIdx.x % 32; r < a.nrows; r += 32) {
        const struct row_words row = row_words_of(a, r);
        keys = max(keys, row.context + row.count);
    }
    keys = __reduce_max_sync(0xffffffffu, keys);
    return min(works, ((keys - 1) / CUDA_PAGED_PIECE + 1) * works_of_piece(a));
}

/* `own`: the words of row item_of_work. */
ON_GPU struct work work_of(const struct paged &a, int index, struct row_words own)
{
    const int chunks = (a.group + ROWS - 1) / ROWS;
    struct work w;
    int chunk = 0;
    w.split = -1;
    if (a.splits > 1) w.split = index / works_of_piece(a), index -= w.split * works_of_piece(a);
    if (chunks > 1) chunk = index % chunks, index /= chunks;
    const int item = index / a.kv_heads;
    w.kv = index - item * a.kv_heads;
    w.it = item_of(a, item, own);
    w.head = w.kv * a.group + chunk * ROWS, w.heads = min(ROWS, (w.kv + 1) * a.group - w.head);
    w.line = (int64_t)item * a.heads + w.head;
    const int first = a.window ? max(w.it.position - a.window + 1, 0) : 0;
    w.from = first / CUDA_PAGED_PIECE, w.end = w.it.position / CUDA_PAGED_PIECE + 1;
    if (w.split >= 0) w.from = max(w.from, w.split), w.end = min(w.end, w.split + 1);
    return w;
}

/* The first element of a work's lines in o, and in q. */
ON_GPU int64_t result_at(const struct paged &a, const struct work &w)
{
    return ((int64_t)w.it.token * a.heads + w.head) * a.size;
}

/* A token without a row. */
ON_GPU void blank(const struct paged &a, const struct work &w)
{
    if (w.split > 0 || w.it.token < 0) return;
    for (int i = threadIdx.x; i < w.heads * a.size; i += THREADS)
        put(a, ((int64_t)w.it.token * a.heads + w.head) * a.size + i, 0);
}

/* The chunks of a line, a block to a line: as decode does it where it has all pieces. */
static __global__ void __launch_bounds__(THREADS) join(const struct paged a)
{
    __shared__ float room[WARPS][ATTN_MMA_SIZE + CUDA_PAGED_STAT];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    next_may_begin();
    const struct item it = item_of(a, (int)(blockIdx.x / a.heads));
    await_previous();
    if (it.row < 0) return;
    const int first = a.window ? max(it.position - a.window + 1, 0) : 0;
    enum { EACH = ATTN_MMA_SIZE / 32, AHEAD = 8 }; /* pieces whose results are loaded at a time */
    const int end = (it.position - warp * CHUNK) / CUDA_PAGED_PIECE + (it.position >= warp * CHUNK);
    float top = -INFINITY, sum = 0, out[EACH] = {};
    for (int piece = first / CUDA_PAGED_PIECE; piece < end; piece += AHEAD) {
        float more[AHEAD][EACH], more_top[AHEAD], more_sum[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const bool have = piece + i < end;
            const float *part = part_at(a, blockIdx.x, have ? piece + i : piece, warp);
            more_top[i] = part[a.size], more_sum[i] = have ? part[a.size + 1] : 0;
#pragma unroll
            for (int j = 0; j < EACH; j++) more[i][j] = j * 32 + lane < a.size ? part[j * 32 + lane] : 0;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const struct paged_shares by = paged_shares_of(top, sum, more_top[i], more_sum[i], a.scale2);
#pragma unroll
            for (int j = 0; j < EACH; j++) out[j] = paged_joined(out[j], more[i][j], by);
            top = paged_joined_top(top, sum, more_top[i], more_sum[i]);
            sum = paged_joined(sum, more_sum[i], by);
        }
    }
#pragma unroll
    for (int j = 0; j < ATTN_MMA_SIZE / 32; j++)
        if (j * 32 + lane < a.size) room[warp][j * 32 + lane] = out[j];
    if (lane == 0) room[warp][a.size] = top, room[warp][a.size + 1] = sum;
    __syncthreads();
    const int64_t at = ((int64_t)it.token * a.heads + blockIdx.x % a.heads) * a.size;
    if (threadIdx.x < a.size)
        put(a, at + threadIdx.x,
            join_warps(room[0], sizeof room[0] / sizeof(float), a.size, threadIdx.x, a.scale2));
}

/* How many works there are. */
static int64_t decode_works(const struct paged &a)
{
    return fewest(a.tokens, a.nrows) * a.kv_heads * parts_of(a.group, ROWS) * a.splits;
}

/* Joins the pieces that a kernel before left, which is one that awaits. */
static int start_join(const struct cuda_queue *queue, const struct paged &a)
{
    if (a.splits == 1) return 0;
    struct cuda_queue behind = *queue;
    behind.follows = queue->warpgroups;
    return launch(&behind, join, fewest(a.tokens, a.nrows) * a.heads, THREADS, 0, a);
}

} // namespace
