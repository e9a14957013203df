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
    return op->attr.activation == ACTIVATION_SILU && !op->attr.joint && op->attr.read_once;
}

static void *made_by(const struct kernel_call *source)
{
    return source->out[source->op->kind == OP_NORM ? NORM_Y : GLU_H];
}

static bool apart(const void *a, int64_t bytes_a, const void *b, int64_t bytes_b)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return !a || !b || x + (uintptr_t)bytes_a <= y || y + (uintptr_t)bytes_b <= x;
}

/* Bytes of a norm's stat that a product of the same launch writes over: the layout gave them away, so nobody reads it. */
static bool stat_lives(const struct few_product *p)
{
    int64_t size = (int64_t)dtype_size(p->type), stat = p->rows * (int64_t)sizeof *p->stat;
    return apart(p->stat, stat, p->y, p->rows * p->m * size) &&
           apart(p->stat, stat, p->y2, p->rows * p->m2 * size);
}

static struct few_product product_of(const struct cuda_fuse *f)
{
    struct few_product p = cuda_linear_few(&f->linear[0]);
    if (f->linears == 2) {
        struct few_product second = cuda_linear_few(&f->linear[1]);
        p.w2 = second.w, p.y2 = second.y, p.m2 = second.m;
    }
    if (!f->has_source) return p;
    const struct kernel_call *s = &f->source;
    bool norm = s->op->kind == OP_NORM;
    p.source = norm ? FEW_NORM : FEW_GLU;
    p.a = s->in[norm ? NORM_X : GLU_GATE], p.b = s->in[norm ? NORM_W : GLU_UP];
    if (norm) p.stat = s->out[NORM_STAT], p.eps = s->op->attr.eps, p.plus_one = s->op->attr.plus_one;
    if (norm && !stat_lives(&p)) p.stat = NULL;
    return p;
}

/* What the products write is read by none of their blocks. */
static bool is_safe(const struct few_product *p)
{
    int64_t size = (int64_t)dtype_size(p->type), x = p->rows * p->k * size, y = p->rows * p->m * size,
            y2 = p->rows * p->m2 * size;
    int64_t b = p->source == FEW_NORM ? p->k * size : x;
    return apart(p->y, y, p->a, x) && apart(p->y, y, p->b, b) && apart(p->y2, y2, p->a, x) &&
           apart(p->y2, y2, p->b, b) && apart(p->y, y, p->y2, y2) && apart(p->y2, y2, p->x, x) &&
           apart(p->y, y, p->x, x);
}

static bool add_linear(struct cuda_fuse *f, const struct kernel_call *call)
{
    if (f->linears == 2 || !cuda_linear_is_few(call->desc, call->op) ||
        call_in(call, LINEAR_W)->cls != CLASS_PARAM)
        return false;
    const void *x = f->linears ? f->linear[0].in[LINEAR_X] : f->has_source ? made_by(&f->source) : NULL;
    if (x && x != call->in[LINEAR_X]) return false;
    f->linear[f->linears++] = *call;
    struct few_product p = product_of(f);
    bool plain = !p.bias && !p.add && !call->in[LINEAR_BIAS] && !call->in[LINEAR_ADD];
    bool good = cuda_matmul_few_fuses(&p) && is_safe(&p) && (f->linears == 1 || plain) &&
                last_dim(call_in(call, LINEAR_X)) == p.k && p.rows > 0;
    if (!good) f->linears--;
    return good;
}

bool cuda_fuse_add(struct cuda_fuse *f, const struct kernel_call *call)
{
    if (f->has_split) {
        f->has_put = call->op->kind == OP_KV_PUT && cuda_split3_puts(&f->split, call);
        if (f->has_put) f->put = *call;
        return f->has_put;
    }
    if (call->op->kind == OP_SPLIT3 && cuda_fuse_empty(f) && cuda_split3_puts(call, NULL)) {
        f->split = *call, f->has_split = true;
        return true;
    }
    if (call->op->kind == OP_LINEAR) return add_linear(f, call);
    if (!cuda_fuse_empty(f) || !is_source(call)) return false;
    f->source = *call, f->has_source = true;
    return true;
}

int cuda_fuse_launch(struct cuda_fuse *f, const struct cuda_queue *queue)
{
    int failed = 0;
    if (f->linears) {
        struct few_product p = product_of(f);
        failed = cuda_matmul_few(queue, &p);
    } else if (f->has_split) {
        failed = f->has_put ? cuda_split3_put(queue, &f->split, &f->put) : cuda_split3(queue, &f->split);
    } else if (f->has_source) {
        failed = (f->source.op->kind == OP_NORM ? cuda_norm : cuda_glu)(queue, &f->source);
    }
    f->has_source = f->has_split = f->has_put = false, f->linears = 0;
    return failed;
}
