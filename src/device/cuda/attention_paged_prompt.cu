/* attention_paged_prompt.cu - rows of several tokens over their blocks, on the tensor cores.
 *
 * A line is one query head of one token. A block of threads has up to 128 lines of one row and kv head, tokens first, then heads of
 * the group, and a warp 32 of them; 64 keys and values at a time stream through shared memory, one step ahead of the
 * arithmetic. Keys lie turned in their blocks and stay so: a tile of keys is [D][64], its rows are rows of B, and the
 * products of queries and keys are made as those of probabilities and values are.
 *
 * Tokens are cut into tiles by their number in the step, whatever rows they belong to; a tile with several rows takes
 * them in turn, and tokens that are alone in their row are attention_paged_decode.cu's. Keys come in steps that begin at
 * multiples of 64, in order: neither tile nor neighbours change a line's sums.
 */
#include "device/cuda/attention_paged.cuh"
#include "device/cuda/attention_softmax.cuh"

namespace
{

enum { LINES = 128, KEYS = 64, HIGH = 2 };

template <int width> struct room {
    enum {
        QUERIES = LINES * tile<width>::ROW_BYTES,
        KEY_TILE = width * tile<KEYS>::ROW_BYTES,
        STAGE = KEY_TILE + KEYS * tile<width>::ROW_BYTES,
        KEEPS_QUERIES = width <= 64, /* fragments of queries stay in registers */
    };
};

static size_t room_bytes(int width, int stages)
{
    int row = 2 * (width + 8);
    return (size_t)(LINES * row + stages * (width * 2 * (KEYS + 8) + KEYS * row) + LINES * 8);
}

struct prompt {
    struct paged a;
    int tile_tokens, stages;
};

/* Lines of one row: tokens [token, token + count), all heads of kv head `kv`. */
struct lines {
    int row, token, count, kv, position; /* position: of the first token */
};

ON_GPU int64_t line_at(const struct paged &a, const struct lines &t, int line)
{
    return ((int64_t)(t.token + line / a.group) * a.heads + t.kv * a.group + line % a.group) * a.size;
}

/* The row that has a token, -1: none; asked by all threads of a block. */
ON_GPU int row_of(const struct paged &a, int token)
{
    int mine = -1;
    for (int r = threadIdx.x; r < a.nrows; r += MMA_THREADS)
        if (token >= a.rows[3 * r] && token < a.rows[3 * r] + a.rows[3 * r + 1]) mine = r;
    __shared__ int found[MMA_WARPS];
    mine = __reduce_max_sync(0xffffffffu, mine);
    __syncthreads();
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = mine;
    __syncthreads();
    return max(max(found[0], found[1]), max(found[2], found[3]));
}

template <int width> ON_GPU void load_queries(const struct paged &a, const struct lines &t, uint32_t to)
{
    const int pieces = tile<width>::PIECES;
    for (int i = threadIdx.x; i < LINES * pieces; i += MMA_THREADS) {
        int line = i / pieces, p = i % pieces;
        bool have = line < t.count * a.group && p * 8 < a.size;
        copy16(to + line * tile<width>::ROW_BYTES + p * 16,
               (const uint16_t *)a.q + (have ? line_at(a, t, line) + p * 8 : 0), have);
    }
}

/* Keys [key, key + 64): those behind `last` have values of 0, and blocks behind it are not read. */
template <int width>
ON_GPU void load_keys(const struct paged &a, const struct lines &t, uint32_t to, int key, int last)
{
    const int32_t *table = a.blocks + (int64_t)t.row * a.reach + key / KV_BLOCK;
    const int pieces = tile<width>::PIECES, thread = thread_again();
    const uint16_t *pool = (const uint16_t *)a.pool;
    int64_t at[KEYS / KV_BLOCK];
#pragma unroll
    for (int b = 0; b < KEYS / KV_BLOCK; b++)
        at[b] = key + b * KV_BLOCK <= last ? paged_at(a, table[b], t.kv) : -1;
#pragma unroll
    for (int b = 0; b < KEYS / KV_BLOCK; b++)
#pragma unroll
        for (int i = thread; i < width * 2; i += MMA_THREADS) { /* two pieces to a row of 16 keys */
            bool have = at[b] >= 0 && i / 2 < a.size;
            copy16(to + i / 2 * tile<KEYS>::ROW_BYTES + b * 32 + i % 2 * 16,
                   pool + (have ? at[b] + i * 8 : 0), have);
        }
    to += room<width>::KEY_TILE;
#pragma unroll
    for (int b = 0; b < KEYS / KV_BLOCK; b++)
        for (int i = thread; i < KV_BLOCK * pieces; i += MMA_THREADS) {
            int r = i / pieces, p = i % pieces;
            bool have = key + b * KV_BLOCK + r <= last && p * 8 < a.size;
            copy16(to + (b * KV_BLOCK + r) * tile<width>::ROW_BYTES + p * 16,
                   pool + (have ? at[b] + a.plane + r * a.size + p * 8 : 0), have);
        }
}

template <class type, int width>
ON_GPU void scores(float (&s)[HIGH][KEYS / 8][4], const uint32_t (&kept)[width / 16][HIGH][4],
                   uint32_t queries, uint32_t keys)
{
#pragma unroll
    for (int m = 0; m < HIGH; m++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[m][n][i] = 0;
#pragma unroll
    for (int step = 0; step < width / 16; step++) {
        const uint32_t rows = keys + step * 16 * tile<KEYS>::ROW_BYTES;
        if (room<width>::KEEPS_QUERIES) {
            multiply_turned<type, KEYS, HIGH>(s, kept[step], rows);
        } else {
            uint32_t q[HIGH][4];
#pragma unroll
            for (int m = 0; m < HIGH; m++)
                load_matrices(q[m], queries + m * 16 * tile<width>::ROW_BYTES + step * 32);
            multiply_turned<type, KEYS, HIGH>(s, q, rows);
        }
    }
}

/* Rows of a warp's output through its queries' place in shared memory to global memory. */
template <class type, int width>
ON_GPU void finish(const struct paged &a, const struct lines &t, char *pool, soft_rows<width, HIGH> &r)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pieces = tile<width>::PIECES;
    char *own = pool + warp * 32 * tile<width>::ROW_BYTES;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < HIGH; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = r.sum[m][half];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            float by = sum == 0 ? 0.0f : 1.0f / sum;
            char *to = own + (m * 16 + half * 8 + lane / 4) * tile<width>::ROW_BYTES;
#pragma unroll
            for (int n = 0; n < width / 8; n++)
                *(uint32_t *)(to + n * 16 + lane % 4 * 4) =
                    type::pack(r.out[m][n][2 * half] * by, r.out[m][n][2 * half + 1] * by);
        }
    __syncwarp();
    for (int i = lane; i < 32 * pieces; i += 32) {
        int line = warp * 32 + i / pieces, p = i % pieces;
        if (line >= t.count * a.group || p * 8 >= a.size) continue;
        *(uint4 *)((uint16_t *)a.o + line_at(a, t, line) + p * 8) =
            *(const uint4 *)(own + i / pieces * tile<width>::ROW_BYTES + p * 16);
    }
}

