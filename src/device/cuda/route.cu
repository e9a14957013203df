/* route.cu - the router of a mixture of experts: a stable sort of rows by expert, in four small kernels.
 *
 * A warp chooses a row's experts. Blocks of CUDA_ROUTE_ROWS rows then count by expert and sum probabilities, a thread per
 * expert; one block turns the counts into places, and each block of rows hands its places out in order. Every sum has the
 * order of rows and blocks, so bits repeat. */
#include "device/cuda/vec.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32, ROWS = CUDA_ROUTE_ROWS };

/* Rows that are padding have experts as all have, but the losses do not know of them. */
struct padding {
    const int32_t *lengths; /* [B], NULL: there is none */
    uint32_t time;          /* R / B */
};

ON_GPU bool is_padding(const padding &p, int64_t row)
{
    return p.lengths && (int32_t)((uint32_t)row % p.time) >= p.lengths[(uint32_t)row / p.time];
}

template <class T> struct routing {
    const T *logits; /* [R,E] */
    padding pad;
    float *weight; /* [R,K] */
    int32_t *expert, *place, *ends;
    float *stat;            /* [3,E] */
    float *lse;             /* [R] */
    double *sums, *squares; /* [blocks,E], [blocks] */
    int32_t *begin, *load;  /* [blocks,E]: places, and rows without padding */
    int64_t rows;
    int experts, top, blocks;
    bool norm;
};

struct best {
    float value;
    int expert;
};

/* Returns the entry with the larger logit; the first if they are equal. */
ON_GPU best better(best a, best b)
{
    return b.value > a.value || (b.value == a.value && b.expert < a.expert) ? b : a;
}

ON_GPU best warp_best(best v)
{
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
        v = better(
            v, {__shfl_xor_sync(0xffffffffu, v.value, mask), __shfl_xor_sync(0xffffffffu, v.expert, mask)});
    return v;
}

/* The best that comes after `last`. What is no number is chosen last. */
template <class T> ON_GPU best next_best(const T *row, int experts, best last)
{
    best found = {-INFINITY, 0x7fffffff};
    for (int e = threadIdx.x % 32; e < experts; e += 32) {
        float x = number(row + e);
        if (x != x) x = -INFINITY;
        if (x < last.value || (x == last.value && e > last.expert)) found = better(found, {x, e});
    }
    return warp_best(found);
}

template <class T> ON_GPU float warp_exponentials(const T *row, int experts, float top)
{
    float sum = 0;
    for (int e = threadIdx.x % 32; e < experts; e += 32) sum += expf(number(row + e) - top);
    return warp_sum(sum);
}

template <class T> __global__ void __launch_bounds__(THREADS) choose(routing<T> r)
{
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= r.rows) return;
    const T *logits = r.logits + row * r.experts;
    best last = {INFINITY, -1};
    float top = 0, sum = 0, chosen = 0;
    for (int i = 0; i < r.top; i++) {
        last = next_best(logits, r.experts, last);
        if (i == 0) top = last.value, sum = warp_exponentials(logits, r.experts, top);
        float p = expf(last.value - top) / sum;
        chosen += p;
        if (threadIdx.x % 32) continue;
        r.expert[row * r.top + i] = last.expert;
        r.weight[row * r.top + i] = p;
    }
    if (threadIdx.x % 32) return;
    r.lse[row] = top + logf(sum);
    for (int i = 0; i < r.top && r.norm; i++) r.weight[row * r.top + i] /= chosen;
}

template <class T> __global__ void __launch_bounds__(THREADS) count(routing<T> r)
{
    const int64_t first = (int64_t)blockIdx.x * ROWS, end = min(first + ROWS, (int64_t)r.rows);
    for (int e = threadIdx.x; e < r.experts; e += THREADS) {
        double sum = 0;
        int32_t mine = 0, load = 0;
        for (int64_t row = first; row < end; row++) {
            int32_t hits = 0;
            for (int i = 0; i < r.top; i++) hits += r.expert[row * r.top + i] == e;
            mine += hits;
            if (is_padding(r.pad, row)) continue;
            load += hits;
            sum += expf(number(r.logits + row * r.experts + e) - r.lse[row]);
        }
        r.sums[(int64_t)blockIdx.x * r.experts + e] = sum;
        r.begin[(int64_t)blockIdx.x * r.experts + e] = mine;
        r.load[(int64_t)blockIdx.x * r.experts + e] = load;
    }
    if (threadIdx.x) return;
    double squares = 0;
    for (int64_t row = first; row < end; row++)
        if (!is_padding(r.pad, row)) squares += (double)r.lse[row] * r.lse[row];
    r.squares[blockIdx.x] = squares;
}

