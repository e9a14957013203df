/* norm.cu - RMSNorm and LayerNorm.
 *
 * A row belongs to a group of G threads and stays in their registers, E elements each, so memory is read once;
 * blocks have THREADS threads, so THREADS / G rows at a time. Rows that are too long, or not whole packets, go to
 * the loops, a block per row, which read the row again for every pass.
 *
 * Backward, dx belongs to a row and dw, db to all of them. Groups take rows at a fixed distance and sum dy hat in
 * registers; at the end the groups of a block are added in order into one row of partial sums, and fold_rows
 * adds the rows. So the order is fixed by the sizes and the number of blocks, which is the card's. */
#include "device/cuda/overlap.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32, MOST_BLOCKS = CUDA_NORM_BLOCKS, LONGEST = 8192 };

/* --- groups ---------------------------------------------------------------------------------------------- */

/* Group `number` of the block: its threads meet at a barrier of their own. Slots take turns, so that one barrier
 * per sum is enough. */
template <int G, int K> struct group {
    float (*slots)[K][WARPS]; /* shared: [2][K][WARPS] */
    int number, turn;

    __device__ __forceinline__ void meet() const
    {
        if constexpr (G == THREADS)
            __syncthreads();
        else
            asm volatile("bar.sync %0, %1;" ::"r"(number + 1), "n"(G) : "memory");
    }

    /* Each of the K values becomes its sum over the group. */
    __device__ __forceinline__ void sum(float (&v)[K])
    {
#pragma unroll
        for (int k = 0; k < K; k++) v[k] = warp_sum(v[k]);
        if constexpr (G > 32) {
            int warp = (int)threadIdx.x / 32, first = number * (G / 32);
            if (threadIdx.x % 32 == 0)
#pragma unroll
                for (int k = 0; k < K; k++) slots[turn][k][warp] = v[k];
            meet();
#pragma unroll
            for (int k = 0; k < K; k++) {
                v[k] = 0;
#pragma unroll
                for (int i = 0; i < G / 32; i++) v[k] += slots[turn][k][first + i];
            }
            turn ^= 1;
        }
    }
};

/* --- forward --------------------------------------------------------------------------------------------- */

template <class T> struct forward {
    const T *x, *w, *b; /* [R,C], [C], [C] or NULL */
    T *y;
    float *stat; /* [R,1] or [R,2] */
    int64_t rows, columns;
    float eps;
    bool plus_one; /* RMS: the weight is 1 + w */
};

/* N weights of RMSNorm or LayerNorm. */
template <class T, bool LAYER, int N> ON_GPU void load_weights(const T *from, bool plus_one, float (&w)[N])
{
    load(from, w);
    if constexpr (!LAYER) {
        if (plus_one) {
#pragma unroll
            for (int k = 0; k < N; k++) w[k] += 1.0f;
        }
    }
}

template <class T, bool LAYER, int N>
ON_GPU void write_packet(const forward<T> &n, const packet<T, N> &x, int64_t row, int64_t c, float mean,
                         float rstd)
{
    float v[N], w[N], b[N] = {};
    unpack(x, v);
    load_weights<T, LAYER>(n.w + c, n.plus_one, w);
    if (LAYER && n.b) load(n.b + c, b);
#pragma unroll
    for (int k = 0; k < N; k++) {
        if (LAYER)
            v[k] = fmaf((v[k] - mean) * rstd, w[k], b[k]);
        else
            v[k] = v[k] * rstd * w[k];
    }
    save(n.y + row * n.columns + c, v);
}

template <class T, bool LAYER>
ON_GPU void write_stat(const forward<T> &n, int64_t row, float mean, float rstd)
{
    if (LAYER) n.stat[2 * row] = mean;
    n.stat[LAYER ? 2 * row + 1 : row] = rstd;
}

