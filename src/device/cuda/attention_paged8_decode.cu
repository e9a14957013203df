/* attention_paged8_decode.cu - tokens that are alone in their row over keys and values in 8 bits (tensor/kv8.h), on the tensor cores.
 *
 * A block of threads has the lines of a token and kv head, and a warp 64 keys of each piece, as in attention_paged_decode.cu. Blocks of the
 * pool come to shared memory as they are: all of a warp's keys and values are under way at once, and the next ones as soon as there is room.
 * Codes become fp16 numbers in registers, which is exact, and queries and probabilities are fp16 too. Scales are applied to what is summed:
 *
 *     scores   of a key are multiplied by its scale
 *     output   a probability is multiplied by the scale of its key's values, as a share of the chunk's largest, so that it stays within
 *              fp16's range; the sums are multiplied by that largest
 *
 * Lines are columns of the tensor cores' tiles, 8 of them a half, so that few of them are no waste. Lane (g, t) = (lane / 4, lane % 4) has of
 *
 *     keys     8 g + 0..7 of a chunk: j and j + 4 are two rows of tile j of the scores, and lines 2 t and 2 t + 1 their columns
 *     values   block t of the chunk, elements 8 g + 0..7 of a set: n and n + 4 are two rows of tile n of the output
 */
#include "device/cuda/attention_codes.cuh"
#include "device/cuda/attention_paged_lines.cuh"

namespace
{

/* Bytes behind each block of keys and of values in shared memory, so that lanes read different banks. */
enum { BLOCKS = CHUNK / KV_BLOCK, PAD_KEYS = 16, PAD_VALUES = 32 };

/* Where a warp's keys and values lie in shared memory. At the end its lines do: in the place of the keys, which is as large as 16 lines. */
struct room {
    char *keys, *values;
    int key_step, value_step; /* bytes of a block */
};

static __host__ __device__ __forceinline__ int room_bytes(const struct paged &a)
{
    return BLOCKS * (2 * (int)a.chunk + PAD_KEYS + PAD_VALUES);
}

ON_GPU struct room room_of(const struct paged &a)
{
    char *at = shared_pool() + threadIdx.x / 32 * room_bytes(a);
    const int step = (int)a.chunk + PAD_KEYS;
    return {at, at + BLOCKS * step, step, (int)a.chunk + PAD_VALUES};
}

/* Blocks of a token's keys. */
struct chunk {
    int key, count; /* the first key, and blocks up to the token's position */
    int mine;       /* block lane % 4 of them in the pool */
};

ON_GPU struct chunk chunk_at(const struct paged &a, const struct item &it, int key)
{
    const int count = min((it.position - key) / KV_BLOCK + 1, (int)BLOCKS), b = threadIdx.x % BLOCKS;
    const int32_t *table = a.blocks + (int64_t)it.row * a.reach + key / KV_BLOCK;
    return {key, count, b < count ? table[b] : 0};
}

/* Begins to copy blocks [from, until) of a chunk's keys, or of what is `plane` behind them. */
ON_GPU void copy_blocks(const struct paged &a, const struct chunk &c, int kv, int from, int until,
                        int64_t plane, char *to, int step)
{
    const int pieces = (int)a.chunk / 16, lane = threadIdx.x % 32;
    const uint32_t room = shared_address(to);
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        const int64_t block = __shfl_sync(0xffffffffu, c.mine, b);
        const unsigned char *at = (const unsigned char *)a.pool + paged_at(a, (int)block, kv) + plane;
        if (b >= from && b < until)
#pragma unroll 1
            for (int i = lane; i < pieces; i += 32) copy16(room + b * step + i * 16, at + i * 16, true);
    }
}

/* A warp's part of the lines' keys: of tile n, lines 2 t + i % 2 of a half and elements 8 g + n + i / 2 * 4 of a set. */
template <int SETS, int HALVES> struct columns {
    float out[SETS][4][HALVES][4];
    float top[HALVES][2], sum[HALVES][2];

    __device__ __forceinline__ void clear(void)
    {
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll
            for (int i = 0; i < 2; i++) top[half][i] = -INFINITY, sum[half][i] = 0;
#pragma unroll
        for (int set = 0; set < SETS; set++)
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int i = 0; i < HALVES * 4; i++) out[set][n][i / 4][i % 4] = 0;
    }

    /* to(line): where a line's elements go, 16 bytes at a time, and behind them maximum and sum. */
    template <class F> __device__ __forceinline__ void leave(int size, int heads, F to) const
    {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int l = half * 8 + 2 * t + i;
                if (l >= heads) continue;
                float *line = to(l);
                if (g == 0) line[size] = top[half][i], line[size + 1] = sum[half][i];
#pragma unroll
                for (int set = 0; set < SETS; set++)
#pragma unroll
                    for (int four = 0; four < 4; four += 2)
                        if (set * 64 + 8 * g < size)
                            *(float4 *)(line + set * 64 + 8 * g + 2 * four) =
                                make_float4(out[set][0][half][four + i], out[set][1][half][four + i],
                                            out[set][2][half][four + i], out[set][3][half][four + i]);
            }
    }
};