/* One block. */
template <class T> __global__ void __launch_bounds__(THREADS) find_places(routing<T> r)
{
    for (int e = threadIdx.x; e < r.experts; e += THREADS) {
        double sum = 0;
        int32_t rows = 0, load = 0;
        for (int b = 0; b < r.blocks; b++) {
            load += r.load[(int64_t)b * r.experts + e];
            sum += r.sums[(int64_t)b * r.experts + e];
            int32_t mine = r.begin[(int64_t)b * r.experts + e];
            r.begin[(int64_t)b * r.experts + e] =
                rows; /* within the expert; its own beginning is added below */
            rows += mine;
        }
        r.ends[e] = rows;
        r.stat[e] = (float)load, r.stat[r.experts + e] = (float)sum;
        if (e) r.stat[2 * r.experts + e] = 0;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int32_t at = 0;
        double squares = 0;
        for (int e = 0; e < r.experts; e++) r.ends[e] = at += r.ends[e];
        for (int b = 0; b < r.blocks; b++) squares += r.squares[b];
        r.stat[2 * r.experts] = (float)squares;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < r.experts; e += THREADS) {
        int32_t first = e ? r.ends[e - 1] : 0;
        for (int b = 0; b < r.blocks; b++) r.begin[(int64_t)b * r.experts + e] += first;
    }
}

template <class T> __global__ void __launch_bounds__(THREADS) hand_out(routing<T> r)
{
    const int64_t first = (int64_t)blockIdx.x * ROWS * r.top,
                  end = min(first + (int64_t)ROWS * r.top, r.rows * r.top);
    for (int e = threadIdx.x; e < r.experts; e += THREADS) {
        int32_t next = r.begin[(int64_t)blockIdx.x * r.experts + e];
        for (int64_t i = first; i < end; i++)
            if (r.expert[i] == e) r.place[i] = next++;
    }
}

static padding padding_of(const void *lengths, const struct tensor *desc, int64_t rows)
{
    return {(const int32_t *)lengths, (uint32_t)(desc ? rows / tensor_count(desc) : rows)};
}

template <class T> static int run_route(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *weight = call_out(call, ROUTE_WEIGHT);
    int64_t rows = weight->dim[0], experts = tensor_count(call_out(call, ROUTE_ENDS));
    struct cuda_route_places at = cuda_route_places(rows, experts);
    char *work = (char *)call->work;
    routing<T> r = {(const T *)call->in[ROUTE_LOGITS],
                    padding_of(call->in[ROUTE_LENGTHS], call_in(call, ROUTE_LENGTHS), rows),
                    (float *)call->out[ROUTE_WEIGHT],
                    (int32_t *)call->out[ROUTE_EXPERT],
                    (int32_t *)call->out[ROUTE_PLACE],
                    (int32_t *)call->out[ROUTE_ENDS],
                    (float *)call->out[ROUTE_STAT],
                    (float *)(work + at.lse),
                    (double *)work,
                    (double *)(work + at.squares),
                    (int32_t *)(work + at.begin),
                    (int32_t *)(work + at.load),
                    rows,
                    (int)experts,
                    (int)weight->dim[1],
                    (int)parts_of(rows, ROWS),
                    call->op->attr.norm_topk};
    cudaStream_t stream = stream_of(queue);
    choose<T><<<(unsigned)parts_of(rows, WARPS), THREADS, 0, stream>>>(r);
    count<T><<<(unsigned)r.blocks, THREADS, 0, stream>>>(r);
    find_places<T><<<1, THREADS, 0, stream>>>(r);
    hand_out<T><<<(unsigned)r.blocks, THREADS, 0, stream>>>(r);
    return launched();
}

/* --- the way back ------------------------------------------------------------------------------------------ */

template <class T> struct unrouting {
    const float *dweight, *factor; /* [R,K]; [2,E], NULL: none */
    const T *logits;
    const int32_t *expert;
    T *dlogits; /* may be logits */
    padding pad;
    int64_t rows;
    int experts, top;
    bool norm;
};

template <class T> __global__ void __launch_bounds__(THREADS) unroute(unrouting<T> u)
{
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (row >= u.rows) return;
    const T *x = u.logits + row * u.experts;
    const int32_t *chosen = u.expert + row * u.top;
    const float *dw = u.dweight + row * u.top, *factor = is_padding(u.pad, row) ? nullptr : u.factor;
    float top = -INFINITY, all = 0, pull = 0, share = 0, mean = 0;
    for (int e = lane; e < u.experts; e += 32) top = fmaxf(top, number(x + e));
    top = warp_top(top);
    for (int e = lane; e < u.experts; e += 32) {
        float p = expf(number(x + e) - top);
        all += p;
        if (factor) pull += p * factor[e];
    }
    all = warp_sum(all), pull = warp_sum(pull) / all;
    for (int i = 0; i < u.top; i++) {
        float p = expf(number(x + chosen[i]) - top) / all;
        share += p, mean += p * dw[i];
    }
    if (!u.norm) share = 1;
    mean /= share;
    const float z = factor ? factor[u.experts] * (top + logf(all)) : 0;
    __syncwarp(); /* every lane has read the row: it may be written over */
    for (int e = lane; e < u.experts; e += 32) {
        float p = expf(number(x + e) - top) / all, d = u.norm ? 0 : -(p * mean);
        if (factor) d += p * (factor[e] - pull + z);
        for (int i = 0; i < u.top; i++)
            if (chosen[i] == e) d += u.norm ? p / share * (dw[i] - mean) : p * dw[i];
        put_number(u.dlogits + row * u.experts + e, d);
    }
}

