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

/* The tanh form of GELU is a sigmoid: (1 + tanh(z)) / 2 = sigmoid(2 z), with 2 z = x (a + b x^2). */
constexpr float GELU_A = 1.5957691216057308f;  /* 2 sqrt(2 / pi) */
constexpr float GELU_B = 0.07135481627260025f; /* 0.044715 a */

/* An activation as the call has it. */
struct how {
    enum activation kind;
    float cap; /* of tanh; the factor of scale */
};

static how how_of(const struct op_attr *attr)
{
    float number = attr->activation == ACTIVATION_SCALE ? attr->scale : attr->cap;
    return {attr->activation, number > 0 ? number : 1.0f};
}

/* KIND: the one activation a kernel is made for, or ANY: asked for each element. */
enum { ANY = ACTIVATION_COUNT };
template <int KIND> ON_GPU int kind_of(const how &h) { return KIND == ANY ? (int)h.kind : KIND; }

template <class T, int KIND> ON_GPU float activate(const how &h, float x)
{
    switch (kind_of<KIND>(h)) {
    case ACTIVATION_GELU_TANH:
        return divide_for<T>(x, 1.0f + exp_for<T>(-(x * fmaf(x * x, GELU_B, GELU_A))));
    case ACTIVATION_GELU:
        return x * 0.5f * erfcf(-0.70710678f * x);
    case ACTIVATION_RELU:
        return fmaxf(x, 0.0f);
    case ACTIVATION_TANH:
        return h.cap * tanhf(x / h.cap);
    case ACTIVATION_SCALE:
        return h.cap * x;
    default:
        return divide_for<T>(x, 1.0f + exp_for<T>(-x));
    }
}

/* Its slope, and its value once more. silu = x s, silu' = s + x s (1 - s); of the tanh form
 * d(x s) = s + x s (1 - s) (a + 3 b x^2). */
template <class T, int KIND> ON_GPU float slope_of(const how &h, float x, float *value)
{
    float square = x * x, s, c;
    switch (kind_of<KIND>(h)) {
    case ACTIVATION_GELU_TANH:
        sigmoid<T>(x * fmaf(square, GELU_B, GELU_A), &s, &c);
        *value = x * s;
        return fmaf(x * fmaf(square, 3 * GELU_B, GELU_A) * s, c, s);
    case ACTIVATION_GELU:
        s = 0.5f * erfcf(-0.70710678f * x);
        *value = x * s;
        return fmaf(x * 0.39894228f, expf(-0.5f * square), s);
    case ACTIVATION_RELU:
        *value = fmaxf(x, 0.0f);
        return x > 0 ? 1.0f : 0.0f;
    case ACTIVATION_TANH:
        s = tanhf(x / h.cap);
        *value = h.cap * s;
        return fmaf(-s, s, 1.0f);
    case ACTIVATION_SCALE:
        *value = h.cap * x;
        return h.cap;
    default:
        sigmoid<T>(x, &s, &c);
        *value = x * s;
        return fmaf(*value, c, s);
    }
}

template <class T, int KIND> struct glu {
    static constexpr int IN = 2, OUT = 1;
    ON_GPU void apply(const how &h, const float (&in)[IN], float (&out)[OUT])
    {
        float g = in[GLU_GATE], u = in[GLU_UP];
        out[GLU_H] = kind_of<KIND>(h) == ACTIVATION_SILU ? divide_for<T>(g * u, 1.0f + exp_for<T>(-g))
                                                         : activate<T, KIND>(h, g) * u;
    }
};

template <class T, int KIND> struct glu_bwd {
    static constexpr int IN = 3, OUT = 2;
    ON_GPU void apply(const how &h, const float (&in)[IN], float (&out)[OUT])
    {
        float d = in[GLU_BWD_DH], u = in[GLU_BWD_UP], value;
        float slope = slope_of<T, KIND>(h, in[GLU_BWD_GATE], &value);
        out[GLU_BWD_DGATE] = d * u * slope;
        out[GLU_BWD_DUP] = d * value;
    }
};

/* ... and glu once more. */
template <class T, int KIND> struct glu_bwd_again {
    static constexpr int IN = 3, OUT = 3;
    ON_GPU void apply(const how &h, const float (&in)[IN], float (&out)[OUT])
    {
        float pair[2] = {in[GLU_BWD_GATE], in[GLU_BWD_UP]}, grads[2], again[1];
        glu_bwd<T, KIND>::apply(h, in, grads);
        glu<T, KIND>::apply(h, pair, again);
        out[GLU_BWD_DGATE] = grads[GLU_BWD_DGATE], out[GLU_BWD_DUP] = grads[GLU_BWD_DUP],
        out[GLU_BWD_H] = again[GLU_H];
    }
};

