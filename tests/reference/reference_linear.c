/* reference_linear.c - y = x W' and its two gradients. W(m,k) maps input channel k to output channel m,
 * whichever way it is stored. */
#include "reference/reference_ops.h"

struct shape {
    int64_t rows, m, k;
    int64_t width; /* of x: K for each part */
    bool kn;       /* stored [K,M] */
};

static int64_t parts_of(const struct ref_call *call)
{
    int64_t parts = 0;
    while (parts < OP_LINE_PARTS && call->op->attr.lines[parts].lines) parts++;
    return parts ? parts : 1;
}

/* From the operand that has W's layout and the one with rows of K. */
static struct shape shape_of(const struct ref_call *call, const struct tensor *weight, const struct tensor *x)
{
    bool kn = call->op->attr.weight_kn;
    struct shape s = {.m = weight->dim[kn ? 1 : 0], .k = weight->dim[kn ? 0 : 1], .kn = kn};
    s.width = s.k * parts_of(call);
    s.rows = tensor_count(x) / s.width;
    return s;
}

/* Where line m of W begins to read x. */
static int64_t column(const struct ref_call *call, const struct shape *s, int64_t m)
{
    int64_t p = 0;
    for (int64_t end = call->op->attr.lines[0].lines; end && m >= end; end += call->op->attr.lines[p].lines)
        p++;
    return p * s->k;
}

static int64_t at(const struct shape *s, int64_t m, int64_t k) { return s->kn ? k * s->m + m : m * s->k + k; }

void ref_linear(const struct ref_call *call)
{
    const struct shape s = shape_of(call, ref_in(call, LINEAR_W), ref_in(call, LINEAR_X));
    const double *x = call->in[LINEAR_X].f, *w = call->in[LINEAR_W].f, *bias = call->in[LINEAR_BIAS].f,
                 *add = call->in[LINEAR_ADD].f;
    for (int64_t r = 0; r < s.rows; r++) {
        for (int64_t m = 0; m < s.m; m++) {
            double sum = (bias ? bias[m] : 0) + (add ? add[r * s.m + m] : 0);
            const double *from = x + r * s.width + column(call, &s, m);
            for (int64_t k = 0; k < s.k; k++) sum += from[k] * w[at(&s, m, k)];
            call->out[LINEAR_Y].f[r * s.m + m] = sum;
        }
    }
}

void ref_linear_dx(const struct ref_call *call)
{
    const struct shape s = shape_of(call, ref_in(call, LINEAR_DX_W), ref_out(call, LINEAR_DX_DX));
    const double *dy = call->in[LINEAR_DX_DY].f, *w = call->in[LINEAR_DX_W].f,
                 *add = call->in[LINEAR_DX_ADD].f;
    double *dx = call->out[LINEAR_DX_DX].f;
    for (int64_t i = 0; i < s.rows * s.width; i++) dx[i] = add ? add[i] : 0;
    for (int64_t r = 0; r < s.rows; r++)
        for (int64_t m = 0; m < s.m; m++)
            for (int64_t k = 0; k < s.k; k++)
                dx[r * s.width + column(call, &s, m) + k] += dy[r * s.m + m] * w[at(&s, m, k)];
}

void ref_linear_dw(const struct ref_call *call)
{
    const double *dy = call->in[LINEAR_DW_DY].f, *x = call->in[LINEAR_DW_X].f;
    if (call->out[LINEAR_DW_DBIAS].f) {
        int64_t m = tensor_count(ref_out(call, LINEAR_DW_DBIAS)),
                all = tensor_count(ref_in(call, LINEAR_DW_DY));
        ref_begin(call, LINEAR_DW_DBIAS);
        for (int64_t i = 0; i < all; i++) call->out[LINEAR_DW_DBIAS].f[i % m] += dy[i];
    }
    if (!call->out[LINEAR_DW_DW].f) return;
    const struct shape s = shape_of(call, ref_out(call, LINEAR_DW_DW), ref_in(call, LINEAR_DW_X));
    int64_t weights = tensor_count(ref_out(call, LINEAR_DW_DW));
    ref_begin(call, LINEAR_DW_DW);
    for (int64_t i = 0; i < weights && call->op->attr.fresh; i++) call->out[LINEAR_DW_DW].f[i] = 0;
    for (int64_t r = 0; r < s.rows; r++)
        for (int64_t m = 0; m < s.m; m++)
            for (int64_t k = 0; k < s.k; k++)
                call->out[LINEAR_DW_DW].f[at(&s, m, k)] +=
                    dy[r * s.m + m] * x[r * s.width + column(call, &s, m) + k];
}
