/* column_scale.cu - columns multiplied with a factor each. The gradient of the factors is summed by 8 threads for each column, in
 * order of rows, before dx may take the place of dy. */
#include "device/cuda/vec.cuh"

namespace
{

enum { THREADS = 256, COLUMNS = 32, DEPTH = THREADS / COLUMNS };

template <class T> struct scaled_columns {
    const T *x, *m, *bias, *other; /* other: what is added, or dy */
    const float *norm;
    T *y;
    int64_t count, rows, columns;
};

template <class T> ON_GPU float factor_of(const scaled_columns<T> &s, int64_t c)
{
    return number(s.m + c) / s.norm[c];
}

template <class T> __global__ void __launch_bounds__(THREADS) scale_columns(scaled_columns<T> s)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= s.count) return;
    int64_t c;
    divide(i, s.columns, &c);
    float bias = s.bias ? number(s.bias + c) : 0, add = s.other ? number(s.other + i) : 0;
    put_number(s.y + i, fmaf(number(s.x + i) - bias, factor_of(s, c), bias + add));
}

template <class T> __global__ void __launch_bounds__(THREADS) scale_gradient(scaled_columns<T> s)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, c;
    divide(i, s.columns, &c);
    if (i < s.count) put_number(s.y + i, number(s.other + i) * factor_of(s, c));
}

template <class T, class G>
__global__ void __launch_bounds__(THREADS) sum_columns(scaled_columns<T> s, G *dm, bool accumulate)
{
    __shared__ float part[DEPTH][COLUMNS];
    int lane = (int)threadIdx.x % COLUMNS, depth = (int)threadIdx.x / COLUMNS;
    int64_t c = (int64_t)blockIdx.x * COLUMNS + lane;
    float sum = 0;
    if (c < s.columns) {
        float bias = s.bias ? number(s.bias + c) : 0;
        for (int64_t r = depth; r < s.rows; r += DEPTH) {
            int64_t i = r * s.columns + c;
            sum = fmaf(number(s.other + i), number(s.x + i) - bias, sum);
        }
    }
    part[depth][lane] = sum;
    __syncthreads();
    if (depth || c >= s.columns) return;
    for (int d = 1; d < DEPTH; d++) sum += part[d][lane];
    put_number(dm + c, (accumulate ? number(dm + c) : 0.0f) + sum / s.norm[c]);
}

template <class T> static int run(const struct cuda_queue *queue, const struct kernel_call *call)
{
    scaled_columns<T> s = {};
    s.x = (const T *)call->in[COLUMN_SCALE_X], s.m = (const T *)call->in[COLUMN_SCALE_M];
    s.bias = (const T *)call->in[COLUMN_SCALE_BIAS], s.other = (const T *)call->in[COLUMN_SCALE_ADD];
    s.norm = (const float *)call->in[COLUMN_SCALE_NORM], s.y = (T *)call->out[COLUMN_SCALE_Y];
    s.count = tensor_count(call_in(call, COLUMN_SCALE_X));
    s.columns = tensor_count(call_in(call, COLUMN_SCALE_M));
    return start(queue, scale_columns<T>, (unsigned)parts_of(s.count, THREADS), THREADS, 0, s);
}

template <class T> static int run_bwd(const struct cuda_queue *queue, const struct kernel_call *call)
{
    scaled_columns<T> s = {};
    s.x = (const T *)call->in[COLUMN_SCALE_BWD_X], s.m = (const T *)call->in[COLUMN_SCALE_BWD_M];
    s.bias = (const T *)call->in[COLUMN_SCALE_BWD_BIAS], s.other = (const T *)call->in[COLUMN_SCALE_BWD_DY];
    s.norm = (const float *)call->in[COLUMN_SCALE_BWD_NORM], s.y = (T *)call->out[COLUMN_SCALE_BWD_DX];
    s.count = tensor_count(call_in(call, COLUMN_SCALE_BWD_X));
    s.columns = tensor_count(call_in(call, COLUMN_SCALE_BWD_M)), s.rows = s.count / s.columns;
    unsigned blocks = (unsigned)parts_of(s.columns, COLUMNS);
    bool accumulate = call->accumulate;
    int failed = with_type(call_out(call, COLUMN_SCALE_BWD_DM)->type, [&](auto t) {
        using G = typename decltype(t)::type;
        return start(queue, sum_columns<T, G>, blocks, THREADS, 0, s, (G *)call->out[COLUMN_SCALE_BWD_DM],
                     accumulate);
    });
    if (failed) return failed;
    return start(queue, scale_gradient<T>, (unsigned)parts_of(s.count, THREADS), THREADS, 0, s);
}

} // namespace

CUDA_BY_TYPE(column_scale, call_in(call, COLUMN_SCALE_X), run)
CUDA_BY_TYPE(column_scale_bwd, call_in(call, COLUMN_SCALE_BWD_X), run_bwd)
