/* attention_paged_hopper.cu - rows of several tokens over their blocks by warpgroups (capability 9.0), for all types of keys.
 *
 * As attention_paged_tiles.cuh, with 64 lines to a warpgroup. Queries stay in shared memory, and all warpgroups of a block share the keys and
 * values that stream through it, 64 at a time. A tile of keys is [D][64], as keys lie in their blocks, a tile of values [64][D]; both are in
 * the layout of attention_wgmma.cuh.
 *
 *     16 bits   blocks are copied into tiles, two steps ahead
 *     8 bits    blocks are copied as they are, two steps ahead, and become fp16 numbers in a tile one step ahead, while the tensor cores
 *               multiply for scores
 *
 * The multiplication with values is waited for together with the next scores. So at the barrier of step i every warpgroup has done with the
 * values of step i - 2 and may still be in those of i - 1; what is written behind the barrier takes the place of i - 2.
 */
#include "device/cuda/attention_hopper.cuh"
#include "device/cuda/attention_paged_tiles.cuh"

namespace
{

enum { ROUND = 2 }; /* buffers of blocks in 8 bits */

template <int width, bool coded> struct cut {
    enum {
        GROUPS = width == 64 ? 2 : 3, /* warpgroups of a block */
        BLOCKS = width == 64 ? 2 : 1, /* of a multiprocessor */
        THREADS = GROUPS * WG_THREADS,
        LINES = GROUPS * WG_ROWS,
        STAGES = coded ? 3 : 4,
        KEY_TILE = width * KEYS * 2,
        STAGE = 2 * KEY_TILE, /* keys, then values */
        QUERIES = GROUPS * wg_tile<width>::BYTES,
        SHARED = WG_ALIGN + QUERIES + STAGES * STAGE + LINES * 8 + LINES / 32 * 16 + STAGES * KEYS * 4,
    };
    static_assert(THREADS / 32 * 16 * tile<width>::ROW_BYTES <= STAGES * STAGE, "results fit into the tiles");
};

/* Where piece p of row r of a block of 64 columns lies. */
ON_GPU int swizzled(int r, int p) { return r * 128 + ((p ^ r % 8) * 16); }

/* Queries of all lines as numbers of a tile for each warpgroup; zeros where there is no line. */
template <class type, bool coded, int width, int threads>
ON_GPU void place_queries(const struct paged &a, const struct lines &t, char *to)
{
    const int pieces = width / 8;
    for (int i = threadIdx.x; i < threads / 2 * pieces; i += threads) {
        const int line = i / pieces, p = i % pieces, group = line / WG_ROWS;
        const bool have = line < t.count * a.group && p * 8 < a.size;
        uint4 x = have ? *(const uint4 *)((const uint16_t *)a.q + line_at(a, t, line) + p * 8)
                       : make_uint4(0, 0, 0, 0);
        if (coded) x = as_f16<type>(x);
        *(uint4 *)(to + group * wg_tile<width>::BYTES + p / 8 * wg_tile<width>::BLOCK +
                   swizzled(line % WG_ROWS, p % 8)) = x;
    }
}

/* Starts copying keys [key, key + 64) of 16 bits and their values; zeros behind `last`, where no block is read. */
template <int width, int threads>
ON_GPU void load_tiles(const struct paged &a, const struct lines &t, uint32_t to, int key, int last)
{
    const int32_t *table = a.blocks + (int64_t)t.row * a.reach + key / KV_BLOCK;
    const int pieces = width / 8, thread = thread_again();
    const uint16_t *pool = (const uint16_t *)a.pool;
    const uint32_t values = to + width * KEYS * 2;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        const int64_t at = key + b * KV_BLOCK <= last ? paged_at(a, table[b], t.kv) : -1;
        for (int i = thread; i < width * 2; i += threads) { /* two pieces to an element of 16 keys */
            const bool have = at >= 0 && i / 2 < a.size;
            copy16(to + swizzled(i / 2, b * 2 + i % 2), pool + (have ? at + i * 8 : 0), have);
        }
        for (int i = thread; i < KV_BLOCK * pieces; i += threads) {
            const int r = b * KV_BLOCK + i / pieces, p = i % pieces;
            const bool have = key + r <= last && p * 8 < a.size;
            copy16(values + p / 8 * wg_tile<width>::BLOCK + swizzled(r, p % 8),
                   pool + (have ? at + a.plane + i / pieces * a.size + p * 8 : 0), have);
        }
    }
}

