/* attention_prepare.cu - what the backward passes need of every query, computed once.
 *
 * Per query: the log-sum-exp to base 2, delta = sum(d o * o), the interval of its keys; per ATTN_GRAIN queries
 * the span of their intervals. The first blocks of the grid do the intervals, the others the rows: eight lanes
 * to a row, so that 64 elements are one piece of 16 bytes per lane and tensor.
 */
#include "device/cuda/attention_plain.cuh"
#include "device/cuda/attention_score.cuh"

namespace
{

enum { THREADS = 128, LANES = 8, BLOCK_ROWS = THREADS / LANES };

ON_GPU float pair_product(const struct attn &a, uint32_t x, uint32_t y)
{
    if (a.type == DT_BF16)
        return type_bf16::low(x) * type_bf16::low(y) + type_bf16::high(x) * type_bf16::high(y);
    return type_f16::low(x) * type_f16::low(y) + type_f16::high(x) * type_f16::high(y);
}

/* Intervals and spans of 128 queries. */
static __device__ void prepare_intervals(const struct attn &a, int block)
{
    int index = block * THREADS + threadIdx.x, b = index / a.padded, t = index % a.padded;
    int2 range = make_int2(INT_MAX, -1);
    if (t < a.time) range = attn_visible(a, b, t);
    a.range[index] = range;
    struct attn_span s = attn_warp_span(range, t < a.time);
    if (threadIdx.x % ATTN_GRAIN == 0)
        a.spans[index / ATTN_GRAIN] = make_int4(s.low, s.high, s.first_most, s.last_least);
}

/* This lane's share of sum(d o * o) of the row that begins at element `at`. */
static __device__ float share(const struct attn &a, int64_t at, int lane)
{
    float sum = 0;
    if (a.type == DT_F32 || a.size % 8) {
        for (int i = lane; i < a.size; i += LANES)
            sum += plain_element(a, a.grad, at + i) * plain_element(a, a.o, at + i);
        return sum;
    }
    for (int i = lane * 8; i < a.size; i += LANES * 8) {
        uint4 x = *(const uint4 *)((const uint16_t *)a.grad + at + i);
        uint4 y = *(const uint4 *)((const uint16_t *)a.o + at + i);
        sum += pair_product(a, x.x, y.x) + pair_product(a, x.y, y.y);
        sum += pair_product(a, x.z, y.z) + pair_product(a, x.w, y.w);
    }
    return sum;
}

/* Rows in (b, t, h) order, t up to padded. */
static __device__ void prepare_rows(const struct attn &a, int64_t block)
{
    int64_t row = block * BLOCK_ROWS + threadIdx.x / LANES, bt = row / a.heads;
    int lane = threadIdx.x % LANES, h = (int)(row % a.heads), t = (int)(bt % a.padded),
        b = (int)(bt / a.padded);
    bool have = b < a.batch && t < a.time;
    float sum = have ? share(a, attn_query_at(a, b, t, h), lane) : 0;
    for (int step = 1; step < LANES; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane || b >= a.batch) return;
    int64_t head = (int64_t)b * a.heads + h, to = head * a.padded + t;
    a.delta[to] = sum;
    if (a.drop.below) a.drop_lines[to] = attn_drop_line(a, b, h, t);
    a.lse2[to] = have ? a.lse[head * a.time + t] * ATTN_LOG2E : INFINITY;
}

static __global__ void __launch_bounds__(THREADS) prepare(const struct attn a)
{
    int intervals = (int)((int64_t)a.batch * a.padded / THREADS);
    if ((int)blockIdx.x < intervals)
        prepare_intervals(a, blockIdx.x);
    else
        prepare_rows(a, blockIdx.x - intervals);
}

} // namespace

extern "C" int cuda_attn_prepare(const struct cuda_queue *queue, struct attn *a)
{
    int64_t queries = (int64_t)a->batch * a->padded, rows = queries * a->heads;
    return attn_launch(prepare, queries / THREADS + (rows + BLOCK_ROWS - 1) / BLOCK_ROWS, THREADS, 0, queue,
                       a);
}
