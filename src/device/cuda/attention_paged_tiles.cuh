/* attention_paged_tiles.cuh - rows of several tokens over their blocks, on the tensor cores, for all types of keys.
 *
 * A line is one query head of one token. A block of threads has up to 128 lines of one row and kv head, tokens first, then heads of
 * the group, and a warp 32 of them; 64 keys and values at a time stream through shared memory, one step ahead of the
 * arithmetic. Keys lie turned in their blocks and stay so: a tile of keys is [D][64], its rows are rows of B, and the
 * products of queries and keys are made as those of probabilities and values are.
 *
 * Tokens are cut into tiles by their number in the step, whatever rows they belong to; a tile with several rows takes
 * them in turn, and tokens that are alone in their row are attention_paged_decode.cu's. Keys come in steps that begin at
 * multiples of 64, in order: neither tile nor neighbours change a line's sums.
 *
 * Of a pool in 8 bits, blocks come to shared memory as they are, while the step before is worked on, and become fp16 numbers there: one
 * tile instead of two, and the bytes behind it. Queries are fp16 then, too. Keys stay codes, and their scales are applied to scores; values
 * are multiplied by theirs. CODES: a struct of attention_codes.cuh, or no_codes. On capability 9.0 attention_paged_hopper.cu does the same by
 * warpgroups.
 */
#pragma once

#include "device/cuda/attention_codes.cuh"
#include "device/cuda/attention_paged.cuh"
#include "device/cuda/attention_softmax.cuh"

