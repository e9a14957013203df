/* xent.cu - softmax cross-entropy and its gradient, the gradient over the logits if need be.
 *
 * A row is one block's: its top and sum in one pass over memory, the gradient in a second. What fits of the row
 * stays in shared memory between the two (each thread reads back its own packets), the rest most likely in L2.
 * Rows need not begin at a multiple of 16 bytes: the elements before and after the packets go one by one. The
 * losses of the rows are left in the workspace and added in a fixed order by one block. */
#include "device/cuda/vec.cuh"

namespace
{

enum { THREADS = 512, WARPS = THREADS / 32, AHEAD = 4, TOTAL_THREADS = 1024 };

template <class T> struct xent {
    const T *logits;        /* [R,V] */
    const int32_t *targets; /* [R] */
    const float *scalars;
    const float *weight; /* [R] instead of scalars[LOSS_GRAD]; NULL: none */
    T *dlogits;          /* [R,V] or NULL; may be logits */
    double *loss;        /* [R] */
    double *hits;        /* [R], 0 or 1; NULL: they are not counted */
    float *logp;         /* [R]; NULL: not wanted */
    int64_t columns;
    int kept;  /* packets of a row that shared memory holds */
    float cap; /* of logits, 0: none */
};

ON_GPU float capped(float x, float cap) { return cap > 0 ? cap * tanhf(x / cap) : x; }

/* Elements [0, head) one by one, then `packets`, then from `tail` one by one. */
struct cut {
    int head, packets, tail;
};

template <class T> ON_GPU cut cut_row(const T *from, const T *to, int columns)
{
    int head = (int)((16 - ((uintptr_t)from & 15)) & 15) / (int)sizeof(T);
    if (head > columns || (to && (((uintptr_t)from ^ (uintptr_t)to) & 15))) head = columns;
    int packets = (columns - head) / lanes<T>;
    return {head, packets, head + packets * lanes<T>};
}

/* Top of what a thread has seen, and the sum of exp(x - top). A finite start keeps infinite logits harmless. */
struct running {
    float top = -FLT_MAX, sum = 0;
};

template <class T, int N> ON_GPU void absorb(running *r, const packet<T, N> &x, float cap)
{
    float v[N], top;
    unpack(x, v);
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = capped(v[k], cap);
    top = v[0];
#pragma unroll
    for (int k = 1; k < N; k++) top = fmaxf(top, v[k]);
    if (top > r->top) {
        r->sum *= exp_for<T>(r->top - top);
        r->top = top;
    }
#pragma unroll
    for (int k = 0; k < N; k++) r->sum += exp_for<T>(v[k] - r->top);
}

template <class T, int N>
ON_GPU void write_grad(T *to, const packet<T, N> &x, float top, float scale, float cap)
{
    float v[N];
    unpack(x, v);
#pragma unroll
    for (int k = 0; k < N; k++) {
        float y = capped(v[k], cap), p = exp_for<T>(y - top) * scale;
        v[k] = cap > 0 ? p * fmaf(-y / cap, y / cap, 1.0f) : p;
    }
    save(to, v);
}

template <class T>
ON_GPU running read_row(const T *row, const cut &c, int columns, uint4 *held, int kept, float cap)
{
    constexpr int N = lanes<T>;
    const T *body = row + c.head;
    running r;
    for (int i = (int)threadIdx.x; i < c.packets; i += THREADS * AHEAD) {
        packet<T, N> x[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (i + j * THREADS < c.packets) x[j] = fetch<T, N>(body + (int64_t)(i + j * THREADS) * N);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            int at = i + j * THREADS;
            if (at >= c.packets) break;
            if (at < kept) held[at] = make_uint4(x[j].w[0], x[j].w[1], x[j].w[2], x[j].w[3]);
            absorb<T, N>(&r, x[j], cap);
        }
    }
    for (int i = (int)threadIdx.x; i < c.head; i += THREADS) absorb<T, 1>(&r, fetch<T, 1>(row + i), cap);
    for (int i = c.tail + (int)threadIdx.x; i < columns; i += THREADS)
        absorb<T, 1>(&r, fetch<T, 1>(row + i), cap);
    return r;
}

/* Packets that were held first; `packets` lie where `row` says otherwise. */
template <class T>
ON_GPU void write_row(T *to, const T *row, const cut &c, int columns, const uint4 *held, int kept, float top,
                      float scale, float cap)
{
    constexpr int N = lanes<T>;
    for (int i = (int)threadIdx.x; i < c.packets; i += THREADS * AHEAD) {
        packet<T, N> x[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            int at = i + j * THREADS;
            if (at >= c.packets) break;
            x[j] =
                at < kept ? fetch<T, N>((const T *)(held + at)) : fetch<T, N>(row + c.head + (int64_t)at * N);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            int at = i + j * THREADS;
            if (at < c.packets) write_grad<T, N>(to + c.head + (int64_t)at * N, x[j], top, scale, cap);
        }
    }
    for (int i = (int)threadIdx.x; i < c.head; i += THREADS)
        write_grad<T, 1>(to + i, fetch<T, 1>(row + i), top, scale, cap);
    for (int i = c.tail + (int)threadIdx.x; i < columns; i += THREADS)
        write_grad<T, 1>(to + i, fetch<T, 1>(row + i), top, scale, cap);
}

template <class T> ON_GPU void clear_row(T *to, const cut &c, int columns)
{
    for (int i = (int)threadIdx.x; i < c.packets; i += THREADS)
        store(to + c.head + (int64_t)i * lanes<T>, zeros<T, lanes<T>>());
    for (int i = (int)threadIdx.x; i < c.head; i += THREADS) store(to + i, zeros<T, 1>());
    for (int i = c.tail + (int)threadIdx.x; i < columns; i += THREADS) store(to + i, zeros<T, 1>());
}

/* The threads' tops and sums into the block's; the sum in fp64. */
template <class T> ON_GPU double join(running *r, float *tops, double *sums)
{
    float top = warp_top(r->top);
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; i++) top = fmaxf(top, tops[i]);
    double sum = (double)(r->sum * exp_for<T>(r->top - top));
    r->top = top;
    return block_sum<THREADS>(sum, sums);
}

