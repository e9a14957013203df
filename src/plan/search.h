/* search.h - what tests ask of the search beside plan_search (plan.h). */
#ifndef PLIM_PLAN_SEARCH_H
#define PLIM_PLAN_SEARCH_H

#include "plan/space.h"

/* Work is counted in ops of tapes built. Up to PLAN_PATIENCE the search looks at every box that may hold something faster;
 * beyond it a box must promise more and more; at PLAN_WORK it takes the best plan it has, in the midst of a box. It goes on where
 * nothing has fitted yet, and the best plan is always polished, for twice PLAN_POLISH at most. */
#define PLAN_WORK     1000000
#define PLAN_PATIENCE 200000
#define PLAN_POLISH   200000

/* A plan in which state or activations leave the device beyond what pins ask for must be predicted faster than one without by
 * this factor; one in which parameters or gradients leave, too, than those by the same factor again. */
#define PLAN_DOUBT 1.1

/* Of several ranks a tape has twice the ops, and what is left to find behind this part of the work is little: 0.1 % of a step
 * for 200 jobs. */
#define PLAN_RANKS_PART 4
static inline int64_t plan_work_of(const struct plan_request *request, int64_t work)
{
    return request->facts->ranks > 1 ? work / PLAN_RANKS_PART : work;
}

/* plan_search with the rows of the table in this order: the plan is the same. */
enum plim_status plan_search_in(const struct plan_request *request, const int order[AXES], struct plan *out,
                                struct plim_error *err);

#endif
