/* reference_linear.c - y = x W' and its two gradients. W(m,k) maps input channel k to output channel m,
 * whichever way it is stored. */
#include "reference/reference_ops.h"

struct shape {
    int64_t rows, m, k;
    bool kn; /* stored [K,M] */
};

/* From the operand that has W's layout and the one whose rows are K or M wide. */
static struct shape shape_of(const struct ref_call *call, const struct tensor *weight)
{
    bool kn = call->op->attr.weight_kn;
    struct shape s = {.m = weight->dim[kn ? 1 : 0], .k = weight->dim[kn ? 0 : 1], .kn = kn};
    s.rows = tensor_count(ref_in(call, 0)) / (call->op->kind == OP_LINEAR ? s.k : s.m);
    return s;
}

static int64_t at(const struct shape *s, int64_t m, int64_t k) { return s->kn ? k * s->m + m : m * s->k + k; }

void ref_linear(const struct ref_call *call)
{
    const struct shape s = shape_of(call, ref_in(call, 1));
    const double *x = call->in[0].f, *w = call->in[1].f, *bias = call->in[2].f, *add = call->in[3].f;
    for (int64_t r = 0; r < s.rows; r++) {
        for (int64_t m = 0; m < s.m; m++) {
            double sum = (bias ? bias[m] : 0) + (add ? add[r * s.m + m] : 0);
            for (int64_t k = 0; k < s.k; k++) sum += x[r * s.k + k] * w[at(&s, m, k)];
            call->out[0].f[r * s.m + m] = sum;
        }
    }
}

void ref_linear_dx(const struct ref_call *call)
{
    const struct shape s = shape_of(call, ref_in(call, 1));
    const double *dy = call->in[0].f, *w = call->in[1].f, *add = call->in[2].f;
    for (int64_t r = 0; r < s.rows; r++) {
        for (int64_t k = 0; k < s.k; k++) {
            double sum = add ? add[r * s.k + k] : 0;
            for (int64_t m = 0; m < s.m; m++) sum += dy[r * s.m + m] * w[at(&s, m, k)];
            call->out[0].f[r * s.k + k] = sum;
        }
    }
}

void ref_linear_dw(const struct ref_call *call)
{
    const struct shape s = shape_of(call, ref_out(call, 0));
    const double *dy = call->in[0].f, *x = call->in[1].f;
    ref_begin(call, 0);
    if (call->out[1].f) ref_begin(call, 1);
    for (int64_t r = 0; r < s.rows; r++) {
        for (int64_t m = 0; m < s.m; m++) {
            for (int64_t k = 0; k < s.k; k++)
                call->out[0].f[at(&s, m, k)] += dy[r * s.m + m] * x[r * s.k + k];
            if (call->out[1].f) call->out[1].f[m] += dy[r * s.m + m];
        }
    }
}
