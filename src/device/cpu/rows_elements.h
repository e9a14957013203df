/* rows_elements.h - row functions that treat each element by itself. See rows.h for what they mean.
 *
 * Every _at function is one step of sixteen elements: it loads all it needs before it stores, which is what
 * makes working in place safe. */
#ifndef PLIM_DEVICE_CPU_ROWS_ELEMENTS_H
#define PLIM_DEVICE_CPU_ROWS_ELEMENTS_H

#include "device/cpu/rows.h"
#include "device/cpu/vec.h"

#ifndef ROW_FN
#define ROW_FN static __attribute__((unused))
#endif

VEC_BEGIN

VEC_FN void add_at(enum dtype t, void *y, const void *a, const void *b, int64_t i, int k)
{
    v_store(t, y, i, k, v_add(v_load(t, a, i, k), v_load(t, b, i, k)));
}

ROW_FN void row_add(enum dtype t, void *y, const void *a, const void *b,
                    int64_t n){VEC_TYPES(t, VEC_EACH(n, add_at(T, y, a, b, i, k)))}

VEC_FN void add_to_at(enum dtype t, float *sum, const void *x, int64_t i, int k)
{
    v_store(DT_F32, sum, i, k, v_add(v_load(DT_F32, sum, i, k), v_load(t, x, i, k)));
}

ROW_FN void row_add_to(enum dtype t, float *sum, const void *x,
                       int64_t n){VEC_TYPES(t, VEC_EACH(n, add_to_at(T, sum, x, i, k)))}

VEC_FN vf swiglu_of(vf g, vf u)
{
    return v_div(v_mul(g, u), v_one_plus_exp_minus(g));
}

VEC_FN void swiglu_at(enum dtype t, void *h, const void *gate, const void *up, int64_t i, int k)
{
    vf g = v_load(t, gate, i, k), u = v_load(t, up, i, k);
    v_store(t, h, i, k, swiglu_of(g, u));
}

ROW_FN void row_swiglu(enum dtype t, void *h, const void *gate, const void *up,
                       int64_t n){VEC_TYPES(t, VEC_EACH(n, swiglu_at(T, h, gate, up, i, k)))}

/* silu = g s, silu' = s + g s (1 - s) */
VEC_FN void swiglu_bwd_at(enum dtype t, void *dgate, void *dup, void *h, const void *dh, const void *gate,
                          const void *up, int64_t i, int k)
{
    vf d = v_load(t, dh, i, k), g = v_load(t, gate, i, k), u = v_load(t, up, i, k), s, c;
    v_sigmoid(g, &s, &c);
    vf silu = v_mul(g, s);
    v_store(t, dgate, i, k, v_mul(v_mul(d, u), v_fma(silu, c, s)));
    v_store(t, dup, i, k, v_mul(d, silu));
    if (h) v_store(t, h, i, k, swiglu_of(g, u));
}

ROW_FN void row_swiglu_bwd(enum dtype t, void *dgate, void *dup, void *h, const void *dh, const void *gate,
                           const void *up, int64_t n){
    VEC_TYPES(t, VEC_EACH(n, swiglu_bwd_at(T, dgate, dup, h, dh, gate, up, i, k)))}

/* The tanh form is a sigmoid: (1 + tanh(z)) / 2 = sigmoid(2 z), with 2 z = x (a + b x^2). */
#define GELU_A 1.5957691216057308f  /* 2 sqrt(2 / pi) */
#define GELU_B 0.07135481627260025f /* 0.044715 a */

VEC_FN vf gelu_inner(vf x, vf square)
{
    return v_mul(x, v_fma(square, v_all(GELU_B), v_all(GELU_A)));
}

VEC_FN vf gelu_of(vf x) { return v_div(x, v_one_plus_exp_minus(gelu_inner(x, v_mul(x, x)))); }

VEC_FN void gelu_at(enum dtype t, void *y, const void *x, int64_t i, int k)
{
    v_store(t, y, i, k, gelu_of(v_load(t, x, i, k)));
}

ROW_FN void row_gelu(enum dtype t, void *y, const void *x,
                     int64_t n){VEC_TYPES(t, VEC_EACH(n, gelu_at(T, y, x, i, k)))}

/* d(x s) = s + x s (1 - s) (a + 3 b x^2) */
VEC_FN void gelu_bwd_at(enum dtype t, void *dx, void *y, const void *dy, const void *x, int64_t i, int k)
{
    vf d = v_load(t, dy, i, k), v = v_load(t, x, i, k), square = v_mul(v, v), s, c;
    v_sigmoid(gelu_inner(v, square), &s, &c);
    vf rate = v_mul(v, v_fma(square, v_all(3 * GELU_B), v_all(GELU_A)));
    v_store(t, dx, i, k, v_mul(d, v_fma(v_mul(rate, s), c, s)));
    if (y) v_store(t, y, i, k, gelu_of(v));
}

ROW_FN void row_gelu_bwd(enum dtype t, void *dx, void *y, const void *dy, const void *x,
                         int64_t n){VEC_TYPES(t, VEC_EACH(n, gelu_bwd_at(T, dx, y, dy, x, i, k)))}

VEC_FN void rope_at(enum dtype t, void *y, const void *x, const float *table, int64_t half, float sign,
                    int64_t at, int64_t i, int k)
{
    vf c = v_load(DT_F32, table, i, k), s = v_mul(v_load(DT_F32, table, half + i, k), v_all(sign));
    vf x1 = v_load(t, x, at + i, k), x2 = v_load(t, x, at + half + i, k);
    v_store(t, y, at + i, k, v_fnma(x2, s, v_mul(x1, c)));
    v_store(t, y, at + half + i, k, v_fma(x1, s, v_mul(x2, c)));
}

ROW_FN void row_rope(enum dtype t, void *y, const void *x, const float *table, int64_t heads, int64_t half,
                     bool inverse)
{
    float sign = inverse ? -1.0f : 1.0f;
    for (int64_t at = 0; at < heads * 2 * half; at += 2 * half)
        VEC_TYPES(t, VEC_EACH(half, rope_at(T, y, x, table, half, sign, at, i, k)))
}

VEC_FN void exp_scaled_at(enum dtype t, void *y, const void *x, float top, float scale, int64_t i, int k)
{
    vf e = v_exp_low(v_sub(v_load(t, x, i, k), v_all(top)));
    v_store(t, y, i, k, v_mul(e, v_all(scale)));
}

ROW_FN void row_exp_scaled(enum dtype t, void *y, const void *x, int64_t n, float top,
                           float scale){VEC_TYPES(t, VEC_EACH(n, exp_scaled_at(T, y, x, top, scale, i, k)))}

VEC_END

#endif
