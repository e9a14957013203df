/* run_same.h - checks that all ranks of a run agree: on the data, and on all keys that are not specific to a machine.
 *
 *     run_same(comm, job, start.facts, &err);             // all ranks together; NULL: one rank
 *
 * Compares the run's facts (run_facts.h) and the keys that schedule common actions. Devices, threads, budgets, folders and
 * reporting may differ.
 */
#pragma once

#include "base/node.h"
#include "comm/comm.h"
#include "job/job.h"

/* PLIM_BAD_INPUT on all ranks names the first rank that differs from rank 0, and the first key. */
enum plim_status run_same(struct comm *comm, const struct job *job, const struct doc *facts,
                          struct plim_error *err);
