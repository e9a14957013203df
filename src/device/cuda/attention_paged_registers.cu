/* attention_paged_registers.cu - tokens that are alone in their row over 16-bit keys and values of heads of up to 64 elements: straight to registers.
 *
 * A step with few requests waits for latency, not for bytes. The kernel of attention_paged_decode.cuh needs much shared memory, which a GPU takes
 * from a multiprocessor's cache when the kernel begins and gives back behind it. Both stop the multiprocessor: LLaMA-1B with one stream lost a
 * seventh of its speed. This kernel needs little shared memory. A lane loads 16 bytes of keys or values as they lie, and all of a warp's loads
 * are under way before the first is used.
 *
 * Nothing is moved between lanes, since a product of matrices may add its terms in any order. With g = lane / 4 and t = lane % 4
 *
 *     scores   lane (g, t) has 8 keys of half a block, 8 g .. 8 g + 7 of the 64, for elements t, t + 4, t + 8, t + 12 of
 *              every 16 of the head. Words of two elements of one key are B of product j for key 8 g + j; what comes out,
 *              columns 2 t and 2 t + 1 of product j, are keys 16 t + j and 16 t + 8 + j: block t
 *     output   so lane (g, t) has the probabilities of block t, four of them for each step, as A; it loads elements
 *              8 g .. 8 g + 7 of the same keys' values, and product j is for elements 8 g + j
 *
 * FRESH: the step's own keys and values are not in the pool yet (attention_paged_fresh.cuh). A lane has both numbers of each pair that is turned.
 *
 * Invariants are those of attention_paged_decode.cuh. */
#include "device/cuda/attention_paged_fresh.cuh"

namespace
{

enum { SIZE = 64, STEPS = SIZE / 16 };

ON_GPU uint32_t word_of(const uint4 &x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }

/* Element j of x and of y as one word. */
ON_GPU uint32_t pair_of(const uint4 &x, const uint4 &y, int j)
{
    return __byte_perm(word_of(x, j / 2), word_of(y, j / 2), j % 2 ? 0x7632 : 0x5410);
}

/* A warp's part of the lines' keys. HALVES: groups of 8 lines. */
template <int HALVES> struct lines {
    float out[8][4]; /* lane (g, t): lines g and g + 8, elements 16 t + j and 16 t + 8 + j */
    float top[HALVES], sum[HALVES];

    __device__ __forceinline__ void clear(void)
    {
#pragma unroll
        for (int half = 0; half < HALVES; half++) top[half] = -INFINITY, sum[half] = 0;
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) out[j][i] = 0;
    }

    /* Those of a further chunk. */
    __device__ __forceinline__ void join(const lines &more, float scale2)
    {
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            const float a = top[half], b = sum[half], c = more.top[half], d = more.sum[half];
            const struct paged_shares by = paged_shares_of(a, b, c, d, scale2);
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++)
                    out[j][i] = paged_joined(out[j][i], more.out[j][i], by);
            top[half] = paged_joined_top(a, b, c, d), sum[half] = paged_joined(b, d, by);
        }
    }

    /* to(line): where a line's elements go, 16 bytes at a time, and behind them maximum and sum. */
    template <class F> __device__ __forceinline__ void leave(int size, int heads, F to) const
    {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            if (g + 8 * half >= heads) continue;
            float *line = to(g + 8 * half);
            if (t == 0) line[size] = top[half], line[size + 1] = sum[half];
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 8; j += 4)
                    if (int d = 16 * t + 8 * i + j; d < size)
                        *(float4 *)(line + d) =
                            make_float4(out[j][2 * half + i], out[j + 1][2 * half + i],
                                        out[j + 2][2 * half + i], out[j + 3][2 * half + i]);
        }
    }
};

/* Where a lane's keys and values of a chunk begin; below 0: it is behind the token's position. */
struct places {
    int64_t k, v;
};

ON_GPU struct places find_chunk(const struct paged &a, const struct item &it, int kv, int key)
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int32_t *table = a.blocks + (int64_t)it.row * a.reach + key / KV_BLOCK;
    struct places p = {-1, -1};
    if (key + g / 2 * KV_BLOCK <= it.position) p.k = paged_at(a, table[g / 2], kv) + g % 2 * 8;
    if (key + t * KV_BLOCK <= it.position) p.v = paged_at(a, table[t], kv) + a.plane + g * 8;
    return p;
}

