/* row_norm.cu - lengths of the rows of a weight: a warp has a row and adds squares in f64. */
#include "device/cuda/vec.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32 };

template <class T, int N>
__global__ void __launch_bounds__(THREADS) measure_rows(const T *w, float *y, int64_t rows, int64_t columns)
{
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= rows) return;
    double sum = 0;
    for (int64_t c = threadIdx.x % 32 * N; c < columns; c += 32 * N) {
        float v[N];
        load(w + row * columns + c, v);
#pragma unroll
        for (int k = 0; k < N; k++) sum = fma((double)v[k], (double)v[k], sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) y[row] = (float)sqrt(sum);
}

template <class T> static int run(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *desc = call_in(call, ROW_NORM_W);
    const T *w = (const T *)call->in[ROW_NORM_W];
    float *y = (float *)call->out[ROW_NORM_Y];
    int64_t rows = desc->dim[0], columns = desc->dim[1];
    unsigned blocks = (unsigned)parts_of(rows, WARPS);
    auto kernel = columns % lanes<T> == 0 && aligned(w) ? measure_rows<T, lanes<T>> : measure_rows<T, 1>;
    return start(queue, kernel, blocks, THREADS, 0, w, y, rows, columns);
}

} // namespace

CUDA_BY_TYPE(row_norm, call_in(call, ROW_NORM_W), run)
