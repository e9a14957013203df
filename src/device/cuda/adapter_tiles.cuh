/* adapter_tiles.cuh - adapter_linear of 16-bit numbers on the tensor cores.
 *
 * A block has some lines of W and rows of one adapter (adapter_rows.cuh), which it multiplies in groups of 16. So a matrix is read once for all
 * rows of a block, wherever they stand.
 *
 * x A' has few lines over many columns: the warps of a block share out the columns, and their sums are added in order. u B' has many lines
 * over few columns: each warp has lines of its own. Which of them it is depends on K and M alone, and so does the order of a sum.
 * Either way what comes next is loaded while a warp multiplies, and lines, which are parameters, before the rows are there
 * (overlap.cuh).
 *
 * The products are mma.m16n8k16 (attention_ptx.cuh). Each lane loads 16 bytes of a row and of a line at the same columns, which are
 * the operands of two products: a sum does not mind which of its terms the card calls the first. */
#pragma once

#include "device/cuda/adapter_rows.cuh"
#include "device/cuda/attention_ptx.cuh"
#include "device/cuda/overlap.cuh"

namespace
{

enum {
    GROUP = 16,    /* rows of a product */
    CHUNK = 32,    /* columns of two products */
    NARROW = 8,    /* lines of a product */
    WIDE = 32,     /* lines of a warp that has its own */
    SHORT_K = 128, /* columns, at most, for lines of its own */
    LONG_TILE = 64 /* rows of a tile for them */
};

template <class T> struct tile_type;
template <> struct tile_type<bf16> {
    using type = type_bf16;
};
template <> struct tile_type<f16> {
    using type = type_f16;
};

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
struct row_pair {
    int64_t row[2];
    bool have[2];
    __device__ __forceinline__ row_pair(const block_rows *s, int group)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int at = group + (int)threadIdx.x % 32 / 4 + 8 * i;
            have[i] = at < s->count;
            row[i] = s->first + (have[i] ? s->row[at] : 0);
        }
    }
};

/* The block's warps share out the columns, chunk by chunk in turn. GROUPS of rows and NARROW TILES lines are multiplied at once; AHEAD chunks
 * of a warp are loaded at once. */
template <class T, int GROUPS, int TILES, int AHEAD> struct shared_columns {
    static constexpr int lines = NARROW * TILES, tile = GROUPS > 1 ? GROUP *GROUPS : 0, waves = 0,
                         step = AHEAD * TILE_WARPS, beside = 0;
    using type = typename tile_type<T>::type;
    float sums[TILE_WARPS][GROUP * lines];

    struct batch {
        uint4 w[AHEAD][TILES], x[AHEAD][GROUPS][2];
    };
    struct operands {
        const T *line, *row[GROUPS][2]; /* at the lane's first column; NULL: zeros */
        int64_t left, next;             /* columns from there on; from a line to that NARROW later */
    };

    static __device__ __forceinline__ operands find(const adapted<T> &a, const block_rows *s, int group)
    {
        const int64_t q = threadIdx.x % 4 * 8, top = (int64_t)blockIdx.x * lines;
        operands o;
        o.line = s->slot < 0 ? NULL : a.w + (s->slot * a.m + top + threadIdx.x % 32 / 4) * a.k + q;
        o.left = a.k - q, o.next = NARROW * a.k;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            row_pair pair(s, group + g * GROUP);
#pragma unroll
            for (int i = 0; i < 2; i++)
                o.row[g][i] =
                    o.line && pair.have[i] ? a.x + pair.row[i] * a.x_width + column_of(a, top) + q : NULL;
        }
        return o;
    }

    static __device__ __forceinline__ void load_lines(const operands &o, int64_t from, batch &b)
    {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int64_t c = (from + i * TILE_WARPS) * CHUNK;
#pragma unroll
            for (int t = 0; t < TILES; t++) b.w[i][t] = piece(o.line + t * o.next + c, o.line && c < o.left);
        }
    }

    static __device__ __forceinline__ void load_rows(const operands &o, int64_t from, batch &b)
    {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int64_t c = (from + i * TILE_WARPS) * CHUNK;
#pragma unroll
            for (int g = 0; g < GROUPS; g++)
#pragma unroll
                for (int h = 0; h < 2; h++) b.x[i][g][h] = piece(o.row[g][h] + c, o.row[g][h] && c < o.left);
        }
    }

    static __device__ __forceinline__ void multiply(const batch &b, float (&sum)[GROUPS][TILES][4])
    {
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int g = 0; g < GROUPS; g++)
#pragma unroll
                for (int t = 0; t < TILES; t++)
                    multiply_chunk<type>(sum[g][t], b.x[i][g][0], b.x[i][g][1], b.w[i][t]);
    }

    __device__ __forceinline__ void run(const adapted<T> &a, const block_rows *s)
    {
        const int64_t warp = threadIdx.x / 32, chunks = (a.k + CHUNK - 1) / CHUNK;
        for (int group = 0; group < s->count; group += GROUPS * GROUP) {
            const operands o = find(a, s, group);
            batch even, odd;
            float sum[GROUPS][TILES][4] = {};
            load_lines(o, warp, even), load_lines(o, warp + step, odd);
            if (group == 0) await_previous();
            load_rows(o, warp, even);
            for (int64_t from = warp; from < chunks; from += 2 * step) {
                load_rows(o, from + step, odd);
                multiply(even, sum);
                load_lines(o, from + 2 * step, even), load_rows(o, from + 2 * step, even);
                multiply(odd, sum);
                load_lines(o, from + 3 * step, odd);
            }
#pragma unroll
            for (int g = 0; g < GROUPS; g++)
                if (group + g * GROUP < s->count) put(a, s, group + g * GROUP, sum[g]);
        }
    }

    /* Adds the warps' sums of a group. */
    __device__ __forceinline__ void put(const adapted<T> &a, const block_rows *s, int group,
                                        const float (&sum)[TILES][4])
    {
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        __syncthreads();
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[warp][(lane / 4 + i / 2 * 8) * lines + t * NARROW + lane % 4 * 2 + i % 2] = sum[t][i];
        __syncthreads();
        for (int at = (int)threadIdx.x; at < GROUP * lines; at += TILE_THREADS) {
            int row = group + at / lines;
            if (row >= s->count) return;
            float total = sums[0][at];
#pragma unroll
            for (int i = 1; i < TILE_WARPS; i++) total += sums[i][at];
            int64_t to = (s->first + s->row[row]) * a.m + (int64_t)blockIdx.x * lines + at % lines;
            put_number(a.y + to, a.add ? total + number(a.add + to) : total);
        }
    }
};

