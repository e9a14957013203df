/* search.c - the fastest predicted plan that fits the budget: best-first branch and bound over the axes of space.c.
 *
 * A box is a place, a micro-batch and a range of each ordered axis. Its tight corner, every axis at its costly end, takes
 * least of the device: where that does not fit, nothing in the box does. Its free corner is fastest: where that is no
 * faster than the best plan so far, nothing in the box is. Ranges are cut to what can fit at all before time is asked,
 * which is what makes the bound of a box sharp. What remains is halved along the axis that moves time most.
 *
 * Invariants
 *  1. `best` fits both lines, and no box that was dropped can beat it by more than GAP (as far as axes are ordered).
 *  2. What is chosen depends on bytes and seconds alone: every choice between axes or boxes is made by value, ties by the
 *     axis' or point's own number, so the order of the table's rows does not matter.
 *  3. Work is counted in ops of tapes built, never in time: the same request gives the same plan on every machine.
 */
#include "plan/search.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "plan/search_internal.h"

#include <malloc.h>
#include <math.h>
#include <stdlib.h>

/* A box that promises less than this is dropped; after PLAN_PATIENCE of work more is asked of it. With what preferences
 * cost at most it is below the 0.1 % by which more memory may be slower. */
#define GAP 0.0008

/* A plan that offloads more, or that hides the gradient norm people watch, must be faster by this share per step. */
#define PREFERENCE 0.00003

#define SHARE_STEP 4 /* in which the times of updates are looked at for a bound */

/* --- asking ------------------------------------------------------------------------------------------------ */

/* The nearest miss: what holds the device's line and takes least of the host, else what takes least of the device. */
static void note_miss(struct search *s, const struct point *p, const struct knobs *k,
                      const struct plan_bound *b)
{
    bool holds = b->total <= s->request->budget;
    int64_t takes = holds ? b->host : b->total;
    int64_t least = s->smallest_holds ? s->smallest_bound.host : s->smallest_bound.total;
    bool nearer = takes < least || (takes == least && b->total < s->smallest_bound.total);
    if (holds != s->smallest_holds) nearer = holds;
    if (s->has_smallest && !nearer) return;
    s->has_smallest = true, s->smallest_point = *p, s->smallest = *k;
    s->smallest_holds = holds, s->smallest_bound = *b;
}

static bool within(const struct search *s, const struct plan_bound *b)
{
    return b->total <= s->allowed && plan_within(s->request, b->total, b->host);
}

/* May it, or something near it, fit? A plan's own data structures are small beside what is offloaded, but their size jumps
 * from value to value: bounds leave them out of the host's line. */
bool search_may_fit(const struct search *s, const struct plan_bound *b)
{
    bool limited = s->request->host_budget > 0 && !s->request->facts->unified_memory;
    return b->total <= s->allowed && (!limited || b->host - b->own <= s->request->host_budget);
}

static enum plim_status ask(struct search *s, const struct point *p, struct plan_bound *out)
{
    struct knobs k = space_knobs(&s->space, p);
    enum plim_status status = oracle_ask(&s->oracle, &k, out, s->err);
    if (status == PLIM_OK && !within(s, out)) note_miss(s, p, &k, out);
    return status;
}

/* Bytes of the device at a point with the updater that takes least: all updates by the host or none. */
static enum plim_status ask_updaters(struct search *s, struct point p, struct plan_bound *out)
{
    enum { EXTREMES = 2 };
    int updaters = space_count(&s->space, AXIS_UPDATER, &p);
    enum plim_status status = PLIM_OK;
    for (int u = 0; u < updaters && u < EXTREMES && status == PLIM_OK; u++) {
        struct plan_bound b;
        p.at[AXIS_UPDATER] = u;
        status = ask(s, &p, &b);
        if (u == 0 || b.total < out->total || search_may_fit(s, &b)) *out = b;
        if (search_may_fit(s, out)) break;
    }
    return status;
}

/* The same with the latest prefetching, which takes least. */
enum plim_status search_ask_tight(struct search *s, struct point p, struct plan_bound *out)
{
    p.at[AXIS_PREFETCH] = space_count(&s->space, AXIS_PREFETCH, &p) - 1;
    return ask_updaters(s, p, out);
}

/* Seconds at a point with the best prefetching, whether it fits or not. */
static enum plim_status ask_prefetches(struct search *s, struct point p, double *out)
{
    enum plim_status status = PLIM_OK;
    *out = INFINITY;
    for (int f = 0; f < space_count(&s->space, AXIS_PREFETCH, &p) && status == PLIM_OK; f++) {
        struct plan_bound b;
        p.at[AXIS_PREFETCH] = f;
        status = ask(s, &p, &b);
        if (status == PLIM_OK) *out = fmin(*out, b.step_seconds);
    }
    return status;
}

