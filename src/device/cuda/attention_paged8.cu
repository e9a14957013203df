/* attention_paged8.cu - keys and values in 8 bits into blocks, and attention over them (tape/op.h, tensor/kv8.h).
 *
 * Heads that suit the tensor cores are theirs (attention_paged8_decode.cu, attention_paged8_prompt.cu). For others a warp has one line, a
 * query head of one token, and walks over its keys 32 at a time in their order: a lane has the product of the query with one key, then some
 * elements of the values. Nothing of a line depends on others.
 */
#include "device/cuda/fp8_scale.cuh"
#include "device/cuda/attention_codes.cuh"
#include "device/cuda/attention_paged.cuh"
#include "device/cuda/overlap.cuh"
extern "C" {
#include "tensor/kv8.h"
}
#include <cuda_fp8.h>

namespace
{

enum { WARPS = 4, MOST_SIZE = 256, TURNS = MOST_SIZE / 32 };

struct coded {
    const void *q;
    const unsigned char *pool;
    void *o;
    const int32_t *rows, *blocks; /* [R,3], [R,M] */
    int tokens, heads, group, size, nrows, reach;
    int64_t chunk, plane, block,
        layer; /* bytes: of a head, of all heads' keys, of a block; where the layer begins */
    int window;
    float scale, cap;
    bool e4m3;
};

ON_GPU float number_of(const struct coded &a, unsigned char code)
{
    const uint32_t pair = a.e4m3 ? codes_e4m3::pair(code) : codes_i8::pair(code);
    return __half2float(__ushort_as_half((unsigned short)pair));
}

/* The row that has a token, -1: none. */
ON_GPU int row_of(const struct coded &a, int token, int lane)
{
    int row = -1;
    for (int r = lane; r < a.nrows; r += 32)
        if (token >= a.rows[3 * r] && token < a.rows[3 * r] + a.rows[3 * r + 1]) row = r;
    for (int by = 16; by; by /= 2) row = max(row, __shfl_xor_sync(~0u, row, by));
    return row;
}

/* One kv head's keys, or values with `plane`, of the block that has a position. */
ON_GPU const unsigned char *chunk_of(const struct coded &a, int row, int kv, int position, int64_t plane)
{
    int64_t block = a.blocks[(int64_t)row * a.reach + position / KV_BLOCK];
    return a.pool + block * a.block + a.layer + plane + kv * a.chunk;
}

ON_GPU float scale_of(const struct coded &a, const unsigned char *chunk, int position)
{
    return ((const float *)(chunk + KV_BLOCK * a.size))[position % KV_BLOCK];
}

ON_GPU float score(const struct coded &a, const float *q, const unsigned char *chunk, int key)
{
    float dot = 0;
    for (int j = 0; j < a.size; j++)
        dot = fmaf(q[j], number_of(a, chunk[j * KV_BLOCK + key % KV_BLOCK]), dot);
    dot *= scale_of(a, chunk, key) * a.scale;
    return a.cap > 0 ? a.cap * tanhf(dot / a.cap) : dot;
}

/* acc += p v of up to 32 keys from `tile` on; lane i has the p of key tile + i. */
ON_GPU void mix(const struct coded &a, int row, int kv, int tile, int first, int last, float p, int lane,
                float *acc)
{
    for (int i = 0; i < 32; i++) {
        float of_key = __shfl_sync(~0u, p, i);
        int key = tile + i;
        if (key < first || key > last) continue;
        const unsigned char *chunk = chunk_of(a, row, kv, key, a.plane);
        float w = of_key * scale_of(a, chunk, key);
        for (int n = 0; n < TURNS; n++) {
            int j = n * 32 + lane;
            if (j < a.size) acc[n] = fmaf(w, number_of(a, chunk[key % KV_BLOCK * a.size + j]), acc[n]);
        }
    }
}

template <class T> __global__ void attend(const struct coded a)
{
    __shared__ float queries[WARPS][MOST_SIZE];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    next_may_begin();
    await_previous();
    int64_t line = (int64_t)blockIdx.x * WARPS + warp;
    if (line >= (int64_t)a.tokens * a.heads) return;
    int token = (int)(line / a.heads), kv = (int)(line % a.heads) / a.group, row = row_of(a, token, lane);
    T *o = (T *)a.o + line * a.size;
    float *q = queries[warp], acc[TURNS] = {0}, top = -INFINITY, sum = 0;
    for (int j = lane; j < a.size; j += 32) {
        float x[1];
        load<1>((const T *)a.q + line * a.size + j, x);
        q[j] = x[0];
    }
    __syncwarp();
    int last = row < 0 ? -1 : a.rows[3 * row + 2] + token - a.rows[3 * row];
    int first = a.window && last - a.window + 1 > 0 ? last - a.window + 1 : 0;
    for (int tile = first / 32 * 32; tile <= last; tile += 32) {
        int key = tile + lane;
        bool sees = key >= first && key <= last;
        float x = sees ? score(a, q, chunk_of(a, row, kv, key, 0), key) : -INFINITY;
        float best = fmaxf(top, warp_top(x)), fade = top == -INFINITY ? 0 : expf(top - best);
        float p = sees ? expf(x - best) : 0;
        sum = sum * fade + warp_sum(p), top = best;
        for (int n = 0; n < TURNS; n++) acc[n] *= fade;
        mix(a, row, kv, tile, first, last, p, lane, acc);
    }
    for (int n = 0; n < TURNS; n++) {
        float v[1] = {row < 0 ? 0 : acc[n] / sum};
        if (n * 32 + lane < a.size) save<1>(o + n * 32 + lane, v);
    }
}

struct put8 {
    const void *from[2];
    unsigned char *pool;
    const int32_t *slots;
    int64_t tokens, chunk, plane, block, layer;
    int heads, size;
    bool e4m3;
};

/* A block of threads has PUT_TOKENS tokens of one head, keys or values, and PUT_LANES threads a token. Codes of keys meet in shared memory,
 * for neighbours in a block of the pool are neighbours of one element: threads then write an element of all tokens together. */
enum { PUT_TOKENS = 16, PUT_LANES = 16, PUT_THREADS = PUT_TOKENS * PUT_LANES };

/* N codes, 1 or 8, to where they fit. */
template <int N> ON_GPU void put_codes(unsigned char *to, const unsigned (&code)[N])
{
    if constexpr (N == 8)
        *reinterpret_cast<uint2 *>(to) = make_uint2(code[0] | code[1] << 8 | code[2] << 16 | code[3] << 24,
                                                    code[4] | code[5] << 8 | code[6] << 16 | code[7] << 24);
    else
        *to = (unsigned char)code[0];
}

/* Factor of the elements before they are rounded, and scale, of a position with the largest element `most`. */
struct put_scale {
    float times, scale;
};

ON_GPU put_scale put_scale_of(bool e4m3, unsigned most)
{
    if (most >= 0x7f800000u) return {0, NAN};
    const float x = __uint_as_float(most);
    if (!e4m3) return {x > 0 ? __fdiv_rn(127.0f, x) : 0, __fdiv_rn(x, 127.0f)};
    const int e = exponent_for(most, TOP_E4M3);
    return {power_of_two(e), power_of_two(-e)};
}

ON_GPU unsigned put_code(bool e4m3, float x, float times)
{
    if (times == 0) return 0;
    if (e4m3) return __nv_cvt_float_to_fp8(x * times, __NV_SATFINITE, __NV_E4M3);
    return (unsigned char)(signed char)max(-127, min(127, __float2int_rn(x * times)));
}

/* Where the keys or values of a head begin in the block that has a slot. */
ON_GPU unsigned char *put_place(const struct put8 &p, int slot, int head, bool value)
{
    return p.pool + slot / KV_BLOCK * p.block + p.layer + (value ? p.plane : 0) + head * p.chunk;
}

ON_GPU int put_slot(const struct put8 &p, int64_t token) { return token < p.tokens ? p.slots[token] : -1; }

template <class T, int N> __global__ void __launch_bounds__(PUT_THREADS) put(const struct put8 p)
{
    extern __shared__ __align__(16) unsigned char codes[]; /* [PUT_TOKENS][size + 8] */
    const int head = blockIdx.x % p.heads, lane = threadIdx.x % PUT_LANES, mine = threadIdx.x / PUT_LANES;
    const int64_t first = (int64_t)(blockIdx.x / p.heads) * PUT_TOKENS;
    const bool value = blockIdx.y;
    next_may_begin();
    await_previous();
    const int slot = put_slot(p, first + mine), at = slot % KV_BLOCK;
    const int written = value ? -1 : put_slot(p, first + threadIdx.x % PUT_TOKENS);
    const T *from = (const T *)(value ? p.from[1] : p.from[0]) + ((first + mine) * p.heads + head) * p.size;
    unsigned char *to = slot < 0 ? codes : put_place(p, slot, head, value);
    unsigned most = 0;
    float v[N];
    for (int j = lane * N; j < p.size && slot >= 0; j += PUT_LANES * N) {
        load(from + j, v);
#pragma unroll
        for (int n = 0; n < N; n++) most = larger(most, __float_as_uint(v[n]) & 0x7fffffffu);
    }
#pragma unroll
    for (int by = PUT_LANES / 2; by; by /= 2) most = larger(most, __shfl_xor_sync(~0u, most, by));
    const put_scale s = put_scale_of(p.e4m3, most);
    if (lane == 0 && slot >= 0) ((float *)(to + KV_BLOCK * p.size))[at] = s.scale;
    for (int j = lane * N; j < p.size && slot >= 0; j += PUT_LANES * N) {
        unsigned code[N];
        load(from + j, v);
#pragma unroll
        for (int n = 0; n < N; n++) code[n] = put_code(p.e4m3, v[n], s.times);
        put_codes(value ? to + at * p.size + j : codes + mine * (p.size + 8) + j, code);
    }
    if (value) return;
    __syncthreads();
    if (written < 0) return;
    const unsigned char *own = codes + threadIdx.x % PUT_TOKENS * (p.size + 8);
    unsigned char *column = put_place(p, written, head, false) + written % KV_BLOCK;
    for (int j = threadIdx.x / PUT_TOKENS; j < p.size; j += PUT_THREADS / PUT_TOKENS)
        column[j * KV_BLOCK] = own[j];
}

} // namespace

