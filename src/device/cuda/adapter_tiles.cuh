/* adapter_tiles.cuh - adapter_linear of 16-bit numbers on the tensor cores.
 *
 * A block looks through a span of rows for those of one adapter, and multiplies them in groups of 16. So a matrix is read once for all rows that use
 * it, wherever they stand. There are three ways to share out rows:
 *
 *     few rows for the slots      a block has one row and the slot of that row
 *     some rows for each slot     a block has one slot and looks through SPAN rows (decoding many requests)
 *     many rows for each slot     a block has PROMPT_SPAN rows, and takes the slots that occur in them in turn (prompts)
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

template <class T> static inline adapted<T> adapted_of(const struct kernel_call *call)
{
    const struct tensor *w = call_in(call, ADAPTER_LINEAR_W);
    const struct op_lines *parts = call->op->attr.lines;
    adapted<T> a = {};
    a.x = (const T *)call->in[ADAPTER_LINEAR_X], a.w = (const T *)call->in[ADAPTER_LINEAR_W];
    a.add = (const T *)call->in[ADAPTER_LINEAR_ADD], a.slot = (const int *)call->in[ADAPTER_LINEAR_SLOT];
    a.y = (T *)call->out[ADAPTER_LINEAR_Y];
    a.rows = tensor_count(call_in(call, ADAPTER_LINEAR_SLOT)), a.m = w->dim[1], a.k = w->dim[2];
    a.x_width = tensor_count(call_in(call, ADAPTER_LINEAR_X)) / a.rows;
    int64_t line = 0;
    for (int p = 0; p < OP_LINE_PARTS; p++) line += parts[p].lines, a.ends[p] = parts[0].lines ? line : a.m;
    return a;
}

/* The first column of x that a line reads. */
template <class T> ON_GPU int64_t column_of(const adapted<T> &a, int64_t line)
{
    return line < a.ends[0] ? 0 : line < a.ends[1] ? a.k : 2 * a.k;
}

/* How rows are shared out: blockIdx.z has `span` rows. With slots, blockIdx.y is a slot, and the last one is for rows without a slot; with 0 of
 * them all slots are taken in turn. */
struct adapter_sharing {
    int span, slots;
};

enum {
    TILE_WARPS = 8,
    TILE_THREADS = 32 * TILE_WARPS,
    GROUP = 16,     /* rows of a product */
    TILE_LINES = 8, /* lines of a product */
    CHUNK = 32,     /* columns of two products */
    WIDE = 32,      /* lines of four products */
    SPAN = TILE_THREADS,
    PROMPT_SPAN = 32,
    NO_SLOT = 1 << 30
};

static inline struct adapter_sharing adapter_sharing_of(int64_t rows, int64_t slots)
{
    if (2 * rows <= slots) return {1, 0};
    if (rows >= 16 * slots) return {PROMPT_SPAN, 0};
    return {SPAN, (int)slots};
}

template <class T> struct tile_type;
template <> struct tile_type<bf16> {
    using type = type_bf16;
};
template <> struct tile_type<f16> {
    using type = type_f16;
};

/* --- the rows of a slot, in shared memory ------------------------------------------------------------------- */

struct tile_rows {
    int64_t first; /* of the span */
    int count;     /* rows of the slot */
    int row[SPAN]; /* counted from the first */
    int warps[TILE_WARPS];
    int next; /* the least slot that has not been taken */
};

