/* rope.cu - rotary positions: the table of cosines and sines once per batch, the rotation once per layer.
 *
 * Queries and keys are one launch: heads [0, H) are those of q, [H, H + K) those of k. A thread keeps N
 * cosines and sines and turns the same N pairs of several heads with them. */
#include "device/cuda/vec.cuh"

namespace
{

enum { THREADS = 256, HEADS = 4 }; /* heads a thread turns */

/* The angle is one fp32 product, as in the models' own code: positions are trained with that rounding. Turned
 * into half turns in fp64 its error stays below 1e-9 up to positions of many millions. */
static __global__ void __launch_bounds__(THREADS)
    fill_table(const int32_t *pos, const float *inv_freq, float *table, int64_t rows, int64_t half)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, k, r = divide(i, half, &k);
    if (i >= rows * half) return;
    double s, c, angle = (double)__fmul_rn((float)pos[r], inv_freq[k]);
    sincospi(angle * 0.31830988618379067154, &s, &c);
    table[r * 2 * half + k] = (float)c;
    table[r * 2 * half + half + k] = (float)s;
}

template <class T> struct rotation {
    const T *from[2]; /* q [R,H,D], k [R,K,D] */
    T *to[2];
    const float *table; /* [R,D] */
    int64_t rows, heads[2], half;
    float sign;
};

/* Where the pairs of head h of row r begin in operand 0 or 1. */
template <class T> ON_GPU int64_t place(const rotation<T> &p, int64_t r, int64_t h, bool key)
{
    return key ? (r * p.heads[1] + h - p.heads[0]) * 2 * p.half : (r * p.heads[0] + h) * 2 * p.half;
}

template <class T, int N>
ON_GPU void turn(const packet<T, N> &a, const packet<T, N> &b, const float (&c)[N], const float (&s)[N],
                 T *to, int64_t half)
{
    float x1[N], x2[N], y1[N], y2[N];
    unpack(a, x1), unpack(b, x2);
#pragma unroll
    for (int k = 0; k < N; k++) {
        y1[k] = fmaf(-x2[k], s[k], x1[k] * c[k]);
        y2[k] = fmaf(x1[k], s[k], x2[k] * c[k]);
    }
    save(to, y1), save(to + half, y2);
}

/* Thread i: packet u of each half, heads g, g + groups, ... of row r. */
template <class T, int N> __global__ void __launch_bounds__(THREADS) rotate(rotation<T> p, int64_t groups)
{
    int64_t packets = p.half / N, heads = p.heads[0] + p.heads[1], u, g;
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, r = divide(divide(i, packets, &u), groups, &g);
    if (r >= p.rows) return;
    packet<T, N> x[HEADS][2];
#pragma unroll
    for (int j = 0; j < HEADS; j++) {
        int64_t h = g + j * groups;
        if (h >= heads) continue;
        bool key = h >= p.heads[0];
        const T *from = (key ? p.from[1] : p.from[0]) + place(p, r, h, key) + u * N;
        x[j][0] = fetch<T, N>(from), x[j][1] = fetch<T, N>(from + p.half);
    }
    float c[N], s[N];
    load(p.table + r * 2 * p.half + u * N, c);
    load(p.table + r * 2 * p.half + p.half + u * N, s);
#pragma unroll
    for (int k = 0; k < N; k++) s[k] *= p.sign;
#pragma unroll
    for (int j = 0; j < HEADS; j++) {
        int64_t h = g + j * groups;
        if (h >= heads) continue;
        bool key = h >= p.heads[0];
        turn<T, N>(x[j][0], x[j][1], c, s, (key ? p.to[1] : p.to[0]) + place(p, r, h, key) + u * N, p.half);
    }
}

template <class T> static int run(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *q = call_in(call, 0), *k = call_in(call, 1);
    rotation<T> p = {{(const T *)call->in[0], (const T *)call->in[1]},
                     {(T *)call->out[0], (T *)call->out[1]},
                     (const float *)call->in[2],
                     q->dim[0] * q->dim[1],
                     {q->dim[2], k->dim[2]},
                     q->dim[3] / 2,
                     call->op->attr.inverse ? -1.0f : 1.0f};
    int64_t groups = parts_of(p.heads[0] + p.heads[1], HEADS), work = p.rows * groups * p.half;
    bool wide = p.half % lanes<T> == 0 && aligned(p.from[0], p.from[1], p.to[0], p.to[1], p.table);
    if (work == 0) return 0;
    if (wide)
        rotate<T, lanes<T>>
            <<<(unsigned)parts_of(work / lanes<T>, THREADS), THREADS, 0, stream_of(queue)>>>(p, groups);
    else
        rotate<T, 1><<<(unsigned)parts_of(work, THREADS), THREADS, 0, stream_of(queue)>>>(p, groups);
    return launched();
}

} // namespace

int cuda_rope_table(const struct cuda_queue *queue, const struct kernel_call *call)
{
    int64_t rows = tensor_count(call_in(call, 0)), half = tensor_count(call_in(call, 1));
    if (rows * half == 0) return 0;
    fill_table<<<(unsigned)parts_of(rows * half, THREADS), THREADS, 0, stream_of(queue)>>>(
        (const int32_t *)call->in[0], (const float *)call->in[1], (float *)call->out[0], rows, half);
    return launched();
}

int cuda_rope(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return with_type(call_in(call, 0)->type,
                     [&](auto t) { return run<typename decltype(t)::type>(queue, call); });
}
