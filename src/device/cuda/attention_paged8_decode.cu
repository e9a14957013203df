/* attention_paged8_decode.cu - tokens that are alone in their row over keys and values in 8 bits (tensor/kv8.h), on the tensor cores.
 *
 * As attention_paged_decode.cu, with loads of 8 bytes: a lane has the same keys and elements. Codes become fp16 numbers in registers, which
 * is exact, and queries and probabilities are fp16 too. Scales are applied to what is summed:
 *
 *     scores   of a key are multiplied by its scale
 *     output   a probability is multiplied by the scale of its key's values, as a share of the chunk's largest, so that it stays within
 *              fp16's range; the sums are multiplied by that largest
 */
#include "device/cuda/attention_codes.cuh"
#include "device/cuda/attention_paged_lines.cuh"

namespace
{

ON_GPU uint32_t word_of(const uint2 &x, int i) { return i == 0 ? x.x : x.y; }

/* Codes j of x and of y as a pair. */
template <class CODES> ON_GPU uint32_t pair_of(const uint2 &x, const uint2 &y, int j)
{
    return CODES::pair(__byte_perm(word_of(x, j / 4), word_of(y, j / 4), j % 4 | (4 + j % 4) << 4));
}

/* Scales of the 16 positions of the lane's block. */
struct scales {
    float4 at[4];
    __device__ __forceinline__ float of(int i) const
    {
        const float4 &f = at[i / 4];
        return i % 4 == 0 ? f.x : i % 4 == 1 ? f.y : i % 4 == 2 ? f.z : f.w;
    }
};

/* from: of the keys or values of block t of the chunk; below 0: there are none. */
ON_GPU void load_scales(const struct paged &a, int64_t from, scales &s)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        s.at[i] = from >= 0
                      ? *(const float4 *)((const unsigned char *)a.pool + from + KV_BLOCK * a.size + 16 * i)
                      : make_float4(0, 0, 0, 0);
}

ON_GPU uint2 eight(const struct paged &a, int64_t at)
{
    return *(const uint2 *)((const unsigned char *)a.pool + at);
}

template <int SETS> struct keys {
    uint2 at[SETS * 4][4];
};
struct values { /* of one set */
    uint2 at[4][4];
};

template <int SETS> ON_GPU void load_keys(const struct paged &a, const struct places &p, keys<SETS> &k)
{
#pragma unroll
    for (int s = 0; s < SETS * 4; s++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int d = s * 16 + threadIdx.x % 4 + 4 * i;
            k.at[s][i] = p.k >= 0 && d < a.size ? eight(a, p.k + d * KV_BLOCK) : make_uint2(0, 0);
        }
}

