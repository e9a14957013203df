/* Op preference in doubles: each loss as its paper writes it, and derivatives as differences of it. */
#include "reference/reference_ops.h"

#include <math.h>

struct side {
    double sum, count, nll, targets, reference;
    bool good;
};

static double log_sigmoid(double x) { return -log(1 + exp(-x)); }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double log_odds(double mean) { return mean - log(1 - exp(mean)); }

/* The loss of a pair, or of the first side alone. */
static double loss_of(const struct preference_rule *r, const struct side *a, const struct side *b, double kl)
{
    double beta = (double)r->beta, s = (double)r->smoothing, x = a->sum - a->reference,
           y = b->sum - b->reference;
    double mean = x / a->count - y / b->count;
    switch (r->loss) {
    case PREFERENCE_SIGMOID:
        return -(1 - s) * log_sigmoid(beta * (x - y)) - s * log_sigmoid(-beta * (x - y));
    case PREFERENCE_HINGE:
        return fmax(0, 1 - beta * (x - y));
    case PREFERENCE_IPO:
        return pow(mean - 1 / (2 * beta), 2);
    case PREFERENCE_SIGMOID_NORM:
        return -(1 - s) * log_sigmoid(beta * mean) - s * log_sigmoid(-beta * mean);
    case PREFERENCE_ROBUST:
        return (-(1 - s) * log_sigmoid(beta * (x - y)) + s * log_sigmoid(-beta * (x - y))) / (1 - 2 * s);
    case PREFERENCE_APO_ZERO:
        return 1 - sigmoid(beta * x) + sigmoid(beta * y);
    case PREFERENCE_APO_DOWN:
        return sigmoid(beta * x) + 1 - sigmoid(beta * (x - y));
    case PREFERENCE_KTO:
        return a->good ? (double)r->desirable * (1 - sigmoid(beta * (x - kl)))
                       : (double)r->undesirable * (1 - sigmoid(beta * (kl - x)));
    case PREFERENCE_ORPO:
        return -beta * log_sigmoid(log_odds(a->sum / a->count) - log_odds(b->sum / b->count));
    }
    return NAN;
}

/* Derivative by the sum of one side. */
static double slope_of(const struct preference_rule *r, struct side a, struct side b, double kl, bool second)
{
    const double step = 1e-5;
    double *sum = second ? &b.sum : &a.sum, at = *sum;
    *sum = at + step;
    double up = loss_of(r, &a, &b, kl);
    *sum = at - step;
    return (up - loss_of(r, &a, &b, kl)) / (2 * step);
}

static int64_t prompt_of(const struct ref_call *call, int64_t b)
{
    bool has = call->op->attr.preference.loss == PREFERENCE_ORPO;
    return has ? call->in[PREFERENCE_IN_MARKS].i[b] : 0;
}

static struct side read_side(const struct ref_call *call, int64_t b, int64_t time)
{
    const union ref_array *reference = &call->in[PREFERENCE_IN_REFERENCE],
                          *marks = &call->in[PREFERENCE_IN_MARKS];
    struct side s = {.reference = reference->f ? reference->f[b] : 0, .good = marks->i && marks->i[b]};
    for (int64_t t = 0; t < time; t++) {
        double logp = call->in[PREFERENCE_IN_LOGP].f[b * time + t];
        if (call->in[PREFERENCE_IN_TARGETS].i[b * time + t] < 0) continue;
        s.nll -= logp, s.targets++;
        if (t >= prompt_of(call, b)) s.sum += logp, s.count++;
    }
    return s;
}

static void write_weight(const struct ref_call *call, int64_t b, int64_t time, double by, double all)
{
    double *weight = call->out[PREFERENCE_OUT_WEIGHT].f;
    for (int64_t t = 0; weight && t < time; t++) {
        bool target = call->in[PREFERENCE_IN_TARGETS].i[b * time + t] >= 0;
        weight[b * time + t] = target ? all + (t >= prompt_of(call, b) ? by : 0) : 0;
    }
}

static double note(const struct preference_rule *r, const struct side *s, bool chosen, double *stat)
{
    double mean = r->loss == PREFERENCE_ORPO ? s->count : 1,
           reward = (double)r->beta * (s->sum - s->reference) / mean;
    stat[chosen ? PREFERENCE_CHOSEN_REWARD : PREFERENCE_REJECTED_REWARD] += reward;
    stat[chosen ? PREFERENCE_CHOSEN_LOGP : PREFERENCE_REJECTED_LOGP] += s->sum / mean;
    stat[chosen ? PREFERENCE_CHOSEN : PREFERENCE_REJECTED]++;
    return reward;
}

static double estimate(const struct ref_call *call, int64_t half, int64_t time, double *stat)
{
    double sum = 0, n = 0;
    if (call->op->attr.preference.loss != PREFERENCE_KTO) return 0;
    for (int64_t i = 0; i < half; i++) {
        struct side first = read_side(call, i, time), other = read_side(call, half + i, time);
        if (first.count > 0) sum += other.sum - other.reference, n++;
    }
    double kl = n > 0 ? fmax(0, sum / n) : 0;
    stat[PREFERENCE_KL] += kl, stat[PREFERENCE_KLS] += n > 0;
    return kl;
}

void ref_preference(const struct ref_call *call)
{
    const struct preference_rule *r = &call->op->attr.preference;
    const struct tensor *logp = ref_in(call, PREFERENCE_IN_LOGP);
    const double *scalars = call->in[PREFERENCE_IN_SCALARS].f;
    double *loss = call->out[PREFERENCE_OUT_LOSS].f, *stat = call->out[PREFERENCE_OUT_STAT].f;
    int64_t half = logp->dim[0] / 2, time = logp->dim[1];
    ref_begin(call, PREFERENCE_OUT_LOSS);
    ref_begin(call, PREFERENCE_OUT_STAT);
    double kl = estimate(call, half, time, stat);
    for (int64_t i = 0; i < half; i++) {
        struct side a = read_side(call, i, time), b = read_side(call, half + i, time);
        bool there = a.count > 0, single = r->loss == PREFERENCE_KTO;
        call->out[PREFERENCE_OUT_SUMS].f[i] = a.sum, call->out[PREFERENCE_OUT_SUMS].f[half + i] = b.sum;
        double scale = there ? -scalars[SCALAR_SAMPLE_GRAD] : 0;
        double all = there ? (double)r->nll * scalars[SCALAR_LOSS_GRAD] : 0;
        write_weight(call, i, time, there ? scale * slope_of(r, a, b, kl, false) : 0, all);
        write_weight(call, half + i, time, there && !single ? scale * slope_of(r, a, b, kl, true) : 0, 0);
        if (!there) continue;
        loss[0] += loss_of(r, &a, &b, kl), loss[1]++;
        double reward = note(r, &a, !single || a.good, stat);
        if (!single) stat[PREFERENCE_RIGHT] += reward > note(r, &b, false, stat);
        stat[PREFERENCE_NLL] += a.nll, stat[PREFERENCE_NLL_TARGETS] += a.targets;
    }
}
