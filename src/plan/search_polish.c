/* search_polish.c - from the best plan of the search to a better one near it.
 *
 * Axes are ordered, but not quite, and boxes are dropped when patience is over: what is left out lies mostly near the best
 * plan. It is tried in other places. Each axis is made as free as it can be alone; then one is made freer and another pays for it, or one costlier and
 * another gains, in steps that halve. */
#include "plan/search_internal.h"

/* An axis is left alone where its first steps say that it takes so many times what a freer one gains. */
#define HOPE 2

/* A point that is faster than the best plan and too large. */
struct wish {
    struct point point;
    double seconds;
    int64_t lacks; /* bytes */
};

/* Pays for a wish by making one axis costlier, by up to `most` steps. Gives up on the axis when the first steps cost
 * more for the memory they free than the wish gains. */
static enum plim_status pay(struct search *s, const struct wish *wish, int axis, int most)
{
    const struct point *p = &wish->point;
    int last = space_count(&s->space, axis, p) - 1;
    for (int more = 1; more <= most && p->at[axis] + more <= last && !search_is_spent(s); more *= 2) {
        struct plan_bound b;
        struct point q = *p;
        double seconds;
        q.at[axis] += more;
        enum plim_status status = search_ask_seconds(s, q, &seconds);
        if (status != PLIM_OK || seconds >= search_goal(s)) return status;
        status = search_ask_tight(s, q, &b);
        if (status != PLIM_OK) return status;
        if (search_may_fit(s, &b)) return search_settle_along(s, q, axis, p->at[axis], q.at[axis]);
        double frees = (double)(wish->lacks - (b.total - s->allowed));
        double price = (seconds - wish->seconds) * (double)wish->lacks;
        if (frees > 0 && price > (search_goal(s) - wish->seconds) * frees * HOPE) return PLIM_OK;
    }
    return PLIM_OK;
}

/* One axis of the best plan so many steps freer and, where that no longer fits, another one costlier. */
static enum plim_status trade(struct search *s, int freer, int step)
{
    struct wish wish = {.point = s->best.point};
    struct point *p = &wish.point;
    struct plan_bound b;
    p->at[freer] = p->at[freer] > step ? p->at[freer] - step : 0;
    enum plim_status status = search_ask_seconds(s, *p, &wish.seconds);
    if (status != PLIM_OK || wish.seconds >= search_goal(s)) return status;
    status = search_ask_tight(s, *p, &b);
    if (status == PLIM_OK && search_may_fit(s, &b)) return search_settle(s, *p);
    wish.lacks = b.total - s->allowed;
    for (int i = 0; i < AXES && status == PLIM_OK; i++) {
        int a = s->order[i];
        if (axis_is_ordered(a) && a != freer && a != AXIS_MICRO) status = pay(s, &wish, a, 2 * step);
    }
    return status;
}

/* One axis of the best plan so many steps costlier, and what that frees given to another one. */
static enum plim_status invest(struct search *s, int costlier, int step)
{
    struct point p = s->best.point;
    struct plan_bound b;
    int last = space_count(&s->space, costlier, &p) - 1;
    p.at[costlier] = p.at[costlier] + step < last ? p.at[costlier] + step : last;
    enum plim_status status = search_ask_tight(s, p, &b);
    if (status != PLIM_OK || !search_may_fit(s, &b)) return status;
    for (int i = 0; i < AXES && status == PLIM_OK && !search_is_spent(s); i++) {
        int a = s->order[i];
        struct point q = p;
        double seconds;
        if (!axis_is_ordered(a) || a == costlier || !p.at[a]) continue;
        q.at[a] = 0;
        status = search_ask_seconds(s, q, &seconds);
        if (status != PLIM_OK || seconds >= search_goal(s)) continue;
        status = search_settle_along(s, p, a, 0, p.at[a]);
    }
    return status;
}

/* Each axis of the best plan alone as free as it can be, again and again. */
static enum plim_status slide(struct search *s)
{
    enum plim_status status = PLIM_OK;
    for (bool moved = true; moved && status == PLIM_OK && !search_is_spent(s);) {
        struct point from = s->best.point;
        for (int i = 0; i < AXES && status == PLIM_OK; i++) {
            int a = s->order[i];
            if (axis_is_ordered(a) && from.at[a]) status = search_settle_along(s, from, a, 0, from.at[a]);
        }
        moved = point_order(&from, &s->best.point) != 0;
    }
    return status;
}

/* The best plan in another place, with as much offloaded and the updater that takes least; false: that place has no such
 * plan. */
static bool moved(const struct search *s, int place, struct point *p)
{
    *p = s->best.point;
    p->at[AXIS_PLACE] = place, p->at[AXIS_UPDATER] = 0;
    for (int a = 0; a < AXES; a++) {
        int last = space_count(&s->space, a, p) - 1;
        if (last < 0) return false;
        if (a == AXIS_SHARE) p->at[a] = space_share(&s->space, &s->best.point, place);
        if (p->at[a] > last) p->at[a] = last;
    }
    return true;
}

/* The best plan as it is in every other place that promises more. */
static enum plim_status try_places(struct search *s)
{
    enum plim_status status = PLIM_OK;
    for (int place = 0; place < s->space.nplaces && status == PLIM_OK; place++) {
        struct plan_bound b;
        struct point p;
        if (place == s->best.point.at[AXIS_PLACE] || s->place_bound[place] >= search_goal(s)) continue;
        if (!moved(s, place, &p) || s->best.point.at[AXIS_MICRO] > p.at[AXIS_MICRO]) continue;
        status = search_ask(s, &p, &b);
    }
    return status;
}

/* Where axes are not quite ordered a box may have hidden a better plan near the best one. */
enum plim_status search_polish(struct search *s)
{
    s->until = s->oracle.work + plan_work_of(s->request, 2 * PLAN_POLISH);
    enum plim_status status = try_places(s);
    if (status == PLIM_OK) status = slide(s);
    for (int step = 8; step >= 1 && s->best.found && status == PLIM_OK;) {
        double before = s->best.weight;
        struct point from = s->best.point;
        for (int i = 0; i < AXES && status == PLIM_OK && !search_is_spent(s); i++) {
            int a = s->order[i];
            if (!axis_is_ordered(a) || point_order(&from, &s->best.point)) continue;
            if (from.at[a] > 0) status = trade(s, a, step);
            bool more = from.at[a] + 1 < space_count(&s->space, a, &from);
            if (more && status == PLIM_OK && !point_order(&from, &s->best.point)) status = invest(s, a, step);
        }
        step = s->best.weight >= before ? step / 2 : step < 8 ? 2 * step : step;
    }
    return status;
}
