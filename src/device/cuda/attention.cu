/* attention.cu - the attention ops: reads the call and chooses the way (attention.cuh lists them).
 *
 * Tensor cores need a 16-bit type and a head size that is a multiple of 8 up to ATTN_MMA_SIZE: rows are then
 * whole pieces of 16 bytes. Everything else, and f32, goes the plain way. What the workspace holds follows from
 * the shape alone, and so do the results.
 */
#include "device/cuda/attention.cuh"

namespace
{

enum {
    BLOCKS_WANTED = 512,
    LEAST_KEYS = 256
}; /* of a split cache: blocks at most, keys of a piece at least */

static struct attn attn_of(const struct tensor *const *desc, const struct op *op, int q)
{
    const struct tensor *qd = desc[q], *kd = desc[q + 1];
    struct attn a = {};
    a.batch = (int)qd->dim[0], a.time = (int)qd->dim[1], a.heads = (int)qd->dim[2], a.size = (int)qd->dim[3];
    a.keys = (int)kd->dim[1], a.kv_heads = (int)kd->dim[2], a.group = a.heads / a.kv_heads;
    a.type = qd->type, a.window = op->attr.window, a.cached = op->attr.cached;
    a.scale = op->attr.scale, a.scale2 = op->attr.scale * ATTN_LOG2E;
    a.padded = (a.time + ATTN_PAD - 1) / ATTN_PAD * ATTN_PAD;
    return a;
}

static bool on_tensor_cores(const struct attn *a)
{
    return (a->type == DT_BF16 || a->type == DT_F16) && a->size % 8 == 0 && a->size <= ATTN_MMA_SIZE;
}

/* Capability 9.0 multiplies by warpgroups; head sizes that would be padded much stay with the other kernels. */
static bool on_warpgroups(const struct cuda_queue *queue, const struct attn *a)
{
    return queue->capability == 90 && (a->size <= 64 || a->size > 96);
}

/* Pieces of a cache for few queries; 0: the keys are not split. */
static int splits_of(const struct attn *a)
{
    int rows = a->time * a->group;
    if (!a->cached || rows > ATTN_DECODE_ROWS || !on_tensor_cores(a)) return 0;
    int64_t blocks = (int64_t)a->batch * a->kv_heads * ((rows + 15) / 16), want = BLOCKS_WANTED / blocks;
    int64_t most = (a->keys + LEAST_KEYS - 1) / LEAST_KEYS;
    if (most > ATTN_MAX_SPLITS) most = ATTN_MAX_SPLITS;
    return (int)(want < 1 ? 1 : want > most ? most : want);
}

static int64_t part_rows(const struct attn *a)
{
    return (int64_t)a->batch * a->kv_heads * a->splits * a->time * a->group;
}

static bool nothing(const struct attn *a) { return !a->batch || !a->time || !a->heads || !a->size; }

} // namespace

extern "C" size_t cuda_attn_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    (void)threads;
    struct attn a = attn_of(desc, op, 0);
    a.splits = splits_of(&a);
    return a.splits > 1 ? (size_t)part_rows(&a) * (size_t)(a.size + 2) * 4 : 0;
}

extern "C" int cuda_attn(const struct cuda_queue *queue, const struct kernel_call *call)
{
    struct attn a = attn_of(call->desc, call->op, 0);
    if (nothing(&a)) return 0;
    a.q = call->in[0], a.k = call->in[1], a.v = call->in[2], a.pos = (const int32_t *)call->in[3];
    a.o = call->out[0], a.lse = (float *)call->out[1];
    a.splits = splits_of(&a);
    a.part = (float *)call->work;
    if (a.splits) a.part_stat = a.part + part_rows(&a) * a.size;
    if (a.splits) return cuda_attn_decode(queue, &a);
    if (!on_tensor_cores(&a)) return cuda_attn_plain(queue, &a);
    return on_warpgroups(queue, &a) ? cuda_attn_hopper(queue, &a) : cuda_attn_forward(queue, &a);
}

extern "C" size_t cuda_attn_bwd_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    (void)threads;
    struct attn a = attn_of(desc, op, 1);
    size_t queries = (size_t)a.batch * (size_t)a.padded;
    return queries * (size_t)a.heads * 8 + queries * 8 + queries / ATTN_GRAIN * 16;
}

extern "C" int cuda_attn_bwd(const struct cuda_queue *queue, const struct kernel_call *call)
{
    struct attn a = attn_of(call->desc, call->op, 1);
    if (nothing(&a)) return 0;
    a.grad = call->in[0], a.q = call->in[1], a.k = call->in[2], a.v = call->in[3], a.o = call->in[4];
    a.lse = (float *)call->in[5], a.pos = (const int32_t *)call->in[6];
    a.dq = call->out[0], a.dk = call->out[1], a.dv = call->out[2];
    int64_t queries = (int64_t)a.batch * a.padded;
    a.lse2 = (float *)call->work, a.delta = a.lse2 + queries * a.heads;
    a.range = (int2 *)(a.delta + queries * a.heads), a.spans = (int4 *)(a.range + queries);
    int status = cuda_attn_prepare(queue, &a);
    if (status) return status;
    if (!on_tensor_cores(&a)) return cuda_attn_plain_backward(queue, &a);
    return on_warpgroups(queue, &a) ? cuda_attn_hopper_backward(queue, &a) : cuda_attn_backward(queue, &a);
}
