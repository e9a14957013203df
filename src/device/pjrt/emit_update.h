/* emit_update.h - parts of every optimizer's step: reading the parameter with its master, the gradient and the step's scalars, and
 * writing results rounded as the op asks, or left as they were.
 *
 *     struct update u = update_begin(e);                        // reads p, g and scalars
 *     struct update_old m = update_old(&u, u.at->m);            // before anything is written
 *     ...
 *     update_param(&u, p);
 *     update_moment(&u, u.at->new_m, m, value, UPDATE_BITS_M);
 *
 * All values are vectors of the parameter's elements. Operands and results may be the same tensors, so a step reads every operand
 * before it writes the first result.
 */
#pragma once

#include "device/pjrt/emit_parts.h"

/* An operand as it is stored, flat. */
struct update_old {
    bool here;
    struct hlo_value v;
};

struct update {
    struct emit *e;
    const struct update_slots *at;
    int64_t count;
    struct hlo_value p, g,
        lr; /* p: the master where there is one; g: times the multiplier. F32, lr a scalar */
    bool may_skip;
    struct hlo_value go; /* BOOL, a scalar: false leaves every output as it was */
    struct update_old old_p, old_master;
    struct hlo_value random; /* with attr.stochastic: the bits of each element */
};

/* Random bits of an element that a result uses. */
enum update_bits { UPDATE_BITS_P, UPDATE_BITS_M, UPDATE_BITS_V };

struct update update_begin(struct emit *e);
/* The step's gradient, and whether it may be skipped: for ops that are no step of a parameter. */
struct hlo_value update_gradient(struct emit *e, int slot, int coef_slot);
bool update_may_skip(struct emit *e, int coef_slot, struct hlo_value *go);

struct update_old update_old(const struct update *u, int slot);
/* old's numbers in F32. */
struct hlo_value update_real(const struct update *u, struct update_old old);
/* A scalar of the step repeated for each element. */
struct hlo_value update_each(const struct update *u, struct hlo_value scalar);

/* Sets an output, or leaves it as `old` was. v has the output's type. */
void update_set(const struct update *u, int slot, struct update_old old, struct hlo_value v);
/* v in F32, rounded as attributes say. */
void update_moment(const struct update *u, int slot, struct update_old old, struct hlo_value v,
                   enum update_bits bits);
/* The parameter and its master. */
void update_param(const struct update *u, struct hlo_value p);

/* 1 - beta of the decimal number people wrote. */
double update_rest(float beta);
/* p (1 - lr decay) */
struct hlo_value update_decayed(const struct update *u);
/* adamw's step: new p, m and v of old ones, in F32. */
void update_adamw(const struct update *u, struct hlo_value *p, struct hlo_value *m, struct hlo_value *v);
