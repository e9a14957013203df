/* search_internal.h - what search.c, search_ask.c, search_polish.c and search_clash.c share: boxes, the best plan so far, and the questions asked. */
#ifndef PLIM_PLAN_SEARCH_INTERNAL_H
#define PLIM_PLAN_SEARCH_INTERNAL_H

#include "plan/oracle.h"
#include "plan/search.h"

struct box {
    struct point lo, hi;
    double bound;                               /* seconds: nothing in the box is faster */
    enum { BOX_NEW, BOX_TIMED, BOX_CUT } stage; /* its free corner is timed; its ranges are cut */
};

struct candidate {
    bool found;
    struct point point;
    struct knobs knobs;
    double value, weight; /* value: seconds x search_doubt; weight: the same with the preferences counted */
};

enum { UNPACKED_MOST = 8 };

struct search {
    const struct plan_request *request;
    const int *order; /* of the axes */
    struct space space;
    struct oracle oracle;
    int64_t allowed; /* bytes; below the budget when packing needed more than its bound */
    struct box *boxes;
    int nboxes, cap;
    struct candidate best;
    struct knobs unpacked[UNPACKED_MOST]; /* their bound fits, their packing did not */
    int nunpacked;
    int64_t until; /* work of the oracle at which the search, or polishing, ends once something fits */
    double place_bound[SPACE_PLACES]; /* seconds; INFINITY: nothing there fits */
    double dropped;                   /* the least value of a box that was dropped unseen */
    bool has_smallest;
    struct point smallest_point; /* the nearest miss: where to look when nothing fits, and for the message */
    struct knobs smallest;
    bool smallest_holds; /* the device's line */
    struct plan_bound smallest_bound;
    struct plim_error *err;
};

/* Correction factor for predictions before plans are compared. The clock is off by 4 to 8 % where tensors leave the
 * device, and by 5 % in the other direction where none does (docs/design/planner.md). */
static inline double search_doubt(enum reach reach)
{
    static const double doubts[REACHES] = {1, PLAN_DOUBT, PLAN_DOUBT * PLAN_DOUBT};
    return doubts[reach];
}

/* Seconds that a plan must beat at the present reach. */
static inline double search_goal(const struct search *s)
{
    return s->best.value / search_doubt(s->space.reach);
}

static inline bool axis_is_ordered(int axis) { return space_axes[axis].kind == AXIS_ORDERED; }

/* The work is done: what has begun is ended with what is known. */
static inline bool search_is_spent(const struct search *s)
{
    return s->best.found && s->oracle.work >= s->until;
}

/* By the values of the axes in turn: negative, 0 or positive. */
int point_order(const struct point *a, const struct point *b);

/* May it, or something near it, fit? */
bool search_may_fit(const struct search *s, const struct plan_bound *b);

/* Bytes and seconds of a point; whatever fits is a candidate for the best plan. */
enum plim_status search_ask(struct search *s, const struct point *p, struct plan_bound *out);
/* Bytes of the device at a point, with the values of AXIS_BEST that take least. */
enum plim_status search_ask_tight(struct search *s, struct point p, struct plan_bound *out);
/* Seconds at a point with the values of AXIS_BEST that are fastest, whether it fits or not. */
enum plim_status search_ask_seconds(struct search *s, struct point p, double *out);
/* Every value of AXIS_BEST at a point that may fit: whatever does is a candidate for the best plan. */
enum plim_status search_settle(struct search *s, struct point p);
/* Runs search_settle at the first point along an axis that fits. The point at hi must fit. */
enum plim_status search_settle_along(struct search *s, struct point p, int axis, int lo, int hi);

/* The point with the latest prefetching, which takes least. */
struct point search_latest(const struct search *s, struct point p);
/* Seconds at a point with the best prefetching, whether it fits or not; bound: as far as a bound needs to know them. */
enum plim_status search_ask_prefetches(struct search *s, struct point p, bool bound, double *out);
/* Is the updater behind one that takes `here`, and that one behind one of `last`, worth to be asked? */
bool search_is_downhill(const struct search *s, const struct point *p, double last, double here);
/* Notes that nothing faster than so many seconds was looked for at the present reach. */
static inline void search_drop(struct search *s, double seconds)
{
    double value = seconds * search_doubt(s->space.reach);
    if (value < s->dropped) s->dropped = value;
}
/* Seconds that a box must promise to beat. */
double search_cutoff(const struct search *s);

/* Bytes above a line at a point; none or fewer: it may hold. */
typedef enum plim_status line_question(struct search *s, struct point p, double *above);
line_question search_above_device, search_above_host;
/* How far from `good`, where a point holds a line, an axis can go towards `end`. */
enum plim_status search_reach(struct search *s, struct point p, int axis, int good, int end,
                              line_question *above, int *out);

/* PLIM_BAD_INPUT: nothing can be planned, and the keys that exclude each other are in err (search_clash.c). */
enum plim_status search_name_clash(const struct plan_request *request, struct plim_error *err);

/* Makes the best plan faster by small changes (search_polish.c). */
enum plim_status search_polish(struct search *s);

#endif
