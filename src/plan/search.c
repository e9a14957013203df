/* search.c - the fastest predicted plan that fits the budget: best-first branch and bound over the axes of space.c.
 *
 * A box is a place, a micro-batch and a range of each ordered axis. Its tight corner, every axis at its costly end, takes
 * least of the device: where that does not fit, nothing in the box does. Its free corner is fastest: where that is no
 * faster than the best plan so far, nothing in the box is. Ranges are cut to what can fit at all before time is asked,
 * which is what makes the bound of a box sharp. What remains is halved along the axis that moves time most.
 *
 * Boxes are opened three times, each time with more that may leave the device (space.h, reach). A plan of a wider reach replaces
 * the best one only where it is predicted faster by PLAN_DOUBT. Places with updates inside the next step's forward are opened after
 * that, against the best plan without them.
 *
 * Invariants
 *  1. `best` fits both lines, and no box that was dropped can beat it by more than GAP (search_ask.c), as far as axes are ordered.
 *     What beats what is decided by value (search_internal.h), which does not depend on the budget: more memory is never worth less.
 *  2. What is chosen depends on bytes and seconds alone: every choice between axes or boxes is made by value, ties by the
 *     axis' or point's own number, so the order of the table's rows does not matter.
 *  3. Work is counted in ops of tapes built, never in time: the same request gives the same plan on every machine. Where it
 *     ends before the boxes do, what has begun is left as it is, and then the order of rows can matter after all.
 */
#include "plan/search.h"
#include "mem/os.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "plan/search_internal.h"

#include <math.h>
#include <stdlib.h>

/* Where updates run inside backward, a bound is what the busiest lane has to do, which few plans come near, and tapes share
 * nothing (oracle.h): such boxes come later by this share, and last until something fits. */
#define INSIDE_LATER 1.05

/* An update's least time is not looked for where it can be less than what is known by no more than this share of a step. */
#define NEAR 0.005

#define SHARE_STEP 8 /* in which the times of updates are looked at for a bound */

/* --- boxes --------------------------------------------------------------------------------------------------- */

int point_order(const struct point *a, const struct point *b)
{
    for (int i = 0; i < AXES; i++)
        if (a->at[i] != b->at[i]) return a->at[i] - b->at[i];
    return 0;
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

static bool is_inside(const struct search *s, const struct box *box)
{
    return space_inside(&s->space, box->lo.at[AXIS_PLACE]);
}

static double lateness(const struct search *s, const struct box *box)
{
    return is_inside(s, box) ? INSIDE_LATER : 1;
}

static bool comes_before(const struct search *s, const struct box *a, const struct box *b)
{
    bool late = is_inside(s, a), other_late = is_inside(s, b);
    if (!s->best.found && late != other_late) return other_late;
    double x = a->bound * lateness(s, a), y = b->bound * lateness(s, b);
    return x < y || (x == y && point_order(&a->lo, &b->lo) < 0);
}

/* The most promising box. */
static struct box pop(struct search *s)
{
    int at = 0;
    for (int i = 1; i < s->nboxes; i++)
        if (comes_before(s, &s->boxes[i], &s->boxes[at])) at = i;
    struct box box = s->boxes[at];
    s->boxes[at] = s->boxes[--s->nboxes];
    return box;
}

/* Values that take more of the host than there is are cut off; false: even the free corner does. */
static enum plim_status cut_by_host(struct search *s, struct box *box, bool *holds)
{
    double above = 0;
    enum plim_status status = search_above_host(s, box->lo, &above);
    *holds = above <= 0;
    for (int a = 0; a < AXES && *holds && status == PLIM_OK; a++)
        if (space_axes[a].fills_host && box->lo.at[a] < box->hi.at[a])
            status =
                search_reach(s, box->lo, a, box->lo.at[a], box->hi.at[a], search_above_host, &box->hi.at[a]);
    return status;
}

/* Each range begins where the axis alone can make it fit, all others at their tight end. False: nothing in the box fits.
 * Between ranks early prefetching is faster by much for a little memory: where a range begins it is tried. */
static enum plim_status shrink(struct search *s, struct box *box, bool *fits)
{
    double above = 0;
    bool ranks = s->request->facts->ranks > 1;
    enum plim_status status = PLIM_OK;
    *fits = true;
    if (!s->request->facts->unified_memory && s->request->host_budget) status = cut_by_host(s, box, fits);
    if (!*fits || status != PLIM_OK) return status;
    struct point tight = search_latest(s, box->hi);
    status = search_above_device(s, tight, &above);
    *fits = above <= 0;
    for (int i = 0; i < AXES && *fits && status == PLIM_OK; i++) {
        int a = s->order[i];
        if (!axis_is_ordered(a) || box->lo.at[a] >= tight.at[a]) continue;
        struct point edge = tight;
        status = search_reach(s, tight, a, tight.at[a], box->lo.at[a], search_above_device, &box->lo.at[a]);
        edge.at[a] = box->lo.at[a];
        if (ranks && status == PLIM_OK) status = search_settle(s, edge);
    }
    return status;
}

/* --- branching ----------------------------------------------------------------------------------------------- */

/* Effect of setting one axis of the free corner to its costly end. */
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
static enum plim_status dive(struct search *s, const struct box *box)
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
        for (int i = 0; i < AXES && status == PLIM_OK && !search_is_spent(s); i++) {
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
        if (status != PLIM_OK || enough || cheapest < 0 || search_is_spent(s)) return status;
        p.at[cheapest] = dive_end(s, box, &p, cheapest);
    }
    return PLIM_OK;
}

