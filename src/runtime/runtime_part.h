/* runtime_part.h - shared by the files of the runtime: commit.c takes and releases the memory of a plan, replan.c
 * moves from one plan to another. */
#pragma once

#include "runtime/runtime.h"

/* Sets the budgets of the ledgers: the device's budget, and host_budget if the host is a separate tier. */
void runtime_set_lines(struct runtime *rt, int64_t budget);

/* After PLIM_NO_FIT: replaces the smallest plan by one that uses the process's reserve. Returns false if there is
 * none. */
bool runtime_search_again(int64_t reserve, const struct plan_request *request, struct plan *plan);

/* Prepares a closed runtime for the job on this device, with the request that all ranks plan from. */
enum plim_status runtime_ask(struct runtime *rt, struct device *device, const struct job *job,
                             struct overhead overhead, struct plim_error *err);

/* Value of search_line (plan.h) for a search in this process: the budget when device memory is the process's own,
 * else 0, no limit. */
int64_t runtime_search_line(const struct runtime *rt, int64_t budget);

/* PLIM_BAD_INPUT: the ranks have made different plans. */
enum plim_status runtime_same_plan(const struct runtime *rt, const struct plan *plan, struct plim_error *err);

/* Takes memory for a plan with an arena of this size, in two steps, so that the larger of two plans is never
 * exceeded. The first step grows tiers and lowers overheads; the second shrinks tiers and raises overheads. Repeating
 * a step does nothing. */
enum plim_status runtime_take(struct runtime *rt, const struct plan *plan, int64_t arena,
                              struct plim_error *err);
enum plim_status runtime_give(struct runtime *rt, const struct plan *plan, int64_t arena,
                              struct plim_error *err);

/* Bytes of tensors taken on a tier now. */
int64_t runtime_taken(const struct runtime *rt, enum tier tier);

/* Opens rt->exec for the plan, tunes it and writes constants. `fresh`: the arena is empty. */
enum plim_status runtime_start(struct runtime *rt, bool fresh, struct plim_error *err);
