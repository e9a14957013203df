/* attention_paged_decode.cuh - tokens that are alone in their row, on the tensor cores: what memory gives is the limit.
 *
 * A block of threads has one token and up to 16 query heads of one kv head. It takes keys in pieces of CUDA_PAGED_PIECE, a warp 64 of them:
 * four blocks of the pool, which come to shared memory as they are. All of a warp's keys and values are under way at once, and the next
 * ones, be they of the next token, as soon as there is room (attention_paged_copies.cuh). Keys are rows of the tensor cores' tiles and lines
 * their columns, 8 of them a half, so that few lines are no waste. Lane (g, t) = (lane / 4, lane % 4) has of
 *
 *     keys     8 g + 0..7 of a chunk: j and j + 4 are two rows of tile j of the scores, and lines 2 t and 2 t + 1 their columns
 *     values   block t of the chunk, elements 8 g + 0..7 of a set: n and n + 4 are two rows of tile n of the output
 *
 * A CODEC says what the pool's numbers are:
 *
 *     type             in which tensor cores multiply: queries, keys, probabilities and values
 *     BYTES, SCALED    of a number; each position has a scale, by which what is summed is multiplied:
 *                      scores   of a key by its scale
 *                      output   a probability by the scale of its key's values, as a share of the power of two below the chunk's largest, so that
 *                               it stays within fp16's range; the sums by that power
 *     eight            eight numbers as they lie; pair(x, y, j): number j of each, as `type`
 *     element(t, i)    which elements of 16, i = 0..3, are lane t's columns: so that lanes read different banks
 *     two, query       two elements of a line of q, as they lie and as `type`
 *
 * Invariants
 *  1. A warp joins its chunks of one piece after the other, in order, and at the end the warps are joined, in order. Where
 *     there are few tokens a piece is a block's work and a second kernel joins the chunks by the same operations: a
 *     token's bits depend on its own row alone.
 *  2. Blocks behind the token's position are not read, and values of such positions count as 0.
 *  3. Keys before the row's context are older than this step: they are read before what was queued earlier has ended
 *     (overlap.cuh), those of the step itself afterwards.
 */
#pragma once

#include "device/cuda/attention_paged_copies.cuh"
#include "device/cuda/attention_paged_fresh_shared.cuh"
#include "tensor/kv8.h"

namespace
{

/* Heads of a kind: groups of 64 elements, groups of 8 lines; EXACT: the last group is full, so that sizes are constants; FRESH: the step's own
 * keys and values are not in the pool yet (attention_paged_fresh.cuh), which is for exact heads of 16 bits. */
template <class CODEC_, int SETS_, int HALVES_, bool EXACT_, bool FRESH_ = false> struct kind {
    typedef CODEC_ CODEC;
    typedef typename CODEC::type type;
    enum { SETS = SETS_, HALVES = HALVES_, EXACT = EXACT_, FRESH = FRESH_ };
    static_assert(!FRESH || (EXACT && SETS == 2 && !CODEC::SCALED), "pairs that are turned are 64 apart");
    /* On a multiprocessor: as shared memory has room for, and registers. */
    enum { BLOCKS_AT_ONCE = SETS_ * CODEC::BYTES > 2 ? 1 : HALVES_ == 1 ? 3 : 2 };
    ON_GPU int size(const struct paged &a) { return EXACT ? SETS * 64 : a.size; }
    ON_GPU int bytes(const struct paged &a) /* of a head's keys in a block */
    {
        return KV_BLOCK * (size(a) * CODEC::BYTES + (CODEC::SCALED ? KV8_SCALE : 0));
    }
};

/* A warp's part of the lines' keys: of tile n, lines 2 t + i % 2 of a half and elements 8 g + n + i / 2 * 4 of a set. */
template <int SETS, int HALVES> struct columns {
    float out[SETS][4][HALVES][4];
    float top[HALVES][2], sum[HALVES][2];

    __device__ __forceinline__ void clear(void)
    {
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll
            for (int i = 0; i < 2; i++) top[half][i] = -INFINITY, sum[half][i] = 0;
#pragma unroll
        for (int set = 0; set < SETS; set++)
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int i = 0; i < HALVES * 4; i++) out[set][n][i / 4][i % 4] = 0;
    }

