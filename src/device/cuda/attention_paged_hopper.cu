/* attention_paged_hopper.cu - rows of several tokens over their blocks by warpgroups (capability 9.0), for all types of keys.
 *
 * As attention_paged_tiles.cuh, with 64 lines to a warpgroup. Queries stay in registers, and all warpgroups of a block share the keys and
 * values that stream through shared memory, 64 at a time. A tile of keys is [D][64], as keys lie in their blocks, a tile of values [64][D];
 * both are in the layout of attention_wgmma.cuh.
 *
 * Step i behind its barrier, of every warpgroup:
 *
 *     products       the tensor cores begin to multiply, keys i + 1 for their scores first, then probabilities i and values i
 *     blocks         16 bits: those of i + 3 are on their way into a tile
 *                    8 bits: those of i + 4 are on their way as they are, and those of i + 2 become fp16 numbers in a tile
 *     scores i + 1   become probabilities while the products of values i are made
 *
 * So tiles i to i + 2 (8 bits) or i + 3 (16 bits) are in use in step i, and no product is under way at its end.
 */
#include "device/cuda/attention_hopper.cuh"
#include "device/cuda/attention_paged_tiles.cuh"
#include "device/cuda/barrier.cuh"
extern "C" {
#include "tensor/kv8.h"
}

namespace
{

enum { ROUND = 3 }; /* buffers of blocks in 8 bits */

template <int width, bool coded> struct cut {
    enum {
        GROUPS = 2,                   /* warpgroups of a block */
        ON_ONE = width == 64 ? 2 : 1, /* of a multiprocessor: heads of 128 take all registers */
        THREADS = GROUPS * WG_THREADS,
        LINES = GROUPS * WG_ROWS,
        STAGES = coded ? 3 : 4,
        KEY_TILE = width * KEYS * 2,
        STAGE = 2 * KEY_TILE, /* keys, then values */
        SCALES = STAGES * STAGE + LINES * 8 + LINES / 32 * 16,
        BLOCKS_AT = SCALES + STAGES * KEYS * 4, /* in 8 bits; behind them a barrier for each buffer */
        SHARED = WG_ALIGN + BLOCKS_AT + ROUND * 8,
    };
    static_assert(THREADS / 32 * 16 * tile<width>::ROW_BYTES <= STAGES * STAGE, "results fit into the tiles");
};

/* Where piece p of row r of a block of 64 columns lies. */
ON_GPU int swizzled(int r, int p) { return r * 128 + ((p ^ r % 8) * 16); }

/* Fragments of 16 lines from `first` on; zeros where there is no line. */
template <class type, bool coded, int width>
ON_GPU void load_fragments(uint32_t (&q)[width / 16][4], const struct paged &a, const struct lines &t,
                           int first)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int line = first + lane / 4 + i * 8;
        const bool have = line < t.count * a.group;
        const uint16_t *from = (const uint16_t *)a.q + (have ? line_at(a, t, line) : 0);
#pragma unroll
        for (int n = 0; n < width / 8; n++) {
            const int column = n * 8 + lane % 4 * 2;
            const uint32_t x = have && column < a.size ? *(const uint32_t *)(from + column) : 0;
            q[n / 2][n % 2 * 2 + i] = coded ? as_f16<type>(x) : x;
        }
    }
}

/* Where a step's blocks begin in the pool: lanes b, b + 4, ... have block b. Read one step before it is needed. */
ON_GPU int look_up(const struct paged &a, const struct lines &t, int key, int last)
{
    const int b = threadIdx.x % BLOCKS;
    return key + b * KV_BLOCK <= last ? a.blocks[(int64_t)t.row * a.reach + key / KV_BLOCK + b] : 0;
}

/* Starts copying keys [key, key + 64) of 16 bits and their values; zeros behind `last`, where no block is read. mine: of look_up. WHOLE: all keys
 * are there, and heads as wide as tiles: addresses are then constants apart. */
