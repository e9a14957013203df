/* attention_paged.cu - keys and values into blocks, and attention of rows of tokens over them (tape/op.h): the choice of a
 * way (attention_paged.cuh), and the one that takes every type and size of heads.
 *
 * A line is one query head of one token. A block of threads has up to LINES lines of one row and kv head and walks over
 * their keys in pieces of PIECE positions: its warps take the piece's blocks of 16 keys in turn, by their number, each
 * with maximum, sum and output of its own; the warps are joined in order, then the pieces, in order. Where there are few
 * lines, pieces go to blocks of threads of their own and a second kernel joins them with the same operations. So a
 * line's bits depend on its own keys alone.
 *
 * Of 16 keys a lane has one, and every other element of the head: what the two halves of a warp have summed is added.
 * Values are the lanes' by elements. Every byte is read once for all lines; nothing here uses the tensor cores.
 */
#include "device/cuda/attention_paged.cuh"
#include "device/cuda/overlap.cuh"

namespace
{

enum { WARPS = 4, THREADS = 32 * WARPS, PIECE = CUDA_PAGED_PIECE, MOST_SIZE = 256, JOIN_WARPS = 4 };

struct plain : paged {
    int tile_tokens, tile_heads; /* of a block of threads: their product is at most LINES */
};

/* The row that has a token, -1: none; asked by all threads of a block. */
ON_GPU int row_of(const struct plain &a, int token, int *found)
{
    __syncthreads();
    if (threadIdx.x == 0) *found = -1;
    __syncthreads();
    for (int r = threadIdx.x; r < a.nrows; r += THREADS)
        if (token >= a.rows[3 * r] && token < a.rows[3 * r] + a.rows[3 * r + 1]) *found = r;
    __syncthreads();
    return *found;
}

/* Lines of one row: tokens [token, token + count), `heads` heads of a group from `head` on. */
struct tile {
    int row, token, count, head, heads, kv, position; /* position: of the first token */
    __device__ int lines() const { return count * heads; }
    __device__ int last(int line) const { return position + line / heads; }
    __device__ int64_t at(const struct plain &a, int line) const
    {
        return ((int64_t)(token + line / heads) * a.heads + head + line % heads) * a.size;
    }
};

template <int LINES, int WIDTH> struct lines {
    float top[LINES], sum[LINES], out[LINES][WIDTH];
};

/* 16 keys from `key` on. */
template <class T, int LINES, int WIDTH>
ON_GPU void meet(const struct plain &a, const struct tile &t, const float *q, int key, lines<LINES, WIDTH> &w)
{
    const int lane = threadIdx.x % 32, mine = key + lane % 16;
    const int64_t at = paged_at(a, a.blocks[(int64_t)t.row * a.reach + key / 16], t.kv);
    const T *k = (const T *)a.pool + at + lane % 16, *v = (const T *)a.pool + at + a.plane;
    float s[LINES];
#pragma unroll
    for (int l = 0; l < LINES; l++) s[l] = 0;
#pragma unroll 8
    for (int d = lane / 16; d < a.size; d += 2) {
        float x = number(k + d * 16);
#pragma unroll
        for (int l = 0; l < LINES; l++) s[l] = __fmaf_rn(q[l * MOST_SIZE + d], x, s[l]);
    }
#pragma unroll
    for (int l = 0; l < LINES; l++) {
        if (l >= t.lines()) continue;
        float x = s[l] + __shfl_xor_sync(0xffffffffu, s[l], 16);
        x = paged_score(a, x);
        int last = t.last(l), first = a.window ? last - a.window + 1 : 0;
        if (mine > last || mine < first) x = -INFINITY;
        float top = w.top[l];
        float high = x;
#pragma unroll
        for (int mask = 8; mask > 0; mask /= 2) high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, mask));
        high = fmaxf(high, top);
        float base = high == -INFINITY ? 0.0f : high, fade = exp2f((top - base) * a.scale2);
        float p = exp2f((x - base) * a.scale2), sum = p;
#pragma unroll
        for (int mask = 8; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
        w.top[l] = high, w.sum[l] = __fmaf_rn(w.sum[l], fade, sum);
        s[l] = p;
#pragma unroll
        for (int j = 0; j < WIDTH; j++) w.out[l][j] *= fade;
    }
    const int end = min(16, t.last(t.lines() - 1) + 1 - key);
    for (int i = 0; i < end; i++) {
        float x[WIDTH];
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            x[j] = j * 32 + lane < a.size ? number(v + i * a.size + j * 32 + lane) : 0;
#pragma unroll
        for (int l = 0; l < LINES; l++) {
            if (l >= t.lines()) continue;
            float p = __shfl_sync(0xffffffffu, s[l], i);
#pragma unroll
            for (int j = 0; j < WIDTH; j++) w.out[l][j] = __fmaf_rn(p, x[j], w.out[l][j]);
        }
    }
}

