/* attention.cu - the attention ops: reads the call and chooses the way (attention.cuh lists them).
 *
 * Tensor cores need a 16-bit type and a head size that is a multiple of 8 up to ATTN_MMA_SIZE: rows are then
 * whole pieces of 16 bytes. Everything else, and f32, goes the plain way. What the workspace holds follows from
 * the shape alone, and so do the results.
 */
#include "device/cuda/attention.cuh"

namespace
{

static struct attn attn_of(const struct tensor *qd, const struct tensor *kd, const struct op *op)
{
    struct attn a = {};
    a.batch = (int)qd->dim[0], a.time = (int)qd->dim[1], a.heads = (int)qd->dim[2], a.size = (int)qd->dim[3];
    a.keys = (int)kd->dim[1], a.kv_heads = (int)kd->dim[2], a.group = a.heads / a.kv_heads;
    a.type = qd->type, a.window = op->attr.window, a.cached = op->attr.cached;
    a.scale = op->attr.scale, a.scale2 = op->attr.scale * ATTN_LOG2E;
    a.padded = (a.time + ATTN_PAD - 1) / ATTN_PAD * ATTN_PAD;
    return a;
}

static bool on_tensor_cores(const struct attn *a) { return cuda_attn_on_tensor_cores(a->type, a->size); }

/* Head sizes that would be padded much stay with the other kernels. */
static bool on_warpgroups(const struct cuda_queue *queue, const struct attn *a)
{
    return queue->warpgroups && (a->size <= 64 || a->size > 96);
}

static bool nothing(const struct attn *a) { return !a->batch || !a->time || !a->heads || !a->size; }

} // namespace

extern "C" int cuda_attn(const struct cuda_queue *queue, const struct kernel_call *call)
{
    struct attn a = attn_of(call_in(call, ATTN_Q), call_in(call, ATTN_K), call->op);
    if (nothing(&a)) return 0;
    a.q = call->in[ATTN_Q], a.k = call->in[ATTN_K], a.v = call->in[ATTN_V],
    a.pos = (const int32_t *)call->in[ATTN_POS];
    a.o = call->out[ATTN_O], a.lse = (float *)call->out[ATTN_LSE];
    struct cuda_attn_parts parts = cuda_attn_parts(call->desc, call->op);
    a.splits = parts.splits;
    a.part = (float *)call->work, a.part_stat = (float *)((char *)call->work + parts.stat);
    if (a.splits) return cuda_attn_decode(queue, &a);
    if (!on_tensor_cores(&a)) return cuda_attn_plain(queue, &a);
    return on_warpgroups(queue, &a) ? cuda_attn_hopper(queue, &a) : cuda_attn_forward(queue, &a);
}

extern "C" int cuda_attn_bwd(const struct cuda_queue *queue, const struct kernel_call *call)
{
    struct attn a = attn_of(call_in(call, ATTN_BWD_Q), call_in(call, ATTN_BWD_K), call->op);
    if (nothing(&a)) return 0;
    a.grad = call->in[ATTN_BWD_DO], a.q = call->in[ATTN_BWD_Q], a.k = call->in[ATTN_BWD_K],
    a.v = call->in[ATTN_BWD_V], a.o = call->in[ATTN_BWD_O];
    a.lse = (float *)call->in[ATTN_BWD_LSE], a.pos = (const int32_t *)call->in[ATTN_BWD_POS];
    a.dq = call->out[ATTN_BWD_DQ], a.dk = call->out[ATTN_BWD_DK], a.dv = call->out[ATTN_BWD_DV];
    struct cuda_attn_places at = cuda_attn_bwd_places(call->desc);
    char *work = (char *)call->work;
    a.lse2 = (float *)work, a.delta = (float *)(work + at.delta);
    a.range = (int2 *)(work + at.range), a.spans = (int4 *)(work + at.spans);
    int status = cuda_attn_prepare(queue, &a);
    if (status) return status;
    if (!on_tensor_cores(&a)) return cuda_attn_plain_backward(queue, &a);
    return on_warpgroups(queue, &a) ? cuda_attn_hopper_backward(queue, &a) : cuda_attn_backward(queue, &a);
}