    /* to(line): where a line's elements go, 16 bytes at a time, and behind them maximum and sum. */
    template <class F> __device__ __forceinline__ void leave(int size, int heads, F to) const
    {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int l = half * 8 + 2 * t + i;
                if (l >= heads) continue;
                float *line = to(l);
                if (g == 0) line[size] = top[half][i], line[size + 1] = sum[half][i];
#pragma unroll
                for (int set = 0; set < SETS; set++)
#pragma unroll
                    for (int four = 0; four < 4; four += 2)
                        if (set * 64 + 8 * g < size)
                            *(float4 *)(line + set * 64 + 8 * g + 2 * four) =
                                make_float4(out[set][0][half][four + i], out[set][1][half][four + i],
                                            out[set][2][half][four + i], out[set][3][half][four + i]);
            }
    }
};

/* Queries as they lie, and then as fragments: between the two there is time for other things. */
template <class K>
ON_GPU void load_queries(const struct paged &a, const struct work &w,
                         uint32_t (&q)[K::SETS * 4][K::HALVES][2])
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, size = K::size(a);
    const uint16_t *first = K::FRESH
                                ? joint_head(a, w.it.token, w.head)
                                : (const uint16_t *)a.q + ((int64_t)w.it.token * a.heads + w.head) * size;
#pragma unroll
    for (int s = 0; s < K::SETS * 4; s++)
#pragma unroll
        for (int i = 0; i < K::HALVES * 2; i++) {
            const int line = g + i / 2 * 8;
            auto place = [&](int j) { return s * 16 + K::CODEC::element(t, j); };
            q[s][i / 2][i % 2] =
                line < w.heads && place(i % 2 * 2) < size
                    ? K::CODEC::two(first + line * size, place(i % 2 * 2), place(i % 2 * 2 + 1), size)
                    : 0;
        }
}

template <class K>
ON_GPU void ready_queries(const struct paged &a, const struct joint_row<K> &own,
                          uint32_t (&q)[K::SETS * 4][K::HALVES][2])
{
    if constexpr (K::FRESH) {
#pragma unroll
        for (int s = 0; s < 4; s++)
#pragma unroll
            for (int i = 0; i < K::HALVES * 2; i++)
                turn_words<typename K::type>(q[s][i / 2][i % 2], q[s + 4][i / 2][i % 2],
                                             own.of_queries[s][i % 2 * 2], own.of_queries[s][i % 2 * 2 + 1]);
    }
#pragma unroll
    for (int s = 0; s < K::SETS * 4; s++)
#pragma unroll
        for (int i = 0; i < K::HALVES * 2; i++)
            q[s][i / 2][i % 2] = K::CODEC::query(q[s][i / 2][i % 2], a.type);
}

/* Rows j and j + 4 of a tile, of numbers of four places in its columns. */
template <class CODEC> ON_GPU void rows_of(uint32_t (&a)[4], const typename CODEC::eight (&x)[4], int j)
{
    a[0] = CODEC::pair(x[0], x[1], j), a[1] = CODEC::pair(x[0], x[1], j + 4);
    a[2] = CODEC::pair(x[2], x[3], j), a[3] = CODEC::pair(x[2], x[3], j + 4);
}

template <class K>
ON_GPU void multiply_keys(const struct paged &a, float (&s)[4][K::HALVES][4],
                          const uint32_t (&q)[K::SETS * 4][K::HALVES][2], const struct room &r)
{
    typedef typename K::CODEC CODEC;
    typedef typename CODEC::eight eight;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const char *from = r.keys + g / 2 * r.key_step + g % 2 * 8 * CODEC::BYTES;
#pragma unroll
    for (int step = 0; step < K::SETS * 4; step++) {
        if (step * 16 >= K::size(a)) break;
        eight x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int d = step * 16 + CODEC::element(t, i);
            x[i] =
                K::EXACT || d < K::size(a) ? *(const eight *)(from + d * KV_BLOCK * CODEC::BYTES) : eight{};
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t rows[4];
            rows_of<CODEC>(rows, x, j);
#pragma unroll
            for (int half = 0; half < K::HALVES; half++)
                K::type::multiply(s[j][half], rows, q[step][half][0], q[step][half][1]);
        }
    }
}

/* f(score, key of the lane, 0..7, and line of its two) in the place of every score. */
template <int HALVES, class F> ON_GPU void each_score(float (&s)[4][HALVES][4], int half, F f)
{
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) s[j % 4][half][j / 4 * 2 + i] = f(s[j % 4][half][j / 4 * 2 + i], j, i);
}

