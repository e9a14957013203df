/* emit_preference.c - the emitter of the losses of preference training: tape/preference.h on vectors of samples, in F64. */
#include "device/pjrt/emit_parts.h"

/* Rows of one side of all samples, F64 [H]: tape/preference.h's preference_rows and preference_sequence. */
struct side {
    struct hlo_value sum, count, nll, targets, ratio;
};

struct preferences {
    struct emit *e;
    struct hlo *h;
    const struct preference_rule *rule;
    int64_t half;
    struct hlo_value counted, sequence; /* BOOL [B,T]: positions with a target, and those of the sequence */
    struct hlo_value sums;              /* F32 [B] */
    struct side first, second;
    struct hlo_value present;                /* BOOL [H]: samples whose first row has a sequence */
    struct hlo_value stat[PREFERENCE_STATS]; /* F64 [1] */
};

/* The losses of samples, and their derivatives by the sums of both rows: F64 [H]. */
struct grads {
    struct hlo_value loss, by[2];
};

/* --- rows ------------------------------------------------------------------------------------------------------- */

static bool is_orpo(const struct preferences *p) { return p->rule->loss == PREFERENCE_ORPO; }
static bool is_single(const struct preferences *p) { return p->rule->loss == PREFERENCE_KTO; }

/* Sums of the rows of v[B,T] where a mask is set: F64 [B]. */
static struct hlo_value row_sums(struct hlo *h, struct hlo_value mask, struct hlo_value v)
{
    return hlo_reduce(h, "add", hlo_select(h, mask, v, hlo_like(h, v, 0)), 1u << 1);
}

static struct side side_of(const struct preferences *p, const struct side *all, int64_t first)
{
    struct hlo *h = p->h;
    return (struct side){
        hlo_slice(h, all->sum, 0, first, p->half), hlo_slice(h, all->count, 0, first, p->half),
        hlo_slice(h, all->nll, 0, first, p->half), hlo_slice(h, all->targets, 0, first, p->half),
        hlo_slice(h, all->ratio, 0, first, p->half)};
}

static struct preferences preferences_of(struct emit *e)
{
    struct hlo *h = e->h;
    struct preferences p = {.e = e, .h = h, .rule = &e->op->attr.preference};
    struct hlo_value targets = emit_in(e, PREFERENCE_IN_TARGETS);
    struct hlo_value logp = hlo_convert(h, emit_in(e, PREFERENCE_IN_LOGP), HLO_F64),
                     one = hlo_like(h, logp, 1);
    p.half = logp.dim[0] / 2;
    p.counted = p.sequence = hlo_compare_to(h, "GE", targets, 0);
    if (is_orpo(&p) && emit_has(e, PREFERENCE_IN_MARKS)) {
        struct hlo_value t = hlo_iota(h, HLO_I32, 1, targets.ndim, targets.dim);
        struct hlo_value answer = hlo_compare(h, "GE", t, hlo_over(h, emit_in(e, PREFERENCE_IN_MARKS), t, 0));
        p.sequence = hlo_binary(h, "and", p.counted, answer);
    }
    p.sums = hlo_convert(h, row_sums(h, p.sequence, logp), HLO_F32);
    struct side all = {.sum = hlo_convert(h, p.sums, HLO_F64), .count = row_sums(h, p.sequence, one)};
    all.nll = hlo_unary(h, "negate", row_sums(h, p.counted, logp));
    all.targets = row_sums(h, p.counted, one), all.ratio = all.sum;
    if (emit_has(e, PREFERENCE_IN_REFERENCE))
        all.ratio = hlo_sub(h, all.sum, hlo_convert(h, emit_in(e, PREFERENCE_IN_REFERENCE), HLO_F64));
    p.first = side_of(&p, &all, 0), p.second = side_of(&p, &all, p.half);
    p.present = hlo_compare_to(h, "GT", p.first.count, 0);
    for (int i = 0; i < PREFERENCE_STATS; i++) p.stat[i] = hlo_fill(h, HLO_F64, 0, HLO_SHAPE(1));
    return p;
}

/* --- losses of pairs -------------------------------------------------------------------------------------------- */

