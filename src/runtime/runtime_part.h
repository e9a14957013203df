/* runtime_part.h - what the files of the runtime share: commit.c takes and gives back the memory of a plan, replan.c moves
 * from one plan to another. */
#ifndef PLIM_RUNTIME_RUNTIME_PART_H
#define PLIM_RUNTIME_RUNTIME_PART_H

#include "runtime/runtime.h"

/* The lines of the ledgers: the budget of the device, host_budget where the host is a tier of its own. */
void runtime_set_lines(struct runtime *rt, int64_t budget);

/* After PLIM_NO_FIT: a plan that uses the process's reserve up, in the stead of the smallest one. False: there is none. */
bool runtime_search_again(int64_t reserve, const struct plan_request *request, struct plan *plan);

/* A closed runtime becomes the job's on this device, with the request that all ranks plan from. */
enum plim_status runtime_ask(struct runtime *rt, struct device *device, const struct job *job,
                             struct overhead overhead, struct plim_error *err);

/* What a search in this process may reach under a budget (plan.h, search_line): the line that the process itself is on. */
int64_t runtime_search_line(const struct runtime *rt, int64_t budget);

/* Ranks have made the same plan; PLIM_BAD_INPUT: they have not. */
enum plim_status runtime_same_plan(const struct runtime *rt, const struct plan *plan, struct plim_error *err);

/* Memory for a plan whose arena has so many bytes, in two steps so that the larger of two plans is never exceeded: first what
 * grows, with overheads that fall, then what shrinks, with overheads that rise. Both do nothing twice. */
enum plim_status runtime_take(struct runtime *rt, const struct plan *plan, int64_t arena,
                              struct plim_error *err);
enum plim_status runtime_give(struct runtime *rt, const struct plan *plan, int64_t arena,
                              struct plim_error *err);

/* Bytes of tensors taken on a tier now. */
int64_t runtime_taken(const struct runtime *rt, enum tier tier);

/* exec runs the plan: opened, and what it needs of the device learnt. `fresh`: nothing is in the arena yet. Constants are
 * written. */
enum plim_status runtime_start(struct runtime *rt, bool fresh, struct plim_error *err);

#endif