/* WIDE lines at a time for each warp, and a group of rows after the other. Lane 4 g + q has lines 8 q to 8 q + 7 of rows g and g + 8, so that it adds
 * and stores 16 bytes at once. TILE: rows of a tile; 0: the block has a row, or rows of a span. GATED: a gate takes the products. */
template <class T, int TILE, bool GATED> struct own_lines {
    static constexpr int lines = WIDE * TILE_WARPS, tile = TILE, beside = 2,
                         waves = TILE ? 4 : 1; /* blocks take lines in turn if they would be more */

    struct place {
        int top, group;
    };
    struct batch {
        uint4 line[4], more[2], gate[2]; /* line: of the first chunk; more: what is added */
    };

    static __device__ __forceinline__ place after(const block_rows *s, const place &p)
    {
        bool last = p.group + GROUP >= s->count;
        return {last ? p.top + (int)gridDim.x * lines : p.top, last ? 0 : p.group + GROUP};
    }

    static __device__ __forceinline__ void load_lines(const adapted<T> &a, const T *w, int top, int c,
                                                      batch &b)
    {
        const int g = (int)threadIdx.x % 32 / 4, k = (int)a.k;
        const bool have = w && top < (int)a.m && c < k;
        const T *first = w + ((int64_t)(top + g / 2 * 8 + g % 2) * k + c);
#pragma unroll
        for (int t = 0; t < 4; t++) b.line[t] = piece(first + 2 * t * k, have);
    }

    static __device__ __forceinline__ void load_more(const adapted<T> &a, const block_rows *s, const place &p,
                                                     batch &b)
    {
        row_pair pair(s, p.group);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int64_t at = pair.row[i] * a.m + p.top + threadIdx.x % 4 * 8;
            const bool have = p.top < (int)a.m && pair.have[i];
            b.more[i] = piece(a.add + at, a.add && have);
            if constexpr (GATED) b.gate[i] = piece(a.gate + at, have);
        }
    }

    __device__ __forceinline__ void run(const adapted<T> &a, const block_rows *s)
    {
        const int q = (int)threadIdx.x % 4 * 8, m = (int)a.m;
        const T *w = s->slot < 0 ? NULL : a.w + s->slot * a.m * a.k;
        place p = {((int)blockIdx.x * TILE_WARPS + (int)threadIdx.x / 32) * WIDE, 0}, next = after(s, p);
        batch even, odd;
        load_lines(a, w, p.top, q, even), load_lines(a, w, next.top, q, odd);
        await_previous();
        if (!GATED && !w && a.add == a.y) return; /* it is there */
        load_more(a, s, p, even);
        while (p.top < m) {
            load_more(a, s, next, odd);
            multiply(a, s, w, p, even);
            p = after(s, next);
            load_lines(a, w, p.top, q, even), load_more(a, s, p, even);
            if (next.top < m) multiply(a, s, w, next, odd);
            next = after(s, p);
            load_lines(a, w, next.top, q, odd);
        }
    }

    static __device__ __forceinline__ void multiply(const adapted<T> &a, const block_rows *s, const T *w,
                                                    const place &p, batch &b)
    {
        using type = typename tile_type<T>::type;
        const int q = (int)threadIdx.x % 4 * 8, k = (int)a.k;
        const T *x = a.x + column_of(a, p.top) + q;
        row_pair pair(s, p.group);
        float sum[4][4] = {};
        for (int c = 0; c < k; c += CHUNK) {
            bool have = w && c + q < k;
            if (c) load_lines(a, w, p.top, c + q, b);
            uint4 low = piece(x + pair.row[0] * a.x_width + c, have && pair.have[0]),
                  high = piece(x + pair.row[1] * a.x_width + c, have && pair.have[1]);
#pragma unroll
            for (int t = 0; t < 4; t++) multiply_chunk<type>(sum[t], low, high, b.line[t]);
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (pair.have[i]) put(a, sum, i, pair.row[i] * a.m + p.top + q, b.more[i], b.gate[i]);
    }

    static __device__ __forceinline__ void put(const adapted<T> &a, const float (&sum)[4][4], int i,
                                               int64_t to, const uint4 &more, const uint4 &gate)
    {
        float v[8], other[8];
        unpack(packet<T, 8>{{more.x, more.y, more.z, more.w}}, other);
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = sum[k / 2][2 * i + k % 2] + other[k];
        if constexpr (GATED) {
            unpack(pack<T>(v), v);
            unpack(packet<T, 8>{{gate.x, gate.y, gate.z, gate.w}}, other);
#pragma unroll
            for (int k = 0; k < 8; k++) v[k] = divide_for<T>(other[k] * v[k], 1.0f + exp_for<T>(-other[k]));
        }
        store(a.y + to, pack<T>(v));
    }
};

