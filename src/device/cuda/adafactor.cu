/* adafactor.cu - Adafactor: the second moment as sums over rows and columns, and the step.
 *
 * The gradient of a matrix is read twice for the statistic. First tiles of EDGE x EDGE leave their sums of squares
 * along rows and along columns, which are added up in order; then, with both statistics known, tiles sum the squares
 * of the step. Every tile's sums go to a place of their own in the workspace. */
#include "device/cuda/update.cuh"

namespace
{

enum { EDGE = CUDA_FACTOR_EDGE, DEPTH = 8, FOLD = 32, TOTAL_THREADS = 1024 };
enum { FLAT = CUDA_FACTOR_FLAT, FLAT_THREADS = 256, FLAT_EACH = FLAT / FLAT_THREADS };

/* --- the statistic --------------------------------------------------------------------------------------- */

struct stat {
    const void *g; /* [rows,columns] */
    const float *row_in, *col_in;
    float *row, *col, *factor;
    const float *scalars, *coef;
    float *row_sums; /* [tiles across][rows] */
    float *col_sums; /* [tiles down][columns] */
    double *squares; /* [tiles] or, of a vector, [blocks] */
    int64_t rows, columns, across, down;
    float eps, limit;
};

ON_GPU bool left_out(const stat &s) { return s.coef && s.coef[CLIP_FINITE] == 0; }

ON_GPU float multiplier_of(const stat &s) { return s.coef ? s.coef[CLIP_MULTIPLIER] : 1.0f; }

/* b before + (1 - b) (mean of squares + eps) */
ON_GPU float mixed(const stat &s, float before, double mean_square)
{
    double beta2 = s.scalars[SCALAR_BETA2];
    return (float)(beta2 * (double)before + (1 - beta2) * (mean_square + (double)s.eps));
}

/* Lane x of the DEPTH warps has columns (x + 32 v) N + k of the tile, warp y every DEPTH-th row. */
template <class G, int N> __global__ void __launch_bounds__(32 * DEPTH) tile_sums(stat s)
{
    constexpr int V = EDGE / 32 / N;
    __shared__ float part[DEPTH][EDGE + 4];
    if (left_out(s)) return;
    int64_t first = (int64_t)blockIdx.x * EDGE, last = first + EDGE < s.rows ? first + EDGE : s.rows;
    int64_t left = (int64_t)blockIdx.y * EDGE;
    float sum[V][N] = {};
#pragma unroll 4
    for (int64_t r = first + threadIdx.y; r < last; r += DEPTH) {
        float along = 0;
#pragma unroll
        for (int v = 0; v < V; v++) {
            int64_t c = left + ((int)threadIdx.x + 32 * v) * N;
            float x[N] = {};
            if (c < s.columns) load((const G *)s.g + r * s.columns + c, x);
#pragma unroll
            for (int k = 0; k < N; k++)
                sum[v][k] = fmaf(x[k], x[k], sum[v][k]), along = fmaf(x[k], x[k], along);
        }
        along = warp_sum(along);
        if (threadIdx.x == 0) s.row_sums[blockIdx.y * s.rows + r] = along;
    }
#pragma unroll
    for (int v = 0; v < V; v++)
#pragma unroll
        for (int k = 0; k < N; k++) part[threadIdx.y][((int)threadIdx.x + 32 * v) * N + k] = sum[v][k];
    __syncthreads();
    int i = (int)(threadIdx.y * 32 + threadIdx.x);
    float all = 0;
#pragma unroll
    for (int k = 0; k < DEPTH; k++) all += part[k][i];
    if (left + i < s.columns) s.col_sums[blockIdx.x * s.columns + left + i] = all;
}

/* y = 0: rows, y = 1: columns. */
template <class R> __global__ void __launch_bounds__(32 * FOLD) fold_sums(stat s)
{
    __shared__ R part[FOLD][33];
    bool down = blockIdx.y != 0;
    int64_t at = (int64_t)blockIdx.x * 32 + threadIdx.x, width = down ? s.columns : s.rows;
    int64_t count = down ? s.down : s.across;
    const float *from = down ? s.col_sums : s.row_sums, *in = down ? s.col_in : s.row_in;
    float *out = down ? s.col : s.row;
    bool skip = left_out(s);
    R sum = 0;
    if (at < width && !skip) {
#pragma unroll 8
        for (int64_t i = threadIdx.y; i < count; i += FOLD) sum += from[i * width + at];
    }
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || at >= width) return;
    R all = 0, multiplier = multiplier_of(s);
#pragma unroll
    for (int k = 0; k < FOLD; k++) all += part[k][threadIdx.x];
    all *= multiplier * multiplier / (R)(down ? s.rows : s.columns);
    out[at] = skip ? in[at] : mixed(s, in[at], all);
}