/* Shared memory of a block of threads. */
template <int LINES> struct room {
    float q[LINES * MOST_SIZE];
    float warp[WARPS][LINES][2];
    float total[LINES][2], piece[LINES][2];
    int found;
};

/* The warps' results of element `d` of a line, in order; `out` is [WARPS][LINES][size]. */
template <int LINES>
ON_GPU float join_warps(const struct plain &a, const room<LINES> &s, const float *out, int line, int d)
{
    float top = -INFINITY, x = 0;
    for (int w = 0; w < WARPS; w++) top = fmaxf(top, s.warp[w][line][0]);
    float base = top == -INFINITY ? 0.0f : top;
    for (int w = 0; w < WARPS; w++)
        x = __fmaf_rn(exp2f((s.warp[w][line][0] - base) * a.scale2), out[(w * LINES + line) * a.size + d], x);
    return x;
}

template <int LINES> ON_GPU void join_stats(const struct plain &a, room<LINES> &s, int line)
{
    float top = -INFINITY, sum = 0;
    for (int w = 0; w < WARPS; w++) top = fmaxf(top, s.warp[w][line][0]);
    float base = top == -INFINITY ? 0.0f : top;
    for (int w = 0; w < WARPS; w++)
        sum = __fmaf_rn(exp2f((s.warp[w][line][0] - base) * a.scale2), s.warp[w][line][1], sum);
    s.piece[line][0] = top, s.piece[line][1] = sum;
}

ON_GPU float *part_at(const struct plain &a, int64_t line, int split)
{
    return a.parts + (line / a.size * a.splits + split) * (a.size + 2);
}

/* One piece of a tile's keys; the warps' results are in shared memory afterwards. */
template <class T, int LINES, int WIDTH>
ON_GPU void walk(const struct plain &a, const struct tile &t, int piece, room<LINES> &s, float *out)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    lines<LINES, WIDTH> w;
#pragma unroll
    for (int l = 0; l < LINES; l++) {
        w.top[l] = -INFINITY, w.sum[l] = 0;
#pragma unroll
        for (int j = 0; j < WIDTH; j++) w.out[l][j] = 0;
    }
    int end = min((piece + 1) * PIECE, t.last(t.lines() - 1) + 1), from = piece * PIECE;
    int first = a.window ? max(t.last(0) - a.window + 1, 0) : 0;
    for (int key = from + warp * 16; key < end; key += WARPS * 16)
        if (key + 16 > first) meet<T, LINES, WIDTH>(a, t, s.q, key, w);
#pragma unroll
    for (int l = 0; l < LINES; l++) {
        if (lane == 0) s.warp[warp][l][0] = w.top[l], s.warp[warp][l][1] = w.sum[l];
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            if (j * 32 + lane < a.size) out[(warp * LINES + l) * a.size + j * 32 + lane] = w.out[l][j];
    }
    __syncthreads();
    for (int l = threadIdx.x; l < t.lines(); l += THREADS) join_stats<LINES>(a, s, l);
    __syncthreads();
}

