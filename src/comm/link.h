/* link.h - how fast ranks exchange, measured once and remembered.
 *
 *     struct link_rates all;
 *     link_measure(comm, &all, &err);                 // every rank: a few small exchanges and a few large ones
 *
 * The numbers are kept beside a device's calibration, for the machines and the number of ranks they were measured with. With
 * PLIMSOLL_CALIBRATE=0 they are fixed ones, of a modest network, so that a plan is the same everywhere.
 */
#ifndef PLIM_COMM_LINK_H
#define PLIM_COMM_LINK_H

#include "comm/comm.h"

struct link_rates {
    double bandwidth; /* bytes/s that a rank sends to the others, and gets from them at the same time */
    double seconds;   /* until an exchange has begun */
    bool fresh;       /* measured now */
};

/* Rank 0's numbers on all ranks. */
enum plim_status link_measure(struct comm *comm, struct link_rates *out, struct plim_error *err);

#endif
