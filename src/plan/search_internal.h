/* search_internal.h - what search.c and search_polish.c share: boxes, the best plan so far, and the questions asked. */
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
    double seconds, weight; /* weight: seconds with the preferences counted */
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
    int64_t polish_until; /* the oracle has done so much work */
    double dropped;       /* the least bound of a box that was dropped unseen */
    bool has_smallest;
    struct point smallest_point; /* the nearest miss: where to look when nothing fits, and for the message */
    struct knobs smallest;
    bool smallest_holds; /* the device's line */
    struct plan_bound smallest_bound;
    struct plim_error *err;
};

static inline bool axis_is_ordered(int axis) { return space_axes[axis].kind == AXIS_ORDERED; }

/* By the values of the axes in turn: negative, 0 or positive. */
int point_order(const struct point *a, const struct point *b);

/* May it, or something near it, fit? */
bool search_may_fit(const struct search *s, const struct plan_bound *b);

/* Bytes of the device at a point, with the values of AXIS_BEST that take least. */
enum plim_status search_ask_tight(struct search *s, struct point p, struct plan_bound *out);
/* Seconds at a point with the values of AXIS_BEST that are fastest, whether it fits or not. */
enum plim_status search_ask_seconds(struct search *s, struct point p, double *out);
/* Every value of AXIS_BEST at a point that may fit: whatever does is a candidate for the best plan. */
enum plim_status search_settle(struct search *s, struct point p);
/* The same where, along an axis, a point begins to fit; it does at hi. */
enum plim_status search_settle_along(struct search *s, struct point p, int axis, int lo, int hi);

/* Makes the best plan faster by small changes (search_polish.c). */
enum plim_status search_polish(struct search *s);

#endif
