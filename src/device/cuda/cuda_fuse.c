/* cuda_fuse.c - see cuda_fuse.h. */
#include "device/cuda/cuda_fuse.h"
#include "device/cuda/cuda_matmul.h"
#include "device/cuda/cuda_quantised.h"
#include "device/cuda/linear_f8.h"

#include <cuda_runtime_api.h>

/* A norm or a gated unit of at most `most` rows that products make for themselves. */
static bool is_source(const struct kernel_call *call, int64_t most)
{
    const struct op *op = call->op;
    const struct tensor *x = op->kind == OP_NORM || op->kind == OP_GLU ? call_in(call, 0) : NULL;
    if (!x || x->type == DT_F32 || tensor_count(x) / last_dim(x) > most) return false;
    if (op->kind == OP_NORM)
        return !op->attr.layer_norm && !call->in[NORM_BIAS] && call_in(call, NORM_W)->cls == CLASS_PARAM;
    return op->attr.activation == ACTIVATION_SILU && !op->attr.joint;
}

static bool apart(const void *a, int64_t bytes_a, const void *b, int64_t bytes_b)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return !a || !b || x + (uintptr_t)bytes_a <= y || y + (uintptr_t)bytes_b <= x;
}

/* A norm's stat that a product of the same launch writes over is read by nobody: the layout gave its bytes away. */
static bool stat_lives(const struct few_product *p)
{
    int64_t size = (int64_t)dtype_size(p->type), stat = p->rows * (int64_t)sizeof *p->stat;
    return apart(p->stat, stat, p->y, p->rows * p->m * size) &&
           apart(p->stat, stat, p->y2, p->rows * p->m2 * size);
}

static struct few_product product_of(const struct kernel_call *calls, int count)
{
    const struct kernel_call *source = calls[0].op->kind == OP_LINEAR ? NULL : &calls[0];
    const struct kernel_call *linear = source ? &calls[1] : &calls[0];
    struct few_product p = cuda_linear_few(linear);
    if (linear + 1 < calls + count) {
        struct few_product second = cuda_linear_few(linear + 1);
        p.w2 = second.w, p.y2 = second.y, p.m2 = second.m;
    }
    if (!source) return p;
    bool norm = source->op->kind == OP_NORM;
    p.source = norm ? FEW_NORM : FEW_GLU;
    p.a = source->in[norm ? NORM_X : GLU_GATE], p.b = source->in[norm ? NORM_W : GLU_UP];
    if (norm) p.stat = source->out[NORM_STAT], p.eps = source->op->attr.eps;
    if (norm) p.plus_one = source->op->attr.plus_one;
    if (norm && !stat_lives(&p)) p.stat = NULL;
    return p;
}

static bool is_few(const struct kernel_call *linear)
{
    return cuda_linear_is_few(linear->desc, linear->op) && call_in(linear, LINEAR_W)->cls == CLASS_PARAM;
}

static bool fuses_linears(const struct kernel_call *calls, int count)
{
    int first = calls[0].op->kind != OP_LINEAR, linears = count - first;
    for (int i = first; i < count; i++) {
        bool plain = !calls[i].in[LINEAR_BIAS] && !calls[i].in[LINEAR_ADD];
        if (!is_few(&calls[i]) || (linears > 1 && !plain)) return false;
    }
    if (first && !is_source(&calls[0], CUDA_FEW_ROWS)) return false;
    struct few_product p = product_of(calls, count);
    int64_t size = (int64_t)dtype_size(p.type);
    return p.rows > 0 && cuda_matmul_few_fuses(&p) &&
           apart(p.y, p.rows * p.m * size, p.y2, p.rows * p.m2 * size);
}

/* --- weights in blocks ----------------------------------------------------------------------------------- */

static int first_linear(const struct kernel_call *calls)
{
    return calls[0].op->kind == OP_NORM || calls[0].op->kind == OP_GLU;
}

static bool is_f8(const struct kernel_call *calls)
{
    return calls[first_linear(calls)].op->kind == OP_LINEAR_F8;
}

static bool in_blocks(const struct kernel_call *calls)
{
    return calls[first_linear(calls)].op->kind == OP_LINEAR_Q || is_f8(calls);
}

/* Bytes that all parts of one product write, against others. */
static bool apart_from_results(const struct cuda_q_product *q, const void *at, int64_t bytes)
{
    for (int i = 0; i < q->parts; i++)
        if (!apart(at, bytes, q->part[i].y, q->rows * q->part[i].m * (int64_t)dtype_size(q->type)))
            return false;
    return true;
}

