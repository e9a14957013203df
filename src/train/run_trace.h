/* run_trace.h - measures one step for a snapshot (report/snapshot.h).
 *
 *     wanted --trainer_trace_begin--> on --trainer_loop, trainer_update--> --trainer_trace_end--> written, off
 *
 * In that step the first micro-batch and the update run op by op, waiting for each op to time it. Further micro-batches run
 * as usual, as programs if the device has them, and are timed as a whole. Results are bit-identical. All other steps only
 * test `on`. A request takes 24 bytes per op and 40 per row until the file is written.
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
    bool measured;          /* a micro-batch has run op by op */
    struct snapshot_pass *pass;
    int passes, room;
};
