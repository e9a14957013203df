/* rows_update.h - row functions of the optimizers. See rows.h.
 *
 * One pass: parameter, gradient and state are read and written once. */
#pragma once

#include "device/cpu/rows.h"
#include "device/cpu/vec.h"
#include "tensor/stochastic.h"

#ifndef ROW_FN
#define ROW_FN static __attribute__((unused))
#endif

VEC_BEGIN

VEC_FN vf load_pair(const void *weight, const void *low, int64_t i, int k)
{
    const uint16_t *w = (const uint16_t *)weight + i, *l = (const uint16_t *)low + i;
    if (k == VEC_LANES) return v_load_master(w, l);
    uint16_t part[2][VEC_LANES] = {{0}};
    memcpy(part[0], w, (size_t)k * 2);
    memcpy(part[1], l, (size_t)k * 2);
    return v_load_master(part[0], part[1]);
}

VEC_FN void store_pair(void *weight, void *low, int64_t i, int k, vf x)
{
    uint16_t *w = (uint16_t *)weight + i, *l = (uint16_t *)low + i;
    if (k == VEC_LANES) {
        v_store_master(w, l, x);
        return;
    }
    uint16_t part[2][VEC_LANES];
    v_store_master(part[0], part[1], x);
    memcpy(w, part[0], (size_t)k * 2);
    memcpy(l, part[1], (size_t)k * 2);
}

/* The parameter at full precision, including its master's bits. */
VEC_FN vf load_param(enum dtype t, const struct row_update *u, int64_t i, int k)
{
    if (t == DT_F32 || !u->master_in) return v_load(t, u->p_in, i, k);
    if (t == DT_BF16) return load_pair(u->p_in, u->master_in, i, k);
    return v_load(DT_F32, u->master_in, i, k);
}

/* Sixteen random words of one step; the compiler's own vectors of four do for integers. */
typedef uint32_t vec_w4 __attribute__((vector_size(16)));
typedef uint16_t vec_s4 __attribute__((vector_size(8)));

typedef struct {
    vec_w4 v[4];
} vw;

VEC_FN vw random_words(const struct row_update *u, int64_t i)
{
    vw r;
    uint32_t at = u->first + (uint32_t)i;
    for (uint32_t q = 0; q < 4; q++) {
        vec_w4 x = {at + 4 * q, at + 4 * q + 1, at + 4 * q + 2, at + 4 * q + 3};
        x = (x * STOCHASTIC_ODD) ^ u->key;
        x ^= x >> 16;
        x *= 0x85ebca6bu;
        x ^= x >> 13;
        x *= 0xc2b2ae35u;
        r.v[q] = x ^ (x >> 16);
    }
    return r;
}

/* stochastic_bf16 of sixteen numbers, with the 16 bits for `which` (0: p, 1: m, 2: v). */
VEC_FN void store_random(void *p, int64_t i, int k, vf x, vw r, int which)
{
    float lanes[VEC_LANES];
    uint16_t part[VEC_LANES], *to = k == VEC_LANES ? (uint16_t *)p + i : part;
    v_store_f32(lanes, x);
    for (int q = 0; q < 4; q++) {
        vec_w4 bits, random = r.v[q];
        memcpy(&bits, lanes + 4 * q, sizeof bits);
        random = which == 0 ? STOCHASTIC_P(random) : which == 1 ? STOCHASTIC_M(random) : STOCHASTIC_V(random);
        vec_w4 nan = (vec_w4)((bits & 0x7fffffffu) > 0x7f800000u);
        vec_w4 up = ((bits + random) & ~nan) | ((bits | 0x400000u) & nan);
        vec_s4 halves = __builtin_convertvector(up >> 16, vec_s4);
        memcpy(to + 4 * q, &halves, sizeof halves);
    }
    if (k != VEC_LANES) memcpy((uint16_t *)p + i, part, (size_t)k * 2);
}

VEC_FN void store_param(enum dtype t, const struct row_update *u, int64_t i, int k, vf p, vw r)
{
    if (t == DT_BF16 && u->master) {
        store_pair(u->p, u->master, i, k, p);
        return;
    }
    if (t == DT_BF16 && u->stochastic) {
        store_random(u->p, i, k, p, r, 0);
        return;
    }
    if (t == DT_F16 && u->master) v_store(DT_F32, u->master, i, k, p);
    v_store(t, u->p, i, k, p);
}

