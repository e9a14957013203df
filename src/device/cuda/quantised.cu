/* quantised.cu - weights in blocks (tape/quantised.h): few rows are multiplied as they are, for many rows lines become
 * numbers of the compute type first; rows of a table.
 *
 * Codes lie as [16 lines][4 of k]: 16 threads side by side read 64 bytes, each the four codes of its line. A thread makes
 * four numbers at a time, with the scale that they share. */
#include "device/cuda/quantised.h"
#include "device/cuda/vec.cuh"

namespace
{

enum { LINES = 16, SLICES = 16, THREADS = LINES * SLICES };

/* Where a line of 16 is, within the group of 16 blocks that holds element e. */
struct place {
    const unsigned char *group;
    int line;
};

ON_GPU float half_at(const place &p, int field, int i)
{
    const unsigned char *at = p.group + field * LINES + i * 2 * LINES + p.line * 2;
    return __half2float(__ushort_as_half((unsigned short)(at[0] | at[1] << 8)));
}

ON_GPU int byte_at(const place &p, int field, int i) { return p.group[(field + i) * LINES + p.line]; }

/* Bytes [i, i + 4) of a field of codes; i is a multiple of 4. */
ON_GPU unsigned four_at(const place &p, int field, int i)
{
    return *reinterpret_cast<const unsigned *>(p.group + (field + i) * LINES + p.line * 4);
}

ON_GPU int code(unsigned four, int i) { return (int)(four >> (8 * i) & 255); }

template <int TYPE> struct number_tag {
    static constexpr int value = TYPE;
};

/* Elements [e, e + 4) of a block; e is a multiple of 4. One reader for each type, as in tensor/blocks.c. */

ON_GPU void read4(number_tag<BLOCK_Q8_0>, const place &p, int e, float (&v)[4])
{
    float d = half_at(p, 0, 0);
    unsigned q = four_at(p, 2, e);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = d * (float)(signed char)code(q, i);
}

ON_GPU void read4(number_tag<BLOCK_Q4_0>, const place &p, int e, float (&v)[4])
{
    float d = half_at(p, 0, 0);
    unsigned q = four_at(p, 2, e % 16);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = d * (float)((code(q, i) >> (e < 16 ? 0 : 4) & 15) - 8);
}

/* Q4_K, and Q5_K with a fifth bit of each code. */
template <bool FIFTH> ON_GPU void read4_k(const place &p, int e, float (&v)[4])
{
    int part = e / 32, j = part % 4, low = byte_at(p, 4, j), high = byte_at(p, 4, j + 4),
        last = byte_at(p, 4, j + 8);
    int scale = part < 4 ? low & 63 : (last & 15) | low >> 6 << 4;
    int least = part < 4 ? high & 63 : last >> 4 | high >> 6 << 4;
    float d = half_at(p, 0, 0) * (float)scale, m = half_at(p, 0, 1) * (float)least;
    unsigned q = four_at(p, FIFTH ? 48 : 16, part / 2 * 32 + e % 32),
             bits = FIFTH ? four_at(p, 16, e % 32) : 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = __fsub_rn(
            __fmul_rn(d, (float)((code(q, i) >> (part % 2 ? 4 : 0) & 15) | (code(bits, i) >> part & 1) << 4)),
            m);
}

ON_GPU void read4(number_tag<BLOCK_Q4_K>, const place &p, int e, float (&v)[4]) { read4_k<false>(p, e, v); }
ON_GPU void read4(number_tag<BLOCK_Q5_K>, const place &p, int e, float (&v)[4]) { read4_k<true>(p, e, v); }

ON_GPU void read4(number_tag<BLOCK_Q6_K>, const place &p, int e, float (&v)[4])
{
    int half = e / 128, quarter = e % 128 / 32, at = e % 32;
    float d = half_at(p, 208, 0) * (float)(signed char)byte_at(p, 192, e / 16);
    unsigned low = four_at(p, 0, half * 64 + quarter % 2 * 32 + at), high = four_at(p, 128, half * 32 + at);
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = d * (float)(((code(low, i) >> (quarter / 2 * 4) & 15) | (code(high, i) >> (quarter * 2) & 3)
                                                                           << 4) -
                           32);
}

template <int TYPE> struct shape {
    static constexpr int elements = TYPE == BLOCK_Q8_0 || TYPE == BLOCK_Q4_0 ? 32 : 256;
    static constexpr int bytes = TYPE == BLOCK_Q8_0   ? 34
                                 : TYPE == BLOCK_Q4_0 ? 18
                                 : TYPE == BLOCK_Q4_K ? 144
                                 : TYPE == BLOCK_Q5_K ? 176
                                                      : 210;
};

/* Elements [e, e + 4) of a line of the panel. */
template <int TYPE> ON_GPU void panel4(const unsigned char *panel, int line, int64_t e, float (&v)[4])
{
    using S = shape<TYPE>;
    place p = {panel + e / S::elements * (LINES * S::bytes), line};
    read4(number_tag<TYPE>(), p, (int)(e % S::elements), v);
}

template <int TYPE> ON_GPU const unsigned char *panel_of(const unsigned char *w, int64_t panel, int64_t k)
{
    return w + panel * (k / shape<TYPE>::elements) * (LINES * shape<TYPE>::bytes);
}

/* One block of threads for each panel: 16 lines by 16 slices of k, whose sums are added in order. */
template <int TYPE, class T> __global__ void __launch_bounds__(THREADS) few(const cuda_quantised q)
{
    __shared__ float sums[CUDA_FEW_ROWS][SLICES][LINES];
    int line = threadIdx.x % LINES, slice = threadIdx.x / LINES;
    const unsigned char *panel = panel_of<TYPE>(q.w, blockIdx.x, q.k);
    const T *x = (const T *)q.x;
    float sum[CUDA_FEW_ROWS] = {};
    for (int64_t e = slice * 4; e < q.k; e += SLICES * 4) {
        float v[4];
        panel4<TYPE>(panel, line, e, v);
        for (int r = 0; r < q.rows; r++)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[r] = fmaf((float)x[r * q.k + e + i], v[i], sum[r]);
    }
    for (int r = 0; r < q.rows; r++) sums[r][slice][line] = sum[r];
    __syncthreads();
    int64_t m = q.first + (int64_t)blockIdx.x * LINES + line;
    for (int r = slice; r < q.rows; r += SLICES) {
        if ((int64_t)blockIdx.x * LINES + line >= q.lines) continue;
        float all = 0;
        for (int s = 0; s < SLICES; s++) all += sums[r][s][line];
        float extra = q.add ? (float)((const T *)q.add)[r * q.m + m] : 0.0f;
        if (q.bias) extra += (float)((const T *)q.bias)[m];
        ((T *)q.y)[r * q.m + m] = (T)(all + extra);
    }
}

/* Lines as numbers: out[lines][k]. */
template <int TYPE, class T>
__global__ void __launch_bounds__(THREADS) widen(const unsigned char *w, int64_t lines, int64_t k, T *out)
{
    int line = threadIdx.x % LINES, slice = threadIdx.x / LINES;
    int64_t at = (int64_t)blockIdx.x * LINES + line;
    const unsigned char *panel = panel_of<TYPE>(w, blockIdx.x, k);
    for (int64_t e = slice * 4; e < k && at < lines; e += SLICES * 4) {
        float v[4];
        panel4<TYPE>(panel, line, e, v);
#pragma unroll
        for (int i = 0; i < 4; i++) out[at * k + e + i] = (T)v[i];
    }
}

/* One row of y for each block of threads; lines of other parts are left to their own launch. */
template <int TYPE, class T>
__global__ void __launch_bounds__(THREADS) gather(const int32_t *ids, const unsigned char *w, int64_t first,
                                                  int64_t lines, int64_t k, float scale, T *y)
{
    int64_t at = ids[blockIdx.x] - first;
    if (at < 0 || at >= lines) return;
    const unsigned char *panel = panel_of<TYPE>(w, at / LINES, k);
    for (int64_t e = threadIdx.x * 4; e < k; e += THREADS * 4) {
        float v[4];
        panel4<TYPE>(panel, (int)(at % LINES), e, v);
#pragma unroll
        for (int i = 0; i < 4; i++) y[blockIdx.x * k + e + i] = (T)(scale != 0 ? v[i] * scale : v[i]);
    }
}

/* f(number_tag<TYPE>) of a block type. */
template <class F> int with_blocks(int type, F f)
{
    switch (type) {
    case BLOCK_Q8_0:
        return f(number_tag<BLOCK_Q8_0>());
    case BLOCK_Q4_0:
        return f(number_tag<BLOCK_Q4_0>());
    case BLOCK_Q4_K:
        return f(number_tag<BLOCK_Q4_K>());
    case BLOCK_Q5_K:
        return f(number_tag<BLOCK_Q5_K>());
    case BLOCK_Q6_K:
        return f(number_tag<BLOCK_Q6_K>());
    default:
        return (int)cudaErrorInvalidValue;
    }
}

} // namespace

