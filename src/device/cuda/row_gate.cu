/* row_gate.cu - rows multiplied with a gate each: a warp has a row. */
#include "device/cuda/vec.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32 };

template <class T> struct gated_rows {
    const T *x, *gate, *other; /* other: what is added, or dy */
    T *y, *dgate;
    int64_t rows, columns;
};

template <class T> ON_GPU float sigmoid_of(const T *gate, int64_t row)
{
    return 1 / (1 + expf(-number(gate + row)));
}

template <class T, int N> __global__ void __launch_bounds__(THREADS) gate_rows(gated_rows<T> g)
{
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= g.rows) return;
    const float by = sigmoid_of(g.gate, row);
    for (int64_t c = row * g.columns + threadIdx.x % 32 * N; c < (row + 1) * g.columns; c += 32 * N) {
        float v[N], more[N];
        load(g.x + c, v);
        if (g.other) load(g.other + c, more);
#pragma unroll
        for (int k = 0; k < N; k++) v[k] = g.other ? fmaf(v[k], by, more[k]) : v[k] * by;
        save(g.y + c, v);
    }
}

template <class T, int N> __global__ void __launch_bounds__(THREADS) gate_rows_bwd(gated_rows<T> g)
{
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= g.rows) return;
    const float by = sigmoid_of(g.gate, row);
    float sum = 0;
    for (int64_t c = row * g.columns + threadIdx.x % 32 * N; c < (row + 1) * g.columns; c += 32 * N) {
        float x[N], dy[N];
        load(g.x + c, x), load(g.other + c, dy);
#pragma unroll
        for (int k = 0; k < N; k++) sum = fmaf(x[k], dy[k], sum), dy[k] *= by;
        save(g.y + c, dy);
    }
    const float dgate = warp_sum(sum) * by * (1 - by);
    if (threadIdx.x % 32 == 0) put_number(g.dgate + row, dgate);
}

template <class T> static bool whole(const gated_rows<T> &g)
{
    return g.columns % lanes<T> == 0 && aligned(g.x, g.other, g.y);
}

template <class T> static int run(const struct cuda_queue *queue, const struct kernel_call *call)
{
    gated_rows<T> g = {};
    g.x = (const T *)call->in[ROW_GATE_X], g.gate = (const T *)call->in[ROW_GATE_GATE];
    g.other = (const T *)call->in[ROW_GATE_ADD], g.y = (T *)call->out[ROW_GATE_Y];
    g.rows = tensor_count(call_in(call, ROW_GATE_GATE));
    g.columns = tensor_count(call_in(call, ROW_GATE_X)) / g.rows;
    unsigned blocks = (unsigned)parts_of(g.rows, WARPS);
    return start(queue, whole(g) ? gate_rows<T, lanes<T>> : gate_rows<T, 1>, blocks, THREADS, 0, g);
}

template <class T> static int run_bwd(const struct cuda_queue *queue, const struct kernel_call *call)
{
    gated_rows<T> g = {};
    g.x = (const T *)call->in[ROW_GATE_BWD_X], g.gate = (const T *)call->in[ROW_GATE_BWD_GATE];
    g.other = (const T *)call->in[ROW_GATE_BWD_DY];
    g.y = (T *)call->out[ROW_GATE_BWD_DX], g.dgate = (T *)call->out[ROW_GATE_BWD_DGATE];
    g.rows = tensor_count(call_in(call, ROW_GATE_BWD_GATE));
    g.columns = tensor_count(call_in(call, ROW_GATE_BWD_X)) / g.rows;
    unsigned blocks = (unsigned)parts_of(g.rows, WARPS);
    return start(queue, whole(g) ? gate_rows_bwd<T, lanes<T>> : gate_rows_bwd<T, 1>, blocks, THREADS, 0, g);
}

} // namespace

CUDA_BY_TYPE(row_gate, call_in(call, ROW_GATE_X), run)
CUDA_BY_TYPE(row_gate_bwd, call_in(call, ROW_GATE_BWD_X), run_bwd)