VEC_FN vf load_grad(enum dtype t, const struct row_update *u, int64_t i, int k)
{
    vf g = u->wide_g ? v_load(DT_F32, u->g, i, k) : v_load(t, u->g, i, k);
    return v_mul(g, v_all(u->multiplier));
}

VEC_FN vf load_state(const struct row_update *u, const void *state, int64_t i, int k)
{
    return u->wide_state ? v_load(DT_F32, state, i, k) : v_load(DT_BF16, state, i, k);
}

VEC_FN void store_state(const struct row_update *u, void *state, int64_t i, int k, vf x, vw r, int which)
{
    if (u->wide_state)
        v_store(DT_F32, state, i, k, x);
    else if (u->stochastic)
        store_random(state, i, k, x, r, which);
    else
        v_store(DT_BF16, state, i, k, x);
}

VEC_FN vw words_if_needed(const struct row_update *u, int64_t i)
{
    vw none = {{{0}}};
    return u->stochastic ? random_words(u, i) : none;
}

/* One step for sixteen elements: updates the moments and returns the new parameter. */
VEC_FN vf adamw_step(const struct row_update *u, vf p, vf g, vf *m, vf *v)
{
    *m = v_fma(v_sub(g, *m), v_all(u->mix1), *m);
    *v = v_fma(v_mul(g, g), v_all(u->mix2), v_mul(*v, v_all(u->beta2)));
    vf denominator = v_fma(v_sqrt(*v), v_all(u->root), v_all(u->eps));
    return v_fnma(v_div(*m, denominator), v_all(u->step), v_mul(p, v_all(u->keep)));
}

VEC_FN void adamw_at(enum dtype t, const struct row_update *u, int64_t i, int k)
{
    vf m = load_state(u, u->m_in, i, k), v = load_state(u, u->v_in, i, k);
    vf p = adamw_step(u, load_param(t, u, i, k), load_grad(t, u, i, k), &m, &v);
    vw r = words_if_needed(u, i);
    store_state(u, u->m, i, k, m, r, 1);
    store_state(u, u->v, i, k, v, r, 2);
    store_param(t, u, i, k, p, r);
}

#if defined(VEC_STREAMS)
/* Is the state that of most jobs, whole lines, and written elsewhere? */
static inline bool streams_adamw(enum dtype t, const struct row_update *u, int64_t n)
{
    const uintptr_t at = (uintptr_t)u->p | (uintptr_t)u->master | (uintptr_t)u->m | (uintptr_t)u->v;
    return t == DT_BF16 && u->master && u->wide_state && u->p != u->p_in && at % 64 == 0 &&
           n % (2 * VEC_LANES) == 0;
}

/* Lines that a store puts into a cache are read first, so what is written elsewhere goes past the caches: 26 bytes an element move instead of
 * 38. */
VEC_FN void stream_adamw(const struct row_update *u, int64_t n)
{
    for (int64_t i = 0; i < n; i += 2 * VEC_LANES) {
        vf p[2];
        for (int half = 0; half < 2; half++) {
            const int64_t at = i + half * VEC_LANES;
            vf m = v_load_f32((const float *)u->m_in + at), v = v_load_f32((const float *)u->v_in + at);
            p[half] = adamw_step(u, load_pair(u->p_in, u->master_in, at, VEC_LANES),
                                 load_grad(DT_BF16, u, at, VEC_LANES), &m, &v);
            v_stream_f32((float *)u->m + at, m), v_stream_f32((float *)u->v + at, v);
        }
        v_stream_masters((uint16_t *)u->p + i, (uint16_t *)u->master + i, p[0], p[1]);
    }
    v_stream_end();
}
#endif

ROW_FN void row_adamw(enum dtype t, const struct row_update *update, int64_t n)
{
    const struct row_update u = *update; /* a copy whose address is not taken stays in registers */
#if defined(VEC_STREAMS)
    if (streams_adamw(t, &u, n)) {
        stream_adamw(&u, n);
        return;
    }
#endif
    VEC_TYPES(t, VEC_EACH(n, adamw_at(T, &u, i, k)))
}