static struct hlo_value sigmoid(struct hlo *h, struct hlo_value x)
{
    struct hlo_value e = hlo_unary(h, "exponential", hlo_unary(h, "negate", x));
    return hlo_div(h, hlo_like(h, x, 1), hlo_plus(h, e, 1));
}

/* min(x, 0) - log(1 + exp(-|x|)) */
static struct hlo_value log_sigmoid(struct hlo *h, struct hlo_value x)
{
    struct hlo_value e = hlo_unary(h, "exponential", hlo_unary(h, "negate", hlo_unary(h, "abs", x)));
    struct hlo_value below = hlo_binary(h, "minimum", x, hlo_like(h, x, 0));
    return hlo_sub(h, below, hlo_unary(h, "log_plus_one", e));
}

/* a x + b y */
static struct hlo_value mixed(struct hlo *h, double a, struct hlo_value x, double b, struct hlo_value y)
{
    return hlo_add(h, hlo_times(h, x, a), hlo_times(h, y, b));
}

/* preference_of_margin: the loss of a difference x of rewards; returns its derivative. */
static struct hlo_value of_margin(const struct preferences *p, struct hlo_value x, struct hlo_value *loss)
{
    struct hlo *h = p->h;
    double s = (double)p->rule->smoothing, scale = p->rule->loss == PREFERENCE_ROBUST ? 1 / (1 - 2 * s) : 1;
    struct hlo_value back = hlo_unary(h, "negate", x), zero = hlo_like(h, x, 0);
    if (p->rule->loss == PREFERENCE_HINGE) {
        struct hlo_value inside = hlo_compare_to(h, "LT", x, 1);
        *loss = hlo_select(h, inside, hlo_plus(h, back, 1), zero);
        return hlo_select(h, inside, hlo_like(h, x, -1), zero);
    }
    /* ROBUST takes the doubtful share away, the others add it. */
    double doubt = p->rule->loss == PREFERENCE_ROBUST ? -s : s;
    *loss = mixed(h, -scale * (1 - s), log_sigmoid(h, x), -scale * doubt, log_sigmoid(h, back));
    return mixed(h, -scale * (1 - s), sigmoid(h, back), scale * doubt, sigmoid(h, x));
}

/* preference_log_odds of a mean log-probability, and its derivative. */
static struct hlo_value log_odds(struct hlo *h, struct hlo_value mean, struct hlo_value *slope)
{
    struct hlo_value below = hlo_binary(h, "minimum", mean, hlo_like(h, mean, -1e-12));
    struct hlo_value rest = hlo_unary(h, "negate", hlo_unary(h, "exponential_minus_one", below));
    *slope = hlo_div(h, hlo_like(h, rest, 1), rest);
    return hlo_sub(h, mean, hlo_unary(h, "log", rest));
}

/* beta s (1 - s) */
static struct hlo_value bell(struct hlo *h, struct hlo_value s, double beta)
{
    return hlo_times(h, hlo_mul(h, s, hlo_sub(h, hlo_like(h, s, 1), s)), beta);
}

/* preference_anchored */
static struct grads anchored(const struct preferences *p)
{
    struct hlo *h = p->h;
    double beta = (double)p->rule->beta;
    struct hlo_value a = p->first.ratio, b = p->second.ratio, sa = sigmoid(h, hlo_times(h, a, beta));
    if (p->rule->loss == PREFERENCE_APO_ZERO) {
        struct hlo_value sb = sigmoid(h, hlo_times(h, b, beta));
        return (struct grads){hlo_plus(h, hlo_sub(h, sb, sa), 1),
                              {hlo_unary(h, "negate", bell(h, sa, beta)), bell(h, sb, beta)}};
    }
    struct hlo_value sd = sigmoid(h, hlo_times(h, hlo_sub(h, a, b), beta)), dd = bell(h, sd, beta);
    return (struct grads){hlo_plus(h, hlo_sub(h, sa, sd), 1), {hlo_sub(h, bell(h, sa, beta), dd), dd}};
}

/* Derivatives by means of tokens become those by sums; the second's has the other sign. */
static struct grads by_sums(struct hlo *h, struct hlo_value loss, struct hlo_value by,
                            const struct hlo_value slope[2])
{
    return (struct grads){loss, {hlo_mul(h, by, slope[0]), hlo_mul(h, hlo_unary(h, "negate", by), slope[1])}};
}

