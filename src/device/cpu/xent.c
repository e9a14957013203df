/* xent.c - softmax cross-entropy and its gradient, the gradient over the logits if need be.
 *
 * A row is one thread's: its top and sum in one pass over memory, the gradient in a second. The losses of the
 * rows are left in the workspace and added by the caller's thread in order of rows, starting from the loss
 * that is there: the same bits whether the rows come in one call or in several. Capped logits of a row wait in the
 * worker's scratch. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rows.h"
#include <assert.h>
#include <math.h>
#include <string.h>

struct xent {
    const struct row_ops *rows;
    enum dtype type;
    const void *logits;     /* [R,V] */
    const int32_t *targets; /* [R] */
    void *dlogits;          /* [R,V] or NULL; may be logits */
    double *loss;           /* [R] */
    double *hits;           /* [R], 0 or 1; NULL: they are not counted */
    int64_t columns;
    float scale;         /* of the gradient */
    const float *weight; /* [R] instead of the scale; NULL: none */
    float cap;           /* of logits, 0: none */
    float *capped;       /* [workers][V] */
};

static float read_element(const void *at, enum dtype type)
{
    float value;
    dtype_convert(&value, DT_F32, at, type, 1);
    return value;
}

static double row_loss(const struct xent *x, const void *logits, void *dlogits, int32_t target, float scale,
                       bool *hit)
{
    assert(target < x->columns);
    double at_target = (double)read_element(element(logits, x->type, target), x->type);
    struct row_softmax all = x->rows->softmax(x->type, logits, x->columns);
    double below = at_target - (double)all.top;
    *hit = below >= 0;
    if (dlogits) {
        x->rows->exp_scaled(x->type, dlogits, logits, x->columns, all.top, (float)((double)scale / all.sum));
        float there = (float)((exp(below) / all.sum - 1.0) * (double)scale);
        dtype_convert(element(dlogits, x->type, target), x->type, &there, DT_F32, 1);
    }
    return log(all.sum) - below;
}

/* Loss of one row for logits with a soft cap. */
static double capped_loss(const struct xent *x, const void *logits, void *dlogits, int32_t target,
                          float scale, float *capped, bool *hit)
{
    assert(target < x->columns);
    dtype_convert(capped, DT_F32, logits, x->type, x->columns);
    x->rows->act(DT_F32, (struct row_act){ACTIVATION_TANH, x->cap}, capped, capped, x->columns);
    struct row_softmax all = x->rows->softmax(DT_F32, capped, x->columns);
    double below = (double)capped[target] - (double)all.top;
    *hit = below >= 0;
    if (dlogits) {
        struct row_softmax_grad g = {all.top, (float)((double)scale / all.sum), x->cap};
        double bend = (double)capped[target] / (double)x->cap;
        x->rows->exp_capped(x->type, dlogits, capped, &g, x->columns);
        float there = (float)((exp(below) / all.sum - 1.0) * (double)scale * (1 - bend * bend));
        dtype_convert(element(dlogits, x->type, target), x->type, &there, DT_F32, 1);
    }
    return log(all.sum) - below;
}

static void xent_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct xent *x = arg;
    float *capped = x->capped + worker * x->columns;
    for (int64_t r = begin; r < end; r++) {
        const void *logits = element(x->logits, x->type, r * x->columns);
        void *dlogits = element(x->dlogits, x->type, r * x->columns);
        bool hit = false;
        float scale = x->weight ? x->weight[r] : x->scale;
        if (x->targets[r] >= 0 && x->cap > 0)
            x->loss[r] = capped_loss(x, logits, dlogits, x->targets[r], scale, capped, &hit);
        else if (x->targets[r] >= 0)
            x->loss[r] = row_loss(x, logits, dlogits, x->targets[r], scale, &hit);
        else if (dlogits)
            memset(dlogits, 0, (size_t)x->columns * dtype_size(x->type));
        if (x->hits) x->hits[r] = hit;
    }
}

void cpu_xent(const struct kernel_call *call)
{
    const struct tensor *logits = call_in(call, XENT_LOGITS);
    int64_t count = tensor_count(call_in(call, XENT_TARGETS));
    if (count == 0) return;
    struct xent x = {
        .rows = row_ops(),
        .type = logits->type,
        .logits = call->in[XENT_LOGITS],
        .targets = call->in[XENT_TARGETS],
        .dlogits = call->out[XENT_DLOGITS],
        .loss = call->work,
        .columns = tensor_count(logits) / count,
        .scale = ((const float *)call->in[XENT_SCALARS])[SCALAR_LOSS_GRAD],
        .weight = call->in[XENT_WEIGHT],
        .cap = call->op->attr.cap,
        .capped = (float *)(void *)((double *)call->work + (call->out[XENT_HITS] ? 2 : 1) * count),
    };
    if (call->out[XENT_HITS]) x.hits = x.loss + count;
    threads_each(call->team, count, row_grain(x.columns), xent_body, &x);
    double *loss = call->out[XENT_LOSS], *hits = call->out[XENT_HITS];
    float *logp = call->out[XENT_LOGP];
    if (loss && !call->accumulate) loss[0] = loss[1] = 0;
    if (hits && !call->accumulate) *hits = 0;
    for (int64_t r = 0; r < count; r++) {
        bool counts = x.targets[r] >= 0;
        if (logp) logp[r] = counts ? -(float)x.loss[r] : 0;
        if (counts && loss) loss[0] += x.loss[r], loss[1] += 1;
        if (counts && hits) *hits += x.hits[r];
    }
}

static size_t cpu_xent_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    int64_t rows = tensor_count(desc[XENT_TARGETS]);
    size_t losses = (size_t)rows * sizeof(double) * (desc[OP_MAX_IN + XENT_HITS] ? 2 : 1);
    if (!(op->attr.cap > 0) || rows == 0) return losses;
    return losses + (size_t)(threads * tensor_count(desc[XENT_LOGITS]) / rows) * sizeof(float);
}

CPU_KERNEL(xent, cpu_xent_workspace);
