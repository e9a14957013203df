/* rows_reduce.h - row functions that sum over a row: norms and softmax. See rows.h.
 *
 * Sums run in sixteen lanes in order of position and are folded at the end: the result depends only on the row. A row is
 * read two or three times, from the nearest cache after the first. */
#pragma once

#include "device/cpu/rows.h"
#include "device/cpu/vec.h"
#include <math.h>

#ifndef ROW_FN
#define ROW_FN static __attribute__((unused))
#endif

VEC_BEGIN

/* --- forward ------------------------------------------------------------------------------------- */

VEC_FN void sum_at(enum dtype t, vf *sum, const void *x, int64_t i, int k)
{
    *sum = v_add(*sum, v_load(t, x, i, k));
}

/* Lanes above k hold the mean, so that they add nothing. */
VEC_FN void square_at(enum dtype t, vf *sum, const void *x, float mean, int64_t i, int k)
{
    vf d = v_sub(v_head(v_load(t, x, i, k), k, mean), v_all(mean));
    *sum = v_fma(d, d, *sum);
}

VEC_FN vf weight_at(enum dtype t, const void *w, bool plus_one, int64_t i, int k)
{
    vf weight = v_load(t, w, i, k);
    return plus_one ? v_add(weight, v_all(1)) : weight;
}

VEC_FN void rms_at(enum dtype t, void *y, const void *x, const void *w, bool plus_one, float rstd, int64_t i,
                   int k)
{
    v_store(t, y, i, k, v_mul(v_mul(v_load(t, x, i, k), v_all(rstd)), weight_at(t, w, plus_one, i, k)));
}

VEC_FN void rms_row(enum dtype t, void *y, float *stat, const void *x, const void *w, bool plus_one,
                    int64_t n, float eps)
{
    vf sum = v_all(0);
    VEC_EACH(n, (v_ahead(t, x, i), square_at(t, &sum, x, 0, i, k)))
    float rstd = stat[0] = 1.0f / sqrtf(v_sum(sum) / (float)n + eps);
    VEC_EACH(n, rms_at(t, y, x, w, plus_one, rstd, i, k))
}

ROW_FN void row_rms(enum dtype t, void *y, float *stat, const void *x, const void *w, bool plus_one,
                    int64_t n, float eps){VEC_TYPES(t, rms_row(T, y, stat, x, w, plus_one, n, eps))}

VEC_FN void layer_at(enum dtype t, void *y, const void *x, const void *w, const void *b, float mean,
                     float rstd, int64_t i, int k)
{
    vf hat = v_mul(v_sub(v_load(t, x, i, k), v_all(mean)), v_all(rstd));
    vf shift = b ? v_load(t, b, i, k) : v_all(0);
    v_store(t, y, i, k, v_fma(hat, v_load(t, w, i, k), shift));
}

VEC_FN void layer_row(enum dtype t, void *y, float *stat, const void *x, const void *w, const void *b,
                      int64_t n, float eps)
{
    vf sum = v_all(0), square = v_all(0);
    VEC_EACH(n, (v_ahead(t, x, i), sum_at(t, &sum, x, i, k)))
    float mean = stat[0] = v_sum(sum) / (float)n;
    VEC_EACH(n, square_at(t, &square, x, mean, i, k))
    float rstd = stat[1] = 1.0f / sqrtf(v_sum(square) / (float)n + eps);
    VEC_EACH(n, layer_at(t, y, x, w, b, mean, rstd, i, k))
}

ROW_FN void row_layer(enum dtype t, void *y, float *stat, const void *x, const void *w, const void *b,
                      int64_t n, float eps){VEC_TYPES(t, layer_row(T, y, stat, x, w, b, n, eps))}

/* --- backward ------------------------------------------------------------------------------------ */

/* hat = (x - mean) rstd, g = dy w: sum of g hat, and dw += dy hat. */
VEC_FN void rms_sums_at(enum dtype t, vf *dot, const struct row_norm_bwd *r, int64_t i, int k)
{
    vf dy = v_load(t, r->dy, i, k), hat = v_mul(v_load(t, r->x, i, k), v_all(r->rstd));
    vf part = v_mul(dy, hat);
    *dot = v_fma(part, weight_at(t, r->w, r->plus_one, i, k), *dot);
    if (r->dw) v_store(DT_F32, r->dw, i, k, v_add(v_load(DT_F32, r->dw, i, k), part));
}

VEC_FN void rms_dx_at(enum dtype t, const struct row_norm_bwd *r, float mean_dot, int64_t i, int k)
{
    vf g = v_mul(v_load(t, r->dy, i, k), weight_at(t, r->w, r->plus_one, i, k));
    vf hat = v_mul(v_load(t, r->x, i, k), v_all(r->rstd));
    vf dx = v_mul(v_fnma(hat, v_all(mean_dot), g), v_all(r->rstd));
    v_store(t, r->dx, i, k, r->add ? v_add(dx, v_load(t, r->add, i, k)) : dx);
}