/* Two neighbouring elements of a line as fp16. */
ON_GPU uint32_t query(const struct paged &a, int64_t at, int line, int heads, int d)
{
    if (line >= heads || d >= a.size) return 0;
    const uint32_t x = *(const uint32_t *)((const uint16_t *)a.q + at + line * a.size + d);
    const bool bf16 = a.type == DT_BF16;
    const float low = bf16 ? type_bf16::low(x) : type_f16::low(x),
                high = bf16 ? type_bf16::high(x) : type_f16::high(x);
    return type_f16::pack(fminf(fmaxf(low, -65504.0f), 65504.0f), fminf(fmaxf(high, -65504.0f), 65504.0f));
}

template <int SETS, int HALVES>
ON_GPU void load_queries(const struct paged &a, int64_t at, int heads, uint32_t (&q)[SETS * 4][HALVES][2])
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int s = 0; s < SETS * 4; s++)
#pragma unroll
        for (int i = 0; i < HALVES * 2; i++)
            q[s][i / 2][i % 2] = query(a, at, g + i / 2 * 8, heads, s * 16 + 2 * t + i % 2 * 8);
}

ON_GPU uint32_t word_of(const uint2 &x, int i) { return i == 0 ? x.x : x.y; }

/* Codes j of x and of y as a pair. */
template <class CODES> ON_GPU uint32_t pair_of(const uint2 &x, const uint2 &y, int j)
{
    return CODES::pair(__byte_perm(word_of(x, j / 4), word_of(y, j / 4), j % 4 | (4 + j % 4) << 4));
}

/* Rows j and j + 4 of a tile, of codes of four places in its columns. */
template <class CODES> ON_GPU void rows_of(uint32_t (&a)[4], const uint2 (&x)[4], int j)
{
    a[0] = pair_of<CODES>(x[0], x[1], j), a[1] = pair_of<CODES>(x[0], x[1], j + 4);
    a[2] = pair_of<CODES>(x[2], x[3], j), a[3] = pair_of<CODES>(x[2], x[3], j + 4);
}

template <class CODES, int SETS, int HALVES>
ON_GPU void multiply_keys(const struct paged &a, float (&s)[4][HALVES][4],
                          const uint32_t (&q)[SETS * 4][HALVES][2], const struct room &r)
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const char *from = r.keys + g / 2 * r.key_step + g % 2 * 8 + 2 * t * KV_BLOCK;
#pragma unroll
    for (int step = 0; step < SETS * 4; step++) {
        if (step * 16 >= a.size) break;
        uint2 x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) /* elements 2 t, 2 t + 1, 2 t + 8, 2 t + 9 */
            x[i] = i < 2 || step * 16 + 8 < a.size
                       ? *(const uint2 *)(from + (step * 16 + i % 2 + i / 2 * 8) * KV_BLOCK)
                       : make_uint2(0, 0);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t rows[4];
            rows_of<CODES>(rows, x, j);
#pragma unroll
            for (int half = 0; half < HALVES; half++)
                type_f16::multiply(s[j][half], rows, q[step][half][0], q[step][half][1]);
        }
    }
}

/* f(score, key of the lane, 0..7, and line of its two) in the place of every score. */
template <int HALVES, class F> ON_GPU void each_score(float (&s)[4][HALVES][4], int half, F f)
{
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) s[j % 4][half][j / 4 * 2 + i] = f(s[j % 4][half][j / 4 * 2 + i], j, i);
}

/* Scales of the lane's 8 keys, or of their values, in a block of shared memory. */
ON_GPU void load_scales(const struct paged &a, const char *blocks, int step, float (&by)[8])
{
    const int g = threadIdx.x % 32 / 4;
    const float4 *from = (const float4 *)(blocks + g / 2 * step + KV_BLOCK * a.size + g % 2 * 32);
    const float4 x = from[0], y = from[1];
    by[0] = x.x, by[1] = x.y, by[2] = x.z, by[3] = x.w, by[4] = y.x, by[5] = y.y, by[6] = y.z, by[7] = y.w;
}

