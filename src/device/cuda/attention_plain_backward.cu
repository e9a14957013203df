/* attention_plain_backward.cu - attention backward in f32 arithmetic: every type, every head size, every shape.
 *
 * The two passes of attention_backward.cu, with the same roles: a block owns a tile of rows of one side (1, 2),
 * tiles of the other side stream past, dS meets streaming tensor 1 and, in the keys pass, P meets tensor 2.
 *
 * The gradient of a bias has a pass of its own, after a backward that does not leave its sums: a block has a tile of queries of one head and sums
 * dS by diagonals of its tiles, then diagonals by buckets, both in order.
 */
#include "device/cuda/attention_plain.cuh"
#include "device/cuda/attention_score.cuh"

namespace
{

/* One side of the attention of a head: where its two tensors' rows lie. */
struct side {
    const void *x1, *x2;
    int64_t base, stride;
    int count;
};

ON_GPU struct side query_side(const struct attn &a, int b, int h)
{
    struct side s = {a.q, a.grad, attn_query_at(a, b, 0, h), (int64_t)a.heads * a.size, a.time};
    return s;
}

ON_GPU struct side key_side(const struct attn &a, int b, int n)
{
    struct side s = {a.k, a.v, attn_key_at(a, b, 0, n), (int64_t)a.kv_heads * a.size, a.keys};
    return s;
}

template <int tile> ON_GPU void load_side(const struct attn &a, const struct side &s, float *to, int row)
{
    plain_load<tile>(a, to, s.x1, s.base, s.stride, row, 0, s.count);
    plain_load<tile>(a, to + tile * plain_pitch(a.size), s.x2, s.base, s.stride, row, 0, s.count);
}

/* P and dS of owned row `row` on and streaming row `other` on go to wp and ws. raw: dS before the slope of the score. */
template <int tile, bool keys, bool raw>
ON_GPU void differentiate(const struct attn &a, int b, int h, int row, int other,
                          const float (&s)[plain<tile>::ROWS][plain<tile>::COLUMNS],
                          const float (&dp)[plain<tile>::ROWS][plain<tile>::COLUMNS], float *wp, float *ws)
{
    const int r = threadIdx.x / 8, c = threadIdx.x % 8;
    const int64_t stat = ((int64_t)b * a.heads + h) * a.padded, ranges = (int64_t)b * a.padded;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < plain<tile>::ROWS; i++) {
#pragma unroll
        for (int j = 0; j < plain<tile>::COLUMNS; j++) {
            int own = row + r + 16 * i, stream = other + c + 8 * j, t = keys ? stream : own,
                key = keys ? own : stream;
            int2 see = a.range[ranges + t], hole = attn_hole(a, b, min(t, a.time - 1));
            bool seen = key >= see.x && key <= see.y && !(key >= hole.x && key <= hole.y);
            float slope = 1, score = a.modified ? attn_score(a, h, t, key, s[i][j], &slope) : s[i][j];
            float keep = a.drop.below ? attn_keep(a, a.drop_lines[stat + t], key) : 1.0f;
            float p = seen ? exp2f(fminf(fmaf(score, a.scale2, -a.lse2[stat + t]), 0.0f)) : 0;
            int at = (r + 16 * i) * plain<tile>::PITCH + c + 8 * j;
            wp[at] = p * keep;
            ws[at] = seen ? p * (dp[i][j] * keep - a.delta[stat + t]) * (raw ? 1.0f : slope) : 0;
        }
    }
    __syncwarp();
}

