/* xent.c - softmax cross-entropy and its gradient, the gradient over the logits if need be.
 *
 * A row is one thread's: its top and sum in one pass over memory, the gradient in a second. The losses of the
 * rows are left in the workspace and added by the caller's thread in order of rows, starting from the loss
 * that is there: the same bits whether the rows come in one call or in several. */
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
    int64_t columns;
    float scale; /* of the gradient */
};

static float read_element(const void *at, enum dtype type)
{
    float value;
    dtype_convert(&value, DT_F32, at, type, 1);
    return value;
}

static double row_loss(const struct xent *x, const void *logits, void *dlogits, int32_t target)
{
    assert(target < x->columns);
    double at_target = (double)read_element(element(logits, x->type, target), x->type);
    struct row_softmax all = x->rows->softmax(x->type, logits, x->columns);
    double below = at_target - (double)all.top;
    if (dlogits) {
        x->rows->exp_scaled(x->type, dlogits, logits, x->columns, all.top,
                            (float)((double)x->scale / all.sum));
        float there = (float)((exp(below) / all.sum - 1.0) * (double)x->scale);
        dtype_convert(element(dlogits, x->type, target), x->type, &there, DT_F32, 1);
    }
    return log(all.sum) - below;
}

static void xent_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct xent *x = arg;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        const void *logits = element(x->logits, x->type, r * x->columns);
        void *dlogits = element(x->dlogits, x->type, r * x->columns);
        if (x->targets[r] >= 0)
            x->loss[r] = row_loss(x, logits, dlogits, x->targets[r]);
        else if (dlogits)
            memset(dlogits, 0, (size_t)x->columns * dtype_size(x->type));
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
    };
    threads_each(call->team, count, row_grain(x.columns), xent_body, &x);
    double *loss = call->out[XENT_LOSS];
    if (!call->accumulate) loss[0] = loss[1] = 0;
    for (int64_t r = 0; r < count; r++) {
        if (x.targets[r] < 0) continue;
        loss[0] += x.loss[r];
        loss[1] += 1;
    }
}

size_t cpu_xent_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    (void)op, (void)threads;
    return (size_t)tensor_count(desc[XENT_TARGETS]) * sizeof(double);
}