/* preference_pair */
static struct grads pairs(const struct preferences *p)
{
    struct hlo *h = p->h;
    enum preference_loss kind = p->rule->loss;
    double beta = (double)p->rule->beta;
    struct hlo_value a = p->first.ratio, b = p->second.ratio, one = hlo_like(h, a, 1), loss, by;
    struct hlo_value slope[] = {one, one};
    if (kind == PREFERENCE_APO_ZERO || kind == PREFERENCE_APO_DOWN) return anchored(p);
    if (kind == PREFERENCE_IPO || kind == PREFERENCE_SIGMOID_NORM || kind == PREFERENCE_ORPO) {
        slope[0] = hlo_div(h, one, p->first.count), slope[1] = hlo_div(h, one, p->second.count);
        a = hlo_mul(h, a, slope[0]), b = hlo_mul(h, b, slope[1]);
    }
    if (kind == PREFERENCE_IPO) {
        struct hlo_value off = hlo_plus(h, hlo_sub(h, a, b), -1 / (2 * beta));
        return by_sums(h, hlo_mul(h, off, off), hlo_times(h, off, 2), slope);
    }
    if (kind == PREFERENCE_ORPO) {
        struct hlo_value rise[2], x = log_odds(h, a, &rise[0]);
        x = hlo_sub(h, x, log_odds(h, b, &rise[1]));
        slope[0] = hlo_mul(h, slope[0], rise[0]), slope[1] = hlo_mul(h, slope[1], rise[1]);
        loss = hlo_times(h, log_sigmoid(h, x), -beta);
        return by_sums(h, loss, hlo_times(h, sigmoid(h, hlo_unary(h, "negate", x)), -beta), slope);
    }
    by = hlo_times(h, of_margin(p, hlo_times(h, hlo_sub(h, a, b), beta), &loss), beta);
    return by_sums(h, loss, by, slope);
}

/* --- sums over samples ------------------------------------------------------------------------------------------ */

/* v of samples that are there, and meet a condition; 0 of the others. */
static struct hlo_value where(const struct preferences *p, struct hlo_value condition, struct hlo_value v)
{
    condition = hlo_binary(p->h, "and", p->present, condition);
    return hlo_select(p->h, condition, v, hlo_like(p->h, v, 0));
}

static struct hlo_value total(const struct preferences *p, struct hlo_value condition, struct hlo_value v)
{
    return hlo_reshape(p->h, hlo_reduce(p->h, "add", where(p, condition, v), 1), HLO_SHAPE(1));
}

static struct hlo_value reward(const struct preferences *p, const struct side *s)
{
    struct hlo_value r = hlo_times(p->h, s->ratio, (double)p->rule->beta);
    return is_orpo(p) ? hlo_div(p->h, r, s->count) : r;
}

/* preference_note of the rows of one side where a condition holds. */
static void note(struct preferences *p, const struct side *s, bool chosen, struct hlo_value condition)
{
    struct hlo_value logp = is_orpo(p) ? hlo_div(p->h, s->sum, s->count) : s->sum;
    p->stat[chosen ? PREFERENCE_CHOSEN_REWARD : PREFERENCE_REJECTED_REWARD] =
        total(p, condition, reward(p, s));
    p->stat[chosen ? PREFERENCE_CHOSEN_LOGP : PREFERENCE_REJECTED_LOGP] = total(p, condition, logp);
    p->stat[chosen ? PREFERENCE_CHOSEN : PREFERENCE_REJECTED] = total(p, condition, hlo_like(p->h, logp, 1));
}

static struct grads settle_pairs(struct preferences *p)
{
    struct hlo_value right = hlo_compare(p->h, "GT", reward(p, &p->first), reward(p, &p->second));
    note(p, &p->first, true, p->present);
    note(p, &p->second, false, p->present);
    p->stat[PREFERENCE_RIGHT] = total(p, right, hlo_like(p->h, p->first.sum, 1));
    return pairs(p);
}