/* Scales of the lane's 8 keys, or of their values, in a block of shared memory. */
ON_GPU void load_scales(int size, const char *blocks, int step, float (&by)[8])
{
    const int g = threadIdx.x % 32 / 4;
    const float4 *from = (const float4 *)(blocks + g / 2 * step + KV_BLOCK * size + g % 2 * 32);
    const float4 x = from[0], y = from[1];
    by[0] = x.x, by[1] = x.y, by[2] = x.z, by[3] = x.w, by[4] = y.x, by[5] = y.y, by[6] = y.z, by[7] = y.w;
}

/* f over the lanes of a line's keys. */
template <class F> ON_GPU float over_keys(float x, F f)
{
#pragma unroll
    for (int by = 4; by < 32; by *= 2) x = f(x, __shfl_xor_sync(0xffffffffu, x, by));
    return x;
}

ON_GPU float larger_of(float a, float b) { return fmaxf(a, b); }
ON_GPU float sum_of(float a, float b) { return a + b; }

/* Products of a line's keys from `key` on become probabilities against the maximum of the 64. */
template <int HALVES>
ON_GPU void soften(const struct paged &a, float (&s)[4][HALVES][4], int half, int position, int key,
                   float (&top)[2], float (&sum)[2])
{
    float base[2];
    if (a.cap > 0) each_score(s, half, [&](float x, int, int) { return paged_score(a, x); });
    if (!sees_all(a, position, key)) {
        const int mine = key + threadIdx.x % 32 / 4 * 8, last = position - mine;
        const int first = (a.window ? max(position - a.window + 1, 0) : 0) - mine;
        each_score(s, half, [&](float x, int j, int) { return j < first || j > last ? -INFINITY : x; });
    }
    top[0] = top[1] = -INFINITY, sum[0] = sum[1] = 0;
    each_score(s, half, [&](float x, int, int i) {
        top[i] = fmaxf(top[i], x);
        return x;
    });
#pragma unroll
    for (int i = 0; i < 2; i++) {
        top[i] = over_keys(top[i], larger_of);
        base[i] = top[i] == -INFINITY ? 0.0f : top[i];
    }
    each_score(s, half, [&](float x, int, int i) {
        const float p = exp2_fast((x - base[i]) * a.scale2);
        sum[i] += p;
        return p;
    });
#pragma unroll
    for (int i = 0; i < 2; i++) sum[i] = over_keys(sum[i], sum_of);
}

/* Probabilities as the second product's columns. With scales they are multiplied by those of their values, as shares of a power of two, which is
 * returned. */
template <class K>
ON_GPU float turn_scores(const struct paged &a, float (&s)[4][K::HALVES][4], const struct room &r, int last,
                         uint32_t (&p)[K::HALVES][8])
{
    unsigned power = 0x3f800000; /* 1 */
    if constexpr (K::CODEC::SCALED) {
        const unsigned least = 0x0d800000, exponent = 0x7f800000; /* 2^-100 */
        float by[8], most = 0;
        load_scales(K::size(a), r.values, r.value_step, by);
        last -= threadIdx.x % 32 / 4 * 8;
#pragma unroll
        for (int j = 0; j < 8; j++) by[j] = j <= last ? by[j] : 0, most = fmaxf(most, by[j]);
        power = max(__float_as_uint(over_keys(most, larger_of)) & exponent, least);
        const float share = __uint_as_float(0x7f000000 - power);
#pragma unroll
        for (int half = 0; half < K::HALVES; half++)
            each_score(s, half, [&](float x, int j, int) { return x * (by[j] * share); });
    }
#pragma unroll
    for (int half = 0; half < K::HALVES; half++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            p[half][j] = turn_matrix(K::type::pack(s[j % 4][half][j / 4 * 2], s[j % 4][half][j / 4 * 2 + 1]));
    return __uint_as_float(power);
}

/* Step i: positions 2 i, 2 i + 8, 2 i + 1, 2 i + 9 of the lane's block. WHOLE: all of the chunk's are the token's; else those behind it
 * are none. */
template <class K, bool WHOLE>
ON_GPU void multiply_values(const struct paged &a, float (&out)[4][K::HALVES][4],
                            const uint32_t (&p)[K::HALVES][8], const struct room &r, int set, int last)
{
    typedef typename K::CODEC CODEC;
    typedef typename CODEC::eight eight;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const char *from = r.values + t * r.value_step + (set * 64 + g * 8) * CODEC::BYTES;
    const bool within = K::EXACT || set * 64 + g * 8 < a.size;
    last -= t * KV_BLOCK;
#pragma unroll
    for (int step = 0; step < 4; step++) {
        eight x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = 2 * step + i / 2 + i % 2 * 8;
            x[i] = within && (WHOLE || at <= last) ? *(const eight *)(from + at * K::size(a) * CODEC::BYTES)
                                                   : eight{};
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t rows[4];
            rows_of<CODEC>(rows, x, n);
#pragma unroll
            for (int half = 0; half < K::HALVES; half++)
                K::type::multiply(out[n][half], rows, p[half][2 * step], p[half][2 * step + 1]);
        }
    }
}

