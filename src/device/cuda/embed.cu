/* embed.cu - rows of the embedding table by token, and their gradients.
 *
 * Backward, several rows may add to the same row of the table, in the order of their positions. So positions are
 * sorted by id first: a stable radix sort, two passes for vocabularies up to 2^18. Then the sorted positions are
 * cut into tiles of TILE. A run of equal ids inside a tile is summed and added to the table at once. A run that
 * crosses tiles leaves one partial sum per tile, in `head` where it came from the tile before, in `tail` where it
 * begins; the tile where it begins adds them up in order. So however often an id comes, work stays even. */
#include "device/cuda/overlap.cuh"

namespace
{

enum { THREADS = 256, TILE = CUDA_EMBED_TILE, COLUMN_THREADS = 128 };
enum { DIGIT_BITS = 9, DIGITS = 1 << DIGIT_BITS };
enum { SORT_THREADS = DIGITS, SORT_WARPS = SORT_THREADS / 32, ITEMS = 4, CHUNK = SORT_THREADS * ITEMS };
static_assert(int(DIGITS) == int(CUDA_EMBED_DIGITS) && int(CHUNK) == int(CUDA_EMBED_CHUNK),
              "the workspace is cut as the sort is");

/* --- forward --------------------------------------------------------------------------------------------- */

template <class T, int N>
__global__ void __launch_bounds__(THREADS)
    gather(const int32_t *ids, const T *table, const T *add, T *y, int64_t rows, int64_t columns, float scale)
{
    constexpr int U = 4;
    int64_t first = (int64_t)blockIdx.x * (THREADS * U) + threadIdx.x, packets = columns / N;
    packet<T, N> x[U], a[U];
    next_may_begin();
    await_previous();
#pragma unroll
    for (int u = 0; u < U; u++) {
        int64_t i = first + u * THREADS, c, r = divide(i, packets, &c);
        if (r >= rows) continue;
        x[u] = fetch<T, N>(table + ids[r] * columns + c * N);
        if (add) a[u] = fetch<T, N>(add + i * N);
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        int64_t i = first + u * THREADS;
        if (i >= rows * packets) continue;
        if (add || scale != 0) {
            float v[N], w[N] = {};
            unpack(x[u], v);
            if (add) unpack(a[u], w);
#pragma unroll
            for (int k = 0; k < N; k++) v[k] = scale != 0 ? v[k] * scale : v[k];
#pragma unroll
            for (int k = 0; k < N; k++) v[k] = add ? v[k] + w[k] : v[k];
            x[u] = pack<T>(v);
        }
        store(y + i * N, x[u]);
    }
}

/* A table [C,V]: a thread has an element. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    gather_turned(const int32_t *ids, const T *table, const T *add, T *y, int64_t count, int64_t columns,
                  int64_t vocabulary, float scale)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, c, r = divide(i, columns, &c);
    next_may_begin();
    await_previous();
    if (i >= count) return;
    float x = number(table + c * vocabulary + ids[r]);
    x = scale != 0 ? x * scale : x;
    put_number(y + i, add ? x + number(add + i) : x);
}

/* --- sorting positions by id ----------------------------------------------------------------------------- */

struct sort_pass {
    const int32_t *ids;
    const int32_t *from; /* positions as the last pass left them, NULL: in order */
    int32_t *to;
    int32_t *counts; /* [chunks][DIGITS] */
    int64_t count;
    int shift;
};

ON_GPU int32_t position_at(const sort_pass &p, int64_t i) { return p.from ? p.from[i] : (int32_t)i; }

ON_GPU int digit_of(const sort_pass &p, int32_t position)
{
    return (int)((unsigned)p.ids[position] >> p.shift) & (DIGITS - 1);
}

/* How often each digit comes in each chunk. */
static __global__ void __launch_bounds__(SORT_THREADS) count_digits(sort_pass p)
{
    __shared__ int32_t here[DIGITS];
    here[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        int64_t i = (int64_t)blockIdx.x * CHUNK + j * SORT_THREADS + threadIdx.x;
        if (i < p.count) atomicAdd(&here[digit_of(p, position_at(p, i))], 1);
    }
    __syncthreads();
    p.counts[(int64_t)blockIdx.x * DIGITS + threadIdx.x] = here[threadIdx.x];
}

/* Where this chunk's items with digit threadIdx.x begin in the sorted order. */
ON_GPU int32_t digit_begin(const sort_pass &p, int32_t *warps)
{
    int32_t before = 0, all = 0;
#pragma unroll 8
    for (int64_t chunk = 0; chunk < gridDim.x; chunk++) {
        int32_t n = p.counts[chunk * DIGITS + threadIdx.x];
        if (chunk < blockIdx.x) before += n;
        all += n;
    }
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int32_t sum = all;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        int32_t other = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    for (int i = 0; i < warp; i++) before += warps[i];
    return before + sum - all;
}

/* Warp w takes items [w, w + 1) * 32 * ITEMS of the chunk in order; the rank of an item among those of its warp
 * with the same digit, and then where those begin, give its place. */
static __global__ void __launch_bounds__(SORT_THREADS) place_items(sort_pass p)
{
    __shared__ int32_t places[SORT_WARPS][DIGITS], warps[SORT_WARPS];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int i = 0; i < SORT_WARPS; i++) places[i][threadIdx.x] = 0;
    int32_t begin = digit_begin(p, warps);
    __syncthreads();
    int32_t position[ITEMS], digit[ITEMS], rank[ITEMS];
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        int64_t i = (int64_t)blockIdx.x * CHUNK + (warp * ITEMS + j) * 32 + lane;
        position[j] = i < p.count ? position_at(p, i) : -1;
        digit[j] = i < p.count ? digit_of(p, position[j]) : DIGITS;
        unsigned same = __match_any_sync(0xffffffffu, digit[j]), below = (1u << lane) - 1;
        rank[j] = 0;
        if (i < p.count) rank[j] = places[warp][digit[j]] + __popc(same & below);
        __syncwarp();
        if (i < p.count && (same & below) == 0) places[warp][digit[j]] += __popc(same);
        __syncwarp();
    }
    __syncthreads();
    for (int i = 0; i < SORT_WARPS; i++) {
        int32_t n = places[i][threadIdx.x];
        places[i][threadIdx.x] = begin;
        begin += n;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < ITEMS; j++)
        if (position[j] >= 0) p.to[places[warp][digit[j]] + rank[j]] = position[j];
}