namespace
{

enum { LINES = 128, KEYS = 64, HIGH = 2, BLOCKS = KEYS / KV_BLOCK };

struct no_codes {
};
template <class CODES> struct is_coded {
    static constexpr bool value = true;
};
template <> struct is_coded<no_codes> {
    static constexpr bool value = false;
};

template <int width> struct room {
    enum {
        QUERIES = LINES * tile<width>::ROW_BYTES,
        KEY_TILE = width * tile<KEYS>::ROW_BYTES,
        STAGE = KEY_TILE + KEYS * tile<width>::ROW_BYTES,
        KEEPS_QUERIES = width <= 64, /* fragments of queries stay in registers */
    };
};

/* raw: bytes of a step's blocks in a pool in 8 bits, and of the scales of its keys. */
static size_t room_bytes(int width, int stages, int64_t raw)
{
    int row = 2 * (width + 8);
    return (size_t)(LINES * row + stages * (width * 2 * (KEYS + 8) + KEYS * row) + LINES * 8 + raw);
}

struct prompt {
    struct paged a;
    int tile_tokens, stages;
};

/* Lines of one row: tokens [token, token + count), all heads of kv head `kv`. */
struct lines {
    int row, token, count, kv, position; /* position: of the first token */
};

ON_GPU int64_t line_at(const struct paged &a, const struct lines &t, int line)
{
    return ((int64_t)(t.token + line / a.group) * a.heads + t.kv * a.group + line % a.group) * a.size;
}

/* The row that has a token, -1: none; asked by whole warps. `likely`: where it is if rows are in the order of tokens. */
ON_GPU int row_of(const struct paged &a, int token, int likely)
{
    int mine = -1;
    auto has = [&](int r) { return token >= a.rows[3 * r] && token < a.rows[3 * r] + a.rows[3 * r + 1]; };
    if (likely < a.nrows && has(likely)) return likely;
#pragma unroll 4
    for (int r = threadIdx.x % 32; r < a.nrows; r += 32)
        if (has(r)) mine = r;
    return __reduce_max_sync(0xffffffffu, mine);
}

template <int width> ON_GPU void load_queries(const struct paged &a, const struct lines &t, uint32_t to)
{
    const int pieces = tile<width>::PIECES;
    for (int i = threadIdx.x; i < LINES * pieces; i += MMA_THREADS) {
        int line = i / pieces, p = i % pieces;
        bool have = line < t.count * a.group && p * 8 < a.size;
        copy16(to + line * tile<width>::ROW_BYTES + p * 16,
               (const uint16_t *)a.q + (have ? line_at(a, t, line) + p * 8 : 0), have);
    }
}

/* Keys [key, key + 64): those behind `last` have values of 0, and blocks behind it are not read. */
template <int width>
ON_GPU void load_keys(const struct paged &a, const struct lines &t, uint32_t to, int key, int last)
{
    const int32_t *table = a.blocks + (int64_t)t.row * a.reach + key / KV_BLOCK;
    const int pieces = tile<width>::PIECES, thread = thread_again();
    const uint16_t *pool = (const uint16_t *)a.pool;
    int64_t at[KEYS / KV_BLOCK];
#pragma unroll
    for (int b = 0; b < KEYS / KV_BLOCK; b++)
        at[b] = key + b * KV_BLOCK <= last ? paged_at(a, table[b], t.kv) : -1;
#pragma unroll
    for (int b = 0; b < KEYS / KV_BLOCK; b++)
#pragma unroll
        for (int i = thread; i < width * 2; i += MMA_THREADS) { /* two pieces to a row of 16 keys */
            bool have = at[b] >= 0 && i / 2 < a.size;
            copy16(to + i / 2 * tile<KEYS>::ROW_BYTES + b * 32 + i % 2 * 16,
                   pool + (have ? at[b] + i * 8 : 0), have);
        }
    to += room<width>::KEY_TILE;
#pragma unroll
    for (int b = 0; b < KEYS / KV_BLOCK; b++)
        for (int i = thread; i < KV_BLOCK * pieces; i += MMA_THREADS) {
            int r = i / pieces, p = i % pieces;
            bool have = key + b * KV_BLOCK + r <= last && p * 8 < a.size;
            copy16(to + (b * KV_BLOCK + r) * tile<width>::ROW_BYTES + p * 16,
                   pool + (have ? at[b] + a.plane + r * a.size + p * 8 : 0), have);
        }
}

/* Blocks of keys [key, key + 64) as they are: keys and values of a block after each other. */
template <int threads>
ON_GPU void load_raw(const struct paged &a, const struct lines &t, uint32_t to, int key, int last)
{
    const int32_t *table = a.blocks + (int64_t)t.row * a.reach + key / KV_BLOCK;
    const int pieces = (int)a.chunk / 16, thread = thread_again();
    for (int b = 0; b < BLOCKS && key + b * KV_BLOCK <= last; b++) {
        const unsigned char *from = (const unsigned char *)a.pool + paged_at(a, table[b], t.kv);
        for (int i = thread; i < 2 * pieces; i += threads)
            copy16(to + (b * 2 * pieces + i) * 16, from + (i < pieces ? 0 : a.plane - a.chunk) + i * 16,
                   true);
    }
}

/* Eight codes, and eight times a scale. */
template <class CODES> ON_GPU uint4 numbers8(const uint2 &x)
{
    return make_uint4(CODES::pair(x.x), CODES::pair_high(x.x), CODES::pair(x.y), CODES::pair_high(x.y));
}

/* Scales of e4m3 numbers are powers of two: products are exact as long as they are not smaller than fp16 has them. */
template <class CODES> ON_GPU uint32_t scaled(uint32_t pair, float by)
{
    return type_f16::pack(type_f16::low(pair) * by, type_f16::high(pair) * by);
}
template <> __device__ __forceinline__ uint32_t scaled<codes_e4m3>(uint32_t pair, float by)
{
    return type_f16::times(pair, type_f16::pack(by, by));
}

template <class CODES> ON_GPU uint4 numbers8(const uint2 &x, float by)
{
    const uint4 n = numbers8<CODES>(x);
    return make_uint4(scaled<CODES>(n.x, by), scaled<CODES>(n.y, by), scaled<CODES>(n.z, by),
                      scaled<CODES>(n.w, by));
}

/* Makes of load_raw's bytes a tile as load_keys leaves it, and scales[KEYS] of keys. `last`: relative to the step's first key; behind it all
 * is 0. */
template <int width, class CODES>
ON_GPU void widen_raw(const struct paged &a, const char *raw, char *to, float *scales, int last)
{
    const int chunk = (int)a.chunk, codes = KV_BLOCK * a.size, thread = thread_again();
    const uint4 none = make_uint4(0, 0, 0, 0);
    for (int i = thread; i < BLOCKS * width * 2; i += MMA_THREADS) { /* eight keys of an element */
        const int b = i / (2 * width), d = i / 2 % width, half = i % 2, first = b * KV_BLOCK + half * 8;
        const char *from = raw + b * 2 * chunk + d * KV_BLOCK + half * 8;
        *(uint4 *)(to + d * tile<KEYS>::ROW_BYTES + first * 2) =
            d < a.size && first <= last ? numbers8<CODES>(*(const uint2 *)from) : none;
    }
    for (int i = thread; i < KEYS; i += MMA_THREADS)
        scales[i] = i <= last ? ((const float *)(raw + i / KV_BLOCK * 2 * chunk + codes))[i % KV_BLOCK] : 0;
    to += room<width>::KEY_TILE;
    for (int i = thread; i < KEYS * (width / 8); i += MMA_THREADS) { /* eight elements of a key */
        const int r = i / (width / 8), p = i % (width / 8), at = r % KV_BLOCK;
        const char *from = raw + (r / KV_BLOCK * 2 + 1) * chunk;
        *(uint4 *)(to + r * tile<width>::ROW_BYTES + p * 16) =
            r <= last && p * 8 < a.size ? numbers8<CODES>(*(const uint2 *)(from + at * a.size + p * 8),
                                                          ((const float *)(from + codes))[at])
                                        : none;
    }
}

/* Two numbers, and eight, as fp16. */
template <class type> ON_GPU uint32_t as_f16(uint32_t x)
{
    return type_f16::pack(fminf(fmaxf(type::low(x), -65504.0f), 65504.0f),
                          fminf(fmaxf(type::high(x), -65504.0f), 65504.0f));
}

template <class type> ON_GPU uint4 as_f16(const uint4 &x)
{
    return make_uint4(as_f16<type>(x.x), as_f16<type>(x.y), as_f16<type>(x.z), as_f16<type>(x.w));
}

/* Queries as fp16. */
template <class type, int width>
ON_GPU void load_queries_f16(const struct paged &a, const struct lines &t, char *to)
{
    const int pieces = tile<width>::PIECES;
    for (int i = threadIdx.x; i < LINES * pieces; i += MMA_THREADS) {
        const int line = i / pieces, p = i % pieces;
        const bool have = line < t.count * a.group && p * 8 < a.size;
        const uint4 x = have ? *(const uint4 *)((const uint16_t *)a.q + line_at(a, t, line) + p * 8)
                             : make_uint4(0, 0, 0, 0);
        *(uint4 *)(to + line * tile<width>::ROW_BYTES + p * 16) = as_f16<type>(x);
    }
}

/* The type that tensor cores multiply. */
template <class type, class CODES> struct product_type {
    using is = type_f16;
};
template <class type> struct product_type<type, no_codes> {
    using is = type;
};

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
        const uint32_t rows = keys + step * 16 * tile<KEYS>::ROW_BYTES;
        if (room<width>::KEEPS_QUERIES) {
            multiply_turned<type, KEYS, HIGH>(s, kept[step], rows);
        } else {
            uint32_t q[HIGH][4];
#pragma unroll
            for (int m = 0; m < HIGH; m++)
                load_matrices(q[m], queries + m * 16 * tile<width>::ROW_BYTES + step * 32);
            multiply_turned<type, KEYS, HIGH>(s, q, rows);
        }
    }
}

