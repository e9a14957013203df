/* pack_search.c - many short dives instead of one long search.
 *
 * How long a backtracking search takes is a matter of luck: most problems are solved within a few hundred
 * nodes with one taste and not within hours with another. So dives are cut off early, and every dive has a
 * taste of its own, drawn from values that have proved themselves. The allowance grows slowly, in case none
 * was lucky. Without a deadline the columns that dives look at are counted, too: a node of a large job costs more.
 *
 * The goal of a dive is the target, or the lowest height above it that no dive has proved impossible. After
 * the first dives most have a goal between that and the best packing so far, a step below the latter, so that
 * something is gained even where the target is out of reach. The step doubles when it was reached and shrinks
 * a little when it was not.
 *
 * Dives search the core of the job (pack_core.c); the core grows when a packing of it could not be
 * completed. The core is a part of the job, so what is impossible for the core is impossible altogether.
 */
#include "plan/pack_internal.h"
#include "base/clock.h"
#include "base/rng.h"
#include <math.h>

enum { LOW_DIVES = 24, CALM_DIVES = 48 };
#define COLUMNS_MOST 2e8 /* of a search without a deadline: a second or two */

static const double powers[] = {0, 0.25, 0.5, 1, 2, -1};
static const double nears[] = {0, 0.001, 0.01, 0.03, 0.1, 1};
static const double tights[] = {0, 0.02, 0.1, 1};

static double pick(const double *table, size_t count, uint64_t kind, int dive)
{
    return table[rng_below(1, kind, (uint64_t)dive, count)];
}

static struct pack_taste taste_of(int dive)
{
    return (struct pack_taste){
        .size_power = pick(powers, sizeof powers / sizeof powers[0], 0, dive),
        .near = pick(nears, sizeof nears / sizeof nears[0], 1, dive),
        .tight = pick(tights, sizeof tights / sizeof tights[0], 2, dive),
        .grudge = rng_below(1, 3, (uint64_t)dive, 4) == 0,
        .noise = dive < CALM_DIVES ? 0 : 0.3 * rng_uniform(1, 4, (uint64_t)dive),
    };
}

struct search {
    struct pack_job *job;
    struct pack_core core;
    double allowance; /* nodes of a dive */
    double columns;   /* that all dives may still look at */
    int64_t least;    /* the lowest height not proved impossible */
    int64_t step;
};

static bool aims_low(int dive) { return dive < LOW_DIVES || dive % 4 == 0; }

static int64_t goal_of(const struct search *s, int dive)
{
    int64_t above = s->job->height - s->least;
    if (aims_low(dive) || s->step >= above) return s->least;
    return s->job->height - (s->step > 1 ? s->step : 1);
}

static bool rebuild(struct search *s)
{
    if (!pack_core_build(&s->core)) return false;
    double enough = 2 * s->core.job.n + 100;
    if (s->allowance < enough) s->allowance = enough;
    return true;
}

/* True when there is nothing more to look for. */
static bool dive_once(struct search *s, int dive, double deadline)
{
    struct pack_taste taste = taste_of(dive);
    int64_t goal = goal_of(s, dive);
    bool grown = false;
    s->allowance *= 1.02;
    switch (pack_tree_dive(s->core.tree, goal, &taste, (uint64_t)dive, (long)s->allowance, &s->columns,
                           deadline)) {
    case PACK_DIVE_FOUND:
        if (pack_job_offer(s->job, pack_core_complete(&s->core, &grown), "search")) return true;
        s->step *= 2;
        if (grown && !rebuild(s)) return true;
        break;
    case PACK_DIVE_IMPOSSIBLE:
        s->least = goal + 1;
        break;
    case PACK_DIVE_CUT:
        if (!aims_low(dive)) s->step -= s->step / 8;
        break;
    }
    return s->least >= s->job->height || s->columns < 0;
}

void pack_search(struct pack_job *job, double deadline, int dives)
{
    if (job->target > INT64_MAX / 4) return; /* the sums of the search would not fit */
    struct search s = {.job = job, .least = job->target, .step = (job->height - job->target) / 4 + 1};
    s.columns = isinf(deadline) ? COLUMNS_MOST : INFINITY;
    bool done = !pack_core_init(&s.core, job) || !rebuild(&s);
    for (int dive = 0; !done && dive < dives && clock_seconds() < deadline; dive++)
        done = dive_once(&s, dive, deadline);
    pack_core_release(&s.core);
}