/* --- summing runs ---------------------------------------------------------------------------------------- */

template <class T, class G> struct runs {
    const int32_t *ids, *order; /* order: positions sorted by id */
    const T *dy;                /* [R,C] */
    G *dw;                      /* [V,C] */
    float *head, *tail;         /* [tiles][C] */
    int64_t count, columns;
    int64_t row_step, column_step; /* of dw */
    float scale;                   /* of dy, 0: none */
};

/* N is 1 for a table [C,V]. */
template <int N, class T, class G>
ON_GPU void add_to_table(const runs<T, G> &r, int32_t id, int64_t column, float (&sum)[N])
{
    float before[N];
    G *to = r.dw + id * r.row_step + column * r.column_step;
    load(to, before);
#pragma unroll
    for (int k = 0; k < N; k++) sum[k] += before[k];
    save(to, sum);
}

template <class T, class G, int N>
ON_GPU void end_run(const runs<T, G> &r, int32_t id, bool came, bool goes, int64_t column, float (&sum)[N])
{
    int64_t at = blockIdx.x * r.columns + column;
    if (came)
        save(r.head + at, sum);
    else if (goes)
        save(r.tail + at, sum);
    else
        add_to_table(r, id, column, sum);
#pragma unroll
    for (int k = 0; k < N; k++) sum[k] = 0;
}

