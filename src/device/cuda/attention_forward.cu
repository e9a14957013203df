/* attention_forward.cu - attention forward on the tensor cores.
 *
 * A block has 128 queries of one head, a warp 32 of them; blocks of 64 keys and values stream through shared
 * memory, one block ahead of the arithmetic. Scores, probabilities and the output of a warp's rows stay in its
 * registers: scores come out of the multiplication in the layout that probabilities need to enter the next one.
 *
 * A warp passes over a key block that none of its rows sees, and masks only where an interval ends inside it.
 */
#include "device/cuda/attention_score.cuh"
#include "device/cuda/attention_softmax.cuh"

namespace
{

enum { ROWS = 128, KEYS = 64, HIGH = 2 };

template <int width> struct room {
    enum {
        QUERIES = ROWS * tile<width>::ROW_BYTES,
        STAGE = 2 * KEYS * tile<width>::ROW_BYTES, /* keys, then values */
        RANGES = ROWS * 8,
        SPANS = (MMA_WARPS + 1) * 16,
        KEEPS_QUERIES = width <= 64, /* fragments of queries stay in registers */
    };
};

static size_t room_bytes(int width, int stages)
{
    int row = 2 * (width + 8);
    return (size_t)(ROWS * row + stages * 2 * KEYS * row + ROWS * 8 + (MMA_WARPS + 1) * 16);
}

template <class type, int width>
ON_GPU void scores(float (&s)[HIGH][KEYS / 8][4], const uint32_t (&kept)[width / 16][HIGH][4],
                   uint32_t queries, uint32_t keys)
{
#pragma unroll
    for (int m = 0; m < HIGH; m++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[m][n][i] = 0;
#pragma unroll
    for (int step = 0; step < width / 16; step++) {
        if (room<width>::KEEPS_QUERIES) {
            multiply_rows<type, width, HIGH, KEYS>(s, kept[step], keys + step * 32);
        } else {
            uint32_t q[HIGH][4];
#pragma unroll
            for (int m = 0; m < HIGH; m++)
                load_matrices(q[m], queries + m * 16 * tile<width>::ROW_BYTES + step * 32);
            multiply_rows<type, width, HIGH, KEYS>(s, q, keys + step * 32);
        }
    }
}

/* Leaves the keys of every query and the spans of the warps and of the block; returns the latter. The caller's next
 * barrier makes it readable. */
ON_GPU struct attn_span see(const struct attn &a, int b, int row, int2 *ranges, int4 *spans)
{
    int2 range = attn_visible(a, b, min(row + (int)threadIdx.x, a.time - 1));
    ranges[threadIdx.x] = range;
    struct attn_span mine = attn_warp_span(range, true), all = attn_no_span();
    if (threadIdx.x % 32 == 0)
        spans[threadIdx.x / 32] = make_int4(mine.low, mine.high, mine.first_most, mine.last_least);
    __syncthreads();
    for (int i = 0; i < MMA_WARPS; i++) all = attn_join(all, attn_unpack(spans[i]));
    if (threadIdx.x == 0) spans[MMA_WARPS] = make_int4(all.low, all.high, all.first_most, all.last_least);
    return all;
}

template <int width>
ON_GPU void load_keys(const struct attn &a, uint32_t to, int b, int h, int key, struct attn_span all)
{
    const int n = h / a.group;
    load_rows<KEYS, width>(to, key_rows(a, a.k, b, n), key, all.low, all.high + 1);
    load_rows<KEYS, width>(to + room<width>::STAGE / 2, key_rows(a, a.v, b, n), key, all.low, all.high + 1);
}

/* Products of a warp's rows and the keys from `key` on become scores. row: this lane's first. */
ON_GPU void modify(const struct attn &a, float (&s)[HIGH][KEYS / 8][4], int b, int h, int row, int key)
{
    float slope;
#pragma unroll
    for (int m = 0; m < HIGH; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int query = attn_stands(a, b, min(row + m * 16 + half * 8, a.time - 1));
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++)
                    s[m][n][i] = attn_score(a, h, query, key + n * 8 + i % 2, s[m][n][i], &slope);
        }
    }
}

ON_GPU void drop(const struct attn &a, float (&s)[HIGH][KEYS / 8][4], int b, int h, int row, int key)
{
#pragma unroll
    for (int m = 0; m < HIGH; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int t = min(row + m * 16 + half * 8, a.time - 1);
            uint32_t line = attn_drop_line(a, b, h, attn_stands(a, b, t));
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++)
                    s[m][n][i] *= attn_keep(a, line, key + n * 8 + i % 2);
        }
    }
}