/* Sum of (x - mean)^2, or of x. */
template <class T, int N> ON_GPU float squares(const packet<T, N> &x, float mean)
{
    float v[N], sum = 0;
    unpack(x, v);
#pragma unroll
    for (int k = 0; k < N; k++) sum = fmaf(v[k] - mean, v[k] - mean, sum);
    return sum;
}

template <class T, int N> ON_GPU float plain_sum(const packet<T, N> &x)
{
    float v[N], sum = 0;
    unpack(x, v);
#pragma unroll
    for (int k = 0; k < N; k++) sum += v[k];
    return sum;
}

template <class T, bool LAYER, int G, int E>
__global__ void __launch_bounds__(THREADS) norm_rows(forward<T> n)
{
    constexpr int N = lanes<T>, V = E / N;
    __shared__ float slots[2][1][WARPS];
    group<G, 1> g = {slots, (int)threadIdx.x / G, 0};
    int64_t row = (int64_t)blockIdx.x * (THREADS / G) + g.number;
    next_may_begin();
    await_previous();
    if (row >= n.rows) return;
    int thread = (int)threadIdx.x % G, packets = (int)(n.columns / N);
    packet<T, N> x[V];
#pragma unroll
    for (int j = 0; j < V; j++)
        x[j] = thread + j * G < packets ? fetch<T, N>(n.x + row * n.columns + (thread + j * G) * N)
                                        : zeros<T, N>();
    float mean[1] = {0}, square[1] = {0};
    if (LAYER) {
#pragma unroll
        for (int j = 0; j < V; j++) mean[0] += plain_sum(x[j]);
        g.sum(mean);
        mean[0] /= (float)n.columns;
    }
#pragma unroll
    for (int j = 0; j < V; j++)
        if (thread + j * G < packets) square[0] += squares(x[j], mean[0]);
    g.sum(square);
    float rstd = 1.0f / sqrtf(square[0] / (float)n.columns + n.eps);
#pragma unroll
    for (int j = 0; j < V; j++)
        if (thread + j * G < packets)
            write_packet<T, LAYER, N>(n, x[j], row, (thread + j * G) * N, mean[0], rstd);
    if (thread == 0) write_stat<T, LAYER>(n, row, mean[0], rstd);
}

template <class T, bool LAYER> __global__ void __launch_bounds__(THREADS) norm_loop(forward<T> n)
{
    __shared__ float slots[2][1][WARPS];
    group<THREADS, 1> g = {slots, 0, 0};
    int64_t row = blockIdx.x;
    next_may_begin();
    await_previous();
    const T *x = n.x + row * n.columns;
    float mean[1] = {0}, square[1] = {0};
    if (LAYER) {
        for (int64_t c = threadIdx.x; c < n.columns; c += THREADS) mean[0] += plain_sum(fetch<T, 1>(x + c));
        g.sum(mean);
        mean[0] /= (float)n.columns;
    }
    for (int64_t c = threadIdx.x; c < n.columns; c += THREADS)
        square[0] += squares(fetch<T, 1>(x + c), mean[0]);
    g.sum(square);
    float rstd = 1.0f / sqrtf(square[0] / (float)n.columns + n.eps);
    for (int64_t c = threadIdx.x; c < n.columns; c += THREADS)
        write_packet<T, LAYER, 1>(n, fetch<T, 1>(x + c), row, c, mean[0], rstd);
    if (threadIdx.x == 0) write_stat<T, LAYER>(n, row, mean[0], rstd);
}

/* A kernel and how many threads it gives a row. */
template <class A> struct choice {
    void (*kernel)(A);
    int threads;
};

template <class T, bool LAYER> static choice<forward<T>> choose(int64_t columns)
{
    if (columns <= 1024) return {norm_rows<T, LAYER, 32, 32>, 32};
    if (columns <= 2048) return {norm_rows<T, LAYER, 64, 32>, 64};
    if (columns <= 4096) return {norm_rows<T, LAYER, 128, 32>, 128};
    return {norm_rows<T, LAYER, 256, 32>, 256};
}