/* f over the lanes of a line's keys. */
template <class F> ON_GPU float over_keys(float x, F f)
{
#pragma unroll
    for (int by = 4; by < 32; by *= 2) x = f(x, __shfl_xor_sync(0xffffffffu, x, by));
    return x;
}

ON_GPU float larger_of(float a, float b) { return fmaxf(a, b); }
ON_GPU float sum_of(float a, float b) { return a + b; }

/* Products of a line's keys from `key` on become probabilities against the maximum of the 64. */
template <int HALVES>
ON_GPU void soften(const struct paged &a, float (&s)[4][HALVES][4], int half, int position, int key,
                   float (&top)[2], float (&sum)[2])
{
    const int mine = key + threadIdx.x % 32 / 4 * 8, last = position - mine;
    const int first = (a.window ? max(position - a.window + 1, 0) : 0) - mine;
    float base[2];
    top[0] = top[1] = -INFINITY, sum[0] = sum[1] = 0;
    each_score(s, half, [&](float x, int j, int i) {
        x = j < first || j > last ? -INFINITY : paged_score(a, x);
        top[i] = fmaxf(top[i], x);
        return x;
    });
#pragma unroll
    for (int i = 0; i < 2; i++) {
        top[i] = over_keys(top[i], larger_of);
        base[i] = top[i] == -INFINITY ? 0.0f : top[i];
    }
    each_score(s, half, [&](float x, int, int i) {
        const float p = exp2_fast((x - base[i]) * a.scale2);
        sum[i] += p;
        return p;
    });
#pragma unroll
    for (int i = 0; i < 2; i++) sum[i] = over_keys(sum[i], sum_of);
}

/* Probabilities times the scales of their values, as shares of the largest of the chunk, which is returned, as the second product's columns. */
template <int HALVES>
ON_GPU float turn_scores(const struct paged &a, float (&s)[4][HALVES][4], const struct room &r, int last,
                         uint32_t (&p)[HALVES][8])
{
    float by[8], most = 0;
    load_scales(a, r.values, r.value_step, by);
    last -= threadIdx.x % 32 / 4 * 8;
#pragma unroll
    for (int j = 0; j < 8; j++) by[j] = j <= last ? by[j] : 0, most = fmaxf(most, by[j]);
    most = over_keys(most, larger_of);
    const float share = most > 1e-30f ? 1.0f / most : 0;
#pragma unroll
    for (int j = 0; j < 8; j++) by[j] *= share;
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        each_score(s, half, [&](float x, int j, int) { return x * by[j]; });
#pragma unroll
        for (int j = 0; j < 8; j++)
            p[half][j] =
                turn_matrix(type_f16::pack(s[j % 4][half][j / 4 * 2], s[j % 4][half][j / 4 * 2 + 1]));
    }
    return most;
}

/* Step i: positions 2 i, 2 i + 8, 2 i + 1, 2 i + 9 of the lane's block. Those behind the token's are none. */
template <class CODES, int HALVES>
ON_GPU void multiply_values(const struct paged &a, float (&out)[4][HALVES][4], const uint32_t (&p)[HALVES][8],
                            const struct room &r, int set, int last)
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const char *from = r.values + t * r.value_step + set * 64 + g * 8;
    last = set * 64 + g * 8 < a.size ? last - t * KV_BLOCK : -1;
#pragma unroll
    for (int step = 0; step < 4; step++) {
        uint2 x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = 2 * step + i / 2 + i % 2 * 8;
            x[i] = at <= last ? *(const uint2 *)(from + at * a.size) : make_uint2(0, 0);
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t rows[4];
            rows_of<CODES>(rows, x, n);
#pragma unroll
            for (int half = 0; half < HALVES; half++)
                type_f16::multiply(out[n][half], rows, p[half][2 * step], p[half][2 * step + 1]);
        }
    }
}

/* The chunk's keys in shared memory for all lines; values follow, and `then` is called as soon as the keys are no longer needed. */
template <class CODES, int SETS, int HALVES, class F>
ON_GPU void meet(const struct paged &a, const struct item &it, int key,
                 const uint32_t (&q)[SETS * 4][HALVES][2], const struct room &r, columns<SETS, HALVES> &all,
                 F then)
{
    const int last = it.position - key;
    float s[4][HALVES][4] = {}, by[8], top[HALVES][2], sum[HALVES][2];
    uint32_t p[HALVES][8];
    multiply_keys<CODES, SETS, HALVES>(a, s, q, r);
    load_scales(a, r.keys, r.key_step, by);
    then();
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        each_score(s, half, [&](float x, int j, int) { return x * by[j]; });
        soften<HALVES>(a, s, half, it.position, key, top[half], sum[half]);
    }
    copy_wait<1>();
    __syncwarp();
    const float most = turn_scores<HALVES>(a, s, r, last, p);