/* The same with the best updater too. */
enum plim_status search_ask_seconds(struct search *s, struct point p, double *out)
{
    enum plim_status status = PLIM_OK;
    *out = INFINITY;
    for (int u = 0; u < space_count(&s->space, AXIS_UPDATER, &p) && status == PLIM_OK; u++) {
        double seconds;
        p.at[AXIS_UPDATER] = u;
        status = ask_prefetches(s, p, &seconds);
        if (status == PLIM_OK) *out = fmin(*out, seconds);
    }
    return status;
}

static bool knobs_before(const struct knobs *a, const struct knobs *b)
{
    for (int i = 0; i < KNOB_COUNT; i++)
        if (knob_get(a, i) != knob_get(b, i)) return knob_get(a, i) < knob_get(b, i);
    return false;
}

static void consider(struct search *s, const struct point *p, const struct knobs *k, double seconds)
{
    int steps = (k->state_tier != TIER_DEVICE) + (k->grad_tier != TIER_DEVICE) +
                (k->param_tier != TIER_DEVICE) + (k->offload_layers > 0) + (k->optimizer_in_backward != 0);
    double weight = seconds * (1 + PREFERENCE * steps);
    for (int i = 0; i < s->nunpacked; i++)
        if (knobs_equal(&s->unpacked[i], k)) return;
    bool better = weight < s->best.weight || (weight == s->best.weight && knobs_before(k, &s->best.knobs));
    if (!s->best.found || better) s->best = (struct candidate){true, *p, *k, seconds, weight};
}

/* Every value of AXIS_BEST at a point: those that fit are candidates. */
enum plim_status search_settle(struct search *s, struct point p, bool *fits)
{
    struct plan_bound tight;
    enum plim_status known = search_ask_tight(s, p, &tight);
    *fits = false;
    if (known != PLIM_OK || !search_may_fit(s, &tight)) return known;
    for (int f = 0; f < space_count(&s->space, AXIS_PREFETCH, &p); f++)
        for (int u = 0; u < space_count(&s->space, AXIS_UPDATER, &p); u++) {
            struct plan_bound b;
            p.at[AXIS_PREFETCH] = f, p.at[AXIS_UPDATER] = u;
            enum plim_status status = ask(s, &p, &b);
            if (status != PLIM_OK) return status;
            if (!within(s, &b)) continue;
            struct knobs k = space_knobs(&s->space, &p);
            consider(s, &p, &k, b.step_seconds);
            *fits = true;
        }
    return PLIM_OK;
}

/* --- boxes --------------------------------------------------------------------------------------------------- */

int point_order(const struct point *a, const struct point *b)
{
    for (int i = 0; i < AXES; i++)
        if (a->at[i] != b->at[i]) return a->at[i] - b->at[i];
    return 0;
}

/* Seconds that a box must promise to beat: the more work is spent, the more it must promise. */
static double cutoff(const struct search *s)
{
    double spent = fmax(1, (double)s->oracle.work / PLAN_PATIENCE);
    return s->best.found ? s->best.seconds * (1 - GAP * spent * spent) : INFINITY;
}

/* Its bound, or when patience is over what is really to be expected of it, must beat the best. */
static bool is_worth(const struct search *s, const struct box *box)
{
    return (s->oracle.work < PLAN_PATIENCE ? box->bound : box->hope) < cutoff(s);
}

static enum plim_status push(struct search *s, const struct box *box)
{
    if (s->nboxes == s->cap) {
        int cap = s->cap ? 2 * s->cap : 64;
        struct box *more = realloc(s->boxes, (size_t)cap * sizeof *more);
        if (!more) return plim_fail(s->err, PLIM_NO_MEMORY, "out of memory while plans were compared");
        s->boxes = more, s->cap = cap;
    }
    s->boxes[s->nboxes++] = *box;
    return PLIM_OK;
}

/* The most promising box. */
static struct box pop(struct search *s)
{
    int at = 0;
    for (int i = 1; i < s->nboxes; i++) {
        const struct box *a = &s->boxes[i], *b = &s->boxes[at];
        if (a->hope < b->hope || (a->hope == b->hope && point_order(&a->lo, &b->lo) < 0)) at = i;
    }
    struct box box = s->boxes[at];
    s->boxes[at] = s->boxes[--s->nboxes];
    return box;
}

/* The least value in [lo, hi] of an axis with which `p` fits, with its prefetching; it does with hi. Bytes fall about
 * evenly, so values are guessed from them. */
