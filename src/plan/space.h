/* space.h - the search space: one table with a row per axis.
 *
 *     struct space space;
 *     space_init(&space, &request, &err);
 *     struct point p = {0};                                  // the free end of every axis
 *     for (p.at[AXIS_MICRO] = 0; p.at[AXIS_MICRO] < space_count(&space, AXIS_MICRO, &p); p.at[AXIS_MICRO]++)
 *         use(space_knobs(&space, &p));
 *
 * A point has one value per axis, by number, from free to costly. A row says how many values exist at a point (pins
 * leave one), how a value becomes knobs, and what the search may rely on:
 *
 *     AXIS_EACH     values have no order: each is examined
 *     AXIS_ORDERED  a costlier value takes no more device bytes and no less time
 *     AXIS_BEST     a handful of values; the best at a point is taken
 *
 * A new technique adds a row here and nothing to the search.
 *
 * The search uses free device memory first. space.reach limits what may leave the device beyond the pins, and the
 * search widens it step by step: nothing; optimizer state and activations; parameters and gradients. A point keeps
 * its numbers when the reach changes; only the counts grow.
 */
#pragma once

#include "plan/plan.h"

enum axis_id {
    AXIS_PLACE,       /* where gradients wait, where in a step the update runs, and what is sharded */
    AXIS_MICRO,       /* micro-batch: divisors of the effective batch, the largest first */
    AXIS_RECOMPUTE,   /* none, selective, selective and 1, 2, ... layers in full, full */
    AXIS_CHUNKS,      /* slices of the loss: 1, 2, 4, ... */
    AXIS_ACTIVATIONS, /* layers whose activations are offloaded */
    AXIS_SHARE,       /* how much of the state, and then of the parameters, is offloaded */
    AXIS_UPDATER,     /* how much of offloaded state the host's CPU updates */
    AXIS_FP8,         /* weights as fp8 numbers: kept for the step, made for each product */
    AXIS_PREFETCH,    /* how early offloaded parameters and gradients are fetched */
    AXES
};

struct point {
    int at[AXES];
};

struct place {
    enum tier grad;
    bool inside;  /* the optimizer runs inside backward */
    bool forward; /* or inside the next step's forward */
    bool before;  /* and of that, the host's part during backward, before the norm is known */
    enum zero zero;
};

/* Slices out of OFFLOAD_SHARES. */
struct share {
    int state, param;
};

enum { SPACE_PLACES = 8 * ZERO_COUNT, SPACE_MICROS = 24, SPACE_SHARES = 2 * (OFFLOAD_SHARES + 1) };

/* Things that may leave the device: none; state or activations; parameters and gradients too, without activations; everything at once,
 * where nothing else fits. */
enum reach { REACH_NOTHING, REACH_STATE, REACH_ALL, REACH_TOGETHER, REACHES };

struct space {
    const struct plan_request *request;
    enum reach reach;
    struct place places[SPACE_PLACES]; /* each with its list of shares */
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
    bool fills_host; /* costlier values use more host memory */
    int (*count)(const struct space *, const struct point *);
    int (*kink)(const struct space *, const struct point *); /* see space_kink; NULL: there is none */
    void (*apply)(const struct space *, const struct point *, struct knobs *);
};
extern const struct axis space_axes[AXES];

/* PLIM_BAD_INPUT when a pinned micro-batch does not divide the batch. */
enum plim_status space_init(struct space *space, const struct plan_request *request, struct plim_error *err);
void space_release(struct space *space);

/* Number of values of an axis at a point; 0: the place or micro-batch allows none. */
int space_count(const struct space *space, enum axis_id axis, const struct point *point);

/* The next value along an axis at which savings and cost change; the last value counts as one. */
int space_kink(const struct space *space, enum axis_id axis, const struct point *point);

/* The value of AXIS_SHARE at another place that offloads as much as the point; else the next that offloads more. */
int space_share(const struct space *space, const struct point *point, int place);

struct knobs space_knobs(const struct space *space, const struct point *point);

/* Smallest reach that contains a point. */
enum reach space_reach(const struct space *space, const struct point *point);

/* True if updates can wait for the next step's forward. */
bool space_can_defer(const struct plan_request *request);

/* When the search looks into this place: updates inside the next step's forward last, and behind those the ones before the norm,
 * unless they are pinned. */
enum turn { TURN_FIRST, TURN_FORWARD, TURN_BEFORE, TURNS };
enum turn space_turn(const struct space *space, int place);

/* True if updates in this place run inside the loop: inside backward or forward. */
bool space_inside(const struct space *space, int place);

/* Returns the point with nothing offloaded except where a pin requires it. */
struct point space_at_home(const struct space *space, const struct point *point);

/* Maximum number of loss slices for this many rows. */
int64_t space_finest_cut(const struct plan_request *request, int64_t micro_batch);
