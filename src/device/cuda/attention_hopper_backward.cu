/* attention_hopper_backward.cu - the two passes of attention_backward.cu by warpgroups, on capability 9.0.
 *
 * A warpgroup owns 64 rows; fragments of them stay in registers where those suffice, else the rows stay in shared
 * memory. Blocks of 64 streaming rows go through buffers, AHEAD blocks ahead. Per block a warpgroup starts both
 * products S and dP, makes P from the first, dS from both, and starts the products for the gradients, which are
 * waited for together with the next S (or at once). The order of buffers is that of attention_hopper.cu. With a bias the
 * queries pass gathers its gradient from dS while the tensor cores multiply with it.
 */
#include "device/cuda/attention_backward.cuh"
#include "device/cuda/attention_bias_sums.cuh"
#include "device/cuda/attention_hopper.cuh"

namespace
{

enum { AHEAD = 2 };

/* GROUPS: warpgroups of a block, 1 or 2. BLOCKS: of a multiprocessor. KEEPS: fragments of the owned rows stay in
 * registers. WAITS: for the gradients at once, where registers do not suffice otherwise; with a bias they never do.
 * STAGES: buffers; three suffice where nothing of the block before is under way. */
template <int width, bool keys> struct cut;
template <> struct cut<64, true> {
    enum { GROUPS = 1, BLOCKS = 2, KEEPS = 1, WAITS = 0, STAGES = 4 };
};
template <> struct cut<64, false> {
    enum { GROUPS = 1, BLOCKS = 3, KEEPS = 1, WAITS = 1, STAGES = 3 };
};
template <> struct cut<128, true> {
    enum { GROUPS = 2, BLOCKS = 1, KEEPS = 0, WAITS = 1, STAGES = 4 };
};
template <> struct cut<128, false> {
    enum { GROUPS = 2, BLOCKS = 1, KEEPS = 1, WAITS = 1, STAGES = 4 };
};

template <int width, bool keys> struct room {
    static_assert(cut<width, keys>::STAGES > AHEAD + 1 || cut<width, keys>::WAITS,
                  "a block is not loaded over one in use");
    enum {
        GROUPS = cut<width, keys>::GROUPS,
        THREADS = GROUPS * WG_THREADS,
        ROWS = GROUPS * WG_ROWS,
        STAGES = cut<width, keys>::STAGES,
        STAGE = 2 * wg_tile<width>::BYTES,
        OWNED = cut<width, keys>::KEEPS
                    ? 0
                    : GROUPS * 2 * wg_tile<width>::BYTES, /* per group tensor 1, tensor 2 */
        STATS = keys ? 2 * STREAM * 4 : 0,                /* of a streaming block */
        ALL = WG_ALIGN + OWNED + STAGES * (STAGE + STATS),
        RESULT = 16 * tile<width>::ROW_BYTES, /* of a warp and tensor */
    };
    static_assert(2 * THREADS / 32 * RESULT <= OWNED + STAGES * STAGE, "results fit into the buffers");
};

/* The two owned tensors of a warpgroup. */
template <int width, bool keeps> struct owned;
template <int width> struct owned<width, true> {
    uint32_t kept[2][width / 16][4];
    __device__ __forceinline__ void take(int i, struct head_rows x, int row, int end, uint32_t)
    {
        wg_fragments<width>(kept[i], x, row + threadIdx.x / 32 % 4 * 16, end);
    }
    template <class type>
    __device__ __forceinline__ void scores(int i, float (&s)[1][STREAM / 8][4], uint32_t x) const
    {
        wg_scores<type, width>(s, kept[i], x);
    }
};
template <int width> struct owned<width, false> {
    uint32_t at;
    __device__ __forceinline__ void take(int, struct head_rows, int, int, uint32_t to) { at = to; }
    template <class type>
    __device__ __forceinline__ void scores(int i, float (&s)[1][STREAM / 8][4], uint32_t x) const
    {
        wg_scores<type, width>(s, at + i * wg_tile<width>::BYTES, x);
    }
};

/* A streaming block, of the h-th query head of the work. */
struct cursor {
    int block, h;
};

template <bool keys> ON_GPU struct cursor next_block(const struct work &w, struct cursor at)
{
    const bool same = at.block < w.last;
    struct cursor next = {same || !keys ? at.block + 1 : w.first, same ? at.h : at.h + 1};
    return next;
}

/* Loads streaming blocks in the order of next_block. */
template <int width, bool keys> struct stream {
    struct wg_loader<width, room<width, keys>::THREADS> loader;
    int64_t second, stride;

    __device__ __forceinline__ void start(const struct attn &a, const struct work &w)
    {
        const struct head_rows x = keys ? query_rows(a, a.q, w.b, w.h) : key_rows(a, a.k, w.b, w.n);
        second = keys ? (const char *)a.grad - (const char *)a.q : (const char *)a.v - (const char *)a.k;
        stride = x.stride;
        loader.start(x, w.first * STREAM);
    }
    /* The block `at`; then on to the next. */
    __device__ __forceinline__ void load(const struct attn &a, const struct work &w, uint32_t to,
                                         uint32_t stats, struct cursor at)
    {
        loader.load(to, second, stride, w.from, w.end);
        if (keys) load_stream_stats(a, stats, w.b, w.h + at.h, at.block * STREAM);
        if (!keys || at.block < w.last)
            loader.advance(STREAM * stride, STREAM);
        else
            loader.advance(a.size - (w.last - w.first) * STREAM * stride, -(w.last - w.first) * STREAM);
    }
};

/* Owned rows: of the warpgroup's 64 from `row` on; in shared memory the tiles of all groups are loaded by all. */
template <int width, bool keys>
ON_GPU void load_owned(const struct attn &a, const struct work &w, uint32_t to, int row,
                       struct owned<width, cut<width, keys>::KEEPS> &own)
{
    const struct head_rows x1 = keys ? key_rows(a, a.k, w.b, w.n) : query_rows(a, a.q, w.b, w.h);
    const struct head_rows x2 = keys ? key_rows(a, a.v, w.b, w.n) : query_rows(a, a.grad, w.b, w.h);
    const int end = keys ? a.keys : a.time, group = threadIdx.x / WG_THREADS;
    own.take(0, x1, row, end, to + group * 2 * wg_tile<width>::BYTES);
    own.take(1, x2, row, end, to + group * 2 * wg_tile<width>::BYTES);
    for (int i = 0; i < (cut<width, keys>::KEEPS ? 0 : room<width, keys>::GROUPS); i++) {
        struct wg_loader<width, room<width, keys>::THREADS> loader;
        loader.start(x1, w.row + i * WG_ROWS);
        loader.load(to + 2 * i * wg_tile<width>::BYTES, (const char *)x2.base - (const char *)x1.base,
                    x1.stride, 0, end);
    }
}

/* Where a warp sums the bias's gradient: in shared memory behind the buffers. The address is computed at each use, which saves a register. */
template <int width> ON_GPU float *sums_of(const struct attn &a, int warp)
{
    typedef struct room<width, false> room;
    char *to = wg_pool() + room::OWNED + room::STAGES * (room::STAGE + room::STATS);
    return (float *)to + warp * bias_floats<1, STREAM / 8>(a);
}

/* A warpgroup's 64 rows from `row` on and the streaming block at stream_row, in the buffer `stage`; span: of the
 * queries among them. */
template <class type, int width, bool keys, bool biased>
ON_GPU void meet(const struct attn &a, const struct work &w,
                 const struct owned<width, cut<width, keys>::KEEPS> &own, const struct stats<keys, 1> &stat,
                 struct attn_span span, uint32_t stage, int row, int stream_row, int h,
                 float (&d1)[1][width / 8][4], float (&d2)[1][width / 8][4])
{
    const int key = keys ? row : stream_row, lane = threadIdx.x % 32, mine = row + threadIdx.x / 32 % 4 * 16;
    if (!attn_meets(span, key, WG_ROWS)) {
        wgmma_wait<0>();
        return;
    }
    float s[1][STREAM / 8][4], dp[1][STREAM / 8][4];
    wgmma_begin();
    own.template scores<type>(0, s, stage);
    wgmma_commit();
    own.template scores<type>(1, dp, stage + wg_tile<width>::BYTES);
    wgmma_commit();
    wgmma_wait<1>();
    wgmma_settled(s);
    if (biased) bias_tile<keys>(s, a.scale, attn_line(a, h), mine + lane / 4, stream_row + lane % 4 * 2);
    if (attn_needs_mask(span, key, WG_ROWS))
        mask<keys>(s, a.range + (int64_t)w.b * a.padded, mine + lane / 4, stream_row + lane % 4 * 2);
    probabilities(s, stat, 0, a.scale2);
    uint32_t x[STREAM / 16][4], y[STREAM / 16][4];
    if (keys) wg_pack<type>(x, s);
    wgmma_wait<0>();
    wgmma_settled(dp);
    differentials(dp, s, stat, 0);
    wg_pack<type>(y, dp);
    wgmma_begin();
    if (keys) wg_collect<type, width>(d2, x, stage + wg_tile<width>::BYTES);
    wg_collect<type, width>(d1, y, stage);
    wgmma_commit();
    if (biased && !keys && a.bias_tiles)
        bias_add(a, sums_of<width>(a, thread_again() / 32), dp, stream_row - mine);
    if (biased || cut<width, keys>::WAITS) wgmma_wait<0>();
}

template <class type, int width, bool keys, bool biased> ON_GPU void walk(const struct attn &a)
{
    typedef struct room<width, keys> room;
    const int group = threadIdx.x / WG_THREADS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const struct work w = work_of<room::ROWS, keys>(a);
    const int row = w.row + group * WG_ROWS, heads = keys ? a.group : 1;
    char *pool = wg_pool();
    const uint32_t owned0 = shared_address(pool), stage0 = owned0 + room::OWNED,
                   stats0 = stage0 + room::STAGES * room::STAGE;
    struct owned<width, cut<width, keys>::KEEPS> own;
    load_owned<width, keys>(a, w, owned0, row, own);
    const bool any = w.first <= w.last;
    struct cursor at = {w.first, any ? 0 : heads}, ahead = at;
    struct stream<width, keys> stream;
    stream.start(a, w);
    for (int i = 0; i < AHEAD; i++, ahead = next_block<keys>(w, ahead)) {
        if (ahead.h < heads) stream.load(a, w, stage0 + i * room::STAGE, stats0 + i * room::STATS, ahead);
        copy_commit();
    }
    struct stats<keys, 1> stat;
    load_stats<keys, 1>(a, w, w.row + warp * 16, stat);
    float d1[1][width / 8][4], d2[1][width / 8][4];
    clear(d1), clear(d2);
    if (biased && !keys && a.bias_tiles) bias_clear<1, STREAM / 8>(a, sums_of<width>(a, warp));

    for (int turn = 0; at.h < heads; at = next_block<keys>(w, at), turn = (turn + 1) % room::STAGES) {
        const int grain = (keys ? at.block * STREAM : row) / ATTN_GRAIN; /* of two, the queries' */
        const struct attn_span span = attn_join(attn_span_at(a, w.b, grain), attn_span_at(a, w.b, grain + 1));
        copy_wait<AHEAD - 1>();
        wgmma_publish();
        __syncthreads();
        const int to = (turn + AHEAD) % room::STAGES;
        if (!keys) ahead.block = at.block + AHEAD, ahead.h = ahead.block > w.last; /* saves registers */
        if (ahead.h < heads) stream.load(a, w, stage0 + to * room::STAGE, stats0 + to * room::STATS, ahead);
        copy_commit();
        ahead = next_block<keys>(w, ahead);
        stat.stream = (const float *)(pool + room::OWNED + room::STAGES * room::STAGE + turn * room::STATS) +
                      lane % 4 * 2;
        meet<type, width, keys, biased>(a, w, own, stat, span, stage0 + turn * room::STAGE, row,
                                        at.block * STREAM, w.h + at.h, d1, d2);
    }
    wgmma_wait<0>();
    wgmma_settled(d1), wgmma_settled(d2);
    copy_wait<0>();
    __syncthreads();
    char *mine = pool + 2 * warp * room::RESULT;
    store<type, width, keys, 1>(a, w, mine, mine + room::RESULT, w.row + warp * 16, d1, d2);
    if (biased && !keys && a.bias_tiles)
        bias_finish<1, STREAM / 8, room::THREADS>(a, sums_of<width>(a, 0),
                                                  bias_sums_at(a, w.b, w.h, w.row / room::ROWS));
}

template <class type, int width, bool biased>
static __global__ void __launch_bounds__((room<width, true>::THREADS), (cut<width, true>::BLOCKS))
    keys_pass(const struct attn a)
{
#if WG_BODY
    walk<type, width, true, biased>(a);
#else
    __trap();
#endif
}

template <class type, int width, bool biased>
static __global__ void __launch_bounds__((room<width, false>::THREADS), (cut<width, false>::BLOCKS))
    queries_pass(const struct attn a)
{
#if WG_BODY
    walk<type, width, false, biased>(a);
#else
    __trap();
#endif
}

/* Shared memory for the bias's gradient, which the queries pass gathers if it has the room. */
template <int width> static size_t sums_bytes(const struct cuda_queue *queue, struct attn *a)
{
    typedef struct room<width, false> room;
    if (!a->bucket_sums) return 0;
    size_t bytes = (size_t)(room::THREADS / 32 * bias_floats<1, STREAM / 8>(*a)) * 4;
    if (room::ALL + bytes > queue->shared_most) return 0;
    a->bias_tiles = (a->time + room::ROWS - 1) / room::ROWS;
    return bytes;
}

template <int width, bool keys>
static int launch(const struct cuda_queue *queue, struct attn *a, attn_kernel *kernel)
{
    typedef struct room<width, keys> room;
    int rows = keys ? a->keys : a->time, heads = a->batch * (keys ? a->kv_heads : a->heads);
    size_t bytes = room::ALL + (keys ? 0 : sums_bytes<width>(queue, a));
    a->section = attn_section(a, keys ? (int64_t)a->time * a->group : a->keys, heads, 2);
    return attn_launch(kernel, (int64_t)heads * ((rows + room::ROWS - 1) / room::ROWS), room::THREADS, bytes,
                       queue, a);
}

template <class type, int width, bool biased>
static int launch_both(const struct cuda_queue *queue, struct attn *a)
{
    int status = launch<width, true>(queue, a, keys_pass<type, width, biased>);
    return status ? status : launch<width, false>(queue, a, queries_pass<type, width, biased>);
}

template <int width, bool biased> static int launch_type(const struct cuda_queue *queue, struct attn *a)
{
    return a->type == DT_BF16 ? launch_both<type_bf16, width, biased>(queue, a)
                              : launch_both<type_f16, width, biased>(queue, a);
}

} // namespace

extern "C" int cuda_attn_hopper_backward(const struct cuda_queue *queue, struct attn *a)
{
    return a->size <= 64 ? launch_type<64, false>(queue, a) : launch_type<128, false>(queue, a);
}

extern "C" int cuda_attn_hopper_backward_biased(const struct cuda_queue *queue, struct attn *a)
{
    return a->size <= 64 ? launch_type<64, true>(queue, a) : launch_type<128, true>(queue, a);
}
