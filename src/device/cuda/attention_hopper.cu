/* attention_hopper.cu - attention forward on the tensor cores of capability 9.0: warpgroup multiplications.
 *
 * A warpgroup has 64 queries of one head, their fragments in registers. Blocks of 64 keys and values stream
 * through buffers that all warpgroups of a block share. Per key block a warpgroup multiplies for scores,
 * makes probabilities, and starts the multiplication with the values; that one is waited for only together with
 * the next scores, so the tensor cores go from one to the other without a pause. While a warpgroup works on its
 * probabilities, others multiply.
 *
 * Buffers: block i goes to buffer i % STAGES. When all threads have passed the barrier of block i, every warpgroup
 * has waited for its multiplication with values i - 2 and may still be in that with values i - 1; block i + AHEAD is
 * then loaded over block i - 2.
 */
#include "device/cuda/attention_hopper.cuh"
#include "device/cuda/attention_score.cuh"
#include "device/cuda/attention_softmax.cuh"

namespace
{

enum { STAGES = 4, AHEAD = 2 };

template <int width> struct cut {
    enum {
        GROUPS = width == 64 ? 2 : 3, /* warpgroups of a block */
        BLOCKS = width == 64 ? 2 : 1, /* of a multiprocessor */
        WAITS = width > 64,           /* for the values at once: registers do not suffice otherwise */
        THREADS = GROUPS * WG_THREADS,
        LOADERS = GROUPS == 1 ? 128 : 256,
        ROWS = GROUPS * WG_ROWS,
        STAGE = 2 * wg_tile<width>::BYTES, /* keys, then values */
        SHARED = WG_ALIGN + STAGES * STAGE + ROWS * 8 + (ROWS / 32 + 1) * 16,
    };
    static_assert(THREADS / 32 * 16 * tile<width>::ROW_BYTES <= STAGES * STAGE,
                  "results fit into the buffers");
};

/* Leaves the keys of every query, and the spans of every 32; returns that of all. Holds a barrier. */
template <int rows>
ON_GPU struct attn_span see(const struct attn &a, int b, int row, int2 *ranges, int4 *spans)
{
    if (threadIdx.x < rows) {
        int2 range = attn_visible(a, b, min(row + (int)threadIdx.x, a.time - 1));
        ranges[threadIdx.x] = range;
        struct attn_span s = attn_warp_span(range, true);
        if (threadIdx.x % 32 == 0)
            spans[threadIdx.x / 32] = make_int4(s.low, s.high, s.first_most, s.last_least);
    }
    __syncthreads();
    struct attn_span all = attn_no_span();
    for (int i = 0; i < rows / 32; i++) all = attn_join(all, attn_unpack(spans[i]));
    return all;
}

template <class type, int width, bool biased>
static __global__ void __launch_bounds__(cut<width>::THREADS, cut<width>::BLOCKS) forward(const struct attn a)
{
#if WG_BODY
    typedef struct cut<width> cut;
    const int group = threadIdx.x / WG_THREADS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    char *pool = wg_pool();
    int2 *ranges = (int2 *)(pool + STAGES * cut::STAGE);
    int4 *spans = (int4 *)(ranges + cut::ROWS);
    const uint32_t stage0 = shared_address(pool);
    const int tiles = (a.time + cut::ROWS - 1) / cut::ROWS;
    struct attn_place at = attn_place_of(a.batch * a.heads, tiles, a.section, true);
    const int b = at.head / a.heads, h = at.head % a.heads, row = at.tile * cut::ROWS + warp * 16;
    const struct attn_span all = see<cut::ROWS>(a, b, at.tile * cut::ROWS, ranges, spans);
    const int from = all.low, end = all.high + 1;
    int key = from / WG_STREAM * WG_STREAM;
    const struct head_rows k = key_rows(a, a.k, b, h / a.group);
    const int64_t values = (const char *)a.v - (const char *)a.k;
    struct wg_loader<width, cut::LOADERS> loader;
    loader.start(k, key);
    for (int i = 0; i < AHEAD; i++, loader.advance(WG_STREAM * k.stride, WG_STREAM)) {
        if (key + i * WG_STREAM < end) loader.load(stage0 + i * cut::STAGE, values, k.stride, from, end);
        copy_commit();
    }
    uint32_t q[width / 16][4];
    wg_fragments<width>(q, query_rows(a, a.q, b, h), row, a.time);
    struct soft_rows<width, 1> r;
    r.clear();

    for (int turn = 0; key < end; key += WG_STREAM, turn = (turn + 1) % STAGES) {
        const uint32_t stage = stage0 + turn * cut::STAGE;
        copy_wait<AHEAD - 1>();
        wgmma_publish();
        __syncthreads();
        if (key + AHEAD * WG_STREAM < end)
            loader.load(stage0 + (turn + AHEAD) % STAGES * cut::STAGE, values, k.stride, from, end);
        loader.advance(WG_STREAM * k.stride, WG_STREAM);
        copy_commit();
        const struct attn_span mine = /* read again: registers are short */
            attn_join(attn_unpack(spans[2 * group]), attn_unpack(spans[2 * group + 1]));
        if (attn_meets(mine, key, WG_STREAM)) {
            float s[1][WG_STREAM / 8][4];
            wgmma_begin();
            wg_scores<type, width>(s, q, stage);
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_settled(s), wgmma_settled(r.out);
            if (biased) bias_tile<false>(s, a.scale, attn_line(a, h), row + lane / 4, key + lane % 4 * 2);
            if (attn_needs_mask(mine, key, WG_STREAM)) soft_mask(s, ranges + warp * 16, key, lane);
            soften(s, r, a.scale2);
            uint32_t p[WG_STREAM / 16][4];
            wg_pack<type>(p, s);
            wgmma_begin();
            wg_collect<type, width>(r.out, p, stage + wg_tile<width>::BYTES);
            wgmma_commit();
            if (cut::WAITS) wgmma_wait<0>();
        } else {
            wgmma_wait<0>();
        }
    }
    wgmma_wait<0>();
    wgmma_settled(r.out);
    __syncthreads();
    at =
        attn_place_at(block_again(), a.batch * a.heads, tiles, a.section, true); /* no registers until here */
    soft_finish<type>(a, pool + warp * 16 * tile<width>::ROW_BYTES, r, at.head / a.heads, at.head % a.heads,
                      at.tile * cut::ROWS + warp * 16);
#else
    __trap();
#endif
}

template <int width, bool biased> static int launch(const struct cuda_queue *queue, struct attn *a)
{
    typedef struct cut<width> cut;
    a->section = attn_section(a, a->keys, a->batch * a->heads, 2);
    int64_t tiles = (a->time + cut::ROWS - 1) / cut::ROWS;
    return attn_launch(a->type == DT_BF16 ? forward<type_bf16, width, biased>
                                          : forward<type_f16, width, biased>,
                       (int64_t)a->batch * a->heads * tiles, cut::THREADS, cut::SHARED, queue, a);
}

} // namespace

/* Holds shared memory exactly where kernels of warpgroups have a body. */
static __global__ void body(void)
{
#if WG_BODY
    __shared__ volatile int mark[4];
    mark[threadIdx.x % 4] = 1;
#endif
}

/* A card of capability 9.0 may have been given portable code all the same. */
extern "C" bool cuda_attn_has_warpgroups(void)
{
    cudaFuncAttributes of;
    if (cudaFuncGetAttributes(&of, body) == cudaSuccess) return of.sharedSizeBytes > 0;
    cudaGetLastError();
    return false;
}

extern "C" int cuda_attn_hopper(const struct cuda_queue *queue, struct attn *a)
{
    return a->size <= 64 ? launch<64, false>(queue, a) : launch<128, false>(queue, a);
}

extern "C" int cuda_attn_hopper_biased(const struct cuda_queue *queue, struct attn *a)
{
    return a->size <= 64 ? launch<64, true>(queue, a) : launch<128, true>(queue, a);
}
