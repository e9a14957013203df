/* take.cu - rows by their places, each the sum of one or two. */
#include "device/cuda/vec.cuh"

namespace
{

enum { THREADS = 256 };

template <class T, int N>
__global__ void __launch_bounds__(THREADS)
    take_rows(const T *x, const int32_t *index, T *y, int64_t rows, int64_t columns, bool once)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, c, r = divide(i, columns / N, &c);
    if (r >= rows) return;
    c *= N;
    int32_t a = index[2 * r], b = once ? -1 : index[2 * r + 1];
    float sum[N] = {}, v[N];
    if (a >= 0) load(x + a * columns + c, sum);
    if (b >= 0) {
        load(x + b * columns + c, v);
#pragma unroll
        for (int k = 0; k < N; k++) sum[k] += v[k];
    }
    save(y + r * columns + c, sum);
}

template <class T> static int run(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const T *x = (const T *)call->in[TAKE_X];
    T *y = (T *)call->out[TAKE_Y];
    int64_t rows = call_in(call, TAKE_INDEX)->dim[0],
            columns = rows ? tensor_count(call_out(call, TAKE_Y)) / rows : 0;
    bool wide = columns % lanes<T> == 0 && aligned(x, y);
    int64_t packets = rows * columns / (wide ? lanes<T> : 1);
    if (packets == 0) return 0;
    return start(queue, wide ? take_rows<T, lanes<T>> : take_rows<T, 1>, (unsigned)parts_of(packets, THREADS),
                 THREADS, 0, x, (const int32_t *)call->in[TAKE_INDEX], y, rows, columns,
                 (bool)call->op->attr.once);
}

} // namespace

CUDA_BY_TYPE(take, call_out(call, TAKE_Y), run)