/* Rows are fetched eight at a time, before their places among the runs matter. */
template <class T, class G, int N> __global__ void __launch_bounds__(COLUMN_THREADS) sum_tile(runs<T, G> r)
{
    constexpr int AHEAD = 8;
    __shared__ int32_t ids[TILE + 2], rows[TILE]; /* ids[0] is before the tile, -1 where there is none */
    int64_t first = (int64_t)blockIdx.x * TILE,
            column = ((int64_t)blockIdx.y * COLUMN_THREADS + threadIdx.x) * N;
    int n = (int)(r.count - first < TILE ? r.count - first : TILE);
    for (int i = (int)threadIdx.x; i < n + 2; i += COLUMN_THREADS) {
        int64_t at = first + i - 1;
        int32_t row = at >= 0 && at < r.count ? r.order[at] : -1;
        ids[i] = row >= 0 ? r.ids[row] : -1;
        if (i > 0 && i <= n) rows[i - 1] = row;
    }
    __syncthreads();
    if (column >= r.columns) return;
    float sum[N] = {};
    bool came = ids[0] == ids[1];
    for (int begin = 0; begin < n; begin += AHEAD) {
        packet<T, N> x[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (begin + j < n) x[j] = fetch<T, N>(r.dy + rows[begin + j] * r.columns + column);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            int i = begin + j;
            if (i >= n) break;
            float v[N];
            unpack(x[j], v);
#pragma unroll
            for (int k = 0; k < N; k++) sum[k] = r.scale != 0 ? fmaf(v[k], r.scale, sum[k]) : sum[k] + v[k];
            bool last = i == n - 1, goes = ids[i + 1] == ids[i + 2];
            if (!last && goes) continue;
            end_run<T, G, N>(r, ids[i + 1], came, goes, column, sum);
            came = false;
        }
    }
}

/* The id of sorted place i. */
template <class T, class G> ON_GPU int32_t id_at(const runs<T, G> &r, int64_t i) { return r.ids[r.order[i]]; }

/* Runs that begin in a tile and go on: their tail and the heads that follow. The threads look at COLUMN_THREADS
 * tiles at once for how far the run goes. */
template <class T, class G, int N> __global__ void __launch_bounds__(COLUMN_THREADS) join_tiles(runs<T, G> r)
{
    int64_t first = (int64_t)blockIdx.x * TILE, next = first + TILE;
    int64_t column = ((int64_t)blockIdx.y * COLUMN_THREADS + threadIdx.x) * N;
    if (next >= r.count) return;
    int32_t id = id_at(r, next - 1);
    if (id_at(r, next) != id) return;
    if (first > 0 && id_at(r, first - 1) == id) return; /* began before this tile */
    bool mine = column < r.columns;
    float sum[N] = {};
    if (mine) load(r.tail + blockIdx.x * r.columns + column, sum);
    int found = COLUMN_THREADS;
    for (int64_t tile = blockIdx.x + 1; found == COLUMN_THREADS; tile += COLUMN_THREADS) {
        int64_t at = (tile + threadIdx.x) * TILE;
        found = __syncthreads_count(at < r.count && id_at(r, at) == id);
        if (!mine) continue;
#pragma unroll 8
        for (int i = 0; i < found; i++) {
            float v[N];
            load(r.head + (tile + i) * r.columns + column, v);
#pragma unroll
            for (int k = 0; k < N; k++) sum[k] += v[k];
        }
    }
    if (mine) add_to_table(r, id, column, sum);
}

template <class T, class G, int N> static int run_sums(const struct cuda_queue *queue, const runs<T, G> &r)
{
    dim3 grid((unsigned)parts_of(r.count, TILE), (unsigned)parts_of(r.columns, COLUMN_THREADS * N));
    sum_tile<T, G, N><<<grid, COLUMN_THREADS, 0, stream_of(queue)>>>(r);
    int failed = launched();
    if (failed || grid.x == 1) return failed;
    return start(queue, join_tiles<T, G, N>, grid, COLUMN_THREADS, 0, r);
}

/* --- launching ------------------------------------------------------------------------------------------- */

/* Leaves the positions sorted by id in order[return value]. */
static int sort(const struct cuda_queue *queue, const int32_t *ids, int64_t count, int64_t vocabulary,
                char *work, const struct cuda_embed_places &at, int *failed)
{
    int last = 1;
    sort_pass p = {ids, NULL, NULL, (int32_t *)(work + at.counts), count, 0};
    do {
        last ^= 1;
        p.to = (int32_t *)(work + at.order[last]);
        count_digits<<<(unsigned)parts_of(count, CHUNK), SORT_THREADS, 0, stream_of(queue)>>>(p);
        place_items<<<(unsigned)parts_of(count, CHUNK), SORT_THREADS, 0, stream_of(queue)>>>(p);
        p.from = p.to;
        p.shift += DIGIT_BITS;
    } while (p.shift < 31 && (vocabulary - 1) >> p.shift);
    *failed = launched();
    return last;
}