/* alone: each block has one row. */
template <class T, class W>
__global__ void __launch_bounds__(TILE_THREADS, W::beside) multiply_tiles(adapted<T> a, bool alone)
{
    __shared__ block_rows s;
    __shared__ W work;
    next_may_begin();
    if constexpr (W::tile > 0) {
        __shared__ tile_search f;
        take_tile(a, &f, &s, W::tile);
    } else if (alone)
        take_row(a, &s);
    else
        take_from_span(a, &s);
    if (s.slot == NO_SLOT)
        await_previous();
    else
        work.run(a, &s);
}

/* Blocks that a card of 9.0 has at once: with more, later ones look for their rows when it is their turn. */
enum { AT_ONCE = 264 };

template <class T, class W> int run_tiles(const struct cuda_queue *queue, const adapted<T> &a)
{
    bool alone = !W::tile && 2 * a.rows <= a.slots;
    int64_t y = alone ? a.rows : a.slots + 1, z = 1, x = parts_of(a.m, W::lines);
    if constexpr (W::tile > 0) y = a.rows / W::tile + fewest(a.rows, a.slots + 1);
    if (!W::tile && !alone) z = parts_of(a.rows, SPAN);
    if (W::waves) x = fewest(x, y * z < W::waves * AT_ONCE ? W::waves * AT_ONCE / (y * z) : 1);
    return launch(queue, multiply_tiles<T, W>, dim3((unsigned)x, (unsigned)y, (unsigned)z), TILE_THREADS, 0,
                  a, alone);
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

template <class T, bool GATED>
int own_lines_run(const struct cuda_queue *queue, const adapted<T> &a, bool tiles)
{
    return tiles ? run_tiles<T, own_lines<T, LONG_TILE, GATED>>(queue, a)
                 : run_tiles<T, own_lines<T, 0, GATED>>(queue, a);
}

/* A gate: only with lines of its own. */
template <class T> int adapter_tiles_run(const struct cuda_queue *queue, const adapted<T> &a)
{
    bool many = a.rows > SPANNED || (a.rows >= LONG_TILE && a.rows >= GROUP * a.slots);
    bool tiles = many && a.slots <= SLOTS_MOST;
    if (a.gate) return own_lines_run<T, true>(queue, a, tiles);
    if (has_own_lines(a)) return own_lines_run<T, false>(queue, a, tiles);
    if (!tiles) return run_tiles<T, shared_columns<T, 1, 1, 4>>(queue, a);
    if (ends_suit(a, 6 * NARROW)) return run_tiles<T, shared_columns<T, 2, 6, 1>>(queue, a);
    if (ends_suit(a, 2 * NARROW)) return run_tiles<T, shared_columns<T, 2, 2, 2>>(queue, a);
    return run_tiles<T, shared_columns<T, 2, 1, 2>>(queue, a);
}

} // namespace