extern "C" int cuda_kv_put8(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *k = call_in(call, KV_PUT_K), *pool = call_in(call, KV_PUT_POOL);
    void *to = call->out[KV_PUT_NEW_POOL];
    if (to != call->in[KV_PUT_POOL]) {
        int failed = (int)cudaMemcpyAsync(to, call->in[KV_PUT_POOL], (size_t)tensor_bytes(pool),
                                          cudaMemcpyDefault, stream_of(queue));
        if (failed) return failed;
    }
    struct put8 p = {{call->in[KV_PUT_K], call->in[KV_PUT_V]},
                     (unsigned char *)to,
                     (const int32_t *)call->in[KV_PUT_SLOTS]};
    p.heads = (int)k->dim[2], p.size = (int)k->dim[3], p.tokens = k->dim[0] * k->dim[1];
    p.chunk = pool->dim[3], p.plane = pool->dim[2] * p.chunk, p.block = pool->dim[1] * p.plane;
    p.layer = 2 * (call->op->layer > 0 ? call->op->layer : 0) * p.plane, p.e4m3 = call->op->attr.e4m3;
    const dim3 blocks((unsigned)(parts_of(p.tokens, PUT_TOKENS) * p.heads), 2);
    const size_t shared = PUT_TOKENS * (size_t)(p.size + 8);
    const bool packets = p.size % 8 == 0 && aligned(p.from[0], p.from[1], to);
    return with_type(k->type, [&](auto t) {
        using T = typename decltype(t)::type;
        return launch(queue, packets ? put<T, 8> : put<T, 1>, blocks, PUT_THREADS, shared, p);
    });
}

