/* cost.h - the planner's clock: the time a tape takes on a device, computed from the device's facts. */
#pragma once

#include "plan/facts.h"

/* Units that work in parallel on a device that overlaps copies with computing; on other devices everything runs on
 * LANE_COMPUTE. */
enum lane { LANE_COMPUTE, LANE_COPY_IN, LANE_COPY_OUT, LANE_HOST, LANE_LINK, LANE_DISK, LANES };

/* Bytes that a rank sends in one optimizer step. */
double tape_link_bytes(const struct tape *tape, const struct device_facts *facts, int64_t accumulation);

struct tape_time {
    double loop_seconds;    /* one micro-batch */
    double forward_seconds; /* of loop_seconds, up to the end of forward */
    double
        update_seconds; /* once per optimizer step, with what updates inside forward add to the first micro-batch */
    /* Seconds of work per lane, ignoring dependencies. update_busy leaves out the ops that only a global norm needs:
     * it is the minimum that the update takes inside backward. */
    double loop_busy[LANES], update_busy[LANES];
};

/* `once`: a step has one micro-batch, so nothing is fetched to be added to. Fails only when out of memory. */
enum plim_status tape_time_of(const struct tape *tape, const struct device_facts *facts, bool once,
                              struct tape_time *out, struct plim_error *err);

/* Time of an op by this clock, in seconds since its part (the loop, the update) began. */
struct op_span {
    enum lane lane;
    double start, seconds;
};

/* Like tape_time_of; also fills spans[nops], one per op. Ops that do not run get 0 seconds. */
enum plim_status tape_spans_of(const struct tape *tape, const struct device_facts *facts, bool once,
                               struct op_span *spans, struct tape_time *out, struct plim_error *err);
