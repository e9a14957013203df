/* cost.h - the planner's clock: how long a tape takes on a device, from its facts. */
#ifndef PLIM_PLAN_COST_H
#define PLIM_PLAN_COST_H

#include "plan/facts.h"

struct tape_time {
    double loop_seconds;   /* one micro-batch */
    double update_seconds; /* once per optimizer step */
};

struct tape_time tape_time_of(const struct tape *tape, const struct device_facts *facts);

#endif
