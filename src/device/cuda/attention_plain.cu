/* attention_plain.cu - attention forward in f32 arithmetic: every type, every head size, every shape.
 *
 * A block has a tile of queries of one head and walks over tiles of keys as attention_forward.cu does, with
 * running maximum, sum and output per row. Products are exact f32: this is what f32 models run on.
 */
#include "device/cuda/attention_plain.cuh"

namespace
{

/* Scores become probabilities, in registers and in w; what was summed follows the new maximum. */
template <int tile>
static __device__ __forceinline__ void
soften(const struct attn &a, float (&s)[plain<tile>::ROWS][plain<tile>::COLUMNS],
       const int2 (&see)[plain<tile>::ROWS], int key, float *w, float (&top)[plain<tile>::ROWS],
       float (&sum)[plain<tile>::ROWS], struct plain_rows<tile> &out)
{
    const int r = threadIdx.x / 8, c = threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < plain<tile>::ROWS; i++) {
        float most = top[i];
#pragma unroll
        for (int j = 0; j < plain<tile>::COLUMNS; j++) {
            int at = key + c + 8 * j;
            if (at < see[i].x || at > see[i].y) s[i][j] = -INFINITY;
            most = fmaxf(most, s[i][j]);
        }
        for (int step = 1; step < 8; step *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
        float base = most == -INFINITY ? 0.0f : most * a.scale2, fade = exp2f(top[i] * a.scale2 - base);
        top[i] = most, sum[i] *= fade;
#pragma unroll
        for (int j = 0; j < plain<tile>::COLUMNS; j++) {
            float p = exp2f(fmaf(s[i][j], a.scale2, -base));
            w[(r + 16 * i) * plain<tile>::PITCH + c + 8 * j] = p;
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
    plain_load<tile>(a, queries, a.q, attn_query_at(a, b, 0, h), stride, row, 0, a.time);

    int2 see[plain<tile>::ROWS];
    float top[plain<tile>::ROWS], sum[plain<tile>::ROWS], by[plain<tile>::ROWS];
#pragma unroll
    for (int i = 0; i < plain<tile>::ROWS; i++) {
        see[i] = attn_visible(a, b, min(row + r + 16 * i, a.time - 1));
        top[i] = -INFINITY, sum[i] = 0;
    }
    struct plain_rows<tile> out;
    plain_clear(out);
    for (int key = all.low / tile * tile; key <= all.high; key += tile) {
        __syncthreads();
        plain_load<tile>(a, keys, a.k, attn_key_at(a, b, 0, n), key_stride, key, all.low, all.high + 1);
        plain_load<tile>(a, values, a.v, attn_key_at(a, b, 0, n), key_stride, key, all.low, all.high + 1);
        __syncthreads();
        float s[plain<tile>::ROWS][plain<tile>::COLUMNS];
        plain_products<tile>(a, queries, keys, s);
        soften<tile>(a, s, see, key, w, top, sum, out);
        plain_collect<tile>(a, out, w, values);
    }
#pragma unroll
    for (int i = 0; i < plain<tile>::ROWS; i++) {
        for (int step = 1; step < 8; step *= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], step);
        by[i] = 1.0f / sum[i];
        if (threadIdx.x % 8 == 0 && row + r + 16 * i < a.time)
            a.lse[((int64_t)b * a.heads + h) * a.time + row + r + 16 * i] = top[i] * a.scale + logf(sum[i]);
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
