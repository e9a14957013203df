/* search_places.c - where state, gradients and parameters are: on the device as long as they fit, then on the tier below.
 *
 * Each placement is searched as a whole (search_placement); here is decided which are asked and with which shares. */
#include "plan/search.h"

#include <math.h>

/* The tightest ways of a placement that pins allow, with all on the lower tier that may go there. */
static int tightest_ways(const struct search *s, const struct place *place, int in_backward, struct way *ways)
{
    int n = 0;
    struct way way = {.in_backward = in_backward, .place = *place};
    for (way.recompute = RECOMPUTE_SELECTIVE; way.recompute <= RECOMPUTE_FULL; way.recompute++)
        if (search_allowed(&s->request->pins, &way)) ways[n++] = way;
    return n;
}

/* Is a placement enough for the device's line, whatever the host's says? With gradients that wait or, where that is
 * possible, with updates inside backward. Pins that exclude the question leave it open. */
static enum plim_status fits_device(struct search *s, const struct place *place, bool *helps)
{
    enum plim_status status = PLIM_OK;
    int inside = search_inside(s, place->grad_tier);
    struct way ways[2];
    bool fits = false, asked = false;
    s->device_only = true;
    for (int in_backward = 0; in_backward <= inside && !fits && status == PLIM_OK; in_backward++) {
        int n = tightest_ways(s, place, in_backward, ways);
        status = search_any_fits(s, ways, n, &fits);
        asked = asked || n;
    }
    s->device_only = false;
    *helps = fits || !asked;
    return status;
}

/* The time of a tight plan: with updates at the end, or inside backward where only that fits. */
static enum plim_status tight_time(struct search *s, const struct place *place, struct plan_bound *bound)
{
    enum plim_status status = PLIM_OK;
    int inside = search_inside(s, place->grad_tier);
    bool fits = false;
    for (int in_backward = 0; in_backward <= inside && !fits && status == PLIM_OK; in_backward++) {
        struct way ways[2];
        int n = tightest_ways(s, place, in_backward, ways);
        if (n) status = search_tightest(s, &ways[n - 1], bound, &fits);
    }
    return status;
}

/* Who updates state in host memory: the device, the CPU there, or both at once, each a half. That depends on the machine
 * and on where gradients are, hardly on the other knobs, so one tight plan decides for all. */
static enum plim_status choose_updater(struct search *s, struct place *place)
{
    const struct plan_request *r = s->request;
    if (place->state_tier != TIER_HOST || r->facts->host_bandwidth <= 0) return PLIM_OK;
    int *chosen = &s->host_share[place->grad_tier != TIER_DEVICE];
    if (r->pins.host_share != KNOB_OPEN) *chosen = r->pins.host_share;
    if (*chosen != KNOB_OPEN) {
        place->host_share = *chosen;
        return PLIM_OK;
    }
    static const int shares[] = {0, OFFLOAD_SHARES, OFFLOAD_SHARES / 2};
    double best = INFINITY;
    struct place all = *place;
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        struct plan_bound bound = {.step_seconds = INFINITY};
        all.host_share = shares[i];
        enum plim_status status = tight_time(s, &all, &bound);
        if (status != PLIM_OK) return status;
        if (bound.step_seconds < 0.995 * best) best = bound.step_seconds, place->host_share = shares[i];
    }
    *chosen = place->host_share;
    return PLIM_OK;
}

/* What is away comes back to the device as far as there is room for it: that costs nothing else. *k fits, and its time
 * and bytes are *bound; more than `away` parts must be away. */
static enum plim_status take_back(struct search *s, bool params, int away, struct knobs *k,
                                  struct plan_bound *bound)
{
    for (;;) {
        struct knobs less = *k;
        struct plan_bound its;
        bool fits;
        int *share = params ? &less.param_share : &less.state_share;
        if (*share - away <= 1) return PLIM_OK;
        *share = (away + *share) / 2;
        enum plim_status status = search_try(s, &less, &its, &fits);
        if (status != PLIM_OK) return status;
        if (fits)
            *k = less, *bound = its;
        else
            away = *share;
    }
}

