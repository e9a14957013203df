/* preferences.h - rewards of dpo, kto and orpo, from the sums of op preference (tape/preference.h).
 *
 *     preferences_of(&rule, stat, loss, &p);        // p.margin; loss[0] / loss[1] is then the whole loss
 */
#pragma once

#include "tape/preference.h"

struct preferences {
    double chosen, rejected; /* mean rewards of chosen (kto: good) and rejected (bad) completions */
    double margin;           /* their difference */
    double accuracy;         /* share of pairs whose chosen completion has the larger reward; kto: 0 */
    double chosen_logp, rejected_logp; /* means */
    double nll; /* mean loss of the tokens of chosen rows; 0: it is not part of the loss */
    double kl;  /* kto: estimated divergence from the reference */
    enum preference_loss kind;
};

/* loss is (sum over samples, samples); the weighted loss over tokens is added to its first number. */
void preferences_of(const struct preference_rule *rule, const double stat[PREFERENCE_STATS], double loss[2],
                    struct preferences *out);

/* Calls `put` with the name and value of each number that this objective has, as TRL names them. */
void preferences_each(const struct preferences *p, void (*put)(void *arg, const char *name, double value),
                      void *arg);
