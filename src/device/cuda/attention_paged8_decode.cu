/* attention_paged8_decode.cu - tokens that are alone in their row over keys and values in 8 bits (tensor/kv8.h), on the tensor cores.
 *
 * As attention_paged_decode.cu: a lane has the same keys, and the same elements of values. Blocks are copied to shared memory as they are, for
 * a token's keys take a warp hardly longer to work on than to wait for, and registers would hold those of one chunk alone. Codes become fp16
 * numbers in registers, which is exact, and queries and probabilities are fp16 too. Scales are applied to what is summed:
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

/* Product j of a lane has the keys j and 8 + j of its block: of a line's half, elements 0 and 1. */
template <int HALVES, class F> ON_GPU void each_key(float (&s)[8][4], F f)
{
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 2 * HALVES; i++) s[j][i] *= f(i % 2 * 8 + j);
}

/* Probabilities times their scales, as shares of the largest of the chunk, which is returned. */
template <int HALVES> ON_GPU float scale_values(float (&s)[8][4], const float *v, int last)
{
    const int mine = threadIdx.x % 4 * KV_BLOCK;
    float most = 0, by[KV_BLOCK];
#pragma unroll
    for (int i = 0; i < KV_BLOCK; i++) by[i] = mine + i <= last ? v[i] : 0, most = fmaxf(most, by[i]);
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    const float share = most > 1e-30f ? 1.0f / most : 0;
#pragma unroll
    for (int i = 0; i < KV_BLOCK; i++) by[i] *= share;
    each_key<HALVES>(s, [&](int i) { return by[i]; });
    return most;
}

/* A head's elements d and d + 1 of a line as fp16. */
ON_GPU uint32_t query(const struct paged &a, const uint16_t *from, int line, int heads, int d)
{
    if (line >= heads || d >= a.size) return 0;
    const uint32_t bits = *(const uint32_t *)(from + line * a.size + d);
    const bool bf16 = a.type == DT_BF16;
    const float low = bf16 ? type_bf16::low(bits) : type_f16::low(bits),
                high = bf16 ? type_bf16::high(bits) : type_f16::high(bits);
    return type_f16::pack(fminf(fmaxf(low, -65504.0f), 65504.0f), fminf(fmaxf(high, -65504.0f), 65504.0f));
}

/* A warp's chunk in shared memory. Keys and values each have a place of their own: while the lines meet the keys, values are on their
 * way, and the next chunk's keys while they meet the values. */