static enum plim_status take_back_best(struct search *s, bool params, int away)
{
    struct plan_bound bound = {.step_seconds = s->best_seconds};
    enum plim_status status = take_back(s, params, away, &s->best, &bound);
    s->best_seconds = bound.step_seconds;
    return status;
}

/* A little less of the state away, whatever else that changes, as long as it pays: for tapes that are made so quickly
 * that a dozen more do not matter. */
#define FINE_OPS 4000

static enum plim_status refine_share(struct search *s, struct place place)
{
    enum plim_status status = PLIM_OK;
    double best = INFINITY;
    int from = s->best.state_share - 1, to = s->best.state_share - OFFLOAD_SHARES / 4;
    place.host_share = s->best.host_share;
    for (place.state_share = from;
         place.state_share > to && place.state_share > 0 && status == PLIM_OK && s->best_seconds < best;
         place.state_share--) {
        best = s->best_seconds;
        status = search_placement(s, &place);
    }
    return status;
}

/* Between two lines: the smallest share that is enough for the device, since that takes least of the host. */
static enum plim_status search_least_share(struct search *s, struct place place, bool params)
{
    enum plim_status status = PLIM_OK;
    int *share = params ? &place.param_share : &place.state_share, least = OFFLOAD_SHARES, short_of = 0;
    if (s->request->host_budget == 0 || s->request->facts->is_host) return PLIM_OK;
    while (least - short_of > 1 && status == PLIM_OK) {
        bool fits = false;
        *share = (least + short_of) / 2;
        status = fits_device(s, &place, &fits);
        *(fits ? &least : &short_of) = *share;
    }
    *share = least;
    return status == PLIM_OK ? search_placement(s, &place) : status;
}

/* Two starts: all parameters away, which leaves room for large micro-batches, and the tightest plan, which lets most of
 * them stay. */
static enum plim_status search_params(struct search *s, struct place place)
{
    struct plan_bound bound;
    struct way ways[2];
    bool helps = true, fits = false;
    place.param_share = OFFLOAD_SHARES;
    enum plim_status status = fits_device(s, &place, &helps);
    if (status == PLIM_OK && helps) status = choose_updater(s, &place);
    if (status == PLIM_OK && helps) status = search_placement(s, &place);
    if (status != PLIM_OK || !helps || s->request->pins.param_tier != KNOB_OPEN) return status;
    if (!s->found) return search_least_share(s, place, true);
    if (s->best.param_tier == place.param_tier) status = take_back_best(s, true, 0);
    int n = tightest_ways(s, &place, 0, ways);
    if (n && status == PLIM_OK) status = search_tightest(s, &ways[n - 1], &bound, &fits);
    if (!fits || status != PLIM_OK || place.grad_tier != TIER_DEVICE) return status;
    int64_t micro_batch = s->divisors[0];
    struct knobs k = search_knobs(s, &ways[n - 1], micro_batch, search_finest_cut(s->request, micro_batch));
    status = take_back(s, true, 0, &k, &bound);
    if (status == PLIM_OK) search_consider(s, &k, &bound);
    return status;
}

/* State on a lower tier: a part of it costs less traffic, all of it leaves more room; a quarter at a time. Who pins the
 * tier means all of it. */
