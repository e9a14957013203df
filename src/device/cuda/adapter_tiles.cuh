/* adapter_tiles.cuh - adapter_linear of 16-bit numbers on the tensor cores.
 *
 * A block has some lines of W and the rows of one adapter after another: it looks through a span of rows for those of its adapter, and multiplies
 * them in groups of 16. So a matrix is read once for all rows that use it, wherever they stand. There are three ways to share out rows:
 *
 *     few rows for the slots      a block has one row and the slot of that row
 *     some rows for each slot     a block has one slot and looks through SPAN rows (decoding many requests)
 *     many rows for each slot     a block has PROMPT_SPAN rows, and takes the slots that occur in them in turn (prompts)
 *
 * x A' has few lines over many columns: the warps of a block share out the columns, and their sums are added in order. u B' has many lines
 * over few columns: each warp has lines of its own. Which of them it is depends on K and M alone, and so does the order of a sum.
 *
 * The products are mma.m16n8k16 (attention_ptx.cuh). Each lane loads 16 bytes of a row and of a line at the same columns, which are
 * the operands of two products: a sum does not mind which of its terms the card calls the first. */
#pragma once

#include "device/cuda/attention_ptx.cuh"
#include "device/cuda/overlap.cuh"

template <class T> struct adapted {
    const T *x, *w, *add;
    const int *slot;
    T *y;
    int64_t rows, m, k, x_width;
    int64_t ends[OP_LINE_PARTS]; /* lines where parts end; one part: m in the first */
};

/* The first column of x that a line reads. */
template <class T> ON_GPU int64_t column_of(const adapted<T> &a, int64_t line)
{
    return line < a.ends[0] ? 0 : line < a.ends[1] ? a.k : 2 * a.k;
}

namespace
{

enum {
    TILE_WARPS = 8,
    TILE_THREADS = 32 * TILE_WARPS,
    GROUP = 16,    /* rows of a product */
    CHUNK = 32,    /* columns of two products */
    NARROW = 8,    /* lines of a block that shares out columns */
    WIDE = 32,     /* lines of a warp that has its own */
    SHORT_K = 128, /* columns, at most, for lines of its own */
    AHEAD = 8,     /* chunks whose lines are loaded at once */
    SPAN = TILE_THREADS,
    PROMPT_SPAN = 64,
    NO_SLOT = 1 << 30
};

template <class T> struct tile_type;
template <> struct tile_type<bf16> {
    using type = type_bf16;
};
template <> struct tile_type<f16> {
    using type = type_f16;
};

struct tile_rows {
    int64_t first; /* of the span */
    int count;     /* rows of the slot */
    int row[SPAN]; /* counted from the first */
    int warps[TILE_WARPS];
    int next; /* the least slot that has not been taken */
};

template <class T> ON_GPU int slot_in_span(const adapted<T> &a, int64_t first, int span)
{
    int64_t row = first + threadIdx.x;
    return (int)threadIdx.x < span && row < a.rows ? max(a.slot[row], -1) : NO_SLOT;
}

/* The least slot of the span after `last`; NO_SLOT: there is none. */
ON_GPU int next_slot(struct tile_rows *s, int mine, int last)
{
    __syncthreads();
    if (threadIdx.x == 0) s->next = NO_SLOT;
    __syncthreads();
    if (mine != NO_SLOT && mine > last) atomicMin(&s->next, mine);
    __syncthreads();
    return s->next;
}

/* Lists the threads' rows that have the slot, in order. */
ON_GPU void list_rows(struct tile_rows *s, bool has)
{
    unsigned all = __ballot_sync(0xffffffffu, has);
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, before = 0, total = 0;
    if (lane == 0) s->warps[warp] = __popc(all);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILE_WARPS; i++) before += i < warp ? s->warps[i] : 0, total += s->warps[i];
    if (has) s->row[before + __popc(all & ((1u << lane) - 1))] = (int)threadIdx.x;
    if (threadIdx.x == 0) s->count = total;
    __syncthreads();
}

template <class T> ON_GPU uint4 piece(const T *at, bool have)
{
    return have ? *reinterpret_cast<const uint4 *>(at) : make_uint4(0, 0, 0, 0);
}

/* Both products of a chunk. */
template <class type>
ON_GPU void multiply_chunk(float (&sum)[4], const uint4 &low, const uint4 &high, const uint4 &line)
{
    const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
    type::multiply(sum, first, line.x, line.y);
    type::multiply(sum, second, line.z, line.w);
}

/* The rows of a lane: number lane / 4 of the group, and 8 later. */
template <class T> struct tile_pair {
    int64_t row[2];
    bool have[2];
    __device__ __forceinline__ tile_pair(const adapted<T> &, const tile_rows *s, int group)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int at = group + (int)threadIdx.x % 32 / 4 + 8 * i;
            have[i] = at < s->count;
            row[i] = s->first + (have[i] ? s->row[at] : 0);
        }
    }
};