/* --- its losses -------------------------------------------------------------------------------------------- */

struct losses {
    const float *stat, *scalars; /* [L,3,E] */
    double *loss;
    float *load, *factor;
    int layers, experts, top;
    float balance, z;
    bool adds;
};

/* One block. */
__global__ void __launch_bounds__(THREADS) find_losses(losses s)
{
    __shared__ double slots[3][WARPS];
    double pairs = 0, products = 0, squares = 0;
    const int64_t line = s.experts;
    for (int e = threadIdx.x; e < s.experts; e += THREADS) {
        double n = 0, p = 0;
        for (int64_t l = 0; l < s.layers; l++) {
            float rows = s.stat[l * 3 * line + e];
            n += rows, p += s.stat[(l * 3 + 1) * line + e];
            s.load[l * line + e] = s.adds ? s.load[l * line + e] + rows : rows;
        }
        pairs += n, products += n * p;
    }
    for (int64_t l = threadIdx.x; l < s.layers; l += THREADS) squares += s.stat[(l * 3 + 2) * line];
    pairs = block_sum<THREADS>(pairs, slots[0]);
    products = block_sum<THREADS>(products, slots[1]);
    squares = block_sum<THREADS>(squares, slots[2]);
    const double rows = pairs > 0 ? pairs / s.top : 1, scale = s.scalars[SCALAR_AUX_GRAD];
    for (int e = threadIdx.x; e < s.experts; e += THREADS) {
        double n = 0;
        for (int64_t l = 0; l < s.layers; l++) n += s.stat[l * 3 * line + e];
        s.factor[e] = (float)(scale * s.balance * s.experts * n / (rows * rows));
        s.factor[line + e] = e ? 0 : (float)(scale * s.z * 2 / rows);
    }
    if (threadIdx.x) return;
    const double parts[3] = {(double)s.balance * s.experts * products / (rows * rows), s.z * squares / rows,
                             1};
    for (int i = 0; i < 3; i++) s.loss[i] = s.adds ? s.loss[i] + parts[i] : parts[i];
}

template <class T> static int run_unroute(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *dweight = call_in(call, ROUTE_BWD_DWEIGHT);
    unrouting<T> u = {
        (const float *)call->in[ROUTE_BWD_DWEIGHT],
        (const float *)call->in[ROUTE_BWD_FACTOR],
        (const T *)call->in[ROUTE_BWD_LOGITS],
        (const int32_t *)call->in[ROUTE_BWD_EXPERT],
        (T *)call->out[ROUTE_BWD_DLOGITS],
        padding_of(call->in[ROUTE_BWD_LENGTHS], call_in(call, ROUTE_BWD_LENGTHS), dweight->dim[0]),
        dweight->dim[0],
        (int)(tensor_count(call_in(call, ROUTE_BWD_LOGITS)) / dweight->dim[0]),
        (int)dweight->dim[1],
        call->op->attr.norm_topk};
    return start(queue, unroute<T>, (unsigned)parts_of(u.rows, WARPS), THREADS, 0, u);
}

} // namespace

CUDA_BY_TYPE(route, call_in(call, ROUTE_LOGITS), run_route)
CUDA_BY_TYPE(route_bwd, call_in(call, ROUTE_BWD_LOGITS), run_unroute)

int cuda_router_loss(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *stat = call_in(call, ROUTER_LOSS_STAT);
    const struct op_attr *attr = &call->op->attr;
    losses s = {(const float *)call->in[ROUTER_LOSS_STAT],
                (const float *)call->in[ROUTER_LOSS_SCALARS],
                (double *)call->out[ROUTER_LOSS_LOSS],
                (float *)call->out[ROUTER_LOSS_LOAD],
                (float *)call->out[ROUTER_LOSS_FACTOR],
                (int)stat->dim[0],
                (int)stat->dim[2],
                attr->top_k,
                attr->balance,
                attr->z_loss,
                call->accumulate};
    return start(queue, find_losses, 1, THREADS, 0, s);
}