/* All lines of a tile: `total` is [LINES][size] in shared memory. */
template <class T, int LINES, int WIDTH>
ON_GPU void run_tile(const struct plain &a, const struct tile &t, int split, room<LINES> &s, float *out,
                     float *total)
{
    for (int i = threadIdx.x; i < LINES * a.size; i += THREADS) {
        int l = i / a.size, d = i % a.size;
        s.q[l * MOST_SIZE + d] = l < t.lines() ? number((const T *)a.q + t.at(a, l) + d) : 0;
        total[i] = 0;
    }
    for (int l = threadIdx.x; l < LINES; l += THREADS) s.total[l][0] = -INFINITY, s.total[l][1] = 0;
    __syncthreads();
    int end = t.last(t.lines() - 1) + 1, first = a.window ? max(t.last(0) - a.window + 1, 0) : 0;
    for (int piece = split < 0 ? first / PIECE : split; piece * PIECE < end; piece++) {
        if (split >= 0 && (piece > split || (piece + 1) * PIECE <= first)) break;
        walk<T, LINES, WIDTH>(a, t, piece, s, out);
        for (int i = threadIdx.x; i < t.lines() * a.size; i += THREADS) {
            int l = i / a.size, d = i % a.size;
            float x = join_warps<LINES>(a, s, out, l, d);
            if (split >= 0)
                part_at(a, t.at(a, l), split)[d] = x;
            else
                total[i] = paged_joined(
                    total[i], x,
                    paged_shares_of(s.total[l][0], s.total[l][1], s.piece[l][0], s.piece[l][1], a.scale2));
        }
        __syncthreads();
        for (int l = threadIdx.x; l < t.lines(); l += THREADS) {
            float top = s.total[l][0], sum = s.total[l][1], more_top = s.piece[l][0], more = s.piece[l][1];
            s.total[l][1] = paged_joined(sum, more, paged_shares_of(top, sum, more_top, more, a.scale2));
            s.total[l][0] = paged_joined_top(top, sum, more_top, more);
        }
        __syncthreads();
    }
    if (split >= 0) { /* pieces without a key have the sum 0 */
        for (int l = threadIdx.x; l < t.lines(); l += THREADS) {
            float *part = part_at(a, t.at(a, l), split);
            part[a.size] = s.total[l][0], part[a.size + 1] = s.total[l][1];
        }
        return;
    }
    for (int i = threadIdx.x; i < t.lines() * a.size; i += THREADS)
        put_number((T *)a.o + t.at(a, i / a.size) + i % a.size, total[i] / s.total[i / a.size][1]);
}

/* Tokens of a tile that are in no row. */
template <class T> ON_GPU void blank(const struct plain &a, const struct tile &t)
{
    for (int i = threadIdx.x; i < t.lines() * a.size; i += THREADS)
        put_number((T *)a.o + t.at(a, i / a.size) + i % a.size, 0);
}

template <class T, int LINES, int WIDTH>
__global__ void __launch_bounds__(THREADS) attend(const struct plain a)
{
    extern __shared__ float pool[];
    __shared__ room<LINES> s;
    float *out = pool, *total = pool + WARPS * LINES * a.size;
    const int chunks = (a.group + a.tile_heads - 1) / a.tile_heads;
    int64_t index = blockIdx.x;
    const int split = a.splits > 1 ? (int)(index % a.splits) : -1;
    index /= a.splits;
    const int chunk = (int)(index % chunks);
    index /= chunks;
    const int kv = (int)(index % a.kv_heads), from = (int)(index / a.kv_heads) * a.tile_tokens;
    const int head = kv * a.group + chunk * a.tile_heads,
              heads = min(a.tile_heads, (kv + 1) * a.group - head);
    const int until = min(from + a.tile_tokens, a.tokens);
    for (int token = from; token < until;) {
        int row = row_of(a, token, &s.found);
        struct tile t = {row, token, 1, head, heads, kv, 0};
        if (row >= 0) {
            int first = a.rows[3 * row];
            t.count = min(until, first + a.rows[3 * row + 1]) - token;
            t.position = a.rows[3 * row + 2] + token - first;
            run_tile<T, LINES, WIDTH>(a, t, split, s, out, total);
        } else if (split <= 0) {
            blank<T>(a, t);
        }
        token += t.count;
    }
}

