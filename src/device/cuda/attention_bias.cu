/* attention_bias.cu - attention's bias by distance: spread into a line per head before, its gradient gathered after.
 *
 * The gradient has been left as sums per bucket of each tile of queries (attention_bias_sums.cuh, or attention_plain_backward.cu
 * where the tensor cores do not take the op); here they are added up, tiles of a row first, then rows, each in order: no atomics, and in f32 the cut into micro-batches leaves no trace.
 */
#include "device/cuda/attention_plain.cuh"
#include "device/cuda/vec.cuh"

namespace
{

enum { THREADS = 128, FOLD_BUCKETS = 32, FOLD_ROWS = 16 };

static __global__ void __launch_bounds__(THREADS) spread(const struct attn a, const void *bias, float *lines)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= (int64_t)a.heads * a.span) return;
    int h = (int)(i / a.span), offset = ATTN_BEYOND + a.keys - 1 - (int)(i % a.span);
    lines[i] = plain_element(a, bias, (int64_t)plain_bucket(a.by_distance, offset) * a.heads + h);
}

/* Blocks: head, FOLD_BUCKETS buckets. A warp has a row of each FOLD_ROWS. */
static __global__ void __launch_bounds__(FOLD_BUCKETS *FOLD_ROWS)
    fold(const struct attn a, void *grad, enum dtype type, bool accumulate)
{
    __shared__ float rows[FOLD_ROWS][FOLD_BUCKETS];
    const int lane = threadIdx.x % 32, mine = threadIdx.x / 32, h = blockIdx.x,
              bucket = (int)blockIdx.y * FOLD_BUCKETS + lane;
    const int64_t to = (int64_t)bucket * a.heads + h;
    const bool have = bucket < a.buckets;
    struct attn as = a;
    as.type = type;
    float all = have && !mine && accumulate ? plain_element(as, grad, to) : 0.0f;
    for (int b = 0; b < a.batch; b += FOLD_ROWS) {
        if (have && b + mine < a.batch) {
            const int64_t first = ((int64_t)(b + mine) * a.heads + h) * a.bias_tiles;
            double row = 0;
            for (int tile = 0; tile < a.bias_tiles; tile++)
                row += (double)a.bucket_sums[(first + tile) * a.buckets + bucket];
            rows[mine][lane] = (float)row;
        }
        __syncthreads();
        if (have && !mine)
            for (int i = 0; i < min((int)FOLD_ROWS, a.batch - b); i++) all += rows[i][lane];
        __syncthreads();
    }
    if (have && !mine) plain_put(as, grad, to, all);
}

} // namespace

extern "C" int cuda_attn_spread(const struct cuda_queue *queue, struct attn *a, const void *bias)
{
    int64_t count = (int64_t)a->heads * a->span;
    return start(queue, spread, parts_of(count, THREADS), THREADS, 0, *a, bias, (float *)a->lines);
}

extern "C" int cuda_attn_fold(const struct cuda_queue *queue, struct attn *a, void *grad, enum dtype type,
                              bool accumulate)
{
    dim3 blocks((unsigned)a->heads, (unsigned)parts_of(a->buckets, FOLD_BUCKETS));
    return start(queue, fold, blocks, FOLD_BUCKETS * FOLD_ROWS, 0, *a, grad, type, accumulate);
}
