/* optimizer.cu - the update part of a step: global norm, clipping, AdamW, SGD.
 *
 * A thread steps eight elements at a time (update.cuh). What the elements share it works out itself from the
 * scalars on the device, in a few operations. A step that clip has found not finite changes nothing. */
#include "device/cuda/update.cuh"

namespace
{

enum { THREADS = 256, SUMSQ_BLOCK = CUDA_SUMSQ_BLOCK, TOTAL_THREADS = 1024 };

/* --- global norm ----------------------------------------------------------------------------------------- */

/* Block b sums elements [b, b + 1) * SUMSQ_BLOCK, in fp64. */
template <class T, int N>
__global__ void __launch_bounds__(THREADS) square_blocks(const T *x, int64_t count, double *partial)
{
    constexpr int V = SUMSQ_BLOCK / THREADS / N;
    __shared__ double slots[THREADS / 32];
    int64_t first = (int64_t)blockIdx.x * SUMSQ_BLOCK;
    packet<T, N> x_packets[V];
    double sum = 0;
#pragma unroll
    for (int j = 0; j < V; j++) {
        int64_t at = first + (j * THREADS + (int)threadIdx.x) * N;
        x_packets[j] = at + N <= count ? fetch<T, N>(x + at) : zeros<T, N>();
    }
#pragma unroll
    for (int j = 0; j < V; j++) {
        float v[N];
        unpack(x_packets[j], v);
#pragma unroll
        for (int k = 0; k < N; k++) sum = fma((double)v[k], (double)v[k], sum);
    }
    if constexpr (N > 1) {
        int64_t rest = count / N * N + threadIdx.x;
        if (blockIdx.x + 1 == gridDim.x && rest < count) {
            float v[1];
            load(x + rest, v);
            sum = fma((double)v[0], (double)v[0], sum);
        }
    }
    sum = block_sum<THREADS>(sum, slots);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

template <class R>
__global__ void __launch_bounds__(TOTAL_THREADS)
    add_up(const R *partial, int64_t count, R *out, bool accumulate)
{
    __shared__ R slots[TOTAL_THREADS / 32];
    R sum = 0;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < count; i += TOTAL_THREADS) sum += partial[i];
    sum = block_sum<TOTAL_THREADS>(sum, slots);
    if (threadIdx.x == 0) *out = accumulate ? *out + sum : sum;
}

template <class R>
__global__ void __launch_bounds__(TOTAL_THREADS)
    clip_all(const R *sums, int64_t count, const float *scalars, float *coef)
{
    __shared__ R slots[TOTAL_THREADS / 32];
    R sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += TOTAL_THREADS) sum += sums[i];
    sum = block_sum<TOTAL_THREADS>(sum, slots);
    if (threadIdx.x != 0) return;
    R clip = scalars[SCALAR_CLIP], unscale = scalars[SCALAR_UNSCALE];
    R norm = sqrt(sum) * unscale, most = 1;
    if (clip > 0 && clip < norm + 1e-6) most = clip / (norm + 1e-6);
    bool finite = isfinite(norm);
    for (int i = 0; i < CLIP_COUNT; i++) coef[i] = 0;
    coef[CLIP_MULTIPLIER] = finite ? (float)(unscale * most) : 0.0f;
    coef[CLIP_NORM] = (float)norm;
    coef[CLIP_FINITE] = finite ? 1.0f : 0.0f;
}

/* --- AdamW and SGD --------------------------------------------------------------------------------------- */

struct plain {
    struct update u;
};