/* NARROW lines; the block's warps share out the columns. */
template <class T> struct shared_columns {
    static constexpr int lines = NARROW;
    static constexpr bool any_blocks = false;
    float sums[TILE_WARPS][GROUP * NARROW];

    /* The lines of up to AHEAD chunks of this warp from chunk `from` on. */
    __device__ __forceinline__ void load_lines(const adapted<T> &a, const T *line, int64_t from,
                                               uint4 (&w)[AHEAD]) const
    {
        int q = (int)threadIdx.x % 4 * 8;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int64_t c = (from + i * TILE_WARPS) * CHUNK + q;
            w[i] = piece(line + c, line && c < a.k);
        }
    }

    __device__ __forceinline__ void run(const adapted<T> &a, const tile_rows *s, int slot, bool first_time)
    {
        using type = typename tile_type<T>::type;
        int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, q = lane % 4 * 8;
        int64_t top = (int64_t)blockIdx.x * NARROW, column = column_of(a, top), chunks = parts(a.k, CHUNK);
        const T *line = slot < 0 ? NULL : a.w + (slot * a.m + top + lane / 4) * a.k;
        for (int group = 0; group < s->count; group += GROUP) {
            tile_pair<T> pair(a, s, group);
            const T *x0 = a.x + pair.row[0] * a.x_width + column,
                    *x1 = a.x + pair.row[1] * a.x_width + column;
            float sum[4] = {};
            for (int64_t from = warp; from < chunks; from += AHEAD * TILE_WARPS) {
                uint4 w[AHEAD];
                load_lines(a, line, from, w);
                if (first_time) await_previous(), first_time = false;
#pragma unroll
                for (int i = 0; i < AHEAD; i++) {
                    int64_t c = (from + i * TILE_WARPS) * CHUNK + q;
                    bool have = line && c < a.k;
                    multiply_chunk<type>(sum, piece(x0 + c, have && pair.have[0]),
                                         piece(x1 + c, have && pair.have[1]), w[i]);
                }
            }
            if (first_time) await_previous(), first_time = false;
            __syncthreads();
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[warp][(lane / 4 + i / 2 * 8) * NARROW + lane % 4 * 2 + i % 2] = sum[i];
            __syncthreads();
            put(a, s, group, top);
        }
    }

    __device__ __forceinline__ void put(const adapted<T> &a, const tile_rows *s, int group, int64_t top) const
    {
        int at = (int)threadIdx.x, row = at / NARROW;
        if (at >= GROUP * NARROW || group + row >= s->count) return;
        float sum = sums[0][at];
#pragma unroll
        for (int i = 1; i < TILE_WARPS; i++) sum += sums[i][at];
        int64_t to = (s->first + s->row[group + row]) * a.m + top + at % NARROW;
        put_number(a.y + to, a.add ? sum + number(a.add + to) : sum);
    }

    static __device__ __forceinline__ int64_t parts(int64_t n, int64_t of) { return (n + of - 1) / of; }
};

/* WIDE lines at a time for each warp. Lane 4 g + q has lines 8 q to 8 q + 7 of rows g and g + 8, so that it adds and stores 16 bytes at once. While
 * lines are multiplied, the warp's next ones are loaded. */