template <class CODES, int SETS, int HALVES> struct walk {
    static constexpr int sets = SETS, halves = HALVES, blocks = 3, query_bytes = SETS * 4 * 32 * 16;
    char *keys, *own_values; /* of this warp */
    const uint4 *queries;    /* [SETS * 4][lane] */

    /* From one block's keys or values to the next one's: such that lanes read different banks. */
    static __host__ __device__ int key_stride(const struct paged &a)
    {
        return (int)a.chunk + (int)(144 - a.chunk % 128) % 128;
    }
    static __host__ __device__ int value_stride(const struct paged &a)
    {
        return (int)a.chunk + (int)(224 - a.chunk % 128) % 128;
    }
    static __host__ __device__ int warp_bytes(const struct paged &a)
    {
        const int staged = CHUNK / KV_BLOCK * (key_stride(a) + value_stride(a)),
                  most = results<SETS, HALVES>::BYTES;
        return staged > most ? staged : most;
    }

    __device__ __forceinline__ void begin(const struct paged &a, const struct work &, int, char *own)
    {
        keys = own, own_values = own + CHUNK / KV_BLOCK * key_stride(a);
    }

    /* Starts copying blocks [from, until) of the chunk that begins with `key`, as far as the token's position. */
    static __device__ __forceinline__ void copy(const struct paged &a, const struct work &w, int key,
                                                int from, int until, char *to, int stride, int64_t plane)
    {
        const int32_t *table = a.blocks + (int64_t)w.it.row * a.reach + key / KV_BLOCK;
        until = min(until, (w.it.position - key) / KV_BLOCK + 1);
        for (int b = from; b < until; b++) {
            const unsigned char *x = (const unsigned char *)a.pool + paged_at(a, table[b], w.kv) + plane;
            for (int i = threadIdx.x % 32 * 16; i < a.chunk; i += 32 * 16)
                copy16(shared_address(to + b * stride + i), x + i, true);
        }
    }
    __device__ __forceinline__ void copy_keys(const struct paged &a, const struct work &w, int key, int from,
                                              int until) const
    {
        copy(a, w, key, from, until, keys, key_stride(a), 0);
    }
    __device__ __forceinline__ void copy_values(const struct paged &a, const struct work &w, int key,
                                                int from, int until) const
    {
        copy(a, w, key, from, until, own_values, value_stride(a), a.plane);
    }

    static __device__ __forceinline__ int old_blocks(const struct work &w, int key)
    {
        return max(0, min((w.it.context - key) / KV_BLOCK, CHUNK / KV_BLOCK));
    }
    __device__ __forceinline__ void load_old(const struct paged &a, const struct work &w, int key) const
    {
        const int old = old_blocks(w, key);
        copy_keys(a, w, key, 0, old), copy_values(a, w, key, 0, old);
    }
    __device__ __forceinline__ void load_rest(const struct paged &a, const struct work &w, int key) const
    {
        const int old = old_blocks(w, key);
        copy_keys(a, w, key, old, CHUNK / KV_BLOCK);
        copy_commit();
        copy_values(a, w, key, old, CHUNK / KV_BLOCK);
        copy_commit();
    }

    static __device__ __forceinline__ void place_queries(const struct paged &a, const struct work &w,
                                                         int64_t from, char *to)
    {
        const uint16_t *x = (const uint16_t *)a.q + from;
        for (int i = threadIdx.x; i < SETS * 4 * 32; i += THREADS) {
            const int step = i / 32, g = i % 32 / 4, d = step * 16 + i % 4 * 2;
            ((uint4 *)to)[i] = make_uint4(query(a, x, g, w.heads, d), query(a, x, g + 8, w.heads, d),
                                          query(a, x, g, w.heads, d + 8), query(a, x, g + 8, w.heads, d + 8));
        }
        __syncthreads();
    }
    __device__ __forceinline__ void take_queries(const struct paged &, const struct work &, int64_t,
                                                 char *placed)
    {
        queries = (const uint4 *)placed + threadIdx.x % 32;
    }

    /* Scores of the chunk: lane (g, t) has keys 8 g .. 8 g + 7 for elements 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of every 16. */
    __device__ __forceinline__ void multiply_keys(const struct paged &a, float (&s)[8][4]) const
    {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const char *mine = keys + g / 2 * key_stride(a) + g % 2 * 8;
#pragma unroll 2 /* or loads of all steps take registers */
        for (int step = 0; step < SETS * 4; step++) {
            const uint4 x = queries[step * 32];
            const uint32_t q[4] = {x.x, x.y, x.z, x.w};
            uint2 k[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int d = step * 16 + 2 * t + i % 2 + i / 2 * 8;
                k[i] = d < a.size ? *(const uint2 *)(mine + d * KV_BLOCK) : make_uint2(0, 0);
            }
#pragma unroll
            for (int j = 0; j < 8; j++)
                type_f16::multiply(s[j], q, pair_of<CODES>(k[0], k[1], j), pair_of<CODES>(k[2], k[3], j));
        }
        const float *by = (const float *)(keys + t * key_stride(a) + KV_BLOCK * a.size); /* block t */
        each_key<HALVES>(s, [&](int i) { return by[i]; });
    }

    /* Probabilities times values of set `set`; `last` is the token's position relative to the chunk's first key. In step i a lane has keys
     * 4 i .. 4 i + 3 of its block. */
    __device__ __forceinline__ void multiply_values(const struct paged &a, int set, int last,
                                                    const float (&s)[8][4], float (&out)[8][4]) const
    {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, d = set * 64 + g * 8;
        const char *mine = own_values + t * value_stride(a) + d;
        auto pair = [&](int j, int i) { return type_f16::pack(s[j][i], s[j + 1][i]); };
#pragma unroll
        for (int step = 0; step < 4; step++) {
            const int j = step % 2 * 4, i = step / 2;
            const uint32_t p[4] = {pair(j, i), HALVES > 1 ? pair(j, 2 + i) : 0, pair(j + 2, i),
                                   HALVES > 1 ? pair(j + 2, 2 + i) : 0};
            uint2 v[4];
#pragma unroll
            for (int n = 0; n < 4; n++)
                v[n] = d < a.size && t * KV_BLOCK + 4 * step + n <= last
                           ? *(const uint2 *)(mine + (4 * step + n) * a.size)
                           : make_uint2(0, 0);
#pragma unroll
            for (int n = 0; n < 8; n++)
                type_f16::multiply(out[n], p, pair_of<CODES>(v[0], v[1], n), pair_of<CODES>(v[2], v[3], n));
        }
    }

    /* Joins the lines over the chunk; `more`: the next piece's will be met. */
    __device__ __forceinline__ void meet(const struct paged &a, const struct work &w, int key, bool more,
                                         lines<SETS, HALVES> &all)
    {
        const int last = w.it.position - key, next = key + CUDA_PAGED_PIECE;
        more = more && next <= w.it.position;
        float s[8][4] = {}, top[HALVES], sum[HALVES];
        copy_wait<1>();
        __syncwarp();
        multiply_keys(a, s);
        __syncwarp();
        if (more) copy_keys(a, w, next, 0, CHUNK / KV_BLOCK);
        copy_commit();
#pragma unroll
        for (int half = 0; half < HALVES; half++)
            soften(a, s, half, w.it.position, key, top[half], sum[half]);
        copy_wait<1>();
        __syncwarp();
        const float *by = (const float *)(own_values + threadIdx.x % 4 * value_stride(a) + KV_BLOCK * a.size);
        const float most = scale_values<HALVES>(s, by, last);
#pragma unroll
        for (int set = 0; set < SETS; set++) {
            float out[8][4] = {};
            multiply_values(a, set, last, s, out);
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int i = 0; i < 2 * HALVES; i++) out[j][i] *= most;
            all.join_set(set, out, top, sum, a.scale2);
        }
        all.join_sums(top, sum, a.scale2);
        __syncwarp();
        if (more) copy_values(a, w, next, 0, CHUNK / KV_BLOCK);
        copy_commit();
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