static struct cuda_q_product quantised_of(const struct kernel_call *calls, int count)
{
    int first = first_linear(calls);
    struct cuda_q_product q = is_f8(calls) ? cuda_linear_f8_product(calls + first, count - first)
                                           : cuda_linear_q_product(calls + first, count - first);
    const struct kernel_call *source = &calls[0];
    bool norm = source->op->kind == OP_NORM;
    if (!first) return q;
    q.source = norm ? FEW_NORM : FEW_GLU;
    q.a = source->in[norm ? NORM_X : GLU_GATE], q.b = source->in[norm ? NORM_W : GLU_UP];
    if (norm) q.stat = source->out[NORM_STAT], q.eps = source->op->attr.eps;
    if (norm) q.plus_one = source->op->attr.plus_one;
    if (is_f8(calls) && source->passed) q.x = NULL;
    if (!apart_from_results(&q, q.stat, q.rows * (int64_t)sizeof *q.stat)) q.stat = NULL;
    return q;
}

/* Scratch that rounded rows lie in is the first linear's alone: no other operand of the run may lie there. */
static bool scratch_is_free(const struct kernel_call *calls, int count, int64_t bytes)
{
    const void *work = calls[first_linear(calls)].work;
    for (int i = 0; i < count && bytes; i++)
        for (int k = 0; k < OP_MAX_IN + OP_MAX_OUT; k++) {
            const void *at = k < OP_MAX_IN ? calls[i].in[k] : calls[i].out[k - OP_MAX_IN];
            if (at && !apart(work, bytes, at, tensor_bytes(calls[i].desc[k]))) return false;
        }
    return true;
}

static bool fuses_quantised(const struct cuda_queue *queue, const struct kernel_call *calls, int count)
{
    int first = first_linear(calls);
    bool f8 = is_f8(calls);
    for (int i = first; i < count; i++)
        if (!(f8 ? calls[i].op->kind == OP_LINEAR_F8 : cuda_linear_q_is_few(calls[i].desc, calls[i].op)) ||
            call_in(&calls[i], LINEAR_Q_W)->cls != CLASS_PARAM)
            return false;
    if (first && !is_source(&calls[0], f8 ? INT64_MAX : CUDA_Q_ROWS)) return false;
    struct cuda_q_product q = quantised_of(calls, count);
    struct cuda_card card = {.warpgroups = queue->warpgroups};
    int64_t bytes = (int64_t)cuda_workspace(&card, calls[first].desc, calls[first].op);
    return q.rows > 0 && scratch_is_free(calls, count, bytes);
}

/* --- products of adapters -------------------------------------------------------------------------------- */

struct adapted {
    int parts;
    struct skinny_product rows[OP_LINE_PARTS];
    struct skinny_product turned[OP_LINE_PARTS]; /* of three ops: one */
};

static bool is_adapters(const struct kernel_call *calls)
{
    return calls[1].op->kind == OP_ACT || calls[1].op->kind == OP_ACT_BWD;
}

/* Bytes that would be written over a result nobody else reads. */
static bool takes(const struct kernel_call *calls, int count, const void *at, int64_t bytes)
{
    for (int i = 1; i < count; i++)
        for (int k = 0; k < OP_MAX_OUT; k++)
            if (calls[i].out[k] && !apart(at, bytes, calls[i].out[k], tensor_bytes(call_out(&calls[i], k))))
                return true;
    return count == 3 && !apart(at, bytes, calls[2].work, (int64_t)CUDA_MATMUL_BYTES);
}

/* Partial sums are written while dy, W and u are read. */
static bool adapters_scratch_is_free(const struct kernel_call *calls)
{
    const struct kernel_call *turned = &calls[2];
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < OP_MAX_IN + OP_MAX_OUT; k++) {
            const void *at = k < OP_MAX_IN ? calls[i].in[k] : calls[i].out[k - OP_MAX_IN];
            bool passed = at == calls[0].out[LINEAR_DX_DX]; /* in registers, or omitted */
            if (at && !passed &&
                !apart(turned->work, (int64_t)CUDA_MATMUL_BYTES, at, tensor_bytes(calls[i].desc[k])))
                return false;
        }
    return true;
}

/* A part's results lie in `rows` of the product's as its own result does. */
static bool scale_part(const struct kernel_call *calls, bool keeps, struct skinny_product *rows)
{
    const struct kernel_call *product = &calls[0], *scale = &calls[1];
    bool backward = scale->op->kind == OP_ACT_BWD;
    const char *results = product->out[backward ? LINEAR_DX_DX : LINEAR_Y];
    int64_t at = (const char *)rows->d - results;
    rows->scale = scale->op->attr.scale > 0 ? scale->op->attr.scale : 1;
    rows->scaled = (char *)scale->out[backward ? ACT_BWD_DX : ACT_Y] + at;
    if (backward && scale->out[ACT_BWD_Y]) {
        rows->from = (const char *)scale->in[ACT_BWD_X] + at;
        rows->again = (char *)scale->out[ACT_BWD_Y] + at;
    }
    if (!keeps) rows->d = NULL;
    return !rows->c && cuda_matmul_skinny_scales(rows);
}