template <class R> __global__ void __launch_bounds__(TOTAL_THREADS) mean_of_rows(stat s)
{
    __shared__ R slots[TOTAL_THREADS / 32];
    R sum = 0;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < s.rows; i += TOTAL_THREADS) sum += s.row[i];
    sum = block_sum<TOTAL_THREADS>(sum, slots);
    if (threadIdx.x == 0) s.factor[FACTOR_MEAN] = left_out(s) ? 1.0f : (float)(sum / (R)s.rows);
}

/* Squares of the step before learning rate and clipping. */
template <class G, int N> __global__ void __launch_bounds__(32 * DEPTH) tile_steps(stat s)
{
    constexpr int V = EDGE / 32 / N;
    __shared__ double slots[DEPTH];
    if (left_out(s)) return;
    int64_t first = (int64_t)blockIdx.x * EDGE, last = first + EDGE < s.rows ? first + EDGE : s.rows;
    int64_t left = (int64_t)blockIdx.y * EDGE + (int)threadIdx.x * N;
    float inverse[V][N], sum = 0, multiplier = multiplier_of(s), mean = s.factor[FACTOR_MEAN];
#pragma unroll
    for (int v = 0; v < V; v++)
#pragma unroll
        for (int k = 0; k < N; k++) {
            int64_t c = left + 32 * v * N + k;
            inverse[v][k] = c < s.columns ? 1.0f / sqrtf(s.col[c]) : 0.0f;
        }
#pragma unroll 4
    for (int64_t r = first + threadIdx.y; r < last; r += DEPTH) {
        float factor = multiplier / sqrtf(s.row[r] / mean);
#pragma unroll
        for (int v = 0; v < V; v++) {
            float x[N] = {};
            if (left + 32 * v * N < s.columns) load((const G *)s.g + r * s.columns + left + 32 * v * N, x);
#pragma unroll
            for (int k = 0; k < N; k++) x[k] = x[k] * factor * inverse[v][k], sum = fmaf(x[k], x[k], sum);
        }
    }
    double all = warp_sum((double)sum);
    if (threadIdx.x == 0) slots[threadIdx.y] = all;
    __syncthreads();
    if (threadIdx.x != 0 || threadIdx.y != 0) return;
    all = 0;
#pragma unroll
    for (int k = 0; k < DEPTH; k++) all += slots[k];
    s.squares[blockIdx.y * s.down + blockIdx.x] = all;
}

/* A vector has its whole second moment in `row`. */
template <class G> __global__ void __launch_bounds__(FLAT_THREADS) flat_steps(stat s)
{
    __shared__ double slots[FLAT_THREADS / 32];
    float multiplier = multiplier_of(s);
    bool skip = left_out(s);
    double sum = 0;
    for (int j = 0; j < FLAT_EACH; j++) {
        int64_t i = (int64_t)blockIdx.x * FLAT + j * FLAT_THREADS + threadIdx.x;
        if (i >= s.rows) break;
        float g[1], before = s.row_in[i];
        load((const G *)s.g + i, g);
        g[0] *= multiplier;
        float row = skip ? before : mixed(s, before, (double)g[0] * (double)g[0]);
        s.row[i] = row;
        g[0] /= sqrtf(row);
        sum = fma((double)g[0], (double)g[0], sum);
    }
    sum = block_sum<FLAT_THREADS>(sum, slots);
    if (threadIdx.x == 0) s.squares[blockIdx.x] = sum;
}

template <class R> __global__ void __launch_bounds__(TOTAL_THREADS) finish(stat s, int64_t count)
{
    __shared__ R slots[TOTAL_THREADS / 32];
    bool skip = left_out(s);
    R sum = 0;
    if (!skip) {
#pragma unroll 4
        for (int64_t i = threadIdx.x; i < count; i += TOTAL_THREADS) sum += s.squares[i];
    }
    sum = block_sum<TOTAL_THREADS>(sum, slots);
    if (threadIdx.x != 0) return;
    R rms = sqrt(sum / ((R)s.rows * (R)s.columns)) / (R)s.limit;
    s.factor[FACTOR_SCALE] = !skip && rms > 1 ? (float)(1 / rms) : 1.0f;
    if (!s.col) s.factor[FACTOR_MEAN] = 1.0f;
}

template <class G> static int run_matrix(const struct cuda_queue *queue, const stat &s)
{
    dim3 tiles((unsigned)s.down, (unsigned)s.across), block(32, DEPTH), folds(32, FOLD);
    dim3 strips((unsigned)parts_of(s.rows > s.columns ? s.rows : s.columns, 32), 2);
    bool wide = s.columns % lanes<G> == 0 && aligned(s.g);
    if (wide)
        tile_sums<G, lanes<G>><<<tiles, block, 0, stream_of(queue)>>>(s);
    else
        tile_sums<G, 1><<<tiles, block, 0, stream_of(queue)>>>(s);
    fold_sums<double><<<strips, folds, 0, stream_of(queue)>>>(s);
    mean_of_rows<double><<<1, TOTAL_THREADS, 0, stream_of(queue)>>>(s);
    if (wide)
        tile_steps<G, lanes<G>><<<tiles, block, 0, stream_of(queue)>>>(s);
    else
        tile_steps<G, 1><<<tiles, block, 0, stream_of(queue)>>>(s);
    return start(queue, finish<double>, 1, TOTAL_THREADS, 0, s, s.across * s.down);
}