/* The axis whose range moves time most is halved. */
static enum plim_status branch(struct search *s, const struct box *box)
{
    int axis = -1;
    double most = -1;
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < AXES && status == PLIM_OK; i++) {
        int a = s->order[i];
        struct push_out out;
        status = push_axis(s, &box->lo, a, box->hi.at[a], &out);
        if (status != PLIM_OK || !out.moves) continue;
        double moves = out.seconds - box->bound;
        if (moves > most || (moves == most && a < axis)) most = moves, axis = a;
    }
    if (axis < 0 || status != PLIM_OK) return status;
    struct box low = *box, high = *box;
    low.hi.at[axis] = (box->lo.at[axis] + box->hi.at[axis]) / 2, high.lo.at[axis] = low.hi.at[axis] + 1;
    low.stage = high.stage = BOX_TIMED;
    status = push(s, &low);
    return status == PLIM_OK ? push(s, &high) : status;
}

/* The least that an update, or loop and update inside backward, can take with any share: what ranks exchange. */
static enum plim_status least_exchanges(struct search *s, const struct point *p, double *out)
{
    struct exchange_seconds e;
    struct knobs k = space_knobs(&s->space, p);
    *out = 0;
    if (s->request->facts->ranks <= 1) return PLIM_OK;
    enum plim_status status = oracle_exchanges(&s->oracle, &k, &e, s->err);
    if (status == PLIM_OK) *out = knobs_inside(&k) ? e.loop + e.update : e.update;
    return status;
}

/* The least time of an update with a share in the box's range, looked at in steps: more on the host can be faster, where
 * the CPU there updates beside the device or saves the way back. Where updates run inside backward: of loop and update, of
 * which no lane can have less to do than they have by themselves; what leaves hope then is timed, unless the box is new. */
static enum plim_status least_update(struct search *s, const struct box *box, double *out)
{
    struct point p = box->lo;
    double floor = 0;
    enum plim_status status = least_exchanges(s, &p, &floor);
    *out = INFINITY;
    for (int at = p.at[AXIS_SHARE]; at <= box->hi.at[AXIS_SHARE] && status == PLIM_OK;
         at += SHARE_STEP - at % SHARE_STEP) {
        if (*out - floor < NEAR * box->bound) {
            *out = floor;
            break;
        }
        p.at[AXIS_SHARE] = at;
        double last = INFINITY, seconds = 0;
        int count = space_count(&s->space, AXIS_UPDATER, &p);
        for (int u = 0; u < count && search_is_downhill(s, &p, last, seconds); u++) {
            last = u ? seconds : INFINITY;
            p.at[AXIS_UPDATER] = u;
            struct knobs k = space_knobs(&s->space, &p);
            status = is_inside(s, box) ? oracle_least_inside(&s->oracle, &k, &seconds, s->err)
                                       : oracle_update_seconds(&s->oracle, &k, &seconds, s->err);
            bool hopeful = k.optimizer_in_backward && box->stage != BOX_NEW && seconds < *out;
            if (status == PLIM_OK && hopeful) status = search_ask_prefetches(s, p, true, &seconds);
            if (status != PLIM_OK) return status;
            *out = fmin(*out, seconds);
        }
    }
    return status;
}