VEC_FN void rms_bwd_row(enum dtype t, const struct row_norm_bwd *r, int64_t n)
{
    vf dot = v_all(0);
    VEC_EACH(n, rms_sums_at(t, &dot, r, i, k))
    float mean_dot = v_sum(dot) / (float)n;
    VEC_EACH(n, rms_dx_at(t, r, mean_dot, i, k))
}

ROW_FN void row_rms_bwd(enum dtype t, const struct row_norm_bwd *row, int64_t n)
{
    const struct row_norm_bwd r = *row; /* a copy whose address is not taken stays in registers */
    VEC_TYPES(t, rms_bwd_row(T, &r, n))
}

VEC_FN vf layer_hat(enum dtype t, const struct row_norm_bwd *r, int64_t i, int k)
{
    return v_mul(v_sub(v_load(t, r->x, i, k), v_all(r->mean)), v_all(r->rstd));
}

/* Lanes above k are harmless: dy is zero there. */
VEC_FN void layer_sums_at(enum dtype t, vf *sum, vf *dot, const struct row_norm_bwd *r, int64_t i, int k)
{
    vf dy = v_load(t, r->dy, i, k), w = v_load(t, r->w, i, k);
    vf part = v_mul(dy, layer_hat(t, r, i, k));
    *sum = v_fma(dy, w, *sum);
    *dot = v_fma(part, w, *dot);
    if (r->dw) v_store(DT_F32, r->dw, i, k, v_add(v_load(DT_F32, r->dw, i, k), part));
    if (r->db) v_store(DT_F32, r->db, i, k, v_add(v_load(DT_F32, r->db, i, k), dy));
}

VEC_FN void layer_dx_at(enum dtype t, const struct row_norm_bwd *r, float mean_g, float mean_dot, int64_t i,
                        int k)
{
    vf g = v_mul(v_load(t, r->dy, i, k), v_load(t, r->w, i, k));
    vf inner = v_fnma(layer_hat(t, r, i, k), v_all(mean_dot), v_sub(g, v_all(mean_g)));
    vf dx = v_mul(inner, v_all(r->rstd));
    v_store(t, r->dx, i, k, r->add ? v_add(dx, v_load(t, r->add, i, k)) : dx);
}

VEC_FN void layer_bwd_row(enum dtype t, const struct row_norm_bwd *r, int64_t n)
{
    vf sum = v_all(0), dot = v_all(0);
    VEC_EACH(n, layer_sums_at(t, &sum, &dot, r, i, k))
    float mean_g = v_sum(sum) / (float)n, mean_dot = v_sum(dot) / (float)n;
    VEC_EACH(n, layer_dx_at(t, r, mean_g, mean_dot, i, k))
}

ROW_FN void row_layer_bwd(enum dtype t, const struct row_norm_bwd *row, int64_t n)
{
    const struct row_norm_bwd r = *row;
    VEC_TYPES(t, layer_bwd_row(T, &r, n))
}

/* --- softmax ------------------------------------------------------------------------------------- */

VEC_FN void top_at(enum dtype t, vf *top, const void *x, int64_t i, int k)
{
    *top = v_max(*top, v_head(v_load(t, x, i, k), k, -INFINITY));
}

VEC_FN void exp_sum_at(enum dtype t, vf *sum, const void *x, float top, int64_t i, int k)
{
    *sum = v_add(*sum, v_head(v_exp_low(v_sub(v_load(t, x, i, k), v_all(top))), k, 0));
}

/* A block stays in the first-level cache between finding its maximum and summing; if it raises the maximum,
 * the sum so far is scaled down. Memory is read once. */
VEC_FN struct row_softmax softmax_row(enum dtype t, const void *x, int64_t n)
{
    enum { BLOCK = 1024 };
    struct row_softmax all = {-INFINITY, 0};
    for (int64_t at = 0; at < n; at += BLOCK) {
        const void *block = (const char *)x + at * (int64_t)dtype_size(t);
        int64_t count = n - at < BLOCK ? n - at : BLOCK;
        vf top = v_all(all.top), sum = v_all(0);
        VEC_EACH(count, top_at(t, &top, block, i, k))
        float higher = v_top(top);
        if (higher > all.top) all.sum *= exp((double)all.top - (double)higher), all.top = higher;
        VEC_EACH(count, exp_sum_at(t, &sum, block, all.top, i, k))
        all.sum += (double)v_sum(sum);
    }
    return all;
}

ROW_FN struct row_softmax row_softmax(enum dtype t, const void *x, int64_t n)
{
    struct row_softmax all = {0};
    VEC_TYPES(t, all = softmax_row(T, x, n))
    return all;
}

VEC_END
