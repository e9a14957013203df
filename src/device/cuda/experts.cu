/* experts.cu - rows to their experts and back: each thread has a packet of a row. */
#include "device/cuda/vec.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32 };

template <class T> struct rows_of_experts {
    const T *x, *other; /* other: what is added, or dy */
    T *y;
    const int32_t *place;
    const float *weight; /* NULL: none */
    float *dots;
    int64_t rows, columns;
    int top;
};

template <class T, int N> __global__ void __launch_bounds__(THREADS) dispatch(rows_of_experts<T> d)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, at, packets = d.columns / N,
            pair = divide(i, packets, &at);
    if (pair >= d.rows * d.top) return;
    packet<T, N> x = fetch<T, N>(d.x + pair / d.top * d.columns + at * N);
    if (d.weight) {
        float v[N];
        unpack(x, v);
#pragma unroll
        for (int k = 0; k < N; k++) v[k] *= d.weight[pair];
        x = pack<T>(v);
    }
    store(d.y + d.place[pair] * d.columns + at * N, x);
}

template <class T, int N> __global__ void __launch_bounds__(THREADS) combine(rows_of_experts<T> d)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, at, packets = d.columns / N,
            row = divide(i, packets, &at);
    if (row >= d.rows) return;
    float sum[N], v[N];
    for (int j = 0; j < d.top; j++) {
        int64_t pair = row * d.top + j;
        load(d.x + d.place[pair] * d.columns + at * N, v);
        const float by = d.weight ? d.weight[pair] : 1;
#pragma unroll
        for (int k = 0; k < N; k++) sum[k] = j ? fmaf(v[k], by, sum[k]) : v[k] * by;
    }
    if (d.other) {
        load(d.other + row * d.columns + at * N, v);
#pragma unroll
        for (int k = 0; k < N; k++) sum[k] += v[k];
    }
    save(d.y + row * d.columns + at * N, sum);
}

/* A warp for each pair. */
template <class T, int N> __global__ void __launch_bounds__(THREADS) combine_dw(rows_of_experts<T> d)
{
    int64_t pair = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (pair >= d.rows * d.top) return;
    const T *a = d.other + pair / d.top * d.columns, *b = d.x + d.place[pair] * d.columns;
    float sum = 0;
    for (int64_t c = threadIdx.x % 32 * N; c < d.columns; c += 32 * N) {
        float x[N], y[N];
        load(a + c, x), load(b + c, y);
#pragma unroll
        for (int k = 0; k < N; k++) sum = fmaf(x[k], y[k], sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) d.dots[pair] = sum;
}

template <class T> static bool whole(const rows_of_experts<T> &d)
{
    return d.columns % lanes<T> == 0 && aligned(d.x, d.other, d.y);
}

template <class T> static int run_dispatch(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *place = call_in(call, DISPATCH_PLACE);
    rows_of_experts<T> d = {};
    d.x = (const T *)call->in[DISPATCH_X], d.y = (T *)call->out[DISPATCH_Y];
    d.place = (const int32_t *)call->in[DISPATCH_PLACE], d.weight = (const float *)call->in[DISPATCH_WEIGHT];
    d.rows = place->dim[0], d.top = (int)place->dim[1];
    d.columns = tensor_count(call_in(call, DISPATCH_X)) / d.rows;
    bool wide = whole(d);
    unsigned blocks = (unsigned)parts_of(d.rows * d.top * (d.columns / (wide ? lanes<T> : 1)), THREADS);
    return start(queue, wide ? dispatch<T, lanes<T>> : dispatch<T, 1>, blocks, THREADS, 0, d);
}

template <class T> static int run_combine(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *place = call_in(call, COMBINE_PLACE);
    rows_of_experts<T> d = {};
    d.x = (const T *)call->in[COMBINE_X], d.other = (const T *)call->in[COMBINE_ADD];
    d.y = (T *)call->out[COMBINE_Y];
    d.place = (const int32_t *)call->in[COMBINE_PLACE], d.weight = (const float *)call->in[COMBINE_WEIGHT];
    d.rows = place->dim[0], d.top = (int)place->dim[1];
    d.columns = tensor_count(call_out(call, COMBINE_Y)) / d.rows;
    bool wide = whole(d);
    unsigned blocks = (unsigned)parts_of(d.rows * (d.columns / (wide ? lanes<T> : 1)), THREADS);
    return start(queue, wide ? combine<T, lanes<T>> : combine<T, 1>, blocks, THREADS, 0, d);
}

template <class T> static int run_combine_dw(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *place = call_in(call, COMBINE_DW_PLACE);
    rows_of_experts<T> d = {};
    d.x = (const T *)call->in[COMBINE_DW_X], d.other = (const T *)call->in[COMBINE_DW_DY];
    d.place = (const int32_t *)call->in[COMBINE_DW_PLACE], d.dots = (float *)call->out[COMBINE_DW_DWEIGHT];
    d.rows = place->dim[0], d.top = (int)place->dim[1];
    d.columns = tensor_count(call_in(call, COMBINE_DW_DY)) / d.rows;
    unsigned blocks = (unsigned)parts_of(d.rows * d.top, WARPS);
    return start(queue, whole(d) ? combine_dw<T, lanes<T>> : combine_dw<T, 1>, blocks, THREADS, 0, d);
}

} // namespace

CUDA_BY_TYPE(dispatch, call_in(call, DISPATCH_X), run_dispatch)
CUDA_BY_TYPE(combine, call_out(call, COMBINE_Y), run_combine)
CUDA_BY_TYPE(combine_dw, call_in(call, COMBINE_DW_DY), run_combine_dw)
