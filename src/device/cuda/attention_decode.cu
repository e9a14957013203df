/* attention_decode.cu - few queries over a long cache: the keys are split over blocks, then joined in order.
 *
 * Rows are the queries of all heads of a group, (t, head) in that order, 16 to a tile: a key is read once for all
 * of them. What the rows of a tile see is cut into `splits` pieces of equal size, a block to each; the four warps
 * of a block take 16 keys in turn, each with its own maximum, sum and output and its own two buffers, so that
 * they never wait for one another. Warps are joined in order, then pieces, in order, by a second kernel.
 */
#include "device/cuda/attention_mma.cuh"
#include "device/cuda/overlap.cuh"

namespace
{

enum { ROWS = 16, KEYS = 16, PIECE = MMA_WARPS * KEYS, JOIN_ROWS = 4 };

/* A warp's state for its 16 rows. */
template <int width> struct rows {
    float out[1][width / 8][4];
    float top[2], sum[2]; /* sum: this lane's share */
};

/* Work of one thread block: `row` is the first of the tile; [key, end) are among the keys that the tile sees. */
struct piece {
    int b, n, row, key, end;
};

template <int width> struct room {
    enum {
        TENSOR = KEYS * tile<width>::ROW_BYTES,
        STAGE = 2 * TENSOR,
        WARP = 2 * STAGE,
        ALL = MMA_WARPS * WARP,
    };
    static_assert(MMA_WARPS * ROWS * (width + 2) * 4 <= ALL, "the outputs of all warps fit into the buffers");
};

ON_GPU int row_count(const struct attn &a) { return a.time * a.group; }

ON_GPU int2 row_range(const struct attn &a, int b, int row)
{
    return attn_visible(a, b, min(row, row_count(a) - 1) / a.group);
}

ON_GPU int64_t row_at(const struct attn &a, int b, int n, int row)
{
    return attn_query_at(a, b, row / a.group, n * a.group + row % a.group);
}

ON_GPU struct piece piece_of(const struct attn &a)
{
    const int tiles = (row_count(a) + ROWS - 1) / ROWS, split = blockIdx.x % a.splits,
              rest = blockIdx.x / a.splits;
    struct piece p = {rest / tiles / a.kv_heads, rest / tiles % a.kv_heads, rest % tiles * ROWS, 0, 0};
    struct attn_span all = attn_warp_span(row_range(a, p.b, p.row + threadIdx.x % ROWS), true);
    int each = (all.high + 1 - all.low + a.splits - 1) / a.splits;
    each = (each + PIECE - 1) / PIECE * PIECE;
    p.key = min(all.low + split * each, all.high + 1);
    p.end = min(p.key + each, all.high + 1);
    return p;
}

/* 16 rows of keys and of values by one warp. */
template <int width> ON_GPU void load_keys(const struct attn &a, const struct piece &p, uint32_t to, int key)
{
    const int pieces = tile<width>::PIECES;
    const struct head_rows k = key_rows(a, a.k, p.b, p.n), v = key_rows(a, a.v, p.b, p.n);
#pragma unroll
    for (int i = 0; i < KEYS * pieces / 32; i++) {
        int index = threadIdx.x % 32 + i * 32, r = index / pieces, c = index % pieces;
        int64_t at = (key + r) * k.stride + c * 8;
        bool have = key + r < p.end && c * 8 < a.size;
        copy16(to + r * tile<width>::ROW_BYTES + c * 16, k.base + at, have);
        copy16(to + room<width>::TENSOR + r * tile<width>::ROW_BYTES + c * 16, v.base + at, have);
    }
}

/* Fragments of the queries, straight from global memory. */
template <int width>
ON_GPU void load_queries(const struct attn &a, const struct piece &p, uint32_t (&q)[width / 16][1][4])
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < width / 16; step++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = p.row + lane / 4 + i % 2 * 8, column = step * 16 + lane % 4 * 2 + i / 2 * 8;
            bool have = row < row_count(a) && column < a.size;
            q[step][0][i] =
                have ? *(const uint32_t *)((const uint16_t *)a.q + row_at(a, p.b, p.n, row) + column) : 0;
        }
    }
}

