/* quantised.cu - weights in blocks (tape/quantised.h) as numbers: lines of a product with many rows, rows of a table.
 *
 * Codes lie as [16 lines][4 of k]: 16 threads side by side read 64 bytes, each the four codes of its line. A thread makes
 * four numbers at a time, with the scale that they share. */
#include "device/cuda/overlap.cuh"
#include "device/cuda/quantised.h"
#include "device/cuda/quantised_types.cuh"

namespace
{

enum { LINES = PANEL_LINES, THREADS = 256 };

/* Where a line of 16 is, within the group of 16 blocks that holds element e. */
struct place {
    const unsigned char *group;
    int line;
};

ON_GPU float half_at(const place &p, int field, int i)
{
    return ::half_at((const char *)p.group + field * LINES + i * 2 * LINES + p.line * 2);
}

ON_GPU int byte_at(const place &p, int field, int i) { return p.group[(field + i) * LINES + p.line]; }

/* Bytes [i, i + 4) of a field of codes; i is a multiple of 4. */
ON_GPU unsigned four_at(const place &p, int field, int i)
{
    return *reinterpret_cast<const unsigned *>(p.group + (field + i) * LINES + p.line * 4);
}

ON_GPU int code(unsigned four, int i) { return (int)(four >> (8 * i) & 255); }

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

/* Elements [e, e + 4) of a line of the panel. */
template <int TYPE> ON_GPU void panel4(const unsigned char *panel, int line, int64_t e, float (&v)[4])
{
    using B = blocks<TYPE>;
    place p = {panel + e / B::elements * B::block_bytes, line};
    read4(number_tag<TYPE>(), p, (int)(e % B::elements), v);
}

template <int TYPE> ON_GPU const unsigned char *panel_of(const unsigned char *w, int64_t panel, int64_t k)
{
    return w + panel * (k / blocks<TYPE>::elements) * blocks<TYPE>::block_bytes;
}

/* Lines as numbers: out[lines][k]. A warp has 512 bytes of each line of a panel: lanes make 8 numbers of a line each, side by
 * side as codes lie, and write whole lines by way of shared memory. */
enum { WIDE_WARPS = 4, WIDE_BYTES = 512 };

template <int TYPE, class T>
__global__ void __launch_bounds__(WIDE_WARPS * 32)
    widen(const unsigned char *w, int64_t lines, int64_t k, int pieces, T *out)
{
    constexpr int COLUMNS = WIDE_BYTES / (int)sizeof(T), PACKET = 8 * (int)sizeof(T);
    __shared__ __align__(16) char tiles[WIDE_WARPS][LINES][WIDE_BYTES + 16];
    const int lane = threadIdx.x % 32, line = lane % LINES;
    const int64_t task = (int64_t)blockIdx.x * WIDE_WARPS + threadIdx.x / 32, panel = task / pieces,
                  first = task % pieces * COLUMNS;
    const int columns = (int)min((int64_t)COLUMNS, k - first);
    if (panel * LINES >= lines) return;
    const unsigned char *from = panel_of<TYPE>(w, panel, k);
    char(*tile)[WIDE_BYTES + 16] = tiles[threadIdx.x / 32];
#pragma unroll 4
    for (int c = lane / LINES * 8; c < columns; c += 16) {
        float low[4], high[4];
        panel4<TYPE>(from, line, first + c, low), panel4<TYPE>(from, line, first + c + 4, high);
        const float v[8] = {low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]};
        store((T *)(tile[line] + c / 8 * PACKET), pack<T>(v));
    }
    __syncwarp();
#pragma unroll 4
    for (int i = 0; i < LINES; i++)
        if (panel * LINES + i < lines && lane * 16 < columns * (int)sizeof(T))
            *(uint4 *)((char *)(out + (panel * LINES + i) * k + first) + lane * 16) =
                *(const uint4 *)(tile[i] + lane * 16);
}

/* One row of y for each block of threads; lines of other parts are left to their own launch. */
template <int TYPE, class T>
__global__ void __launch_bounds__(THREADS) gather(const int32_t *ids, const unsigned char *w, int64_t first,
                                                  int64_t lines, int64_t k, float scale, T *y)
{
    next_may_begin();
    await_previous();
    int64_t at = ids[blockIdx.x] - first;
    if (at < 0 || at >= lines) return;
    const unsigned char *panel = panel_of<TYPE>(w, at / LINES, k);
    for (int64_t e = threadIdx.x * 4; e < k; e += THREADS * 4) {
        float v[4];
        panel4<TYPE>(panel, (int)(at % LINES), e, v);
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = scale != 0 ? v[i] * scale : v[i];
        save(y + blockIdx.x * k + e, v);
    }
}

} // namespace

extern "C" int cuda_quantised_widen(const struct cuda_queue *queue, const struct cuda_q_part *part,
                                    int64_t first, int64_t lines, int64_t k, enum dtype type, void *out)
{
    return with_blocks(part->type, [&](auto number) {
        return with_type(type, [&](auto tag) {
            using T = typename decltype(tag)::type;
            using B = blocks<decltype(number)::value>;
            const unsigned char *w = part->w + first / LINES * (k / B::elements) * B::block_bytes;
            const int64_t pieces = parts_of(k * (int64_t)sizeof(T), WIDE_BYTES);
            return start(queue, widen<decltype(number)::value, T>,
                         (unsigned)parts_of(parts_of(lines, LINES) * pieces, WIDE_WARPS), WIDE_WARPS * 32, 0,
                         w, lines, k, (int)pieces, (T *)out);
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
                return launch(queue, gather<decltype(number)::value, T>, rows, THREADS, 0,
                              (const int32_t *)call->in[EMBED_Q_IDS], w, first, lines[i].lines, k, scale,
                              (T *)call->out[EMBED_Q_Y]);
            });
        });
        first += lines[i].lines;
        w += panels_bytes(block_type_of((uint32_t)lines[i].type), lines[i].lines, k);
    }
    return code;
}