template <class P, int M, class G, class S> struct adamw {
    using once = adamw_step;
    static __device__ __forceinline__ once begin(const plain &a) { return adamw_step_of(a.u); }

    template <int N>
    static __device__ __forceinline__ void step(const plain &a, const once &o, uint32_t key, int64_t at,
                                                const elements<P, M, G, S, N> &old)
    {
        const struct update &u = a.u;
        float p[N], g[N], m[N], v[N];
        widen(old.p, p), unpack(old.g, g), unpack(old.m, m), unpack(old.v, v);
        if (!adamw_common(u, o, p, g, m, v)) {
            widen(old.p, p), unpack(old.m, m), unpack(old.v, v);
#pragma unroll
            for (int k = 0; k < N; k++) adamw_one(u, o, &p[k], g[k], &m[k], &v[k]);
        }
        randoms<N> random = random_words<N>(u, key, at);
        put_state<S, RANDOM_M>(u.m, at, m, random);
        put_state<S, RANDOM_V>(u.v, at, v, random);
        put_param<P, M>(u, at, p, random);
    }
};

template <class P, int M, class G, class S> struct sgd {
    struct once {
        float multiplier, lr;
    };
    static __device__ __forceinline__ once begin(const plain &a)
    {
        return {multiplier_of(a.u), a.u.scalars[SCALAR_LR]};
    }

    template <int N>
    static __device__ __forceinline__ void step(const plain &a, const once &o, uint32_t key, int64_t at,
                                                const elements<P, M, G, S, N> &old)
    {
        const struct update &u = a.u;
        float p[N], g[N], m[N];
        randoms<N> random = random_words<N>(u, key, at);
        widen(old.p, p), unpack(old.g, g), unpack(old.m, m);
#pragma unroll
        for (int k = 0; k < N; k++) {
            g[k] = fmaf(p[k], u.decay, __fmul_rn(g[k], o.multiplier)); /* the CPU's bits */
            m[k] = fmaf(m[k], u.beta1, g[k]);
            if (u.m) g[k] = u.nesterov ? fmaf(m[k], u.beta1, g[k]) : m[k];
            p[k] = fmaf(-g[k], o.lr, p[k]);
        }
        if (u.m) put_state<S, RANDOM_M>(u.m, at, m, random);
        put_param<P, M>(u, at, p, random);
    }
};

template <template <class, int, class, class> class F>
static int run(const struct cuda_queue *queue, const struct kernel_call *call, struct update_slots slots)
{
    plain a = {update_of(call, slots)};
    return with_param(call, a.u.master != NULL, [&](auto p, auto master, auto g) {
        return with_state(call_in(call, slots.m), [&](auto s) {
            using P = typename decltype(p)::type;
            using G = typename decltype(g)::type;
            using S = typename decltype(s)::type;
            return run_update<F, P, decltype(master)::value, G, S>(queue, a, update_aligned(a.u));
        });
    });
}

} // namespace

int cuda_sumsq(const struct cuda_queue *queue, const struct kernel_call *call)
{
    int64_t count = tensor_count(call_in(call, 0)), blocks = parts_of(count, SUMSQ_BLOCK);
    double *partial = (double *)call->work;
    int failed = with_type(call_in(call, 0)->type, [&](auto t) {
        using T = typename decltype(t)::type;
        const T *x = (const T *)call->in[0];
        if (count == 0) return 0;
        if (aligned(x))
            square_blocks<T, lanes<T>><<<(unsigned)blocks, THREADS, 0, stream_of(queue)>>>(x, count, partial);
        else
            square_blocks<T, 1><<<(unsigned)blocks, THREADS, 0, stream_of(queue)>>>(x, count, partial);
        return launched();
    });
    if (failed) return failed;
    add_up<<<1, TOTAL_THREADS, 0, stream_of(queue)>>>(partial, blocks, (double *)call->out[0],
                                                      call->accumulate);
    return launched();
}

int cuda_clip(const struct cuda_queue *queue, const struct kernel_call *call)
{
    clip_all<<<1, TOTAL_THREADS, 0, stream_of(queue)>>>((const double *)call->in[0],
                                                        tensor_count(call_in(call, 0)),
                                                        (const float *)call->in[1], (float *)call->out[0]);
    return launched();
}

int cuda_adamw(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return run<adamw>(queue, call, {2, 3, 4, 5, 6, 1, 2, 3});
}

int cuda_sgd(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return run<sgd>(queue, call, {2, 0, 3, 4, 5, 1, 0, 2});
}
