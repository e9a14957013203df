/* rows_update.h - row functions of the optimizers. See rows.h for what they mean.
 *
 * One pass: parameter, gradient and states are read and written once. */
#ifndef PLIM_DEVICE_CPU_ROWS_UPDATE_H
#define PLIM_DEVICE_CPU_ROWS_UPDATE_H

#include "device/cpu/rows.h"
#include "device/cpu/vec.h"

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

/* The parameter at full precision, wherever its lower bits are. */
VEC_FN vf load_param(enum dtype t, const struct row_update *u, int64_t i, int k)
{
    if (t == DT_F32 || !u->master_in) return v_load(t, u->p_in, i, k);
    if (t == DT_BF16) return load_pair(u->p_in, u->master_in, i, k);
    return v_load(DT_F32, u->master_in, i, k);
}

VEC_FN void store_param(enum dtype t, const struct row_update *u, int64_t i, int k, vf p)
{
    if (t == DT_BF16 && u->master) {
        store_pair(u->p, u->master, i, k, p);
        return;
    }
    if (t == DT_F16 && u->master) v_store(DT_F32, u->master, i, k, p);
    v_store(t, u->p, i, k, p);
}

VEC_FN void adamw_at(enum dtype t, const struct row_update *u, int64_t i, int k)
{
    vf g = v_mul(v_load(DT_F32, u->g, i, k), v_all(u->multiplier));
    vf m = v_load(DT_F32, u->m_in, i, k), v = v_load(DT_F32, u->v_in, i, k);
    vf p = v_mul(load_param(t, u, i, k), v_all(u->keep));
    m = v_fma(v_sub(g, m), v_all(u->mix1), m);
    v = v_fma(v_mul(g, g), v_all(u->mix2), v_mul(v, v_all(u->beta2)));
    vf denominator = v_fma(v_sqrt(v), v_all(u->root), v_all(u->eps));
    p = v_fnma(v_div(m, denominator), v_all(u->step), p);
    v_store(DT_F32, u->m, i, k, m);
    v_store(DT_F32, u->v, i, k, v);
    store_param(t, u, i, k, p);
}

ROW_FN void row_adamw(enum dtype t, const struct row_update *update, int64_t n)
{
    const struct row_update u = *update; /* a copy whose address nobody has stays in registers */
    VEC_TYPES(t, VEC_EACH(n, adamw_at(T, &u, i, k)))
}

VEC_FN void sgd_at(enum dtype t, const struct row_update *u, int64_t i, int k)
{
    vf p = load_param(t, u, i, k);
    vf g = v_fma(p, v_all(u->decay), v_mul(v_load(DT_F32, u->g, i, k), v_all(u->multiplier)));
    if (u->m) {
        vf m = v_fma(v_load(DT_F32, u->m_in, i, k), v_all(u->beta1), g);
        v_store(DT_F32, u->m, i, k, m);
        g = u->nesterov ? v_fma(m, v_all(u->beta1), g) : m;
    }
    store_param(t, u, i, k, v_fnma(g, v_all(u->step), p));
}

ROW_FN void row_sgd(enum dtype t, const struct row_update *update, int64_t n)
{
    const struct row_update u = *update;
    VEC_TYPES(t, VEC_EACH(n, sgd_at(T, &u, i, k)))
}

VEC_FN void sumsq_at(vd *sum, const float *x, int64_t i, int k)
{
    *sum = vd_add_square(*sum, v_load(DT_F32, x, i, k));
}

ROW_FN double row_sumsq(const float *x, int64_t n)
{
    vd sum = vd_zero();
    VEC_EACH(n, sumsq_at(&sum, x, i, k))
    return vd_sum(sum);
}

VEC_END

#endif
