/* matmul_few.cu - linear of few rows: the weight is read once, at the speed of memory, and nothing else counts.
 *
 * Every kernel asks for its first weights before it waits for the activations (overlap.cuh), and keeps as many loads
 * under way as its registers hold. Three of them:
 *
 *  by tile     16-bit weights [M,K] with whole packets: a block has 16 rows of W, its warps take 64 of K in turn. The
 *              products are those of the tensor cores, W as the 16 rows of a tile and x as its 8 columns: no
 *              conversions, and 8 rows cost what one does. The order of K within a tile is free, so a lane's packet
 *              of 8 neighbours serves two products as it is (below).
 *              x may be made on the way, of a norm's or a gated unit's operands: every block makes the rows for itself, in
 *              shared memory, which costs less than a kernel between two of these.
 *  by row      f32, and rows that are not whole packets: a warp has a row of W.
 *  by column   weights [K,M]: four threads have the neighbouring columns of a block, 64 such fours take k in turn.
 *
 * The order of a sum depends on K, the layout and the type alone: a row has the same bits whatever rows are beside it. */
#include "device/cuda/matmul_few.h"
#include "device/cuda/attention_ptx.cuh"
#include "device/cuda/overlap.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32, ROWS = CUDA_FEW_ROWS };

template <class T> struct product {
    const T *x, *w, *bias, *add; /* [R,K]; [M,K] or [K,M]; [M]; [R,M] */
    T *y;                        /* [R,M] */
    int64_t rows, m, k;
};

/* A second product, and what x is made of (matmul_few.h). */
template <class T> struct fusion {
    const T *w2;
    T *y2;
    int64_t m2;
    const T *a, *b;
    float *stat;
    float eps;
    bool plus_one;
};

/* 16 bytes of a weight, which no kernel writes meanwhile. Volatile: it stays before await_previous. */
template <class T, int N> ON_GPU packet<T, N> fetch_weight(const T *from)
{
    packet<T, N> x;
    if constexpr (packet<T, N>::bytes == 16)
        asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.w[0]), "=r"(x.w[1]), "=r"(x.w[2]), "=r"(x.w[3])
                     : "l"(from));
    else
        x = fetch<T, N>(from);
    return x;
}

/* y[r][i] of a finished sum. */
template <class T> ON_GPU void finish(const product<T> &p, int64_t r, int64_t i, float sum)
{
    float v[1];
    if (p.bias) load<1>(p.bias + i, v), sum += v[0];
    if (p.add) load<1>(p.add + r * p.m + i, v), sum += v[0];
    v[0] = sum;
    save<1>(p.y + r * p.m + i, v);
}

/* --- by tile ----------------------------------------------------------------------------------------------- */

enum { TILE = 16, PART = 32, STEP = 2 * PART, DEPTH = 4 }; /* of M; of K: a part, a step, steps under way */

template <class T> struct tensor_cores;
template <> struct tensor_cores<bf16> : type_bf16 {
};
template <> struct tensor_cores<f16> : type_f16 {
};

/* A lane's data of one step: for two parts, rows g and g + 8 of W and row g of x. */
template <class T> struct w_step {
    packet<T, lanes<T>> at[2][2];
};
template <class T> struct x_step {
    packet<T, lanes<T>> at[2];
};

/* Lane (g, t) has packet t of a part: 8 t .. 8 t + 7 of 32. WHOLE: all of K's steps are. */
template <bool WHOLE, class T>
ON_GPU void load_weights(w_step<T> &w, const T *const (&row)[2], int64_t k, int64_t end)
{
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            w.at[i][half] = WHOLE || k + i * PART < end ? fetch_weight<T, lanes<T>>(row[half] + k + i * PART)
                                                        : zeros<T, lanes<T>>();
}

template <bool WHOLE, class T> ON_GPU void load_x(x_step<T> &x, const T *row, int64_t k, int64_t end)
{
#pragma unroll
    for (int i = 0; i < 2; i++)
        x.at[i] = WHOLE || k + i * PART < end ? fetch<T, lanes<T>>(row + k + i * PART) : zeros<T, lanes<T>>();
}

/* Words 0 and 1 of the four lanes' packets are 16 of K for one product, words 2 and 3 for another. */
template <class T> ON_GPU void multiply(float (&c)[2][4], const w_step<T> &w, const x_step<T> &x)
{
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            uint32_t a[4] = {w.at[i][0].w[j], w.at[i][1].w[j], w.at[i][0].w[j + 1], w.at[i][1].w[j + 1]};
            tensor_cores<T>::multiply(c[i], a, x.at[i].w[j], x.at[i].w[j + 1]);
        }
}