/* The chunk's keys in shared memory for all lines; values follow, and `then` is called as soon as keys and queries are no longer needed. */
template <class K, class F>
ON_GPU void meet(const struct paged &a, const struct item &it, const struct chunk &here,
                 uint32_t (&q)[K::SETS * 4][K::HALVES][2], const struct joint_row<K> &own,
                 const struct room &r, uint32_t turn, columns<K::SETS, K::HALVES> &all, F then)
{
    constexpr int HALVES = K::HALVES;
    const int key = here.key, last = it.position - key;
    float s[4][HALVES][4] = {}, top[HALVES][2], sum[HALVES][2];
    uint32_t p[HALVES][8];
    multiply_keys<K>(a, s, q, r);
    if constexpr (K::CODEC::SCALED) {
        float by[8];
        load_scales(K::size(a), r.keys, r.key_step, by);
#pragma unroll
        for (int half = 0; half < HALVES; half++)
            each_score(s, half, [&](float x, int j, int) { return x * by[j]; });
    }
    then();
#pragma unroll
    for (int half = 0; half < HALVES; half++)
        soften<HALVES>(a, s, half, it.position, key, top[half], sum[half]);
    await(r, true, turn);
    put_own<K>(a, it, here, own, r, true);
    const float power = turn_scores<K>(a, s, r, last, p);
    struct paged_shares shares[HALVES][2];
#pragma unroll
    for (int half = 0; half < HALVES; half++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float &x = all.top[half][i], &y = all.sum[half][i];
            struct paged_shares &to = shares[half][i];
            to = paged_shares_of(x, y, top[half][i], sum[half][i], a.scale2);
            x = paged_joined_top(x, y, top[half][i], sum[half][i]), y = paged_joined(y, sum[half][i], to);
            to.more *= power;
        }
#pragma unroll
    for (int set = 0; set < K::SETS; set++) {
        float out[4][HALVES][4] = {};
        if (last >= CHUNK - 1)
            multiply_values<K, true>(a, out, p, r, set, last);
        else
            multiply_values<K, false>(a, out, p, r, set, last);
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    all.out[set][n][half][i] =
                        paged_joined(all.out[set][n][half][i], out[n][half][i], shares[half][i % 2]);
    }
}

/* The warps' lines of a token are joined and written. */
template <class K>
ON_GPU void put_joined(const struct paged &a, const struct work &w, int64_t at, bool shared)
{
    constexpr int WIDE = K::SETS * 64;
    const int d = threadIdx.x % WIDE, size = K::size(a);
    for (int l = threadIdx.x / WIDE; l < w.heads; l += THREADS / WIDE)
        if (d < size)
            put(a, at + l * size + d,
                join_warps(lines_of(a, K::bytes(a), shared, 0) + l * line_floats(size), lines_floats(a), size,
                           d, a.scale2));
}