static enum plim_status least_as_it_is(struct search *s, struct point p, int axis, int lo, int hi, int *out)
{
    struct plan_bound low, high, mid;
    p.at[axis] = lo;
    enum plim_status status = ask_updaters(s, p, &low);
    if (status == PLIM_OK && search_may_fit(s, &low)) hi = lo;
    p.at[axis] = hi;
    if (status == PLIM_OK && lo < hi) status = ask_updaters(s, p, &high);
    for (bool guess = true; status == PLIM_OK && hi - lo > 1; guess = !guess) {
        double part = (double)(low.total - s->allowed) / (double)(low.total - high.total + 1);
        int at = guess && part > 0 && part < 1 ? lo + (int)ceil(part * (hi - lo)) : (lo + hi) / 2;
        p.at[axis] = at <= lo ? lo + 1 : at >= hi ? hi - 1 : at;
        status = ask_updaters(s, p, &mid);
        if (search_may_fit(s, &mid))
            hi = p.at[axis], high = mid;
        else
            lo = p.at[axis], low = mid;
    }
    *out = hi;
    return status;
}

/* The same with the latest prefetching. */
static enum plim_status least_fitting(struct search *s, struct point p, int axis, int lo, int hi, int *out)
{
    p.at[AXIS_PREFETCH] = space_count(&s->space, AXIS_PREFETCH, &p) - 1;
    return least_as_it_is(s, p, axis, lo, hi, out);
}

/* Candidates along an axis: the least values in [lo, hi] that fit, with late prefetching and with early, which takes more
 * and is faster. It fits with late prefetching at hi. */
enum plim_status search_settle_along(struct search *s, struct point p, int axis, int lo, int hi)
{
    struct point late = p;
    struct plan_bound b;
    bool fits;
    enum plim_status status = least_fitting(s, p, axis, lo, hi, &late.at[axis]);
    if (status == PLIM_OK) status = search_settle(s, late, &fits);
    if (status != PLIM_OK || space_count(&s->space, AXIS_PREFETCH, &late) == 1) return status;
    p.at[axis] = hi, p.at[AXIS_PREFETCH] = 0;
    status = ask_updaters(s, p, &b);
    if (status != PLIM_OK || !search_may_fit(s, &b)) return status;
    status = least_as_it_is(s, p, axis, late.at[axis], hi, &p.at[axis]);
    return status == PLIM_OK && p.at[axis] > late.at[axis] ? search_settle(s, p, &fits) : status;
}

/* Does the host's line hold at a point, with the updater that takes least of it? */
static enum plim_status ask_host(struct search *s, struct point p, bool *holds)
{
    enum plim_status status = PLIM_OK;
    *holds = false;
    for (int u = 0; u < space_count(&s->space, AXIS_UPDATER, &p) && !*holds && status == PLIM_OK; u++) {
        struct plan_bound b;
        p.at[AXIS_UPDATER] = u;
        status = ask(s, &p, &b);
        *holds = status == PLIM_OK && b.host - b.own <= s->request->host_budget;
    }
    return status;
}

/* Values that take more of the host than there is are cut off; false: even the free corner does. */
static enum plim_status cut_by_host(struct search *s, struct box *box, bool *holds)
{
    enum plim_status status = ask_host(s, box->lo, holds);
    for (int a = 0; a < AXES && *holds && status == PLIM_OK; a++) {
        if (!space_axes[a].fills_host || box->lo.at[a] == box->hi.at[a]) continue;
        struct point p = box->lo;
        int good = box->lo.at[a], bad = box->hi.at[a] + 1;
        while (bad - good > 1 && status == PLIM_OK) {
            bool fits;
            p.at[a] = bad == box->hi.at[a] + 1 ? bad - 1 : (good + bad) / 2;
            status = ask_host(s, p, &fits);
            *(fits ? &good : &bad) = p.at[a];
        }
        box->hi.at[a] = good;
    }
    return status;
}

/* The costly end of recomputation or of offloaded activations is not always the smallest: a layer that is recomputed is
 * whole for a moment, and what is offloaded comes back early. So there are several tight corners. */
enum { CORNERS = 4 };

static bool tight_corner(const struct box *box, int variant, struct point *out)
{
    static const int axes[] = {AXIS_RECOMPUTE, AXIS_ACTIVATIONS};
    bool other = variant == 0;
    *out = box->hi;
    for (int i = 0; i < 2; i++) {
        int a = axes[i], second = a == AXIS_RECOMPUTE ? 1 : box->lo.at[a];
        if (!(variant >> i & 1) || second < box->lo.at[a] || second >= box->hi.at[a]) continue;
        out->at[a] = second, other = true;
    }
    return other;
}

