/* search.h - what the files of the search share: search.c finds the best plan with everything in given places,
 * search_places.c goes through the places, search_park.c looks for layers to park. */
#ifndef PLIM_PLAN_SEARCH_H
#define PLIM_PLAN_SEARCH_H

#include "plan/plan.h"

#define MAX_DIVISORS 6720 /* no number up to 10^12 has more */
#define MAX_TOKENS   INT32_MAX

struct place { /* where things are */
    int state_tier, grad_tier, param_tier;
    int state_share, param_share, host_share;
};

struct way { /* one choice of everything but micro-batch and loss cut */
    int recompute, full_layers, in_backward;
    struct place place;
};

struct candidate { /* knobs that fit */
    bool found;
    struct knobs knobs;
    double seconds;
};

#define REMEMBERED 128
#define FINE_OPS   4000 /* tapes below this are made so quickly that a dozen more do not matter */

/* In ops of tapes that were made, of which a millisecond makes some three thousand: from here on only what promises much is
 * looked at. */
#define SEARCH_PATIENCE 90000

enum { SEARCH_QUARTERS = 4 };

enum { SEARCH_NEAR = 2 }; /* such placements: state here, state away */

struct search {
    const struct plan_request *request;
    int64_t divisors[MAX_DIVISORS]; /* of the effective batch, ascending: the micro-batches there are */
    int ndivisors;
    int64_t allowed;  /* bytes; below the budget when packing needed more than its bound */
    bool device_only; /* only the device's line counts for the moment */
    bool fitted;      /* something of the placement searched last */
    int tried;
    int64_t made;     /* ops, by all that was tried */
    struct tape room; /* for the bounds */
    struct asked {
        struct knobs knobs;
        struct plan_bound bound;
    } asked[REMEMBERED]; /* the last questions: several loops begin with the same */
    int nasked;
    /* Chosen updaters (host_share), for parameters near and far, with updates at the end, inside backward, of far
     * gradients, and for each quarter of the state that is away; KNOB_OPEN: not yet. */
    int updater[2][3][SEARCH_QUARTERS];
    bool no_host_updates[2]; /* for parameters near and far: a tape has shown that the host takes no part */
    struct plim_error *err;
    double bar;            /* seconds of the best plan of other placements */
    struct candidate best; /* so far, of the placement that is being searched; in the end of all */
    struct candidate
        near[SEARCH_NEAR]; /* the best of those whose parameters and gradients stay: they may park */
    int nnear;
    /* smallest seen, for the message when nothing fits */
    bool has_smallest;
    struct knobs smallest;
    bool smallest_holds; /* the device's line */
    int64_t smallest_takes, smallest_total;
};

/* Knobs of a way; finest_cut is the smallest slice of the loss. */
struct knobs search_knobs(const struct search *s, const struct way *way, int64_t micro_batch, int chunks);
int search_finest_cut(const struct plan_request *r, int64_t micro_batch);

/* Whether these knobs fit, with late fetches if need be (then knobs->late); their time and bytes in *bound. */
enum plim_status search_try(struct search *s, struct knobs *knobs, struct plan_bound *bound, bool *fits);

/* They fit and take so long: keep them when they are the best so far. */
void search_consider(struct candidate *best, const struct knobs *knobs, double seconds);

/* The ways of a placement that pins allow, from free to costly. */
#define SEARCH_WAYS 8
int search_ways(const struct search *s, const struct place *place, int in_backward, struct way *ways);

/* Does this way fit with the smallest micro-batch? Does any of the list, free to costly? */
enum plim_status search_tightest(struct search *s, const struct way *way, struct plan_bound *bound,
                                 bool *fits);
enum plim_status search_any_fits(struct search *s, const struct way *ways, int n, bool *fits);

/* May the optimizer run inside backward? */
bool search_inside(const struct search *s, int grad_tier);

/* Who updates state in host memory: the device, the CPU there, or both at once; set in *place (search_places.c). */
enum plim_status search_updater(struct search *s, struct place *place, int in_backward);

/* All ways with one placement, each with its updater. */
enum plim_status search_placement(struct search *s, const struct place *place);

/* The best plan with as many layers' activations on the host as cost nothing, if that beats `bar` seconds; or, where nothing
 * is found, the one that fits by parking alone (search_park.c). */
enum plim_status search_park(struct search *s, double bar);

/* All placements, from free to costly (search_places.c). */
enum plim_status search_places(struct search *s);

#endif
