/* reference_each.c - ops where an element of the output depends on the same element of the inputs. */
#include "reference/reference_ops.h"

#include <math.h>

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

void ref_add(const struct ref_call *call)
{
    int64_t n = tensor_count(ref_out(call, 0));
    for (int64_t i = 0; i < n; i++) call->out[0].f[i] = call->in[0].f[i] + call->in[1].f[i];
}

void ref_swiglu(const struct ref_call *call)
{
    int64_t n = tensor_count(ref_out(call, 0));
    for (int64_t i = 0; i < n; i++) {
        double gate = call->in[0].f[i], up = call->in[1].f[i];
        call->out[0].f[i] = gate * sigmoid(gate) * up;
    }
}

void ref_swiglu_bwd(const struct ref_call *call)
{
    int64_t n = tensor_count(ref_out(call, 0));
    for (int64_t i = 0; i < n; i++) {
        double dh = call->in[0].f[i], gate = call->in[1].f[i], up = call->in[2].f[i], s = sigmoid(gate);
        call->out[0].f[i] = dh * up * s * (1 + gate * (1 - s)); /* silu' = s + x s (1 - s) */
        call->out[1].f[i] = dh * gate * s;
        if (ref_out(call, 2)) call->out[2].f[i] = gate * s * up;
    }
}

/* The tanh form, 0.5 x (1 + tanh z), written as x sigmoid(2 z): the same number, without 1 - 1 for negative
 * x. */
static const double gelu_c = 1.59576912160573071176; /* 2 sqrt(2 / pi) */
static const double gelu_a = 0.044715;

void ref_gelu(const struct ref_call *call)
{
    int64_t n = tensor_count(ref_out(call, 0));
    for (int64_t i = 0; i < n; i++) {
        double x = call->in[0].f[i];
        call->out[0].f[i] = x * sigmoid(gelu_c * (x + gelu_a * x * x * x));
    }
}

void ref_gelu_bwd(const struct ref_call *call)
{
    int64_t n = tensor_count(ref_out(call, 0));
    for (int64_t i = 0; i < n; i++) {
        double dy = call->in[0].f[i], x = call->in[1].f[i];
        double z = gelu_c * (x + gelu_a * x * x * x), inner = gelu_c * (1 + 3 * gelu_a * x * x);
        call->out[0].f[i] = dy * (sigmoid(z) + x * sigmoid(z) * sigmoid(-z) * inner);
        if (ref_out(call, 1)) call->out[1].f[i] = x * sigmoid(z);
    }
}