/* The bound of a box: its free corner with the fastest update of its range. */
static enum plim_status time_box(struct search *s, struct box *box)
{
    struct box one = *box;
    double here = 0, least = 0, first = 0;
    one.hi = one.lo;
    enum plim_status status = least_update(s, box, &least);
    if (status == PLIM_OK && !is_inside(s, box)) {
        status = search_ask_seconds(s, box->lo, &here);
        if (status == PLIM_OK) status = least_update(s, &one, &first);
    }
    box->bound = fmax(box->bound, here - first + least);
    return status;
}

/* Cuts a box to what can fit; *open: something may. */
static enum plim_status cut(struct search *s, struct box *box, bool *open)
{
    enum plim_status status = shrink(s, box, open);
    if (status != PLIM_OK || !*open) return status;
    status = time_box(s, box);
    if (status == PLIM_OK) status = search_settle(s, box->lo);
    *open = box->bound < search_cutoff(s) && point_order(&box->lo, &box->hi) != 0;
    return status;
}

/* One stage of a box at a time: between two of them a box that promises more may come first. A box that work did not
 * suffice for is left as it was. */
static enum plim_status look_into(struct search *s, struct box box)
{
    bool open = true;
    struct box as_was = box;
    enum plim_status status = PLIM_OK;
    if (box.stage == BOX_NEW)
        status = time_box(s, &box);
    else if (box.stage == BOX_TIMED)
        status = cut(s, &box, &open);
    else
        status = dive(s, &box);
    if (status == PLIM_OK && search_is_spent(s)) return push(s, &as_was);
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
    for (bool nearer = s->nearest.found; nearer && !s->best.found && status == PLIM_OK;) {
        struct point from = s->nearest.point;
        for (int i = 0; i < AXES; i++)
            for (size_t k = 0; k < sizeof steps / sizeof *steps && !s->best.found && status == PLIM_OK; k++) {
                struct point p = from;
                struct plan_bound b;
                p.at[s->order[i]] += steps[k];
                for (int a = 0; a < AXES; a++) { /* places and micro-batches have ranges of their own */
                    int last = space_count(&s->space, a, &p) - 1;
                    if (p.at[a] > last) p.at[a] = last;
                    if (p.at[a] < 0) p.at[a] = 0;
                }
                if (space_count(&s->space, AXIS_MICRO, &p) && point_order(&p, &from))
                    status = search_ask(s, &p, &b);
            }
        nearer = point_order(&from, &s->nearest.point) != 0;
    }
    return status;
}

/* --- the search ---------------------------------------------------------------------------------------------- */

/* Where a box begins and ends, along the axes by which boxes are opened. */
struct range {
    int first, last;
};

/* The least that a step in one place takes: its loop with nothing offloaded or recomputed, and what ranks exchange in the
 * update, or in both where that runs inside backward. */
static enum plim_status least_step(struct search *s, int place, int64_t micro_batch, double *out)
{
    struct plan_bound b;
    struct exchange_seconds e = {0};
    double update = 0;
    struct knobs free = knobs_naive(s->request);
    free.zero = s->space.places[place].zero, free.keep_gathered = s->request->may_keep_gathered;
    free.micro_batch = micro_batch, free.accumulation = s->request->rows / micro_batch;
    enum plim_status status = oracle_ask(&s->oracle, &free, &b, s->err);
    if (status == PLIM_OK) status = oracle_update_seconds(&s->oracle, &free, &update, s->err);
    if (status == PLIM_OK) status = oracle_exchanges(&s->oracle, &free, &e, s->err);
    if (status != PLIM_OK) return status;
    double loop = b.step_seconds - update;
    *out = space_inside(&s->space, place) ? fmax(loop, e.loop + e.update) : loop + e.update;
    return status;
}

