/* optimizer.cu - the update part of a step: global norm, clipping, AdamW, SGD.
 *
 * A thread steps eight elements at a time (update.cuh). What the elements share it works out itself from the
 * scalars on the device, in a few operations. A step that clip has found not finite changes nothing.
 *
 * A model has hundreds of tensors, most of them small: of AdamW and of the sums of squares a launch takes as many as its
 * arguments hold (many.cuh). */
#include "device/cuda/many.cuh"

namespace
{

enum { THREADS = 256, SUMSQ_BLOCK = CUDA_SUMSQ_BLOCK, TOTAL_THREADS = 1024 };

/* --- global norm ----------------------------------------------------------------------------------------- */

struct square_part {
    const void *x;
    int64_t count;
    double *partial, *out;
};

struct square_parts {
    struct square_part part[MANY];
    struct many_blocks blocks;
    uint64_t accumulate; /* bit t: add to what is in part[t].out */
};
static_assert(sizeof(struct square_parts) <= LAUNCH_BYTES && MANY <= 64, "the arguments of one launch");

/* Block b of a tensor sums elements [b, b + 1) * SUMSQ_BLOCK, in fp64. */
template <class T, int N>
__global__ void __launch_bounds__(THREADS) square_blocks(const __grid_constant__ struct square_parts many)
{
    constexpr int V = SUMSQ_BLOCK / THREADS / N;
    __shared__ double slots[THREADS / 32];
    int t = many_find(many.blocks, blockIdx.x);
    unsigned block = blockIdx.x - many.blocks.begin[t];
    const T *x = (const T *)many.part[t].x;
    int64_t first = (int64_t)block * SUMSQ_BLOCK, count = many.part[t].count;
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
        if (first + SUMSQ_BLOCK >= count && rest < count) { /* the last block */
            float v[1];
            load(x + rest, v);
            sum = fma((double)v[0], (double)v[0], sum);
        }
    }
    sum = block_sum<THREADS>(sum, slots);
    if (threadIdx.x == 0) many.part[t].partial[block] = sum;
}