/* f(score, key of the step) in the place of every score. */
template <int high, int tiles, class F> ON_GPU void each_score(float (&s)[high][tiles][4], int lane, F f)
{
#pragma unroll
    for (int m = 0; m < high; m++)
#pragma unroll
        for (int n = 0; n < tiles; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[m][n][i] = f(s[m][n][i], n * 8 + lane % 4 * 2 + i % 2);
}

/* Lines of a warp's output through its place of `room` in shared memory to global memory. */
template <class type, int width, int high>
ON_GPU void finish(const struct paged &a, const struct lines &t, char *room, soft_rows<width, high> &r)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pieces = tile<width>::PIECES;
    char *own = room + warp * 16 * high * tile<width>::ROW_BYTES;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < high; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = r.sum[m][half];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            float by = sum == 0 ? 0.0f : 1.0f / sum;
            char *to = own + (m * 16 + half * 8 + lane / 4) * tile<width>::ROW_BYTES;
#pragma unroll
            for (int n = 0; n < width / 8; n++)
                *(uint32_t *)(to + n * 16 + lane % 4 * 4) =
                    type::pack(r.out[m][n][2 * half] * by, r.out[m][n][2 * half + 1] * by);
        }
    __syncwarp();
    for (int i = lane; i < 16 * high * pieces; i += 32) {
        int line = warp * 16 * high + i / pieces, p = i % pieces;
        if (line >= t.count * a.group || p * 8 >= a.size) continue;
        *(uint4 *)((uint16_t *)a.o + line_at(a, t, line) + p * 8) =
            *(const uint4 *)(own + i / pieces * tile<width>::ROW_BYTES + p * 16);
    }
}

