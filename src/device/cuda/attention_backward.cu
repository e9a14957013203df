/* attention_backward.cu - attention backward on the tensor cores: dK and dV in one pass, dQ in another.
 *
 * Both passes are the same walk. A block owns rows of one side and keeps their gradients in registers, while
 * blocks of 64 rows of the other side stream through shared memory:
 *
 *                 owned (1, 2)     streaming (1, 2)    scores S = 1 1'    dP = 2 2'    gradients
 *     keys        K, V             Q, dO               K Q'               V dO'        dK += dS Q, dV += P dO
 *     queries     Q, dO            K, V                Q K'               dO V'        dQ += dS K
 *
 * with P = exp(S - lse) and dS = P (dP - delta), both already in the layout in which they enter the next
 * multiplication. Seven products where five would do if the passes were one; but nothing is added up across
 * blocks, so no order has to be waited for, and P and dS never leave the registers. The keys pass goes over all
 * query heads of its kv head, one after the other.
 */
#include "device/cuda/attention_backward.cuh"
#include "device/cuda/attention_bias_sums.cuh"

namespace
{

/* How a pass is cut. HIGH: 16-row tiles a warp owns. WIDE: streaming rows it takes at a time. KEEPS: fragments of
 * the owned rows stay in registers. */
template <int width, bool keys> struct cut;
template <> struct cut<64, true> {
    enum { HIGH = 1, WIDE = 32, KEEPS = 1, BLOCKS = 3 };
};
template <> struct cut<64, false> {
    enum { HIGH = 2, WIDE = 32, KEEPS = 1, BLOCKS = 2 };
};
template <> struct cut<96, true> {
    enum { HIGH = 1, WIDE = 32, KEEPS = 0, BLOCKS = 2 };
};
template <> struct cut<96, false> {
    enum { HIGH = 1, WIDE = 32, KEEPS = 1, BLOCKS = 2 };
};
template <> struct cut<128, true> {
    enum { HIGH = 1, WIDE = 32, KEEPS = 0, BLOCKS = 2 };
};
template <> struct cut<128, false> {
    enum { HIGH = 1, WIDE = 32, KEEPS = 1, BLOCKS = 2 };
};

template <int width, bool keys> struct room {
    enum {
        ROWS = MMA_WARPS * 16 * cut<width, keys>::HIGH,
        OWNED = ROWS * tile<width>::ROW_BYTES,      /* of one owned tensor */
        STREAMED = STREAM * tile<width>::ROW_BYTES, /* of one streaming tensor */
        STATS = keys ? STREAM * 4 : 0,              /* lse2 of the streaming queries; likewise delta */
        STAGE = 2 * STREAMED + 2 * STATS,
    };
    static size_t bytes(int stages) { return (size_t)(2 * OWNED + stages * STAGE); }
};

template <int width, bool keys>
ON_GPU void load_stream(const struct attn &a, const struct work &w, uint32_t to, int h, int row)
{
    typedef struct room<width, keys> room;
    if (!keys) {
        load_rows<STREAM, width>(to, key_rows(a, a.k, w.b, w.n), row, w.from, w.end);
        load_rows<STREAM, width>(to + room::STREAMED, key_rows(a, a.v, w.b, w.n), row, w.from, w.end);
        return;
    }
    load_rows<STREAM, width>(to, query_rows(a, a.q, w.b, h), row, w.from, w.end);
    load_rows<STREAM, width>(to + room::STREAMED, query_rows(a, a.grad, w.b, h), row, w.from, w.end);
    load_stream_stats(a, to + 2 * room::STREAMED, w.b, h, row);
}

/* Fragments of the owned rows: kept in registers, or loaded step by step. */
template <int width, bool keys> struct owned {
    enum { HIGH = cut<width, keys>::HIGH, KEEPS = cut<width, keys>::KEEPS };
    uint32_t kept[KEEPS ? width / 16 : 1][HIGH][4];
    uint32_t at; /* this lane's row */

    __device__ __forceinline__ void load(uint32_t (&to)[HIGH][4], int step) const
    {
#pragma unroll
        for (int m = 0; m < HIGH; m++) load_matrices(to[m], at + m * 16 * tile<width>::ROW_BYTES + step * 32);
    }
    __device__ __forceinline__ void keep(void)
    {
#pragma unroll
        for (int step = 0; step < (KEEPS ? width / 16 : 0); step++) load(kept[step], step);
    }
    template <class type, int wide>
    __device__ __forceinline__ void multiply(float (&c)[HIGH][wide / 8][4], uint32_t rows) const
    {
#pragma unroll
        for (int m = 0; m < HIGH; m++)
#pragma unroll
            for (int n = 0; n < wide / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) c[m][n][i] = 0;
#pragma unroll
        for (int step = 0; step < width / 16; step++) {
            if constexpr (KEEPS) {
                multiply_rows<type, width, HIGH, wide>(c, kept[step], rows + step * 32);
            } else {
                uint32_t x[HIGH][4];
                load(x, step);
                multiply_rows<type, width, HIGH, wide>(c, x, rows + step * 32);
            }
        }
    }
};

/* One meeting: WIDE streaming rows, `column` rows into the stage at `stage`, of query head h of row b. */
template <class type, int width, bool keys, bool more, int high>
ON_GPU void meet(const struct attn &a, int b, int h, const struct owned<width, keys> (&own)[2],
                 const struct stats<keys, high> &stat, uint32_t stage, int column, const int2 *ranges,
                 int row, int stream_row, float (&d1)[high][width / 8][4], float (&d2)[high][width / 8][4],
                 float *sums)
{
    typedef struct room<width, keys> room;
    const int wide = cut<width, keys>::WIDE, lane = threadIdx.x % 32;
    const uint32_t at = stage + column * tile<width>::ROW_BYTES;
    float s[high][wide / 8][4], dp[high][wide / 8][4];
    own[0].template multiply<type, wide>(s, at + lane_b<width>(lane));
    own[1].template multiply<type, wide>(dp, at + room::STREAMED + lane_b<width>(lane));
    const int first = row + lane / 4, other = stream_row + column + lane % 4 * 2;
    float slope[more ? high : 1][more ? wide / 8 : 1][4], keep[more ? high : 1][more ? wide / 8 : 1][4];
    if constexpr (more) {
        if (a.cap > 0)
            score_tile<keys>(a, s, slope, h, first, other);
        else if (a.lines)
            bias_tile<keys>(s, a.scale, attn_line(a, h), first, other);
        if (a.drop.below) {
            keep_tile<keys>(a, keep, a.drop_lines + ((int64_t)b * a.heads + h) * a.padded, first, other);
            times(dp, keep);
        }
    }
    if (ranges) mask<keys>(s, ranges, first, other);
    probabilities(s, stat, column, a.scale2);
    differentials(dp, s, stat, column);
    if constexpr (more) {
        if (!keys && a.bias_tiles) bias_add(a, sums, dp, stream_row + column - row);
        if (a.drop.below) times(s, keep);
        if (a.cap > 0) times(dp, slope);
    }
#pragma unroll
    for (int step = 0; step < wide / 16; step++) {
        uint32_t x[high][4];
        const uint32_t rows = at + step * 16 * tile<width>::ROW_BYTES + lane_turned<width>(lane);
        if (keys) {
            pack_step<type>(x, s, step);
            multiply_turned<type, width, high>(d2, x, rows + room::STREAMED);
        }
        pack_step<type>(x, dp, step);
        multiply_turned<type, width, high>(d1, x, rows);
    }
}

/* A streaming block and a warp's rows: WIDE streaming rows at a time, those that nothing sees are passed over. */
template <class type, int width, bool keys, bool more, int high>
ON_GPU void meet_block(const struct attn &a, const struct work &w, int h,
                       const struct owned<width, keys> (&own)[2], const struct stats<keys, high> &stat,
                       uint32_t stage, int row, int stream_row, float (&d1)[high][width / 8][4],
                       float (&d2)[high][width / 8][4], float *sums)
{
    const int wide = cut<width, keys>::WIDE, rows = 16 * high;
    static_assert(!keys || wide == ATTN_GRAIN, "a span belongs to the queries that are taken at a time");
#pragma unroll 1
    for (int column = 0; column < STREAM; column += wide) {
        const int key = keys ? row : stream_row + column, count = keys ? rows : wide;
        const struct attn_span span = attn_span_at(a, w.b, (keys ? stream_row + column : row) / ATTN_GRAIN);
        if (!attn_meets(span, key, count)) continue;
        const int2 *ranges = attn_needs_mask(span, key, count) ? a.range + (int64_t)w.b * a.padded : 0;
        meet<type, width, keys, more, high>(a, w.b, h, own, stat, stage, column, ranges, row, stream_row, d1,
                                            d2, sums);
    }
}

/* Owned rows to shared memory. */
template <int width, bool keys>
ON_GPU void load_owned(const struct attn &a, const struct work &w, uint32_t to)
{
    typedef struct room<width, keys> room;
    if (keys) {
        load_rows<room::ROWS, width>(to, key_rows(a, a.k, w.b, w.n), w.row, 0, a.keys);
        load_rows<room::ROWS, width>(to + room::OWNED, key_rows(a, a.v, w.b, w.n), w.row, 0, a.keys);
    } else {
        load_rows<room::ROWS, width>(to, query_rows(a, a.q, w.b, w.h), w.row, 0, a.time);
        load_rows<room::ROWS, width>(to + room::OWNED, query_rows(a, a.grad, w.b, w.h), w.row, 0, a.time);
    }
}

template <class type, int width, bool keys, bool more> ON_GPU void walk(const struct attn &a)
{
    typedef struct room<width, keys> room;
    const int high = cut<width, keys>::HIGH, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const struct work w = work_of<room::ROWS, keys>(a);
    const int row = w.row + warp * 16 * high, heads = keys ? a.group : 1;
    char *pool = shared_pool();
    const uint32_t owned0 = shared_address(pool), stage0 = owned0 + 2 * room::OWNED;
    load_owned<width, keys>(a, w, owned0);
    copy_commit();
    const bool any = w.first <= w.last;
    if (any && a.stages == 2) load_stream<width, keys>(a, w, stage0, w.h, w.first * STREAM);
    copy_commit();

    struct owned<width, keys> own[2];
    own[0].at = owned0 + warp * 16 * high * tile<width>::ROW_BYTES + lane_a<width>(lane);
    own[1].at = own[0].at + room::OWNED;
    copy_wait<1>();
    __syncthreads();
    own[0].keep();
    own[1].keep();
    struct stats<keys, high> stat;
    load_stats<keys, high>(a, w, row, stat);
    float d1[high][width / 8][4], d2[high][width / 8][4];
    clear(d1), clear(d2);
    const int wide = cut<width, keys>::WIDE;
    float *sums = 0; /* of the bias's gradient, this warp's */
    if constexpr (more && !keys) {
        sums = (float *)(pool + 2 * room::OWNED + a.stages * room::STAGE);
        if (a.bias_tiles) sums += warp * bias_floats<high, wide / 8>(a), bias_clear<high, wide / 8>(a, sums);
    }

    int block = w.first, h = 0;
    uint32_t stage = stage0;
    while (any && h < heads) {
        if (a.stages == 2) copy_wait<0>();
        __syncthreads();
        const uint32_t next = a.stages == 2 && stage == stage0 ? stage0 + room::STAGE : stage0;
        const int next_block = block < w.last ? block + 1 : w.first, next_h = block < w.last ? h : h + 1;
        const int ahead = a.stages == 2 ? next_block : block, ahead_h = a.stages == 2 ? next_h : h;
        if (ahead_h < heads) load_stream<width, keys>(a, w, next, w.h + ahead_h, ahead * STREAM);
        copy_commit();
        if (a.stages == 1) {
            copy_wait<0>();
            __syncthreads();
        }
        stat.stream = (const float *)(pool + (stage - owned0) + 2 * room::STREAMED) + lane % 4 * 2;
        meet_block<type, width, keys, more, high>(a, w, w.h + h, own, stat, stage, row, block * STREAM, d1,
                                                  d2, sums);
        stage = next, block = next_block, h = next_h;
    }
    copy_wait<0>();
    __syncthreads();
    char *mine = pool + warp * 16 * high * tile<width>::ROW_BYTES;
    store<type, width, keys, high>(a, w, mine, mine + room::OWNED, row, d1, d2);
    if constexpr (more && !keys) {
        if (a.bias_tiles)
            bias_finish<high, wide / 8, MMA_THREADS>(a, sums - warp * bias_floats<high, wide / 8>(a),
                                                     bias_sums_at(a, w.b, w.h, w.row / room::ROWS));
    }
}

template <class type, int width>
static __global__ void __launch_bounds__(MMA_THREADS, (cut<width, true>::BLOCKS))
    keys_pass(const struct attn a)
{
    walk<type, width, true, false>(a);
}

template <class type, int width>
static __global__ void __launch_bounds__(MMA_THREADS, (cut<width, false>::BLOCKS))
    queries_pass(const struct attn a)
{
    walk<type, width, false, false>(a);
}

/* keys_pass with the features of attention_score.cuh; registers matter more than blocks here. */
template <class type, int width>
static __global__ void __launch_bounds__(MMA_THREADS, 2) keys_pass_more(const struct attn a)
{
    walk<type, width, true, true>(a);
}

template <class type, int width>
static __global__ void __launch_bounds__(MMA_THREADS, 2) queries_pass_more(const struct attn a)
{
    walk<type, width, false, true>(a);
}

/* Shared memory for the bias's gradient, which the queries pass gathers if it has the room. */
template <int width, bool keys> static size_t sums_bytes(const struct cuda_queue *queue, struct attn *a)
{
    typedef struct room<width, keys> room;
    if (keys || !a->bucket_sums) return 0;
    size_t bytes =
        (size_t)(MMA_WARPS * bias_floats<cut<width, keys>::HIGH, cut<width, keys>::WIDE / 8>(*a)) * 4;
    if (room::bytes(1) + bytes > queue->shared_most) return 0;
    a->bias_tiles = (a->time + room::ROWS - 1) / room::ROWS;
    return bytes;
}

template <int width, bool keys>
static int launch(const struct cuda_queue *queue, struct attn *a, attn_kernel *kernel)
{
    typedef struct room<width, keys> room;
    int rows = keys ? a->keys : a->time, heads = a->batch * (keys ? a->kv_heads : a->heads);
    const size_t sums = sums_bytes<width, keys>(queue, a);
    a->stages = room::bytes(2) + sums <= queue->shared_most ? 2 : 1;
    a->section = attn_section(a, keys ? (int64_t)a->time * a->group : a->keys, heads, 2);
    return attn_launch(kernel, (int64_t)heads * ((rows + room::ROWS - 1) / room::ROWS), MMA_THREADS,
                       room::bytes(a->stages) + sums, queue, a);
}

template <bool keys>
static int launch_width(const struct cuda_queue *queue, struct attn *a, attn_kernel *kernel)
{
    if (a->size <= 64) return launch<64, keys>(queue, a, kernel);
    if (a->size <= 96) return launch<96, keys>(queue, a, kernel);
    return launch<128, keys>(queue, a, kernel);
}

} // namespace

extern "C" int cuda_attn_backward(const struct cuda_queue *queue, struct attn *a)
{
    int status = launch_width<true>(queue, a, MMA_KERNEL(keys_pass, a));
    return status ? status : launch_width<false>(queue, a, MMA_KERNEL(queries_pass, a));
}

extern "C" int cuda_attn_backward_more(const struct cuda_queue *queue, struct attn *a)
{
    int status = launch_width<true>(queue, a, MMA_KERNEL(keys_pass_more, a));
    return status ? status : launch_width<false>(queue, a, MMA_KERNEL(queries_pass_more, a));
}
