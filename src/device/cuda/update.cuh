/* update.cuh - what all optimizer kernels share: parameters with their masters, moments, rounding at random.
 *
 * A kernel works on N elements of every operand at once:
 *
 *     held<P, M, N> old = fetch_param<P, M, N>(u, at);
 *     float p[N], m[N];
 *     widen(old, p), load((const S *)u.m_in + at, m);
 *     ...
 *     put_state<S>(u.m, at, m, RANDOM_M, random);
 *     put_param<P, M>(u, at, p, random);
 *
 * P is the parameter's type, M where its master is, G the gradient's type, S that of the moments. */
#ifndef PLIM_DEVICE_CUDA_UPDATE_CUH
#define PLIM_DEVICE_CUDA_UPDATE_CUH

#include "device/cuda/vec.cuh"
#include "tensor/stochastic.h"

enum { NO_MASTER, LOW_BITS, WIDE_MASTER };

/* One call of an optimizer op; pointers are NULL when absent. */
struct update {
    const void *p_in, *master_in, *g, *m_in, *v_in;
    void *p, *master, *m, *v;
    const float *scalars, *coef;
    int64_t count;
    float beta1, beta2, mix1, mix2, eps, decay; /* mix: 1 - beta, as people wrote it */
    bool nesterov, stochastic;
    uint32_t stream, first;
};

/* Operand slots of an optimizer op; 0: it has no such operand (slot 0 is p, inputs and outputs alike). */
struct update_slots {
    int m, v, master, scalars, coef; /* inputs; g is 1 */
    int m_out, v_out, master_out;
};

static inline struct update update_of(const struct kernel_call *call, struct update_slots at)
{
    const struct op_attr *attr = &call->op->attr;
    double beta1 = round((double)attr->beta1 * 1e7) / 1e7, beta2 = round((double)attr->beta2 * 1e7) / 1e7;
    struct update u = {};
    u.p_in = call->in[0], u.p = call->out[0], u.g = call->in[1];
    u.m_in = at.m ? call->in[at.m] : NULL, u.m = at.m_out ? call->out[at.m_out] : NULL;
    u.v_in = at.v ? call->in[at.v] : NULL, u.v = at.v_out ? call->out[at.v_out] : NULL;
    u.master_in = call->in[at.master], u.master = call->out[at.master_out];
    u.scalars = (const float *)call->in[at.scalars], u.coef = (const float *)call->in[at.coef];
    u.count = tensor_count(call_in(call, 0));
    u.beta1 = attr->beta1, u.beta2 = (float)beta2;
    u.mix1 = (float)(1.0 - beta1), u.mix2 = (float)(1.0 - beta2);
    u.eps = attr->eps, u.decay = attr->decay;
    u.nesterov = attr->nesterov, u.stochastic = attr->stochastic;
    u.stream = attr->stream, u.first = (uint32_t)attr->first;
    return u;
}

static inline bool update_aligned(const struct update &u)
{
    return aligned(u.p_in, u.p, u.master_in, u.master, u.g, u.m_in, u.m, u.v_in, u.v);
}

/* f(type_tag<P>, master, type_tag<G>): the master is a master_tag. */
template <int M> struct master_tag {
    static constexpr int value = M;
};

template <class F> static inline int with_param(const struct kernel_call *call, bool master, F f)
{
    return with_types(call_in(call, 0)->type, call_in(call, 1)->type, [&](auto p, auto g) {
        using P = typename decltype(p)::type;
        if constexpr (sizeof(P) == 2) {
            constexpr int with = __is_same(P, bf16) ? LOW_BITS : WIDE_MASTER;
            if (master) return f(p, master_tag<with>(), g);
        }
        return f(p, master_tag<NO_MASTER>(), g);
    });
}

/* f(type_tag<S>) for the type of moments; without any, f32. */
template <class F> static inline int with_state(const struct tensor *state, F f)
{
    if (state && state->type == DT_BF16) return f(type_tag<bf16>());
    return !state || state->type == DT_F32 ? f(type_tag<float>()) : (int)cudaErrorInvalidValue;
}

