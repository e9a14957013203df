/* oracle.h - bytes and seconds of a set of knobs, without packing: what the search asks.
 *
 *     struct oracle oracle;
 *     oracle_init(&oracle, &request);
 *     oracle_ask(&oracle, &knobs, &bound, &err);      // bound.total, bound.host, bound.step_seconds
 *     oracle_release(&oracle);
 *
 * A training tape has two parts, one micro-batch and the update, which hand each other nothing but gradients. So its time
 * is accumulation x loop + update and its peak is what is kept + the higher of two peaks, and each part is found once for
 * the knobs it depends on: asking for every combination of three loops and three updates builds three tapes, not nine.
 * The answers are exact: those of plan_bound_of (tests/unit/test_search_proof.c). With the optimizer inside backward the loop
 * depends on all knobs and there is nothing to be shared.
 */
#ifndef PLIM_PLAN_ORACLE_H
#define PLIM_PLAN_ORACLE_H

#include "plan/cost.h"
#include "plan/plan.h"

/* One part of a tape: what it takes and how long. */
struct part_cost {
    struct knobs key;   /* the knobs it depends on; the others are 0 */
    double seconds;     /* of one micro-batch, or of the update */
    double busy[LANES]; /* what each lane has to do in that time (cost.h) */
    int64_t peak;       /* live transient bytes */
    int64_t kept;       /* update: bytes that stay on the device */
    int64_t offloaded;  /* bytes on the host: activations of the loop, all else of the update */
    bool on_disk;       /* something is on disk */
    int64_t own;        /* bytes of the plan's own data structures, those of shorter rows included */
    int64_t tape;       /* of them, its own tape and layout */
};

struct part_list {
    struct part_cost *items;
    int count, cap;
    int *slots; /* by hash of the key: 1 + its place in items, 0: free */
    int nslots;
};

/* What is computed for some knobs (plan_compute_knobs), before anything is placed. */
struct computed {
    bool made;
    enum tape_part part;
    struct knobs key;
    struct tape tape;
};

struct oracle {
    const struct plan_request *request;
    struct tape tape; /* memory to work in */
    struct computed
        computed[2]; /* of the loop, or of the whole where updates run inside backward; of the update */
    bool frugal;     /* tapes are too large to be held twice */
    struct part_list loops, updates;
    int tapes;       /* built */
    int64_t largest; /* bytes of the largest of them and its layout */
    int64_t work;    /* their ops */
    bool
        patient; /* set by the search once something fits: a tape that cannot be held is then a plan that does not fit; before
                   * that it ends the search, within the line */
};

void oracle_init(struct oracle *oracle, const struct plan_request *request);
void oracle_release(struct oracle *oracle);
/* Gives back the memory it works in; what it has found it still knows. */
void oracle_rest(struct oracle *oracle);

/* Time and bytes of these knobs, all of them set. */
enum plim_status oracle_ask(struct oracle *oracle, const struct knobs *knobs, struct plan_bound *out,
                            struct plim_error *err);

/* Seconds that updates inside backward take at least: the busiest lane's work, of the loop and of the update each by
 * itself, which are shared with every other question. */
enum plim_status oracle_least_inside(struct oracle *oracle, const struct knobs *knobs, double *out,
                                     struct plim_error *err);

/* Bytes that stay on the device at least, of these knobs with the update behind backward: all that is kept, and nothing else. */
enum plim_status oracle_kept(struct oracle *oracle, const struct knobs *knobs, struct plan_bound *out,
                             struct plim_error *err);

/* Seconds that ranks exchange beside computing, in all micro-batches of a step and in its update. Those of the update are the
 * same whatever is offloaded and wherever it runs, those of the loop depend on what is computed and on keep_gathered. */
struct exchange_seconds {
    double loop, update;
};
enum plim_status oracle_exchanges(struct oracle *oracle, const struct knobs *knobs,
                                  struct exchange_seconds *out, struct plim_error *err);

/* Seconds of the update alone, where it does not run inside backward. */
enum plim_status oracle_update_seconds(struct oracle *oracle, const struct knobs *knobs, double *out,
                                       struct plim_error *err);

#endif
