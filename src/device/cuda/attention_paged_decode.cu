/* attention_paged_decode.cu - tokens that are alone in their row, on the tensor cores: what memory gives is the limit.
 *
 * A block of threads has one token and up to 16 query heads of one kv head. It takes keys in pieces of CUDA_PAGED_PIECE, a warp
 * 64 of them: four blocks. A lane loads 16 bytes of keys or values as they lie, and all of a warp's loads are under way
 * before the first is used. The order of the sums inside a product of matrices is free, so nothing is moved between
 * lanes: with g = lane / 4 and t = lane % 4
 *
 *     scores   lane (g, t) has 8 keys of half a block, 8 g .. 8 g + 7 of the 64, for elements t, t + 4, t + 8, t + 12 of
 *              every 16 of the head. Words of two elements of one key are B of product j for key 8 g + j; what comes out,
 *              columns 2 t and 2 t + 1 of product j, are keys 16 t + j and 16 t + 8 + j: block t
 *     output   so lane (g, t) has the probabilities of block t, four of them for each step, as A; it loads elements
 *              8 g .. 8 g + 7 of the same keys' values, and product j is for elements 8 g + j
 *
 * Invariants
 *  1. A warp joins its chunks of one piece after the other, in order, and at the end the warps are joined, in order. Where
 *     there are few tokens a piece is a block's work and a second kernel joins the chunks by the same operations: a
 *     token's bits depend on its own row alone.
 *  2. Blocks behind the token's position are not read, and values of such positions count as 0.
 *  3. Keys before the row's context are older than this step: they are read before what was queued earlier has ended
 *     (overlap.cuh), those of the step itself afterwards.
 */
#include "device/cuda/attention_paged_lines.cuh"