template <class T> static int run_forward(const struct cuda_queue *queue, const struct kernel_call *call)
{
    int64_t columns = tensor_count(call_in(call, NORM_W));
    if (tensor_count(call_in(call, NORM_X)) == 0) return 0;
    forward<T> n = {(const T *)call->in[NORM_X],
                    (const T *)call->in[NORM_W],
                    (const T *)call->in[NORM_BIAS],
                    (T *)call->out[NORM_Y],
                    (float *)call->out[NORM_STAT],
                    tensor_count(call_in(call, NORM_X)) / columns,
                    columns,
                    call->op->attr.eps,
                    call->op->attr.plus_one};
    bool layer = call->op->attr.layer_norm;
    bool wide = columns % lanes<T> == 0 && columns <= LONGEST && aligned(n.x, n.w, n.b, n.y);
    choice<forward<T>> use = {layer ? norm_loop<T, true> : norm_loop<T, false>, THREADS};
    if (wide) use = layer ? choose<T, true>(columns) : choose<T, false>(columns);
    return launch(queue, use.kernel, parts_of(n.rows, THREADS / use.threads), THREADS, 0, n);
}

/* --- backward -------------------------------------------------------------------------------------------- */

template <class T> struct backward {
    const T *dy, *x, *w, *add; /* add NULL: none */
    const float *stat;
    T *dx;
    float *partial; /* [dw, db][blocks][C] */
    int64_t rows, columns;
    bool bias; /* db is wanted */
    bool plus_one;
};

template <class T, bool LAYER>
ON_GPU void read_stat(const backward<T> &n, int64_t row, float *mean, float *rstd)
{
    *mean = LAYER ? n.stat[2 * row] : 0.0f;
    *rstd = n.stat[LAYER ? 2 * row + 1 : row];
}

/* hat = (x - mean) rstd: adds to the row's sums of dy hat w (and dy w), to dw and db. */
template <class T, bool LAYER, int N, int K>
ON_GPU void absorb(const packet<T, N> &dy, const packet<T, N> &x, const float (&w)[N], float mean, float rstd,
                   float (&sums)[K], float *dw, float *db)
{
    float d[N], v[N];
    unpack(dy, d), unpack(x, v);
#pragma unroll
    for (int k = 0; k < N; k++) {
        float part = d[k] * ((v[k] - mean) * rstd);
        sums[0] = fmaf(part, w[k], sums[0]);
        dw[k] += part;
        if constexpr (LAYER) {
            sums[1] = fmaf(d[k], w[k], sums[1]);
            db[k] += d[k];
        }
    }
}

/* means: of dy w hat (and dy w) over the row */
template <class T, bool LAYER, int N, int K>
ON_GPU void write_dx(const packet<T, N> &dy, const packet<T, N> &x, const packet<T, N> &add,
                     const float (&w)[N], float mean, float rstd, const float (&means)[K], T *to)
{
    float d[N], v[N], a[N];
    unpack(dy, d), unpack(x, v), unpack(add, a);
#pragma unroll
    for (int k = 0; k < N; k++) {
        float inner = d[k] * w[k];
        if constexpr (LAYER) inner -= means[1];
        inner = fmaf(-(v[k] - mean) * rstd, means[0], inner);
        v[k] = fmaf(inner, rstd, a[k]);
    }
    save(to, v);
}

/* The groups' sums, in order of groups, into row `to`. `row` is shared, one float per column. */
template <int G, int N, int V>
ON_GPU void gather(const float (&sum)[V][N], float *row, float *to, int columns)
{
    int thread = (int)threadIdx.x % G, number = (int)threadIdx.x / G;
    for (int turn = 0; turn < THREADS / G; turn++) {
        if (number == turn) {
#pragma unroll
            for (int j = 0; j < V; j++)
#pragma unroll
                for (int k = 0; k < N; k++) {
                    int c = (thread + j * G) * N + k;
                    if (c < columns) row[c] = turn ? row[c] + sum[j][k] : sum[j][k];
                }
        }
        __syncthreads();
    }
    for (int c = (int)threadIdx.x; c < columns; c += THREADS) to[c] = row[c];
    __syncthreads();
}

