/* search_internal.h - shared by search.c, search_ask.c, search_polish.c and search_clash.c: boxes, the best
 * plan so far, and queries. */
#pragma once

#include "plan/oracle.h"
#include "plan/search.h"

struct box {
    struct point lo, hi;
    double bound;                               /* seconds: no plan in the box is faster */
    enum { BOX_NEW, BOX_TIMED, BOX_CUT } stage; /* its free corner is timed; its ranges are cut */
};

struct candidate {
    bool found;
    struct point point;
    struct knobs knobs;
    double value, weight; /* value: seconds x search_doubt; weight: also counts preferences */
};

enum { UNPACKED_MOST = 8 };

struct search {
    const struct plan_request *request;
    const int *order; /* of the axes */
    struct space space;
    enum turn turn; /* of the places that are opened */
    struct oracle oracle;
    int64_t allowed; /* bytes; below the budget if packing exceeded its bound */
    struct box *boxes;
    int nboxes, cap;
    struct candidate best;
    struct knobs unpacked[UNPACKED_MOST]; /* their bound fits, but their packing did not */
    int nunpacked;
    int64_t until; /* the oracle's work at which the search, or polishing, ends once something fits */
    double place_bound[SPACE_PLACES]; /* seconds; INFINITY: nothing fits there */
    double dropped;                   /* lowest value of a box that was dropped without examination */
    struct nearest {
        bool found;
        struct point point;
        struct knobs knobs;
        bool holds; /* it fits the device's budget */
        struct plan_bound bound;
    } nearest; /* the nearest miss: where to continue if nothing fits, and for the message */
    struct plim_error *err;
};

/* Correction factor for predictions before plans are compared. The clock is off by 4 to 8 % where tensors leave the
 * device, and by 5 % in the other direction where none does (docs/design/planner.md). */
static inline double search_doubt(enum reach reach)
{
    static const double doubts[REACHES] = {1, PLAN_DOUBT, PLAN_DOUBT * PLAN_DOUBT};
    return doubts[reach];
}

/* Seconds that a plan must beat at the current reach. */
static inline double search_goal(const struct search *s)
{
    return s->best.value / search_doubt(s->space.reach);
}

static inline bool axis_is_ordered(int axis) { return space_axes[axis].kind == AXIS_ORDERED; }

/* True if the work is used up and the search must end with the best plan so far. */
static inline bool search_is_spent(const struct search *s)
{
    return s->best.found && s->oracle.work >= s->until;
}

/* Compares the values of the axes in turn: negative, 0 or positive. */
int point_order(const struct point *a, const struct point *b);

/* True if this point, or one near it, may fit. */
bool search_may_fit(const struct search *s, const struct plan_bound *b);

/* Bytes and seconds of a point; a point that fits becomes a candidate for the best plan. */
enum plim_status search_ask(struct search *s, const struct point *p, struct plan_bound *out);
/* Device bytes at a point, with the values of AXIS_BEST that need least. */
enum plim_status search_ask_tight(struct search *s, struct point p, struct plan_bound *out);
/* Seconds at a point with the fastest values of AXIS_BEST, whether it fits or not. */
enum plim_status search_ask_seconds(struct search *s, struct point p, double *out);
/* Tries every value of AXIS_BEST at a point that may fit; those that fit become candidates for the best
 * plan. */
enum plim_status search_settle(struct search *s, struct point p);
/* Runs search_settle at the first point along an axis that fits. The point at hi must fit. */
enum plim_status search_settle_along(struct search *s, struct point p, int axis, int lo, int hi);

/* The point with the latest prefetching, which needs the least memory. */
struct point search_latest(const struct search *s, struct point p);
/* Seconds at a point with the best prefetching, whether it fits or not; bound: only as precise as a bound
 * requires. */
enum plim_status search_ask_prefetches(struct search *s, struct point p, bool bound, double *out);
/* True if the next updater is worth trying, given the seconds of the current one (`here`) and of the one
 * before (`last`). */
bool search_is_downhill(const struct search *s, const struct point *p, double last, double here);
/* Records that nothing faster than this many seconds was looked for at the current reach. */
static inline void search_drop(struct search *s, double seconds)
{
    double value = seconds * search_doubt(s->space.reach);
    if (value < s->dropped) s->dropped = value;
}
/* Seconds that a box must promise to beat. */
double search_cutoff(const struct search *s);

/* Bytes above a limit at a point; 0 or negative: it may fit. */
typedef enum plim_status line_question(struct search *s, struct point p, double *above);
line_question search_above_device, search_above_host;
/* How far an axis can go from `good`, where a point is within a limit, towards `end`. */
enum plim_status search_reach(struct search *s, struct point p, int axis, int good, int end,
                              line_question *above, int *out);

/* PLIM_BAD_INPUT: nothing can be planned; err names the keys that exclude each other (search_clash.c). */
enum plim_status search_name_clash(const struct plan_request *request, struct plim_error *err);

/* Makes the best plan faster by small changes (search_polish.c). */
enum plim_status search_polish(struct search *s);