/* Each range begins where the axis alone can make it fit, all others at a tight end. False: nothing in the box fits. */
static enum plim_status shrink(struct search *s, struct box *box, bool *fits)
{
    struct point tight, lo = box->hi;
    enum plim_status status = PLIM_OK;
    *fits = true;
    if (!s->request->facts->unified_memory && s->request->host_budget) status = cut_by_host(s, box, fits);
    if (!*fits || status != PLIM_OK) return status;
    *fits = false;
    for (int variant = 0; variant < CORNERS && status == PLIM_OK; variant++) {
        struct plan_bound b;
        if (!tight_corner(box, variant, &tight)) continue;
        status = search_ask_tight(s, tight, &b);
        if (status != PLIM_OK || b.total / 2 > s->allowed) break; /* corners differ by less than that */
        if (!search_may_fit(s, &b)) continue;
        *fits = true;
        for (int i = 0; i < AXES && status == PLIM_OK; i++) {
            int a = s->order[i], least = box->lo.at[a];
            if (!axis_is_ordered(a)) continue;
            if (least < tight.at[a]) status = least_fitting(s, tight, a, least, tight.at[a], &least);
            if (least < lo.at[a]) lo.at[a] = least;
        }
    }
    for (int a = 0; a < AXES; a++)
        if (axis_is_ordered(a) && *fits) box->lo.at[a] = lo.at[a];
    return status;
}

/* --- branching ----------------------------------------------------------------------------------------------- */

/* What one axis at its costly end does to the free corner. */
struct push_out {
    bool moves, fits;
    double seconds;
    int64_t bytes;
};

static enum plim_status push_axis(struct search *s, const struct point *from, int axis, int to,
                                  struct push_out *out)
{
    struct point p = *from;
    struct plan_bound b;
    *out = (struct push_out){.moves = axis_is_ordered(axis) && from->at[axis] < to};
    if (!out->moves) return PLIM_OK;
    p.at[axis] = to;
    enum plim_status status = search_ask_tight(s, p, &b);
    out->fits = search_may_fit(s, &b), out->bytes = b.total;
    return status == PLIM_OK ? search_ask_seconds(s, p, &out->seconds) : status;
}

/* How far a dive goes along an axis at once. */
static int dive_end(const struct search *s, const struct box *box, const struct point *p, int axis)
{
    int kink = axis_is_ordered(axis) ? space_kink(&s->space, axis, p) : 0;
    return kink < box->hi.at[axis] ? kink : box->hi.at[axis];
}

/* Plans near the free corner: each axis alone as far as it must; where none is enough, the cheapest one to its end or to
 * where its price changes, and then the others. */
enum plim_status search_dive(struct search *s, const struct box *box)
{
    struct point p = box->lo;
    for (int round = 0; round < 2 * AXES; round++) {
        struct plan_bound here;
        double seconds;
        enum plim_status status = search_ask_tight(s, p, &here);
        if (status == PLIM_OK) status = search_ask_seconds(s, p, &seconds);
        int cheapest = -1;
        double least = INFINITY;
        bool enough = false;
        for (int i = 0; i < AXES && status == PLIM_OK; i++) {
            int a = s->order[i], end = dive_end(s, box, &p, a);
            struct push_out out;
            status = push_axis(s, &p, a, end, &out);
            if (status != PLIM_OK || !out.moves) continue;
            double price = (out.seconds - seconds) / fmax(1, (double)(here.total - out.bytes));
            if (here.total > out.bytes && (price < least || (price == least && a < cheapest)))
                least = price, cheapest = a;
            if (!out.fits) continue;
            enough = true;
            status = search_settle_along(s, p, a, p.at[a], end);
        }
        if (status != PLIM_OK || enough || cheapest < 0) return status;
        p.at[cheapest] = dive_end(s, box, &p, cheapest);
    }
    return PLIM_OK;
}

/* The axis whose range moves time most is halved. What the box lacks at the price of its cheapest axis is what it may hope
 * for. */