/* A box in one place, whose first bound is the least step there. */
static enum plim_status open_box(struct search *s, int place, struct range micros, struct range activations,
                                 struct range recompute)
{
    struct box box = {.lo.at = {[AXIS_PLACE] = place, [AXIS_MICRO] = micros.first}};
    box.hi = box.lo;
    for (int a = 0; a < AXES; a++)
        if (axis_is_ordered(a)) box.hi.at[a] = space_count(&s->space, a, &box.lo) - 1;
    box.hi.at[AXIS_MICRO] = micros.last;
    box.lo.at[AXIS_ACTIVATIONS] = activations.first, box.hi.at[AXIS_ACTIVATIONS] = activations.last;
    box.lo.at[AXIS_RECOMPUTE] = recompute.first, box.hi.at[AXIS_RECOMPUTE] = recompute.last;
    enum plim_status status = least_step(s, place, s->space.micros[micros.first], &box.bound);
    if (status != PLIM_OK) return status;
    s->place_bound[place] = fmin(s->place_bound[place], box.bound);
    return push(s, &box);
}

/* Offloaded layers do not save evenly: none, one, and more get separate boxes. The less a policy keeps of a layer,
 * the less is offloaded, so with offloaded layers each policy gets its own box, too. */
static enum plim_status open_micros(struct search *s, int place, struct range micros)
{
    const struct recompute_choice *list = s->space.recompute;
    struct point p = {.at[AXIS_PLACE] = place};
    int layers = space_count(&s->space, AXIS_ACTIVATIONS, &p) - 1, count = s->space.nrecompute;
    enum plim_status status = PLIM_OK;
    for (int few = 0; few <= 2 && few <= layers; few++)
        for (struct range r = {0, 0}; r.first < count && status == PLIM_OK; r.first = ++r.last) {
            if (few == 0) r.last = count - 1;
            while (r.last + 1 < count && list[r.last + 1].policy == list[r.first].policy) r.last++;
            status = open_box(s, place, micros, (struct range){few, few < 2 ? few : layers}, r);
        }
    return status;
}

/* May any plan at this sharding stage fit the device's budget? For most stages the kept tensors decide it, with as
 * much offloaded as possible: at some stages every rank has all parameters. */
static enum plim_status place_may_fit(struct search *s, int place, bool *may)
{
    struct point p = {.at = {[AXIS_PLACE] = place}};
    struct plan_bound b;
    *may = true;
    if (s->request->facts->ranks <= 1) return PLIM_OK;
    p.at[AXIS_SHARE] = space_count(&s->space, AXIS_SHARE, &p) - 1;
    if (p.at[AXIS_SHARE] < 0 || !space_count(&s->space, AXIS_MICRO, &p)) return PLIM_OK;
    struct knobs k = space_knobs(&s->space, &p);
    enum plim_status status = oracle_kept(&s->oracle, &k, &b, s->err);
    if (status == PLIM_OK) *may = b.total <= s->allowed;
    return status;
}

/* The whole batch at once is a box by itself: it carries no gradients from part to part and may fit where half of it does
 * not. Where memory is cached smaller parts can be faster: then each is by itself. */
static enum plim_status open_boxes(struct search *s, bool hopeless, bool *skipped)
{
    enum plim_status status = PLIM_OK;
    for (int place = 0; place < s->space.nplaces && status == PLIM_OK; place++) {
        struct point p = {.at[AXIS_PLACE] = place};
        if (space_turn(&s->space, place) != s->turn) continue;
        int micros = space_count(&s->space, AXIS_MICRO, &p);
        bool may = true;
        status = place_may_fit(s, place, &may);
        if (may == hopeless) {
            *skipped = *skipped || !may;
            continue;
        }
        for (struct range r = {0, 0}; r.first < micros && status == PLIM_OK; r.first = r.last + 1) {
            bool alone = s->space.micros[r.first] == s->request->rows || s->request->facts->cache_bytes;
            r.last = alone ? r.first : micros - 1;
            status = open_micros(s, place, r);
        }
    }
    return status;
}

static enum plim_status look_into_all(struct search *s)
{
    enum plim_status status = PLIM_OK;
    while (s->nboxes && status == PLIM_OK && !search_is_spent(s)) {
        struct box box = pop(s);
        if (box.bound < search_cutoff(s))
            status = look_into(s, box);
        else
            search_drop(s, box.bound);
    }
    return status;
}

