/* cuda_fuse.c - see cuda_fuse.h. */
#include "device/cuda/cuda_fuse.h"
#include "device/cuda/cuda_matmul.h"

static bool is_source(const struct kernel_call *call)
{
    const struct op *op = call->op;
    const struct tensor *x = op->kind == OP_NORM || op->kind == OP_GLU ? call_in(call, 0) : NULL;
    if (!x || x->type == DT_F32 || tensor_count(x) / last_dim(x) > CUDA_FEW_ROWS) return false;
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
    if (first && !is_source(&calls[0])) return false;
    struct few_product p = product_of(calls, count);
    int64_t size = (int64_t)dtype_size(p.type);
    return p.rows > 0 && cuda_matmul_few_fuses(&p) &&
           apart(p.y, p.rows * p.m * size, p.y2, p.rows * p.m2 * size);
}

bool cuda_fuses(const struct kernel_call *calls, int count)
{
    if (calls[0].op->kind == OP_SPLIT3) return cuda_split3_puts(&calls[0], &calls[1]);
    return fuses_linears(calls, count);
}

int cuda_fused(const struct cuda_queue *queue, const struct kernel_call *calls, int count)
{
    if (calls[0].op->kind == OP_SPLIT3) return cuda_split3_put(queue, &calls[0], &calls[1]);
    struct few_product p = product_of(calls, count);
    return cuda_matmul_few(queue, &p);
}
