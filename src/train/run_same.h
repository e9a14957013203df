/* run_same.h - ranks of one run do the same: they read the same data and have the same keys, but for those of their machines.
 *
 *     run_same(comm, job, start.facts, &err);             // all ranks together; NULL: one rank
 *
 * Compared are the run's facts (run_facts.h) and the keys that say when ranks do what. Devices, threads, budgets, folders and what
 * is told to whom may differ.
 */
#ifndef PLIM_TRAIN_RUN_SAME_H
#define PLIM_TRAIN_RUN_SAME_H

#include "base/node.h"
#include "comm/comm.h"
#include "job/job.h"

/* PLIM_BAD_INPUT on all ranks: the first rank that has something else than rank 0, and the first key. */
enum plim_status run_same(struct comm *comm, const struct job *job, const struct doc *facts,
                          struct plim_error *err);

#endif
