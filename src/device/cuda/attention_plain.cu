/* attention_plain.cu - attention forward in f32 arithmetic: every type, every head size, every shape.
 *
 * A block has a tile of queries of one head and walks over tiles of keys as attention_forward.cu does, with
 * running maximum, sum and output per row. Products are exact f32: this is what f32 models run on.
 */
#include "device/cuda/attention_plain.cuh"
#include "device/cuda/attention_score.cuh"

namespace
{

/* A thread's query: the keys it sees, the hole in them, where it stands, its random bits. */
struct query {
    int2 see, hole;
    int stands;
    uint32_t line;
};

ON_GPU struct query query_of(const struct attn &a, int b, int h, int t)
{
    struct query q = {attn_visible(a, b, t), attn_hole(a, b, t), attn_stands(a, b, t), 0};
    if (a.drop.below) q.line = attn_drop_line(a, b, h, q.stands);
    return q;
}

ON_GPU bool sees(const struct query &q, int key)
{
    return key >= q.see.x && key <= q.see.y && !(key >= q.hole.x && key <= q.hole.y);
}

/* Scores become probabilities, in registers and in w; what was summed follows the new maximum. */
template <int tile>
ON_GPU void soften(const struct attn &a, int h, float (&s)[plain<tile>::ROWS][plain<tile>::COLUMNS],
                   const struct query (&q)[plain<tile>::ROWS], int key, float *w,
                   float (&top)[plain<tile>::ROWS], float (&sum)[plain<tile>::ROWS],
                   struct plain_rows<tile> &out)
{
    const int r = threadIdx.x / 8, c = threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < plain<tile>::ROWS; i++) {
        float most = top[i];
#pragma unroll
        for (int j = 0; j < plain<tile>::COLUMNS; j++) {
            int at = key + c + 8 * j;
            float slope;
            if (a.modified) s[i][j] = attn_score(a, h, q[i].stands, at, s[i][j], &slope);
            if (!sees(q[i], at)) s[i][j] = -INFINITY;
            most = fmaxf(most, s[i][j]);
        }
        for (int step = 1; step < 8; step *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
        float base = most == -INFINITY ? 0.0f : most, fade = exp2f((top[i] - base) * a.scale2);
        top[i] = most, sum[i] *= fade;
#pragma unroll
        for (int j = 0; j < plain<tile>::COLUMNS; j++) {
            float p = exp2f((s[i][j] - base) * a.scale2);
            float keep = a.drop.below ? attn_keep(a, q[i].line, key + c + 8 * j) : 1.0f;
            w[(r + 16 * i) * plain<tile>::PITCH + c + 8 * j] = p * keep;
            sum[i] += p;
        }
#pragma unroll
        for (int j = 0; j < plain<tile>::QUADS; j++) {
            float4 *x = &out.x[i][j];
            x->x *= fade, x->y *= fade, x->z *= fade, x->w *= fade;
        }
    }
    __syncwarp();
}

template <int tile> static __global__ void __launch_bounds__(PLAIN_THREADS, 2) forward(const struct attn a)
{
    const int r = threadIdx.x / 8, size = tile * plain_pitch(a.size);
    float *queries = (float *)shared_pool(), *keys = queries + size, *values = keys + size,
          *w = values + size;
    struct attn_place at = attn_place_of(a.batch * a.heads, (a.time + tile - 1) / tile, a.section, true);
    const int b = at.head / a.heads, h = at.head % a.heads, n = h / a.group, row = at.tile * tile;
    const int64_t stride = (int64_t)a.heads * a.size, key_stride = (int64_t)a.kv_heads * a.size;
    int t = min(row + (int)threadIdx.x % tile, a.time - 1);
    const struct attn_span all = attn_warp_span(attn_visible(a, b, t), true);
    const int2 hidden = plain_hidden(a, b, t);
    plain_load<tile>(a, queries, a.q, attn_query_at(a, b, 0, h), stride, row, 0, a.time);

    struct query q[plain<tile>::ROWS];
    float top[plain<tile>::ROWS], sum[plain<tile>::ROWS], by[plain<tile>::ROWS];
#pragma unroll
    for (int i = 0; i < plain<tile>::ROWS; i++) {
        q[i] = query_of(a, b, h, min(row + r + 16 * i, a.time - 1));
        top[i] = -INFINITY, sum[i] = 0;
    }
    struct plain_rows<tile> out;
    plain_clear(out);
    for (int key = all.low / tile * tile; key <= all.high; key += tile) {
        if (key >= hidden.x && key + tile - 1 <= hidden.y) continue;
        __syncthreads();
        plain_load<tile>(a, keys, a.k, attn_key_at(a, b, 0, n), key_stride, key, all.low, all.high + 1);
        plain_load<tile>(a, values, a.v, attn_key_at(a, b, 0, n), key_stride, key, all.low, all.high + 1);
        __syncthreads();
        float s[plain<tile>::ROWS][plain<tile>::COLUMNS];
        plain_products<tile>(a, queries, keys, s);
        soften<tile>(a, h, s, q, key, w, top, sum, out);
        plain_collect<tile>(a, out, w, values);
    }
#pragma unroll
    for (int i = 0; i < plain<tile>::ROWS; i++) {
        for (int step = 1; step < 8; step *= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], step);
        const bool blind = sum[i] == 0; /* sees no key */
        by[i] = blind ? 0.0f : 1.0f / sum[i];
        if (threadIdx.x % 8 == 0 && row + r + 16 * i < a.time)
            a.lse[((int64_t)b * a.heads + h) * a.time + row + r + 16 * i] =
                blind ? 0.0f : top[i] * a.top_scale + logf(sum[i]);
    }
    plain_store<tile>(a, out, by, a.o, attn_query_at(a, b, 0, h), stride, row, a.time);
}

template <int tile> static int launch(const struct cuda_queue *queue, struct attn *a)
{
    size_t shared = (size_t)(3 * tile * plain_pitch(a->size) + tile * plain<tile>::PITCH) * 4;
    a->section = attn_section(a, a->keys, a->batch * a->heads, 2);
    return attn_launch(forward<tile>, (int64_t)a->batch * a->heads * ((a->time + tile - 1) / tile),
                       PLAIN_THREADS, shared, queue, a);
}

} // namespace

extern "C" int cuda_attn_plain(const struct cuda_queue *queue, struct attn *a)
{
    if (a->size > ATTN_MAX_SIZE) return (int)cudaErrorInvalidValue;
    return a->size > PLAIN_WIDE ? launch<16>(queue, a) : launch<32>(queue, a);
}