/* --- this step ------------------------------------------------------------------------------------------- */

ON_GPU bool skipped(const struct update &u) { return u.coef && u.coef[CLIP_FINITE] == 0; }

ON_GPU float multiplier_of(const struct update &u) { return u.coef ? u.coef[CLIP_MULTIPLIER] : 1.0f; }

struct adamw_step {
    float multiplier, keep, step, root;
};

ON_GPU adamw_step adamw_step_of(const struct update &u)
{
    float lr = u.scalars[SCALAR_LR];
    return {multiplier_of(u), fmaf(-lr, u.decay, 1.0f), __fdiv_rn(lr, u.scalars[SCALAR_BIAS1]),
            __frcp_rn(__fsqrt_rn(u.scalars[SCALAR_BIAS2]))};
}

ON_GPU void adamw_one(const struct update &u, const adamw_step &s, float *p, float g, float *m, float *v)
{
    g = __fmul_rn(g, s.multiplier); /* not to be fused: the CPU's bits */
    *m = fmaf(__fsub_rn(g, *m), u.mix1, *m);
    *v = fmaf(__fmul_rn(g, g), u.mix2, __fmul_rn(*v, u.beta2));
    *p = fmaf(-__fdiv_rn(*m, fmaf(__fsqrt_rn(*v), s.root, u.eps)), s.step, __fmul_rn(*p, s.keep));
}

/* --- random bits: tensor/stochastic.h on the GPU --------------------------------------------------------- */

enum { RANDOM_P, RANDOM_M, RANDOM_V };

ON_GPU uint32_t random_mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x *= 0xc2b2ae35u;
    return x ^ (x >> 16);
}

ON_GPU uint32_t random_key(const struct update &u)
{
    uint32_t bits = (uint32_t)u.scalars[SCALAR_KEY_HIGH] << 16 | (uint32_t)u.scalars[SCALAR_KEY_LOW];
    return random_mix(random_mix(u.stream) ^ bits);
}

/* Random words of N elements; `use` is false when values are rounded to nearest. */
template <int N> struct randoms {
    uint32_t r[N];
    bool use;
};

template <int N> ON_GPU randoms<N> random_words(const struct update &u, uint32_t key, int64_t at)
{
    randoms<N> x;
    x.use = u.stochastic;
#pragma unroll
    for (int k = 0; k < N; k++)
        x.r[k] = x.use ? random_mix(((u.first + (uint32_t)at + k) * STOCHASTIC_ODD) ^ key) : 0;
    return x;
}

template <int WHICH> ON_GPU uint32_t random_bf16(float value, uint32_t r)
{
    uint32_t bits = __float_as_uint(value);
    uint32_t up =
        WHICH == RANDOM_P ? STOCHASTIC_P(r) : (WHICH == RANDOM_M ? STOCHASTIC_M(r) : STOCHASTIC_V(r));
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40;
    return (bits + up) >> 16;
}

template <int WHICH, class T, int N>
ON_GPU void save_rounded(T *to, const float (&v)[N], const randoms<N> &random)
{
    packet<T, N> x = pack<T>(v);
    if constexpr (__is_same(T, bf16)) {
        if (random.use) {
#pragma unroll
            for (int i = 0; i < packet<T, N>::words; i++) {
                x.w[i] = random_bf16<WHICH>(v[2 * i], random.r[2 * i]);
                if (N > 1) x.w[i] |= random_bf16<WHICH>(v[(2 * i + 1) % N], random.r[(2 * i + 1) % N]) << 16;
            }
        }
    }
    store(to, x);
}

template <class S, int WHICH, int N>
ON_GPU void put_state(void *state, int64_t at, const float (&v)[N], const randoms<N> &random)
{
    save_rounded<WHICH>((S *)state + at, v, random);
}

/* --- parameters and masters ------------------------------------------------------------------------------ */