template <class type, int width> ON_GPU void run_lines(const struct prompt &x, const struct lines &t)
{
    typedef struct room<width> room;
    const struct paged &a = x.a;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    char *pool = shared_pool();
    int2 *ranges = (int2 *)(pool + room::QUERIES + x.stages * room::STAGE);
    const uint32_t queries = shared_address(pool), stage0 = queries + room::QUERIES;
    load_queries<width>(a, t, queries);
    copy_commit();
    const int own = min((int)threadIdx.x / a.group, t.count - 1) + t.position;
    const int2 range = make_int2(a.window ? max(own - a.window + 1, 0) : 0, own);
    const struct attn_span mine = attn_warp_span(range, true);
    ranges[threadIdx.x] = range;
    const int last = t.position + t.count - 1;
    int key = (a.window ? max(t.position - a.window + 1, 0) : 0) / KEYS * KEYS;
    if (x.stages == 2) load_keys<width>(a, t, stage0, key, last);
    copy_commit();
    const uint32_t my_queries = queries + warp * 32 * tile<width>::ROW_BYTES + lane_a<width>(lane);
    uint32_t kept[width / 16][HIGH][4];
    if (room::KEEPS_QUERIES) {
        copy_wait<1>();
        __syncthreads();
#pragma unroll
        for (int step = 0; step < width / 16; step++)
#pragma unroll
            for (int m = 0; m < HIGH; m++)
                load_matrices(kept[step][m], my_queries + m * 16 * tile<width>::ROW_BYTES + step * 32);
    }
    struct soft_rows<width, HIGH> r;
    r.clear();
    uint32_t stage = stage0;
    for (; key <= last; key += KEYS) {
        if (x.stages == 2) copy_wait<0>();
        __syncthreads();
        const uint32_t next = x.stages == 2 && stage == stage0 ? stage0 + room::STAGE : stage0;
        const int ahead = key + (x.stages - 1) * KEYS;
        if (ahead <= last) load_keys<width>(a, t, next, ahead, last);
        copy_commit();
        if (x.stages == 1) {
            copy_wait<0>();
            __syncthreads();
        }
        if (attn_meets(mine, key, KEYS)) {
            float s[HIGH][KEYS / 8][4];
            scores<type, width>(s, kept, my_queries, stage + lane_turned<KEYS>(lane));
            if (a.cap > 0)
#pragma unroll
                for (int m = 0; m < HIGH; m++)
#pragma unroll
                    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                        for (int i = 0; i < 4; i++) s[m][n][i] = paged_score(a, s[m][n][i]);
            if (attn_needs_mask(mine, key, KEYS)) soft_mask(s, ranges + warp * 32, key, lane);
            soften(s, r, a.scale2);
            const uint32_t values = stage + room::KEY_TILE + lane_turned<width>(lane);
#pragma unroll
            for (int step = 0; step < KEYS / 16; step++) {
                uint32_t p[HIGH][4];
                pack_step<type>(p, s, step);
                multiply_turned<type, width, HIGH>(r.out, p, values + step * 16 * tile<width>::ROW_BYTES);
            }
        }
        stage = next;
    }
    copy_wait<0>();
    finish<type, width>(a, t, pool, r);
    __syncthreads();
}

