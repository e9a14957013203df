/* vec_plain.h - the vector layer (vec.h) in C with the compiler's own vectors of four: sixteen lanes are four
 * of them, which every 64-bit processor's baseline has as registers.
 *
 * For processors without their own header, and as the reference for the others. Multiply-add rounds twice here, because
 * fmaf() is a slow library call exactly where this header is needed. */
#pragma once

#include "device/cpu/vec_base.h"
#include <math.h>

#define VEC_BEGIN
#define VEC_END

typedef float vec_f4 __attribute__((vector_size(16)));
typedef int32_t vec_i4 __attribute__((vector_size(16)));
typedef uint32_t vec_u4 __attribute__((vector_size(16)));
typedef uint16_t vec_h4 __attribute__((vector_size(8)));

typedef struct {
    vec_f4 a, b, c, d;
} vf;

typedef struct {
    double v[VEC_LANES];
} vd;

#define VEC_MAP1(f, x)     ((vf){f((x).a), f((x).b), f((x).c), f((x).d)})
#define VEC_MAP2(f, x, y)  ((vf){f((x).a, (y).a), f((x).b, (y).b), f((x).c, (y).c), f((x).d, (y).d)})
#define VEC_LOAD(f, p)     ((vf){f(p), f((p) + 4), f((p) + 8), f((p) + 12)})
#define VEC_STORE(f, p, x) (f((p), (x).a), f((p) + 4, (x).b), f((p) + 8, (x).c), f((p) + 12, (x).d))

VEC_FN vec_f4 vec_get_f32(const float *p)
{
    vec_f4 r;
    memcpy(&r, p, sizeof r);
    return r;
}

VEC_FN vec_u4 vec_get_halves(const uint16_t *p)
{
    vec_h4 r;
    memcpy(&r, p, sizeof r);
    return __builtin_convertvector(r, vec_u4);
}

VEC_FN void vec_put_halves(uint16_t *p, vec_u4 x)
{
    vec_h4 r = __builtin_convertvector(x, vec_h4);
    memcpy(p, &r, sizeof r);
}

VEC_FN void vec_put_f32(float *p, vec_f4 x) { memcpy(p, &x, sizeof x); }
VEC_FN vec_f4 vec_get_bf16(const uint16_t *p) { return (vec_f4)(vec_get_halves(p) << 16); }

/* Nearest even: add 0x7fff and the lowest bit that stays; NaN keeps its upper bits and is made quiet. */
VEC_FN void vec_put_bf16(uint16_t *p, vec_f4 x)
{
    vec_u4 bits = (vec_u4)x, good = (vec_u4)(x == x);
    vec_u4 rounded = bits + 0x7fff + ((bits >> 16) & 1);
    vec_put_halves(p, ((rounded & good) | ((bits | 0x400000) & ~good)) >> 16);
}

VEC_FN vec_f4 vec_get_f16(const uint16_t *p)
{
    return (vec_f4){f16_to_f32(p[0]), f16_to_f32(p[1]), f16_to_f32(p[2]), f16_to_f32(p[3])};
}

VEC_FN void vec_put_f16(uint16_t *p, vec_f4 x)
{
    p[0] = f32_to_f16(x[0]), p[1] = f32_to_f16(x[1]), p[2] = f32_to_f16(x[2]), p[3] = f32_to_f16(x[3]);
}

VEC_FN vec_f4 vec_get_pair(const uint16_t *weight, const uint16_t *low)
{
    return (vec_f4)(((vec_get_halves(weight) << 16) | vec_get_halves(low)) - 0x8000);
}

VEC_FN void vec_put_pair(uint16_t *weight, uint16_t *low, vec_f4 x)
{
    vec_u4 bits = (vec_u4)x + 0x8000;
    vec_put_halves(weight, bits >> 16);
    vec_put_halves(low, bits & 0xffff);
}

VEC_FN vf v_all(float x)
{
    vec_f4 r = {x, x, x, x};
    return (vf){r, r, r, r};
}

VEC_FN vf v_load_f32(const float *p) { return VEC_LOAD(vec_get_f32, p); }
VEC_FN vf v_load_bf16(const uint16_t *p) { return VEC_LOAD(vec_get_bf16, p); }
VEC_FN vf v_load_f16(const uint16_t *p) { return VEC_LOAD(vec_get_f16, p); }
VEC_FN void v_store_f32(float *p, vf x) { VEC_STORE(vec_put_f32, p, x); }
VEC_FN void v_store_bf16(uint16_t *p, vf x) { VEC_STORE(vec_put_bf16, p, x); }
VEC_FN void v_store_f16(uint16_t *p, vf x) { VEC_STORE(vec_put_f16, p, x); }