template <class G> static int run_vector(const struct cuda_queue *queue, const stat &s)
{
    int64_t blocks = parts_of(s.rows, FLAT);
    flat_steps<G><<<(unsigned)blocks, FLAT_THREADS, 0, stream_of(queue)>>>(s);
    return start(queue, finish<double>, 1, TOTAL_THREADS, 0, s, blocks);
}

static void lay_out(stat *s, char *work)
{
    struct cuda_factor_places p = cuda_factor_places(s->rows, s->columns, s->col != NULL);
    s->across = p.across, s->down = p.down;
    s->squares = (double *)work;
    s->row_sums = (float *)(work + p.row_sums), s->col_sums = (float *)(work + p.col_sums);
}

/* --- the step -------------------------------------------------------------------------------------------- */

struct factored {
    struct update u;
    const float *row, *second, *factor; /* second: col, or row where there is no col */
    int64_t columns;
    bool matrix;
};

template <class P, int M, class G, class S> struct adafactor {
    struct once {
        float keep, rate, mean;
    };
    ON_GPU once begin(const factored &a)
    {
        float lr = a.u.scalars[SCALAR_LR];
        return {fmaf(-lr, a.u.decay, 1.0f), lr * a.factor[FACTOR_SCALE], a.factor[FACTOR_MEAN]};
    }

    template <int N>
    ON_GPU void step(const factored &a, const once &o, uint32_t key, int64_t at,
                     const elements<P, M, G, S, N> &old)
    {
        const struct update &u = a.u;
        int64_t column = at, row = a.matrix ? divide(at, a.columns, &column) : 0;
        float rate = o.rate;
        if (a.matrix) rate /= sqrtf(a.row[row] / o.mean);
        rate *= multiplier_of(u);
        float p[N], g[N], m[N], second[N];
        randoms<N> random = random_words<N>(u, key, at);
        widen(old.p, p), unpack(old.g, g), unpack(old.m, m), load(a.second + column, second);
#pragma unroll
        for (int k = 0; k < N; k++) {
            float step = g[k] * rate / sqrtf(second[k]);
            m[k] = fmaf(step - m[k], u.mix1, m[k]);
            p[k] = p[k] * o.keep - (u.m ? m[k] : step);
        }
        if (u.m) put_state<S, RANDOM_M>(u.m, at, m, random);
        put_param<P, M>(u, at, p, random);
    }
};

} // namespace

int cuda_factor_stat(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct op_attr *attr = &call->op->attr;
    stat s = {};
    s.g = call->in[FACTOR_STAT_G];
    s.row_in = (const float *)call->in[FACTOR_STAT_ROW], s.col_in = (const float *)call->in[FACTOR_STAT_COL];
    s.row = (float *)call->out[FACTOR_STAT_NEW_ROW], s.col = (float *)call->out[FACTOR_STAT_NEW_COL],
    s.factor = (float *)call->out[FACTOR_STAT_FACTOR];
    s.scalars = (const float *)call->in[FACTOR_STAT_SCALARS],
    s.coef = (const float *)call->in[FACTOR_STAT_COEF];
    s.rows = tensor_count(call_in(call, FACTOR_STAT_ROW));
    if (s.rows == 0) return 0;
    s.columns = tensor_count(call_in(call, FACTOR_STAT_G)) / s.rows;
    s.eps = attr->eps, s.limit = attr->limit;
    lay_out(&s, (char *)call->work);
    return with_type(call_in(call, FACTOR_STAT_G)->type, [&](auto t) {
        using G = typename decltype(t)::type;
        return s.col ? run_matrix<G>(queue, s) : run_vector<G>(queue, s);
    });
}

int cuda_adafactor(const struct cuda_queue *queue, const struct kernel_call *call)
{
    factored a = {};
    a.u = update_of(call);
    a.row = (const float *)call->in[ADAFACTOR_ROW], a.factor = (const float *)call->in[ADAFACTOR_FACTOR];
    a.matrix = call->in[ADAFACTOR_COL] != NULL;
    a.second = a.matrix ? (const float *)call->in[ADAFACTOR_COL] : a.row;
    a.columns = a.matrix ? tensor_count(call_in(call, ADAFACTOR_COL)) : 1;
    bool wide = update_aligned(a.u) && aligned(a.second) && (!a.matrix || a.columns % UPDATE_LANES == 0);
    return with_param(call, a.u.master != NULL, [&](auto p, auto master, auto g) {
        return with_state(call_in(call, ADAFACTOR_M), [&](auto s) {
            using P = typename decltype(p)::type;
            using G = typename decltype(g)::type;
            using S = typename decltype(s)::type;
            return run_update<adafactor, P, decltype(master)::value, G, S>(queue, a, wide);
        });
    });
}
