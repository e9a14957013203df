/* pool.cu - one vector for each row of a batch: the mean of its tokens or the first, normalised where asked for.
 *
 * Forward, threads take columns and add the tokens of a row in order, in f32, into the workspace; then a block per row
 * measures the vector and writes it. Backward, a block per row finds how much of dy lies along y, then every element of
 * dx is one thread's. */
#include "device/cuda/vec.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32 };
constexpr double LEAST_NORM = 1e-12;

struct rows {
    const int32_t *lengths; /* [B] or NULL */
    int64_t time, columns;
    bool first, normalize;
    float scale;
};

ON_GPU int64_t tokens_of(const rows &r, int64_t b)
{
    int64_t length = r.lengths ? r.lengths[b] : r.time;
    return r.first && length > 1 ? 1 : length;
}

template <class T> __global__ void __launch_bounds__(THREADS) sum_tokens(rows r, const T *x, float *sums)
{
    int64_t b = blockIdx.y, c = (int64_t)blockIdx.x * THREADS + threadIdx.x, count = tokens_of(r, b);
    if (c >= r.columns) return;
    float sum = 0;
    for (int64_t t = 0; t < count; t++) sum += number(x + (b * r.time + t) * r.columns + c);
    sums[b * r.columns + c] = sum;
}

template <class Y>
__global__ void __launch_bounds__(THREADS) write_vectors(rows r, const float *sums, Y *y, float *stat)
{
    __shared__ double slots[WARPS];
    int64_t b = blockIdx.x, count = tokens_of(r, b);
    double squares = 0, mean = count > 0 ? 1.0 / (double)count : 0, factor = 1;
    for (int64_t c = threadIdx.x; c < r.columns; c += THREADS) {
        double v = (double)sums[b * r.columns + c];
        squares += v * v;
    }
    squares = block_sum<THREADS>(squares, slots);
    if (r.normalize) factor = 1 / fmax(sqrt(squares) * mean, LEAST_NORM);
    for (int64_t c = threadIdx.x; c < r.columns; c += THREADS)
        put_number(y + b * r.columns + c, sums[b * r.columns + c] * (float)((double)r.scale * factor * mean));
    if (threadIdx.x == 0) stat[b] = (float)factor;
}

template <class T>
__global__ void __launch_bounds__(THREADS) find_along(rows r, const T *dy, const T *y, float *along)
{
    __shared__ double slots[WARPS];
    int64_t b = blockIdx.x;
    double sum = 0;
    for (int64_t c = threadIdx.x; c < r.columns; c += THREADS)
        sum += (double)number(dy + b * r.columns + c) * (double)number(y + b * r.columns + c);
    sum = block_sum<THREADS>(sum, slots);
    if (threadIdx.x == 0) along[b] = r.normalize ? (float)(sum / ((double)r.scale * (double)r.scale)) : 0;
}

template <class T> struct backward {
    const T *dy, *y;
    const float *stat, *along;
    T *dx;
    int64_t count;
};

template <class T> __global__ void __launch_bounds__(THREADS) write_gradients(rows r, backward<T> p)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, c, t;
    if (i >= p.count) return;
    int64_t b = divide(divide(i, r.columns, &c), r.time, &t), tokens = tokens_of(r, b);
    float g = 0;
    if (t < tokens) {
        float by = r.scale * (r.normalize ? p.stat[b] : 1.0f) / (float)tokens;
        g = by * fmaf(-p.along[b], number(p.y + b * r.columns + c), number(p.dy + b * r.columns + c));
    }
    put_number(p.dx + i, g);
}

static rows rows_of(const struct kernel_call *call, const struct tensor *x, const void *lengths)
{
    const struct op_attr *attr = &call->op->attr;
    return {(const int32_t *)lengths,       x->dim[1],       x->dim[2],
            attr->pooling == POOLING_FIRST, attr->normalize, attr->scale != 0 ? attr->scale : 1.0f};
}

template <class T, class Y> static int run(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *x = call_in(call, POOL_X);
    rows r = rows_of(call, x, call->in[POOL_LENGTHS]);
    dim3 grid((unsigned)parts_of(r.columns, THREADS), (unsigned)x->dim[0]);
    float *sums = (float *)call->work;
    sum_tokens<T><<<grid, THREADS, 0, stream_of(queue)>>>(r, (const T *)call->in[POOL_X], sums);
    return start(queue, write_vectors<Y>, (unsigned)x->dim[0], THREADS, 0, r, sums, (Y *)call->out[POOL_Y],
                 (float *)call->out[POOL_STAT]);
}

template <class T> static int run_backward(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *dx = call_out(call, POOL_BWD_DX);
    rows r = rows_of(call, dx, call->in[POOL_BWD_LENGTHS]);
    float *along = (float *)call->work;
    backward<T> p = {(const T *)call->in[POOL_BWD_DY],
                     (const T *)call->in[POOL_BWD_Y],
                     (const float *)call->in[POOL_BWD_STAT],
                     along,
                     (T *)call->out[POOL_BWD_DX],
                     tensor_count(dx)};
    find_along<T><<<(unsigned)dx->dim[0], THREADS, 0, stream_of(queue)>>>(r, p.dy, p.y, along);
    return start(queue, write_gradients<T>, (unsigned)parts_of(p.count, THREADS), THREADS, 0, r, p);
}

} // namespace

int cuda_pool(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return with_types(call_in(call, POOL_X)->type, call_out(call, POOL_Y)->type, [&](auto t, auto y) {
        return run<typename decltype(t)::type, typename decltype(y)::type>(queue, call);
    });
}

CUDA_BY_TYPE(pool_bwd, call_out(call, POOL_BWD_DX), run_backward)
