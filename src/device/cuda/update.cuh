/* update.cuh - what all optimizer kernels share: parameters with their masters, moments, rounding at random.
 *
 * A rule is a class with what all elements of a call share and a step for N of them:
 *
 *     template <class P, int M, class G, class S> struct rule {
 *         struct once { ... };
 *         static __device__ once begin(const A &a);
 *         template <int N> static __device__ void step(const A &a, const once &o, uint32_t key, int64_t at,
 *                                                      const elements<P, M, G, S, N> &old);
 *     };
 *     run_update<rule, P, M, G, S>(queue, a, wide);           // A has the call as a.u
 *
 * P is the parameter's type, M where its master is, G the gradient's type, S that of the moments. */
#pragma once

#include "device/cuda/random.cuh"
#include "device/cuda/vec.cuh"

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

static inline struct update update_of(const struct kernel_call *call)
{
    const struct update_slots &at = op_row(call->op->kind)->update;
    const struct op_attr *attr = &call->op->attr;
    double beta1 = round((double)attr->beta1 * 1e7) / 1e7, beta2 = round((double)attr->beta2 * 1e7) / 1e7;
    struct update u = {};
    u.p_in = call->in[UPDATE_P], u.p = call->out[UPDATE_NEW_P], u.g = call->in[UPDATE_G];
    u.m_in = at.m ? call->in[at.m] : NULL, u.m = at.new_m ? call->out[at.new_m] : NULL;
    u.v_in = at.v ? call->in[at.v] : NULL, u.v = at.new_v ? call->out[at.new_v] : NULL;
    u.master_in = call->in[at.master], u.master = call->out[at.new_master];
    u.scalars = (const float *)call->in[at.scalars], u.coef = (const float *)call->in[at.coef];
    u.count = tensor_count(call_in(call, UPDATE_P));
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
    return with_types(call_in(call, UPDATE_P)->type, call_in(call, UPDATE_G)->type, [&](auto p, auto g) {
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

template <int N> ON_GPU bool all_finite(const float (&v)[N])
{
    float zero = 0;
#pragma unroll
    for (int k = 0; k < N; k++) zero = fmaf(v[k], 0.0f, zero);
    return zero == 0;
}

ON_GPU float rough_rsqrt(float x)
{
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

ON_GPU float rough_reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* N times adamw_one, bit for bit, where every exponent is a common one; else false, and the numbers are spoilt.
 * Root and quotient come from an estimate and a remainder, as the library makes them, but without its question
 * about rare exponents at each of them: what is asked here keeps every remainder a normal number. A quotient that
 * is too large leaves a parameter that is not finite. */
template <int N>
ON_GPU bool adamw_common(const struct update &u, const adamw_step &s, float (&p)[N], const float (&g)[N],
                         float (&m)[N], float (&v)[N])
{
    bool common = s.root >= 0.5f && s.root < 0x1p10f && u.eps <= 1.0f;
#pragma unroll
    for (int k = 0; k < N; k++) {
        float d = __fmul_rn(g[k], s.multiplier);
        m[k] = fmaf(__fsub_rn(d, m[k]), u.mix1, m[k]);
        v[k] = fmaf(__fmul_rn(d, d), u.mix2, __fmul_rn(v[k], u.beta2));
        common = common && v[k] >= 0x1p-100f && v[k] < 0x1p20f && fabsf(m[k]) >= 0x1p-90f;
        float r = rough_rsqrt(v[k]), root = __fmul_rn(v[k], r);
        root = fmaf(fmaf(-root, root, v[k]), __fmul_rn(r, 0.5f), root);
        float below = fmaf(root, s.root, u.eps), inverse = rough_reciprocal(below);
        inverse = fmaf(inverse, fmaf(-below, inverse, 1.0f), inverse);
        float ratio = __fmul_rn(m[k], inverse);
        ratio = fmaf(inverse, fmaf(-below, ratio, m[k]), ratio);
        p[k] = fmaf(-ratio, s.step, __fmul_rn(p[k], s.keep));
    }
    return common && all_finite(p);
}

/* --- random bits: tensor/stochastic.h on the GPU --------------------------------------------------------- */

enum { RANDOM_P, RANDOM_M, RANDOM_V };

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
    randoms<N> x = {};
    x.use = u.stochastic;
    if (!x.use) return x;
    uint32_t first = (u.first + (uint32_t)at) * STOCHASTIC_ODD;
#pragma unroll
    for (int k = 0; k < N; k++) x.r[k] = random_mix((first + (uint32_t)k * STOCHASTIC_ODD) ^ key);
    return x;
}

template <int WHICH> ON_GPU uint32_t random_half(uint32_t r)
{
    return WHICH == RANDOM_P ? STOCHASTIC_P(r) : (WHICH == RANDOM_M ? STOCHASTIC_M(r) : STOCHASTIC_V(r));
}

/* The sum of a number's bits and 16 random ones: the bf16 is its upper half. */
template <int WHICH, bool FINITE> ON_GPU uint32_t random_up(float value, uint32_t r)
{
    uint32_t bits = __float_as_uint(value);
    bool nan = !FINITE && (bits & 0x7fffffffu) > 0x7f800000u;
    return nan ? bits | 0x400000u : bits + random_half<WHICH>(r);
}

template <int WHICH, bool FINITE, int N>
ON_GPU packet<bf16, N> pack_random(const float (&v)[N], const randoms<N> &random)
{
    packet<bf16, N> x;
#pragma unroll
    for (int i = 0; i < packet<bf16, N>::words; i++) {
        uint32_t low = random_up<WHICH, FINITE>(v[2 * i], random.r[2 * i]), high = 0;
        if (N > 1) high = random_up<WHICH, FINITE>(v[(2 * i + 1) % N], random.r[(2 * i + 1) % N]);
        x.w[i] = __byte_perm(low, high, 0x7632);
    }
    return x;
}

template <int WHICH, class T, int N>
ON_GPU void save_rounded(T *to, const float (&v)[N], const randoms<N> &random)
{
    if constexpr (__is_same(T, bf16)) {
        if (random.use) {
            bool finite = all_finite(v);
            store(to, finite ? pack_random<WHICH, true>(v, random) : pack_random<WHICH, false>(v, random));
            return;
        }
    }
    store(to, pack<T>(v));
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

/* N elements in their stored types; absent moments are zero. */
template <class P, int M, class G, class S, int N> struct elements {
    held<P, M, N> p;
    packet<G, N> g;
    packet<S, N> m, v;
};

template <class P, int M, class G, class S, int N>
ON_GPU elements<P, M, G, S, N> fetch_elements(const struct update &u, int64_t at)
{
    elements<P, M, G, S, N> e;
    e.p = fetch_param<P, M, N>(u, at);
    e.g = fetch<G, N>((const G *)u.g + at);
    e.m = u.m ? fetch<S, N>((const S *)u.m_in + at) : zeros<S, N>();
    e.v = u.v ? fetch<S, N>((const S *)u.v_in + at) : zeros<S, N>();
    return e;
}

/* As they were: the step is left out. */
template <class P, int M, class G, class S, int N>
ON_GPU void keep_elements(const struct update &u, int64_t at, const elements<P, M, G, S, N> &e)
{
    keep_param<P, M, N>(u, at, e.p);
    if (u.m) store((S *)u.m + at, e.m);
    if (u.v) store((S *)u.v + at, e.v);
}

enum { UPDATE_THREADS = 256, UPDATE_LANES = 8, UPDATE_TURNS = 2 };

/* Blocks of a multiprocessor: narrow elements leave registers for one more (measured on an H200, turns too). */
template <class P, int M, class G, class S>
constexpr int updates_at_once = sizeof(P) + sizeof(G) + 2 * sizeof(S) +
                                            (M == NO_MASTER ? 0 : sizeof(typename master_type<M>::type)) <=
                                        10
                                    ? 3
                                    : 2;

/* Block `block` of a call. A thread steps UPDATE_TURNS packets of N elements, the next one under way while it computes;
 * what is left of `count` goes one by one, in the last block. */
template <template <class, int, class, class> class F, class P, int M, class G, class S, int N, class A>
ON_GPU void update_block(const A &a, unsigned block)
{
    using rule = F<P, M, G, S>;
    int64_t i = (int64_t)block * (UPDATE_THREADS * UPDATE_TURNS) + threadIdx.x, packets = a.u.count / N;
    bool skip = skipped(a.u);
    uint32_t key = a.u.stochastic ? random_key(a.u) : 0;
    typename rule::once once = rule::begin(a);
    elements<P, M, G, S, N> next;
    if (i < packets) next = fetch_elements<P, M, G, S, N>(a.u, i * N);
#pragma unroll 1
    for (int turn = 0; turn < UPDATE_TURNS && i < packets; turn++, i += UPDATE_THREADS) {
        elements<P, M, G, S, N> here = next;
        if (turn + 1 < UPDATE_TURNS && i + UPDATE_THREADS < packets)
            next = fetch_elements<P, M, G, S, N>(a.u, (i + UPDATE_THREADS) * N);
        if (skip)
            keep_elements<P, M, G, S, N>(a.u, i * N, here);
        else
            rule::template step<N>(a, once, key, i * N, here);
    }
    if constexpr (N > 1) {
        int64_t rest = packets * N + threadIdx.x;
        bool last = ((int64_t)block + 1) * (UPDATE_THREADS * UPDATE_TURNS * N) >= a.u.count;
        if (!last || rest >= a.u.count) return;
        elements<P, M, G, S, 1> one = fetch_elements<P, M, G, S, 1>(a.u, rest);
        if (skip)
            keep_elements<P, M, G, S, 1>(a.u, rest, one);
        else
            rule::template step<1>(a, once, key, rest, one);
    }
}

template <template <class, int, class, class> class F, class P, int M, class G, class S, int N, class A>
__global__ void __launch_bounds__(UPDATE_THREADS, updates_at_once<P, M, G, S>) update_each(A a)
{
    update_block<F, P, M, G, S, N>(a, blockIdx.x);
}

static inline unsigned update_blocks(int64_t count, int lanes)
{
    return (unsigned)parts_of(count, (int64_t)UPDATE_THREADS * UPDATE_TURNS * lanes);
}

template <template <class, int, class, class> class F, class P, int M, class G, class S, class A>
static inline int run_update(const struct cuda_queue *queue, const A &a, bool wide)
{
    if (a.u.count == 0) return 0;
    unsigned blocks = update_blocks(a.u.count, wide ? UPDATE_LANES : 1);
    if (wide)
        update_each<F, P, M, G, S, UPDATE_LANES, A><<<blocks, UPDATE_THREADS, 0, stream_of(queue)>>>(a);
    else
        update_each<F, P, M, G, S, 1, A><<<blocks, UPDATE_THREADS, 0, stream_of(queue)>>>(a);
    return launched();
}