template <class T, int KIND> struct act {
    static constexpr int IN = 1, OUT = 1;
    ON_GPU void apply(const how &h, const float (&in)[IN], float (&out)[OUT])
    {
        out[ACT_Y] = activate<T, KIND>(h, in[ACT_X]);
    }
};

template <class T, int KIND> struct act_bwd {
    static constexpr int IN = 2, OUT = 1;
    ON_GPU void apply(const how &h, const float (&in)[IN], float (&out)[OUT])
    {
        float value;
        out[ACT_BWD_DX] = in[ACT_BWD_DY] * slope_of<T, KIND>(h, in[ACT_BWD_X], &value);
    }
};

/* ... and act once more. */
template <class T, int KIND> struct act_bwd_again {
    static constexpr int IN = 2, OUT = 2;
    ON_GPU void apply(const how &h, const float (&in)[IN], float (&out)[OUT])
    {
        float grad[1];
        act_bwd<T, KIND>::apply(h, in, grad);
        out[ACT_BWD_DX] = grad[ACT_BWD_DX], out[ACT_BWD_Y] = activate<T, KIND>(h, in[ACT_BWD_X]);
    }
};

template <class T, int KIND> struct add {
    static constexpr int IN = 2, OUT = 1;
    ON_GPU void apply(const how &, const float (&in)[IN], float (&out)[OUT])
    {
        out[ADD_Y] = in[ADD_A] + in[ADD_B];
    }
};

/* --- over all elements ----------------------------------------------------------------------------------- */

template <class F, class T, int N>
ON_GPU void finish(const how &h, const packet<T, N> (&x)[F::IN], T *const (&out)[F::OUT], int64_t at)
{
    float in[F::IN][N], result[F::OUT][N];
#pragma unroll
    for (int k = 0; k < F::IN; k++) unpack(x[k], in[k]);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float a[F::IN], r[F::OUT];
#pragma unroll
        for (int k = 0; k < F::IN; k++) a[k] = in[k][i];
        F::apply(h, a, r);
#pragma unroll
        for (int k = 0; k < F::OUT; k++) result[k][i] = r[k];
    }
#pragma unroll
    for (int k = 0; k < F::OUT; k++) save(out[k] + at, result[k]);
}

/* Packets [0, count / N), then what is left of `count` by the last block. */
template <class F, class T, int N>
__global__ void __launch_bounds__(THREADS) each(operands<T, F::IN, F::OUT> o, how h, int64_t count)
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
        if (i < packets) finish<F, T, N>(h, x[u], o.out, i * N);
    }
    if constexpr (N > 1) {
        int64_t rest = packets * N + threadIdx.x;
        if (blockIdx.x + 1 < gridDim.x || rest >= count) return;
        packet<T, 1> y[F::IN];
#pragma unroll
        for (int k = 0; k < F::IN; k++) y[k] = fetch<T, 1>(o.in[k] + rest);
        finish<F, T, 1>(h, y, o.out, rest);
    }
}

template <class F, class T>
static int run_each(const struct cuda_queue *queue, const struct kernel_call *call)
{
    operands<T, F::IN, F::OUT> o;
    const struct op_attr *attr = &call->op->attr;
    how h = how_of(attr);
    int64_t count = tensor_count(call_in(call, EACH_IN));
    bool wide = true;
    for (int k = 0; k < F::IN; k++) o.in[k] = (const T *)call->in[k], wide = wide && aligned(call->in[k]);
    for (int k = 0; k < F::OUT; k++) o.out[k] = (T *)call->out[k], wide = wide && aligned(call->out[k]);
    if (count == 0) return 0;
    int64_t work = wide ? parts_of(count, lanes<T>) : count;
    int64_t blocks = parts_of(work, THREADS * (F::IN == 1 ? 4 : 2));
    return launch(queue, wide ? each<F, T, lanes<T>> : each<F, T, 1>, blocks, THREADS, 0, o, h, count);
}

/* OFTEN: the activation that has a kernel of its own. */
template <template <class, int> class F, int OFTEN>
static int run(const struct cuda_queue *queue, const struct kernel_call *call)
{
    bool often = OFTEN == ANY || (int)call->op->attr.activation == OFTEN;
    return with_type(call_in(call, EACH_IN)->type, [&](auto t) {
        using T = typename decltype(t)::type;
        return often ? run_each<F<T, OFTEN>, T>(queue, call) : run_each<F<T, ANY>, T>(queue, call);
    });
}

