/* search_ask.c - the questions of the search: bytes and seconds of a point, and how far an axis can go. See
 * search_internal.h. */
#include "plan/search_internal.h"

#include <math.h>
#include <stdlib.h>

/* A box that promises less than this is dropped; after PLAN_PATIENCE of work more is asked of it. With what preferences
 * cost at most it is below the 0.1 % by which more memory may be slower. */
#define GAP 0.0008

/* A plan that offloads more, or that hides the gradient norm people watch, must be faster by this share per step. */
#define PREFERENCE 0.00003

/* The nearest miss: what holds the device's line and takes least of the host, else what takes least of the device. */
static void note_miss(struct search *s, const struct point *p, const struct knobs *k,
                      const struct plan_bound *b)
{
    bool holds = b->total <= s->request->budget;
    int64_t takes = holds ? b->host : b->total;
    int64_t least = s->nearest.holds ? s->nearest.bound.host : s->nearest.bound.total;
    bool nearer = takes < least || (takes == least && b->total < s->nearest.bound.total);
    if (holds != s->nearest.holds) nearer = holds;
    if (s->nearest.found && !nearer) return;
    s->nearest.found = true, s->nearest.point = *p, s->nearest.knobs = *k;
    s->nearest.holds = holds, s->nearest.bound = *b;
}

/* Does it hold the lines, and can its tape be made within the search's own? */
static bool within(const struct search *s, const struct plan_bound *b)
{
    return b->total <= s->allowed && b->tape <= plan_tape_most(s->request) &&
           plan_within(s->request, b->total, b->host);
}

/* May it, or something near it, fit? A plan's own data structures are small beside what is offloaded, but their size jumps
 * from value to value: bounds leave them out of the host's line. */
bool search_may_fit(const struct search *s, const struct plan_bound *b)
{
    bool limited = s->request->host_budget > 0 && !s->request->facts->unified_memory;
    return b->total <= s->allowed && (!limited || b->host - b->own <= s->request->host_budget);
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
                (k->param_tier != TIER_DEVICE) + (k->offload_layers > 0) + knobs_inside(k) +
                (k->disk_share > 0);
    double value = seconds * search_doubt(space_reach(&s->space, p)),
           weight = value * (1 + PREFERENCE * steps);
    for (int i = 0; i < s->nunpacked; i++)
        if (knobs_equal(&s->unpacked[i], k)) return;
    bool better = weight < s->best.weight || (weight == s->best.weight && knobs_before(k, &s->best.knobs));
    if (!s->best.found || better) s->best = (struct candidate){true, *p, *k, value, weight};
    s->oracle.patient = true;
}

static bool over_host(const struct search *s, const struct plan_bound *b)
{
    return s->request->host_budget > 0 && b->host > s->request->host_budget;
}

/* May what is offloaded go further down, from the host's memory to a disk? */
static int most_on_disk(const struct search *s, const struct knobs *k)
{
    const struct plan_request *r = s->request;
    if (r->facts->unified_memory || r->facts->disk_bandwidth <= 0 || r->pins.disk_share != KNOB_OPEN)
        return 0;
    if (k->state_tier != TIER_HOST) return 0;
    bool params = k->param_tier == TIER_HOST && r->pins.param_tier == KNOB_OPEN;
    return params ? 2 * OFFLOAD_SHARES : OFFLOAD_SHARES;
}

/* Bytes and seconds of these knobs with the least share on disk that holds the host's line: more only takes longer. Bytes
 * change about evenly, so the share is guessed from them. */
static enum plim_status ask_with_disk(struct search *s, struct knobs *k, struct plan_bound *out)
{
    enum plim_status status = oracle_ask(&s->oracle, k, out, s->err);
    int most = status == PLIM_OK && over_host(s, out) ? most_on_disk(s, k) : 0, fails = 0;
    struct plan_bound none = *out;
    if (most == 0) return status;
    k->disk_share = most;
    status = oracle_ask(&s->oracle, k, out, s->err);
    if (status != PLIM_OK || over_host(s, out)) return status;
    double above = (double)(none.host - s->request->host_budget), whole = (double)(none.host - out->host);
    for (int at = (int)ceil(above / whole * most); most - fails > 1 && status == PLIM_OK;) {
        struct plan_bound here;
        k->disk_share = at > fails && at < most ? at : (fails + most) / 2;
        status = oracle_ask(&s->oracle, k, &here, s->err);
        if (over_host(s, &here))
            fails = (int)k->disk_share, at = fails + 1;
        else
            most = (int)k->disk_share, *out = here, at = most - 1;
    }
    k->disk_share = most;
    return status;
}