template <int width, int threads, bool WHOLE>
ON_GPU void load_tiles(const struct paged &a, const struct lines &t, uint32_t to, int mine, int key, int last)
{
    const int pieces = width / 8, thread = thread_again(), size = WHOLE ? width : a.size;
    const int each = width * 2; /* pieces of a block's keys, and of its values */
    static_assert(each % threads == 0 || threads % each == 0, "a thread's pieces lie alike in all blocks");
    const uint32_t values = to + width * KEYS * 2;
#pragma unroll
    for (int n = 0; n < BLOCKS * each; n += threads) {
        const int b = (n + thread) / each, i = (n + thread) % each, r = i / pieces, p = i % pieces;
        const bool block = WHOLE || key + b * KV_BLOCK <= last;
        const int number = __shfl_sync(0xffffffffu, mine, b);
        const uint16_t *from = (const uint16_t *)a.pool + (block ? paged_at(a, number, t.kv) : 0);
        const bool keys = block && (WHOLE || i / 2 < size); /* two pieces to an element of 16 keys */
        const bool have = block && (WHOLE || (key + b * KV_BLOCK + r <= last && p * 8 < size));
        copy16(to + swizzled(i / 2, b * 2 + i % 2), from + (keys ? i * 8 : 0), keys);
        copy16(values + p / 8 * wg_tile<width>::BLOCK + swizzled(b * KV_BLOCK + r, p % 8),
               from + (have ? a.plane + r * size + p * 8 : 0), have);
    }
}

/* The first warp starts copying blocks of keys [key, key + 64) as they are: keys and values of a block after each other, eight copies that
 * arrive at a barrier. */
ON_GPU void load_blocks(const struct paged &a, const struct lines &t, uint32_t to, uint32_t barrier, int mine,
                        int key, int last)
{
#if __CUDA_ARCH__ >= 900
    const int lane = threadIdx.x, count = min((last - key) / KV_BLOCK + 1, (int)BLOCKS), chunk = (int)a.chunk;
    const char *from = (const char *)a.pool + paged_at(a, mine, t.kv) + (lane < BLOCKS ? 0 : a.plane);
    if (lane == 0) barrier_expect(barrier, 2 * count * chunk);
    __syncwarp();
    if (lane < 2 * BLOCKS && lane % BLOCKS < count)
        barrier_copy(to + (lane % BLOCKS * 2 + lane / BLOCKS) * chunk, from, chunk, barrier);
#endif
}

/* Sixteen codes as two pieces of a row. */
template <class CODES> ON_GPU void place16(char *row, int p, int r, const uint4 &codes, float by, bool scale)
{
    const uint2 low = make_uint2(codes.x, codes.y), high = make_uint2(codes.z, codes.w);
    *(uint4 *)(row + ((p ^ r % 8) * 16)) = scale ? numbers8<CODES>(low, by) : numbers8<CODES>(low);
    *(uint4 *)(row + (((p + 1) ^ r % 8) * 16)) = scale ? numbers8<CODES>(high, by) : numbers8<CODES>(high);
}

/* Makes tiles of load_raw's bytes, and scales[KEYS] of keys. `last`: relative to the step's first key; behind it all is 0. Lanes are spread
 * such that eight neighbours read and write different banks. WHOLE: as in load_tiles. */
