/* search.h - what tests ask of the search beside plan_search (plan.h). */
#ifndef PLIM_PLAN_SEARCH_H
#define PLIM_PLAN_SEARCH_H

#include "plan/space.h"

/* Ops of tapes that a search builds before it takes the best plan it has, with a proof or without. It goes on where nothing
 * has fitted yet. */
#define PLAN_WORK     1000000
#define PLAN_PATIENCE 200000

/* plan_search with the rows of the table in this order: the plan is the same. */
enum plim_status plan_search_in(const struct plan_request *request, const int order[AXES], struct plan *out,
                                struct plim_error *err);

#endif