/* Memory that is there is used first: a plan counts as no faster than the same plan with nothing offloaded, though updates by
 * the host's CPU beside the device may be. Where parameters or gradients stream that is left out: the doubt is larger than what
 * they could gain. */
static enum plim_status no_gain(struct search *s, const struct point *p, struct plan_bound *out)
{
    struct plan_bound home;
    if (space_reach(&s->space, p) != REACH_STATE) return PLIM_OK;
    struct point q = space_at_home(&s->space, p);
    struct knobs k = space_knobs(&s->space, &q);
    enum plim_status status = oracle_ask(&s->oracle, &k, &home, s->err);
    if (status == PLIM_OK) out->step_seconds = fmax(out->step_seconds, home.step_seconds);
    return status;
}

/* Tapes with updates inside forward share no parts, but what they take at least is known from parts that others share. That is
 * enough where so much does not fit. */
static enum plim_status ask_apart(struct search *s, const struct knobs *k, struct plan_bound *out, bool *fits)
{
    enum plim_status status = oracle_least_bytes(&s->oracle, k, out, s->err);
    *fits = search_may_fit(s, out);
    if (status != PLIM_OK || *fits) return status;
    return oracle_least_inside(&s->oracle, k, &out->step_seconds, s->err);
}

/* Whatever fits is a candidate, whoever asked. */
enum plim_status search_ask(struct search *s, const struct point *p, struct plan_bound *out)
{
    struct knobs k = space_knobs(&s->space, p);
    bool may = true;
    enum plim_status status = PLIM_OK;
    if (k.optimizer_in_forward && s->best.found) status = ask_apart(s, &k, out, &may);
    if (status != PLIM_OK || !may) return status;
    status = ask_with_disk(s, &k, out);
    if (status == PLIM_OK) status = no_gain(s, p, out);
    if (status == PLIM_OK && within(s, out)) consider(s, p, &k, out->step_seconds);
    if (status == PLIM_OK && !within(s, out)) note_miss(s, p, &k, out);
    return status;
}

/* Bytes of the device at a point with the updater that takes least, the first. */
static enum plim_status ask_bytes(struct search *s, struct point p, struct plan_bound *out)
{
    p.at[AXIS_UPDATER] = 0;
    return search_ask(s, &p, out);
}

/* The latest prefetching takes least. */
struct point search_latest(const struct search *s, struct point p)
{
    p.at[AXIS_PREFETCH] = space_count(&s->space, AXIS_PREFETCH, &p) - 1;
    return p;
}

enum plim_status search_ask_tight(struct search *s, struct point p, struct plan_bound *out)
{
    return ask_bytes(s, search_latest(s, p), out);
}

/* Seconds that a box must promise to beat: the more work is spent, the more it must promise. */
double search_cutoff(const struct search *s)
{
    double spent = fmax(1, (double)s->oracle.work / (double)plan_work_of(s->request, PLAN_PATIENCE));
    return s->best.found ? search_goal(s) * (1 - GAP * spent * spent) : INFINITY;
}

/* Seconds at a point with the best prefetching, whether it fits or not. Where updates inside the loop take at
 * least longer than a plan that is worth to be looked at, that is enough to know. Between ranks the first value is the fastest,
 * and enough for a bound; the others are for plans that it does not fit in. */
enum plim_status search_ask_prefetches(struct search *s, struct point p, bool bound, double *out)
{
    struct knobs k = space_knobs(&s->space, &p);
    enum plim_status status = PLIM_OK;
    *out = 0;
    if (knobs_inside(&k)) status = oracle_least_inside(&s->oracle, &k, out, s->err);
    if (status != PLIM_OK || (knobs_inside(&k) && *out >= search_cutoff(s))) {
        search_drop(s, *out);
        return status;
    }
    *out = INFINITY;
    bool ranks = s->request->facts->ranks > 1, enough = false;
    for (int f = 0; f < space_count(&s->space, AXIS_PREFETCH, &p) && status == PLIM_OK && !enough; f++) {
        struct plan_bound b;
        p.at[AXIS_PREFETCH] = f;
        status = search_ask(s, &p, &b);
        if (status == PLIM_OK) *out = fmin(*out, b.step_seconds);
        enough = status == PLIM_OK && ranks && (bound || within(s, &b));
    }
    return status;
}

/* Times of an update have one minimum along them. Inside backward they may have more;
 * between ranks, whose exchanges take most of that time, such tapes are spared. */
bool search_is_downhill(const struct search *s, const struct point *p, double last, double here)
{
    return here <= last || (space_inside(&s->space, p->at[AXIS_PLACE]) && s->request->facts->ranks <= 1);
}

