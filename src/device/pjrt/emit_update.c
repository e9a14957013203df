/* emit_update.c - global norm, clipping, AdamW and SGD. See emit_update.h. */
#include "device/pjrt/emit_update.h"
#include "tensor/stochastic.h"

#include <math.h>

static struct hlo_value flat(struct hlo *h, struct hlo_value v)
{
    return hlo_reshape(h, v, HLO_SHAPE(hlo_count(&v)));
}

static void emit_sumsq(struct emit *e)
{
    struct hlo_value g = hlo_convert(e->h, flat(e->h, emit_in(e, SUMSQ_GRAD)), HLO_F64);
    emit_sum(e, SUMSQ_SUM, hlo_reduce(e->h, "add", hlo_mul(e->h, g, g), 1));
}
const struct emitter pjrt_sumsq = {.emit = emit_sumsq};

/* A norm that is not finite gives multiplier 0. */
static void emit_clip(struct emit *e)
{
    struct hlo *h = e->h;
    struct hlo_value limit = hlo_convert(h, emit_scalar(e, CLIP_SCALARS, SCALAR_CLIP), HLO_F64);
    struct hlo_value unscale = hlo_convert(h, emit_scalar(e, CLIP_SCALARS, SCALAR_UNSCALE), HLO_F64);
    struct hlo_value sum = hlo_reduce(h, "add", flat(h, emit_in(e, CLIP_SUMS)), 1);
    struct hlo_value norm = hlo_mul(h, hlo_unary(h, "sqrt", sum), unscale), one = hlo_like(h, norm, 1);
    struct hlo_value most = hlo_binary(h, "minimum", one, hlo_div(h, limit, hlo_plus(h, norm, 1e-6)));
    most = hlo_select(h, hlo_compare_to(h, "GT", limit, 0), most, one);
    struct hlo_value finite = hlo_compare_to(h, "LT", hlo_unary(h, "abs", norm), (double)INFINITY);
    struct hlo_value zero = hlo_like(h, norm, 0);
    struct hlo_value coef[CLIP_COUNT] = {[CLIP_MULTIPLIER] =
                                             hlo_select(h, finite, hlo_mul(h, unscale, most), zero),
                                         [CLIP_NORM] = norm,
                                         [CLIP_FINITE] = hlo_select(h, finite, one, zero)};
    struct hlo_value all = hlo_reshape(h, coef[0], HLO_SHAPE(1));
    for (int i = 1; i < CLIP_COUNT; i++)
        all = hlo_concat(h, 0, all, hlo_reshape(h, i <= CLIP_FINITE ? coef[i] : zero, HLO_SHAPE(1)));
    emit_out(e, CLIP_COEF, all);
}
const struct emitter pjrt_clip = {.emit = emit_clip};

/* --- parts of a step --------------------------------------------------------------------------------------------- */

struct hlo_value update_gradient(struct emit *e, int slot, int coef_slot)
{
    struct hlo_value g = flat(e->h, emit_real(e, slot));
    if (!emit_has(e, coef_slot)) return g;
    return hlo_mul(e->h, g, hlo_over(e->h, emit_scalar(e, coef_slot, CLIP_MULTIPLIER), g, 0));
}

bool update_may_skip(struct emit *e, int coef_slot, struct hlo_value *go)
{
    if (!emit_has(e, coef_slot)) return false;
    *go = hlo_compare_to(e->h, "NE", emit_scalar(e, coef_slot, CLIP_FINITE), 0);
    return true;
}

struct hlo_value update_each(const struct update *u, struct hlo_value scalar)
{
    return hlo_over(u->e->h, scalar, u->p, 0);
}

struct update_old update_old(const struct update *u, int slot)
{
    if (!slot || !emit_has(u->e, slot)) return (struct update_old){.here = false};
    return (struct update_old){true, flat(u->e->h, emit_in(u->e, slot))};
}

struct hlo_value update_real(const struct update *u, struct update_old old)
{
    return hlo_convert(u->e->h, old.v, HLO_F32);
}

/* master_join of tensor/dtype.h */
static struct hlo_value joined(struct hlo *h, struct hlo_value weight, struct hlo_value low)
{
    struct hlo_value upper = hlo_times(h, hlo_convert(h, hlo_bits(h, weight, HLO_U16), HLO_U32), 65536);
    struct hlo_value bits = hlo_add(h, upper, hlo_convert(h, low, HLO_U32));
    return hlo_bits(h, hlo_sub(h, bits, hlo_like(h, bits, 0x8000)), HLO_F32);
}