/* The pieces of a line, in order: a warp to a line. */
template <class T> __global__ void __launch_bounds__(JOIN_WARPS * 32) join(const struct plain a)
{
    __shared__ int found[JOIN_WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t line = (int64_t)blockIdx.x * JOIN_WARPS + warp;
    if (lane == 0) found[warp] = -1;
    __syncwarp();
    const int token = (int)(line / a.heads);
    for (int r = lane; r < a.nrows; r += 32)
        if (token >= a.rows[3 * r] && token < a.rows[3 * r] + a.rows[3 * r + 1]) found[warp] = r;
    __syncwarp();
    if (line >= (int64_t)a.tokens * a.heads || found[warp] < 0) return;
    const int32_t *row = a.rows + 3 * found[warp];
    const int last = row[2] + token - row[0], first = a.window ? max(last - a.window + 1, 0) : 0;
    float top = -INFINITY, sum = 0, out[MOST_SIZE / 32] = {};
    for (int piece = first / PIECE; piece * PIECE <= last; piece++) {
        const float *part = part_at(a, line * a.size, piece);
        const float more_top = part[a.size], more = part[a.size + 1];
        const struct paged_shares by = paged_shares_of(top, sum, more_top, more, a.scale2);
#pragma unroll
        for (int j = 0; j < MOST_SIZE / 32; j++)
            if (j * 32 + lane < a.size)
                out[j] = paged_joined(out[j], more == 0 ? 0 : part[j * 32 + lane], by);
        top = paged_joined_top(top, sum, more_top, more), sum = paged_joined(sum, more, by);
    }
#pragma unroll
    for (int j = 0; j < MOST_SIZE / 32; j++)
        if (j * 32 + lane < a.size) put_number((T *)a.o + line * a.size + j * 32 + lane, out[j] / sum);
}

template <class T, int LINES, int WIDTH> int start(const struct cuda_queue *queue, struct plain a)
{
    a.tile_heads = a.group < LINES ? a.group : LINES;
    a.tile_tokens = a.tokens > a.nrows ? LINES / a.tile_heads : 1;
    int64_t blocks =
        parts_of(a.tokens, a.tile_tokens) * a.kv_heads * parts_of(a.group, a.tile_heads) * a.splits;
    size_t shared = (size_t)(WARPS + 1) * LINES * a.size * sizeof(float);
    int failed = (int)cudaFuncSetAttribute((const void *)attend<T, LINES, WIDTH>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (failed) return failed;
    attend<T, LINES, WIDTH><<<(unsigned)blocks, THREADS, shared, stream_of(queue)>>>(a);
    failed = launched();
    if (failed || a.splits == 1) return failed;
    return start(queue, join<T>, (unsigned)parts_of((int64_t)a.tokens * a.heads, JOIN_WARPS), JOIN_WARPS * 32,
                 0, a);
}

template <class T, int WIDTH> int start_lines(const struct cuda_queue *queue, const struct plain &a)
{
    bool many = a.tokens > a.nrows || a.group > 4;
    if (many && WIDTH <= 4) return start<T, 8, WIDTH>(queue, a);
    return a.group > 1 || many ? start<T, 4, WIDTH>(queue, a) : start<T, 1, WIDTH>(queue, a);
}

template <class T> int start_width(const struct cuda_queue *queue, const struct plain &a)
{
    if (a.size <= 64) return start_lines<T, 2>(queue, a);
    return a.size <= 128 ? start_lines<T, 4>(queue, a) : start_lines<T, 8>(queue, a);
}

struct kv_put {
    const void *from[2];
    void *pool;
    const int32_t *slots;
    int64_t count, heads, size, block, plane, layer;
};

template <class T> __global__ void put(const struct kv_put p)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, d, h;
    next_may_begin();
    const bool is_value = i >= p.count, have = i < 2 * p.count;
    if (is_value) i -= p.count;
    int64_t token = divide(divide(i, p.size, &d), p.heads, &h),
            slot = have ? p.slots[token] : -1; /* an input */
    await_previous();
    if (slot < 0) return;
    T *to =
        (T *)p.pool + slot / KV_BLOCK * p.block + p.layer + (is_value ? p.plane : 0) + h * KV_BLOCK * p.size;
    to[is_value ? slot % KV_BLOCK * p.size + d : d * KV_BLOCK + slot % KV_BLOCK] =
        ((const T *)p.from[is_value])[i];
}

} // namespace

extern "C" int cuda_kv_put(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *k = call_in(call, KV_PUT_K), *pool = call_in(call, KV_PUT_POOL);
    void *to = call->out[KV_PUT_NEW_POOL];
    if (to != call->in[KV_PUT_POOL]) {
        int failed = (int)cudaMemcpyAsync(to, call->in[KV_PUT_POOL], (size_t)tensor_bytes(pool),
                                          cudaMemcpyDefault, stream_of(queue));
        if (failed) return failed;
    }
    struct kv_put p = {{call->in[KV_PUT_K], call->in[KV_PUT_V]}, to, (const int32_t *)call->in[KV_PUT_SLOTS]};
    p.count = tensor_count(k), p.heads = k->dim[2], p.size = k->dim[3];
    p.plane = p.heads * KV_BLOCK * p.size, p.block = pool->dim[1] * p.plane;
    p.layer = 2 * (call->op->layer > 0 ? call->op->layer : 0) * p.plane;
    return with_type(k->type, [&](auto t) {
        using T = typename decltype(t)::type;
        return launch(queue, put<T>, parts_of(2 * p.count, 256), 256, 0, p);
    });
}

