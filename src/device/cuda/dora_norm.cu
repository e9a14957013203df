/* dora_norm.cu - lengths of the rows of W + s B A, which is made in registers alone.
 *
 * A block of threads has ROWS rows, a thread DEPTH of them and every LANES-th column, SPAN columns at a time. Squares are added in
 * f64, by each thread in the order of its columns, then over the threads of a row. */
#include "device/cuda/vec.cuh"

namespace
{

enum { THREADS = 256, LANES = 64, DEPTH = 4, ROWS = THREADS / LANES * DEPTH, SPAN = 4 };

template <class T> struct norm_call {
    const T *w, *a, *b; /* w: of the first row */
    float *y;
    int64_t rows, k, r;
    int64_t row_step, column_step; /* of w */
    float scale;
};

template <class T> __global__ void __launch_bounds__(THREADS) measure_rows(norm_call<T> f)
{
    __shared__ double part[THREADS / 32][DEPTH];
    int lane = (int)threadIdx.x % LANES, group = (int)threadIdx.x / LANES;
    int64_t row = (int64_t)blockIdx.x * ROWS + group * DEPTH;
    double sum[DEPTH] = {};
    for (int64_t begin = 0; begin < f.k; begin += LANES * SPAN) {
        float v[DEPTH][SPAN] = {};
        for (int64_t r = 0; r < f.r; r++) {
            float a[SPAN];
#pragma unroll
            for (int j = 0; j < SPAN; j++) {
                int64_t c = begin + j * LANES + lane;
                a[j] = c < f.k ? number(f.a + r * f.k + c) : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < DEPTH; i++) {
                float by = row + i < f.rows ? f.scale * number(f.b + (row + i) * f.r + r) : 0.0f;
#pragma unroll
                for (int j = 0; j < SPAN; j++) v[i][j] = fmaf(by, a[j], v[i][j]);
            }
        }
#pragma unroll
        for (int i = 0; i < DEPTH; i++)
#pragma unroll
            for (int j = 0; j < SPAN; j++) {
                int64_t c = begin + j * LANES + lane;
                if (c >= f.k || row + i >= f.rows) continue;
                double x = (double)(number(f.w + (row + i) * f.row_step + c * f.column_step) + v[i][j]);
                sum[i] = fma(x, x, sum[i]);
            }
    }
#pragma unroll
    for (int i = 0; i < DEPTH; i++) {
        sum[i] = warp_sum(sum[i]);
        if (threadIdx.x % 32 == 0) part[threadIdx.x / 32][i] = sum[i];
    }
    __syncthreads();
    if (lane >= DEPTH || row + lane >= f.rows) return;
    double all = 0;
    for (int w = 0; w < LANES / 32; w++) all += part[group * (LANES / 32) + w][lane];
    f.y[row + lane] = (float)sqrt(all);
}

template <class T> static int run(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *a = call_in(call, DORA_NORM_A);
    const struct op_attr *attr = &call->op->attr;
    norm_call<T> f = {};
    f.k = a->dim[1], f.r = a->dim[0], f.rows = call_out(call, DORA_NORM_Y)->dim[0];
    int64_t lines = tensor_count(call_in(call, DORA_NORM_W)) / f.k;
    f.row_step = attr->weight_kn ? 1 : f.k, f.column_step = attr->weight_kn ? lines : 1;
    f.w = (const T *)call->in[DORA_NORM_W] + attr->first * f.row_step;
    f.a = (const T *)call->in[DORA_NORM_A], f.b = (const T *)call->in[DORA_NORM_B];
    f.y = (float *)call->out[DORA_NORM_Y], f.scale = attr->scale;
    return start(queue, measure_rows<T>, (unsigned)parts_of(f.rows, ROWS), THREADS, 0, f);
}

} // namespace

CUDA_BY_TYPE(dora_norm, call_in(call, DORA_NORM_A), run)
