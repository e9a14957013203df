/* column_sum.cu - sums over rows: the bias gradient of linear, and the last step of every sum over rows.
 *
 * Rows are cut into slices of SLICE; a block sums one slice of 32 packets' width, eight rows at a time, into one
 * row of partial sums, and fold_rows adds those. Which thread adds what depends on the sizes alone. */
#include "device/cuda/vec.cuh"

namespace
{

enum { SLICE = CUDA_SUM_SLICE, DEPTH = 8, FOLD = 32 };

template <class T, int N>
__global__ void __launch_bounds__(32 * DEPTH)
    slice_sum(const T *x, int64_t rows, int64_t width, float *partial)
{
    __shared__ float part[DEPTH][32 * N + 4];
    int64_t column = ((int64_t)blockIdx.y * 32 + threadIdx.x) * N, first = (int64_t)blockIdx.x * SLICE;
    int64_t last = first + SLICE < rows ? first + SLICE : rows;
    float sum[N] = {};
    if (column < width) {
#pragma unroll 8
        for (int64_t r = first + threadIdx.y; r < last; r += DEPTH) {
            float v[N];
            load(x + r * width + column, v);
#pragma unroll
            for (int k = 0; k < N; k++) sum[k] += v[k];
        }
    }
#pragma unroll
    for (int k = 0; k < N; k++) part[threadIdx.y][threadIdx.x * N + k] = sum[k];
    __syncthreads();
    for (int i = (int)(threadIdx.y * 32 + threadIdx.x); i < 32 * N; i += 32 * DEPTH) {
        int64_t c = (int64_t)blockIdx.y * 32 * N + i;
        float all = 0;
#pragma unroll
        for (int k = 0; k < DEPTH; k++) all += part[k][i];
        if (c < width) partial[blockIdx.x * width + c] = all;
    }
}

template <class G>
__global__ void __launch_bounds__(32 * FOLD)
    fold_rows(const float *partial, int64_t rows, int64_t width, G *out0, G *out1, bool accumulate)
{
    __shared__ float part[FOLD][33];
    int64_t column = (int64_t)blockIdx.x * 32 + threadIdx.x;
    const float *from = partial + blockIdx.y * rows * width;
    float sum = 0;
    if (column < width) {
#pragma unroll 8
        for (int64_t r = threadIdx.y; r < rows; r += FOLD) sum += from[r * width + column];
    }
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= width) return;
    G *out = blockIdx.y ? out1 : out0;
    float all[1] = {0}, before[1] = {0};
    if (accumulate) load(out + column, before);
#pragma unroll
    for (int k = 0; k < FOLD; k++) all[0] += part[k][threadIdx.x];
    all[0] += before[0];
    save(out + column, all);
}

} // namespace

int cuda_fold_rows(const struct cuda_queue *queue, const float *partial, int64_t rows, int64_t width,
                   void *out0, void *out1, enum dtype type, bool accumulate)
{
    if (width == 0) return 0;
    dim3 grid((unsigned)parts_of(width, 32), out1 ? 2 : 1), block(32, FOLD);
    return with_type(type, [&](auto t) {
        using G = typename decltype(t)::type;
        return start(queue, fold_rows<G>, grid, block, 0, partial, rows, width, (G *)out0, (G *)out1,
                     accumulate);
    });
}

int cuda_column_sum(const struct cuda_queue *queue, const void *dy, enum dtype dy_type, int64_t rows,
                    int64_t width, void *db, enum dtype db_type, bool accumulate, void *work)
{
    if (width == 0) return 0;
    int failed = with_type(dy_type, [&](auto t) {
        using T = typename decltype(t)::type;
        constexpr int N = lanes<T>;
        bool wide = width % N == 0 && aligned(dy);
        dim3 grid((unsigned)parts_of(rows, SLICE), (unsigned)parts_of(width, 32 * (wide ? N : 1)));
        dim3 block(32, DEPTH);
        if (rows == 0) return 0;
        return start(queue, wide ? slice_sum<T, N> : slice_sum<T, 1>, grid, block, 0, (const T *)dy, rows,
                     width, (float *)work);
    });
    if (failed) return failed;
    return cuda_fold_rows(queue, (const float *)work, parts_of(rows, SLICE), width, db, NULL, db_type,
                          accumulate);
}