template <class T> __global__ void __launch_bounds__(THREADS, 2) xent_row(xent<T> x)
{
    extern __shared__ uint4 held[];
    __shared__ float tops[WARPS];
    __shared__ double sums[WARPS];
    int64_t row = blockIdx.x;
    int columns = (int)x.columns, target = x.targets[row];
    const T *logits = x.logits + row * x.columns;
    T *dlogits = x.dlogits ? x.dlogits + row * x.columns : NULL;
    cut c = cut_row(logits, (const T *)dlogits, columns);
    if (target < 0) {
        if (threadIdx.x == 0) x.loss[row] = 0;
        if (threadIdx.x == 0 && x.hits) x.hits[row] = 0;
        if (threadIdx.x == 0 && x.logp) x.logp[row] = 0;
        if (dlogits) clear_row(dlogits, c, columns);
        return;
    }
    float there[1];
    load(logits + target, there); /* before anything is written over it */
    there[0] = capped(there[0], x.cap);
    running r = read_row(logits, c, columns, held, x.kept, x.cap);
    double sum = join<T>(&r, tops, sums), below = (double)there[0] - (double)r.top;
    if (threadIdx.x == 0) x.loss[row] = log(sum) - below;
    if (threadIdx.x == 0 && x.hits) x.hits[row] = below >= 0;
    if (threadIdx.x == 0 && x.logp) x.logp[row] = (float)(below - log(sum));
    if (!dlogits) return;
    double grad = (double)(x.weight ? x.weight[row] : x.scalars[SCALAR_LOSS_GRAD]);
    write_row(dlogits, logits, c, columns, held, x.kept, r.top, (float)(grad / sum), x.cap);
    __syncthreads();
    if (threadIdx.x != 0) return;
    double bend = x.cap > 0 ? (double)there[0] / (double)x.cap : 0;
    there[0] = (float)((exp(below) / sum - 1.0) * grad * (1 - bend * bend));
    save(dlogits + target, there);
}

