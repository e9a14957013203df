/* meet.h - ranks that know where rank 0 is find each other: one connection of each to it, before any library is asked.
 *
 *     struct meeting m = {.rank = 2, .ranks = 4, .seconds = 300, .host = "node7", .port = 29600, .run = "job 12"};
 *     meet(&m, fds, &err);                              // rank 0: fds[r] leads to rank r; another: fds[0] to rank 0
 *
 * Rank 0 listens, on the host's own address, or on all of the machine's where ranks are on several. Everybody says which
 * rank of how many of which run it is; strangers are sent away, and when all are there, all are told so. What goes wrong
 * is everybody's error, in the same words: the caller tells it where `tells` is set. Connections are closed at an exec.
 */
#pragma once

#include "base/context.h"
#include "base/status.h"

#include <stdbool.h>

enum { MEET_RUN = 96 };

struct meeting {
    int rank, ranks;
    double seconds; /* how long ranks wait for each other */
    const char *host;
    int port;
    bool apart; /* ranks are on several machines */
    /* Unique name of the run, shorter than MEET_RUN bytes, without blanks. */
    const char *run;
    const struct context_process *process; /* pmi.h's: whose variables MPI reads */
    bool tells; /* set: of the error that all have, this rank's is the one to tell */
};

/* PLIM_IO: the port is taken, a rank did not come, or one is another run's. fds[ranks], or fds[1] for others than rank 0; its own
 * fds[0] is -1. */
enum plim_status meet(struct meeting *m, int *fds, struct plim_error *err);
