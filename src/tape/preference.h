/* preference.h - losses of preference training: op preference of op.h in C, for the CPU and CUDA.
 *
 *     struct preference_grad g = preference_pair(&rule, chosen, rejected);
 *     // g.loss; g.by[0], g.by[1]: its derivatives by the sums of log-probabilities of both sequences
 *
 * A sequence is the sum of its tokens' log-probabilities less the reference's, and the number of its tokens. All in fp64.
 */
#pragma once

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define PREFERENCE_FUNCTION static __host__ __device__ inline
#else
#define PREFERENCE_FUNCTION static inline
#endif

enum preference_loss {
    PREFERENCE_SIGMOID, /* DPO */
    PREFERENCE_HINGE,
    PREFERENCE_IPO,
    PREFERENCE_SIGMOID_NORM, /* DPO of means over tokens */
    PREFERENCE_ROBUST,
    PREFERENCE_APO_ZERO,
    PREFERENCE_APO_DOWN,
    PREFERENCE_LOSSES,                  /* of pairs with a reference */
    PREFERENCE_KTO = PREFERENCE_LOSSES, /* single completions with a label */
    PREFERENCE_ORPO                     /* pairs without a reference */
};

struct preference_rule {
    enum preference_loss loss;
    float beta;
    float smoothing; /* sigmoid, sigmoid_norm, robust: probability that a pair is the wrong way round */
    float desirable, undesirable; /* KTO: weights of good and bad completions */
    float nll;                    /* weight of the mean loss of the first rows' targets */
};

/* Numbers that op preference adds up. */
enum preference_stat {
    PREFERENCE_CHOSEN_REWARD, /* sums over chosen and rejected (KTO: good and bad) completions */
    PREFERENCE_REJECTED_REWARD,
    PREFERENCE_CHOSEN_LOGP,
    PREFERENCE_REJECTED_LOGP,
    PREFERENCE_CHOSEN, /* numbers of them */
    PREFERENCE_REJECTED,
    PREFERENCE_RIGHT, /* pairs whose chosen completion has the larger reward */
    PREFERENCE_NLL,   /* sum of losses of the first rows' targets, and their number */
    PREFERENCE_NLL_TARGETS,
    PREFERENCE_KL, /* KTO: sum over micro-batches of the estimate, and their number */
    PREFERENCE_KLS,
    PREFERENCE_STATS = 12
};

struct preference_sequence {
    double ratio, count;
};

struct preference_grad {
    double loss, by[2];
};