/* Tokens in no row. */
ON_GPU void blank(const struct paged &a, const struct lines &t)
{
    for (int i = threadIdx.x; i < t.count * a.group * a.size; i += MMA_THREADS)
        ((uint16_t *)a.o)[line_at(a, t, i / a.size) + i % a.size] = 0;
}

/* The last tiles, which see the most, go first. */
template <class type, int width>
__global__ void __launch_bounds__(MMA_THREADS, 2) prompts(const struct prompt x)
{
    const struct paged &a = x.a;
    const int tiles = (a.tokens + x.tile_tokens - 1) / x.tile_tokens, kv = blockIdx.x % a.kv_heads;
    const int from = (tiles - 1 - (int)blockIdx.x / a.kv_heads) * x.tile_tokens;
    const int until = min(from + x.tile_tokens, a.tokens);
    for (int token = from; token < until;) {
        struct lines t = {row_of(a, token), token, 1, kv, 0};
        if (t.row >= 0) {
            const int first = a.rows[3 * t.row], count = a.rows[3 * t.row + 1];
            t.count = min(until, first + count) - token;
            t.position = a.rows[3 * t.row + 2] + token - first;
            if (count > 1) run_lines<type, width>(x, t);
        } else {
            blank(a, t);
        }
        token += t.count;
    }
}

typedef void prompt_kernel(const struct prompt);

} // namespace

int cuda_paged_prompt(const struct cuda_queue *queue, const struct paged *a)
{
    struct attn as = {};
    as.type = a->type, as.size = a->size;
    const int width = mma_width(&as);
    prompt_kernel *kernel = MMA_KERNEL(prompts, &as);
    struct prompt x = {*a, LINES / a->group, room_bytes(width, 2) <= queue->shared_most ? 2 : 1};
    const size_t shared = room_bytes(width, x.stages);
    int failed = (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)shared);
    if (failed) return failed;
    const int64_t blocks = parts_of(a->tokens, x.tile_tokens) * a->kv_heads;
    return start(queue, kernel, (unsigned)blocks, MMA_THREADS, shared, x);
}
