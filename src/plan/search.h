/* search.h - parts of the search that tests use in addition to plan_search (plan.h). */
#pragma once

#include "plan/space.h"

/* Work is counted in ops of built tapes. Up to PLAN_PATIENCE the search examines every box that may hold a faster
 * plan; beyond it, a box must promise more and more. At PLAN_WORK it takes the best plan it has, even in the middle
 * of a box. It continues while nothing fits yet, and it always polishes the best plan, with at most twice
 * PLAN_POLISH. Places that it looks into last have PLAN_LAST, and what they change is polished again. */
#define PLAN_WORK     1000000
#define PLAN_PATIENCE 200000
#define PLAN_POLISH   200000
#define PLAN_LAST     300000

/* A plan that offloads state or activations beyond its pins must be predicted faster by this factor than one that
 * does not. A plan that also offloads parameters or gradients must be faster by this factor again. */
#define PLAN_DOUBT 1.1

/* With several ranks a tape has twice the ops, so the search gets only one part in PLAN_RANKS_PART of the
 * work. The rest would gain little: 0.1 % of a step over 200 jobs. */
#define PLAN_RANKS_PART 4
static inline int64_t plan_work_of(const struct plan_request *request, int64_t work)
{
    return request->facts->ranks > 1 ? work / PLAN_RANKS_PART : work;
}

/* plan_search with the table's rows in this order; the plan is the same. */
enum plim_status plan_search_in(const struct plan_request *request, const int order[AXES], struct plan *out,
                                struct plim_error *err);