static bool adapted_of(const struct kernel_call *calls, int count, struct adapted *out)
{
    const struct kernel_call *product = &calls[0], *scale = &calls[1];
    bool backward = scale->op->kind == OP_ACT_BWD;
    int slot = backward ? (int)LINEAR_DX_DX : (int)LINEAR_Y;
    *out = (struct adapted){0};
    if (product->op->kind != (backward ? OP_LINEAR_DX : OP_LINEAR) ||
        scale->op->attr.activation != ACTIVATION_SCALE)
        return false;
    out->parts = cuda_linear_skinny(product, out->rows);
    bool keeps = !takes(calls, count, product->out[slot], tensor_bytes(call_out(product, slot)));
    bool good = out->parts > 0;
    for (int i = 0; i < out->parts && good; i++) good = scale_part(calls, keeps, &out->rows[i]);
    return good;
}

static bool fuses_adapters(const struct kernel_call *calls, int count)
{
    struct adapted a;
    if (!adapted_of(calls, count, &a)) return false;
    if (count == 2) return true;
    const struct kernel_call *turned = &calls[2];
    return a.parts == 1 && !turned->op->attr.repeatable && turned->out[LINEAR_DW_DW] &&
           !turned->out[LINEAR_DW_DBIAS] && cuda_linear_skinny(turned, a.turned) == 1 &&
           cuda_matmul_skinny_pairs(&a.rows[0], &a.turned[0]) && adapters_scratch_is_free(calls);
}

static int run_adapters(const struct cuda_queue *queue, const struct kernel_call *calls, int count)
{
    struct adapted a;
    int code = 0;
    adapted_of(calls, count, &a);
    if (count == 3) {
        cuda_linear_skinny(&calls[2], a.turned);
        return cuda_matmul_skinny_pair(queue, &a.rows[0], &a.turned[0]);
    }
    for (int i = 0; i < a.parts && !code; i++) code = cuda_matmul_skinny(queue, &a.rows[i]);
    return code;
}

/* --- adapters of rows ------------------------------------------------------------------------------------ */

static bool is_gated_adapter(const struct kernel_call *calls)
{
    return calls[0].op->kind == OP_ADAPTER_LINEAR && calls[1].op->kind == OP_GLU;
}

/* A norm joins the product behind them both; the adapters' product runs after it. */
static bool is_norm_of_adapters(const struct kernel_call *calls, int count)
{
    return count == 3 && calls[0].op->kind == OP_NORM && calls[1].op->kind == OP_ADAPTER_LINEAR;
}

static bool fuses_norm_of_adapters(const struct cuda_queue *queue, const struct kernel_call *calls)
{
    struct kernel_call joined[2] = {calls[0], calls[2]};
    return cuda_fuses(queue, joined, 2);
}

static int run_norm_of_adapters(const struct cuda_queue *queue, const struct kernel_call *calls)
{
    struct kernel_call joined[2] = {calls[0], calls[2]};
    struct cuda_queue after = *queue;
    int code = cuda_fused(queue, joined, 2);
    after.follows = queue->warpgroups; /* a product of few rows, or in blocks, begins a chain */
    return code ? code : cuda_adapter_linear(&after, &calls[1]);
}

/* True if op `a` writes nothing, not even scratch, that op `b` touches. */
static bool spares(const struct cuda_queue *queue, const struct kernel_call *a, const struct kernel_call *b)
{
    struct cuda_card card = {.warpgroups = queue->warpgroups};
    int64_t scratch = (int64_t)cuda_workspace(&card, a->desc, a->op);
    for (int k = 0; k < OP_MAX_IN + OP_MAX_OUT; k++) {
        const void *at = k < OP_MAX_IN ? b->in[k] : b->out[k - OP_MAX_IN];
        if (!at) continue;
        int64_t bytes = tensor_bytes(b->desc[k]);
        if (scratch && !apart(a->work, scratch, at, bytes)) return false;
        for (int i = 0; i < OP_MAX_OUT; i++)
            if (a->out[i] && !apart(a->out[i], tensor_bytes(call_out(a, i)), at, bytes)) return false;
    }
    return true;
}

/* The model's product in a run of adapters' products. */
static const struct kernel_call *product_beside(const struct kernel_call *calls)
{
    while (calls->op->kind == OP_ADAPTER_LINEAR) calls++;
    return calls;
}

/* Products of shorter steps follow each other sooner than two streams meet. */
enum { BESIDE_LEAST = 513 };

