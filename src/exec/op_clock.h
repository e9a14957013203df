/* op_clock.h - how long each op of a pass takes, for a snapshot (report/snapshot.h).
 *
 *     struct op_clock clock;
 *     op_clock_start(&clock, exec.tape->nops, &err);
 *     op_clock_pass(&clock, &exec, false, 0, true, &pass, &err);     // the loop, op by op
 *     op_clock_pass(&clock, &exec, true, 0, true, &pass, &err);      // the update
 *     ... clock.ops[i].seconds ...
 *     op_clock_stop(&clock);
 *
 * Ops run one by one and each is waited for, so that its seconds are its own. Results are the same bits. Whoever looks at each
 * op of the exec otherwise still does, and has that time on nobody's account.
 */
#pragma once

#include "exec/exec.h"
#include "plan/cost.h"

struct op_clock {
    /* Per op of the tape, since the start; seconds < 0: not measured. NULL: the clock is off. */
    struct op_span *ops;
    double began, last; /* the start; the op before */
    void (*inspect)(void *arg, const struct exec *exec, int op);
    void *inspect_arg;
};

/* PLIM_NO_MEMORY. */
enum plim_status op_clock_start(struct op_clock *clock, int nops, struct plim_error *err);
void op_clock_stop(struct op_clock *clock); /* one that is off is fine */

/* exec_loop or exec_update, waited for before and behind; by_op: each of its ops, too, of an exec whose tape has `nops`. *pass
 * is when it ran. */
enum plim_status op_clock_pass(struct op_clock *clock, struct exec *exec, bool update, int64_t micro,
                               bool by_op, struct op_span *pass, struct plim_error *err);
