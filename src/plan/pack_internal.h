/* pack_internal.h - shared by the packer's files only.
 *
 * pack_problem.c turns items into rectangles: zero sizes are removed, sizes are counted in units (the greatest common
 * divisor of the rounded sizes), and time is compressed into columns. A column is one maximal set of rectangles alive at
 * the same time. So two rectangles conflict in time exactly when their column ranges overlap, and the highest load of a
 * column is the lower bound. Where no rectangle crosses from one column to the next, the problem is split; each part is a
 * separate job.
 *
 *     struct pack_problem problem;
 *     pack_problem_build(&problem, items, n, align, capacity, err);
 *     for each job: pack_greedy(job), pack_search(job, ...)     // both only improve job->best
 *     pack_problem_release(&problem);
 *
 * Invariants of a job: 0 <= a < b <= columns, size > 0, load[c] is the sum of the sizes that cover column c, every load <=
 * target, height == PACK_NONE until the first offer. A pass writes offset[] and offers it with its height; it gives up
 * (height PACK_NONE) as soon as it can no longer get below job->height. This also keeps every sum of an offset and a size
 * within int64_t.
 */
#pragma once

#include "base/bump.h"
#include "base/status.h"
#include "plan/pack.h"
#include <stdbool.h>
#include <stdint.h>

#define PACK_NONE INT64_MAX

struct pack_rect {
    int a, b; /* columns [a,b) of the job */
    int64_t size;
};

struct pack_job {
    int n, columns;
    struct pack_rect *rect; /* [n] */
    int *item;              /* [n] the item of each rectangle */
    int64_t *load;          /* [columns] */
    int64_t target;         /* good enough: stop at height <= target */
    int64_t *offset;        /* [n] written by the current pass */
    int64_t *best;          /* [n] the lowest packing so far */
    int64_t height;         /* its height */
    const char *method;     /* the pass that found it */
    struct bump *store;     /* memory that lives as long as the problem */
};

struct pack_problem {
    int64_t unit, lower_bound; /* bytes per unit; bound in units */
    int jobs;
    struct pack_job *job;
    struct bump store;
};

/* PLIM_BAD_INPUT: items are not intervals or too large to add up. PLIM_NO_MEMORY. */
enum plim_status pack_problem_build(struct pack_problem *problem, const struct pack_item *items, int n,
                                    int64_t align, int64_t capacity, struct plim_error *err);
void pack_problem_release(struct pack_problem *problem);

/* Takes job->offset if `height` is below the best so far. Returns true when the target is reached. */
bool pack_job_offer(struct pack_job *job, int64_t height, const char *method);

/* Runs the greedy passes until the target is reached or their allowance is spent. Returns false when out of
 * memory. */
bool pack_greedy(struct pack_job *job);

/* Searches for a lower packing until the target, the proof that there is none, `deadline` (clock_seconds) or
 * the number of dives. Running out of memory only ends the search. Without a deadline large
 * jobs have fewer dives: the columns looked at are counted, so that the result does not depend on the machine. */
void pack_search(struct pack_job *job, double deadline, int dives);

/* --- sorting (pack_sort.c) -------------------------------------------------------------------------- */

struct pack_key {
    uint64_t key;
    int index;
};

/* Sorts in ascending order of keys, stably. tmp has room for n. */
void pack_sort(struct pack_key *keys, struct pack_key *tmp, int n);

/* A positive double as a key that sorts like it. */
uint64_t pack_key_of(double positive);

/* --- greedy families -------------------------------------------------------------------------------- */

/* pack_sweep.c: allocates as at run time, moving away from the peak. A rule says what is placed low at the
 * peak, and which gap is used on the way. */
enum pack_sweep_rule {
    SWEEP_LONGEST_NEAR,
    SWEEP_EARLIEST_BEST,
    SWEEP_LATEST_ENDS,
    SWEEP_LONGEST_BEST,
    SWEEP_LEANING_NEAR,
    SWEEP_EARLIEST_FIRST,
};
struct pack_sweep;
struct pack_sweep *pack_sweep_new(struct pack_job *job);
int64_t pack_sweep_run(struct pack_sweep *sweep, enum pack_sweep_rule rule);

/* pack_skyline.c: fills every valley with the first rectangle of order[] that fits inside it. */
struct pack_skyline;
struct pack_skyline *pack_skyline_new(struct pack_job *job);
int64_t pack_skyline_run(struct pack_skyline *skyline, const int *order);

/* pack_fit.c: first fit among the rectangles already placed. */
struct pack_fit;
struct pack_fit *pack_fit_new(struct pack_job *job);
void pack_fit_clear(struct pack_fit *fit);
void pack_fit_add(struct pack_fit *fit, int r);             /* at job->offset[r] */
int64_t pack_fit_lowest(const struct pack_fit *fit, int r); /* where r would go */

/* --- search ----------------------------------------------------------------------------------------- */

/* pack_core.c: the part of a job that crosses the fullest columns. It is far smaller than the job, and once
 * it is packed the rest usually fits around it. */
enum { PACK_CORE_MOST = 3000 }; /* rectangles of a core */
struct pack_core {
    struct pack_job *whole;
    struct pack_job job; /* the core as a separate job, in its own memory */
    int *rect;           /* [job.n] the corresponding rectangle of the whole */
    bool *hot;           /* [whole->columns] columns that belong to the core */
    int *hot_before;     /* [whole->columns + 1] number of hot columns before a column */
    struct pack_tree *tree;
    struct pack_fit *fit;
    int *order;            /* [whole->n] rectangles outside the core */
    struct pack_key *keys; /* [2 * whole->n] */
    struct bump store;
};
bool pack_core_init(struct pack_core *core, struct pack_job *whole); /* false: out of memory */
/* Call it after changing hot[]. A core that is too large to search is not built; the previous one then stays.
 * Returns false if there is none, or out of memory. */
bool pack_core_build(struct pack_core *core);
/* Completes a packing of the core, in core.job.offset, to one of the whole and returns its height. `grown`:
 * columns became hot because something did not fit below the target. */
int64_t pack_core_complete(struct pack_core *core, bool *grown);
void pack_core_release(struct pack_core *core);

/* pack_tree.c: backtracking search for a packing of at most `goal`. */
struct pack_taste {
    double size_power; /* which rectangle first: lifetime x size^power; negative: by size only */
    double noise;      /* amount of randomness in that order; 0: none */
    double near;       /* preference to branch near the last branching; 0: none */
    double tight;      /* preference for columns without slack; 0: none */
    bool grudge;       /* prefer columns that caused failures */
};
struct pack_tree;
struct pack_tree *pack_tree_new(struct pack_job *job);
void pack_tree_release(struct pack_tree *tree); /* frees its stacks; the rest belongs to job->store */
enum pack_dive {
    PACK_DIVE_FOUND,      /* job->offset holds a packing of at most `goal` */
    PACK_DIVE_IMPOSSIBLE, /* there is none */
    PACK_DIVE_CUT,        /* ended by the limit of nodes, time or memory */
};
/* *columns: how many may be looked at, lessened by those that were. */
enum pack_dive pack_tree_dive(struct pack_tree *tree, int64_t goal, const struct pack_taste *taste,
                              uint64_t seed, long nodes, double *columns, double deadline);