/* Products of a line's 16 keys in this lane become probabilities against the maximum of the 64 from `key` on. */
ON_GPU void soften(const struct paged &a, float (&s)[8][4], int half, int position, int key, float &top,
                   float &sum)
{
    auto each = [&](auto f) {
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) f(s[j][2 * half + i], 8 * i + j);
    };
    if (a.cap > 0) each([&](float &x, int) { x = paged_score(a, x); });
    if (!sees_all(a, position, key)) {
        const int mine = key + threadIdx.x % 4 * KV_BLOCK, last = position - mine;
        const int first = (a.window ? max(position - a.window + 1, 0) : 0) - mine;
        each([&](float &x, int at) { x = at < first || at > last ? -INFINITY : x; });
    }
    top = -INFINITY, sum = 0;
    each([&](float &x, int) { top = fmaxf(top, x); });
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float base = top == -INFINITY ? 0.0f : top;
    each([&](float &x, int) { x = exp2_fast((x - base) * a.scale2), sum += x; });
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
}

/* Those of a token by which lane t's elements of the first half of a head are turned: t + 4 i of every 16. */
struct lane_angles {
    struct angle of[STEPS / 2][4];

    __device__ __forceinline__ void load(const struct paged &a, int token)
    {
#pragma unroll
        for (int s = 0; s < STEPS / 2; s++)
#pragma unroll
            for (int i = 0; i < 4; i++) of[s][i] = angle_at(a, token, s * 16 + threadIdx.x % 4 + 4 * i);
    }
};

/* How __byte_perm puts the low half of its second operand in the place of number `at` of eight, for each of their four words. */
struct eight_place {
    uint32_t select[4];

    __device__ __forceinline__ eight_place(int at)
    {
#pragma unroll
        for (int w = 0; w < 4; w++) select[w] = at / 2 != w ? 0x3210 : at % 2 ? 0x5410 : 0x3254;
    }
    __device__ __forceinline__ void put(uint4 &x, uint32_t bits) const
    {
        x = make_uint4(__byte_perm(x.x, bits, select[0]), __byte_perm(x.y, bits, select[1]),
                       __byte_perm(x.z, bits, select[2]), __byte_perm(x.w, bits, select[3]));
    }
};

