/* rope.cu - rotary positions: the table of cosines and sines once per batch; the rotation once per layer, on the way
 * from joint rows of queries, keys and values to three tensors and, of gradients, back.
 *
 * Of few rows, when tokens are generated, keys and values go into their blocks in the same launch (tape/op.h, kv_put): between
 * two of the short kernels of a token the memory rests. Where attention follows and has a kernel for it, that does both
 * (attention_paged_fresh.cuh).
 *
 * A joint row is all heads one after the other, [0, H) of q, [H, H + K) of k, then those of v. A thread keeps N
 * cosines and sines and turns the same N pairs of several heads with them; heads of v it only moves. */
#include "device/cuda/move.cuh"
#include "device/cuda/rotation.cuh"

namespace
{

enum { THREADS = 256, HEADS = 4 }; /* heads a thread turns */

/* The angle is one fp32 product, as in the models' own code: positions are trained with that rounding. Turned
 * into half turns in fp64 its error stays below 1e-9 up to positions of many millions. */
static __global__ void __launch_bounds__(THREADS)
    fill_table(const int32_t *pos, const float *inv_freq, float *table, int64_t rows, int64_t half,
               float scale)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, k, r = divide(i, half, &k);
    next_may_begin();
    await_previous();
    if (i >= rows * half) return;
    double s, c, angle = (double)__fmul_rn((float)pos[r], inv_freq[k]);
    sincospi(angle * 0.31830988618379067154, &s, &c);
    table[r * 2 * half + k] = (float)c * scale;
    table[r * 2 * half + half + k] = (float)s * scale;
}

template <class T> struct parts {
    T *whole, *part[3];                 /* [R,H+2K,D]; q [R,H,D], k and v [R,K,D] */
    const float *table;                 /* [R,2 half] */
    int64_t rows, heads[2], size, half; /* of a head's numbers the first 2 half are rotated */
    bool join;
};

/* Where head h of row r is in its own tensor. */
template <class T> ON_GPU T *own_place(const parts<T> &p, int64_t r, int64_t h)
{
    if (h < p.heads[0]) return p.part[0] + (r * p.heads[0] + h) * p.size;
    h -= p.heads[0];
    bool value = h >= p.heads[1];
    return (value ? p.part[2] : p.part[1]) + (r * p.heads[1] + h - (value ? p.heads[1] : 0)) * p.size;
}

template <class T, int N>
ON_GPU void turn(const packet<T, N> &a, const packet<T, N> &b, const float (&c)[N], const float (&s)[N],
                 T *to, int64_t half)
{
    float x1[N], x2[N];
    unpack(a, x1), unpack(b, x2);
#pragma unroll
    for (int k = 0; k < N; k++) turn_pair(x1[k], x2[k], c[k], s[k]);
    save(to, x1), save(to + half, x2);
}

/* Thread i: packet u of each half, heads g, g + groups, ... of row r. */
template <class T, int N> __global__ void __launch_bounds__(THREADS) rotate(parts<T> p, int64_t groups)
{
    int64_t packets = p.half / N, turned = p.heads[0] + p.heads[1], heads = turned + p.heads[1], u, g;
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, r = divide(divide(i, packets, &u), groups, &g);
    next_may_begin();
    await_previous();
    if (r >= p.rows) return;
    packet<T, N> x[HEADS][2];
    T *to[HEADS];
#pragma unroll
    for (int j = 0; j < HEADS; j++) {
        int64_t h = g + j * groups;
        if (h >= heads) continue;
        T *own = own_place(p, r, h) + u * N, *joint = p.whole + (r * heads + h) * p.size + u * N;
        const T *from = p.join ? own : joint;
        to[j] = p.join ? joint : own;
        x[j][0] = fetch<T, N>(from), x[j][1] = fetch<T, N>(from + p.half);
    }
    float c[N], s[N];
    load(p.table + r * 2 * p.half + u * N, c);
    load(p.table + r * 2 * p.half + p.half + u * N, s);
#pragma unroll
    for (int k = 0; k < N; k++) s[k] = p.join ? -s[k] : s[k];
#pragma unroll
    for (int j = 0; j < HEADS; j++) {
        int64_t h = g + j * groups;
        if (h < turned)
            turn<T, N>(x[j][0], x[j][1], c, s, to[j], p.half);
        else if (h < heads)
            store(to[j], x[j][0]), store(to[j] + p.half, x[j][1]);
    }
}

/* Where keys and values of a layer go. */
template <class T> struct blocks {
    T *pool;
    const int32_t *slots; /* [R] */
    int64_t block, plane, layer;
};

/* Number d of head h of the keys or of the values (plane 0 or 1) of a slot. */
template <class T>
ON_GPU T *block_place(const blocks<T> &b, int slot, int64_t plane, int64_t h, int64_t d, int64_t size)
{
    T *head = b.pool + slot / KV_BLOCK * b.block + b.layer + plane * b.plane + h * KV_BLOCK * size;
    int64_t at = slot % KV_BLOCK;
    return head + (plane ? at * size + d : d * KV_BLOCK + at);
}