#pragma unroll
    for (int set = 0; set < SETS; set++) {
        float out[4][HALVES][4] = {};
        multiply_values<CODES, HALVES>(a, out, p, r, set, last);
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    all.out[set][n][half][i] =
                        paged_joined(all.out[set][n][half][i], all.top[half][i % 2], all.sum[half][i % 2],
                                     out[n][half][i] * most, top[half][i % 2], sum[half][i % 2], a.scale2);
    }
#pragma unroll
    for (int half = 0; half < HALVES; half++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float x = all.top[half][i], y = all.sum[half][i];
            all.top[half][i] = paged_joined_top(x, y, top[half][i], sum[half][i]);
            all.sum[half][i] = paged_joined(y, x, y, sum[half][i], top[half][i], sum[half][i], a.scale2);
        }
}

template <class CODES, int SETS, int HALVES>
__global__ void __launch_bounds__(THREADS, HALVES == 1 ? 3 : 2) decode8(const struct paged a)
{
    const int warp = threadIdx.x / 32;
    const struct room r = room_of(a);
    next_may_begin();
    const struct work w = work_of(a);
    int key = w.from * CUDA_PAGED_PIECE + warp * CHUNK, old = 0;
    const bool some = w.it.row >= 0 && w.from < w.end, mine = some && key <= w.it.position;
    struct chunk c = {};
    auto copy_keys = [&](int from, int until) {
        copy_blocks(a, c, w.kv, from, until, 0, r.keys, r.key_step);
    };
    auto copy_values = [&](int from, int until) {
        copy_blocks(a, c, w.kv, from, until, a.plane, r.values, r.value_step);
    };
    if (mine) { /* what precedes the step is there already */
        c = chunk_at(a, w.it, key), old = min(max(w.it.context - key, 0) / KV_BLOCK, c.count);
        copy_keys(0, old), copy_values(0, old);
    }
    await_previous();
    if (w.it.row < 0) blank<type_either>(a, w);
    if (!some) return;
    const int64_t at = ((int64_t)w.it.token * a.heads + w.head) * a.size;
    columns<SETS, HALVES> all;
    all.clear();
    if (mine) {
        copy_keys(old, c.count), copy_values(old, c.count);
        copy_commit(), copy_commit();
        uint32_t q[SETS * 4][HALVES][2];
        load_queries<SETS, HALVES>(a, at, w.heads, q);
        for (bool more = true; more; key = c.key) {
            const int next = key + CUDA_PAGED_PIECE;
            more = next <= w.it.position && next < w.end * CUDA_PAGED_PIECE;
            if (more) c = chunk_at(a, w.it, next);
            copy_wait<1>();
            __syncwarp();
            meet<CODES, SETS, HALVES>(a, w.it, key, q, r, all, [&]() {
                __syncwarp();
                if (more) copy_keys(0, c.count);
                copy_commit();
            });
            __syncwarp();
            if (more) copy_values(0, c.count);
            copy_commit();
        }
    }
    if (w.split >= 0) {
        if (mine) all.leave(a.size, w.heads, [&](int l) { return part_at(a, w.line + l, w.split, warp); });
        return;
    }
    all.leave(a.size, w.heads, [&](int l) { return (float *)r.keys + l * line_floats(a.size); });
    __syncthreads();
    const int d = threadIdx.x % (SETS * 64), stride = room_bytes(a) / (int)sizeof(float);
    for (int l = threadIdx.x / (SETS * 64); l < w.heads; l += THREADS / (SETS * 64))
        if (d < a.size)
            put<type_either>(a, at + l * a.size + d,
                             join_warps((const float *)shared_pool() + l * line_floats(a.size), stride,
                                        a.size, d, a.scale2));
}

template <class CODES> int start_decode8(const struct cuda_queue *queue, const struct paged &a)
{
    auto kernel = a.size <= 64   ? a.group <= 8 ? decode8<CODES, 1, 1> : decode8<CODES, 1, 2>
                    : a.group <= 8 ? decode8<CODES, 2, 1>
                                 : decode8<CODES, 2, 2>;
    const int shared = WARPS * room_bytes(a);
    int failed =
        (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    failed = failed ? failed : launch(queue, kernel, decode_blocks(a), THREADS, (size_t)shared, a);
    return failed ? failed : start_join<type_either>(queue, a);
}

} // namespace

int cuda_paged8_decode(const struct cuda_queue *queue, const struct paged *a)
{
    return a->e4m3 ? start_decode8<codes_e4m3>(queue, *a) : start_decode8<codes_i8>(queue, *a);
}