/* As many as the registers allow for. */
template <class T, bool LAYER, int E>
constexpr int blocks_at_once = E > (sizeof(T) == 4 ? 16 : (LAYER ? 24 : 32)) ? 1 : 2;

template <class T, bool LAYER, int G, int E>
__global__ void __launch_bounds__(THREADS, blocks_at_once<T, LAYER, E>) norm_bwd_rows(backward<T> n)
{
    constexpr int N = lanes<T>, V = E / N, K = LAYER ? 2 : 1;
    extern __shared__ float row_sums[];
    __shared__ float slots[2][K][WARPS];
    group<G, K> g = {slots, (int)threadIdx.x / G, 0};
    int thread = (int)threadIdx.x % G, packets = (int)(n.columns / N);
    float dw[V][N] = {}, db[LAYER ? V : 1][N] = {};
    int64_t row = (int64_t)blockIdx.x * (THREADS / G) + g.number;
    for (; row < n.rows; row += (int64_t)gridDim.x * (THREADS / G)) {
        packet<T, N> x[V], dy[V], add[V];
        float mean, rstd, sums[K] = {}, w[N];
#pragma unroll
        for (int j = 0; j < V; j++) {
            int64_t at = row * n.columns + (thread + j * G) * N;
            add[j] = zeros<T, N>();
            if (thread + j * G >= packets) continue;
            dy[j] = fetch<T, N>(n.dy + at), x[j] = fetch<T, N>(n.x + at);
            if (n.add) add[j] = fetch<T, N>(n.add + at);
        }
        read_stat<T, LAYER>(n, row, &mean, &rstd);
#pragma unroll
        for (int j = 0; j < V; j++) {
            if (thread + j * G >= packets) continue;
            load_weights<T, LAYER>(n.w + (thread + j * G) * N, n.plus_one, w);
            absorb<T, LAYER, N, K>(dy[j], x[j], w, mean, rstd, sums, dw[j], db[LAYER ? j : 0]);
        }
        g.sum(sums);
#pragma unroll
        for (int k = 0; k < K; k++) sums[k] /= (float)n.columns;
#pragma unroll
        for (int j = 0; j < V; j++) {
            if (thread + j * G >= packets) continue;
            load_weights<T, LAYER>(n.w + (thread + j * G) * N, n.plus_one, w);
            write_dx<T, LAYER, N, K>(dy[j], x[j], add[j], w, mean, rstd, sums,
                                     n.dx + row * n.columns + (thread + j * G) * N);
        }
    }
    gather<G, N, V>(dw, row_sums, n.partial + blockIdx.x * n.columns, (int)n.columns);
    if constexpr (LAYER)
        if (n.bias)
            gather<G, N, V>(db, row_sums, n.partial + ((int64_t)gridDim.x + blockIdx.x) * n.columns,
                            (int)n.columns);
}