/* --- over rows whose operands lie apart ------------------------------------------------------------------ */

/* Where row r of operand k begins: k's own address and r strides. */
template <class T, int IN, int OUT> struct strided {
    operands<T, IN, OUT> o;
    int64_t width, in_stride[IN], out_stride[OUT];
};

template <class F, class T, int N>
__global__ void __launch_bounds__(THREADS) each_row(strided<T, F::IN, F::OUT> s, how h, int64_t count)
{
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N, column, row = divide(i, s.width, &column);
    packet<T, N> x[F::IN];
    T *to[F::OUT];
    next_may_begin();
    await_previous();
    if (i >= count) return;
#pragma unroll
    for (int k = 0; k < F::IN; k++) x[k] = fetch<T, N>(s.o.in[k] + row * s.in_stride[k] + column);
#pragma unroll
    for (int k = 0; k < F::OUT; k++) to[k] = s.o.out[k] + row * s.out_stride[k] + column;
    finish<F, T, N>(h, x, to, 0);
}

/* Rows of two halves, gate and up: gate is the operand itself and up begins a half later. Both are neighbours among the
 * operands, `in` and `out` of them first (-1: none are results). */
template <class F, class T>
static int run_rows(const struct cuda_queue *queue, const struct kernel_call *call, const struct tensor *half,
                    int in, int out)
{
    const struct op_attr *attr = &call->op->attr;
    how h = how_of(attr);
    int64_t width = half->dim[half->ndim - 1], count = tensor_count(half);
    strided<T, F::IN, F::OUT> s;
    bool wide = width % lanes<T> == 0;
    s.width = width;
    for (int k = 0; k < F::IN; k++) {
        bool second = k == in + 1;
        s.o.in[k] = (const T *)call->in[second ? in : k] + (second ? width : 0);
        s.in_stride[k] = second || k == in ? 2 * width : width;
        wide = wide && aligned(s.o.in[k]);
    }
    for (int k = 0; k < F::OUT; k++) {
        bool second = out >= 0 && k == out + 1;
        s.o.out[k] = (T *)call->out[second ? out : k] + (second ? width : 0);
        s.out_stride[k] = second || k == out ? 2 * width : width;
        wide = wide && aligned(s.o.out[k]);
    }
    if (count == 0) return 0;
    int64_t blocks = parts_of(wide ? count / lanes<T> : count, THREADS);
    return launch(queue, wide ? each_row<F, T, lanes<T>> : each_row<F, T, 1>, blocks, THREADS, 0, s, h,
                  count);
}

template <template <class, int> class F>
static int run_joint(const struct cuda_queue *queue, const struct kernel_call *call,
                     const struct tensor *half, int in, int out)
{
    return with_type(half->type, [&](auto t) {
        using T = typename decltype(t)::type;
        return call->op->attr.activation == ACTIVATION_SILU
                   ? run_rows<F<T, ACTIVATION_SILU>, T>(queue, call, half, in, out)
                   : run_rows<F<T, ANY>, T>(queue, call, half, in, out);
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

int cuda_glu(const struct cuda_queue *queue, const struct kernel_call *call)
{
    if (call->op->attr.joint) return run_joint<glu>(queue, call, call_out(call, GLU_H), GLU_GATE, -1);
    return run<glu, ACTIVATION_SILU>(queue, call);
}

int cuda_glu_bwd(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *dh = call_in(call, GLU_BWD_DH);
    if (call->op->attr.joint)
        return call->out[GLU_BWD_H] ? run_joint<glu_bwd_again>(queue, call, dh, GLU_BWD_GATE, GLU_BWD_DGATE)
                                    : run_joint<glu_bwd>(queue, call, dh, GLU_BWD_GATE, GLU_BWD_DGATE);
    return call->out[GLU_BWD_H] ? run<glu_bwd_again, ACTIVATION_SILU>(queue, call)
                                : run<glu_bwd, ACTIVATION_SILU>(queue, call);
}

int cuda_act(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return run<act, ACTIVATION_GELU_TANH>(queue, call);
}

int cuda_act_bwd(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return call->out[ACT_BWD_Y] ? run<act_bwd_again, ACTIVATION_GELU_TANH>(queue, call)
                                : run<act_bwd, ACTIVATION_GELU_TANH>(queue, call);
}

int cuda_add(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return run<add, ANY>(queue, call);
}

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