/* Sixteen codes as two pieces of a row. */
template <class CODES> ON_GPU void place16(char *row, int p, int r, const uint4 &codes, float by, bool scale)
{
    const uint2 low = make_uint2(codes.x, codes.y), high = make_uint2(codes.z, codes.w);
    *(uint4 *)(row + ((p ^ r % 8) * 16)) = scale ? numbers8<CODES>(low, by) : numbers8<CODES>(low);
    *(uint4 *)(row + (((p + 1) ^ r % 8) * 16)) = scale ? numbers8<CODES>(high, by) : numbers8<CODES>(high);
}

/* Makes tiles of load_raw's bytes, and scales[KEYS] of keys. `last`: relative to the step's first key; behind it all is 0. Lanes are spread
 * such that eight neighbours read and write different banks. */
template <int width, int threads, class CODES>
ON_GPU void widen_tiles(const struct paged &a, const char *raw, char *to, float *scales, int last)
{
    const int chunk = (int)a.chunk, codes = KV_BLOCK * a.size, thread = thread_again();
    const uint4 none = make_uint4(0, 0, 0, 0);
    for (int i = thread; i < BLOCKS * width; i += threads) { /* 16 keys of an element */
        const int b = i / width, d = i % width;
        const bool have = d < a.size && b * KV_BLOCK <= last;
        place16<CODES>(to + d * 128, b * 2, d,
                       have ? *(const uint4 *)(raw + b * 2 * chunk + d * KV_BLOCK) : none, 0, false);
    }
    for (int i = thread; i < KEYS; i += threads)
        scales[i] = i <= last ? ((const float *)(raw + i / KV_BLOCK * 2 * chunk + codes))[i % KV_BLOCK] : 0;
    to += cut<width, true>::KEY_TILE;
    const int quarters = width / 64;                              /* of a row's sixteens, by four */
    for (int i = thread; i < KEYS * (width / 16); i += threads) { /* 16 elements of a key */
        const int pair = i / (width / 8), at = i % (width / 8);   /* rows go in pairs */
        const int r = 2 * pair + at / 4 % 2, n = at % 4 + 4 * ((at / 8 + at / 4) % quarters);
        const char *from = raw + (r / KV_BLOCK * 2 + 1) * chunk;
        const bool have = r <= last && n * 16 < a.size;
        place16<CODES>(to + n / 4 * wg_tile<width>::BLOCK + r * 128, n % 4 * 2, r,
                       have ? *(const uint4 *)(from + r % KV_BLOCK * a.size + n * 16) : none,
                       have ? ((const float *)(from + codes))[r % KV_BLOCK] : 0, true);
    }
}