/* more: with what attention_score.cuh knows. */
template <class type, int width, bool more> ON_GPU void walk(const struct attn &a)
{
    typedef struct room<width> room;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    char *pool = shared_pool();
    int2 *ranges = (int2 *)(pool + room::QUERIES + a.stages * room::STAGE);
    const uint32_t queries = shared_address(pool), stage0 = queries + room::QUERIES;
    struct attn_place at = attn_place_of(a.batch * a.heads, (a.time + ROWS - 1) / ROWS, a.section, true);
    const int b = at.head / a.heads, h = at.head % a.heads, row = at.tile * ROWS;
    load_rows<ROWS, width>(queries, query_rows(a, a.q, b, h), row, 0, a.time);
    copy_commit();
    int4 *spans = (int4 *)(ranges + ROWS);
    const struct attn_span whole = see(a, b, row, ranges, spans);
    const int last = whole.high;
    int key = whole.low / KEYS * KEYS;
    if (a.stages == 2) load_keys<width>(a, stage0, b, h, key, whole);
    copy_commit();

    const uint32_t my_queries = queries + warp * 32 * tile<width>::ROW_BYTES + lane_a<width>(lane);
    uint32_t kept[width / 16][HIGH][4];
    if (room::KEEPS_QUERIES) {
        copy_wait<1>();
        __syncthreads();
#pragma unroll
        for (int step = 0; step < width / 16; step++)
#pragma unroll
            for (int m = 0; m < HIGH; m++)
                load_matrices(kept[step][m], my_queries + m * 16 * tile<width>::ROW_BYTES + step * 32);
    }
    struct soft_rows<width, HIGH> r;
    r.clear();

    uint32_t stage = stage0;
    for (; key <= last; key += KEYS) {
        if (a.stages == 2) copy_wait<0>();
        __syncthreads();
        const uint32_t next = a.stages == 2 && stage == stage0 ? stage0 + room::STAGE : stage0;
        const int ahead = key + (a.stages - 1) * KEYS;
        if (ahead <= last) load_keys<width>(a, next, b, h, ahead, attn_unpack(spans[MMA_WARPS]));
        copy_commit();
        if (a.stages == 1) {
            copy_wait<0>();
            __syncthreads();
        }
        const struct attn_span mine = attn_unpack(spans[warp]); /* read again: registers are short */
        if (attn_meets(mine, key, KEYS)) {
            float s[HIGH][KEYS / 8][4];
            scores<type, width>(s, kept, my_queries, stage + lane_b<width>(lane));
            const int first = row + warp * 32 + lane / 4, column = key + lane % 4 * 2;
            if (more && a.modified) modify(a, s, b, h, first, column);
            if (attn_needs_mask(mine, key, KEYS)) soft_mask(s, ranges + warp * 32, key, lane);
            soften(s, r, a.scale2);
            if (more && a.drop.below) drop(a, s, b, h, first, column);
            const uint32_t values = stage + room::STAGE / 2 + lane_turned<width>(lane);
#pragma unroll
            for (int step = 0; step < KEYS / 16; step++) {
                uint32_t p[HIGH][4];
                pack_step<type>(p, s, step);
                multiply_turned<type, width, HIGH>(r.out, p, values + step * 16 * tile<width>::ROW_BYTES);
            }
        }
        stage = next;
    }
    soft_finish<type>(a, pool + warp * 32 * tile<width>::ROW_BYTES, r, b, h, row + warp * 32);
}

template <class type, int width>
static __global__ void __launch_bounds__(MMA_THREADS, 2) forward(const struct attn a)
{
    walk<type, width, false>(a);
}

template <class type, int width>
static __global__ void __launch_bounds__(MMA_THREADS, 2) forward_more(const struct attn a)
{
    walk<type, width, true>(a);
}

static int launch(const struct cuda_queue *queue, struct attn *a, attn_kernel *kernel)
{
    int width = mma_width(a), tiles = (a->time + ROWS - 1) / ROWS;
    a->stages = room_bytes(width, 2) <= queue->shared_most ? 2 : 1;
    a->section = attn_section(a, a->keys, a->batch * a->heads, 2);
    return attn_launch(kernel, (int64_t)a->batch * a->heads * tiles, MMA_THREADS,
                       room_bytes(width, a->stages), queue, a);
}

} // namespace

extern "C" int cuda_attn_forward(const struct cuda_queue *queue, struct attn *a)
{
    return launch(queue, a, MMA_KERNEL(forward, a));
}

extern "C" int cuda_attn_forward_more(const struct cuda_queue *queue, struct attn *a)
{
    return launch(queue, a, MMA_KERNEL(forward_more, a));
}