/* KTO: preference_divergence, then preference_single of each sample. */
static struct grads settle_singles(struct preferences *p)
{
    struct hlo *h = p->h;
    double beta = (double)p->rule->beta;
    struct hlo_value one = hlo_like(h, p->first.sum, 1), number = total(p, p->present, one);
    struct hlo_value sum = total(p, p->present, p->second.ratio), some = hlo_compare_to(h, "GT", sum, 0);
    struct hlo_value kl = hlo_select(h, some, hlo_div(h, sum, number), hlo_like(h, sum, 0));
    p->stat[PREFERENCE_KL] = kl;
    p->stat[PREFERENCE_KLS] = hlo_convert(h, hlo_compare_to(h, "GT", number, 0), HLO_F64);
    struct hlo_value marks = hlo_slice(h, emit_in(p->e, PREFERENCE_IN_MARKS), 0, 0, p->half);
    struct hlo_value good = hlo_compare_to(h, "NE", marks, 0), bad = hlo_compare_to(h, "EQ", marks, 0);
    note(p, &p->first, true, good);
    note(p, &p->first, false, bad);
    struct hlo_value sign = hlo_select(h, good, one, hlo_like(h, one, -1));
    struct hlo_value weight = hlo_select(h, good, hlo_like(h, one, (double)p->rule->desirable),
                                         hlo_like(h, one, (double)p->rule->undesirable));
    struct hlo_value over = hlo_sub(h, p->first.ratio, hlo_over(h, kl, one, 0));
    struct hlo_value s = sigmoid(h, hlo_times(h, hlo_mul(h, sign, over), beta));
    struct hlo_value by = hlo_mul(h, hlo_mul(h, weight, sign), bell(h, s, -beta));
    return (struct grads){hlo_mul(h, weight, hlo_sub(h, one, s)), {by, hlo_like(h, by, 0)}};
}

/* --- outputs ---------------------------------------------------------------------------------------------------- */

/* A number of the scalars times a constant, F64 [B]. */
static struct hlo_value scaled(const struct preferences *p, int scalar, double by)
{
    struct hlo_value v = hlo_convert(p->h, emit_scalar(p->e, PREFERENCE_IN_SCALARS, scalar), HLO_F64);
    v = hlo_broadcast(p->h, v, NULL, HLO_SHAPE(2 * p->half));
    return hlo_times(p->h, v, by);
}

static void emit_weight(const struct preferences *p, const struct grads *g)
{
    struct hlo *h = p->h;
    struct hlo_value by = hlo_concat(h, 0, where(p, p->present, g->by[0]), where(p, p->present, g->by[1]));
    by = hlo_mul(h, by, scaled(p, SCALAR_SAMPLE_GRAD, -1));
    struct hlo_value none = hlo_fill(h, HLO_BOOL, 0, HLO_SHAPE(p->half));
    struct hlo_value all = scaled(p, SCALAR_LOSS_GRAD, (double)p->rule->nll);
    all = hlo_select(h, hlo_concat(h, 0, p->present, none), all, hlo_like(h, all, 0));
    struct hlo_value zero = hlo_fill(h, HLO_F64, 0, p->counted.ndim, p->counted.dim);
    by = hlo_select(h, p->sequence, hlo_over(h, by, zero, 0), zero);
    by = hlo_select(h, p->counted, hlo_add(h, by, hlo_over(h, all, zero, 0)), zero);
    emit_out(p->e, PREFERENCE_OUT_WEIGHT, by);
}

static void emit_preference(struct emit *e)
{
    struct preferences p = preferences_of(e);
    struct grads g = is_single(&p) ? settle_singles(&p) : settle_pairs(&p);
    p.stat[PREFERENCE_NLL] = total(&p, p.present, p.first.nll);
    p.stat[PREFERENCE_NLL_TARGETS] = total(&p, p.present, p.first.targets);
    struct hlo_value stat = p.stat[0], samples = total(&p, p.present, hlo_like(e->h, g.loss, 1));
    for (int i = 1; i < PREFERENCE_STATS; i++) stat = hlo_concat(e->h, 0, stat, p.stat[i]);
    emit_sum(e, PREFERENCE_OUT_LOSS, hlo_concat(e->h, 0, total(&p, p.present, g.loss), samples));
    emit_sum(e, PREFERENCE_OUT_STAT, stat);
    emit_out(e, PREFERENCE_OUT_SUMS, p.sums);
    if (emit_wants(e, PREFERENCE_OUT_WEIGHT)) emit_weight(&p, &g);
}
const struct emitter pjrt_preference = {.emit = emit_preference};