/* The slot of the thread's row of the span, -1 if it has none; NO_SLOT: the thread has no row. */
ON_GPU int slot_in_span(const int *slots, int64_t rows, int64_t first, int span)
{
    int64_t row = first + threadIdx.x;
    return (int)threadIdx.x < span && row < rows ? max(slots[row], -1) : NO_SLOT;
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

ON_GPU int first_slot(struct tile_rows *s, int mine, const struct adapter_sharing &h)
{
    if (!h.slots) return next_slot(s, mine, -2);
    return (int)blockIdx.y == h.slots ? -1 : (int)blockIdx.y;
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

/* The rows of a lane: number lane / 4 of the group, and 8 later. */
struct tile_pair {
    int64_t row[2];
    bool have[2];
};

ON_GPU struct tile_pair pair_of(const struct tile_rows *s, int group)
{
    struct tile_pair p;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int at = group + (int)threadIdx.x % 32 / 4 + 8 * i;
        p.have[i] = at < s->count;
        p.row[i] = s->first + (p.have[i] ? s->row[at] : 0);
    }
    return p;
}

/* --- products ----------------------------------------------------------------------------------------------- */

template <class T> ON_GPU uint4 piece(const T *at, bool have)
{
    return have ? *reinterpret_cast<const uint4 *>(at) : make_uint4(0, 0, 0, 0);
}

/* Both products of a chunk. */
template <class T>
ON_GPU void multiply_chunk(float (&sum)[4], const uint4 &low, const uint4 &high, const uint4 &line)
{
    using type = typename tile_type<T>::type;
    const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
    type::multiply(sum, first, line.x, line.y);
    type::multiply(sum, second, line.z, line.w);
}

/* Lines of a chunk: TILES tiles from line `top` on, below `end`. w NULL: zeros. */
template <class T, int TILES>
ON_GPU void load_lines(const T *w, int64_t k, int64_t top, int64_t end, int64_t column, uint4 (&line)[TILES])
{
    int64_t first = top + (int)threadIdx.x % 32 / 4;
#pragma unroll
    for (int t = 0; t < TILES; t++)
        line[t] =
            piece(w + (first + TILE_LINES * t) * k + column, w && column < k && first + TILE_LINES * t < end);
}

template <class T, int TILES>
ON_GPU void multiply_lines(float (&sum)[TILES][4], const T *x, int64_t width, const struct tile_pair &p,
                           bool have, const uint4 (&line)[TILES])
{
    uint4 low = piece(x + p.row[0] * width, have && p.have[0]),
          high = piece(x + p.row[1] * width, have && p.have[1]);
#pragma unroll
    for (int t = 0; t < TILES; t++) multiply_chunk<T>(sum[t], low, high, line[t]);
}

/* Sums of a warp, [GROUP][TILES x TILE_LINES]. */
template <int TILES> ON_GPU void put_sums(float *to, const float (&sum)[TILES][4])
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[(lane / 4 + i / 2 * 8) * TILES * TILE_LINES + t * TILE_LINES + lane % 4 * 2 + i % 2] =
                sum[t][i];
}

/* WIDE lines from `w` on, with the rows' numbers from `low` and `high` on. Tile t has lines 8 q + 2 t and 8 q + 2 t + 1 for q = 0..3, so that
 * lane 4 g + q ends up with lines 8 q to 8 q + 7 of rows g and g + 8. */
template <class T>
ON_GPU void multiply_wide(float (&sum)[4][4], const T *w, int64_t k, const T *low, const T *high,
                          bool have_low, bool have_high)
{
    int lane = (int)threadIdx.x % 32, g = lane / 4;
    const T *first = w + (g / 2 * 8 + g % 2) * k;
    for (int64_t from = 0; from < k; from += CHUNK) {
        int64_t c = from + lane % 4 * 8;
        bool have = w && c < k;
        uint4 line[4], a = piece(low + c, have && have_low), b = piece(high + c, have && have_high);
#pragma unroll
        for (int t = 0; t < 4; t++) line[t] = piece(first + 2 * t * k + c, have);
#pragma unroll
        for (int t = 0; t < 4; t++) multiply_chunk<T>(sum[t], a, b, line[t]);
    }
}

/* Stores what multiply_wide left in a lane for its row i, with `more` added; top: the first of the lines. */
template <class T>
ON_GPU void put_wide(const adapted<T> &a, const float (&sum)[4][4], int i, int64_t row, int64_t top,
                     const uint4 &more)
{
    float v[8], plus[8];
    unpack(packet<T, 8>{{more.x, more.y, more.z, more.w}}, plus);
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = sum[k / 2][2 * i + k % 2] + plus[k];
    store(a.y + row * a.m + top + (int)threadIdx.x % 4 * 8, pack<T>(v));
}

/* --- which shapes suit --------------------------------------------------------------------------------------- */

enum { SHORT_K = 128 /* columns, at most, of lines that a warp has to itself */ };

template <class T> static inline bool ends_suit(const adapted<T> &a, int lines)
{
    for (int p = 0; p < OP_LINE_PARTS; p++)
        if (a.ends[p] % lines) return false;
    return a.m % lines == 0;
}

template <class T> static inline bool adapter_tiles_suit(const adapted<T> &a)
{
    return a.k % 8 == 0 && a.x_width % 8 == 0 && ends_suit(a, TILE_LINES) && aligned(a.x, a.w, a.add, a.y);
}

/* u B': many lines over few columns. */
template <class T> static inline bool adapter_is_wide(const adapted<T> &a)
{
    return a.k <= SHORT_K && ends_suit(a, WIDE);
}
