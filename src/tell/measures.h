/* measures.h - the numbers of a run's events, under the names of Hugging Face's Trainer.
 *
 *     struct measures m;
 *     measures_of(event, &m);                            // train/loss, train/learning_rate, memory/param, eval/f1, ...
 *     for (int i = 0; i < m.count; i++) use(m.at[i].name, m.at[i].value);
 *
 * Only steps and evaluations have numbers. Values that are not finite are left out. Memory is in bytes.
 */
#pragma once

#include "train/trainer.h"

enum { MEASURES_MOST = 40, MEASURE_NAME = 32 };

struct measures {
    struct measure {
        char name[MEASURE_NAME];
        double value;
    } at[MEASURES_MOST];
    int count;
};

void measures_of(const struct train_event *event, struct measures *out);

/* The value with that name, or `fallback`. */
double measures_find(const struct measures *m, const char *name, double fallback);
