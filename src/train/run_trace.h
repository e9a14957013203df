/* run_trace.h - a step that is measured for a snapshot (report/snapshot.h).
 *
 *     wanted --trainer_trace_begin--> on --trainer_loop, trainer_update--> --trainer_trace_end--> written, off
 *
 * In that step the first micro-batch and the update run op by op and each op is waited for, so that its seconds are its own;
 * further micro-batches run as they always do, as programs where the device has them, and are timed as a whole. Results are the
 * same bits. All other steps pay nothing but a test of `on`. Asking takes 24 bytes an op and 40 a row until the file is
 * written.
 */
#ifndef PLIM_TRAIN_RUN_TRACE_H
#define PLIM_TRAIN_RUN_TRACE_H

#include "exec/op_clock.h"
#include "train/run_control.h"

struct run_trace {
    bool wanted, on;
    bool given;             /* what train_options.trace asks for has been wanted */
    struct run_order order; /* number 0: of the options; else the socket waits for an answer */
    double before;          /* seconds of the step before */
    int64_t used;           /* bytes when it began */
    struct op_clock clock;  /* of the plan's tape */
    bool measured;          /* a micro-batch has run op by op */
    struct snapshot_pass *pass;
    int passes, room;
};

#endif