template <class type, int width, class CODES>
ON_GPU void run_lines(const struct prompt &x, const struct lines &t)
{
    typedef struct room<width> room;
    constexpr bool coded = is_coded<CODES>::value;
    using number = typename product_type<type, CODES>::is;
    const struct paged &a = x.a;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    char *pool = shared_pool();
    int2 *ranges = (int2 *)(pool + room::QUERIES + x.stages * room::STAGE);
    const uint32_t queries = shared_address(pool), stage0 = queries + room::QUERIES;
    float *scales = (float *)(ranges + LINES); /* of a pool in 8 bits */
    char *raw = (char *)(scales + KEYS);
    if constexpr (coded)
        load_queries_f16<type, width>(a, t, pool);
    else
        load_queries<width>(a, t, queries);
    copy_commit();
    const int own = min((int)threadIdx.x / a.group, t.count - 1) + t.position;
    const int2 range = make_int2(a.window ? max(own - a.window + 1, 0) : 0, own);
    const struct attn_span mine = attn_warp_span(range, true);
    ranges[threadIdx.x] = range;
    const int last = t.position + t.count - 1;
    int key = (a.window ? max(t.position - a.window + 1, 0) : 0) / KEYS * KEYS;
    if (coded)
        load_raw<MMA_THREADS>(a, t, shared_address(raw), key, last);
    else if (x.stages == 2)
        load_keys<width>(a, t, stage0, key, last);
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
        if (coded || x.stages == 2) copy_wait<0>();
        __syncthreads();
        const uint32_t next = x.stages == 2 && stage == stage0 ? stage0 + room::STAGE : stage0;
        const int ahead = key + (coded ? 1 : x.stages - 1) * KEYS;
        if constexpr (coded) {
            widen_raw<width, CODES>(a, raw, pool + room::QUERIES, scales, last - key);
            __syncthreads();
            if (ahead <= last) load_raw<MMA_THREADS>(a, t, shared_address(raw), ahead, last);
        } else if (ahead <= last) {
            load_keys<width>(a, t, next, ahead, last);
        }
        copy_commit();
        if (!coded && x.stages == 1) {
            copy_wait<0>();
            __syncthreads();
        }
        if (attn_meets(mine, key, KEYS)) {
            float s[HIGH][KEYS / 8][4];
            scores<number, width>(s, kept, my_queries, stage + lane_turned<KEYS>(lane));
            if (coded) each_score(s, lane, [&](float x, int at) { return x * scales[at]; });
            if (a.cap > 0) each_score(s, lane, [&](float x, int) { return paged_score(a, x); });
            if (attn_needs_mask(mine, key, KEYS)) soft_mask(s, ranges + warp * 32, key, lane);
            soften(s, r, a.scale2);
            const uint32_t values = stage + room::KEY_TILE + lane_turned<width>(lane);
#pragma unroll
            for (int step = 0; step < KEYS / 16; step++) {
                uint32_t p[HIGH][4];
                pack_step<number>(p, s, step);
                multiply_turned<number, width, HIGH>(r.out, p, values + step * 16 * tile<width>::ROW_BYTES);
            }
        }
        stage = next;
    }
    copy_wait<0>();
    finish<type, width>(a, t, pool, r);
    __syncthreads();
}