static enum plim_status branch(struct search *s, const struct box *box)
{
    int axis = -1;
    double most = -1, price = INFINITY;
    struct plan_bound free;
    enum plim_status status = search_ask_tight(s, box->lo, &free);
    for (int i = 0; i < AXES && status == PLIM_OK; i++) {
        int a = s->order[i];
        struct push_out out;
        status = push_axis(s, &box->lo, a, box->hi.at[a], &out);
        if (status != PLIM_OK || !out.moves) continue;
        double moves = out.seconds - box->bound;
        if (moves > most || (moves == most && a < axis)) most = moves, axis = a;
        if (out.bytes < free.total) price = fmin(price, fmax(0, moves) / (double)(free.total - out.bytes));
    }
    if (axis < 0 || status != PLIM_OK) return status;
    int mid = (box->lo.at[axis] + box->hi.at[axis]) / 2;
    struct box low = *box, high = *box;
    double lacks = fmax(0, (double)(free.total - s->allowed));
    low.hope = high.hope = box->bound + (isfinite(price) ? price * lacks : 0);
    low.hi.at[axis] = mid, high.lo.at[axis] = mid + 1;
    low.stage = high.stage = BOX_TIMED;
    status = push(s, &low);
    return status == PLIM_OK ? push(s, &high) : status;
}

/* The least time of an update with a share in the box's range, looked at in steps: more on the host can be faster, where
 * the CPU there updates beside the device or saves the way back. */
static enum plim_status least_update(struct search *s, const struct box *box, double *out)
{
    struct point p = box->lo;
    enum plim_status status = PLIM_OK;
    *out = INFINITY;
    for (int at = box->lo.at[AXIS_SHARE]; status == PLIM_OK;) {
        p.at[AXIS_SHARE] = at;
        for (int u = 0; u < space_count(&s->space, AXIS_UPDATER, &p) && status == PLIM_OK; u++) {
            double seconds = INFINITY;
            p.at[AXIS_UPDATER] = u;
            struct knobs k = space_knobs(&s->space, &p);
            status = oracle_update_seconds(&s->oracle, &k, &seconds, s->err);
            *out = fmin(*out, seconds);
        }
        p.at[AXIS_UPDATER] = 0;
        if (at == box->hi.at[AXIS_SHARE]) break;
        at = at + SHARE_STEP - at % SHARE_STEP;
        if (at > box->hi.at[AXIS_SHARE]) at = box->hi.at[AXIS_SHARE];
    }
    return status;
}

/* The same where updates run inside backward. No lane can have less to do than loop and update have by themselves: that
 * costs little to know. Exactly, each is timed with the rest of the free corner, as long as its lanes leave hope. */
enum plim_status search_least_inside(struct search *s, const struct box *box, bool exactly, double *out)
{
    struct promise {
        struct point point;
        double least;
    } all[4 * (SPACE_SHARES / SHARE_STEP + 2)];
    int count = 0;
    struct point p = box->lo;
    enum plim_status status = PLIM_OK;
    *out = INFINITY;
    for (; p.at[AXIS_SHARE] <= box->hi.at[AXIS_SHARE];
         p.at[AXIS_SHARE] += SHARE_STEP - p.at[AXIS_SHARE] % SHARE_STEP)
        for (p.at[AXIS_UPDATER] = 0; p.at[AXIS_UPDATER] < space_count(&s->space, AXIS_UPDATER, &p);
             p.at[AXIS_UPDATER]++) {
            struct knobs k = space_knobs(&s->space, &p);
            struct promise *it = &all[count++];
            it->point = p;
            status = oracle_least_inside(&s->oracle, &k, &it->least, s->err);
            if (status != PLIM_OK) return status;
            if (!exactly) *out = fmin(*out, it->least);
        }
    while (exactly && status == PLIM_OK) {
        int next = 0;
        double seconds;
        for (int i = 1; i < count; i++)
            if (all[i].least < all[next].least) next = i;
        if (all[next].least >= *out) break;
        status = ask_prefetches(s, all[next].point, &seconds);
        *out = fmin(*out, seconds);
        all[next].least = INFINITY;
    }
    return status;
}

/* The bound of a box: its free corner with the fastest update of its range. */
static enum plim_status time_box(struct search *s, struct box *box)
{
    double here = 0, least = 0, first = 0;
    enum plim_status status;
    if (s->space.places[box->lo.at[AXIS_PLACE]].inside) {
        status = search_least_inside(s, box, box->stage != BOX_NEW, &here);
    } else {
        struct box one = *box;
        one.hi.at[AXIS_SHARE] = one.lo.at[AXIS_SHARE];
        status = search_ask_seconds(s, box->lo, &here);
        if (status == PLIM_OK) status = least_update(s, &one, &first);
        if (status == PLIM_OK) status = least_update(s, box, &least);
    }
    box->bound = here - first + least;
    box->hope = fmax(box->hope, box->bound);
    return status;
}

