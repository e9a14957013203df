/* oracle.h - bytes and seconds of a set of knobs, without packing, for the search.
 *
 *     struct oracle oracle;
 *     oracle_init(&oracle, &request);
 *     oracle_ask(&oracle, &knobs, &bound, &err);      // bound.total, bound.host, bound.step_seconds
 *     oracle_release(&oracle);
 *
 * A training tape has two parts, one micro-batch and the update, which share only gradients. So its time is
 * accumulation x loop + update, and its peak is the kept bytes plus the higher of two peaks. Each part is built once
 * for the knobs it depends on: all combinations of three loops and three updates build three tapes, not nine.
 * Answers equal those of plan_bound_of exactly (tests/unit/test_search_proof.c). With the optimizer inside backward
 * the loop depends on all knobs, and nothing is shared.
 */
#pragma once

#include "plan/cost.h"
#include "plan/plan.h"

/* Cost of one part of a tape. */
struct part_cost {
    struct knobs key;   /* the knobs it depends on; the others are 0 */
    double seconds;     /* of one micro-batch, or of the update */
    double forward;     /* loop: seconds of its forward */
    double busy[LANES]; /* seconds of work per lane (cost.h) */
    int64_t peak;       /* live transient bytes */
    int64_t kept;       /* update: bytes that stay on the device */
    int64_t offloaded;  /* bytes on the host: activations of the loop, all else of the update */
    bool on_disk;       /* something is on disk */
    int64_t own;        /* bytes of the plan's own data structures, including those of shorter rows */
    int64_t tape;       /* part of own: its tape and layout */
};

struct part_list {
    struct part_cost *items;
    int count, cap;
    int *slots; /* by hash of the key: 1 + its place in items, 0: free */
    int nslots;
};

/* Result for one set of knobs (plan_compute_knobs), before any tensor has an address. */
struct computed {
    bool made;
    enum tape_part part;
    struct knobs key;
    struct tape tape;
};

struct oracle {
    const struct plan_request *request;
    struct tape tape; /* scratch */
    /* [0] the loop, or the whole tape if updates run inside backward; [1] the update. */
    struct computed computed[2];
    bool frugal; /* tapes are too large to be held twice */
    struct part_list loops, updates;
    int tapes;       /* number built */
    int64_t largest; /* bytes of the largest one and its layout */
    int64_t work;    /* total ops */
    /* Set by the search once something fits: a tape that is too large then counts as a plan that does not fit.
     * Before that, such a tape ends the search. */
    bool patient;
};

void oracle_init(struct oracle *oracle, const struct plan_request *request);
void oracle_release(struct oracle *oracle);
/* Frees its working memory; keeps its results. */
void oracle_rest(struct oracle *oracle);

/* Time and bytes of these knobs, which must all be set. */
enum plim_status oracle_ask(struct oracle *oracle, const struct knobs *knobs, struct plan_bound *out,
                            struct plim_error *err);

/* Lower bound of the seconds with updates inside backward or forward: the busiest lane's work, and inside forward all that
 * forward cannot hide; computed for loop and update separately, so that other questions share it. */
enum plim_status oracle_least_inside(struct oracle *oracle, const struct knobs *knobs, double *out,
                                     struct plim_error *err);

/* Lower bound of the bytes with updates inside forward, from a loop that other questions share: kept tensors and the peak of a
 * micro-batch without the updates. */
enum plim_status oracle_least_bytes(struct oracle *oracle, const struct knobs *knobs, struct plan_bound *out,
                                    struct plim_error *err);

/* Lower bound of the device bytes with the update after backward: the kept tensors alone. */
enum plim_status oracle_kept(struct oracle *oracle, const struct knobs *knobs, struct plan_bound *out,
                             struct plim_error *err);

/* Seconds of overlapped exchanges in all micro-batches of a step and in its update. Those of the update do not depend
 * on offloading; those of the loop depend on the computation and on keep_gathered. */
struct exchange_seconds {
    double loop, update;
};
enum plim_status oracle_exchanges(struct oracle *oracle, const struct knobs *knobs,
                                  struct exchange_seconds *out, struct plim_error *err);

/* Seconds of the update, if it does not run inside backward. */
enum plim_status oracle_update_seconds(struct oracle *oracle, const struct knobs *knobs, double *out,
                                       struct plim_error *err);