template <int width, int threads, class CODES, bool WHOLE>
ON_GPU void widen_tiles(const struct paged &a, const char *raw, char *to, float *scales, int last)
{
    const int size = WHOLE ? width : a.size, codes = KV_BLOCK * size, thread = thread_again();
    const int chunk = WHOLE ? KV_BLOCK * (width + KV8_SCALE) : (int)a.chunk;
    const uint4 none = make_uint4(0, 0, 0, 0);
    static_assert(BLOCKS * width % threads == 0 && KEYS <= threads, "all threads have the same work");
#pragma unroll
    for (int i = thread, n = 0; n < BLOCKS * width / threads; n++, i += threads) { /* 16 keys of an element */
        const int b = i / width, d = i % width;
        const bool have = WHOLE || (d < size && b * KV_BLOCK <= last);
        place16<CODES>(to + d * 128, b * 2, d,
                       have ? *(const uint4 *)(raw + b * 2 * chunk + d * KV_BLOCK) : none, 0, false);
    }
    if (thread < KEYS)
        scales[thread] =
            WHOLE || thread <= last
                ? ((const float *)(raw + thread / KV_BLOCK * 2 * chunk + codes))[thread % KV_BLOCK]
                : 0;
    to += cut<width, true>::KEY_TILE;
    const int quarters = width / 64; /* of a row's sixteens, by four */
#pragma unroll
    for (int i = thread, n = 0; n < KEYS * (width / 16) / threads;
         n++, i += threads) {                                   /* 16 elements of a key */
        const int pair = i / (width / 8), at = i % (width / 8); /* rows go in pairs */
        const int r = 2 * pair + at / 4 % 2, e = at % 4 + 4 * ((at / 8 + at / 4) % quarters);
        const char *from = raw + (r / KV_BLOCK * 2 + 1) * chunk;
        const bool have = WHOLE || (r <= last && e * 16 < size);
        place16<CODES>(to + e / 4 * wg_tile<width>::BLOCK + r * 128, e % 4 * 2, r,
                       have ? *(const uint4 *)(from + r % KV_BLOCK * size + e * 16) : none,
                       have ? ((const float *)(from + codes))[r % KV_BLOCK] : 0, true);
    }
}

/* s[64][64] = Q K for the tile of keys. */
template <class type, int width>
ON_GPU void turned_scores(float (&s)[1][KEYS / 8][4], const uint32_t (&q)[width / 16][4], uint32_t keys)
{
#pragma unroll
    for (int step = 0; step < width / 16; step++)
        wgmma<type>::turned(s[0], q[step], wgmma_tile(keys + step * 2048), step > 0);
}

/* Leaves the keys of this thread's line, and the span of those of its warp. */
ON_GPU void see(const struct paged &a, const struct lines &t, int2 *ranges, int4 *spans)
{
    const bool have = (int)threadIdx.x < t.count * a.group;
    const int own = t.position + min((int)threadIdx.x / a.group, t.count - 1);
    const int2 range = make_int2(a.window ? max(own - a.window + 1, 0) : 0, own);
    const struct attn_span s = attn_warp_span(range, have);
    ranges[threadIdx.x] = range;
    if (threadIdx.x % 32 == 0) spans[threadIdx.x / 32] = make_int4(s.low, s.high, s.first_most, s.last_least);
}

/* Products become probabilities against the new maximum; sums so far are still to be multiplied with fade. by: scales of the step's keys, or
 * NULL; mine: of the warpgroup's lines. */
template <int width>
ON_GPU void probabilities(const struct paged &a, float (&s)[1][KEYS / 8][4], struct soft_rows<width, 1> &r,
                          float (&fade)[1][2], const float *by, const struct attn_span &mine,
                          const int2 *ranges, int key)
{
    const int lane = threadIdx.x % 32;
    if (by) each_score(s, lane, [&](float x, int at) { return x * by[at]; });
    if (a.cap > 0) each_score(s, lane, [&](float x, int) { return paged_score(a, x); });
    if (attn_needs_mask(mine, key, KEYS)) soft_mask(s, ranges, key, lane);
    soften_scores(s, r, fade, a.scale2);
}