VEC_FN vf v_load_master(const uint16_t *w, const uint16_t *low)
{
    return (vf){vec_get_pair(w, low), vec_get_pair(w + 4, low + 4), vec_get_pair(w + 8, low + 8),
                vec_get_pair(w + 12, low + 12)};
}

VEC_FN void v_store_master(uint16_t *w, uint16_t *low, vf x)
{
    vec_put_pair(w, low, x.a), vec_put_pair(w + 4, low + 4, x.b);
    vec_put_pair(w + 8, low + 8, x.c), vec_put_pair(w + 12, low + 12, x.d);
}

VEC_FN vec_f4 vec_select(vec_i4 first, vec_f4 x, vec_f4 y)
{
    return (vec_f4)(((vec_i4)x & first) | ((vec_i4)y & ~first));
}

VEC_FN vec_f4 vec_min(vec_f4 x, vec_f4 y) { return vec_select(x < y, x, y); }
VEC_FN vec_f4 vec_max(vec_f4 x, vec_f4 y) { return vec_select(x > y, x, y); }
VEC_FN vec_f4 vec_sqrt(vec_f4 x) { return (vec_f4){sqrtf(x[0]), sqrtf(x[1]), sqrtf(x[2]), sqrtf(x[3])}; }
VEC_FN vec_f4 vec_exponent(vec_f4 x) { return (vec_f4)((vec_u4)x << 23); }

#define VEC_PLUS(x, y)   ((x) + (y))
#define VEC_MINUS(x, y)  ((x) - (y))
#define VEC_TIMES(x, y)  ((x) * (y))
#define VEC_DIVIDE(x, y) ((x) / (y))

VEC_FN vf v_add(vf x, vf y) { return VEC_MAP2(VEC_PLUS, x, y); }
VEC_FN vf v_sub(vf x, vf y) { return VEC_MAP2(VEC_MINUS, x, y); }
VEC_FN vf v_mul(vf x, vf y) { return VEC_MAP2(VEC_TIMES, x, y); }
VEC_FN vf v_div(vf x, vf y) { return VEC_MAP2(VEC_DIVIDE, x, y); }
VEC_FN vf v_fma(vf x, vf y, vf z) { return v_add(v_mul(x, y), z); }
VEC_FN vf v_fnma(vf x, vf y, vf z) { return v_sub(z, v_mul(x, y)); }
VEC_FN vf v_min(vf x, vf y) { return VEC_MAP2(vec_min, x, y); }
VEC_FN vf v_max(vf x, vf y) { return VEC_MAP2(vec_max, x, y); }
VEC_FN vf v_sqrt(vf x) { return VEC_MAP1(vec_sqrt, x); }
VEC_FN vf v_exponent(vf x) { return VEC_MAP1(vec_exponent, x); }

VEC_FN float v_sum(vf x)
{
    vec_f4 q = (x.a + x.c) + (x.b + x.d);
    return (q[0] + q[2]) + (q[1] + q[3]);
}

VEC_FN float v_top(vf x)
{
    vec_f4 q = vec_max(vec_max(x.a, x.b), vec_max(x.c, x.d));
    float lo = q[0] > q[1] ? q[0] : q[1], hi = q[2] > q[3] ? q[2] : q[3];
    return lo > hi ? lo : hi;
}

VEC_FN vd vd_zero(void) { return (vd){{0}}; }

VEC_FN vd vd_add_square(vd sum, vf x)
{
    float lanes[VEC_LANES];
    v_store_f32(lanes, x);
    for (int j = 0; j < VEC_LANES; j++) sum.v[j] += (double)lanes[j] * (double)lanes[j];
    return sum;
}

VEC_FN double vd_sum(vd a)
{
    for (int width = VEC_LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++) a.v[j] += a.v[j + width];
    return a.v[0];
}

#undef VEC_MAP1
#undef VEC_MAP2
#undef VEC_LOAD
#undef VEC_STORE
#undef VEC_PLUS
#undef VEC_MINUS
#undef VEC_TIMES
#undef VEC_DIVIDE
