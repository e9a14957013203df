/* preferences.c - see preferences.h. */
#include "train/preferences.h"

static double mean(double sum, double count) { return count > 0 ? sum / count : 0; }

void preferences_of(const struct preference_rule *rule, const double stat[PREFERENCE_STATS], double loss[2],
                    struct preferences *out)
{
    double chosen = stat[PREFERENCE_CHOSEN], rejected = stat[PREFERENCE_REJECTED];
    *out = (struct preferences){.chosen = mean(stat[PREFERENCE_CHOSEN_REWARD], chosen),
                                .rejected = mean(stat[PREFERENCE_REJECTED_REWARD], rejected),
                                .accuracy = mean(stat[PREFERENCE_RIGHT], chosen),
                                .chosen_logp = mean(stat[PREFERENCE_CHOSEN_LOGP], chosen),
                                .rejected_logp = mean(stat[PREFERENCE_REJECTED_LOGP], rejected),
                                .kl = mean(stat[PREFERENCE_KL], stat[PREFERENCE_KLS]),
                                .kind = rule->loss};
    out->margin = out->chosen - out->rejected;
    if (!(rule->nll > 0)) return;
    out->nll = mean(stat[PREFERENCE_NLL], stat[PREFERENCE_NLL_TARGETS]);
    loss[0] += (double)rule->nll * out->nll * loss[1];
}

void preferences_each(const struct preferences *p, void (*put)(void *arg, const char *name, double value),
                      void *arg)
{
    put(arg, "rewards/chosen", p->chosen);
    put(arg, "rewards/rejected", p->rejected);
    put(arg, "rewards/margins", p->margin);
    if (p->kind != PREFERENCE_KTO) put(arg, "rewards/accuracies", p->accuracy);
    put(arg, "logps/chosen", p->chosen_logp);
    put(arg, "logps/rejected", p->rejected_logp);
    if (p->nll > 0) put(arg, "nll_loss", p->nll);
    if (p->kind == PREFERENCE_KTO) put(arg, "kl", p->kl);
}
