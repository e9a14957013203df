/* reference_optim.c - the global norm and the two optimizers, as torch.optim defines them.
 *
 * The parameter an optimizer steps is the master where there is one; the weight then is the master rounded.
 */
#include "device/reference/reference_ops.h"

#include <math.h>

void ref_sumsq(const struct ref_call *call)
{
    int64_t n = tensor_count(ref_in(call, 0));
    ref_begin(call, 0);
    for (int64_t i = 0; i < n; i++) call->out[0].f[0] += call->in[0].f[i] * call->in[0].f[i];
}

/* A norm that is not finite leaves multiplier 0 and asks the optimizers to skip the step. */
void ref_clip(const struct ref_call *call)
{
    const double *scalars = call->in[1].f;
    double unscale = scalars[SCALAR_UNSCALE], limit = scalars[SCALAR_CLIP], *coef = call->out[0].f;
    double norm = sqrt(call->in[0].f[0]) * unscale;
    bool finite = isfinite(norm);
    for (int i = 0; i < CLIP_COUNT; i++) coef[i] = 0;
    coef[CLIP_NORM] = norm;
    coef[CLIP_FINITE] = finite;
    if (finite) coef[CLIP_MULTIPLIER] = limit > 0 ? unscale * fmin(1, limit / (norm + 1e-6)) : unscale;
}

/* What one step of one parameter reads besides its own values. */
struct step {
    const struct op_attr *attr;
    double lr, bias1, bias2, multiplier;
    bool skip;
};

static struct step step_of(const struct ref_call *call, int scalars_slot)
{
    const double *scalars = call->in[scalars_slot].f, *coef = call->in[scalars_slot + 1].f;
    return (struct step){.attr = &call->op->attr,
                         .lr = scalars[SCALAR_LR],
                         .bias1 = scalars[SCALAR_BIAS1],
                         .bias2 = scalars[SCALAR_BIAS2],
                         .multiplier = coef ? coef[CLIP_MULTIPLIER] : 1,
                         .skip = coef && coef[CLIP_FINITE] == 0};
}

/* Attributes are fp32, torch's betas are the doubles people write: 1 - 0.999 differs in the fifth digit.
 * Seven decimals give back what was written. */
static double as_written(float beta) { return round((double)beta * 1e7) / 1e7; }

static double adamw_one(const struct step *s, double p, double g, double *m, double *v)
{
    double beta1 = as_written(s->attr->beta1), beta2 = as_written(s->attr->beta2);
    p *= 1 - s->lr * (double)s->attr->decay;
    *m = beta1 * *m + (1 - beta1) * g;
    *v = beta2 * *v + (1 - beta2) * g * g;
    return p - s->lr / s->bias1 * *m / (sqrt(*v) / sqrt(s->bias2) + (double)s->attr->eps);
}

void ref_adamw(const struct ref_call *call)
{
    const struct step s = step_of(call, 5);
    int64_t n = tensor_count(ref_in(call, 0));
    for (int64_t i = 0; i < n; i++) {
        double p = call->in[4].f ? call->in[4].f[i] : call->in[0].f[i];
        double m = call->in[2].f[i], v = call->in[3].f[i];
        if (!s.skip) p = adamw_one(&s, p, call->in[1].f[i] * s.multiplier, &m, &v);
        call->out[0].f[i] = s.skip ? call->in[0].f[i] : p;
        call->out[1].f[i] = m;
        call->out[2].f[i] = v;
        if (call->out[3].f) call->out[3].f[i] = p;
    }
}

static double sgd_one(const struct step *s, double p, double g, double *momentum)
{
    double beta = (double)s->attr->beta1;
    g += (double)s->attr->decay * p;
    if (momentum) {
        *momentum = beta * *momentum + g;
        g = s->attr->nesterov ? g + beta * *momentum : *momentum;
    }
    return p - s->lr * g;
}

void ref_sgd(const struct ref_call *call)
{
    const struct step s = step_of(call, 4);
    int64_t n = tensor_count(ref_in(call, 0));
    for (int64_t i = 0; i < n; i++) {
        double p = call->in[3].f ? call->in[3].f[i] : call->in[0].f[i];
        double momentum = call->in[2].f ? call->in[2].f[i] : 0;
        double g = call->in[1].f[i] * s.multiplier;
        if (!s.skip) p = sgd_one(&s, p, g, call->in[2].f ? &momentum : NULL);
        call->out[0].f[i] = s.skip ? call->in[0].f[i] : p;
        if (call->out[1].f) call->out[1].f[i] = momentum;
        if (call->out[2].f) call->out[2].f[i] = p;
    }
}