/* Loads the values of set `set`; `last` is the token's position relative to the chunk's first key. */
ON_GPU void load_values(const struct paged &a, const struct places &p, int set, int last, values &v)
{
    const int lane = threadIdx.x % 32, mine = lane % 4 * KV_BLOCK;
    const bool have = p.v >= 0 && set * 64 + lane / 4 * 8 < a.size;
#pragma unroll
    for (int s = 0; s < 4; s++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            v.at[s][i] = have && mine + 4 * s + i <= last ? eight(a, p.v + (4 * s + i) * a.size + set * 64)
                                                          : make_uint2(0, 0);
}

template <class CODES, int SETS>
ON_GPU void multiply_keys(float (&s)[8][4], const uint32_t (&q)[SETS * 4][4], const keys<SETS> &k)
{
#pragma unroll
    for (int step = 0; step < SETS * 4; step++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            type_f16::multiply(s[j], q[step], pair_of<CODES>(k.at[step][0], k.at[step][1], j),
                               pair_of<CODES>(k.at[step][2], k.at[step][3], j));
}

/* Step i: keys 4 i .. 4 i + 3 of the lane's block. */
template <class CODES>
ON_GPU void multiply_values(float (&out)[8][4], const float (&s)[8][4], const values &v)
{
#pragma unroll
    for (int step = 0; step < 4; step++) {
        const int j = step % 2 * 4, i = step / 2;
        const uint32_t p[4] = {
            type_f16::pack(s[j][i], s[j + 1][i]), type_f16::pack(s[j][2 + i], s[j + 1][2 + i]),
            type_f16::pack(s[j + 2][i], s[j + 3][i]), type_f16::pack(s[j + 2][2 + i], s[j + 3][2 + i])};
#pragma unroll
        for (int n = 0; n < 8; n++)
            type_f16::multiply(out[n], p, pair_of<CODES>(v.at[step][0], v.at[step][1], n),
                               pair_of<CODES>(v.at[step][2], v.at[step][3], n));
    }
}

/* Product j of a lane has the keys j and 8 + j of its block: of a line's half, elements 0 and 1. */
template <class F> ON_GPU void each_key(float (&s)[8][4], F f)
{
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[j][i] *= f(i % 2 * 8 + j);
}

/* Probabilities times their scales, as shares of the largest of the chunk, which is returned. */
ON_GPU float scale_values(float (&s)[8][4], scales &v, int last)
{
    const int mine = threadIdx.x % 4 * KV_BLOCK;
    float most = 0, by[KV_BLOCK];
#pragma unroll
    for (int i = 0; i < KV_BLOCK; i++) by[i] = mine + i <= last ? v.of(i) : 0, most = fmaxf(most, by[i]);
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    const float share = most > 1e-30f ? 1.0f / most : 0;
#pragma unroll
    for (int i = 0; i < KV_BLOCK; i++) by[i] *= share;
    each_key(s, [&](int i) { return by[i]; });
    return most;
}

template <class CODES, int SETS, int HALVES> struct walk {
    static constexpr int sets = SETS, halves = HALVES;
    /* Loads of the next chunk begin while this one is worked on, where there are registers for them. */
    static constexpr bool AHEAD = SETS == 1 && HALVES == 1;
    struct places at;
    keys<SETS> k;
    values v;
    scales ks, vs;

    static __device__ __forceinline__ uint32_t query(const struct paged &a, const uint16_t *from, int line,
                                                     int heads, int d)
    {
        if (line >= heads || d >= a.size) return 0;
        const uint32_t bits = from[line * a.size + d];
        const float x = a.type == DT_BF16 ? type_bf16::low(bits) : type_f16::low(bits);
        return type_f16::pack(fminf(fmaxf(x, -65504.0f), 65504.0f), 0);
    }

    static __device__ __forceinline__ void load_queries(const struct paged &a, int64_t at, int heads,
                                                        uint32_t (&q)[SETS * 4][4])
    {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const uint16_t *from = (const uint16_t *)a.q + at;
#pragma unroll
        for (int s = 0; s < SETS * 4; s++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int line = g + i % 2 * 8, d = s * 16 + t + i / 2 * 8;
                q[s][i] = query(a, from, line, heads, d) | query(a, from, line, heads, d + 4) << 16;
            }
    }

    /* The lane's block, of which `at` has values from element 8 g on. */
    static __device__ __forceinline__ int64_t values_of(const struct places &p)
    {
        return p.v < 0 ? -1 : p.v - threadIdx.x % 32 / 4 * 8;
    }
    static __device__ __forceinline__ int64_t keys_of(const struct paged &a, const struct places &p)
    {
        return p.v < 0 ? -1 : values_of(p) - a.plane;
    }

    __device__ __forceinline__ void load_old(const struct paged &a, int old)
    {
        if (!AHEAD) return;
        const struct places here = {threadIdx.x % 32 / 4 * 8 + 8 <= old ? at.k : -1,
                                    threadIdx.x % 4 * KV_BLOCK + KV_BLOCK <= old ? at.v : -1};
        load_keys(a, here, k), load_values(a, here, 0, old - 1, v);
        load_scales(a, keys_of(a, here), ks), load_scales(a, values_of(here), vs);
    }

    __device__ __forceinline__ void load_rest(const struct paged &a, int old, int last)
    {
        if (!AHEAD) return;
        if (threadIdx.x % 32 / 4 * 8 + 8 > old) load_keys(a, at, k);
        if (threadIdx.x % 4 * KV_BLOCK + KV_BLOCK <= old) return;
        load_values(a, at, 0, last, v);
        load_scales(a, keys_of(a, at), ks), load_scales(a, values_of(at), vs);
    }

    /* The lines over the chunk alone; `more`: the next piece's will be met. */
    __device__ __forceinline__ void meet(const struct paged &a, const struct item &it, int kv, int key,
                                         bool more, const uint32_t (&q)[SETS * 4][4], lines<SETS, HALVES> &w)
    {
        const int last = it.position - key, next = key + CUDA_PAGED_PIECE;
        const struct places here = at;
        float s[8][4] = {};
        if (!AHEAD) {
            load_keys(a, at, k), load_scales(a, keys_of(a, at), ks);
            load_values(a, at, 0, last, v), load_scales(a, values_of(at), vs);
        }
        multiply_keys<CODES, SETS>(s, q, k);
        each_key(s, [&](int i) { return ks.of(i); });
        more = more && next <= it.position;
        if (more) at = find_chunk(a, it, kv, next);
        if (AHEAD && more) load_keys(a, at, k), load_scales(a, keys_of(a, at), ks);
        w.clear();
#pragma unroll
        for (int half = 0; half < HALVES; half++)
            soften(a, s, half, it.position, key, w.top[half], w.sum[half]);
        const float most = scale_values(s, vs, last);
#pragma unroll
        for (int set = 0; set < SETS; set++) {
            values second;
            if (set == 0 && SETS > 1) load_values(a, here, 1, last, second);
            multiply_values<CODES>(w.out[set], s, v);
            if (set == 0 && SETS > 1) v = second;
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) w.out[set][j][i] *= most;
        }
        if (AHEAD && more) load_values(a, at, 0, it.position - next, v), load_scales(a, values_of(at), vs);
    }
};

template <class CODES> struct of_codes {
    template <int SETS, int HALVES> using walks = walk<CODES, SETS, HALVES>;
};

} // namespace

int cuda_paged8_decode(const struct cuda_queue *queue, const struct paged *a)
{
    return a->e4m3 ? start_decode<type_either, of_codes<codes_e4m3>::walks>(queue, *a)
                   : start_decode<type_either, of_codes<codes_i8>::walks>(queue, *a);
}