static struct hlo_value random_bits(struct update *u)
{
    struct hlo *h = u->e->h;
    int scalars = u->at->scalars;
    struct hlo_value high = hlo_convert(h, emit_scalar(u->e, scalars, SCALAR_KEY_HIGH), HLO_U32);
    struct hlo_value low = hlo_convert(h, emit_scalar(u->e, scalars, SCALAR_KEY_LOW), HLO_U32);
    struct hlo_value step = hlo_add(h, hlo_times(h, high, 65536), low);
    struct hlo_value key = hlo_like(h, step, stochastic_mix(u->e->op->attr.stream));
    key = part_mix(h, hlo_binary(h, "xor", key, step));
    struct hlo_value i = hlo_iota(h, HLO_U32, 0, HLO_SHAPE(u->count));
    i = hlo_times(h, hlo_plus(h, i, (uint32_t)u->e->op->attr.first), STOCHASTIC_ODD);
    return part_mix(h, hlo_binary(h, "xor", i, update_each(u, key)));
}

struct update update_begin(struct emit *e)
{
    struct update u = {.e = e, .at = &op_row(e->op->kind)->update};
    u.count = tensor_count(emit_in_tensor(e, UPDATE_P));
    u.old_p = (struct update_old){true, flat(e->h, emit_in(e, UPDATE_P))};
    u.old_master = update_old(&u, u.at->master);
    u.p = update_real(&u, u.old_p);
    if (u.old_master.here)
        u.p = u.old_master.v.type == HLO_U16 ? joined(e->h, u.old_p.v, u.old_master.v) : u.old_master.v;
    u.g = update_gradient(e, UPDATE_G, u.at->coef);
    u.lr = emit_scalar(e, u.at->scalars, SCALAR_LR);
    u.may_skip = update_may_skip(e, u.at->coef, &u.go);
    if (e->op->attr.stochastic) u.random = random_bits(&u);
    return u;
}

void update_set(const struct update *u, int slot, struct update_old old, struct hlo_value v)
{
    if (u->may_skip) v = hlo_select(u->e->h, hlo_over(u->e->h, u->go, v, 0), v, old.v);
    emit_out(u->e, slot, v);
}

/* stochastic_bf16 of tensor/stochastic.h */
static struct hlo_value rounded(const struct update *u, struct hlo_value v, enum update_bits which)
{
    struct hlo *h = u->e->h;
    struct hlo_value r = u->random, bits = hlo_bits(h, v, HLO_U32), sixteen = hlo_like(h, bits, 16);
    if (which == UPDATE_BITS_V) r = hlo_times(h, r, STOCHASTIC_ODD);
    r = which == UPDATE_BITS_P ? hlo_binary(h, "and", r, hlo_like(h, r, 0xffff))
                               : hlo_binary(h, "shift_right_logical", r, sixteen);
    struct hlo_value up = hlo_binary(h, "shift_right_logical", hlo_add(h, bits, r), sixteen);
    struct hlo_value nan = hlo_binary(h, "shift_right_logical", bits, sixteen);
    nan = hlo_binary(h, "or", nan, hlo_like(h, nan, 0x40));
    struct hlo_value half = hlo_select(h, hlo_compare(h, "EQ", v, v), up, nan);
    return hlo_bits(h, hlo_convert(h, half, HLO_U16), HLO_BF16);
}

static struct hlo_value narrowed(const struct update *u, struct hlo_value v, enum hlo_type type,
                                 enum update_bits bits)
{
    if (type == HLO_BF16 && u->e->op->attr.stochastic) return rounded(u, v, bits);
    return hlo_convert(u->e->h, v, type);
}

void update_moment(const struct update *u, int slot, struct update_old old, struct hlo_value v,
                   enum update_bits bits)
{
    update_set(u, slot, old, narrowed(u, v, old.v.type, bits));
}

