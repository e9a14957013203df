/* lr_schedule.h - the learning rate of each step.
 *
 *     struct lr_schedule s;
 *     struct job_schedule config = job_schedule(&job);
 *     lr_schedule_init(&s, &config, total_steps);
 *     double lr = lr_schedule_rate(&s, step);            // step counts from 0
 *     lr_schedule_observe(&s, SCHEDULE_ON_STEP, loss);   // used by greedy only
 *
 * The state is plain data: a checkpoint stores it with lr_schedule_save, and a resumed run continues bit for bit.
 */
#pragma once

#include "base/node.h"
#include "base/strbuf.h"
#include "job/job.h"

#define SCHEDULE_WINDOW_MAX 1000

enum schedule_event { SCHEDULE_ON_STEP, SCHEDULE_ON_EVAL };

struct lr_schedule {
    struct job_schedule config;
    int64_t total_steps;
    /* GreedyLR */
    double lr, best;
    int64_t good, bad, cool, warm, resets_left;
    double window[SCHEDULE_WINDOW_MAX]; /* ring of the last losses, for smoothing */
    int64_t seen;
};

void lr_schedule_init(struct lr_schedule *s, const struct job_schedule *config, int64_t total_steps);
double lr_schedule_rate(const struct lr_schedule *s, int64_t step);
/* Ignores a loss that is not finite. */
void lr_schedule_observe(struct lr_schedule *s, enum schedule_event event, double loss);

/* The state as a JSON object; doubles round-trip. */
void lr_schedule_save(const struct lr_schedule *s, struct strbuf *out);
void lr_schedule_restore(struct lr_schedule *s, const struct node *saved);
