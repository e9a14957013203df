/* elementwise.cu - ops that treat every element by itself, and ops that only move bytes.
 *
 * `each` runs a function of IN operands and OUT results over all elements. A thread loads all packets it works
 * on before it stores the first result: several loads are in flight, and outputs may be inputs. */
#include "device/cuda/move.cuh"

namespace
{

enum { THREADS = 256 };
enum { EACH_IN }; /* an input that every op on elements has; all operands are of its size */

template <class T, int IN, int OUT> struct operands {
    const T *in[IN];
    T *out[OUT];
};

/* --- functions ------------------------------------------------------------------------------------------- */

/* s = sigmoid(x), c = 1 - s */
template <class T> ON_GPU void sigmoid(float x, float *s, float *c)
{
    float e = exp_for<T>(-fminf(87.0f, fmaxf(-87.0f, x)));
    *s = divide_for<T>(1.0f, 1.0f + e);
    *c = e * *s;
}

template <class T> struct swiglu {
    static constexpr int IN = 2, OUT = 1;
    ON_GPU void apply(const float (&in)[IN], float (&out)[OUT])
    {
        out[SWIGLU_H] = divide_for<T>(in[SWIGLU_GATE] * in[SWIGLU_UP], 1.0f + exp_for<T>(-in[SWIGLU_GATE]));
    }
};

/* silu = g s, silu' = s + g s (1 - s) */
template <class T> struct swiglu_bwd {
    static constexpr int IN = 3, OUT = 2;
    ON_GPU void apply(const float (&in)[IN], float (&out)[OUT])
    {
        float d = in[SWIGLU_BWD_DH], g = in[SWIGLU_BWD_GATE], u = in[SWIGLU_BWD_UP], s, c;
        sigmoid<T>(g, &s, &c);
        float silu = g * s;
        out[SWIGLU_BWD_DGATE] = d * u * fmaf(silu, c, s);
        out[SWIGLU_BWD_DUP] = d * silu;
    }
};

/* ... and swiglu once more. */
template <class T> struct swiglu_bwd_again {
    static constexpr int IN = 3, OUT = 3;
    ON_GPU void apply(const float (&in)[IN], float (&out)[OUT])
    {
        float pair[swiglu<T>::IN] = {in[SWIGLU_BWD_GATE], in[SWIGLU_BWD_UP]}, grads[swiglu_bwd<T>::OUT],
              again[swiglu<T>::OUT];
        swiglu_bwd<T>::apply(in, grads);
        swiglu<T>::apply(pair, again);
        out[SWIGLU_BWD_DGATE] = grads[SWIGLU_BWD_DGATE], out[SWIGLU_BWD_DUP] = grads[SWIGLU_BWD_DUP],
        out[SWIGLU_BWD_H] = again[SWIGLU_H];
    }
};

/* The tanh form is a sigmoid: (1 + tanh(z)) / 2 = sigmoid(2 z), with 2 z = x (a + b x^2). */
constexpr float GELU_A = 1.5957691216057308f;  /* 2 sqrt(2 / pi) */
constexpr float GELU_B = 0.07135481627260025f; /* 0.044715 a */

template <class T> struct gelu {
    static constexpr int IN = 1, OUT = 1;
    ON_GPU void apply(const float (&in)[IN], float (&out)[OUT])
    {
        float x = in[GELU_X], inner = x * fmaf(x * x, GELU_B, GELU_A);
        out[GELU_Y] = divide_for<T>(x, 1.0f + exp_for<T>(-inner));
    }
};

/* d(x s) = s + x s (1 - s) (a + 3 b x^2) */
template <class T> struct gelu_bwd {
    static constexpr int IN = 2, OUT = 1;
    ON_GPU void apply(const float (&in)[IN], float (&out)[OUT])
    {
        float x = in[GELU_BWD_X], square = x * x, s, c;
        sigmoid<T>(x * fmaf(square, GELU_B, GELU_A), &s, &c);
        float rate = x * fmaf(square, 3 * GELU_B, GELU_A);
        out[GELU_BWD_DX] = in[GELU_BWD_DY] * fmaf(rate * s, c, s);
    }
};

/* ... and gelu once more. */
template <class T> struct gelu_bwd_again {
    static constexpr int IN = 2, OUT = 2;
    ON_GPU void apply(const float (&in)[IN], float (&out)[OUT])
    {
        float x[1] = {in[GELU_BWD_X]}, grad[1], again[1];
        gelu_bwd<T>::apply(in, grad);
        gelu<T>::apply(x, again);
        out[GELU_BWD_DX] = grad[GELU_BWD_DX], out[GELU_BWD_Y] = again[GELU_Y];
    }
};

template <class T> struct add {
    static constexpr int IN = 2, OUT = 1;
    ON_GPU void apply(const float (&in)[IN], float (&out)[OUT]) { out[ADD_Y] = in[ADD_A] + in[ADD_B]; }
};

/* --- over all elements ----------------------------------------------------------------------------------- */

template <class F, class T, int N>
ON_GPU void finish(const packet<T, N> (&x)[F::IN], T *const (&out)[F::OUT], int64_t at)
{
    float in[F::IN][N], result[F::OUT][N];
#pragma unroll
    for (int k = 0; k < F::IN; k++) unpack(x[k], in[k]);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float a[F::IN], r[F::OUT];
#pragma unroll
        for (int k = 0; k < F::IN; k++) a[k] = in[k][i];
        F::apply(a, r);
#pragma unroll
        for (int k = 0; k < F::OUT; k++) result[k][i] = r[k];
    }
#pragma unroll
    for (int k = 0; k < F::OUT; k++) save(out[k] + at, result[k]);
}

