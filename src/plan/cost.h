/* cost.h - the planner's clock: how long a tape takes on a device, from its facts. */
#ifndef PLIM_PLAN_COST_H
#define PLIM_PLAN_COST_H

#include "plan/facts.h"

/* What works at the same time on a device that copies beside computing; elsewhere everything is computing. */
enum lane { LANE_COMPUTE, LANE_COPY_IN, LANE_COPY_OUT, LANE_HOST, LANE_LINK, LANES };

/* Bytes that a rank sends to others in one optimizer step. */
double tape_link_bytes(const struct tape *tape, const struct device_facts *facts, int64_t accumulation);

struct tape_time {
    double loop_seconds;   /* one micro-batch */
    double update_seconds; /* once per optimizer step */
    /* What each lane has to do, whatever waits for what. Of the update without what only a global norm needs: the least that
     * it takes inside backward. */
    double loop_busy[LANES], update_busy[LANES];
};

/* `once`: there is one micro-batch to a step, so nothing is fetched to be added to. Fails only for want of memory. */
enum plim_status tape_time_of(const struct tape *tape, const struct device_facts *facts, bool once,
                              struct tape_time *out, struct plim_error *err);

/* When an op runs by this clock: seconds since its part (the loop, the update) began. */
struct op_span {
    enum lane lane;
    double start, seconds;
};

/* Of each op of the tape, too: spans[nops]. What does not run has no seconds. */
enum plim_status tape_spans_of(const struct tape *tape, const struct device_facts *facts, bool once,
                               struct op_span *spans, struct tape_time *out, struct plim_error *err);

#endif