/* Rows of x in shared memory begin so far apart that eight lanes of two rows meet no bank twice. */
ON_GPU int64_t shared_stride(int64_t k) { return k + 32; }
enum { NORM_MOST = 4 }; /* packets of a row that a thread has */

/* The rows of a GLU. */
template <class T> ON_GPU void make_glu(const product<T> &p, const fusion<T> &f, T *xs)
{
    constexpr int N = lanes<T>;
    const int64_t packets = p.k / N;
    for (int64_t i = threadIdx.x; i < p.rows * packets; i += THREADS) {
        int64_t c, r = divide(i, packets, &c);
        float g[N], u[N];
        load(f.a + i * N, g), load(f.b + i * N, u);
#pragma unroll
        for (int j = 0; j < N; j++) g[j] = divide_for<T>(g[j] * u[j], 1.0f + exp_for<T>(-g[j]));
        save(xs + r * shared_stride(p.k) + c * N, g);
    }
    __syncthreads();
}

template <class T> struct norm_weights {
    packet<T, lanes<T>> at[NORM_MOST];
};

template <class T> ON_GPU void load_norm(const product<T> &p, const fusion<T> &f, norm_weights<T> &w)
{
#pragma unroll
    for (int j = 0; j < NORM_MOST; j++) {
        int64_t c = (threadIdx.x + j * THREADS) * lanes<T>;
        w.at[j] = c < p.k ? fetch_weight<T, lanes<T>>(f.b + c) : zeros<T, lanes<T>>();
    }
}

/* The rows of a norm; the first block leaves them in memory too. sums: [R][WARPS]. */
template <class T>
ON_GPU void make_norm(const product<T> &p, const fusion<T> &f, const norm_weights<T> &w, T *xs,
                      float (*sums)[WARPS])
{
    constexpr int N = lanes<T>;
    for (int64_t r = 0; r < p.rows; r++) {
        float square = 0;
#pragma unroll
        for (int j = 0; j < NORM_MOST; j++) {
            int64_t c = (threadIdx.x + j * THREADS) * N;
            if (c >= p.k) continue;
            packet<T, N> x = fetch<T, N>(f.a + r * p.k + c);
            float v[N];
            unpack(x, v);
#pragma unroll
            for (int k = 0; k < N; k++) square = fmaf(v[k], v[k], square);
            store(xs + r * shared_stride(p.k) + c, x);
        }
        square = warp_sum(square);
        if (threadIdx.x % 32 == 0) sums[r][threadIdx.x / 32] = square;
    }
    __syncthreads();
    for (int64_t r = 0; r < p.rows; r++) {
        float square = 0;
#pragma unroll
        for (int i = 0; i < WARPS; i++) square += sums[r][i];
        const float rstd = 1.0f / sqrtf(square / (float)p.k + f.eps);
        if (f.stat && blockIdx.x == 0 && threadIdx.x == 0) f.stat[r] = rstd;
#pragma unroll
        for (int j = 0; j < NORM_MOST; j++) {
            int64_t c = (threadIdx.x + j * THREADS) * N;
            if (c >= p.k) continue;
            T *at = xs + r * shared_stride(p.k) + c;
            float v[N], by[N];
            load(at, v), unpack(w.at[j], by);
#pragma unroll
            for (int k = 0; k < N; k++) v[k] = v[k] * rstd * (f.plus_one ? by[k] + 1.0f : by[k]);
            save(at, v);
            if (blockIdx.x == 0) save((T *)p.x + r * p.k + c, v);
        }
    }
    __syncthreads();
}