/* s[64][64] = Q K for the tile of keys. */
template <class type, int width>
ON_GPU void turned_scores(float (&s)[1][KEYS / 8][4], uint32_t queries, uint32_t keys)
{
#pragma unroll
    for (int step = 0; step < width / 16; step++)
        wgmma<type>::turned(s[0], wgmma_tile(queries + step / 4 * wg_tile<width>::BLOCK + step % 4 * 32),
                            wgmma_tile(keys + step * 2048), step > 0);
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

/* Products become probabilities against the new maximum. by: scales of the step's keys, or NULL; mine: of the warpgroup's lines. */
template <int width>
ON_GPU void probabilities(const struct paged &a, float (&s)[1][KEYS / 8][4], struct soft_rows<width, 1> &r,
                          const float *by, const struct attn_span &mine, const int2 *ranges, int key)
{
    const int lane = threadIdx.x % 32;
    if (by) each_score(s, lane, [&](float x, int at) { return x * by[at]; });
    if (a.cap > 0) each_score(s, lane, [&](float x, int) { return paged_score(a, x); });
    if (attn_needs_mask(mine, key, KEYS)) soft_mask(s, ranges, key, lane);
    soften(s, r, a.scale2);
}

template <class type, int width, class CODES>
ON_GPU void run_groups(const struct paged &a, const struct lines &t)
{
    constexpr bool coded = is_coded<CODES>::value;
    typedef struct cut<width, coded> cut;
    using number = typename product_type<type, CODES>::is;
    const int group = threadIdx.x / WG_THREADS, warp = threadIdx.x / 32;
    char *pool = wg_pool(), *tiles = pool + cut::QUERIES;
    int2 *ranges = (int2 *)(tiles + cut::STAGES * cut::STAGE);
    int4 *spans = (int4 *)(ranges + cut::LINES);
    float *scales = (float *)(spans + cut::LINES / 32); /* of a pool in 8 bits */
    char *raw = (char *)(scales + cut::STAGES * KEYS);
    const int64_t round = 2 * BLOCKS * a.chunk;
    const uint32_t tiles0 = shared_address(tiles), raw0 = shared_address(raw);
    const int last = t.position + t.count - 1;
    int key = (a.window ? max(t.position - a.window + 1, 0) : 0) / KEYS * KEYS;
    auto load = [&](int i, int at) { /* step i of keys [at, at + 64) */
                                     if (at <= last) {
                                         if constexpr (coded)
                                             load_raw<cut::THREADS>(
                                                 a, t, raw0 + (uint32_t)(i % ROUND * round), at, last);
                                         else
                                             load_tiles<width, cut::THREADS>(
                                                 a, t, tiles0 + i % cut::STAGES * cut::STAGE, at, last);
                                     }
                                     copy_commit();
    };
    auto widen = [&](int i, int at) {
        if constexpr (coded)
            if (at <= last)
                widen_tiles<width, cut::THREADS, CODES>(a, raw + i % ROUND * round,
                                                        tiles + i % cut::STAGES * cut::STAGE,
                                                        scales + i % cut::STAGES * KEYS, last - at);
    };
    load(0, key);
    load(1, key + KEYS);
    if (threadIdx.x < cut::LINES) see(a, t, ranges, spans);
    place_queries<type, coded, width, cut::THREADS>(a, t, pool);
    if (coded) {
        copy_wait<1>();
        __syncthreads();
        widen(0, key);
    }
    struct soft_rows<width, 1> r;
    r.clear();
    for (int i = 0; key <= last; key += KEYS, i++) {
        copy_wait<coded ? 0 : 1>();
        wgmma_publish();
        __syncthreads();
        const int stage = i % cut::STAGES * cut::STAGE;
        load(i + 2, key + 2 * KEYS);
        const struct attn_span mine =
            attn_join(attn_unpack(spans[2 * group]), attn_unpack(spans[2 * group + 1]));
        const bool meets = attn_meets(mine, key, KEYS);
        float s[1][KEYS / 8][4];
        if (meets) {
            wgmma_begin();
            turned_scores<number, width>(s, shared_address(pool) + group * wg_tile<width>::BYTES,
                                         tiles0 + stage);
            wgmma_commit();
        }
        widen(i + 1, key + KEYS);
        wgmma_wait<0>();
        if (!meets) continue;
        wgmma_settled(s), wgmma_settled(r.out);
        probabilities(a, s, r, coded ? scales + i % cut::STAGES * KEYS : NULL, mine, ranges + warp * 16, key);
        uint32_t p[WG_STREAM / 16][4];
        wg_pack<number>(p, s);
        wgmma_begin();
        wg_collect<number, width>(r.out, p, tiles0 + stage + cut::KEY_TILE);
        wgmma_commit();
    }
    wgmma_wait<0>();
    wgmma_settled(r.out);
    copy_wait<0>();
    __syncthreads();
    finish<type>(a, t, tiles, r);
    __syncthreads();
}

template <class type, int width, class CODES>
__global__ void __launch_bounds__(cut<width, false>::THREADS, cut<width, false>::BLOCKS)
    prompts_hopper(const struct prompt x)
{
#if WG_BODY
    each_row<cut<width, false>::THREADS>(
        x.a, x.tile_tokens, [&](const struct lines &t) { run_groups<type, width, CODES>(x.a, t); });
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