/* Cuts a box to what can fit; *open: something may. */
enum plim_status search_cut(struct search *s, struct box *box, bool *open)
{
    bool fits;
    enum plim_status status = shrink(s, box, &fits);
    *open = fits;
    if (status != PLIM_OK || !fits) return status;
    status = time_box(s, box);
    if (status == PLIM_OK) status = search_settle(s, box->lo, &fits);
    *open = box->bound < cutoff(s) && point_order(&box->lo, &box->hi) != 0;
    return status;
}

/* One stage of a box at a time: between two of them a box that promises more may come first. */
static enum plim_status look_into(struct search *s, struct box box)
{
    bool open = true;
    enum plim_status status = PLIM_OK;
    if (box.stage == BOX_NEW)
        status = time_box(s, &box);
    else if (box.stage == BOX_TIMED)
        status = search_cut(s, &box, &open);
    else
        status = search_dive(s, &box);
    if (status != PLIM_OK || !open) return status;
    if (box.stage == BOX_CUT) return branch(s, &box);
    box.stage++;
    return push(s, &box);
}

/* --- when nothing fits ------------------------------------------------------------------------------------------ */

/* From the nearest miss one axis at a time to where it takes less, until something fits or nothing takes less. Bytes are
 * not quite ordered either, and a plan that exists is to be found. */
static enum plim_status squeeze(struct search *s)
{
    static const int steps[] = {-64, -4, -2, -1, 1, 2, 4, 64};
    enum plim_status status = PLIM_OK;
    bool nearer = s->has_smallest, fits = false;
    while (nearer && !fits && status == PLIM_OK) {
        struct point from = s->smallest_point;
        for (int i = 0; i < AXES && !fits; i++)
            for (size_t k = 0; k < sizeof steps / sizeof *steps && !fits && status == PLIM_OK; k++) {
                struct point p = from;
                struct plan_bound b;
                int a = s->order[i], last = space_count(&s->space, a, &p) - 1;
                p.at[a] += steps[k];
                p.at[a] = p.at[a] < 0 ? 0 : p.at[a] > last ? last : p.at[a];
                for (int other = 0; other < AXES;
                     other++) { /* places and micro-batches have ranges of their own */
                    int most = space_count(&s->space, other, &p) - 1;
                    if (p.at[other] > most) p.at[other] = most;
                }
                if (p.at[AXIS_MICRO] < 0 || !point_order(&p, &from)) continue;
                status = ask(s, &p, &b);
                if (status == PLIM_OK && within(s, &b)) status = search_settle(s, p, &fits);
            }
        nearer = point_order(&from, &s->smallest_point) != 0;
    }
    return status;
}

/* --- the search ---------------------------------------------------------------------------------------------- */

/* Where a box begins and ends, along the axes by which boxes are opened. */
struct range {
    int first, last;
};

/* A box in one place; its first bound is the time of a loop with nothing offloaded or recomputed. */
static enum plim_status open_box(struct search *s, int place, struct range micros, struct range activations,
                                 struct range recompute)
{
    struct box box = {0};
    struct plan_bound b;
    double update = 0;
    struct knobs free = knobs_naive(s->request);
    box.lo.at[AXIS_PLACE] = place, box.lo.at[AXIS_MICRO] = micros.first;
    box.hi = box.lo;
    for (int a = 0; a < AXES; a++)
        if (axis_is_ordered(a)) box.hi.at[a] = space_count(&s->space, a, &box.lo) - 1;
    box.hi.at[AXIS_MICRO] = micros.last;
    box.lo.at[AXIS_ACTIVATIONS] = activations.first, box.hi.at[AXIS_ACTIVATIONS] = activations.last;
    box.lo.at[AXIS_RECOMPUTE] = recompute.first, box.hi.at[AXIS_RECOMPUTE] = recompute.last;
    free.micro_batch = s->space.micros[micros.first], free.accumulation = s->request->rows / free.micro_batch;
    enum plim_status status = oracle_ask(&s->oracle, &free, &b, s->err);
    if (status == PLIM_OK) status = oracle_update_seconds(&s->oracle, &free, &update, s->err);
    box.bound = b.step_seconds - update, box.hope = b.step_seconds;
    return status == PLIM_OK ? push(s, &box) : status;
}

/* The less a policy keeps of a layer, the less of it is offloaded: where layers are, each policy is by itself. */
static enum plim_status open_policies(struct search *s, int place, struct range micros,
                                      struct range activations)
{
    const struct recompute_choice *list = s->space.recompute;
    int count = s->space.nrecompute;
    enum plim_status status = PLIM_OK;
    for (struct range r = {0, 0}; r.first < count && status == PLIM_OK; r.first = r.last + 1) {
        r.last = activations.last ? r.first : count - 1;
        while (r.last + 1 < count && list[r.last + 1].policy == list[r.first].policy) r.last++;
        status = open_box(s, place, micros, activations, r);
    }
    return status;
}