/* A block of threads takes one work after the other: the next one's keys and values come while this one's are multiplied. */
template <class K>
__global__ void __launch_bounds__(THREADS, K::BLOCKS_AT_ONCE)
    decode(const struct paged a, int works, bool shared)
{
    const int warp = threadIdx.x / 32, apart = (int)gridDim.x, bytes = K::bytes(a);
    const struct room r = room_of(bytes, shared);
    next_may_begin();
    copies_init(r);
    auto words_of = [&](int index) { return row_words_of(a, item_of_work(a, index)); };
    struct work w = work_of(a, (int)blockIdx.x, words_of((int)blockIdx.x));
    struct row_words row = words_of((int)blockIdx.x + apart); /* of the next work */
    struct chunk c = first_chunk(a, w);
    const int before = min(max(w.it.context - c.key, 0) / KV_BLOCK, c.count);
    const int old = K::FRESH ? c.count : before;
    for (int values = 0; values < 2 - shared; values++) { /* what precedes the step is there already */
        expect(r, c, values, bytes);
        copy(a, r, c, values, 0, old, bytes);
    }
    await_previous();
    for (int values = 0; values < 2 - shared; values++)
        copy(a, r, c, values, old, c.count, bytes), end_copy();
    auto begin = [&](struct chunk of, bool values) {
        __syncwarp();
        expect(r, of, values, bytes), copy(a, r, of, values, 0, of.count, bytes), end_copy();
    };
    uint32_t turn = 0, q[K::SETS * 4][K::HALVES][2];
    struct joint_row<K> own, coming; /* of this work, and of the next one */
    if (c.count) load_queries<K>(a, w, q), own.load(a, w);
    for (int index = (int)blockIdx.x; index < works; index += apart) {
        const struct work now = w;
        const int64_t at = ((int64_t)now.it.token * a.heads + now.head) * K::size(a);
        const bool some = now.it.row >= 0 && now.from<now.end, mine = c.count> 0,
                   last = index + apart >= works;
        columns<K::SETS, K::HALVES> all;
        all.clear();
        if (mine) ready_queries<K>(a, own, q);
        if (!last) w = work_of(a, index + apart, row), row = words_of(index + 2 * apart);
        const struct chunk first = last ? chunk{} : first_chunk(a, w);
        for (bool more = mine; more; turn ^= 1) {
            const struct chunk here = c;
            const int next = here.key + CUDA_PAGED_PIECE;
            more = next <= now.it.position && next < now.end * CUDA_PAGED_PIECE;
            c = more ? chunk_at(a, now, next) : first;
            await(r, false, turn);
            put_own<K>(a, now.it, here, own, r, false);
            meet<K>(a, now.it, here, q, own, r, turn, all, [&]() {
                begin(either(shared, here, c), shared);
                if (!more && c.count) load_queries<K>(a, w, q), coming.load(a, w);
            });
            begin(c, !shared);
        }
        if (!mine) {
            c = first, begin(c, false);
            if (!shared) begin(c, true);
            if (c.count) load_queries<K>(a, w, q), coming.load(a, w);
        }
        if (K::FRESH) own = coming;
        if (now.it.row < 0) blank(a, now);
        if (!some) continue;
        if (now.split >= 0) {
            if (mine)
                all.leave(a.size, now.heads,
                          [&](int l) { return part_at(a, now.line + l, now.split, warp); });
            continue;
        }
        __syncthreads(); /* the lines before have been read */
        all.leave(K::size(a), now.heads,
                  [&](int l) { return lines_of(a, bytes, shared, warp) + l * line_floats(K::size(a)); });
        __syncthreads();
        put_joined<K>(a, now, at, shared);
    }
}

/* Blocks of threads that a card has at once, each with this much shared memory and registers for `most` of them on a multiprocessor. */
static int64_t blocks_at_once(const struct cuda_queue *queue, int shared, int most)
{
    const int64_t of_system = 1024, fit = ((int64_t)queue->shared_most + of_system) / (shared + of_system);
    return queue->sms * (fit < 1 ? 1 : fewest(fit, most));
}

template <class K> int start_kind(const struct cuda_queue *queue, const struct paged &of)
{
    const struct paged a = in_bytes(of, K::CODEC::BYTES);
    auto bytes = [&](bool shared) {
        return WARPS * (room_bytes((int)a.chunk, shared) + lines_floats(a) * (int)sizeof(float));
    };
    const bool shared = (size_t)bytes(false) > queue->shared_most;
    const int64_t works = decode_works(a), at_once = blocks_at_once(queue, bytes(shared), K::BLOCKS_AT_ONCE);
    int failed = (int)cudaFuncSetAttribute((const void *)decode<K>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, bytes(shared));
    failed = failed ? failed
                    : launch(queue, decode<K>, fewest(works, at_once), THREADS, (size_t)bytes(shared), a,
                             (int)works, shared);
    return failed ? failed : start_join(queue, a);
}

/* Heads of more than 64 elements. */
template <class CODEC> int start_large(const struct cuda_queue *queue, const struct paged &a)
{
    if constexpr (!CODEC::SCALED)
        if (a.joint) return start_kind<kind<CODEC, 2, 1, true, true>>(queue, a);
    if (a.group > 8) return start_kind<kind<CODEC, 2, 2, false>>(queue, a);
    return a.size == 128 ? start_kind<kind<CODEC, 2, 1, true>>(queue, a)
                         : start_kind<kind<CODEC, 2, 1, false>>(queue, a);
}

template <class CODEC> int start_small(const struct cuda_queue *queue, const struct paged &a)
{
    if (a.group > 8) return start_kind<kind<CODEC, 1, 2, false>>(queue, a);
    return a.size == 64 ? start_kind<kind<CODEC, 1, 1, true>>(queue, a)
                        : start_kind<kind<CODEC, 1, 1, false>>(queue, a);
}

} // namespace