/* A streaming tile at `other`, of query head h and kv head n. */
template <int tile, bool keys>
ON_GPU void meet(const struct attn &a, int b, int h, int n, int row, int other, float *pool,
                 struct plain_rows<tile> &d1, struct plain_rows<tile> &d2)
{
    const int size = tile * plain_pitch(a.size);
    float *own = pool, *stream = pool + 2 * size, *wp = pool + 4 * size, *ws = wp + tile * plain<tile>::PITCH;
    __syncthreads();
    load_side<tile>(a, keys ? query_side(a, b, h) : key_side(a, b, n), stream, other);
    __syncthreads();
    float s[plain<tile>::ROWS][plain<tile>::COLUMNS], dp[plain<tile>::ROWS][plain<tile>::COLUMNS];
    plain_products<tile>(a, own, stream, s);
    plain_products<tile>(a, own + size, stream + size, dp);
    differentiate<tile, keys, false>(a, b, h, row, other, s, dp, wp, ws);
    plain_collect<tile>(a, d1, ws, stream);
    if (keys) plain_collect<tile>(a, d2, wp, stream + size);
}

template <int tile> static __global__ void __launch_bounds__(PLAIN_THREADS, 2) keys_pass(const struct attn a)
{
    float *pool = (float *)shared_pool();
    struct attn_place at = attn_place_of(a.batch * a.kv_heads, (a.keys + tile - 1) / tile, a.section, false);
    const int b = at.head / a.kv_heads, n = at.head % a.kv_heads, row = at.tile * tile;
    const struct side side = key_side(a, b, n);
    const int2 grains = attn_grains(a, b, row, tile);
    load_side<tile>(a, side, pool, row);
    struct plain_rows<tile> dk, dv;
    plain_clear(dk), plain_clear(dv);
    for (int h = n * a.group; h < (n + 1) * a.group; h++) {
        if (grains.y < 0) break;
        const int last = min(a.time - 1, grains.y * ATTN_GRAIN + ATTN_GRAIN - 1);
        for (int t = grains.x * ATTN_GRAIN; t <= last; t += tile)
            meet<tile, true>(a, b, h, n, row, t, pool, dk, dv);
    }
    float by[plain<tile>::ROWS], one[plain<tile>::ROWS];
    for (int i = 0; i < plain<tile>::ROWS; i++) by[i] = a.scale, one[i] = 1;
    plain_store<tile>(a, dk, by, a.dk, side.base, side.stride, row, a.keys);
    plain_store<tile>(a, dv, one, a.dv, side.base, side.stride, row, a.keys);
}

template <int tile>
static __global__ void __launch_bounds__(PLAIN_THREADS, 2) queries_pass(const struct attn a)
{
    float *pool = (float *)shared_pool();
    struct attn_place at = attn_place_of(a.batch * a.heads, (a.time + tile - 1) / tile, a.section, true);
    const int b = at.head / a.heads, h = at.head % a.heads, row = at.tile * tile;
    const struct side side = query_side(a, b, h);
    const struct attn_span all = attn_span_at(a, b, row / ATTN_GRAIN);
    const int2 hidden = plain_hidden(a, b, min(row + (int)threadIdx.x % tile, a.time - 1));
    load_side<tile>(a, side, pool, row);
    struct plain_rows<tile> dq;
    plain_clear(dq);
    for (int key = all.low / tile * tile; key <= all.high; key += tile)
        if (key < hidden.x || key + tile - 1 > hidden.y)
            meet<tile, false>(a, b, h, h / a.group, row, key, pool, dq, dq);
    float by[plain<tile>::ROWS];
    for (int i = 0; i < plain<tile>::ROWS; i++) by[i] = a.scale;
    plain_store<tile>(a, dq, by, a.dq, side.base, side.stride, row, a.time);
}

template <int tile> static int launch(const struct cuda_queue *queue, struct attn *a)
{
    size_t shared = (size_t)(4 * tile * plain_pitch(a->size) + 2 * tile * plain<tile>::PITCH) * 4;
    a->section = attn_section(a, (int64_t)a->time * a->group, a->batch * a->kv_heads, 2);
    int status = attn_launch(keys_pass<tile>, (int64_t)a->batch * a->kv_heads * ((a->keys + tile - 1) / tile),
                             PLAIN_THREADS, shared, queue, a);
    if (status) return status;
    a->section = attn_section(a, a->keys, a->batch * a->heads, 2);
    return attn_launch(queries_pass<tile>, (int64_t)a->batch * a->heads * ((a->time + tile - 1) / tile),
                       PLAIN_THREADS, shared, queue, a);
}

