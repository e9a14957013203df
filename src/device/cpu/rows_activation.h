/* rows_activation.h - row functions of activations, gated units and dropout. See rows.h.
 *
 * Every _at function is one step of sixteen elements and loads all it needs before it stores. */
#pragma once

#include "device/cpu/rows.h"
#include "device/cpu/vec.h"
#include "tensor/stochastic.h"

#ifndef ROW_FN
#define ROW_FN static __attribute__((unused))
#endif

VEC_BEGIN

/* The tanh form of GELU is a sigmoid: (1 + tanh(z)) / 2 = sigmoid(2 z), with 2 z = x (a + b x^2). */
#define GELU_A 1.5957691216057308f  /* 2 sqrt(2 / pi) */
#define GELU_B 0.07135481627260025f /* 0.044715 a */

VEC_FN vf gelu_inner(vf x, vf square) { return v_mul(x, v_fma(square, v_all(GELU_B), v_all(GELU_A))); }

VEC_FN vf v_size(vf x) { return v_max(v_sub(v_all(0), x), x); }

/* 1 if x > 0, 0 if x < 0, also for tiny values. */
VEC_FN vf v_is_above(vf x)
{
    vf far = v_mul(v_mul(x, v_all(0x1p100f)), v_all(0x1p100f));
    return v_min(v_all(1), v_max(v_all(0), far));
}

/* P(X < -|x|) of a normal number, and *e = e^(-x^2 / 2). With z = |x| / sqrt(2) and t = 1 / (1 + z / 2), erfc(z) is
 * e^(-z^2) t q(t); the polynomial q is minimax in relative error (4e-8). */
VEC_FN vf normal_tail(vf x, vf *e)
{
    vf t = v_div(v_all(1), v_fma(v_size(x), v_all(0.35355339f), v_all(1)));
    vf q = v_fma(t, v_all(-0x1.e26ea4p-5f), v_all(0x1.22829ap-2f));
    q = v_fma(q, t, v_all(-0x1.f10812p-2f));
    q = v_fma(q, t, v_all(0x1.1a999ap-2f));
    q = v_fma(q, t, v_all(-0x1.9c7e34p-6f));
    q = v_fma(q, t, v_all(0x1.9dd68ap-3f));
    q = v_fma(q, t, v_all(0x1.f232e4p-3f));
    q = v_fma(q, t, v_all(0x1.212144p-2f));
    q = v_fma(q, t, v_all(0x1.20db98p-2f));
    *e = v_exp_low(v_mul(v_mul(x, x), v_all(-0.5f)));
    return v_mul(v_mul(v_mul(*e, t), q), v_all(0.5f));
}

/* x P(X < x): max(x, 0) less |x| times the tail. */
VEC_FN vf gelu_of(vf x, vf tail) { return v_fnma(v_size(x), tail, v_max(v_all(0), x)); }

/* Activations of few models stay out of line: inlined into every loop they would be a tenth of the
 * program. */
#define RARE static __attribute__((noinline, unused)) void

RARE act_rare(struct row_act a, const vf *x, vf *y)
{
    vf e;
    if (a.kind == ACTIVATION_GELU)
        *y = gelu_of(*x, normal_tail(*x, &e));
    else if (a.kind == ACTIVATION_RELU)
        *y = v_max(v_all(0), *x);
    else if (a.kind == ACTIVATION_SCALE)
        *y = v_mul(v_all(a.cap), *x);
    else
        *y = v_mul(v_all(a.cap), v_tanh(v_div(*x, v_all(a.cap))));
}

RARE act_rare_slope(struct row_act a, const vf *at, vf *y, vf *slope)
{
    vf x = *at, e;
    if (a.kind == ACTIVATION_GELU) {
        vf tail = normal_tail(x, &e), sign = v_sub(v_add(v_is_above(x), v_is_above(x)), v_all(1));
        vf below = v_fma(sign, v_sub(v_all(0.5f), tail), v_all(0.5f)); /* P(X < x) */
        *y = gelu_of(x, tail);
        *slope = v_fma(v_mul(x, v_all(0.39894228f)), e, below);
    } else if (a.kind == ACTIVATION_RELU) {
        *y = v_max(v_all(0), x);
        *slope = v_is_above(x);
    } else if (a.kind == ACTIVATION_SCALE) {
        *y = v_mul(v_all(a.cap), x);
        *slope = v_all(a.cap);
    } else {
        vf t = v_tanh(v_div(x, v_all(a.cap)));
        *y = v_mul(v_all(a.cap), t);
        *slope = v_fnma(t, t, v_all(1));
    }
}

VEC_FN vf act_of(struct row_act a, vf x)
{
    vf y;
    if (a.kind == ACTIVATION_SILU) return v_div(x, v_one_plus_exp_minus(x));
    if (a.kind == ACTIVATION_GELU_TANH) return v_div(x, v_one_plus_exp_minus(gelu_inner(x, v_mul(x, x))));
    act_rare(a, &x, &y);
    return y;
}