/* Is there anything with offloaded activations that fits? One question instead of one for each range and policy. */
static enum plim_status can_offload(struct search *s, int place, struct range micros, int most, bool *fits)
{
    struct box box = {.lo.at = {[AXIS_PLACE] = place, [AXIS_MICRO] = micros.first}};
    struct point tight;
    enum plim_status status = PLIM_OK;
    box.lo.at[AXIS_ACTIVATIONS] = 1;
    box.hi = box.lo;
    for (int a = 0; a < AXES; a++)
        if (axis_is_ordered(a)) box.hi.at[a] = space_count(&s->space, a, &box.lo) - 1;
    box.hi.at[AXIS_MICRO] = micros.last, box.hi.at[AXIS_ACTIVATIONS] = most;
    box.hi.at[AXIS_SHARE] =
        space_kink(&s->space, AXIS_SHARE, &box.lo); /* where something streams, none are */
    *fits = false;
    for (int variant = 0; variant < CORNERS && !*fits && status == PLIM_OK; variant++) {
        struct plan_bound b;
        if (!tight_corner(&box, variant, &tight)) continue;
        status = search_ask_tight(s, tight, &b);
        *fits = status == PLIM_OK && search_may_fit(s, &b);
    }
    return status;
}

/* What an offloaded layer saves is not even: a few layers by themselves, more in ranges that double. */
static enum plim_status open_activations(struct search *s, int place, struct range micros)
{
    struct point p = {.at[AXIS_PLACE] = place};
    int count = space_count(&s->space, AXIS_ACTIVATIONS, &p);
    bool fits = true;
    enum plim_status status = PLIM_OK;
    if (count > 1) status = can_offload(s, place, micros, count - 1, &fits);
    if (!fits) count = 1;
    for (struct range r = {0, 0}; r.first < count && status == PLIM_OK; r.first = r.last + 1) {
        r.last = r.first < 3 ? r.first : 2 * (r.first - 1);
        if (r.last >= count) r.last = count - 1;
        status = open_policies(s, place, micros, r);
    }
    return status;
}

/* The whole batch at once is a box by itself: it carries no gradients from part to part and may fit where half of it does
 * not. Where memory is cached smaller parts can be faster: then each is by itself. */
static enum plim_status open_boxes(struct search *s)
{
    enum plim_status status = PLIM_OK;
    for (int place = 0; place < s->space.nplaces && status == PLIM_OK; place++) {
        struct point p = {.at[AXIS_PLACE] = place};
        int micros = space_count(&s->space, AXIS_MICRO, &p);
        for (struct range r = {0, 0}; r.first < micros && status == PLIM_OK; r.first = r.last + 1) {
            bool alone = s->space.micros[r.first] == s->request->rows || s->request->facts->cache_bytes;
            r.last = alone ? r.first : micros - 1;
            status = open_activations(s, place, r);
        }
    }
    return status;
}

static enum plim_status find_best(struct search *s)
{
    s->nboxes = 0, s->best = (struct candidate){0}, s->dropped = INFINITY;
    enum plim_status status = open_boxes(s);
    while (s->nboxes && status == PLIM_OK && (!s->best.found || s->oracle.work < PLAN_WORK)) {
        struct box box = pop(s);
        if (is_worth(s, &box))
            status = look_into(s, box);
        else
            s->dropped = fmin(s->dropped, box.bound);
    }
    for (int i = 0; i < s->nboxes; i++) s->dropped = fmin(s->dropped, s->boxes[i].bound);
    if (status == PLIM_OK && !s->best.found) status = squeeze(s);
    if (status == PLIM_OK && s->best.found) status = search_polish(s, PLAN_POLISH);
    if (status == PLIM_OK && s->best.found && s->dropped < s->best.seconds * (1 - GAP))
        status = search_visit_neighbours(s);
    return status;
}

static enum plim_status say_missing(struct search *s, const struct plan *smallest)
{
    char need[BYTES_TEXT], have[BYTES_TEXT], missing[BYTES_TEXT];
    int64_t more = smallest->total - s->request->budget;
    bytes_format(need, (uint64_t)smallest->total);
    bytes_format(have, (uint64_t)s->request->budget);
    bytes_format(missing, (uint64_t)more);
    return plim_fail(s->err, PLIM_NO_FIT,
                     "does not fit: the smallest plan takes %s, the budget is %s: %s (%lld bytes) missing",
                     need, have, missing, (long long)more);
}