PREFERENCE_FUNCTION double preference_sigmoid(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

/* log(sigmoid(x)) */
PREFERENCE_FUNCTION double preference_log_sigmoid(double x)
{
    return x < 0 ? x - log1p(exp(x)) : -log1p(exp(-x));
}

/* The loss of a difference x of rewards, and its derivative. */
PREFERENCE_FUNCTION struct preference_grad preference_of_margin(const struct preference_rule *r, double x)
{
    double s = (double)r->smoothing, up = preference_sigmoid(-x), down = preference_sigmoid(x);
    struct preference_grad g = {0, {0, 0}};
    if (r->loss == PREFERENCE_HINGE) {
        g.loss = x < 1 ? 1 - x : 0, g.by[0] = x < 1 ? -1 : 0;
    } else if (r->loss == PREFERENCE_ROBUST) {
        double scale = 1 / (1 - 2 * s);
        g.loss = scale * (s * preference_log_sigmoid(-x) - (1 - s) * preference_log_sigmoid(x));
        g.by[0] = -scale * ((1 - s) * up + s * down);
    } else {
        g.loss = -(1 - s) * preference_log_sigmoid(x) - s * preference_log_sigmoid(-x);
        g.by[0] = s * down - (1 - s) * up;
    }
    return g;
}

/* log(odds) of a mean log-probability, and its derivative; probability 1 is kept from infinity. */
PREFERENCE_FUNCTION double preference_log_odds(double mean, double *slope)
{
    double rest = -expm1(mean < -1e-12 ? mean : -1e-12);
    *slope = 1 / rest;
    return mean - log(rest);
}

/* Losses that look at each completion alone: apo_zero and apo_down. */
PREFERENCE_FUNCTION struct preference_grad preference_anchored(const struct preference_rule *r, double a,
                                                               double b)
{
    double beta = (double)r->beta, sa = preference_sigmoid(beta * a), sb = preference_sigmoid(beta * b),
           sd = preference_sigmoid(beta * (a - b));
    double da = beta * sa * (1 - sa), db = beta * sb * (1 - sb), dd = beta * sd * (1 - sd);
    struct preference_grad zero = {1 - sa + sb, {-da, db}}, down = {sa + 1 - sd, {da - dd, dd}};
    return r->loss == PREFERENCE_APO_ZERO ? zero : down;
}

PREFERENCE_FUNCTION struct preference_grad preference_pair(const struct preference_rule *r,
                                                           struct preference_sequence chosen,
                                                           struct preference_sequence rejected)
{
    double beta = (double)r->beta, a = chosen.ratio, b = rejected.ratio, slope[2] = {1, 1};
    if (r->loss == PREFERENCE_APO_ZERO || r->loss == PREFERENCE_APO_DOWN) return preference_anchored(r, a, b);
    if (r->loss == PREFERENCE_IPO || r->loss == PREFERENCE_SIGMOID_NORM || r->loss == PREFERENCE_ORPO)
        a *= slope[0] = 1 / chosen.count, b *= slope[1] = 1 / rejected.count;
    if (r->loss == PREFERENCE_IPO) {
        double off = a - b - 1 / (2 * beta);
        struct preference_grad g = {off * off, {2 * off * slope[0], -2 * off * slope[1]}};
        return g;
    }
    if (r->loss == PREFERENCE_ORPO) {
        double rise[2], x = preference_log_odds(a, &rise[0]) - preference_log_odds(b, &rise[1]);
        double by = -beta * preference_sigmoid(-x);
        struct preference_grad g = {-beta * preference_log_sigmoid(x),
                                    {by * rise[0] * slope[0], -by * rise[1] * slope[1]}};
        return g;
    }
    struct preference_grad g = preference_of_margin(r, beta * (a - b));
    double by = beta * g.by[0];
    g.by[0] = by * slope[0], g.by[1] = -by * slope[1];
    return g;
}

/* A single completion against the estimate of the divergence, to which no gradient goes. */
PREFERENCE_FUNCTION struct preference_grad
preference_single(const struct preference_rule *r, struct preference_sequence one, int good, double kl)
{
    double beta = (double)r->beta, sign = good ? 1 : -1,
           s = preference_sigmoid(sign * beta * (one.ratio - kl));
    double weight = (double)(good ? r->desirable : r->undesirable);
    struct preference_grad g = {weight * (1 - s), {-weight * sign * beta * s * (1 - s), 0}};
    return g;
}

/* The rows of a micro-batch, summed up. */
struct preference_rows {
    double sum, count;   /* log-probabilities of the row's sequence, and its targets */
    double nll, targets; /* losses of all its targets, and their number */
    double by;           /* derivative of the loss by `sum`; an output */
};

PREFERENCE_FUNCTION struct preference_sequence preference_sequence_of(const struct preference_rows *rows,
                                                                      const float *reference, int64_t b)
{
    struct preference_sequence s = {rows[b].sum - (reference ? (double)reference[b] : 0), rows[b].count};
    return s;
}

/* Adds a completion to the numbers that are reported. Returns its reward. */
PREFERENCE_FUNCTION double preference_note(const struct preference_rule *r, const struct preference_rows *row,
                                           struct preference_sequence s, int chosen, double *stat)
{
    double mean = r->loss == PREFERENCE_ORPO ? 1 / s.count : 1, reward = (double)r->beta * s.ratio * mean;
    stat[chosen ? PREFERENCE_CHOSEN_REWARD : PREFERENCE_REJECTED_REWARD] += reward;
    stat[chosen ? PREFERENCE_CHOSEN_LOGP : PREFERENCE_REJECTED_LOGP] += row->sum * mean;
    stat[chosen ? PREFERENCE_CHOSEN : PREFERENCE_REJECTED] += 1;
    return reward;
}

/* KTO's estimate of the divergence from the reference, by the second rows. */
PREFERENCE_FUNCTION double preference_divergence(const struct preference_rows *rows, int64_t count,
                                                 const float *reference, double *stat)
{
    double sum = 0, present = 0;
    for (int64_t i = 0; i < count / 2; i++) {
        if (!(rows[i].count > 0)) continue;
        sum += preference_sequence_of(rows, reference, count / 2 + i).ratio, present += 1;
    }
    double kl = sum > 0 ? sum / present : 0;
    stat[PREFERENCE_KL] += kl, stat[PREFERENCE_KLS] += present > 0;
    return kl;
}

/* Adds the samples' losses to loss[2] and stat, and sets each row's derivative. */
PREFERENCE_FUNCTION void preference_settle(const struct preference_rule *r, struct preference_rows *rows,
                                           int64_t count, const float *reference, const int32_t *marks,
                                           double *loss, double *stat)
{
    int64_t half = count / 2;
    int single = r->loss == PREFERENCE_KTO;
    double kl = single ? preference_divergence(rows, count, reference, stat) : 0;
    for (int64_t i = 0; i < half; i++) {
        struct preference_rows *first = &rows[i], *second = &rows[half + i];
        struct preference_sequence a = preference_sequence_of(rows, reference, i),
                                   b = preference_sequence_of(rows, reference, half + i);
        struct preference_grad g;
        first->by = second->by = 0;
        if (!(first->count > 0)) continue;
        double reward = preference_note(r, first, a, !single || marks[i] != 0, stat);
        if (single) {
            g = preference_single(r, a, marks[i] != 0, kl);
        } else {
            stat[PREFERENCE_RIGHT] += reward > preference_note(r, second, b, 0, stat);
            g = preference_pair(r, a, b);
        }
        loss[0] += g.loss, loss[1] += 1;
        stat[PREFERENCE_NLL] += first->nll, stat[PREFERENCE_NLL_TARGETS] += first->targets;
        first->by = g.by[0], second->by = g.by[1];
    }
}