/* Packets [0, count / N), then what is left of `count` by the last block. */
template <class F, class T, int N>
__global__ void __launch_bounds__(THREADS) each(operands<T, F::IN, F::OUT> o, int64_t count)
{
    constexpr int U = F::IN == 1 ? 4 : 2;
    packet<T, N> x[U][F::IN];
    int64_t first = (int64_t)blockIdx.x * (THREADS * U) + threadIdx.x, packets = count / N;
    next_may_begin();
    await_previous();
#pragma unroll
    for (int u = 0; u < U; u++) {
        int64_t i = first + u * THREADS;
#pragma unroll
        for (int k = 0; k < F::IN; k++)
            if (i < packets) x[u][k] = fetch<T, N>(o.in[k] + i * N);
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        int64_t i = first + u * THREADS;
        if (i < packets) finish<F, T, N>(x[u], o.out, i * N);
    }
    if constexpr (N > 1) {
        int64_t rest = packets * N + threadIdx.x;
        if (blockIdx.x + 1 < gridDim.x || rest >= count) return;
        packet<T, 1> y[F::IN];
#pragma unroll
        for (int k = 0; k < F::IN; k++) y[k] = fetch<T, 1>(o.in[k] + rest);
        finish<F, T, 1>(y, o.out, rest);
    }
}

template <class F, class T>
static int run_each(const struct cuda_queue *queue, const struct kernel_call *call)
{
    operands<T, F::IN, F::OUT> o;
    int64_t count = tensor_count(call_in(call, EACH_IN));
    bool wide = true;
    for (int k = 0; k < F::IN; k++) o.in[k] = (const T *)call->in[k], wide = wide && aligned(call->in[k]);
    for (int k = 0; k < F::OUT; k++) o.out[k] = (T *)call->out[k], wide = wide && aligned(call->out[k]);
    if (count == 0) return 0;
    int64_t work = wide ? parts_of(count, lanes<T>) : count;
    int64_t blocks = parts_of(work, THREADS * (F::IN == 1 ? 4 : 2));
    return launch(queue, wide ? each<F, T, lanes<T>> : each<F, T, 1>, blocks, THREADS, 0, o, count);
}

template <template <class> class F>
static int run(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return with_type(call_in(call, EACH_IN)->type, [&](auto t) {
        using T = typename decltype(t)::type;
        return run_each<F<T>, T>(queue, call);
    });
}

/* --- movement -------------------------------------------------------------------------------------------- */

/* New keys, then new values: word i of [2][B*T][width] goes to the place of its row in the cache. */
struct append {
    const void *from[2];
    void *to[2];
    const int32_t *pos; /* [B,T] */
    int64_t rows, time, slots, width;
    template <class W> __device__ __forceinline__ const W *find(int64_t i, W **there) const
    {
        int64_t column, row = divide(i, width, &column), step;
        bool value = row >= rows;
        if (value) row -= rows;
        int64_t slot = divide(row, time, &step) * slots + pos[row];
        *there = (W *)(value ? to[1] : to[0]) + slot * width + column;
        return (const W *)(value ? from[1] : from[0]) + row * width + column;
    }
};

static int keep(const struct cuda_queue *queue, void *out, const void *in, const struct tensor *t)
{
    if (out == in || tensor_count(t) == 0) return 0;
    return (int)cudaMemcpyAsync(out, in, (size_t)tensor_bytes(t), cudaMemcpyDefault, stream_of(queue));
}

} // namespace

int cuda_swiglu(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return run<swiglu>(queue, call);
}

int cuda_swiglu_bwd(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return call->out[SWIGLU_BWD_H] ? run<swiglu_bwd_again>(queue, call) : run<swiglu_bwd>(queue, call);
}

int cuda_gelu(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return run<gelu>(queue, call);
}

int cuda_gelu_bwd(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return call->out[GELU_BWD_Y] ? run<gelu_bwd_again>(queue, call) : run<gelu_bwd>(queue, call);
}

int cuda_add(const struct cuda_queue *queue, const struct kernel_call *call) { return run<add>(queue, call); }

int cuda_kv_append(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *k = call_in(call, KV_APPEND_K), *cache = call_in(call, KV_APPEND_KC);
    int64_t bytes = k->dim[2] * k->dim[3] * (int64_t)dtype_size(k->type);
    int failed = keep(queue, call->out[KV_APPEND_NEW_KC], call->in[KV_APPEND_KC], cache);
    if (!failed) failed = keep(queue, call->out[KV_APPEND_NEW_VC], call->in[KV_APPEND_VC], cache);
    if (failed || tensor_count(k) == 0) return failed;
    struct append a = {{call->in[KV_APPEND_K], call->in[KV_APPEND_V]},
                       {call->out[KV_APPEND_NEW_KC], call->out[KV_APPEND_NEW_VC]},
                       (const int32_t *)call->in[KV_APPEND_POS],
                       k->dim[0] * k->dim[1],
                       k->dim[1],
                       cache->dim[1],
                       0};
    bool wide = bytes % 16 == 0 && aligned(a.from[0], a.from[1], a.to[0], a.to[1]);
    int64_t word = wide ? 16 : (int64_t)dtype_size(k->type);
    a.width = bytes / word;
    struct cuda_queue then = *queue;
    then.follows = queue->follows && a.to[0] == call->in[KV_APPEND_KC] && a.to[1] == call->in[KV_APPEND_VC];
    return run_move(&then, a, 2 * a.rows * a.width, word); /* a copy is no kernel to begin beside */
}

int cuda_copy(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return keep(queue, call->out[MOVE_TO], call->in[MOVE_FROM], call_in(call, MOVE_FROM));
}