/* Rows behind the last of W or x are the last once more, and written by nobody. SOURCE: enum few_source. */
template <class T, bool WHOLE, int SOURCE>
__global__ void __launch_bounds__(THREADS, WHOLE ? 2 : 1) by_tile(product<T> p, const fusion<T> f)
{
    constexpr int STRIDE = WARPS * STEP;
    extern __shared__ __align__(16) char made[];
    __shared__ float sums[WARPS][ROWS][TILE + 1];
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    int64_t tile = blockIdx.x;
    if (f.w2 && tile >= (p.m + TILE - 1) / TILE)
        tile -= (p.m + TILE - 1) / TILE, p.w = f.w2, p.y = f.y2, p.m = f.m2;
    const int64_t first = tile * TILE;
    const T *const row[2] = {p.w + min(first + g, p.m - 1) * p.k + t * lanes<T>,
                             p.w + min(first + g + 8, p.m - 1) * p.k + t * lanes<T>};
    T *xs = (T *)made;
    const T *x_row = SOURCE == FEW_PLAIN
                         ? p.x + min((int64_t)g, p.rows - 1) * p.k + t * lanes<T>
                         : xs + min((int64_t)g, p.rows - 1) * shared_stride(p.k) + t * lanes<T>;
    const int64_t end = p.k - t * lanes<T>;
    w_step<T> w[DEPTH];
    x_step<T> x[DEPTH];
    norm_weights<T> scales;
    float c[2][4] = {}; /* of a step's parts */
    int64_t k = warp * STEP;
    next_may_begin();
    if (SOURCE == FEW_NORM) load_norm(p, f, scales);
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
        if (k + d * STRIDE < p.k) load_weights<WHOLE>(w[d], row, k + d * STRIDE, end);
    await_previous();
    if (SOURCE == FEW_NORM) make_norm(p, f, scales, xs, (float(*)[WARPS])sums);
    if (SOURCE == FEW_GLU) make_glu(p, f, xs);
    for (; k < p.k; k += DEPTH * STRIDE) {
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
            if (k + d * STRIDE < p.k) load_x<WHOLE>(x[d], x_row, k + d * STRIDE, end);
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            int64_t next = k + (d + DEPTH) * STRIDE;
            if (k + d * STRIDE < p.k) multiply(c, w[d], x[d]);
            if (next < p.k) load_weights<WHOLE>(w[d], row, next, end);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) sums[warp][2 * t + i % 2][g + i / 2 * 8] = c[0][i] + c[1][i];
    __syncthreads();
    int r = threadIdx.x / TILE, i = threadIdx.x % TILE;
    if (r >= p.rows || first + i >= p.m) return;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < WARPS; j++) sum += sums[j][r][i];
    finish(p, r, first + i, sum);
}