template <class R>
__global__ void __launch_bounds__(TOTAL_THREADS)
    add_losses(const R *loss, const int32_t *targets, int64_t rows, R *out, bool accumulate)
{
    __shared__ R slots[2][TOTAL_THREADS / 32];
    R sum = 0, count = 0;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < rows; i += TOTAL_THREADS) {
        sum += loss[i];
        count += targets[i] >= 0 ? 1 : 0;
    }
    sum = block_sum<TOTAL_THREADS>(sum, slots[0]);
    count = block_sum<TOTAL_THREADS>(count, slots[1]);
    if (threadIdx.x != 0) return;
    out[0] = accumulate ? out[0] + sum : sum;
    out[1] = accumulate ? out[1] + count : count;
}

template <class R>
__global__ void __launch_bounds__(TOTAL_THREADS)
    add_hits(const R *hits, int64_t rows, R *out, bool accumulate)
{
    __shared__ R slots[TOTAL_THREADS / 32];
    R sum = 0;
    for (int64_t i = threadIdx.x; i < rows; i += TOTAL_THREADS) sum += hits[i];
    sum = block_sum<TOTAL_THREADS>(sum, slots);
    if (threadIdx.x == 0) out[0] = accumulate ? out[0] + sum : sum;
}

/* Bytes of a row to keep: all of it when two blocks then fit on a multiprocessor, else what one block may have. */
static size_t held_bytes(const struct cuda_queue *queue, size_t row)
{
    const size_t own = 2048; /* the kernel's other shared memory, and the system's */
    if (queue->shared_most < 2 * own) return 0;
    size_t half = queue->shared_most / 2 - own, all = queue->shared_most - own;
    size_t bytes = row <= half ? row : (row < all ? row : all);
    return bytes / 16 * 16;
}

template <class T>
static int run(const struct cuda_queue *queue, const struct kernel_call *call, int64_t rows)
{
    xent<T> x = {(const T *)call->in[XENT_LOGITS],
                 (const int32_t *)call->in[XENT_TARGETS],
                 (const float *)call->in[XENT_SCALARS],
                 (const float *)call->in[XENT_WEIGHT],
                 (T *)call->out[XENT_DLOGITS],
                 (double *)call->work,
                 call->out[XENT_HITS] ? (double *)call->work + rows : NULL,
                 (float *)call->out[XENT_LOGP],
                 tensor_count(call_in(call, XENT_LOGITS)) / rows,
                 0,
                 call->op->attr.cap};
    size_t held = x.dlogits ? held_bytes(queue, (size_t)x.columns * sizeof(T)) : 0;
    x.kept = (int)(held / 16);
    /* The most there can be, not what this launch needs: a recording may hold launches that need more. */
    int failed = (int)cudaFuncSetAttribute(xent_row<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)held_bytes(queue, SIZE_MAX));
    if (failed) return failed;
    return start(queue, xent_row<T>, (unsigned)rows, THREADS, held, x);
}

} // namespace

int cuda_xent(const struct cuda_queue *queue, const struct kernel_call *call)
{
    int64_t rows = tensor_count(call_in(call, XENT_TARGETS));
    int failed = 0;
    if (rows > 0)
        failed = with_type(call_in(call, XENT_LOGITS)->type,
                           [&](auto t) { return run<typename decltype(t)::type>(queue, call, rows); });
    if (!failed && call->out[XENT_LOSS])
        failed = start(queue, add_losses<double>, 1, TOTAL_THREADS, 0, (const double *)call->work,
                       (const int32_t *)call->in[XENT_TARGETS], rows, (double *)call->out[XENT_LOSS],
                       call->accumulate);
    if (failed || !call->out[XENT_HITS]) return failed;
    return start(queue, add_hits<double>, 1, TOTAL_THREADS, 0, (const double *)call->work + rows, rows,
                 (double *)call->out[XENT_HITS], call->accumulate);
}