/* Keys and values of one row on their way through shared memory. */
template <int width, class CODES> struct stream {
    static constexpr bool coded = is_coded<CODES>::value;
    typedef struct cut<width, coded> cut;
    char *tiles, *raw;
    float *scales; /* of keys in 8 bits */
    int round, first, last, before;
    int mine; /* of look_up, for the next load */

    /* copied: steps whose blocks in 8 bits this block of threads has copied before. */
    __device__ __forceinline__ void open(const struct paged &a, const struct lines &t, char *pool,
                                         int &copied)
    {
        tiles = pool, scales = (float *)(pool + cut::SCALES), raw = pool + cut::BLOCKS_AT;
        round = 2 * BLOCKS * (int)a.chunk, last = t.position + t.count - 1, before = copied;
        first = (a.window ? max(t.position - a.window + 1, 0) : 0) / KEYS * KEYS;
        mine = look_up(a, t, first, last);
        if (coded) copied += (last - first) / KEYS + 1;
    }
    __device__ __forceinline__ int key_of(int i) const { return first + i * KEYS; }
    __device__ __forceinline__ bool has(int i) const { return key_of(i) <= last; }
    __device__ __forceinline__ bool is_whole(const struct paged &a, int i) const
    {
        return key_of(i) + KEYS - 1 <= last && a.size == width;
    }
    __device__ __forceinline__ uint32_t tile_of(int i) const
    {
        return shared_address(tiles) + i % cut::STAGES * cut::STAGE;
    }
    __device__ __forceinline__ const float *scales_of(int i) const
    {
        return coded ? scales + i % cut::STAGES * KEYS : NULL;
    }
    __device__ __forceinline__ uint32_t barrier_of(int i) const
    {
        return shared_address(raw) + ROUND * round + (before + i) % ROUND * 8;
    }

    __device__ __forceinline__ void load(const struct paged &a, const struct lines &t, int i)
    {
        if constexpr (coded) {
            if (threadIdx.x < 32 && has(i))
                load_blocks(a, t, shared_address(raw) + (before + i) % ROUND * round, barrier_of(i), mine,
                            key_of(i), last);
        } else {
            if (has(i) && is_whole(a, i))
                load_tiles<width, cut::THREADS, true>(a, t, tile_of(i), mine, key_of(i), last);
            else if (has(i))
                load_tiles<width, cut::THREADS, false>(a, t, tile_of(i), mine, key_of(i), last);
            copy_commit();
        }
        mine = look_up(a, t, key_of(i + 1), last);
    }

    /* 8 bits: makes tile i of its blocks. */
    __device__ __forceinline__ void widen(const struct paged &a, int i) const
    {
        if constexpr (coded) {
            if (!has(i)) return;
            barrier_wait(barrier_of(i), (before + i) / ROUND % 2);
            const char *from = raw + (before + i) % ROUND * round;
            char *to = tiles + i % cut::STAGES * cut::STAGE;
            float *by = scales + i % cut::STAGES * KEYS;
            if (is_whole(a, i))
                widen_tiles<width, cut::THREADS, CODES, true>(a, from, to, by, last - key_of(i));
            else
                widen_tiles<width, cut::THREADS, CODES, false>(a, from, to, by, last - key_of(i));
        }
    }

    /* Tile i has arrived; behind a barrier of the block it may be multiplied. 16 bits: of all loads, `left` may be on their way. */
    template <int left> __device__ __forceinline__ void arrive(void) const
    {
        if (!coded) copy_wait<left>();
        wgmma_publish();
    }
};