/* silu(x) = x s, silu' = s + x s (1 - s); of the tanh form d(x s) = s + x s (1 - s) (a + 3 b x^2). */
VEC_FN vf act_slope(struct row_act a, vf x, vf *y)
{
    vf square = v_mul(x, x), s, c;
    if (a.kind == ACTIVATION_SILU) {
        v_sigmoid(x, &s, &c);
        *y = v_mul(x, s);
        return v_fma(*y, c, s);
    }
    if (a.kind == ACTIVATION_GELU_TANH) {
        v_sigmoid(gelu_inner(x, square), &s, &c);
        *y = v_mul(x, s);
        return v_fma(v_mul(v_mul(x, v_fma(square, v_all(3 * GELU_B), v_all(GELU_A))), s), c, s);
    }
    act_rare_slope(a, &x, y, &s);
    return s;
}

VEC_FN void act_at(enum dtype t, struct row_act a, void *y, const void *x, int64_t i, int k)
{
    v_ahead(t, x, i);
    v_store(t, y, i, k, act_of(a, v_load(t, x, i, k)));
}

/* The activation of encoders, with its own loop. */
VEC_FN void gelu_at(enum dtype t, void *y, const void *x, int64_t i, int k)
{
    v_ahead(t, x, i);
    vf v = v_load(t, x, i, k), e;
    v_store(t, y, i, k, gelu_of(v, normal_tail(v, &e)));
}

ROW_FN void row_act(enum dtype t, struct row_act a, void *y, const void *x, int64_t n)
{
    if (a.kind == ACTIVATION_GELU) {
        VEC_TYPES(t, VEC_EACH(n, gelu_at(T, y, x, i, k)))
        return;
    }
    VEC_TYPES(t, VEC_EACH(n, act_at(T, a, y, x, i, k)))
}

VEC_FN void act_bwd_at(enum dtype t, struct row_act a, void *dx, void *y, const void *dy, const void *x,
                       int64_t i, int k)
{
    vf d = v_load(t, dy, i, k), v = v_load(t, x, i, k), value;
    v_store(t, dx, i, k, v_mul(d, act_slope(a, v, &value)));
    if (y) v_store(t, y, i, k, act_of(a, v));
}

ROW_FN void row_act_bwd(enum dtype t, struct row_act a, void *dx, void *y, const void *dy, const void *x,
                        int64_t n){VEC_TYPES(t, VEC_EACH(n, act_bwd_at(T, a, dx, y, dy, x, i, k)))}

VEC_FN vf glu_of(struct row_act a, vf g, vf u)
{
    if (a.kind == ACTIVATION_SILU) return v_div(v_mul(g, u), v_one_plus_exp_minus(g));
    return v_mul(act_of(a, g), u);
}

VEC_FN void glu_at(enum dtype t, struct row_act a, void *h, const void *gate, const void *up, int64_t i,
                   int k)
{
    v_ahead(t, gate, i), v_ahead(t, up, i);
    v_store(t, h, i, k, glu_of(a, v_load(t, gate, i, k), v_load(t, up, i, k)));
}

ROW_FN void row_glu(enum dtype t, struct row_act a, void *h, const void *gate, const void *up,
                    int64_t n){VEC_TYPES(t, VEC_EACH(n, glu_at(T, a, h, gate, up, i, k)))}

VEC_FN void glu_bwd_at(enum dtype t, struct row_act a, void *dgate, void *dup, void *h, const void *dh,
                       const void *gate, const void *up, int64_t i, int k)
{
    vf d = v_load(t, dh, i, k), g = v_load(t, gate, i, k), u = v_load(t, up, i, k), value;
    vf slope = act_slope(a, g, &value);
    v_store(t, dgate, i, k, v_mul(v_mul(d, u), slope));
    v_store(t, dup, i, k, v_mul(d, value));
    if (h) v_store(t, h, i, k, glu_of(a, g, u));
}

ROW_FN void row_glu_bwd(enum dtype t, struct row_act a, void *dgate, void *dup, void *h, const void *dh,
                        const void *gate, const void *up, int64_t n){
    VEC_TYPES(t, VEC_EACH(n, glu_bwd_at(T, a, dgate, dup, h, dh, gate, up, i, k)))}

/* Dropout factors of sixteen elements starting at `at`. */
VEC_FN vf drop_factors(const struct row_drop *d, uint32_t at)
{
    float factor[VEC_LANES];
    for (int j = 0; j < VEC_LANES; j++)
        factor[j] = stochastic_bits(d->line, at + (uint32_t)j) >= d->below ? d->scale : 0;
    return v_load_f32(factor);
}

VEC_FN void drop_at(enum dtype t, const struct row_drop *d, void *y, const void *x, const void *add,
                    int64_t i, int k)
{
    vf v = v_mul(v_load(t, x, i, k), drop_factors(d, d->first + (uint32_t)i));
    v_store(t, y, i, k, add ? v_add(v, v_load(t, add, i, k)) : v);
}

ROW_FN void row_drop(enum dtype t, const struct row_drop *drop, void *y, const void *x, const void *add,
                     int64_t n)
{
    const struct row_drop d = *drop;
    VEC_TYPES(t, VEC_EACH(n, drop_at(T, &d, y, x, add, i, k)))
}

VEC_END