template <class T> struct own_lines {
    static constexpr int lines = WIDE * TILE_WARPS;
    static constexpr bool any_blocks =
        true; /* blocks may be fewer than lines ask for, and take them in turn */

    /* A chunk of the lines from `top` on; w: of the slot, NULL: zeros. */
    static __device__ __forceinline__ void load_lines(const adapted<T> &a, const T *w, int64_t top, int64_t c,
                                                      uint4 (&line)[4])
    {
        int g = (int)threadIdx.x % 32 / 4;
        const T *first = w + (top + g / 2 * 8 + g % 2) * a.k + c;
#pragma unroll
        for (int t = 0; t < 4; t++) line[t] = piece(first + 2 * t * a.k, w && top < a.m && c < a.k);
    }

    __device__ __forceinline__ void run(const adapted<T> &a, const tile_rows *s, int slot, bool first_time)
    {
        const int q = (int)threadIdx.x % 4 * 8;
        const int64_t begin = ((int64_t)blockIdx.x * TILE_WARPS + threadIdx.x / 32) * WIDE,
                      step = (int64_t)gridDim.x * lines;
        const T *w = slot < 0 ? NULL : a.w + slot * a.m * a.k;
        for (int group = 0; group < s->count; group += GROUP) {
            tile_pair<T> pair(a, s, group);
            uint4 line[4], next[4];
            load_lines(a, w, begin, q, line);
            if (first_time) await_previous(), first_time = false;
            for (int64_t top = begin; top < a.m; top += step) {
                load_lines(a, w, top + step, q, next);
                multiply(a, pair, w, top, line);
#pragma unroll
                for (int t = 0; t < 4; t++) line[t] = next[t];
            }
        }
    }

    /* `line` has the first chunk. */
    __device__ __forceinline__ void multiply(const adapted<T> &a, const tile_pair<T> &pair, const T *w,
                                             int64_t top, uint4 (&line)[4])
    {
        using type = typename tile_type<T>::type;
        const int q = (int)threadIdx.x % 4 * 8;
        const T *x = a.x + column_of(a, top);
        uint4 more[2];
        float sum[4][4] = {};
#pragma unroll
        for (int i = 0; i < 2; i++)
            more[i] = piece(a.add + pair.row[i] * a.m + top + q, a.add && pair.have[i]);
        for (int64_t c = q; c - q < a.k; c += CHUNK) {
            bool have = w && c < a.k;
            if (c != q) load_lines(a, w, top, c, line);
            uint4 low = piece(x + pair.row[0] * a.x_width + c, have && pair.have[0]),
                  high = piece(x + pair.row[1] * a.x_width + c, have && pair.have[1]);
#pragma unroll
            for (int t = 0; t < 4; t++) multiply_chunk<type>(sum[t], low, high, line[t]);
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (pair.have[i]) put(a, sum, i, pair.row[i] * a.m + top + q, more[i]);
    }

    __device__ __forceinline__ void put(const adapted<T> &a, const float (&sum)[4][4], int i, int64_t to,
                                        const uint4 &more) const
    {
        float v[8], plus[8];
        unpack(packet<T, 8>{{more.x, more.y, more.z, more.w}}, plus);
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = sum[k / 2][2 * i + k % 2] + plus[k];
        store(a.y + to, pack<T>(v));
    }
};

/* How rows are shared out: blockIdx.z has `span` rows; blockIdx.y is a slot, the last one for rows without, or there is but one and all slots are taken. */
struct sharing {
    int span;
    int slots; /* 0: all */
};

template <class T, class W>
__global__ void __launch_bounds__(TILE_THREADS) multiply_tiles(adapted<T> a, sharing h)
{
    __shared__ tile_rows s;
    __shared__ W work;
    next_may_begin();
    int64_t first = (int64_t)blockIdx.z * h.span;
    int mine = slot_in_span(a, first, h.span);
    bool first_time = true;
    if (threadIdx.x == 0) s.first = first;
    int slot = !h.slots ? next_slot(&s, mine, -2) : (int)blockIdx.y == h.slots ? -1 : (int)blockIdx.y;
    while (slot != NO_SLOT) {
        list_rows(&s, mine == slot);
        if (s.count) work.run(a, &s, slot, first_time), first_time = false;
        slot = h.slots ? NO_SLOT : next_slot(&s, mine, slot);
    }
    if (first_time) await_previous();
}

/* Blocks that a card of 9.0 has at once: with more, later ones look for their rows when it is their turn. */
enum { AT_ONCE = 264 };

template <class T, class W>
int run_tiles(const struct cuda_queue *queue, const adapted<T> &a, const sharing &h)
{
    int64_t y = h.slots ? h.slots + 1 : 1, z = parts_of(a.rows, h.span), x = parts_of(a.m, W::lines);
    if (W::any_blocks && y * z < AT_ONCE) x = fewest(x, AT_ONCE / (y * z));
    if (W::any_blocks && y * z >= AT_ONCE) x = 1;
    return launch(queue, multiply_tiles<T, W>, dim3((unsigned)x, (unsigned)y, (unsigned)z), TILE_THREADS, 0,
                  a, h);
}

template <class T> bool ends_suit(const adapted<T> &a, int lines)
{
    for (int p = 0; p < OP_LINE_PARTS; p++)
        if (a.ends[p] % lines) return false;
    return a.m % lines == 0;
}

template <class T> bool has_own_lines(const adapted<T> &a) { return a.k <= SHORT_K && ends_suit(a, WIDE); }

template <class T> bool adapter_tiles_suit(const adapted<T> &a)
{
    return a.k % 8 == 0 && a.x_width % 8 == 0 && ends_suit(a, NARROW) && aligned(a.x, a.w, a.add, a.y);
}

template <class T> int adapter_tiles_run(const struct cuda_queue *queue, const adapted<T> &a, int64_t slots)
{
    sharing h = {SPAN, (int)slots};
    if (2 * a.rows <= slots) h = {1, 0};
    if (a.rows >= 16 * slots) h = {PROMPT_SPAN, 0};
    return has_own_lines(a) ? run_tiles<T, own_lines<T>>(queue, a, h)
                            : run_tiles<T, shared_columns<T>>(queue, a, h);
}

} // namespace