/* ---- gradient of the bias ---------------------------------------------------------------------- */

/* Sums of dS [tile][PITCH] by diagonals, which begin at `offset` = key - query and go on by one, then by buckets. */
template <int tile>
ON_GPU double sum_buckets(const struct attn &a, const float *ws, int offset, float *sums, int *bucket,
                          double sum)
{
    const int lines = 2 * tile - 1, i = (int)threadIdx.x;
    __syncthreads();
    if (i < lines) {
        int shift = i - (tile - 1);
        float all = 0;
        for (int r = max(0, -shift); r < min(tile, tile - shift); r++)
            all += ws[r * plain<tile>::PITCH + r + shift];
        sums[i] = all, bucket[i] = plain_bucket(a.by_distance, offset + shift);
    }
    __syncthreads();
    for (int j = 0; j < lines; j++)
        if (bucket[j] == i) sum += (double)sums[j];
    return sum;
}

template <int tile> static __global__ void __launch_bounds__(PLAIN_THREADS, 2) bias_pass(const struct attn a)
{
    float *pool = (float *)shared_pool();
    const int size = tile * plain_pitch(a.size), head = (int)blockIdx.x / a.bias_tiles, b = head / a.heads,
              h = head % a.heads, row = (int)blockIdx.x % a.bias_tiles * tile;
    float *stream = pool + 2 * size, *wp = pool + 4 * size, *ws = wp + tile * plain<tile>::PITCH,
          *sums = ws + tile * plain<tile>::PITCH;
    const struct attn_span all = attn_span_at(a, b, row / ATTN_GRAIN);
    double sum = 0;
    load_side<tile>(a, query_side(a, b, h), pool, row);
    for (int key = all.low / tile * tile; key <= all.high; key += tile) {
        __syncthreads();
        load_side<tile>(a, key_side(a, b, h / a.group), stream, key);
        __syncthreads();
        float s[plain<tile>::ROWS][plain<tile>::COLUMNS], dp[plain<tile>::ROWS][plain<tile>::COLUMNS];
        plain_products<tile>(a, pool, stream, s);
        plain_products<tile>(a, pool + size, stream + size, dp);
        differentiate<tile, false, true>(a, b, h, row, key, s, dp, wp, ws);
        sum = sum_buckets<tile>(a, ws, key - row, sums, (int *)(sums + 2 * tile), sum);
    }
    if ((int)threadIdx.x < a.buckets)
        a.bucket_sums[(int64_t)blockIdx.x * a.buckets + threadIdx.x] = (float)sum;
}

template <int tile> static int launch_bias(const struct cuda_queue *queue, struct attn *a)
{
    size_t shared = (size_t)(4 * tile * plain_pitch(a->size) + 2 * tile * plain<tile>::PITCH + 4 * tile) * 4;
    a->bias_tiles = (a->time + tile - 1) / tile;
    return attn_launch(bias_pass<tile>, (int64_t)a->batch * a->heads * a->bias_tiles, PLAIN_THREADS, shared,
                       queue, a);
}

} // namespace

extern "C" int cuda_attn_bias_sums(const struct cuda_queue *queue, struct attn *a)
{
    if (a->size > ATTN_MAX_SIZE || a->buckets > BIAS_MAX_BUCKETS) return (int)cudaErrorInvalidValue;
    return a->size > PLAIN_WIDE ? launch_bias<16>(queue, a) : launch_bias<32>(queue, a);
}

extern "C" int cuda_attn_plain_backward(const struct cuda_queue *queue, struct attn *a)
{
    if (a->size > ATTN_MAX_SIZE) return (int)cudaErrorInvalidValue;
    return a->size > PLAIN_WIDE ? launch<16>(queue, a) : launch<32>(queue, a);
}