/* search_ask_prefetches with the best updater. */
static enum plim_status ask_seconds(struct search *s, struct point p, bool bound, double *out)
{
    int count = space_count(&s->space, AXIS_UPDATER, &p);
    double last = INFINITY, here = 0;
    enum plim_status status = PLIM_OK;
    *out = INFINITY;
    for (int u = 0; u < count && status == PLIM_OK && search_is_downhill(s, &p, last, here); u++) {
        last = u ? here : INFINITY;
        p.at[AXIS_UPDATER] = u;
        status = search_ask_prefetches(s, p, bound, &here);
        if (status == PLIM_OK) *out = fmin(*out, here);
    }
    return status;
}

enum plim_status search_ask_seconds(struct search *s, struct point p, double *out)
{
    return ask_seconds(s, p, true, out);
}

enum plim_status search_settle(struct search *s, struct point p)
{
    struct plan_bound tight;
    double seconds;
    enum plim_status status = search_ask_tight(s, p, &tight);
    return status == PLIM_OK && search_may_fit(s, &tight) ? ask_seconds(s, p, false, &seconds) : status;
}

/* --- how far an axis can go -------------------------------------------------------------------------------- */

enum plim_status search_above_device(struct search *s, struct point p, double *above)
{
    struct plan_bound b;
    enum plim_status status = ask_bytes(s, p, &b);
    if (status != PLIM_OK) return status;
    *above = (double)(b.total - s->allowed);
    if (!search_may_fit(s, &b)) *above = fmax(1, *above); /* the host's line */
    return status;
}

enum plim_status search_above_host(struct search *s, struct point p, double *above)
{
    enum plim_status status = PLIM_OK;
    *above = INFINITY;
    for (int u = 0; u < space_count(&s->space, AXIS_UPDATER, &p) && status == PLIM_OK; u++) {
        struct plan_bound b;
        p.at[AXIS_UPDATER] = u;
        struct knobs k = space_knobs(&s->space, &p);
        if (k.optimizer_in_forward) { /* takes about as much of the host as updates after backward */
            k.optimizer_in_forward = k.before_norm_share = 0;
            status = oracle_ask(&s->oracle, &k, &b, s->err);
        } else {
            status = search_ask(s, &p, &b);
        }
        if (status == PLIM_OK) *above = fmin(*above, (double)(b.host - b.own - s->request->host_budget));
    }
    return status;
}

/* A value between two others, so much of the way from the first. */
static int between(int good, int end, double part)
{
    int at = good + (int)(part * (end - good));
    return at != good ? at : good + (end > good ? 1 : -1);
}

/* Bytes change about evenly on either side of a kink, so values are guessed from them; behind a guess that was poor the middle is next. */
enum plim_status search_reach(struct search *s, struct point p, int axis, int good, int end,
                              line_question *above, int *out)
{
    double over = 0, under = 0, here = 0;
    p.at[axis] = good < end ? good : end;
    int kink = space_kink(&s->space, axis, &p);
    p.at[axis] = end;
    enum plim_status status = above(s, p, &over);
    if (over <= 0) good = end;
    p.at[axis] = good;
    if (status == PLIM_OK && good != end) status = above(s, p, &under);
    bool at_kink = (kink - good) * (kink - end) < 0, guess = true;
    while (status == PLIM_OK && abs(end - good) > 1 && !search_is_spent(s)) {
        int width = abs(end - good);
        p.at[axis] = at_kink ? kink : between(good, end, guess ? under / (under - over) : 0.5);
        status = above(s, p, &here);
        if (here <= 0)
            good = p.at[axis], under = here;
        else
            end = p.at[axis], over = here;
        int left = abs(end - good);
        guess = !guess || 2 * left <= width || left * under / (under - over) < 2;
        at_kink = false;
    }
    *out = good;
    return status;
}

/* With late prefetching and with early, which takes more and is faster. */
enum plim_status search_settle_along(struct search *s, struct point p, int axis, int lo, int hi)
{
    enum plim_status status = PLIM_OK;
    double above = 0;
    p.at[axis] = hi;
    for (p = search_latest(s, p); p.at[AXIS_PREFETCH] >= 0 && status == PLIM_OK; p.at[AXIS_PREFETCH]--) {
        p.at[axis] = hi;
        status = search_above_device(s, p, &above);
        if (above > 0) break;
        if (status == PLIM_OK) status = search_reach(s, p, axis, hi, lo, search_above_device, &lo);
        p.at[axis] = lo;
        if (status == PLIM_OK) status = search_settle(s, p);
    }
    return status;
}
