/* adapter_linear.cu - products of rows with the matrix of their adapter.
 *
 * Two shapes occur: few lines over many columns (x A'), and many lines over few columns (u B' + y). The tensor cores multiply 16-bit numbers
 * (adapter_tiles.cuh): in the first shape the warps of a block share out the columns, and their sums are added in order; in the second each warp
 * has lines of its own. Other numbers, and shapes that do not suit, have a warp for each line in the first shape and a thread in the second, with up
 * to ROWS neighbouring rows at once. The order of a sum depends on K and M alone.
 *
 * When requests are decoded both products are one launch (adapter_pair.cu). */
#include "device/cuda/adapter_tiles.cuh"

namespace
{

enum { THREADS = 128, ROWS = 8, SHORT = 64 };

/* The rows from `first` on, below `end`, that have the slot of the first. */
template <class T> ON_GPU int64_t run_end(const adapted<T> &a, int64_t first, int64_t end)
{
    int64_t next = first + 1;
    while (next < end && a.slot[next] == a.slot[first]) next++;
    return next;
}

template <class T> ON_GPU void put_sum(const adapted<T> &a, int64_t row, int64_t line, float sum)
{
    int64_t at = row * a.m + line;
    put_number(a.y + at, a.add ? sum + number(a.add + at) : sum);
}

/* LANES threads have a line: a warp, or one. */
template <class T, int N, int LANES> __global__ void __launch_bounds__(THREADS) multiply(adapted<T> a)
{
    int64_t line = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / LANES;
    int64_t end = min(a.rows, ((int64_t)blockIdx.y + 1) * ROWS);
    int lane = (int)threadIdx.x % LANES;
    if (line >= a.m) return;
    for (int64_t row = (int64_t)blockIdx.y * ROWS, next; row < end; row = next) {
        next = run_end(a, row, end);
        float sum[ROWS] = {};
        if (a.slot[row] >= 0) {
            const T *w = a.w + (a.slot[row] * a.m + line) * a.k;
            const T *x = a.x + row * a.x_width + column_of(a, line);
            for (int64_t c = lane * N; c < a.k; c += LANES * N) {
                float v[N];
                load(w + c, v);
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
                    float u[N];
                    if (row + i >= next) break;
                    load(x + i * a.x_width + c, u);
#pragma unroll
                    for (int j = 0; j < N; j++) sum[i] = fmaf(u[j], v[j], sum[i]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (row + i >= next) break;
            float total = LANES > 1 ? warp_sum(sum[i]) : sum[i];
            if (lane == 0) put_sum(a, row + i, line, total);
        }
    }
}

template <class T, int N, int LANES>
static int launch_rows(const struct cuda_queue *queue, const adapted<T> &a)
{
    dim3 blocks((unsigned)parts_of(a.m * LANES, THREADS), (unsigned)parts_of(a.rows, ROWS));
    return start(queue, multiply<T, N, LANES>, blocks, THREADS, 0, a);
}

template <class T, int N> static int launch_by_width(const struct cuda_queue *queue, const adapted<T> &a)
{
    return a.k <= SHORT ? launch_rows<T, N, 1>(queue, a) : launch_rows<T, N, 32>(queue, a);
}

/* --- on the tensor cores ------------------------------------------------------------------------------------- */

enum { GROUPS = PROMPT_SPAN / GROUP };

/* TILES tiles of lines; the warps of the block share out the columns. */
template <class T, int TILES> struct shared_columns {
    static constexpr int lines = TILES * TILE_LINES, resident = 1;
    float sums[TILE_WARPS][GROUP * lines];

    __device__ __forceinline__ void run(const adapted<T> &a, const tile_rows *s, int slot)
    {
        int warp = (int)threadIdx.x / 32;
        int64_t top = (int64_t)blockIdx.x * lines, column = column_of(a, top);
        const T *w = slot < 0 ? NULL : a.w + slot * a.m * a.k;
        for (int group = 0; group < s->count; group += GROUPS * GROUP) {
            float sum[GROUPS][TILES][4] = {};
            struct tile_pair pair[GROUPS];
#pragma unroll
            for (int i = 0; i < GROUPS; i++) pair[i] = pair_of(s, group + i * GROUP);
#pragma unroll 2
            for (int64_t from = warp * CHUNK; from < a.k; from += TILE_WARPS * CHUNK) {
                int64_t c = from + (int)threadIdx.x % 4 * 8;
                uint4 line[TILES];
                load_lines<T, TILES>(w, a.k, top, a.m, c, line);
#pragma unroll
                for (int i = 0; i < GROUPS; i++)
                    multiply_lines<T, TILES>(sum[i], a.x + column + c, a.x_width, pair[i], w && c < a.k,
                                             line);
            }
#pragma unroll
            for (int i = 0; i < GROUPS; i++) {
                __syncthreads();
                put_sums<TILES>(sums[warp], sum[i]);
                __syncthreads();
                put(a, s, group + i * GROUP, top);
            }
        }
    }

    __device__ __forceinline__ void put(const adapted<T> &a, const tile_rows *s, int group, int64_t top) const
    {
        for (int at = (int)threadIdx.x; at < GROUP * lines; at += TILE_THREADS) {
            int row = group + at / lines;
            int64_t line = top + at % lines;
            if (row >= s->count || line >= a.m) continue;
            float sum = sums[0][at];
#pragma unroll
            for (int i = 1; i < TILE_WARPS; i++) sum += sums[i][at];
            put_sum(a, s->first + s->row[row], line, sum);
        }
    }
};

/* WIDE lines for each warp. */
template <class T> struct own_lines {
    static constexpr int lines = WIDE * TILE_WARPS, resident = 2;

    __device__ __forceinline__ void run(const adapted<T> &a, const tile_rows *s, int slot)
    {
        int64_t top = ((int64_t)blockIdx.x * TILE_WARPS + threadIdx.x / 32) * WIDE;
        if (top >= a.m) return;
        const T *w = slot < 0 ? NULL : a.w + (slot * a.m + top) * a.k, *x = a.x + column_of(a, top);
        for (int group = 0; group < s->count; group += GROUP) {
            struct tile_pair p = pair_of(s, group);
            float sum[4][4] = {};
            uint4 more[2];
#pragma unroll
            for (int i = 0; i < 2; i++)
                more[i] = piece(a.add + p.row[i] * a.m + top + (int)threadIdx.x % 4 * 8, a.add && p.have[i]);
            multiply_wide(sum, w, a.k, x + p.row[0] * a.x_width, x + p.row[1] * a.x_width, p.have[0],
                          p.have[1]);
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (p.have[i]) put_wide(a, sum, i, p.row[i], top, more[i]);
        }
    }
};

template <class T, class W>
__global__ void __launch_bounds__(TILE_THREADS, W::resident) multiply_tiles(adapted<T> a, adapter_sharing h)
{
    __shared__ tile_rows s;
    __shared__ W work;
    next_may_begin();
    int mine = slot_in_span(a.slot, a.rows, (int64_t)blockIdx.z * h.span, h.span);
    if (threadIdx.x == 0) s.first = (int64_t)blockIdx.z * h.span;
    await_previous();
    for (int slot = first_slot(&s, mine, h); slot != NO_SLOT;
         slot = h.slots ? NO_SLOT : next_slot(&s, mine, slot)) {
        list_rows(&s, mine == slot);
        work.run(a, &s, slot);
    }
}

template <class T, class W>
static int run_tiles(const struct cuda_queue *queue, const adapted<T> &a, const adapter_sharing &h)
{
    dim3 blocks((unsigned)parts_of(a.m, W::lines), (unsigned)(h.slots ? h.slots + 1 : 1),
                (unsigned)parts_of(a.rows, h.span));
    return launch(queue, multiply_tiles<T, W>, blocks, TILE_THREADS, 0, a, h);
}

/* Lines of a block lie in one part. */
template <class T>
static int run_on_tensor_cores(const struct cuda_queue *queue, const adapted<T> &a, int64_t slots)
{
    struct adapter_sharing h = adapter_sharing_of(a.rows, slots);
    if (adapter_is_wide(a)) return run_tiles<T, own_lines<T>>(queue, a, h);
    if (a.m == 48 && ends_suit(a, 48)) return run_tiles<T, shared_columns<T, 6>>(queue, a, h);
    if (ends_suit(a, 32)) return run_tiles<T, shared_columns<T, 4>>(queue, a, h);
    if (ends_suit(a, 16)) return run_tiles<T, shared_columns<T, 2>>(queue, a, h);
    return run_tiles<T, shared_columns<T, 1>>(queue, a, h);
}

template <class T> static int run(const struct cuda_queue *queue, const struct kernel_call *call)
{
    adapted<T> a = adapted_of<T>(call);
    if constexpr (sizeof(T) == 2)
        if (adapter_tiles_suit(a))
            return run_on_tensor_cores(queue, a, call_in(call, ADAPTER_LINEAR_W)->dim[0]);
    bool whole = a.k % lanes<T> == 0 && a.x_width % lanes<T> == 0 && aligned(a.x, a.w);
    return whole ? launch_by_width<T, lanes<T>>(queue, a) : launch_by_width<T, 1>(queue, a);
}

} // namespace

CUDA_BY_TYPE(adapter_linear, call_in(call, ADAPTER_LINEAR_X), run)
