/* pack_search.c - many short dives instead of one long search.
 *
 * How long a backtracking search takes is a matter of luck: most problems are solved within a few hundred nodes
 * with one taste and not within hours with another. So dives are cut off early, and every dive has a taste of its
 * own, drawn from the values that solve the most. The allowance grows slowly, in case none was lucky.
 *
 * The goal is the target first. When a round of dives misses it, goals halfway between the target and the best
 * packing so far are tried, closer and closer to the latter; whatever is reached is kept, and the next round
 * starts at the target again.
 */
#include "plan/pack_internal.h"
#include "base/clock.h"
#include "base/rng.h"

enum { DIVES_PER_GOAL = 12, CALM_DIVES = 48 };

static const double powers[] = {0, 0.25, 0.5, 1, 2, -1};
static const double nears[] = {0, 0.001, 0.01, 0.03, 0.1, 1};
static const double tights[] = {0, 0.02, 0.1, 1};

#define PICK(table, i) table[rng_below(1, (i), (uint64_t)dive, sizeof(table) / sizeof(table)[0])]

static struct pack_taste taste_of(int dive) {
    return (struct pack_taste){
        .size_power = PICK(powers, 0),
        .near = PICK(nears, 1),
        .tight = PICK(tights, 2),
        .grudge = rng_below(1, 3, (uint64_t)dive, 4) == 0,
        .noise = dive < CALM_DIVES ? 0 : 0.3 * rng_uniform(1, 4, (uint64_t)dive),
    };
}

static int64_t height_of(const struct pack_job *job) {
    int64_t top = 0;
    for (int r = 0; r < job->n; r++)
        if (job->offset[r] + job->rect[r].size > top) top = job->offset[r] + job->rect[r].size;
    return top;
}

void pack_search(struct pack_job *job, double deadline) {
    struct pack_tree *tree = job->target < INT64_MAX / 4 ? pack_tree_new(job) : NULL;
    double allowance = 2 * job->n + 100;
    int halvings = 0;
    for (int dive = 0; tree && clock_seconds() < deadline; dive++) {
        if (dive && dive % DIVES_PER_GOAL == 0) halvings++;
        int64_t goal = job->height - 1 - ((job->height - 1 - job->target) >> halvings);
        if (halvings && goal >= job->height - 1) halvings = 0, goal = job->target;
        struct pack_taste taste = taste_of(dive);
        allowance *= 1.02;
        if (!pack_tree_dive(tree, goal, &taste, (uint64_t)dive, (long)allowance, deadline)) continue;
        if (pack_job_offer(job, height_of(job), "search")) break;
        halvings = 0;
    }
    pack_tree_release(tree);
}
