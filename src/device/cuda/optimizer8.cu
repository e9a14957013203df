/* optimizer8.cu - AdamW on moments of 8 bits.
 *
 * A warp steps one block of QUANT8_BLOCK elements, eight a lane: the moments never leave its registers between
 * decoding and encoding, and the largest of them are found by shuffles. Warps take blocks at a fixed distance, so
 * that the tables are brought into shared memory only a few times per multiprocessor. */
#include "device/cuda/quant8.cuh"
#include "device/cuda/update.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32, EACH = QUANT8_BLOCK / 32 };

__device__ const codes8 device_signed = codes8_signed, device_unsigned = codes8_unsigned;

struct update8 {
    struct update u;
    const unsigned char *mq_in, *vq_in;
    unsigned char *mq, *vq;
    const float *ms_in, *vs_in;
    float *ms, *vs;
};

struct maps8 {
    codes8 m, v;
};

ON_GPU void bring(codes8 *to, const codes8 *from)
{
    static_assert(sizeof(codes8) % 4 == 0, "whole words");
    for (int i = (int)threadIdx.x; i < (int)sizeof(codes8) / 4; i += THREADS)
        reinterpret_cast<unsigned *>(to)[i] = reinterpret_cast<const unsigned *>(from)[i];
}

template <int N>
ON_GPU void decode(const codes8 &map, const packet<unsigned char, N> &codes, float scale, float (&x)[N])
{
#pragma unroll
    for (int k = 0; k < N; k++) x[k] = map.value[codes.w[k / 4] >> (8 * (k % 4)) & 255u] * scale;
}

template <int N>
ON_GPU packet<unsigned char, N> encode(const codes8 &map, const float (&x)[N], float inverse, bool with_sign)
{
    packet<unsigned char, N> codes = zeros<unsigned char, N>();
#pragma unroll
    for (int k = 0; k < N; k++) codes.w[k / 4] |= code8(map, x[k] * inverse, with_sign) << (8 * (k % 4));
    return codes;
}

/* The scale a block's largest magnitude gives, and what its numbers are multiplied with. */
ON_GPU float scale_of(float top, float *inverse)
{
    bool tiny = !(top >= FLT_MIN);
    *inverse = tiny ? 0.0f : 1.0f / top;
    return tiny ? 0.0f : top;
}

/* As it was: the step is left out. */
template <class P, int M, int N> ON_GPU void keep_block(const update8 &a, int64_t block)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < EACH / N; j++) {
        int64_t i = block * QUANT8_BLOCK + (lane + 32 * j) * N;
        if (i >= a.u.count) continue;
        keep_param<P, M, N>(a.u, i, fetch_param<P, M, N>(a.u, i));
        store(a.mq + i, fetch<unsigned char, N>(a.mq_in + i));
        store(a.vq + i, fetch<unsigned char, N>(a.vq_in + i));
    }
    if (lane == 0) a.ms[block] = a.ms_in[block], a.vs[block] = a.vs_in[block];
}

/* Lane l has packets l, l + 32, ... of N elements each. */
template <class P, int M, class G, int N>
ON_GPU void step_block(const update8 &a, const maps8 &maps, const adamw_step &s, uint32_t key, int64_t block)
{
    constexpr int V = EACH / N;
    int64_t first = block * QUANT8_BLOCK + (int)threadIdx.x % 32 * N;
    float m[V][N] = {}, v[V][N] = {}, ms = a.ms_in[block], vs = a.vs_in[block], top_m = 0, top_v = 0;
#pragma unroll
    for (int j = 0; j < V; j++) {
        int64_t i = first + 32 * j * N;
        if (N == 1 && i >= a.u.count) continue;
        float p[N], g[N];
        held<P, M, N> old = fetch_param<P, M, N>(a.u, i);
        load((const G *)a.u.g + i, g);
        decode<N>(maps.m, fetch<unsigned char, N>(a.mq_in + i), ms, m[j]);
        decode<N>(maps.v, fetch<unsigned char, N>(a.vq_in + i), vs, v[j]);
        widen(old, p);
#pragma unroll
        for (int k = 0; k < N; k++) {
            adamw_one(a.u, s, &p[k], g[k], &m[j][k], &v[j][k]);
            top_m = fmaxf(top_m, fabsf(m[j][k])), top_v = fmaxf(top_v, v[j][k]);
        }
        put_param<P, M>(a.u, i, p, random_words<N>(a.u, key, i));
    }
    float inverse_m, inverse_v;
    ms = scale_of(warp_top(top_m), &inverse_m), vs = scale_of(warp_top(top_v), &inverse_v);
#pragma unroll
    for (int j = 0; j < V; j++) {
        int64_t i = first + 32 * j * N;
        if (N == 1 && i >= a.u.count) continue;
        store(a.mq + i, encode<N>(maps.m, m[j], inverse_m, true));
        store(a.vq + i, encode<N>(maps.v, v[j], inverse_v, false));
    }
    if (threadIdx.x % 32 == 0) a.ms[block] = ms, a.vs[block] = vs;
}

template <class P, int M, class G, int N> __global__ void __launch_bounds__(THREADS, 3) adamw8(update8 a)
{
    __shared__ maps8 maps;
    bring(&maps.m, &device_signed), bring(&maps.v, &device_unsigned);
    adamw_step s = adamw_step_of(a.u);
    uint32_t key = a.u.stochastic ? random_key(a.u) : 0;
    bool skip = skipped(a.u);
    __syncthreads();
    int64_t block = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    for (; block * QUANT8_BLOCK < a.u.count; block += (int64_t)gridDim.x * WARPS) {
        if (skip)
            keep_block<P, M, 1>(a, block);
        else if (N > 1 && (block + 1) * QUANT8_BLOCK <= a.u.count)
            step_block<P, M, G, N>(a, maps, s, key, block);
        else
            step_block<P, M, G, 1>(a, maps, s, key, block);
    }
}

} // namespace

int cuda_adamw8(const struct cuda_queue *queue, const struct kernel_call *call)
{
    update8 a = {update_of(call),
                 (const unsigned char *)call->in[ADAMW8_MQ],
                 (const unsigned char *)call->in[ADAMW8_VQ],
                 (unsigned char *)call->out[ADAMW8_NEW_MQ],
                 (unsigned char *)call->out[ADAMW8_NEW_VQ],
                 (const float *)call->in[ADAMW8_MS],
                 (const float *)call->in[ADAMW8_VS],
                 (float *)call->out[ADAMW8_NEW_MS],
                 (float *)call->out[ADAMW8_NEW_VS]};
    int64_t blocks = parts_of(quant8_blocks(a.u.count), WARPS);
    if (blocks == 0) return 0;
    bool wide = update_aligned(a.u) && aligned(a.mq_in, a.vq_in, a.mq, a.vq);
    unsigned grid = (unsigned)fewest(blocks, 6 * (int64_t)queue->sms);
    return with_param(call, a.u.master != NULL, [&](auto p, auto master, auto g) {
        using P = typename decltype(p)::type;
        using G = typename decltype(g)::type;
        constexpr int M = decltype(master)::value;
        return start(queue, wide ? adamw8<P, M, G, EACH> : adamw8<P, M, G, 1>, grid, THREADS, 0, a);
    });
}