/* Block t adds up tensor t. */
__global__ void __launch_bounds__(TOTAL_THREADS) add_up(const __grid_constant__ struct square_parts many)
{
    __shared__ double slots[TOTAL_THREADS / 32];
    const struct square_part &part = many.part[blockIdx.x];
    const double *partial = part.partial;
    int64_t count = (part.count + SUMSQ_BLOCK - 1) / SUMSQ_BLOCK;
    double sum = 0;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < count; i += TOTAL_THREADS) sum += partial[i];
    sum = block_sum<TOTAL_THREADS>(sum, slots);
    if (threadIdx.x == 0) *part.out = many.accumulate >> blockIdx.x & 1 ? *part.out + sum : sum;
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
    ON_GPU once begin(const plain &a) { return adamw_step_of(a.u); }

    template <int N>
    ON_GPU void step(const plain &a, const once &o, uint32_t key, int64_t at,
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
    ON_GPU once begin(const plain &a) { return {multiplier_of(a.u), a.u.scalars[SCALAR_LR]}; }

    template <int N>
    ON_GPU void step(const plain &a, const once &o, uint32_t key, int64_t at,
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

/* f(P, master, G, S) for the types of a call, as tags. */
template <class F> static int with_types_of(const struct kernel_call *call, F f)
{
    const struct update_slots &slots = op_row(call->op->kind)->update;
    return with_param(call, call->in[slots.master] != NULL, [&](auto p, auto master, auto g) {
        return with_state(call_in(call, slots.m), [&](auto s) { return f(p, master, g, s); });
    });
}

template <template <class, int, class, class> class F>
static int run(const struct cuda_queue *queue, const struct kernel_call *call)
{
    plain a = {update_of(call)};
    return with_types_of(call, [&](auto p, auto master, auto g, auto s) {
        using P = typename decltype(p)::type;
        using G = typename decltype(g)::type;
        using S = typename decltype(s)::type;
        return run_update<F, P, decltype(master)::value, G, S>(queue, a, update_aligned(a.u));
    });
}

/* --- groups ---------------------------------------------------------------------------------------------- */

static bool same_types(const struct kernel_call *a, const struct kernel_call *b)
{
    bool masters = (a->in[ADAMW_MASTER] != NULL) == (b->in[ADAMW_MASTER] != NULL);
    return masters && call_in(a, ADAMW_P)->type == call_in(b, ADAMW_P)->type &&
           call_in(a, ADAMW_G)->type == call_in(b, ADAMW_G)->type &&
           call_in(a, ADAMW_M)->type == call_in(b, ADAMW_M)->type;
}

/* All that can share a launch with call `first`, and `first` itself; they are done then. */
static struct update_parts gather_updates(const struct kernel_call *calls, const struct update *u, int count,
                                          int first, bool *done)
{
    struct update_parts many = {};
    many.u = u[first], many.blocks = many_none();
    for (int i = first; i < count; i++) {
        bool part = update_is_part(u[i]) && same_types(&calls[first], &calls[i]);
        if (done[i] || !part || !update_shares(u[first], u[i])) continue;
        update_add(&many, u[i]);
        done[i] = true;
    }
    return many;
}

static bool square_is_wide(const struct kernel_call *call) { return aligned(call->in[SUMSQ_GRAD]); }

/* All that can share a launch with call `first`, and `first` itself; they are done then. */
static struct square_parts gather_squares(const struct kernel_call *calls, int count, int first, bool *done)
{
    struct square_parts many = {};
    many.blocks = many_none();
    for (int i = first; i < count; i++) {
        const struct kernel_call *call = &calls[i];
        bool same_type = call_in(call, SUMSQ_GRAD)->type == call_in(&calls[first], SUMSQ_GRAD)->type;
        if (done[i] || !same_type || square_is_wide(call) != square_is_wide(&calls[first])) continue;
        int64_t elements = tensor_count(call_in(call, SUMSQ_GRAD));
        many.accumulate |= (uint64_t)call->accumulate << many.blocks.count;
        many.part[many.blocks.count] = {call->in[SUMSQ_GRAD], elements, (double *)call->work,
                                        (double *)call->out[SUMSQ_SUM]};
        many_add(&many.blocks, (unsigned)parts_of(elements, SUMSQ_BLOCK));
        done[i] = true;
    }
    return many;
}

template <class T, int N>
static int launch_squares(const struct cuda_queue *queue, const struct square_parts &many)
{
    cudaStream_t stream = stream_of(queue);
    if (many.blocks.all) square_blocks<T, N><<<many.blocks.all, THREADS, 0, stream>>>(many);
    add_up<<<(unsigned)many.blocks.count, TOTAL_THREADS, 0, stream>>>(many);
    return launched();
}

} // namespace

int cuda_sumsq_many(const struct cuda_queue *queue, const struct kernel_call *calls, int count)
{
    bool done[MANY] = {};
    int failed = 0;
    for (int i = 0; i < count && !failed; i++) {
        if (done[i]) continue;
        struct square_parts many = gather_squares(calls, count, i, done);
        failed = with_type(call_in(&calls[i], SUMSQ_GRAD)->type, [&](auto t) {
            using T = typename decltype(t)::type;
            return square_is_wide(&calls[i]) ? launch_squares<T, lanes<T>>(queue, many)
                                             : launch_squares<T, 1>(queue, many);
        });
    }
    return failed;
}

int cuda_sumsq(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return cuda_sumsq_many(queue, call, 1);
}

int cuda_clip(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return start(queue, clip_all<double>, 1, TOTAL_THREADS, 0, (const double *)call->in[CLIP_SUMS],
                 tensor_count(call_in(call, CLIP_SUMS)), (const float *)call->in[CLIP_SCALARS],
                 (float *)call->out[CLIP_COEF]);
}

int cuda_adamw(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return run<adamw>(queue, call);
}

int cuda_adamw_many(const struct cuda_queue *queue, const struct kernel_call *calls, int count)
{
    struct update u[MANY];
    bool done[MANY] = {};
    int failed = 0;
    for (int i = 0; i < count; i++) u[i] = update_of(&calls[i]);
    for (int i = 0; i < count && !failed; i++) {
        if (done[i]) continue;
        if (!update_is_part(u[i])) {
            failed = cuda_adamw(queue, &calls[i]);
            continue;
        }
        struct update_parts many = gather_updates(calls, u, count, i, done);
        failed = with_types_of(&calls[i], [&](auto p, auto master, auto g, auto s) {
            using P = typename decltype(p)::type;
            using G = typename decltype(g)::type;
            using S = typename decltype(s)::type;
            return run_updates<adamw, P, decltype(master)::value, G, S, plain>(queue, many);
        });
    }
    return failed;
}

int cuda_sgd(const struct cuda_queue *queue, const struct kernel_call *call) { return run<sgd>(queue, call); }