static enum plim_status search_shares(struct search *s, struct place place)
{
    if (place.state_tier != TIER_DEVICE) place.state_share = OFFLOAD_SHARES;
    if (place.param_tier != TIER_DEVICE) return search_params(s, place);
    if (place.state_tier == TIER_DEVICE) return search_placement(s, &place);
    bool all = s->request->pins.state_tier != KNOB_OPEN || place.grad_tier != TIER_DEVICE, helps = true;
    enum plim_status status = fits_device(s, &place, &helps);
    if (status == PLIM_OK && helps) status = choose_updater(s, &place);
    if (status != PLIM_OK || !helps) return status;
    for (place.state_share = all ? OFFLOAD_SHARES : OFFLOAD_SHARES / 4;
         place.state_share <= OFFLOAD_SHARES && status == PLIM_OK; place.state_share += OFFLOAD_SHARES / 4) {
        bool before = s->found;
        status = search_placement(s, &place);
        /* The first that fits travels least. One more is worth a look when that one recomputes whole layers. */
        if (before || (s->found && s->best.full_layers == 0 && s->best.recompute != RECOMPUTE_FULL)) break;
    }
    if (!s->found && !all && status == PLIM_OK) status = search_least_share(s, place, false);
    bool here = s->found && s->best.state_tier == place.state_tier && !all && status == PLIM_OK;
    if (!here) return status;
    status = take_back_best(s, false, s->best.state_share - OFFLOAD_SHARES / 4);
    return status == PLIM_OK && s->room.nops < FINE_OPS ? refine_share(s, place) : status;
}

/* Levels with a meaning of their own. Gradients or parameters leave before the state only when a pin says so. */
enum { BY_PIN = 1, STATE = 2, BOTH = 4 };

/* Something fits on a cheaper level. This one may be faster all the same: state away instead of layers made again, on a
 * device that copies beside computing; gradients and parameters both away where each part of the batch moves one of
 * them. */
static bool worth_a_look(const struct search *s, int level)
{
    const struct knobs *best = &s->best;
    bool remakes = best->recompute == RECOMPUTE_FULL || best->full_layers > 0;
    return (level == STATE && remakes && !s->request->facts->is_host) ||
           (level == BOTH && best->accumulation > 1 && best->state_tier != TIER_DEVICE &&
            (best->grad_tier != TIER_DEVICE || best->param_tier != TIER_DEVICE));
}

enum plim_status search_places(struct search *s)
{
    const struct knobs *pins = &s->request->pins;
    int lower = s->request->facts->is_host ? TIER_DISK : TIER_HOST;
    int state = pins->state_tier > TIER_DEVICE ? pins->state_tier : lower;
    int grad = pins->grad_tier > TIER_DEVICE ? pins->grad_tier : lower;
    int param = pins->param_tier > TIER_DEVICE ? pins->param_tier : lower;
    /* From free to costly. Those of one level compete; the next level is asked when nothing fits on this one. */
    const struct {
        int level;
        struct place place;
    } places[] = {{0, {.state_tier = TIER_DEVICE}},
                  {BY_PIN, {.grad_tier = grad}},
                  {BY_PIN, {.param_tier = param}},
                  {BY_PIN, {.grad_tier = grad, .param_tier = param}},
                  {STATE, {.state_tier = state}},
                  {3, {.state_tier = state, .grad_tier = grad}},
                  {3, {.state_tier = state, .param_tier = param}},
                  {BOTH, {.state_tier = state, .grad_tier = grad, .param_tier = param}}};
    bool keeps_state = pins->state_tier == TIER_DEVICE;
    bool pinned =
        pins->state_tier > TIER_DEVICE || pins->grad_tier > TIER_DEVICE || pins->param_tier > TIER_DEVICE;
    int found_at = -1;
    s->found = false;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const struct place *place = &places[i].place;
        if (s->found && places[i].level > found_at && !worth_a_look(s, places[i].level)) continue;
        /* What stays must not move when something leaves: parameters go before their state only when both are pinned. */
        bool early_grads = pins->grad_tier > TIER_DEVICE || keeps_state;
        bool early_params = pins->param_tier > TIER_DEVICE && keeps_state;
        if (places[i].level == BY_PIN && !(place->param_tier != TIER_DEVICE ? early_params : early_grads))
            continue;
        if (i > 0 && !s->request->far_state_allowed && !pinned) break;
        enum plim_status status = search_shares(s, *place);
        if (status != PLIM_OK) return status;
        if (s->found && found_at < 0) found_at = places[i].level;
    }
    return PLIM_OK;
}