VEC_FN void sgd_at(enum dtype t, const struct row_update *u, int64_t i, int k)
{
    vf p = load_param(t, u, i, k);
    vf g = v_fma(p, v_all(u->decay), load_grad(t, u, i, k));
    vw r = words_if_needed(u, i);
    if (u->m) {
        vf m = v_fma(load_state(u, u->m_in, i, k), v_all(u->beta1), g);
        store_state(u, u->m, i, k, m, r, 1);
        g = u->nesterov ? v_fma(m, v_all(u->beta1), g) : m;
    }
    store_param(t, u, i, k, v_fnma(g, v_all(u->step), p), r);
}

ROW_FN void row_sgd(enum dtype t, const struct row_update *update, int64_t n)
{
    const struct row_update u = *update;
    VEC_TYPES(t, VEC_EACH(n, sgd_at(T, &u, i, k)))
}

VEC_FN void adafactor_at(enum dtype t, const struct row_update *u, int64_t i, int k)
{
    vf p = v_mul(load_param(t, u, i, k), v_all(u->keep));
    vf root = v_sqrt(v_head(v_load(DT_F32, u->col, i, k), k, 1));
    vf s = v_div(v_mul(load_grad(t, u, i, k), v_all(u->step)), root);
    vw r = words_if_needed(u, i);
    if (u->m) {
        vf m = load_state(u, u->m_in, i, k);
        s = v_fma(v_sub(s, m), v_all(u->mix1), m);
        store_state(u, u->m, i, k, s, r, 1);
    }
    store_param(t, u, i, k, v_sub(p, s), r);
}

ROW_FN void row_adafactor(enum dtype t, const struct row_update *update, int64_t n)
{
    const struct row_update u = *update;
    VEC_TYPES(t, VEC_EACH(n, adafactor_at(T, &u, i, k)))
}

VEC_FN void sumsq_at(enum dtype t, vd *sum, const void *x, int64_t i, int k)
{
    *sum = vd_add_square(*sum, v_load(t, x, i, k));
}

ROW_FN double row_sumsq(enum dtype t, const void *x, int64_t n)
{
    vd sum = vd_zero();
    VEC_TYPES(t, VEC_EACH(n, sumsq_at(T, &sum, x, i, k)))
    return vd_sum(sum);
}

VEC_FN void add_squares_at(enum dtype t, float *sum, const void *x, int64_t i, int k)
{
    vf v = v_load(t, x, i, k);
    v_store(DT_F32, sum, i, k, v_fma(v, v, v_load(DT_F32, sum, i, k)));
}

ROW_FN void row_add_squares(enum dtype t, float *sum, const void *x,
                            int64_t n){VEC_TYPES(t, VEC_EACH(n, add_squares_at(T, sum, x, i, k)))}

/* Lanes above k: 0 / 1. */
VEC_FN void sumsq_over_at(enum dtype t, vd *sum, const void *x, const float *col, int64_t i, int k)
{
    vf root = v_sqrt(v_head(v_load(DT_F32, col, i, k), k, 1));
    *sum = vd_add_square(*sum, v_div(v_load(t, x, i, k), root));
}

ROW_FN double row_sumsq_over(enum dtype t, const void *x, const float *col, int64_t n)
{
    vd sum = vd_zero();
    VEC_TYPES(t, VEC_EACH(n, sumsq_over_at(T, &sum, x, col, i, k)))
    return vd_sum(sum);
}

VEC_FN void second_at(enum dtype t, vd *sum, const struct row_second *s, int64_t i, int k)
{
    vf g = v_mul(v_load(t, s->g, i, k), v_all(s->multiplier));
    vf v = v_mul(v_load(DT_F32, s->in, i, k), v_all(s->beta2));
    v = v_fma(v_fma(g, g, v_all(s->eps)), v_all(1 - s->beta2), v);
    v_store(DT_F32, s->out, i, k, v);
    *sum = vd_add_square(*sum, v_div(g, v_sqrt(v_head(v, k, 1))));
}

ROW_FN double row_second(enum dtype t, const struct row_second *second, int64_t n)
{
    const struct row_second s = *second;
    vd sum = vd_zero();
    VEC_TYPES(t, VEC_EACH(n, second_at(T, &sum, &s, i, k)))
    return vd_sum(sum);
}

VEC_END