/* A warp's 64 keys of a piece, of which it loads the next ones while it works on these. */
template <class type, int HALVES, bool FRESH> struct walk {
    struct places at;
    uint4 k[STEPS][4], v[4][4];

    __device__ __forceinline__ uint4 eight(const struct paged &a, int64_t i) const
    {
        return *(const uint4 *)((const uint16_t *)a.pool + i);
    }

    __device__ __forceinline__ void load_keys(const struct paged &a, bool wanted = true)
    {
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int d = s * 16 + threadIdx.x % 4 + 4 * i;
                k[s][i] = wanted && at.k >= 0 && d < a.size ? eight(a, at.k + d * KV_BLOCK)
                                                            : make_uint4(0, 0, 0, 0);
            }
    }

    /* `last`: the token's position relative to the chunk's first key. */
    __device__ __forceinline__ void load_values(const struct paged &a, int last)
    {
        const int lane = threadIdx.x % 32, mine = lane % 4 * KV_BLOCK;
        const bool have = at.v >= 0 && lane / 4 * 8 < a.size;
#pragma unroll
        for (int s = 0; s < 4; s++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[s][i] = have && mine + 4 * s + i <= last ? eight(a, at.v + (4 * s + i) * a.size)
                                                           : make_uint4(0, 0, 0, 0);
    }

    static __device__ __forceinline__ void load_queries(const struct paged &a, const struct work &w,
                                                        uint32_t (&q)[STEPS][4])
    {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, heads = w.heads;
        const uint16_t *from =
            FRESH ? joint_head(a, w.it.token, w.head) : (const uint16_t *)a.q + result_at(a, w);
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int line = g + i % 2 * 8, d = s * 16 + t + i / 2 * 8;
                const uint32_t low = line < heads && d < a.size ? from[line * a.size + d] : 0;
                const uint32_t high = line < heads && d + 4 < a.size ? from[line * a.size + d + 4] : 0;
                q[s][i] = low | high << 16;
            }
    }

    static __device__ __forceinline__ void turn_queries(const struct paged &a, int token,
                                                        uint32_t (&q)[STEPS][4])
    {
        struct lane_angles by;
        by.load(a, token);
#pragma unroll
        for (int s = 0; s < STEPS / 2; s++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                turn_words<type>(q[s][i], q[s + STEPS / 2][i], by.of[s][i / 2 * 2], by.of[s][i / 2 * 2 + 1]);
    }

    /* Begins to load the `old` keys of the chunk that precede the step; load_rest loads the others. Each lane holds 8 keys and
     * 16 values. FRESH: also what the pool has in the place of the step's own keys, which are none of it. */
    __device__ __forceinline__ void load_old(const struct paged &a, int old)
    {
        load_keys(a, FRESH || threadIdx.x % 32 / 4 * 8 + 8 <= old), load_values(a, old - 1);
    }

    __device__ __forceinline__ void load_rest(const struct paged &a, const struct item &it, int kv, int key)
    {
        const int old = max(it.context - key, 0);
        if (FRESH) return load_own(a, it, kv, key);
        if (threadIdx.x % 32 / 4 * 8 + 8 > old) load_keys(a);
        if (threadIdx.x % 4 * KV_BLOCK + KV_BLOCK > old) load_values(a, it.position - key);
    }

    /* FRESH: the step's own keys and values of the chunk, to their lanes and to the pool. */
    __device__ __forceinline__ void load_own(const struct paged &a, const struct item &it, int kv, int key)
    {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const struct own_keys own = own_keys_of(it, key, CHUNK);
        for (int position = own.from; position < own.until; position++) {
            const int token = token_at(it, position), at = position - key;
            if (g == at / 8) put_key(a, token, kv, at % 8);
            if (t == at / KV_BLOCK) put_value(a, token, kv, at % KV_BLOCK);
        }
    }

    __device__ __forceinline__ void put_key(const struct paged &a, int token, int kv, int at)
    {
        const uint16_t *from = joint_head(a, token, a.heads + kv);
        uint16_t *to = key_place(a, token, kv, 1);
        const struct eight_place place(at);
        struct lane_angles by;
        by.load(a, token);
#pragma unroll
        for (int s = 0; s < STEPS / 2; s++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int d = s * 16 + threadIdx.x % 4 + 4 * i;
                uint32_t x = from[d], y = from[d + SIZE / 2];
                turn_words<type>(x, y, by.of[s][i], by.of[s][i]);
                place.put(k[s][i], x), place.put(k[s + STEPS / 2][i], y);
                if (to) to[d * KV_BLOCK] = (uint16_t)x, to[(d + SIZE / 2) * KV_BLOCK] = (uint16_t)y;
            }
    }

    __device__ __forceinline__ void put_value(const struct paged &a, int token, int kv, int at)
    {
        const int d = threadIdx.x % 32 / 4 * 8;
        const uint4 x = *(const uint4 *)(joint_head(a, token, a.heads + a.kv_heads + kv) + d);
        uint16_t *to = value_place(a, token, kv, 1);
#pragma unroll
        for (int s = 0; s < 4; s++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (at == 4 * s + i) v[s][i] = x;
        if (to) *(uint4 *)(to + d) = x;
    }

    __device__ __forceinline__ void multiply_keys(float (&s)[8][4], const uint32_t (&q)[STEPS][4]) const
    {
#pragma unroll
        for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                type::multiply(s[j], q[step], pair_of(k[step][0], k[step][1], j),
                               pair_of(k[step][2], k[step][3], j));
    }

    /* Step i: keys 4 i .. 4 i + 3 of the lane's block. */
    __device__ __forceinline__ void multiply_values(float (&out)[8][4], const float (&s)[8][4]) const
    {
#pragma unroll
        for (int step = 0; step < 4; step++) {
            const int j = step % 2 * 4, i = step / 2;
            const uint32_t p[4] = {type::pack(s[j][i], s[j + 1][i]), type::pack(s[j][2 + i], s[j + 1][2 + i]),
                                   type::pack(s[j + 2][i], s[j + 3][i]),
                                   type::pack(s[j + 2][2 + i], s[j + 3][2 + i])};
#pragma unroll
            for (int n = 0; n < 8; n++)
                type::multiply(out[n], p, pair_of(v[step][0], v[step][1], n),
                               pair_of(v[step][2], v[step][3], n));
        }
    }

    /* The lines over the chunk alone; `more`: the next piece's will be met. */
    __device__ __forceinline__ void meet(const struct paged &a, const struct item &it, int kv, int key,
                                         bool more, const uint32_t (&q)[STEPS][4], lines<HALVES> &w)
    {
        const int next = key + CUDA_PAGED_PIECE;
        float s[8][4] = {};
        multiply_keys(s, q);
        more = more && next <= it.position;
        if (more) at = find_chunk(a, it, kv, next), load_keys(a);
        w.clear();
#pragma unroll
        for (int half = 0; half < HALVES; half++)
            soften(a, s, half, it.position, key, w.top[half], w.sum[half]);
        multiply_values(w.out, s);
        if (more) load_values(a, it.position - next);
        if (FRESH && more) load_own(a, it, kv, next);
    }
};

template <class type, int HALVES, bool FRESH>
__global__ void __launch_bounds__(THREADS, 2) decode(const struct paged a)
{
    __shared__ __align__(16) float room[WARPS][8 * HALVES][SIZE + CUDA_PAGED_STAT];
    const int warp = threadIdx.x / 32;
    next_may_begin();
    const struct work w = work_of(a, (int)blockIdx.x, row_words_of(a, item_of_work(a, (int)blockIdx.x)));
    walk<type, HALVES, FRESH> c;
    int key = w.from * CUDA_PAGED_PIECE + warp * CHUNK;
    const bool some = w.it.row >= 0 && w.from < w.end, mine = some && key <= w.it.position;
    const int old = max(w.it.context - key, 0);
    if (mine) c.at = find_chunk(a, w.it, w.kv, key), c.load_old(a, old);
    await_previous();
    if (w.it.row < 0) blank(a, w);
    if (!some) return;
    const int64_t at = result_at(a, w);
    lines<HALVES> all;
    all.clear();
    if (mine) {
        uint32_t q[STEPS][4];
        if (FRESH) c.load_queries(a, w, q);
        c.load_rest(a, w.it, w.kv, key);
        if (FRESH)
            c.turn_queries(a, w.it.token, q);
        else
            c.load_queries(a, w, q);
        for (int piece = w.from; piece < w.end && key <= w.it.position; piece++, key += CUDA_PAGED_PIECE) {
            lines<HALVES> chunk;
            c.meet(a, w.it, w.kv, key, piece + 1 < w.end, q, chunk);
            all.join(chunk, a.scale2);
        }
    }
    if (w.split >= 0) {
        if (mine) all.leave(a.size, w.heads, [&](int l) { return part_at(a, w.line + l, w.split, warp); });
        return;
    }
    all.leave(a.size, w.heads, [&](int l) { return room[warp][l]; });
    __syncthreads();
    const int d = threadIdx.x % SIZE, stride = sizeof room[0] / sizeof(float);
    for (int l = threadIdx.x / SIZE; l < w.heads; l += THREADS / SIZE)
        if (d < a.size) put(a, at + l * a.size + d, join_warps(room[0][l], stride, a.size, d, a.scale2));
}

template <class type, bool FRESH> int start_decode(const struct cuda_queue *queue, const struct paged &a)
{
    const int64_t works = decode_works(a);
    int failed = a.group <= 8 ? launch(queue, decode<type, 1, FRESH>, works, THREADS, 0, a)
                              : launch(queue, decode<type, 2, FRESH>, works, THREADS, 0, a);
    return failed ? failed : start_join(queue, a);
}

template <class type> int start_registers(const struct cuda_queue *queue, const struct paged &a)
{
    return a.joint ? start_decode<type, true>(queue, a) : start_decode<type, false>(queue, a);
}

} // namespace

int cuda_paged_registers(const struct cuda_queue *queue, const struct paged *a)
{
    return a->type == DT_BF16 ? start_registers<type_bf16>(queue, *a) : start_registers<type_f16>(queue, *a);
}
