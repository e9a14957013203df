/* attention.cu - the attention ops: reads the call and chooses the way (attention.cuh lists them).
 *
 * A way is a row of a table: what it needs of type, head size and card, and which masks and scores it knows. The first
 * that fits runs. What the workspace holds follows from the shape alone, and so do the results.
 */
#include "device/cuda/attention.cuh"

namespace
{

/* Features beyond a key interval per query and the softmax of products. BIASED: by places in the row. SCORES: soft-cap, dropout,
 * and a bias by places in a cache. */
enum { BIASED = 1, SCORES = 2, HOLES = 4 };

/* Tensor cores: a 16-bit type and heads whose rows are whole pieces of 16 bytes (cuda_attn_on_tensor_cores). Head sizes
 * that would be padded much stay with the other kernels where warpgroups are asked for. */
static const struct way {
    bool tensor_cores, warpgroups;
    int knows;
    int (*forward)(const struct cuda_queue *queue, struct attn *a);
    int (*backward)(const struct cuda_queue *queue, struct attn *a);
} ways[] = {
    {true, true, 0, cuda_attn_hopper, cuda_attn_hopper_backward},
    {true, true, BIASED, cuda_attn_hopper_biased, cuda_attn_hopper_backward_biased},
    {true, false, 0, cuda_attn_forward, cuda_attn_backward},
    {true, false, BIASED | SCORES, cuda_attn_forward_more, cuda_attn_backward_more},
    {false, false, BIASED | SCORES | HOLES, cuda_attn_plain, cuda_attn_plain_backward},
};

static const struct way *way_of(const struct cuda_queue *queue, const struct attn *a)
{
    bool mma = cuda_attn_on_tensor_cores(a->type, a->size) && !a->standard;
    bool groups = queue->warpgroups && (a->size <= 64 || a->size > 96);
    int asks = (a->buckets ? BIASED : 0) | (a->mask == MASK_BLOCKS ? HOLES : 0);
    if (a->cap > 0 || a->drop.below || (a->buckets && a->cached)) asks |= SCORES;
    const struct way *way = ways;
    while ((way->tensor_cores && !mma) || (way->warpgroups && !groups) || (asks & ~way->knows)) way++;
    return way;
}

static struct attn attn_of(const struct tensor *qd, const struct tensor *kd, const struct tensor *bias,
                           const struct op *op)
{
    struct attn a = {};
    const struct op_attr *attr = &op->attr;
    a.batch = (int)qd->dim[0], a.time = (int)qd->dim[1], a.heads = (int)qd->dim[2], a.size = (int)qd->dim[3];
    a.keys = (int)kd->dim[1], a.kv_heads = (int)kd->dim[2], a.group = a.heads / a.kv_heads;
    a.type = qd->type, a.cached = attr->cached, a.standard = attr->standard;
    a.mask = attr->mask, a.window = attr->mask == MASK_CAUSAL ? attr->window : 0;
    a.sparse_block = attr->sparse_block, a.local_blocks = attr->local_blocks;
    a.global_blocks = attr->global_blocks;
    a.cap = attr->cap, a.modified = attr->cap > 0 || bias;
    a.buckets = bias ? (int)bias->dim[0] : 0, a.span = cuda_attn_span(a.time, a.keys);
    if (bias) a.by_distance = bias_buckets(a.buckets, attr);
    a.scale = attr->scale, a.top_scale = a.modified ? 1.0f : attr->scale;
    a.scale2 = a.top_scale * ATTN_LOG2E;
    a.padded = (a.time + ATTN_PAD - 1) / ATTN_PAD * ATTN_PAD;
    return a;
}

static bool nothing(const struct attn *a) { return !a->batch || !a->time || !a->heads || !a->size; }

} // namespace

extern "C" int cuda_attn_ours(const struct cuda_queue *queue, const struct kernel_call *call)
{
    struct attn a = attn_of(call_in(call, ATTN_Q), call_in(call, ATTN_K), call_in(call, ATTN_BIAS), call->op);
    if (nothing(&a)) return 0;
    a.q = call->in[ATTN_Q], a.k = call->in[ATTN_K], a.v = call->in[ATTN_V],
    a.pos = (const int32_t *)call->in[ATTN_POS], a.lengths = (const int32_t *)call->in[ATTN_LENGTHS];
    a.drop = drop_of(&call->op->attr, call->in[ATTN_SCALARS]);
    a.o = call->out[ATTN_O], a.lse = (float *)call->out[ATTN_LSE];
    struct cuda_attn_parts parts = cuda_attn_parts(call->desc, call->op);
    a.splits = parts.splits;
    a.part = (float *)call->work, a.part_stat = (float *)((char *)call->work + parts.stat);
    if (a.splits) return cuda_attn_decode(queue, &a);
    if (a.buckets) {
        a.lines = (float *)call->work;
        int status = cuda_attn_spread(queue, &a, call->in[ATTN_BIAS]);
        if (status) return status;
    }
    return way_of(queue, &a)->forward(queue, &a);
}

/* dbias (+)= the sums that the backward passes have left, or else those of a pass that computes P and dS once more. */
static int bias_gradient(const struct cuda_queue *queue, struct attn *a, const struct kernel_call *call)
{
    int status = a->bias_tiles ? 0 : cuda_attn_bias_sums(queue, a);
    if (status) return status;
    return cuda_attn_fold(queue, a, call->out[ATTN_BWD_DBIAS], call_out(call, ATTN_BWD_DBIAS)->type,
                          call->accumulate);
}

extern "C" int cuda_attn_bwd_ours(const struct cuda_queue *queue, const struct kernel_call *call)
{
    struct attn a =
        attn_of(call_in(call, ATTN_BWD_Q), call_in(call, ATTN_BWD_K), call_in(call, ATTN_BWD_BIAS), call->op);
    if (nothing(&a)) return 0;
    a.grad = call->in[ATTN_BWD_DO], a.q = call->in[ATTN_BWD_Q], a.k = call->in[ATTN_BWD_K],
    a.v = call->in[ATTN_BWD_V], a.o = call->in[ATTN_BWD_O];
    a.lse = (float *)call->in[ATTN_BWD_LSE], a.pos = (const int32_t *)call->in[ATTN_BWD_POS];
    a.lengths = (const int32_t *)call->in[ATTN_BWD_LENGTHS];
    a.drop = drop_of(&call->op->attr, call->in[ATTN_BWD_SCALARS]);
    a.dq = call->out[ATTN_BWD_DQ], a.dk = call->out[ATTN_BWD_DK], a.dv = call->out[ATTN_BWD_DV];
    struct cuda_attn_places at = cuda_attn_bwd_places(call->desc, call->op);
    char *work = (char *)call->work;
    a.lse2 = (float *)work, a.delta = (float *)(work + at.delta);
    a.range = (int2 *)(work + at.range), a.spans = (int4 *)(work + at.spans);
    a.drop_lines = (uint32_t *)(work + at.drop_lines);
    if (call->out[ATTN_BWD_DBIAS]) a.bucket_sums = (float *)(work + at.bucket_sums);
    int status = 0;
    if (a.buckets) {
        a.lines = (float *)(work + at.lines);
        status = cuda_attn_spread(queue, &a, call->in[ATTN_BWD_BIAS]);
    }
    if (!status) status = cuda_attn_prepare(queue, &a);
    if (!status) status = way_of(queue, &a)->backward(queue, &a);
    if (status || !call->out[ATTN_BWD_DBIAS]) return status;
    return bias_gradient(queue, &a, call);
}