extern "C" int cuda_quantised_few(const struct cuda_queue *queue, const struct cuda_quantised *q)
{
    return with_blocks(q->type, [&](auto number) {
        return with_type(q->x_type, [&](auto tag) {
            using T = typename decltype(tag)::type;
            return start(queue, few<decltype(number)::value, T>, (unsigned)parts_of(q->lines, LINES), THREADS,
                         0, *q);
        });
    });
}

extern "C" int cuda_quantised_widen(const struct cuda_queue *queue, const struct cuda_quantised *q, void *out)
{
    return with_blocks(q->type, [&](auto number) {
        return with_type(q->x_type, [&](auto tag) {
            using T = typename decltype(tag)::type;
            return start(queue, widen<decltype(number)::value, T>, (unsigned)parts_of(q->lines, LINES),
                         THREADS, 0, q->w, q->lines, q->k, (T *)out);
        });
    });
}

extern "C" int cuda_embed_q(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *y = call_out(call, EMBED_Q_Y);
    const struct op_lines *lines = call->op->attr.lines;
    int64_t rows = tensor_count(call_in(call, EMBED_Q_IDS)), k = tensor_count(y) / rows, first = 0;
    const unsigned char *w = (const unsigned char *)call->in[EMBED_Q_W];
    float scale = dtype_round(y->type, call->op->attr.scale);
    int code = 0;
    for (int i = 0; i < OP_LINE_PARTS && lines[i].lines && !code; i++) {
        code = with_blocks(lines[i].type, [&](auto number) {
            return with_type(y->type, [&](auto tag) {
                using T = typename decltype(tag)::type;
                return start(queue, gather<decltype(number)::value, T>, (unsigned)rows, THREADS, 0,
                             (const int32_t *)call->in[EMBED_Q_IDS], w, first, lines[i].lines, k, scale,
                             (T *)call->out[EMBED_Q_Y]);
            });
        });
        first += lines[i].lines;
        w += panels_bytes(block_type_of((uint32_t)lines[i].type), lines[i].lines, k);
    }
    return code;
}
