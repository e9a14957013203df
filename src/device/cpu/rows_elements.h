/* rows_elements.h - row functions that process each element separately. See rows.h.
 *
 * Every _at function is one step of sixteen elements: it loads everything before it stores, which makes working in place
 * safe. */
#pragma once

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

VEC_FN void scale_add_at(enum dtype t, void *y, const void *x, float by, const void *add, int64_t i, int k)
{
    vf v = v_mul(v_load(t, x, i, k), v_all(by));
    v_store(t, y, i, k, add ? v_add(v, v_load(t, add, i, k)) : v);
}

ROW_FN void row_scale_add(enum dtype t, void *y, const void *x, float by, const void *add,
                          int64_t n){VEC_TYPES(t, VEC_EACH(n, scale_add_at(T, y, x, by, add, i, k)))}

VEC_FN void add_scaled_at(enum dtype t, float *sum, const void *x, float by, int64_t i, int k)
{
    v_store(DT_F32, sum, i, k, v_fma(v_load(t, x, i, k), v_all(by), v_load(DT_F32, sum, i, k)));
}

ROW_FN void row_add_scaled(enum dtype t, float *sum, const void *x, float by,
                           int64_t n){VEC_TYPES(t, VEC_EACH(n, add_scaled_at(T, sum, x, by, i, k)))}

VEC_FN void rope_at(enum dtype t, void *y, const void *x, const float *table, int64_t half, float sign,
                    int64_t at, int64_t i, int k)
{
    vf c = v_load(DT_F32, table, i, k), s = v_mul(v_load(DT_F32, table, half + i, k), v_all(sign));
    vf x1 = v_load(t, x, at + i, k), x2 = v_load(t, x, at + half + i, k);
    v_store(t, y, at + i, k, v_fnma(x2, s, v_mul(x1, c)));
    v_store(t, y, at + half + i, k, v_fma(x1, s, v_mul(x2, c)));
}

VEC_FN void copy_at(enum dtype t, void *y, const void *x, int64_t at, int64_t i, int k)
{
    v_store(t, y, at + i, k, v_load(t, x, at + i, k));
}

ROW_FN void row_rope(enum dtype t, void *y, const void *x, const float *table, struct row_heads h,
                     bool inverse)
{
    float sign = inverse ? -1.0f : 1.0f;
    int64_t half = h.turned / 2, rest = h.size - h.turned;
    for (int64_t at = 0; at < h.count * h.size; at += h.size) {
        VEC_TYPES(t, VEC_EACH(half, rope_at(T, y, x, table, half, sign, at, i, k)))
        if (rest) VEC_TYPES(t, VEC_EACH(rest, copy_at(T, y, x, at + h.turned, i, k)))
    }
}

VEC_FN void exp_scaled_at(enum dtype t, void *y, const void *x, float top, float scale, int64_t i, int k)
{
    vf e = v_exp_low(v_sub(v_load(t, x, i, k), v_all(top)));
    v_store(t, y, i, k, v_mul(e, v_all(scale)));
}

ROW_FN void row_exp_scaled(enum dtype t, void *y, const void *x, int64_t n, float top,
                           float scale){VEC_TYPES(t, VEC_EACH(n, exp_scaled_at(T, y, x, top, scale, i, k)))}

VEC_FN void exp_capped_at(enum dtype t, void *y, const float *x, const struct row_softmax_grad *g, int64_t i,
                          int k)
{
    vf v = v_load(DT_F32, x, i, k), bend = v_mul(v, v_all(1 / g->cap));
    vf p = v_mul(v_exp_low(v_sub(v, v_all(g->top))), v_all(g->scale));
    v_store(t, y, i, k, v_mul(p, v_fnma(bend, bend, v_all(1))));
}

ROW_FN void row_exp_capped(enum dtype t, void *y, const float *x, const struct row_softmax_grad *grad,
                           int64_t n)
{
    const struct row_softmax_grad g = *grad;
    VEC_TYPES(t, VEC_EACH(n, exp_capped_at(T, y, x, &g, i, k)))
}

VEC_END
