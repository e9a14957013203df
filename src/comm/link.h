/* link.h - how fast ranks exchange, measured once and remembered.
 *
 *     struct link_rates all;
 *     link_measure(comm, team, &all, &err);           // every rank: a few small exchanges and a few large ones
 *
 * They run as those of a run do: on the lane, where there is one; the large ones by themselves and while the team computes.
 *
 * The numbers are kept beside a device's calibration, for the machines and the number of ranks they were measured with.
 * `mpirun -n N plimsoll calibrate` measures; plans and runs take what is kept, or presets (job/cluster.h). With
 * PLIMSOLL_CALIBRATE=0 nothing is measured or recalled, so that a plan is the same everywhere.
 */
#pragma once

#include "base/threads.h"
#include "comm/comm.h"

struct link_rates {
    double bandwidth;    /* bytes/s that a rank sends to the others, and gets from them at the same time */
    double seconds;      /* until an exchange has begun */
    double reduce_share; /* of that rate, which exchanges reach whose parts are added */
    double beside;       /* of that rate, which exchanges reach while the team computes */
    double load; /* share of its computing that the team loses while something is exchanged beside it */
};

/* Measures, and keeps rank 0's numbers, which all ranks get. `team` computes meanwhile; NULL: the processors have nothing else to
 * do. PLIM_UNSUPPORTED: PLIMSOLL_CALIBRATE=0 forbids it. */
enum plim_status link_measure(struct comm *comm, struct threads *team, struct link_rates *out,
                              struct plim_error *err);

/* Rates that calibrate kept for these ranks with `threads` computing threads each, equal on all ranks. *known is false: there are none. */
enum plim_status link_recall(struct comm *comm, int threads, struct link_rates *out, bool *known,
                             struct plim_error *err);

/* Rates kept for a number of ranks on this machine that are not running. */
bool link_recall_here(const struct context *context, int ranks, int threads, struct link_rates *out);