template <class T, class G>
static int run_backward(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *dw = call_out(call, EMBED_BWD_DW);
    bool turned = call->op->attr.weight_kn;
    int64_t count = tensor_count(call_in(call, EMBED_BWD_IDS)), columns = dw->dim[turned ? 0 : 1],
            vocabulary = dw->dim[turned ? 1 : 0], row_step = turned ? 1 : columns;
    char *work = (char *)call->work;
    struct cuda_embed_places at = cuda_embed_places(count, columns);
    int failed = 0;
    if (tensor_count(dw) == 0) return 0;
    if (!call->accumulate)
        failed = (int)cudaMemsetAsync(call->out[EMBED_BWD_DW], 0, (size_t)tensor_bytes(dw), stream_of(queue));
    if (failed || count == 0) return failed;
    int last = sort(queue, (const int32_t *)call->in[EMBED_BWD_IDS], count, vocabulary, work, at, &failed);
    if (failed) return failed;
    runs<T, G> r = {(const int32_t *)call->in[EMBED_BWD_IDS],
                    (const int32_t *)(work + at.order[last]),
                    (const T *)call->in[EMBED_BWD_DY],
                    (G *)call->out[EMBED_BWD_DW] + call->op->attr.first * row_step,
                    (float *)(work + at.head),
                    (float *)(work + at.tail),
                    count,
                    columns,
                    row_step,
                    turned ? vocabulary : 1,
                    dtype_round(call_in(call, EMBED_BWD_DY)->type, call->op->attr.scale)};
    bool wide = !turned && columns % lanes<T> == 0 && aligned(r.dy, r.dw);
    return wide ? run_sums<T, G, lanes<T>>(queue, r) : run_sums<T, G, 1>(queue, r);
}

template <class T> static int run_turned(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *w = call_in(call, EMBED_W);
    int64_t columns = w->dim[0], count = tensor_count(call_in(call, EMBED_IDS)) * columns;
    const T *table = (const T *)call->in[EMBED_W] + call->op->attr.first;
    float scale = dtype_round(w->type, call->op->attr.scale);
    if (count == 0) return 0;
    return launch(queue, gather_turned<T>, parts_of(count, THREADS), THREADS, 0,
                  (const int32_t *)call->in[EMBED_IDS], table, (const T *)call->in[EMBED_ADD],
                  (T *)call->out[EMBED_Y], count, columns, w->dim[1], scale);
}

template <class T> static int run_forward(const struct cuda_queue *queue, const struct kernel_call *call)
{
    if (call->op->attr.weight_kn) return run_turned<T>(queue, call);
    int64_t rows = tensor_count(call_in(call, EMBED_IDS)), columns = call_in(call, EMBED_W)->dim[1];
    const T *table = (const T *)call->in[EMBED_W] + call->op->attr.first * columns,
            *add = (const T *)call->in[EMBED_ADD];
    const int32_t *ids = (const int32_t *)call->in[EMBED_IDS];
    T *y = (T *)call->out[EMBED_Y];
    bool wide = columns % lanes<T> == 0 && aligned(table, add, y);
    int64_t packets = rows * columns / (wide ? lanes<T> : 1);
    int64_t blocks = parts_of(packets, THREADS * 4);
    float scale = dtype_round(call_in(call, EMBED_W)->type, call->op->attr.scale);
    if (packets == 0) return 0;
    return launch(queue, wide ? gather<T, lanes<T>> : gather<T, 1>, blocks, THREADS, 0, ids, table, add, y,
                  rows, columns, scale);
}

} // namespace

CUDA_BY_TYPE(embed, call_in(call, EMBED_W), run_forward)

int cuda_embed_bwd(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return with_types(
        call_in(call, EMBED_BWD_DY)->type, call_out(call, EMBED_BWD_DW)->type, [&](auto t, auto g) {
            return run_backward<typename decltype(t)::type, typename decltype(g)::type>(queue, call);
        });
}