/* 16 keys: scores, probabilities, output. see: the keys of this lane's two rows. */
template <class type, int width>
ON_GPU void meet(const struct attn &a, const uint32_t (&q)[width / 16][1][4], struct rows<width> &r,
                 const int2 (&see)[2], uint32_t stage, int key)
{
    const int lane = threadIdx.x % 32;
    float s[1][KEYS / 8][4] = {};
#pragma unroll
    for (int step = 0; step < width / 16; step++)
        multiply_rows<type, width, 1, KEYS>(s, q[step], stage + lane_b<width>(lane) + step * 32);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = r.top[half];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *x = &s[0][i / 2][2 * half + i % 2];
            int at = key + i / 2 * 8 + lane % 4 * 2 + i % 2;
            if (at < see[half].x || at > see[half].y) *x = -INFINITY;
            top = fmaxf(top, *x);
        }
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        float base = top == -INFINITY ? 0.0f : top;
        float fade = exp2_fast((r.top[half] - base) * a.scale2);
        r.top[half] = top, r.sum[half] *= fade;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *x = &s[0][i / 2][2 * half + i % 2];
            *x = exp2_fast((*x - base) * a.scale2);
            r.sum[half] += *x;
        }
#pragma unroll
        for (int n = 0; n < width / 8; n++) r.out[0][n][2 * half] *= fade, r.out[0][n][2 * half + 1] *= fade;
    }
    uint32_t p[1][4];
    pack_step<type>(p, s, 0);
    multiply_turned<type, width, 1>(r.out, p, stage + room<width>::TENSOR + lane_turned<width>(lane));
}

ON_GPU void put(const struct attn &a, int64_t at, float x)
{
    uint16_t *to = (uint16_t *)a.o + at;
    *to = (uint16_t)(a.type == DT_BF16 ? type_bf16::pack(x, 0) : type_f16::pack(x, 0));
}

/* Result of row `row`: to its place, or to its piece's. The caller gives every column to some thread. */
ON_GPU void put_stat(const struct attn &a, int b, int n, int row, float top, float sum)
{
    int64_t head = (int64_t)b * a.heads + n * a.group + row % a.group;
    a.lse[head * a.time + row / a.group] = top * a.scale + logf(sum);
}

ON_GPU int64_t part_at(const struct attn &a, int b, int n, int split, int row)
{
    return (((int64_t)b * a.kv_heads + n) * a.splits + split) * row_count(a) + row;
}

/* The warps' outputs [warp][row][width], then their statistics [warp][row][2], are joined in order. */
template <int width>
ON_GPU void join_warps(const struct attn &a, const struct piece &p, const float *out, const float *stat)
{
    for (int i = threadIdx.x; i < ROWS * width; i += MMA_THREADS) {
        int r = i / width, column = i % width, row = p.row + r;
        if (row >= row_count(a) || column >= a.size) continue;
        float top = -INFINITY, sum = 0, x = 0;
        for (int w = 0; w < MMA_WARPS; w++) top = fmaxf(top, stat[(w * ROWS + r) * 2]);
        float base = top == -INFINITY ? 0.0f : top;
        for (int w = 0; w < MMA_WARPS; w++) {
            float fade = exp2_fast((stat[(w * ROWS + r) * 2] - base) * a.scale2);
            sum += fade * stat[(w * ROWS + r) * 2 + 1];
            x += fade * out[(w * ROWS + r) * width + column];
        }
        if (a.splits == 1) {
            put(a, row_at(a, p.b, p.n, row) + column, x / sum);
            if (column == 0) put_stat(a, p.b, p.n, row, top, sum);
            continue;
        }
        int64_t part = part_at(a, p.b, p.n, blockIdx.x % a.splits, row);
        a.part[part * a.size + column] = x;
        if (column == 0) a.part_stat[part * 2] = top, a.part_stat[part * 2 + 1] = sum;
    }
}

/* A warp's rows to shared memory, for join_warps. */
template <int width> ON_GPU void leave(const struct rows<width> &r, float *out, float *stat)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = warp * ROWS + half * 8 + lane / 4;
        float sum = r.sum[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (lane % 4 == 0) stat[row * 2] = r.top[half], stat[row * 2 + 1] = sum;
#pragma unroll
        for (int n = 0; n < width / 8; n++) {
            float *to = out + row * width + n * 8 + lane % 4 * 2;
            to[0] = r.out[0][n][2 * half], to[1] = r.out[0][n][2 * half + 1];
        }
    }
}