namespace
{

/* Eight neighbouring elements of the pool as 16-bit words. Keys and values of another type than the queries' are
 * another struct like this. */
struct kv_16bit {
    ON_GPU uint4 eight(const void *pool, int64_t at) { return *(const uint4 *)((const uint16_t *)pool + at); }
};

ON_GPU uint32_t word_of(const uint4 &x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }

/* Element j of x and of y as one word. */
ON_GPU uint32_t pair_of(const uint4 &x, const uint4 &y, int j)
{
    return __byte_perm(word_of(x, j / 2), word_of(y, j / 2), j % 2 ? 0x7632 : 0x5410);
}

template <int SETS> struct keys {
    uint4 at[SETS * 4][4];
};
struct values { /* of one set */
    uint4 at[4][4];
};

template <class KV, int SETS>
ON_GPU void load_keys(const struct paged &a, const struct places &p, keys<SETS> &k)
{
#pragma unroll
    for (int s = 0; s < SETS * 4; s++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int d = s * 16 + threadIdx.x % 4 + 4 * i;
            k.at[s][i] =
                p.k >= 0 && d < a.size ? KV::eight(a.pool, p.k + d * KV_BLOCK) : make_uint4(0, 0, 0, 0);
        }
}

/* Loads the values of set `set`; `last` is the token's position relative to the chunk's first key. */
template <class KV>
ON_GPU void load_values(const struct paged &a, const struct places &p, int set, int last, values &v)
{
    const int lane = threadIdx.x % 32, mine = lane % 4 * KV_BLOCK;
    const bool have = p.v >= 0 && set * 64 + lane / 4 * 8 < a.size;
#pragma unroll
    for (int s = 0; s < 4; s++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            v.at[s][i] = have && mine + 4 * s + i <= last
                             ? KV::eight(a.pool, p.v + (4 * s + i) * a.size + set * 64)
                             : make_uint4(0, 0, 0, 0);
}

template <class type, int SETS>
ON_GPU void multiply_keys(float (&s)[8][4], const uint32_t (&q)[SETS * 4][4], const keys<SETS> &k)
{
#pragma unroll
    for (int step = 0; step < SETS * 4; step++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            type::multiply(s[j], q[step], pair_of(k.at[step][0], k.at[step][1], j),
                           pair_of(k.at[step][2], k.at[step][3], j));
}

/* Step i: keys 4 i .. 4 i + 3 of the lane's block. */
template <class type> ON_GPU void multiply_values(float (&out)[8][4], const float (&s)[8][4], const values &v)
{
#pragma unroll
    for (int step = 0; step < 4; step++) {
        const int j = step % 2 * 4, i = step / 2;
        const uint32_t p[4] = {type::pack(s[j][i], s[j + 1][i]), type::pack(s[j][2 + i], s[j + 1][2 + i]),
                               type::pack(s[j + 2][i], s[j + 3][i]),
                               type::pack(s[j + 2][2 + i], s[j + 3][2 + i])};
#pragma unroll
        for (int n = 0; n < 8; n++)
            type::multiply(out[n], p, pair_of(v.at[step][0], v.at[step][1], n),
                           pair_of(v.at[step][2], v.at[step][3], n));
    }
}

/* The 64 keys that a warp has of a piece. */
template <class type, class KV, int SETS, int HALVES> struct walk {
    static constexpr int sets = SETS, halves = HALVES;
    /* Loads of the next chunk begin while this one is worked on, where there are registers for them. */
    static constexpr bool AHEAD = SETS == 1 && HALVES == 1;
    struct places at;
    keys<SETS> k;
    values v;

    static __device__ __forceinline__ void load_queries(const struct paged &a, int64_t at, int heads,
                                                        uint32_t (&q)[SETS * 4][4])
    {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const uint16_t *from = (const uint16_t *)a.q + at;
#pragma unroll
        for (int s = 0; s < SETS * 4; s++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int line = g + i % 2 * 8, d = s * 16 + t + i / 2 * 8;
                uint32_t low = line < heads && d < a.size ? from[line * a.size + d] : 0;
                uint32_t high = line < heads && d + 4 < a.size ? from[line * a.size + d + 4] : 0;
                q[s][i] = low | high << 16;
            }
    }

    /* Loads the `old` keys of the chunk that precede the step; load_rest loads the others. Each lane holds 8 keys and
     * 16 values. */
    __device__ __forceinline__ void load_old(const struct paged &a, int old)
    {
        if (!AHEAD) return;
        const struct places here = {threadIdx.x % 32 / 4 * 8 + 8 <= old ? at.k : -1, at.v};
        load_keys<KV>(a, here, k), load_values<KV>(a, here, 0, old - 1, v);
    }

    __device__ __forceinline__ void load_rest(const struct paged &a, int old, int last)
    {
        if (!AHEAD) return;
        if (threadIdx.x % 32 / 4 * 8 + 8 > old) load_keys<KV>(a, at, k);
        if (threadIdx.x % 4 * KV_BLOCK + KV_BLOCK > old) load_values<KV>(a, at, 0, last, v);
    }

    /* The lines over the chunk alone; `more`: the next piece's will be met. */
    __device__ __forceinline__ void meet(const struct paged &a, const struct item &it, int kv, int key,
                                         bool more, const uint32_t (&q)[SETS * 4][4], lines<SETS, HALVES> &w)
    {
        const int last = it.position - key, next = key + CUDA_PAGED_PIECE;
        const struct places here = at;
        float s[8][4] = {};
        if (!AHEAD) load_keys<KV>(a, at, k);
        multiply_keys<type, SETS>(s, q, k);
        more = more && next <= it.position;
        if (more) at = find_chunk(a, it, kv, next);
        if (AHEAD && more) load_keys<KV>(a, at, k);
        if (!AHEAD) load_values<KV>(a, here, 0, last, v);
        w.clear();
#pragma unroll
        for (int half = 0; half < HALVES; half++)
            soften(a, s, half, it.position, key, w.top[half], w.sum[half]);
#pragma unroll
        for (int set = 0; set < SETS; set++) {
            if (set > 0) load_values<KV>(a, here, set, last, v);
            multiply_values<type>(w.out[set], s, v);
        }
        if (AHEAD && more) load_values<KV>(a, at, 0, it.position - next, v);
    }
};

template <class type> struct of_type {
    template <int SETS, int HALVES> using walks = walk<type, kv_16bit, SETS, HALVES>;
};

} // namespace

int cuda_paged_decode(const struct cuda_queue *queue, const struct paged *a)
{
    return a->type == DT_BF16 ? start_decode<type_bf16, of_type<type_bf16>::walks>(queue, *a)
                              : start_decode<type_f16, of_type<type_f16>::walks>(queue, *a);
}