/* Making a plan builds the whole of its tape. */
static enum plim_status make(struct search *s, const struct knobs *knobs, struct plan *out)
{
    struct plan_bound b;
    enum plim_status status = oracle_ask(&s->oracle, knobs, &b, s->err);
    if (status == PLIM_OK && b.own > plan_tape_most(s->request)) {
        if (b.own > s->oracle.largest) s->oracle.largest = b.own;
        status = plan_refuse_search(s->request, b.own, s->err);
    }
    oracle_rest(&s->oracle);
    return status == PLIM_OK ? plan_make(s->request, knobs, out, s->err) : status;
}

static enum plim_status nothing_fits(struct search *s, struct plan *out)
{
    char need[BYTES_TEXT], have[BYTES_TEXT];
    struct plim_error *err = s->err;
    if (!s->has_smallest) return plim_fail(err, PLIM_BAD_INPUT, "the pinned settings exclude each other");
    enum plim_status status = make(s, &s->smallest, out);
    if (status != PLIM_OK || out->fits) return status; /* only the lowered mark had ruled it out */
    if (out->total <= s->request->budget) {
        bytes_format(need, (uint64_t)out->host);
        bytes_format(have, (uint64_t)s->request->host_budget);
        return plim_fail(
            err, PLIM_NO_FIT,
            "does not fit: what leaves the device takes %s of the host, where %s may be taken; raise "
            "host_budget or the budget",
            need, have);
    }
    return say_missing(s, out);
}

/* Packing can need a little more than the bound. A plan that even deep packing does not bring below the budget is left out
 * and the search goes on; what it has asked before it knows. After some such plans the line itself is lowered. */
static enum plim_status find_plan(struct search *s, struct plan *out)
{
    enum { ATTEMPTS = UNPACKED_MOST + 4 };
    enum plim_status status = PLIM_OK;
    for (int attempt = 0; attempt < ATTEMPTS && status == PLIM_OK; attempt++) {
        status = find_best(s);
        if (status != PLIM_OK || !s->best.found) break;
        plan_release(out);
        status = make(s, &s->best.knobs, out);
        if (status != PLIM_OK || out->fits) break;
        if (s->nunpacked < UNPACKED_MOST)
            s->unpacked[s->nunpacked++] = s->best.knobs;
        else
            s->allowed -= out->layout.arena_bytes - out->layout.lower_bound;
    }
    return status;
}

/* In a process of one memory, what comparing plans takes is part of the line. */
static enum plim_status count_planning(struct search *s, struct plan *out, enum plim_status status)
{
    const struct plan_request *r = s->request;
    struct plan_own own = plan_own_bytes(&out->tape, &out->layout);
    int64_t largest = s->oracle.largest > own.loop + own.update ? s->oracle.largest : own.loop + own.update;
    int64_t more = plan_needs(r, largest) - r->beside - out->total;
    if (!r->facts->unified_memory || more <= 0) return status;
    out->total += more, out->host += more, out->overhead += more;
    out->fits = out->fits && plan_within(r, out->total, out->host);
    return out->fits ? status : say_missing(s, out);
}

enum plim_status plan_search_in(const struct plan_request *request, const int order[AXES], struct plan *out,
                                struct plim_error *err)
{
    double start = clock_seconds();
    struct search s = {.request = request, .order = order, .allowed = request->budget, .err = err};
    *out = (struct plan){0};
    oracle_init(&s.oracle, request);
    enum plim_status status = space_init(&s.space, request, err);
    if (status == PLIM_OK) status = find_plan(&s, out);
    if (status == PLIM_OK && !out->fits) {
        plan_release(out);
        status = nothing_fits(&s, out);
    }
    if (status == PLIM_OK || (status == PLIM_NO_FIT && out->tape.nops))
        status = count_planning(&s, out, status);
    else if (status == PLIM_NO_FIT) /* the search itself had no room */
        out->total = out->host = request->search_line + 1;
    double gap = s.best.found ? fmax(0, 1 - s.dropped / s.best.seconds) : 0;
    out->search = (struct plan_search_report){gap, s.oracle.tapes, s.oracle.work, clock_seconds() - start};
    free(s.boxes);
    space_release(&s.space);
    oracle_release(&s.oracle);
    malloc_trim(0); /* what was compared goes back before the plan's own memory is taken */
    return status;
}

enum plim_status plan_search(const struct plan_request *request, struct plan *out, struct plim_error *err)
{
    static const int order[AXES] = {0, 1, 2, 3, 4, 5, 6, 7};
    return plan_search_in(request, order, out, err);
}
