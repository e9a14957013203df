/* pack_internal.h - what the files of the packer share; nobody else includes it.
 *
 * pack.c turns items into a job: zero sizes are gone, sizes are counted in units (the greatest common divisor of
 * the rounded sizes), and time is compressed into columns. A column is one maximal set of rectangles alive
 * together, so two rectangles conflict in time exactly when their column ranges [a,b) overlap, and the highest
 * load of a column is the lower bound. Passes write offsets into job->offset and offer them; the best offer is
 * kept in job->best.
 *
 * Invariants: 0 <= a < b <= columns, size > 0, lower_bound <= target, height == INT64_MAX until the first offer.
 * A pass gives up (returns PACK_GAVE_UP) as soon as it can no longer get below job->height; this also keeps
 * every sum of an offset and a size within int64_t.
 */
#ifndef PLIM_PLAN_PACK_INTERNAL_H
#define PLIM_PLAN_PACK_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PACK_GAVE_UP INT64_MAX

struct pack_rect {
    int a, b; /* columns [a,b) */
    int64_t size;
};

struct pack_job {
    int n, columns;
    struct pack_rect *rect; /* [n] */
    int64_t *load;          /* [columns] */
    int64_t lower_bound, target;
    int64_t *offset; /* [n] what the pass under way writes */
    int64_t *best;   /* [n] */
    int64_t height;  /* of best */
    const char *method;
    void *scratch; /* pack_scratch_size(n) bytes, for whichever pass is running */
};

/* Keep job->offset when its height is lower than the best so far. True when the target is reached. */
bool pack_job_offer(struct pack_job *job, int64_t height, const char *method);

/* order[] becomes 0..n-1 sorted by key, ascending, equal keys in index order. Clobbers key; tmp and key hold n. */
struct pack_key {
    uint64_t key;
    int index;
};
void pack_sort_keys(struct pack_key *keys, struct pack_key *tmp, int n);

/* The greedy families; each returns true when the target is reached. */
bool pack_sweep_passes(struct pack_job *job);   /* pack_sweep.c: online allocation outwards from the peak */
bool pack_greedy_passes(struct pack_job *job);  /* pack_greedy.c: first fit in an order fixed beforehand */

#endif