/* Thread i: pair u of head h of row r, to its own tensor and, of keys and values, into its block. Whole heads are turned. */
template <class T> __global__ void __launch_bounds__(THREADS) rotate_put(parts<T> p, blocks<T> b)
{
    int64_t turned = p.heads[0] + p.heads[1], heads = turned + p.heads[1], u, h;
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, r = divide(divide(i, p.half, &u), heads, &h);
    next_may_begin();
    const int slot = r < p.rows ? b.slots[r] : -1; /* an input */
    await_previous();
    if (r >= p.rows) return;
    float x1[1], x2[1], c[1], s[1];
    const T *from = p.whole + (r * heads + h) * p.size + u;
    T *to = own_place(p, r, h) + u;
    load<1>(from, x1), load<1>(from + p.half, x2);
    load<1>(p.table + r * 2 * p.half + u, c), load<1>(p.table + r * 2 * p.half + p.half + u, s);
    if (h < turned) turn_pair(x1[0], x2[0], c[0], s[0]);
    save<1>(to, x1), save<1>(to + p.half, x2);
    if (h < p.heads[0] || slot < 0) return;
    const int64_t plane = h >= turned, head = h - (plane ? turned : p.heads[0]);
    save<1>(block_place(b, slot, plane, head, u, p.size), x1);
    save<1>(block_place(b, slot, plane, head, u + p.half, p.size), x2);
}

/* Elements of each head that are not rotated: word i of [R][heads][words of the rest]. */
template <class T> struct rests {
    parts<T> p;
    int64_t words; /* of one rest */
    template <class W> __device__ __forceinline__ const W *find(int64_t i, W **to) const
    {
        int64_t column, h, heads = p.heads[0] + 2 * p.heads[1],
                           r = divide(divide(i, words, &column), heads, &h);
        W *own = (W *)(own_place(p, r, h) + 2 * p.half) + column,
          *joint = (W *)(p.whole + (r * heads + h) * p.size + 2 * p.half) + column;
        *to = p.join ? joint : own;
        return p.join ? own : joint;
    }
};

template <class T> static int move_rests(const struct cuda_queue *queue, const parts<T> &p)
{
    int64_t rest = p.size - 2 * p.half;
    if (rest == 0 || p.whole == p.part[0]) return 0; /* in place they lie where they are wanted */
    bool wide = rest * sizeof(T) % 16 == 0 && p.size * sizeof(T) % 16 == 0 &&
                aligned(p.whole, p.part[0], p.part[1], p.part[2]);
    int64_t word = wide ? 16 : (int64_t)sizeof(T), words = rest * (int64_t)sizeof(T) / word;
    return run_move(queue, rests<T>{p, words}, p.rows * (p.heads[0] + 2 * p.heads[1]) * words, word);
}

template <class T> static int run_rotate(const struct cuda_queue *queue, const parts<T> &p)
{
    int64_t groups = parts_of(p.heads[0] + 2 * p.heads[1], HEADS), work = p.rows * groups * p.half;
    bool wide = p.half % lanes<T> == 0 && p.size % lanes<T> == 0 &&
                aligned(p.whole, p.part[0], p.part[1], p.part[2], p.table);
    if (work == 0) return 0;
    int64_t blocks = parts_of(wide ? work / lanes<T> : work, THREADS);
    int failed = launch(queue, wide ? rotate<T, lanes<T>> : rotate<T, 1>, blocks, THREADS, 0, p, groups);
    return failed ? failed : move_rests(queue, p);
}

/* Without a rotation: word i of the joint rows against its place in a part. */
struct places {
    void *whole, *part[3];
    int64_t width[2]; /* words of a row of q, of k and v */
    bool join;
    template <class W> __device__ __forceinline__ const W *find(int64_t i, W **to) const
    {
        int64_t column, row = divide(i, width[0] + 2 * width[1], &column);
        W *own = (W *)part[0] + row * width[0] + column, *joint = (W *)whole + i;
        if (column >= width[0]) {
            column -= width[0];
            bool value = column >= width[1];
            own = (W *)(value ? part[2] : part[1]) + row * width[1] + column - (value ? width[1] : 0);
        }
        *to = join ? joint : own;
        return join ? own : joint;
    }
};

template <class T>
static int run_parts(const struct cuda_queue *queue, const struct tensor *q, const struct tensor *k,
                     void *const *part, void *whole, void *table, int64_t turned, bool join)
{
    int64_t rows = q->dim[0] * q->dim[1], size = q->dim[3], heads[2] = {q->dim[2], k->dim[2]};
    if (table)
        return run_rotate<T>(queue, {(T *)whole,
                                     {(T *)part[0], (T *)part[1], (T *)part[2]},
                                     (const float *)table,
                                     rows,
                                     {heads[0], heads[1]},
                                     size,
                                     turned / 2,
                                     join});
    bool wide = size * sizeof(T) % 16 == 0 && aligned(whole, part[0], part[1], part[2]);
    int64_t word = wide ? 16 : (int64_t)sizeof(T), words = size * (int64_t)sizeof(T) / word;
    places p = {whole, {part[0], part[1], part[2]}, {heads[0] * words, heads[1] * words}, join};
    return run_move(queue, p, rows * (heads[0] + 2 * heads[1]) * words, word);
}