static bool fuses_beside(const struct cuda_queue *queue, const struct kernel_call *calls, int count)
{
    if (tensor_count(call_in(&calls[0], ADAPTER_LINEAR_SLOT)) < BESIDE_LEAST) return false;
    const struct kernel_call *product = product_beside(calls);
    for (int i = 0; i < count; i++)
        if (&calls[i] != product &&
            (!spares(queue, product, &calls[i]) || !spares(queue, &calls[i], product)))
            return false;
    return queue->side != NULL;
}

static int launch_product(const struct cuda_queue *queue, const struct kernel_call *call)
{
    int kind = call->op->kind;
    return kind == OP_LINEAR     ? cuda_linear(queue, call)
           : kind == OP_LINEAR_Q ? cuda_linear_q(queue, call)
                                 : cuda_linear_f8(queue, call);
}

/* Adapters' products, in order, while the model's is computed. Both may be recorded. */
static int run_beside(const struct cuda_queue *queue, const struct kernel_call *calls, int count)
{
    const struct kernel_call *product = product_beside(calls);
    struct cuda_queue alone = *queue, side = *queue;
    alone.follows = side.follows = false, side.stream = queue->side;
    int code = (int)cudaEventRecord(queue->forked, queue->stream);
    if (!code) code = (int)cudaStreamWaitEvent(queue->side, queue->forked, 0);
    if (!code) code = launch_product(&alone, product);
    for (int i = 0; i < count && !code; i++)
        if (&calls[i] != product) code = cuda_adapter_linear(&side, &calls[i]);
    if (!code) code = (int)cudaEventRecord(queue->joined, queue->side);
    return code ? code : (int)cudaStreamWaitEvent(queue->stream, queue->joined, 0);
}

/* --- a gated unit of two products ------------------------------------------------------------------------ */

static bool makes_gated(const struct kernel_call *calls, int count)
{
    return count == 4 && calls[3].op->kind == OP_GLU;
}

static struct cuda_q_product gated_of(const struct kernel_call *calls)
{
    struct cuda_q_product q = quantised_of(calls, 3);
    q.gated = calls[3].out[GLU_H];
    return q;
}

static bool fuses_gated(const struct cuda_queue *queue, const struct kernel_call *calls)
{
    const struct op_attr *attr = &calls[3].op->attr;
    bool both = calls[1].op->kind == OP_LINEAR_Q && calls[2].op->kind == OP_LINEAR_Q;
    if (!both || attr->activation != ACTIVATION_SILU || attr->joint || !fuses_quantised(queue, calls, 3))
        return false;
    struct cuda_q_product q = gated_of(calls);
    return cuda_quantised_gates(queue, &q);
}

bool cuda_fuses(const struct cuda_queue *queue, const struct kernel_call *calls, int count)
{
    if (makes_gated(calls, count)) return fuses_gated(queue, calls);
    if (calls[0].op->kind == OP_SPLIT3)
        return count == 3 ? cuda_split3_attends(&calls[0], &calls[1], &calls[2])
                          : cuda_split3_puts(&calls[0], &calls[1]);
    if (is_gated_adapter(calls)) return cuda_adapter_gates(&calls[0], &calls[1]);
    if (calls[0].op->kind == OP_ADAPTER_LINEAR) return fuses_beside(queue, calls, count);
    if (is_norm_of_adapters(calls, count)) return fuses_norm_of_adapters(queue, calls);
    if (is_adapters(calls)) return fuses_adapters(calls, count);
    return in_blocks(calls) ? fuses_quantised(queue, calls, count) : fuses_linears(calls, count);
}

int cuda_fused(const struct cuda_queue *queue, const struct kernel_call *calls, int count)
{
    if (makes_gated(calls, count)) {
        struct cuda_q_product q = gated_of(calls);
        return cuda_quantised_multiply(queue, &q);
    }
    if (calls[0].op->kind == OP_SPLIT3)
        return count == 3 ? cuda_split3_attend(queue, &calls[0], &calls[1], &calls[2])
                          : cuda_split3_put(queue, &calls[0], &calls[1]);
    if (is_gated_adapter(calls)) return cuda_adapter_gated(queue, &calls[0], &calls[1]);
    if (calls[0].op->kind == OP_ADAPTER_LINEAR) return run_beside(queue, calls, count);
    if (is_norm_of_adapters(calls, count)) return run_norm_of_adapters(queue, calls);
    if (is_adapters(calls)) return run_adapters(queue, calls, count);
    if (in_blocks(calls)) {
        struct cuda_q_product q = quantised_of(calls, count);
        return is_f8(calls) ? cuda_f8_multiply(queue, &q) : cuda_quantised_multiply(queue, &q);
    }
    struct few_product p = product_of(calls, count);
    return cuda_matmul_few(queue, &p);
}
