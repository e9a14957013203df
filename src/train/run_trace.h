/* run_trace.h - measures one step for a snapshot (report/snapshot.h).
 *
 *     wanted --trainer_trace_begin--> on --trainer_loop, trainer_update--> --trainer_trace_end--> written, off
 *
 * That step runs as every other one (exec/op_clock.h). Ops of its first micro-batch and of the update are timed; further
 * micro-batches are timed as a whole. Results are bit-identical. All other steps only test `on`. A request takes 40 bytes per
 * op and 40 per row until the file is written.
 */
#pragma once

#include "exec/op_clock.h"
#include "train/run_control.h"

struct run_trace {
    bool wanted, on;
    bool given;             /* the request of train_options.trace was made */
    struct run_order order; /* number 0: from the options; else the socket waits for the result */
    double before;          /* seconds of the previous step */
    int64_t used;           /* bytes when it began */
    struct op_clock clock;  /* of the plan's tape */
    bool measured;          /* a micro-batch's ops were timed */
    struct snapshot_pass *pass;
    int passes, room;
};
