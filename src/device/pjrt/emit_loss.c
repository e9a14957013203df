/* emit_loss.c - the emitter of the cross-entropy loss. Logits are read where they are used; only vectors of rows are kept. */
#include "device/pjrt/emit_parts.h"

/* One operand of all rows. */
struct xent {
    struct emit *e;
    struct hlo_value x, slope;         /* logits behind the cap [N,V], and their slope; id -1: 1 */
    struct hlo_value targets, counted; /* [N] I32 and BOOL */
    struct hlo_value hot;              /* [N,V] BOOL: the target's column */
    struct hlo_value top, lse, at;     /* [N]; at: the target's logit */
};

static struct xent xent_of(struct emit *e)
{
    struct hlo *h = e->h;
    struct xent a = {.e = e, .targets = emit_in(e, XENT_TARGETS), .slope.id = -1};
    int64_t rows = hlo_count(&a.targets);
    double cap = (double)e->op->attr.cap;
    a.targets = hlo_reshape(h, a.targets, HLO_SHAPE(rows));
    a.counted = hlo_compare_to(h, "GE", a.targets, 0);
    a.x = part_rows(e, XENT_LOGITS, tensor_count(emit_in_tensor(e, XENT_LOGITS)) / rows);
    if (cap > 0) {
        struct hlo_value t = hlo_unary(h, "tanh", hlo_times(h, a.x, 1 / cap));
        a.slope = hlo_sub(h, hlo_like(h, t, 1), hlo_mul(h, t, t));
        a.x = hlo_times(h, t, cap);
    }
    a.top = hlo_reduce(h, "maximum", a.x, 1u << 1);
    struct hlo_value p = hlo_unary(h, "exponential", hlo_sub(h, a.x, hlo_over(h, a.top, a.x, 0)));
    a.lse = hlo_add(h, a.top, hlo_unary(h, "log", hlo_reduce(h, "add", p, 1u << 1)));
    a.hot = hlo_compare(h, "EQ", hlo_iota(h, HLO_I32, 1, a.x.ndim, a.x.dim), hlo_over(h, a.targets, a.x, 0));
    a.at = hlo_reduce(h, "add", hlo_select(h, a.hot, a.x, hlo_like(h, a.x, 0)), 1u << 1);
    return a;
}

/* The sum of [N] over rows that count, in F64: [1]. */
static struct hlo_value row_sum(const struct xent *a, struct hlo_value v)
{
    struct hlo *h = a->e->h;
    v = hlo_convert(h, hlo_select(h, a->counted, v, hlo_like(h, v, 0)), HLO_F64);
    return hlo_reshape(h, hlo_reduce(h, "add", v, 1u << 0), HLO_SHAPE(1));
}

static struct hlo_value dlogits_of(const struct xent *a)
{
    struct hlo *h = a->e->h;
    struct hlo_value p = hlo_unary(h, "exponential", hlo_sub(h, a->x, hlo_over(h, a->lse, a->x, 0)));
    struct hlo_value d = hlo_select(h, a->hot, hlo_plus(h, p, -1), p);
    struct hlo_value factor = emit_has(a->e, XENT_WEIGHT) ? emit_real(a->e, XENT_WEIGHT)
                                                          : emit_scalar(a->e, XENT_SCALARS, SCALAR_LOSS_GRAD);
    d = hlo_mul(h, d, hlo_over(h, factor, d, 0));
    if (a->slope.id >= 0) d = hlo_mul(h, d, a->slope);
    return hlo_select(h, hlo_over(h, a->counted, d, 0), d, hlo_like(h, d, 0));
}

static void emit_xent(struct emit *e)
{
    struct hlo *h = e->h;
    struct xent a = xent_of(e);
    struct hlo_value loss = row_sum(&a, hlo_sub(h, a.lse, a.at)), count = row_sum(&a, hlo_like(h, a.at, 1));
    if (emit_wants(e, XENT_LOSS)) emit_sum(e, XENT_LOSS, hlo_concat(h, 0, loss, count));
    if (emit_wants(e, XENT_LOGP)) {
        struct hlo_value logp = hlo_sub(h, a.at, a.lse);
        emit_out(e, XENT_LOGP, hlo_select(h, a.counted, logp, hlo_like(h, logp, 0)));
    }
    if (emit_wants(e, XENT_HITS)) {
        struct hlo_value hit = hlo_convert(h, hlo_compare(h, "GE", a.at, a.top), HLO_F32);
        emit_sum(e, XENT_HITS, row_sum(&a, hit));
    }
    if (emit_wants(e, XENT_DLOGITS)) emit_out(e, XENT_DLOGITS, dlogits_of(&a));
}

/* The logits in F32, which a compiler may keep for several passes. */
static size_t xent_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    (void)op, (void)threads;
    return (size_t)tensor_count(desc[XENT_LOGITS]) * sizeof(float);
}
const struct emitter pjrt_xent = {.kernel = {.workspace = xent_workspace}, .emit = emit_xent};