extern "C" int cuda_attn_paged8(const struct cuda_queue *queue, const struct kernel_call *call)
{
    if (cuda_paged_on_tensor_cores(call->desc)) {
        const struct paged p = cuda_paged_of(call);
        int failed = cuda_paged8_decode(queue, &p);
        return failed || p.tokens <= p.nrows ? failed : cuda_paged8_prompt(queue, &p);
    }
    const struct tensor *q = call_in(call, ATTN_PAGED_Q), *pool = call_in(call, ATTN_PAGED_POOL),
                        *blocks = call_in(call, ATTN_PAGED_BLOCKS);
    struct coded a = {call->in[ATTN_PAGED_Q], (const unsigned char *)call->in[ATTN_PAGED_POOL],
                      call->out[ATTN_PAGED_O]};
    a.rows = (const int32_t *)call->in[ATTN_PAGED_ROWS],
    a.blocks = (const int32_t *)call->in[ATTN_PAGED_BLOCKS];
    a.tokens = (int)(q->dim[0] * q->dim[1]), a.heads = (int)q->dim[2], a.size = (int)q->dim[3];
    a.group = a.heads / (int)pool->dim[2], a.nrows = (int)blocks->dim[0], a.reach = (int)blocks->dim[1];
    a.chunk = pool->dim[3], a.plane = pool->dim[2] * a.chunk, a.block = pool->dim[1] * a.plane;
    a.layer = 2 * (call->op->layer > 0 ? call->op->layer : 0) * a.plane;
    a.window = call->op->attr.window, a.scale = call->op->attr.scale, a.cap = call->op->attr.cap,
    a.e4m3 = call->op->attr.e4m3;
    if (a.size > MOST_SIZE) return (int)cudaErrorInvalidValue;
    return with_type(q->type, [&](auto t) {
        using T = typename decltype(t)::type;
        return launch(queue, attend<T>, parts_of((int64_t)a.tokens * a.heads, WARPS), 32 * WARPS, 0, a);
    });
}