/* Numbers of a head that an optional table rotates. */
static int64_t turned_by(const struct kernel_call *call, int slot)
{
    return call->in[slot] ? call_in(call, slot)->dim[2] : 0;
}

} // namespace

int cuda_rope_table(const struct cuda_queue *queue, const struct kernel_call *call)
{
    int64_t rows = tensor_count(call_in(call, ROPE_TABLE_POS)),
            half = tensor_count(call_in(call, ROPE_TABLE_INV_FREQ));
    if (rows * half == 0) return 0;
    return launch(queue, fill_table, parts_of(rows * half, THREADS), THREADS, 0,
                  (const int32_t *)call->in[ROPE_TABLE_POS], (const float *)call->in[ROPE_TABLE_INV_FREQ],
                  (float *)call->out[ROPE_TABLE_TABLE], rows, half,
                  call->op->attr.scale == 0 ? 1.0f : call->op->attr.scale);
}

/* A part that is all queries: from the joint rows to their own, or back. */
int cuda_rope(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *x = call_in(call, ROPE_X);
    bool back = call->op->attr.back;
    void *joint = back ? call->out[ROPE_Y] : call->in[ROPE_X],
         *own = back ? call->in[ROPE_X] : call->out[ROPE_Y];
    return with_type(x->type, [&](auto t) {
        using T = typename decltype(t)::type;
        return run_rotate<T>(queue, {(T *)joint,
                                     {(T *)own, (T *)own, (T *)own},
                                     (const float *)call->in[ROPE_TABLE],
                                     x->dim[0] * x->dim[1],
                                     {x->dim[2], 0},
                                     x->dim[3],
                                     call_in(call, ROPE_TABLE)->dim[2] / 2,
                                     back});
    });
}

int cuda_split3(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return with_type(call_in(call, SPLIT3_X)->type, [&](auto t) {
        return run_parts<typename decltype(t)::type>(
            queue, call_out(call, SPLIT3_Q), call_out(call, SPLIT3_K), call->out, call->in[SPLIT3_X],
            call->in[SPLIT3_TABLE], turned_by(call, SPLIT3_TABLE), false);
    });
}

bool cuda_split3_puts(const struct kernel_call *split, const struct kernel_call *put)
{
    const struct tensor *q = call_out(split, SPLIT3_Q);
    return turned_by(split, SPLIT3_TABLE) == q->dim[3] && q->dim[0] * q->dim[1] <= CUDA_FEW_ROWS &&
           put->in[KV_PUT_POOL] == put->out[KV_PUT_NEW_POOL] && call_in(put, KV_PUT_POOL)->type == q->type;
}

int cuda_split3_put(const struct cuda_queue *queue, const struct kernel_call *split,
                    const struct kernel_call *put)
{
    const struct tensor *q = call_out(split, SPLIT3_Q), *k = call_out(split, SPLIT3_K),
                        *pool = call_in(put, KV_PUT_POOL);
    int64_t rows = q->dim[0] * q->dim[1], size = q->dim[3], heads = q->dim[2] + 2 * k->dim[2];
    int64_t plane = k->dim[2] * KV_BLOCK * size, layer = put->op->layer > 0 ? put->op->layer : 0;
    if (rows == 0) return 0;
    return with_type(q->type, [&](auto t) {
        using T = typename decltype(t)::type;
        parts<T> p = {(T *)split->in[SPLIT3_X],
                      {(T *)split->out[SPLIT3_Q], (T *)split->out[SPLIT3_K], (T *)split->out[SPLIT3_V]},
                      (const float *)split->in[SPLIT3_TABLE],
                      rows,
                      {q->dim[2], k->dim[2]},
                      size,
                      size / 2,
                      false};
        blocks<T> b = {(T *)put->out[KV_PUT_NEW_POOL], (const int32_t *)put->in[KV_PUT_SLOTS],
                       pool->dim[1] * plane, plane, 2 * layer * plane};
        return launch(queue, rotate_put<T>, parts_of(rows * heads * p.half, THREADS), THREADS, 0, p, b);
    });
}

int cuda_join3(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return with_type(call_in(call, JOIN3_Q)->type, [&](auto t) {
        return run_parts<typename decltype(t)::type>(queue, call_in(call, JOIN3_Q), call_in(call, JOIN3_K),
                                                     call->in, call->out[JOIN3_X], call->in[JOIN3_TABLE],
                                                     turned_by(call, JOIN3_TABLE), true);
    });
}