template <class type, int width, class CODES>
ON_GPU void run_groups(const struct paged &a, const struct lines &t, int &copied)
{
    constexpr bool coded = is_coded<CODES>::value;
    typedef struct cut<width, coded> cut;
    using number = typename product_type<type, CODES>::is;
    const int group = threadIdx.x / WG_THREADS, warp = threadIdx.x / 32;
    char *pool = wg_pool();
    int2 *ranges = (int2 *)(pool + cut::STAGES * cut::STAGE);
    int4 *spans = (int4 *)(ranges + cut::LINES);
    struct stream<width, CODES> in;
    in.open(a, t, pool, copied);
    for (int i = 0; i < 3; i++) in.load(a, t, i);
    if (threadIdx.x < cut::LINES) see(a, t, ranges, spans);
    uint32_t q[width / 16][4];
    load_fragments<type, coded, width>(q, a, t, group * WG_ROWS + warp % 4 * 16);
    in.widen(a, 0), in.widen(a, 1);
    in.template arrive<2>();
    __syncthreads();
    if (coded) in.load(a, t, 3);
    struct soft_rows<width, 1> r;
    float s[1][KEYS / 8][4], fade[1][2];
    uint32_t p[WG_STREAM / 16][4];
    r.clear();
    auto soften_step = [&](int i) {
        const struct attn_span mine = /* read again: registers are short */
            attn_join(attn_unpack(spans[2 * group]), attn_unpack(spans[2 * group + 1]));
        probabilities(a, s, r, fade, in.scales_of(i), mine, ranges + warp * 16, in.key_of(i));
    };
    wgmma_begin();
    turned_scores<number, width>(s, q, in.tile_of(0));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_settled(s);
    soften_step(0);
    wg_pack<number>(p, s);
    for (int i = 0; in.has(i); i++) {
        in.template arrive<1>();
        __syncthreads();
        in.load(a, t, i + (coded ? 4 : 3));
        wgmma_begin();
        turned_scores<number, width>(s, q, in.tile_of(i + 1)); /* behind the last keys, too: nobody looks */
        wgmma_commit();
        wg_collect<number, width>(r.out, p, in.tile_of(i) + cut::KEY_TILE);
        wgmma_commit();
        in.widen(a, i + 2);
        wgmma_wait<1>();
        wgmma_settled(s);
        fade[0][0] = fade[0][1] = 1;
        if (in.has(i + 1)) soften_step(i + 1);
        wgmma_wait<0>();
        wgmma_settled(r.out);
        if (__ballot_sync(0xffffffffu, fade[0][0] != 1 || fade[0][1] != 1)) soft_fade(r, fade); /* rarely */
        if (in.has(i + 1)) wg_pack<number>(p, s);
    }
    copy_wait<0>();
    __syncthreads();
    finish<type>(a, t, pool, r);
    __syncthreads();
}

template <class type, int width, class CODES>
__global__ void __launch_bounds__(cut<width, false>::THREADS, cut<width, false>::ON_ONE)
    prompts_hopper(const struct prompt x)
{
#if WG_BODY
    int copied = 0;
    if constexpr (is_coded<CODES>::value) {
        const uint32_t barriers = shared_address(wg_pool()) + cut<width, true>::BLOCKS_AT +
                                  ROUND * 2 * BLOCKS * (uint32_t)x.a.chunk;
        if (threadIdx.x < ROUND) barrier_init(barriers + threadIdx.x * 8, 1);
        barrier_publish();
        __syncthreads();
    }
    each_row<cut<width, false>::THREADS>(
        x.a, x.tile_tokens, [&](const struct lines &t) { run_groups<type, width, CODES>(x.a, t, copied); });
#else
    __trap();
#endif
}

template <int width, class CODES> int start_groups(const struct cuda_queue *queue, const struct paged *a)
{
    constexpr bool coded = is_coded<CODES>::value;
    typedef struct cut<width, coded> cut;
    prompt_kernel *kernel =
        a->type == DT_BF16 ? prompts_hopper<type_bf16, width, CODES> : prompts_hopper<type_f16, width, CODES>;
    struct prompt x = {*a, cut::LINES / a->group, cut::STAGES};
    const size_t shared = cut::SHARED + (size_t)(coded ? ROUND * 2 * BLOCKS * a->chunk : 0);
    int failed = (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)shared);
    if (failed) return failed;
    const int64_t blocks = parts_of(a->tokens, x.tile_tokens) * a->kv_heads;
    return start(queue, kernel, (unsigned)blocks, cut::THREADS, shared, x);
}

template <class CODES> int start_width(const struct cuda_queue *queue, const struct paged *a)
{
    return a->size <= 64 ? start_groups<64, CODES>(queue, a) : start_groups<128, CODES>(queue, a);
}

} // namespace

bool cuda_paged_by_warpgroups(const struct cuda_queue *queue, const struct paged *a, bool coded)
{
    return queue->warpgroups && a->size % (coded ? 16 : 8) == 0 && a->group <= 2 * WG_ROWS;
}

int cuda_paged_prompt_hopper(const struct cuda_queue *queue, const struct paged *a, bool coded)
{
    if (!coded) return start_width<no_codes>(queue, a);
    return a->e4m3 ? start_width<codes_e4m3>(queue, a) : start_width<codes_i8>(queue, a);
}
