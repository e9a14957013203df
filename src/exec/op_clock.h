/* op_clock.h - when each op of a step ran, for a snapshot (report/snapshot.h).
 *
 *     struct op_clock clock;
 *     op_clock_start(&clock, &exec, later, &err);                    // before the step
 *     op_clock_pass(&clock, &exec, false, 0, true, &pass, &err);     // the loop, with its ops
 *     op_clock_pass(&clock, &exec, true, 0, true, &pass, &err);      // the update
 *     op_clock_read(&clock, &exec, &err);                            // after the step
 *     ... clock.ops[i].seconds ...
 *     op_clock_stop(&clock, &exec);
 *
 * The step runs as every other one: programs are launched whole, and copies, exchanges and ops of the host overlap computing. Each
 * lane notes when its ops began and ended (device_ops.time_op, disk_time_next, comm_exchange.when), which is read afterwards. So an op's
 * seconds are its own, without what it waited for. Only a device that compiles programs and cannot time their ops runs
 * them one by one. Results are the same bits.
 *
 * The exec's programs are compiled again: by op_clock_start with the marks of their ops, by op_clock_read without them. So they take no
 * more memory than before.
 */
#pragma once

#include "exec/exec.h"
#include "plan/cost.h"

struct op_clock {
    /* Per op of the tape, in seconds since the start; seconds < 0: not measured. An op that ran inside another's launch has 0
     * seconds. NULL: the clock is off. */
    struct op_span *ops;
    struct clock_span *spans; /* the same, as lanes note them */
    double began;
    int nops;
    bool device; /* times them */
    bool compiles, later;
};

/* `later`: micro-batches after the first will run, too. PLIM_NO_MEMORY, or what compiling returns; the clock is off then. */
enum plim_status op_clock_start(struct op_clock *clock, struct exec *exec, bool later,
                                struct plim_error *err);
/* One that is off is fine. */
void op_clock_stop(struct op_clock *clock, struct exec *exec);

/* exec_loop or exec_update, waited for before and behind. by_op: with its ops, of the exec that op_clock_start got. *pass is when it
 * ran. */
enum plim_status op_clock_pass(struct op_clock *clock, struct exec *exec, bool update, int64_t micro,
                               bool by_op, struct op_span *pass, struct plim_error *err);

/* Fills clock->ops. */
enum plim_status op_clock_read(struct op_clock *clock, struct exec *exec, struct plim_error *err);