/* Tokens in no row. */
template <int threads> ON_GPU void blank(const struct paged &a, const struct lines &t)
{
    for (int i = threadIdx.x; i < t.count * a.group * a.size; i += threads)
        ((uint16_t *)a.o)[line_at(a, t, i / a.size) + i % a.size] = 0;
}

/* The tokens of a block's tile, row by row: run for rows of several, none for tokens in no row. Tiles start from the last one: its tokens have the most keys to read, so starting it late would keep
 * the card waiting at the end. */
template <class RUN, class NONE>
ON_GPU void each_row(const struct paged &a, int tile_tokens, RUN run, NONE none)
{
    const int tiles = (a.tokens + tile_tokens - 1) / tile_tokens, kv = blockIdx.x % a.kv_heads;
    const int from = (tiles - 1 - (int)blockIdx.x / a.kv_heads) * tile_tokens;
    const int until = min(from + tile_tokens, a.tokens);
    int likely = from;
    for (int token = from; token < until;) {
        struct lines t = {row_of(a, token, likely), token, 1, kv, 0};
        if (t.row >= 0) {
            const int first = a.rows[3 * t.row], count = a.rows[3 * t.row + 1];
            t.count = min(until, first + count) - token;
            t.position = a.rows[3 * t.row + 2] + token - first;
            if (count > 1) run(t);
        } else {
            none(t);
        }
        token += t.count, likely = max(t.row, 0) + 1;
    }
}

template <class type, int width, class CODES>
__global__ void __launch_bounds__(MMA_THREADS, 2) prompts(const struct prompt x)
{
    each_row(
        x.a, x.tile_tokens, [&](const struct lines &t) { run_lines<type, width, CODES>(x, t); },
        [&](const struct lines &t) { blank<MMA_THREADS>(x.a, t); });
}

typedef void prompt_kernel(const struct prompt);

template <class type, class CODES> prompt_kernel *kernel_of(int size)
{
    return size <= 64   ? prompts<type, 64, CODES>
           : size <= 96 ? prompts<type, 96, CODES>
                        : prompts<type, 128, CODES>;
}

template <class CODES> int start_prompts(const struct cuda_queue *queue, const struct paged *a)
{
    constexpr bool coded = is_coded<CODES>::value;
    if (cuda_paged_by_warpgroups(queue, a, coded)) return cuda_paged_prompt_hopper(queue, a, coded);
    const int width = a->size <= 64 ? 64 : a->size <= 96 ? 96 : 128;
    const int64_t raw = coded ? 2 * BLOCKS * a->chunk + KEYS * (int64_t)sizeof(float) : 0;
    prompt_kernel *kernel =
        a->type == DT_BF16 ? kernel_of<type_bf16, CODES>(a->size) : kernel_of<type_f16, CODES>(a->size);
    struct prompt x = {*a, LINES / a->group,
                       !coded && room_bytes(width, 2, raw) <= queue->shared_most ? 2 : 1};
    const size_t shared = room_bytes(width, x.stages, raw);
    int failed = (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)shared);
    if (failed) return failed;
    const int64_t blocks = parts_of(a->tokens, x.tile_tokens) * a->kv_heads;
    return start(queue, kernel, (unsigned)blocks, MMA_THREADS, shared, x);
}

} // namespace