/* Searches the present reach: finds every plan that beats the best so far or, if none fits, the nearest miss. */
static enum plim_status search_reachable(struct search *s)
{
    bool skipped = false;
    s->nboxes = 0, s->nearest = (struct nearest){0};
    for (int i = 0; i < SPACE_PLACES; i++) s->place_bound[i] = INFINITY;
    enum plim_status status = open_boxes(s, false, &skipped);
    if (status == PLIM_OK) status = look_into_all(s);
    if (status == PLIM_OK && !s->best.found && skipped) { /* the nearest miss may be among them */
        status = open_boxes(s, true, &skipped);
        if (status == PLIM_OK) status = look_into_all(s);
    }
    for (int i = 0; i < s->nboxes; i++) search_drop(s, s->boxes[i].bound);
    return status == PLIM_OK && !s->best.found ? squeeze(s) : status;
}

/* Everything at once, where nothing else fits. A miss that takes more of the host than there is helps nobody: then the one before it
 * is the nearest. */
static enum plim_status search_together(struct search *s)
{
    struct nearest before = s->nearest;
    int64_t host = (int64_t)s->request->facts->host_bytes;
    enum plim_status status = search_reachable(s);
    bool worse = !s->nearest.found || (host && s->nearest.bound.host > host);
    if (status == PLIM_OK && !s->best.found && before.found && worse) s->nearest = before;
    return status;
}

/* The best plan so far as it would be in these places: where it is faster there, fewer boxes promise more than it. */
static enum plim_status try_best_there(struct search *s)
{
    const struct point best = s->best.point;
    enum plim_status status = PLIM_OK;
    for (int place = 0; place < s->space.nplaces && status == PLIM_OK; place++) {
        struct point p = best;
        if (space_turn(&s->space, place) != s->turn) continue;
        p.at[AXIS_PLACE] = place, p.at[AXIS_SHARE] = space_share(&s->space, &best, place);
        p.at[AXIS_MICRO] = p.at[AXIS_UPDATER] = p.at[AXIS_PREFETCH] = 0;
        if (space_count(&s->space, AXIS_MICRO, &p)) status = search_settle(s, p);
    }
    return status;
}

/* Every question about such a place builds a whole tape. So it is asked last, when a good plan is known that drops most boxes unseen, and
 * with work of its own, which other places do not miss. */
static enum plim_status search_last_places(struct search *s, enum turn turn)
{
    struct point before = s->best.point;
    enum reach reach = s->space.reach;
    enum plim_status status = PLIM_OK;
    s->turn = turn, s->until = s->oracle.work + plan_work_of(s->request, PLAN_LAST);
    for (int at = REACH_STATE; at <= REACH_ALL && status == PLIM_OK; at++) {
        s->space.reach = (enum reach)at;
        if (turn == TURN_BEFORE) status = try_best_there(s);
        if (status == PLIM_OK) status = search_reachable(s);
    }
    s->turn = TURN_FIRST;
    bool same = point_order(&before, &s->best.point) == 0;
    s->space.reach = same ? reach : space_reach(&s->space, &s->best.point);
    return status == PLIM_OK && !same ? search_polish(s) : status;
}

/* From what stays on the device to what leaves it: the wider the reach, the more a plan must promise. */
static enum plim_status find_best(struct search *s)
{
    int64_t until = 0;
    enum plim_status status = PLIM_OK;
    s->best = (struct candidate){0}, s->dropped = INFINITY;
    for (int reach = REACH_NOTHING; reach < REACHES && status == PLIM_OK; reach++) {
        if (reach == REACH_TOGETHER && s->best.found) break;
        if (!s->best.found) until = s->oracle.work + plan_work_of(s->request, PLAN_WORK);
        s->space.reach = (enum reach)reach, s->until = until;
        status = reach == REACH_TOGETHER ? search_together(s) : search_reachable(s);
    }
    if (status != PLIM_OK || !s->best.found) return status;
    s->space.reach = space_reach(&s->space, &s->best.point);
    status = search_polish(s);
    for (int turn = TURN_FORWARD; turn < TURNS && status == PLIM_OK && s->best.found; turn++)
        status = search_last_places(s, (enum turn)turn);
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
    if (status == PLIM_OK && b.tape > plan_tape_most(s->request)) {
        if (b.tape > s->oracle.largest) s->oracle.largest = b.tape;
        status = plan_refuse_search(s->request, b.tape, s->err);
    }
    oracle_rest(&s->oracle);
    return status == PLIM_OK ? plan_make(s->request, knobs, out, s->err) : status;
}