static int by_tensor_cores(const struct cuda_queue *queue, const struct paged &a)
{
    int failed = cuda_paged_decode(queue, &a);
    return failed || a.tokens <= a.nrows ? failed : cuda_paged_prompt(queue, &a);
}

/* Scratch is written while heads are still split. */
static bool scratch_is_free(const struct kernel_call *attn, const struct kernel_call *split)
{
    const char *work = (const char *)attn->work;
    const int64_t bytes = (int64_t)cuda_workspace(NULL, attn->desc, attn->op);
    for (int slot = SPLIT3_X; slot <= SPLIT3_TABLE; slot++) {
        const char *at = (const char *)split->in[slot];
        if (work + bytes > at && at + tensor_bytes(call_in(split, slot)) > work) return false;
    }
    return true;
}

bool cuda_split3_attends(const struct kernel_call *split, const struct kernel_call *put,
                         const struct kernel_call *attn)
{
    const struct tensor *q = call_in(attn, ATTN_PAGED_Q), *pool = call_in(attn, ATTN_PAGED_POOL);
    const int64_t size = q->dim[3], group = q->dim[2] / pool->dim[2];
    const bool may_be_rows = call_in(attn, ATTN_PAGED_BLOCKS)->dim[0] >= q->dim[0] * q->dim[1];
    return may_be_rows && (size == 64 || (size == 128 && group <= 8)) && pool->type == q->type &&
           cuda_paged_on_tensor_cores(attn->desc) && cuda_split3_puts(split, put) &&
           scratch_is_free(attn, split);
}

int cuda_split3_attend(const struct cuda_queue *queue, const struct kernel_call *split,
                       const struct kernel_call *put, const struct kernel_call *attn)
{
    struct paged a = cuda_paged_of(attn);
    a.joint = split->in[SPLIT3_X], a.table = (const float *)split->in[SPLIT3_TABLE];
    a.slots = (const int32_t *)put->in[KV_PUT_SLOTS];
    return a.tokens == 0 ? 0 : cuda_paged_decode(queue, &a);
}

struct paged cuda_paged_of(const struct kernel_call *call)
{
    const struct tensor *q = call_in(call, ATTN_PAGED_Q), *pool = call_in(call, ATTN_PAGED_POOL),
                        *blocks = call_in(call, ATTN_PAGED_BLOCKS);
    const struct op_attr *attr = &call->op->attr;
    struct paged a = {call->in[ATTN_PAGED_Q], call->in[ATTN_PAGED_POOL], call->out[ATTN_PAGED_O]};
    a.rows = (const int32_t *)call->in[ATTN_PAGED_ROWS],
    a.blocks = (const int32_t *)call->in[ATTN_PAGED_BLOCKS];
    a.parts = (float *)call->work;
    a.tokens = (int)(q->dim[0] * q->dim[1]), a.heads = (int)q->dim[2], a.size = (int)q->dim[3];
    a.kv_heads = (int)pool->dim[2], a.group = a.heads / a.kv_heads;
    a.nrows = (int)blocks->dim[0], a.reach = (int)blocks->dim[1];
    a.splits = cuda_paged_splits(call->desc);
    a.chunk = pool->dim[3], a.plane = a.kv_heads * a.chunk, a.block = pool->dim[1] * a.plane;
    a.layer = 2 * (call->op->layer > 0 ? call->op->layer : 0) * a.plane;
    a.window = attr->window, a.scale = attr->scale, a.cap = attr->cap;
    a.scale2 = (attr->cap > 0 ? 1 : attr->scale) * 1.44269504f, a.type = q->type, a.e4m3 = attr->e4m3;
    return a;
}

extern "C" int cuda_attn_paged(const struct cuda_queue *queue, const struct kernel_call *call)
{
    struct plain a = {cuda_paged_of(call)};
    if (cuda_paged_on_tensor_cores(call->desc)) return by_tensor_cores(queue, a);
    if (a.size > MOST_SIZE) return (int)cudaErrorInvalidValue;
    return with_type(a.type, [&](auto t) { return start_width<typename decltype(t)::type>(queue, a); });
}