/* Every thread keeps to its own columns, so that it may add to the partial sums in memory. */
template <class T, bool LAYER> __global__ void __launch_bounds__(THREADS) norm_bwd_loop(backward<T> n)
{
    constexpr int K = LAYER ? 2 : 1;
    __shared__ float slots[2][K][WARPS];
    group<THREADS, K> g = {slots, 0, 0};
    float *dw = n.partial + blockIdx.x * n.columns, *db = dw + gridDim.x * n.columns, ignored[1], mean, rstd;
    for (int64_t c = threadIdx.x; c < n.columns; c += THREADS) {
        dw[c] = 0;
        if (n.bias) db[c] = 0;
    }
    for (int64_t row = blockIdx.x; row < n.rows; row += gridDim.x) {
        const T *dy = n.dy + row * n.columns, *x = n.x + row * n.columns;
        float sums[K] = {}, w[1];
        read_stat<T, LAYER>(n, row, &mean, &rstd);
        for (int64_t c = threadIdx.x; c < n.columns; c += THREADS) {
            load_weights<T, LAYER>(n.w + c, n.plus_one, w);
            absorb<T, LAYER, 1, K>(fetch<T, 1>(dy + c), fetch<T, 1>(x + c), w, mean, rstd, sums, dw + c,
                                   n.bias ? db + c : ignored);
        }
        g.sum(sums);
#pragma unroll
        for (int k = 0; k < K; k++) sums[k] /= (float)n.columns;
        for (int64_t c = threadIdx.x; c < n.columns; c += THREADS) {
            load_weights<T, LAYER>(n.w + c, n.plus_one, w);
            write_dx<T, LAYER, 1, K>(fetch<T, 1>(dy + c), fetch<T, 1>(x + c),
                                     n.add ? fetch<T, 1>(n.add + row * n.columns + c) : zeros<T, 1>(), w,
                                     mean, rstd, sums, n.dx + row * n.columns + c);
        }
    }
}

/* LayerNorm sums twice as much in registers, so it gives a row twice the threads. */
template <class T, bool LAYER> static choice<backward<T>> choose_bwd(int64_t columns)
{
    constexpr int E = LAYER ? 16 : 32, WIDER = LAYER ? 2 : 1;
    if (columns <= 768) return {norm_bwd_rows<T, LAYER, 32, 24>, 32};
    if (columns <= 1024) return {norm_bwd_rows<T, LAYER, 32 * WIDER, E>, 32 * WIDER};
    if (columns <= 2048) return {norm_bwd_rows<T, LAYER, 64 * WIDER, E>, 64 * WIDER};
    if (columns <= 4096) return {norm_bwd_rows<T, LAYER, 128 * WIDER, E>, 128 * WIDER};
    return {norm_bwd_rows<T, LAYER, 256, 32>, 256};
}

template <class T> static int run_backward(const struct cuda_queue *queue, const struct kernel_call *call)
{
    int64_t columns = tensor_count(call_in(call, NORM_BWD_W)),
            rows = tensor_count(call_in(call, NORM_BWD_X)) / columns;
    backward<T> n = {(const T *)call->in[NORM_BWD_DY],
                     (const T *)call->in[NORM_BWD_X],
                     (const T *)call->in[NORM_BWD_W],
                     (const T *)call->in[NORM_BWD_ADD],
                     (const float *)call->in[NORM_BWD_STAT],
                     (T *)call->out[NORM_BWD_DX],
                     (float *)call->work,
                     rows,
                     columns,
                     call->out[NORM_BWD_DBIAS] != NULL,
                     call->op->attr.plus_one};
    bool layer = call->op->attr.layer_norm;
    bool wide = columns % lanes<T> == 0 && columns <= LONGEST && aligned(n.dy, n.x, n.w, n.add, n.dx);
    choice<backward<T>> use = {layer ? norm_bwd_loop<T, true> : norm_bwd_loop<T, false>, THREADS};
    if (wide) use = layer ? choose_bwd<T, true>(columns) : choose_bwd<T, false>(columns);
    int64_t blocks = fewest(parts_of(rows, THREADS / use.threads), fewest(2 * queue->sms, MOST_BLOCKS));
    if (blocks > 0)
        use.kernel<<<(unsigned)blocks, THREADS, wide ? (size_t)columns * 4 : 0, stream_of(queue)>>>(n);
    int failed = launched();
    if (failed || !call->out[NORM_BWD_DW]) return failed;
    return cuda_fold_rows(queue, n.partial, blocks, columns, call->out[NORM_BWD_DW],
                          call->out[NORM_BWD_DBIAS], call_out(call, NORM_BWD_DW)->type, call->accumulate);
}

} // namespace

CUDA_BY_TYPE(norm, call_in(call, NORM_X), run_forward)
CUDA_BY_TYPE(norm_bwd, call_in(call, NORM_BWD_X), run_backward)
