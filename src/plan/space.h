/* space.h - what the search may choose: one table with a row per axis.
 *
 *     struct space space;
 *     space_init(&space, &request, &err);
 *     struct point p = {0};                                  // the free end of every axis
 *     for (p.at[AXIS_MICRO] = 0; p.at[AXIS_MICRO] < space_count(&space, AXIS_MICRO, &p); p.at[AXIS_MICRO]++)
 *         use(space_knobs(&space, &p));
 *
 * A point has one value of each axis, by number, from free to costly. A row says how many values there are at a point
 * (pins leave one), how a value becomes knobs, and what the search may rely on:
 *
 *     AXIS_EACH     values have no order: each is looked at by itself
 *     AXIS_ORDERED  a costlier value takes no more bytes of the device and no less time
 *     AXIS_BEST     a handful of values, of which the best at a point is taken
 *
 * A new capability adds a row here and nothing to the search.
 *
 * Memory that is there is used first. space.reach says how much may leave the device beyond what pins ask for, and the search
 * widens it step by step: nothing, then optimizer state and activations, then parameters and gradients. A point keeps its
 * numbers when the reach changes; only the counts grow.
 */
#ifndef PLIM_PLAN_SPACE_H
#define PLIM_PLAN_SPACE_H

#include "plan/plan.h"

enum axis_id {
    AXIS_PLACE,     /* where gradients wait, whether the update runs inside backward, and what is in pieces */
    AXIS_MICRO,     /* micro-batch: divisors of the effective batch, the largest first */
    AXIS_RECOMPUTE, /* none, selective, selective and 1, 2, ... layers in full, full */
    AXIS_CHUNKS,    /* slices of the loss: 1, 2, 4, ... */
    AXIS_ACTIVATIONS, /* layers whose activations are offloaded */
    AXIS_SHARE,       /* how much of the state, and then of the parameters, is offloaded */
    AXIS_UPDATER,     /* how much of offloaded state the host's CPU updates */
    AXIS_PREFETCH,    /* how early offloaded parameters and gradients are fetched */
    AXES
};

struct point {
    int at[AXES];
};

struct place {
    enum tier grad;
    bool inside; /* the optimizer runs inside backward */
    enum zero zero;
};

/* Of OFFLOAD_SHARES parts each. */
struct share {
    int state, param;
};

enum { SPACE_PLACES = 4 * ZERO_COUNT, SPACE_MICROS = 24, SPACE_SHARES = 2 * (OFFLOAD_SHARES + 1) };

enum reach { REACH_NOTHING, REACH_STATE, REACH_ALL, REACHES };

struct space {
    const struct plan_request *request;
    enum reach reach;
    struct place places[SPACE_PLACES]; /* those with a share */
    int nplaces;
    struct share_list {
        struct share items[SPACE_SHARES];
        int count;
    } shares[SPACE_PLACES];
    int64_t micros[SPACE_MICROS]; /* descending */
    int nmicros;
    struct recompute_choice {
        int64_t policy, full_layers;
    } * recompute;
    int nrecompute;
};

enum axis_kind { AXIS_EACH, AXIS_ORDERED, AXIS_BEST };

struct axis {
    const char *name;
    enum axis_kind kind;
    bool fills_host; /* costlier values take more of the host */
    int (*count)(const struct space *, const struct point *);
    int (*kink)(const struct space *, const struct point *); /* see space_kink; NULL: there is none */
    void (*apply)(const struct space *, const struct point *, struct knobs *);
};
extern const struct axis space_axes[AXES];

/* PLIM_BAD_INPUT when a pinned micro-batch does not divide the batch. */
enum plim_status space_init(struct space *space, const struct plan_request *request, struct plim_error *err);
void space_release(struct space *space);

/* Values of an axis at a point; 0: the place or micro-batch there allows none. */
int space_count(const struct space *space, enum axis_id axis, const struct point *point);

/* Where from a point on, along an axis, a step begins to save and cost differently: the last value is one, too. */
int space_kink(const struct space *space, enum axis_id axis, const struct point *point);

/* The value of AXIS_SHARE at another place that offloads as much as a point does; where there is none, the next that offloads more. */
int space_share(const struct space *space, const struct point *point, int place);

struct knobs space_knobs(const struct space *space, const struct point *point);

/* The smallest reach that holds a point. */
enum reach space_reach(const struct space *space, const struct point *point);

/* The same point with nothing offloaded that no pin asks for. */
struct point space_at_home(const struct space *space, const struct point *point);

/* The most slices a loss of so many rows is cut into. */
int64_t space_finest_cut(const struct plan_request *request, int64_t micro_batch);

#endif
