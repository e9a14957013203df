/* cost.h - the planner's clock: how long a tape takes on a device, from its facts. */
#ifndef PLIM_PLAN_COST_H
#define PLIM_PLAN_COST_H

#include "plan/facts.h"

struct tape_time {
    double loop_seconds;   /* one micro-batch */
    double update_seconds; /* once per optimizer step */
};

/* `once`: there is one micro-batch to a step, so nothing is fetched to be added to. Fails only for want of memory. */
enum plim_status tape_time_of(const struct tape *tape, const struct device_facts *facts, bool once,
                              struct tape_time *out, struct plim_error *err);

#endif