template <int M> struct master_type {
    using type = unsigned short;
};
template <> struct master_type<WIDE_MASTER> {
    using type = float;
};

template <class P, int M, int N> struct held {
    packet<P, N> p;
    packet<typename master_type<M>::type, N> master;
};

template <class P, int M, int N> ON_GPU held<P, M, N> fetch_param(const struct update &u, int64_t at)
{
    using L = typename master_type<M>::type;
    held<P, M, N> h;
    h.p = fetch<P, N>((const P *)u.p_in + at);
    if constexpr (M != NO_MASTER) h.master = fetch<L, N>((const L *)u.master_in + at);
    return h;
}

/* The parameter at full precision, wherever its lower bits are (see master_join). */
template <class P, int M, int N> ON_GPU void widen(const held<P, M, N> &h, float (&p)[N])
{
    if constexpr (M == NO_MASTER) {
        unpack(h.p, p);
    } else if constexpr (M == WIDE_MASTER) {
        unpack(h.master, p);
    } else {
#pragma unroll
        for (int k = 0; k < N; k++) {
            unsigned high = k % 2 ? h.p.w[k / 2] & 0xffff0000u : h.p.w[k / 2] << 16;
            unsigned low = k % 2 ? h.master.w[k / 2] >> 16 : h.master.w[k / 2] & 0xffffu;
            p[k] = __uint_as_float((high | low) - 0x8000u);
        }
    }
}

/* As it was: the step is left out. */
template <class P, int M, int N>
ON_GPU void keep_param(const struct update &u, int64_t at, const held<P, M, N> &h)
{
    using L = typename master_type<M>::type;
    store((P *)u.p + at, h.p);
    if constexpr (M != NO_MASTER) store((L *)u.master + at, h.master);
}

template <class P, int M, int N>
ON_GPU void put_param(const struct update &u, int64_t at, const float (&p)[N], const randoms<N> &random)
{
    if constexpr (M == LOW_BITS) {
        held<P, M, N> h = {};
#pragma unroll
        for (int k = 0; k < N; k++) {
            unsigned bits = __float_as_uint(p[k]) + 0x8000u;
            h.p.w[k / 2] |= k % 2 ? bits & 0xffff0000u : bits >> 16;
            h.master.w[k / 2] |= k % 2 ? bits << 16 : bits & 0xffffu;
        }
        keep_param<P, M, N>(u, at, h);
    } else {
        if constexpr (M == WIDE_MASTER) save((float *)u.master + at, p);
        save_rounded<RANDOM_P>((P *)u.p + at, p, random);
    }
}

/* --- over all elements ----------------------------------------------------------------------------------- */

enum { UPDATE_THREADS = 256, UPDATE_LANES = 8 };

/* F::at<N>(arguments, first element, random key): UPDATE_LANES elements a thread, the rest one by one. */
template <class F, int N, class A> __global__ void __launch_bounds__(UPDATE_THREADS, 3) update_each(A a)
{
    int64_t i = (int64_t)blockIdx.x * UPDATE_THREADS + threadIdx.x, packets = a.u.count / N;
    uint32_t key = a.u.stochastic ? random_key(a.u) : 0;
    if (i < packets) F::template at<N>(a, i * N, key);
    if constexpr (N > 1) {
        int64_t rest = packets * N + threadIdx.x;
        if (blockIdx.x + 1 == gridDim.x && rest < a.u.count) F::template at<1>(a, rest, key);
    }
}

template <class F, class A>
static inline int run_update(const struct cuda_queue *queue, const A &a, bool wide)
{
    if (a.u.count == 0) return 0;
    unsigned blocks = (unsigned)parts_of(parts_of(a.u.count, wide ? UPDATE_LANES : 1), UPDATE_THREADS);
    if (wide)
        update_each<F, UPDATE_LANES><<<blocks, UPDATE_THREADS, 0, stream_of(queue)>>>(a);
    else
        update_each<F, 1><<<blocks, UPDATE_THREADS, 0, stream_of(queue)>>>(a);
    return launched();
}

#endif
