/* reference_each.c - ops where an element of the output depends on the same element of the inputs. */
#include "reference/reference_ops.h"

#include <math.h>

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

void ref_add(const struct ref_call *call)
{
    int64_t n = tensor_count(ref_out(call, ADD_Y));
    for (int64_t i = 0; i < n; i++) call->out[ADD_Y].f[i] = call->in[ADD_A].f[i] + call->in[ADD_B].f[i];
}

/* The tanh form of GELU, 0.5 x (1 + tanh z), written as x sigmoid(2 z): the same number, without 1 - 1 for negative
 * x. */
static const double gelu_c = 1.59576912160573071176; /* 2 sqrt(2 / pi) */
static const double gelu_a = 0.044715;

/* Value and slope of the op's activation at x. */
static double activate(const struct op_attr *attr, double x, double *slope)
{
    double cap = attr->cap > 0 ? (double)attr->cap : 1, s, inner;
    switch (attr->activation) {
    case ACTIVATION_GELU_TANH:
        s = gelu_c * (x + gelu_a * x * x * x), inner = gelu_c * (1 + 3 * gelu_a * x * x);
        *slope = sigmoid(s) + x * sigmoid(s) * sigmoid(-s) * inner;
        return x * sigmoid(s);
    case ACTIVATION_GELU:
        s = 0.5 * erfc(-x * 0.70710678118654752440);
        *slope = s + x * 0.39894228040143267794 * exp(-x * x / 2);
        return x * s;
    case ACTIVATION_RELU:
        *slope = x > 0;
        return x > 0 ? x : 0;
    case ACTIVATION_TANH:
        s = tanh(x / cap);
        *slope = 1 - s * s;
        return cap * s;
    case ACTIVATION_SCALE:
        *slope = attr->scale > 0 ? (double)attr->scale : 1;
        return *slope * x;
    default:
        s = sigmoid(x);
        *slope = s * (1 + x * (1 - s)); /* silu' = s + x s (1 - s) */
        return x * s;
    }
}

/* Element i of gate and up: of two tensors, or of the halves of one's rows. */
struct pair {
    double *gate, *up;
};

static struct pair pair_of(const struct ref_call *call, const struct tensor *h, double *gate, double *up,
                           int64_t i)
{
    int64_t width = h->dim[h->ndim - 1], row = i / width, column = i % width;
    if (!call->op->attr.joint) return (struct pair){gate + i, up + i};
    return (struct pair){gate + 2 * row * width + column, gate + (2 * row + 1) * width + column};
}

void ref_glu(const struct ref_call *call)
{
    const struct tensor *h = ref_out(call, GLU_H);
    double slope;
    for (int64_t i = 0; i < tensor_count(h); i++) {
        struct pair at = pair_of(call, h, call->in[GLU_GATE].f, call->in[GLU_UP].f, i);
        call->out[GLU_H].f[i] = activate(&call->op->attr, *at.gate, &slope) * *at.up;
    }
}

void ref_glu_bwd(const struct ref_call *call)
{
    const struct tensor *h = ref_in(call, GLU_BWD_DH);
    for (int64_t i = 0; i < tensor_count(h); i++) {
        struct pair from = pair_of(call, h, call->in[GLU_BWD_GATE].f, call->in[GLU_BWD_UP].f, i),
                    to = pair_of(call, h, call->out[GLU_BWD_DGATE].f, call->out[GLU_BWD_DUP].f, i);
        double dh = call->in[GLU_BWD_DH].f[i], up = *from.up, slope;
        double value = activate(&call->op->attr, *from.gate, &slope);
        *to.gate = dh * up * slope;
        *to.up = dh * value;
        if (ref_out(call, GLU_BWD_H)) call->out[GLU_BWD_H].f[i] = value * up;
    }
}

void ref_act(const struct ref_call *call)
{
    int64_t n = tensor_count(ref_out(call, ACT_Y));
    double slope;
    for (int64_t i = 0; i < n; i++)
        call->out[ACT_Y].f[i] = activate(&call->op->attr, call->in[ACT_X].f[i], &slope);
}

void ref_act_bwd(const struct ref_call *call)
{
    int64_t n = tensor_count(ref_out(call, ACT_BWD_DX));
    for (int64_t i = 0; i < n; i++) {
        double slope, value = activate(&call->op->attr, call->in[ACT_BWD_X].f[i], &slope);
        call->out[ACT_BWD_DX].f[i] = call->in[ACT_BWD_DY].f[i] * slope;
        if (ref_out(call, ACT_BWD_Y)) call->out[ACT_BWD_Y].f[i] = value;
    }
}
