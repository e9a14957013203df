/* search.h - what tests ask of the search beside plan_search (plan.h). */
#ifndef PLIM_PLAN_SEARCH_H
#define PLIM_PLAN_SEARCH_H

#include "plan/space.h"

/* Work is counted in ops of tapes built. Up to PLAN_PATIENCE the search looks at every box that may hold something faster;
 * beyond it a box must promise more and more; at PLAN_WORK it takes the best plan it has. It goes on where nothing has
 * fitted yet, and the best plan is always polished. */
#define PLAN_WORK     1000000
#define PLAN_PATIENCE 300000
