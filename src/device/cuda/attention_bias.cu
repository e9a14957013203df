/* attention_bias.cu - attention's bias by distance: spread into a line per head before, its gradient gathered after.
 *
 * The gradient has been left as sums per bucket of each tile of queries (attention_plain_backward.cu); here they are added
 * up, tiles of a row first, then rows, each in order: no atomics, and in f32 the cut into micro-batches leaves no trace.
 */
#include "device/cuda/attention_plain.cuh"
#include "device/cuda/vec.cuh"

namespace
{

enum { THREADS = 128 };

static __global__ void __launch_bounds__(THREADS)
    spread(const struct attn a, const struct bias_buckets buckets, const void *bias, float *lines)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= (int64_t)a.heads * a.span) return;
    int h = (int)(i / a.span), offset = a.keys - 1 - (int)(i % a.span);
    lines[i] = plain_element(a, bias, (int64_t)plain_bucket(buckets, offset) * a.heads + h);
}

/* Thread i: bucket i / heads of head i % heads. */
static __global__ void __launch_bounds__(THREADS)
    fold(const struct attn a, int tiles, void *grad, enum dtype type, bool accumulate)
{
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (i >= a.buckets * a.heads) return;
    int h = i % a.heads, bucket = i / a.heads;
    struct attn as = a;
    as.type = type;
    float all = accumulate ? plain_element(as, grad, i) : 0.0f;
    for (int b = 0; b < a.batch; b++) {
        const float *sums = a.bucket_sums + ((int64_t)b * a.heads + h) * tiles * a.buckets + bucket;
        double row = 0;
        for (int tile = 0; tile < tiles; tile++) row += (double)sums[(int64_t)tile * a.buckets];
        all += (float)row;
    }
    plain_put(as, grad, i, all);
}

} // namespace

extern "C" int cuda_attn_spread(const struct cuda_queue *queue, struct attn *a, const struct op *op,
                                const void *bias)
{
    struct bias_buckets buckets = bias_buckets(a->buckets, &op->attr);
    int64_t count = (int64_t)a->heads * a->span;
    return start(queue, spread, parts_of(count, THREADS), THREADS, 0, *a, buckets, bias, (float *)a->lines);
}

extern "C" int cuda_attn_fold(const struct cuda_queue *queue, struct attn *a, int tiles, void *grad,
                              enum dtype type, bool accumulate)
{
    int count = a->buckets * a->heads;
    return start(queue, fold, parts_of(count, THREADS), THREADS, 0, *a, tiles, grad, type, accumulate);
}