template <class T>
static int run_tiles(const struct cuda_queue *queue, const product<T> &p, const few_product *f)
{
    fusion<T> with = {(const T *)f->w2, (T *)f->y2, f->m2,  (const T *)f->a,
                      (const T *)f->b,  f->stat,    f->eps, f->plus_one};
    int64_t tiles = parts_of(p.m, TILE) + (f->w2 ? parts_of(f->m2, TILE) : 0);
    auto kernel = f->source == FEW_NORM  ? by_tile<T, true, FEW_NORM>
                  : f->source == FEW_GLU ? by_tile<T, true, FEW_GLU>
                  : p.k % STEP           ? by_tile<T, false, FEW_PLAIN>
                                         : by_tile<T, true, FEW_PLAIN>;
    size_t shared = f->source == FEW_PLAIN ? 0 : (size_t)(p.rows * (p.k + 32)) * sizeof(T);
    if (shared > ((size_t)40 << 10)) {
        int failed = (int)cudaFuncSetAttribute((const void *)kernel,
                                               cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (failed) return failed;
    }
    return launch(queue, kernel, tiles, THREADS, shared, p, with);
}

/* --- by row ------------------------------------------------------------------------------------------------ */

template <class T, int N, int R> __global__ void __launch_bounds__(THREADS) by_row(product<T> p)
{
    constexpr int U = 8, STRIDE = 32 * N;
    const int lane = threadIdx.x % 32;
    const int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const T *row = p.w + min(i, p.m - 1) * p.k;
    packet<T, N> w[U];
    float sum[R] = {};
    int64_t k = lane * N;
    next_may_begin();
#pragma unroll
    for (int u = 0; u < U; u++)
        w[u] = k + u * STRIDE < p.k ? fetch_weight<T, N>(row + k + u * STRIDE) : zeros<T, N>();
    await_previous();
    for (; k < p.k; k += U * STRIDE) {
#pragma unroll
        for (int u = 0; u < U; u++) {
            int64_t at = k + u * STRIDE, next = at + U * STRIDE;
            float a[N], b[N];
            unpack(w[u], a);
            w[u] = next < p.k ? fetch_weight<T, N>(row + next) : zeros<T, N>();
            if (at >= p.k) continue;
#pragma unroll
            for (int r = 0; r < R; r++) {
                if (r >= p.rows) continue;
                load(p.x + r * p.k + at, b);
#pragma unroll
                for (int n = 0; n < N; n++) sum[r] = fmaf(a[n], b[n], sum[r]);
            }
        }
    }
    float mine = 0; /* lane r keeps the sum of row r */
#pragma unroll
    for (int r = 0; r < R; r++) {
        float all = warp_sum(sum[r]);
        if (lane == r) mine = all;
    }
    if (i < p.m && lane < p.rows) finish(p, lane, i, mine);
}

/* --- by column --------------------------------------------------------------------------------------------- */

enum { ACROSS = 4, DEEP = THREADS / ACROSS };

template <class T, int N, int R> __global__ void __launch_bounds__(THREADS) by_column(product<T> p)
{
    constexpr int U = 8, WIDTH = ACROSS * N;
    __shared__ float sums[WARPS][R][WIDTH];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, across = lane % ACROSS * N;
    const int64_t first = (int64_t)blockIdx.x * WIDTH;
    const T *column = p.w + min(first + across, p.m - N);
    packet<T, N> w[U];
    float sum[R][N] = {};
    int64_t k = threadIdx.x / ACROSS;
    next_may_begin();
#pragma unroll
    for (int u = 0; u < U; u++)
        w[u] = k + u * DEEP < p.k ? fetch_weight<T, N>(column + (k + u * DEEP) * p.m) : zeros<T, N>();
    await_previous();
    for (; k < p.k; k += U * DEEP) {
#pragma unroll
        for (int u = 0; u < U; u++) {
            int64_t at = k + u * DEEP, next = at + U * DEEP;
            float a[N], b[1];
            unpack(w[u], a);
            w[u] = next < p.k ? fetch_weight<T, N>(column + next * p.m) : zeros<T, N>();
            if (at >= p.k) continue;
#pragma unroll
            for (int r = 0; r < R; r++) {
                if (r >= p.rows) continue;
                load<1>(p.x + r * p.k + at, b);
#pragma unroll
                for (int n = 0; n < N; n++) sum[r][n] = fmaf(a[n], b[0], sum[r][n]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int n = 0; n < N; n++) {
            float v = sum[r][n];
#pragma unroll
            for (int mask = ACROSS; mask < 32; mask *= 2) v += __shfl_xor_sync(0xffffffffu, v, mask);
            if (lane < ACROSS) sums[warp][r][across + n] = v;
        }
    __syncthreads();
    for (int j = threadIdx.x; j < p.rows * WIDTH; j += THREADS) {
        int r = j / WIDTH, i = j % WIDTH;
        if (first + i >= p.m) continue;
        float all = 0;
#pragma unroll
        for (int h = 0; h < WARPS; h++) all += sums[h][r][i];
        finish(p, r, first + i, all);
    }
}

/* --- choosing ---------------------------------------------------------------------------------------------- */

template <class T, int N, int R> static int run(const struct cuda_queue *queue, const product<T> &p, bool kn)
{
    if (kn) return launch(queue, by_column<T, N, R>, parts_of(p.m, ACROSS * N), THREADS, 0, p);
    if constexpr (sizeof(T) == 4 || N == 1) /* else by tile */
        return launch(queue, by_row<T, N, R>, parts_of(p.m, WARPS), THREADS, 0, p);
    return (int)cudaErrorInvalidValue;
}

/* As many sums in registers as there are rows, about. */
template <class T> static int run_packets(const struct cuda_queue *queue, const product<T> &p, bool kn)
{
    constexpr int N = lanes<T>;
    if (p.rows == 1) return run<T, N, 1>(queue, p, kn);
    if (p.rows == 2) return run<T, N, 2>(queue, p, kn);
    return p.rows <= 4 ? run<T, N, 4>(queue, p, kn) : run<T, N, ROWS>(queue, p, kn);
}

template <class T> static int choose(const struct cuda_queue *queue, const few_product *f)
{
    product<T> p = {(const T *)f->x,
                    (const T *)f->w,
                    (const T *)f->bias,
                    (const T *)f->add,
                    (T *)f->y,
                    f->rows,
                    f->m,
                    f->k};
    bool whole = (f->kn ? p.m : p.k) % lanes<T> == 0 && aligned(p.x, p.w);
    if (p.rows == 0 || p.m == 0) return 0;
    if (!whole) return run<T, 1, ROWS>(queue, p, f->kn);
    if constexpr (sizeof(T) == 2)
        if (!f->kn) return run_tiles(queue, p, f);
    return run_packets(queue, p, f->kn);
}

} // namespace

extern "C" int cuda_matmul_few(const struct cuda_queue *queue, const struct few_product *p)
{
    return with_type(p->type, [&](auto t) { return choose<typename decltype(t)::type>(queue, p); });
}

/* Rows that a block of threads makes fit into the shared memory of every card, as many as there may be. */
extern "C" bool cuda_matmul_few_fuses(const struct few_product *p)
{
    const int64_t most = p->source == FEW_NORM ? NORM_MOST * THREADS * 8 : INT64_MAX;
    const int64_t rows = p->source == FEW_GLU ? p->rows : ROWS;
    return p->type != DT_F32 && !p->kn && p->k % STEP == 0 && p->k <= most &&
           rows * (p->k + 32) * 2 <= 90 << 10 && aligned(p->x, p->w, p->w2, p->a, p->b);
}