void update_param(const struct update *u, struct hlo_value p)
{
    struct hlo *h = u->e->h;
    enum hlo_type type = u->old_p.v.type;
    if (!u->old_master.here) {
        update_set(u, UPDATE_NEW_P, u->old_p, narrowed(u, p, type, UPDATE_BITS_P));
    } else if (u->old_master.v.type == HLO_F32) {
        update_set(u, UPDATE_NEW_P, u->old_p, hlo_convert(h, p, type));
        update_set(u, u->at->new_master, u->old_master, p);
    } else { /* master_split of tensor/dtype.h */
        struct hlo_value bits = hlo_plus(h, hlo_bits(h, p, HLO_U32), 0x8000);
        struct hlo_value upper = hlo_binary(h, "shift_right_logical", bits, hlo_like(h, bits, 16));
        struct hlo_value low = hlo_binary(h, "and", bits, hlo_like(h, bits, 0xffff));
        upper = hlo_bits(h, hlo_convert(h, upper, HLO_U16), type);
        update_set(u, UPDATE_NEW_P, u->old_p, upper);
        update_set(u, u->at->new_master, u->old_master, hlo_convert(h, low, HLO_U16));
    }
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

double update_rest(float beta) { return 1 - round((double)beta * 1e7) / 1e7; }

struct hlo_value update_decayed(const struct update *u)
{
    struct hlo *h = u->e->h;
    if (u->e->op->attr.decay == 0) return u->p;
    struct hlo_value loss = hlo_times(h, u->lr, (double)u->e->op->attr.decay);
    return hlo_mul(h, u->p, update_each(u, hlo_sub(h, hlo_like(h, loss, 1), loss)));
}

void update_adamw(const struct update *u, struct hlo_value *p, struct hlo_value *m, struct hlo_value *v)
{
    struct hlo *h = u->e->h;
    const struct op_attr *attr = &u->e->op->attr;
    struct hlo_value bias1 = emit_scalar(u->e, u->at->scalars, SCALAR_BIAS1);
    struct hlo_value bias2 = hlo_unary(h, "sqrt", emit_scalar(u->e, u->at->scalars, SCALAR_BIAS2));
    *m = hlo_add(h, *m, hlo_times(h, hlo_sub(h, u->g, *m), update_rest(attr->beta1)));
    *v = hlo_add(h, hlo_times(h, *v, (double)attr->beta2),
                 hlo_mul(h, hlo_times(h, u->g, update_rest(attr->beta2)), u->g));
    struct hlo_value below = hlo_div(h, hlo_unary(h, "sqrt", *v), update_each(u, bias2));
    below = hlo_plus(h, below, (double)attr->eps);
    struct hlo_value step = hlo_div(h, hlo_mul(h, update_each(u, hlo_div(h, u->lr, bias1)), *m), below);
    *p = hlo_sub(h, update_decayed(u), step);
}

static void emit_adamw(struct emit *e)
{
    struct update u = update_begin(e);
    struct update_old old_m = update_old(&u, ADAMW_M), old_v = update_old(&u, ADAMW_V);
    struct hlo_value p, m = update_real(&u, old_m), v = update_real(&u, old_v);
    update_adamw(&u, &p, &m, &v);
    update_param(&u, p);
    update_moment(&u, ADAMW_NEW_M, old_m, m, UPDATE_BITS_M);
    update_moment(&u, ADAMW_NEW_V, old_v, v, UPDATE_BITS_V);
}
const struct emitter pjrt_adamw = {.emit = emit_adamw};

static void emit_sgd(struct emit *e)
{
    struct hlo *h = e->h;
    const struct op_attr *attr = &e->op->attr;
    struct update u = update_begin(e);
    struct update_old old_m = update_old(&u, SGD_M);
    struct hlo_value g = u.g, m;
    if (attr->decay != 0) g = hlo_add(h, g, hlo_times(h, u.p, (double)attr->decay));
    if (old_m.here) {
        m = hlo_add(h, hlo_times(h, update_real(&u, old_m), (double)attr->beta1), g);
        g = attr->nesterov ? hlo_add(h, g, hlo_times(h, m, (double)attr->beta1)) : m;
    }
    update_param(&u, hlo_sub(h, u.p, hlo_mul(h, update_each(&u, u.lr), g)));
    if (old_m.here) update_moment(&u, SGD_NEW_M, old_m, m, UPDATE_BITS_M);
}
const struct emitter pjrt_sgd = {.emit = emit_sgd};
