/* reference_each.c - ops where an element of the output depends on the same element of the inputs. */
#include "reference/reference_ops.h"

#include <math.h>

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

void ref_add(const struct ref_call *call)
{
    int64_t n = tensor_count(ref_out(call, ADD_Y));
    for (int64_t i = 0; i < n; i++) call->out[ADD_Y].f[i] = call->in[ADD_A].f[i] + call->in[ADD_B].f[i];
}

void ref_swiglu(const struct ref_call *call)
{
    int64_t n = tensor_count(ref_out(call, SWIGLU_H));
    for (int64_t i = 0; i < n; i++) {
        double gate = call->in[SWIGLU_GATE].f[i], up = call->in[SWIGLU_UP].f[i];
        call->out[SWIGLU_H].f[i] = gate * sigmoid(gate) * up;
    }
}

void ref_swiglu_bwd(const struct ref_call *call)
{
    int64_t n = tensor_count(ref_out(call, SWIGLU_BWD_DGATE));
    for (int64_t i = 0; i < n; i++) {
        double dh = call->in[SWIGLU_BWD_DH].f[i], gate = call->in[SWIGLU_BWD_GATE].f[i],
               up = call->in[SWIGLU_BWD_UP].f[i], s = sigmoid(gate);
        call->out[SWIGLU_BWD_DGATE].f[i] = dh * up * s * (1 + gate * (1 - s)); /* silu' = s + x s (1 - s) */
        call->out[SWIGLU_BWD_DUP].f[i] = dh * gate * s;
        if (ref_out(call, SWIGLU_BWD_H)) call->out[SWIGLU_BWD_H].f[i] = gate * s * up;
    }
}

/* The tanh form, 0.5 x (1 + tanh z), written as x sigmoid(2 z): the same number, without 1 - 1 for negative
 * x. */
static const double gelu_c = 1.59576912160573071176; /* 2 sqrt(2 / pi) */
static const double gelu_a = 0.044715;

void ref_gelu(const struct ref_call *call)
{
    int64_t n = tensor_count(ref_out(call, GELU_Y));
    for (int64_t i = 0; i < n; i++) {
        double x = call->in[GELU_X].f[i];
        call->out[GELU_Y].f[i] = x * sigmoid(gelu_c * (x + gelu_a * x * x * x));
    }
}

void ref_gelu_bwd(const struct ref_call *call)
{
    int64_t n = tensor_count(ref_out(call, GELU_BWD_DX));
    for (int64_t i = 0; i < n; i++) {
        double dy = call->in[GELU_BWD_DY].f[i], x = call->in[GELU_BWD_X].f[i];
        double z = gelu_c * (x + gelu_a * x * x * x), inner = gelu_c * (1 + 3 * gelu_a * x * x);
        call->out[GELU_BWD_DX].f[i] = dy * (sigmoid(z) + x * sigmoid(z) * sigmoid(-z) * inner);
        if (ref_out(call, GELU_BWD_Y)) call->out[GELU_BWD_Y].f[i] = x * sigmoid(z);
    }
}