static enum plim_status nothing_fits(struct search *s, struct plan *out)
{
    char need[BYTES_TEXT], have[BYTES_TEXT];
    struct plim_error *err = s->err;
    if (!s->nearest.found) return search_name_clash(s->request, err);
    enum plim_status status = make(s, &s->nearest.knobs, out);
    if (status != PLIM_OK || out->fits) return status; /* only the lowered mark had ruled it out */
    if (out->total <= s->request->budget) {
        bytes_format(need, (uint64_t)out->host);
        bytes_format(have, (uint64_t)s->request->host_budget);
        size_t has = s->request->facts->host_bytes;
        bool all = has && s->request->host_budget >= (int64_t)has;
        return plim_fail(
            err, PLIM_NO_FIT,
            "does not fit: offloaded tensors need %s of host memory, and %s may be used; raise %s", need,
            have, all ? "the budget, or use a host with more memory" : "host_budget or the budget");
    }
    return say_missing(s, out);
}

/* Bytes that comparing plans takes, this one among them, beyond the plan's own. Its tape counts as the search counts it, else
 * a search under this line would refuse it. */
static int64_t planning_bytes(struct search *s, const struct plan *plan)
{
    struct plan_own own = plan_own_bytes(&plan->tape, &plan->layout);
    struct plan_bound b = {0};
    int64_t largest = s->oracle.largest > own.loop + own.update ? s->oracle.largest : own.loop + own.update;
    if (oracle_ask(&s->oracle, &plan->knobs, &b, NULL) == PLIM_OK && b.tape > largest) largest = b.tape;
    int64_t more = plan_needs(s->request, largest) - s->request->search_used - plan->total;
    return s->request->facts->unified_memory && more > 0 ? more : 0;
}

/* Packing can need a little more than the bound. A plan that even deep packing does not bring below the budget is left out, and
 * the search goes on with what it knows: `less` bytes below the line when too many are left out. */
static void leave_out(struct search *s, int64_t less)
{
    if (s->nunpacked < UNPACKED_MOST)
        s->unpacked[s->nunpacked++] = s->best.knobs;
    else
        s->allowed -= less;
}

/* A plan that does not pack is left out, and the next one is tried: a smaller budget may have found that one. The last attempt
 * takes what it finds, and says what is missing. */
static enum plim_status find_plan(struct search *s, struct plan *out)
{
    enum { ATTEMPTS = UNPACKED_MOST + 4 };
    enum plim_status status = PLIM_OK;
    for (int attempt = 0; attempt < ATTEMPTS && status == PLIM_OK; attempt++) {
        status = find_best(s);
        if (status != PLIM_OK || !s->best.found) break;
        plan_release(out);
        status = make(s, &s->best.knobs, out);
        if (status != PLIM_OK) break;
        int64_t planning = out->fits ? planning_bytes(s, out) : 0;
        if (out->fits && plan_within(s->request, out->total + planning, out->host + planning)) break;
        leave_out(s, out->fits ? s->allowed - out->total + 1
                               : out->layout.arena_bytes - out->layout.lower_bound);
    }
    return status;
}

/* In a process of one memory, what comparing plans takes is part of the line. */
static enum plim_status count_planning(struct search *s, struct plan *out, enum plim_status status)
{
    const struct plan_request *r = s->request;
    int64_t more = planning_bytes(s, out);
    if (!more) return status;
    out->total += more, out->host += more, out->overhead += more, out->planning = more;
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
    double gap = s.best.found ? fmax(0, 1 - s.dropped / s.best.value) : 0;
    out->search = (struct plan_search_report){gap, s.oracle.tapes, s.oracle.work, clock_seconds() - start};
    free(s.boxes);
    space_release(&s.space);
    oracle_release(&s.oracle);
    os_give_back(); /* what was compared goes back before the plan's own memory is taken */
    return status;
}

enum plim_status plan_search(const struct plan_request *request, struct plan *out, struct plim_error *err)
{
    static const int order[] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    static_assert(sizeof order / sizeof *order == AXES, "every axis once");
    return plan_search_in(request, order, out, err);
}