template <class type, int width>
static __global__ void __launch_bounds__(MMA_THREADS, 3) decode(const struct attn a)
{
    typedef struct room<width> room;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    next_may_begin();
    await_previous();
    const struct piece p = piece_of(a);
    char *pool = shared_pool();
    const uint32_t stage0 = shared_address(pool) + warp * room::WARP;
    int key = p.key + warp * KEYS;
    if (key < p.end) load_keys<width>(a, p, stage0, key);
    copy_commit();
    uint32_t q[width / 16][1][4];
    load_queries<width>(a, p, q);
    const int2 see[2] = {row_range(a, p.b, p.row + lane / 4), row_range(a, p.b, p.row + lane / 4 + 8)};
    struct rows<width> r = {
    };
    r.top[0] = r.top[1] = -INFINITY;
    for (int turn = 0; key < p.end; key += PIECE, turn ^= 1) {
        if (key + PIECE < p.end) load_keys<width>(a, p, stage0 + (turn ^ 1) * room::STAGE, key + PIECE);
        copy_commit();
        copy_wait<1>();
        __syncwarp();
        meet<type, width>(a, q, r, see, stage0 + turn * room::STAGE, key);
        __syncwarp();
    }
    copy_wait<0>();
    __syncthreads();
    float *out = (float *)pool, *stat = out + MMA_WARPS * ROWS * width;
    leave<width>(r, out, stat);
    __syncthreads();
    join_warps<width>(a, p, out, stat);
}

/* The pieces of a row, in order: a warp to a row. A piece without keys has the sum 0. */
static __global__ void __launch_bounds__(JOIN_ROWS * 32) join(const struct attn a)
{
    const int lane = threadIdx.x % 32, rows = row_count(a);
    int64_t index = (int64_t)blockIdx.x * JOIN_ROWS + threadIdx.x / 32;
    next_may_begin();
    await_previous();
    if (index >= (int64_t)a.batch * a.kv_heads * rows) return;
    const int row = (int)(index % rows), n = (int)(index / rows % a.kv_heads),
              b = (int)(index / rows / a.kv_heads);
    float top = -INFINITY, sum = 0, out[ATTN_MMA_SIZE / 32] = {};
    for (int i = 0; i < a.splits; i++) top = fmaxf(top, a.part_stat[part_at(a, b, n, i, row) * 2]);
    for (int i = 0; i < a.splits; i++) {
        const int64_t part = part_at(a, b, n, i, row);
        float fade = exp2_fast((a.part_stat[part * 2] - top) * a.scale2);
        sum += fade * a.part_stat[part * 2 + 1];
#pragma unroll
        for (int j = 0; j < ATTN_MMA_SIZE / 32; j++)
            if (j * 32 + lane < a.size) out[j] += fade * a.part[part * a.size + j * 32 + lane];
    }
#pragma unroll
    for (int j = 0; j < ATTN_MMA_SIZE / 32; j++)
        if (j * 32 + lane < a.size) put(a, row_at(a, b, n, row) + j * 32 + lane, out[j] / sum);
    if (lane == 0) put_stat(a, b, n, row, top, sum);
}

} // namespace

extern "C" int cuda_attn_decode(const struct cuda_queue *queue, struct attn *a)
{
    int width = mma_width(a), rows = a->time * a->group, tiles = (rows + ROWS - 1) / ROWS;
    int64_t heads = (int64_t)a->batch * a->kv_heads;
    size_t shared = (size_t)MMA_WARPS * 4 * KEYS * 2 * (width + 8);
    attn_kernel *kernel = MMA_KERNEL(decode, a);
    int status = (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)shared);
    if (!status) status = launch(queue, kernel, heads * tiles * a->splits, MMA_THREADS, shared, *a);
    if (status || a->splits == 1) return status;
    return launch(queue, join, parts_of(heads * rows, JOIN_ROWS), JOIN_ROWS * 32, 0, *a);
}
