/* dropout.cu - elements dropped at random (random.cuh), and what is added to the rest. */
#include "device/cuda/random.cuh"
#include "device/cuda/vec.cuh"

namespace
{

enum { THREADS = 256 };

template <class T> struct dropping {
    const T *x, *add; /* [B,L]; add NULL: none */
    T *y;
    struct drop drop;
    int64_t count, length;
};

/* A packet lies in one row. */
template <class T, int N> __global__ void __launch_bounds__(THREADS) drop_packets(dropping<T> d)
{
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N, at, b = divide(i, d.length, &at);
    if (i >= d.count) return;
    float v[N], add[N] = {};
    load(d.x + i, v);
    if (d.add) load(d.add + i, add);
    if (d.drop.below) {
        uint32_t line = dropout_row(d.drop, b);
#pragma unroll
        for (int k = 0; k < N; k++) v[k] = __fmul_rn(v[k], dropout_factor(d.drop, line, (uint32_t)(at + k)));
    }
    if (d.add) {
#pragma unroll
        for (int k = 0; k < N; k++) v[k] = __fadd_rn(v[k], add[k]);
    }
    save(d.y + i, v);
}

template <class T> static int run(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *x = call_in(call, DROPOUT_X);
    int64_t count = tensor_count(x);
    if (count == 0) return 0;
    dropping<T> d = {(const T *)call->in[DROPOUT_X],
                     (const T *)call->in[DROPOUT_ADD],
                     (T *)call->out[DROPOUT_Y],
                     drop_of(&call->op->attr, call->in[DROPOUT_SCALARS]),
                     count,
                     count / x->dim[0]};
    bool wide = d.length % lanes<T> == 0 && aligned(d.x, d.add, d.y);
    unsigned blocks = (unsigned)parts_of(wide ? count / lanes<T> : count, THREADS);
    return start(queue, wide ? drop_packets<T, lanes<T>> : drop_packets<T, 1>, blocks, THREADS, 0, d);
}

} // namespace

CUDA_BY_TYPE(dropout, call_in(call, DROPOUT_X), run)
