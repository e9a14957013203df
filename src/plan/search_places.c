/* search_places.c - where state, gradients and parameters are: on the device as long as they fit, then on the tier below.
 *
 * Each placement is searched as a whole (search_placement); here is decided which are asked and with which shares. */
#include "plan/search.h"

#include <math.h>

/* May the host's CPU update what is in its memory? */
static bool host_updates(const struct search *s, const struct place *place)
{
    return place->state_tier == TIER_HOST && s->request->facts->host_bandwidth > 0 &&
           !s->no_host_updates[place->param_tier != TIER_DEVICE];
}

/* Is a placement enough for the device's line, whatever the host's says? With updates by the host if that is possible,
 * which take least of the device; with gradients that wait, or inside backward. Pins that exclude the question leave it
 * open. */
static enum plim_status fits_device(struct search *s, const struct place *place, bool *helps)
{
    enum plim_status status = PLIM_OK;
    int inside = search_inside(s, place->grad_tier), pin = s->request->pins.host_share;
    struct place tight = *place;
    bool fits = false, asked = false;
    if (host_updates(s, place)) tight.host_share = pin == KNOB_OPEN ? OFFLOAD_SHARES : pin;
    s->device_only = true;
    for (int in_backward = 0; in_backward <= inside && !fits && status == PLIM_OK; in_backward++) {
        struct way ways[SEARCH_WAYS];
        int n = search_ways(s, &tight, in_backward, ways);
        status = search_any_fits(s, ways, n, &fits);
        asked = asked || n;
    }
    s->device_only = false;
    *helps = fits || !asked;
    return status;
}

/* Shares of the host in updates, of OFFLOAD_SHARES; the first takes least of the device, of large tapes all but the last
 * are tried. */
static const int updaters[] = {OFFLOAD_SHARES, 0, OFFLOAD_SHARES * 5 / 8, OFFLOAD_SHARES / 2};
enum { UPDATERS = sizeof updaters / sizeof *updaters };

static int updaters_of(const struct search *s) { return s->room.nops < FINE_OPS ? UPDATERS : UPDATERS - 1; }

/* What is best depends on the machine, on where gradients and parameters are, on how much of the state is away and on when
 * updates are, hardly on the other knobs: one tight plan decides for all, by what fits, then by time. Where nothing is near
 * to fitting it stays open. The best of all is asked again in the end. */
static enum plim_status best_updater(struct search *s, const struct place *place, int in_backward, int *out)
{
    double best = INFINITY;
    bool best_fits = false;
    struct place all = *place;
    struct way ways[SEARCH_WAYS];
    for (int i = 0; i < updaters_of(s); i++) {
        struct plan_bound bound = {.step_seconds = INFINITY};
        bool fits = false;
        all.host_share = updaters[i];
        int n = search_ways(s, &all, in_backward, ways);
        enum plim_status status = n ? search_tightest(s, &ways[n - 1], &bound, &fits) : PLIM_OK;
        if (status != PLIM_OK) return status;
        if (i == 0 && !fits && n && bound.total - bound.total / 8 > s->allowed) return PLIM_OK;
        if (fits != best_fits ? fits : bound.step_seconds < 0.995 * best)
            best = bound.step_seconds, best_fits = fits, *out = updaters[i];
    }
    return PLIM_OK;
}

enum plim_status search_updater(struct search *s, struct place *place, int in_backward)
{
    int pin = s->request->pins.host_share, when = place->grad_tier != TIER_DEVICE ? 2 : in_backward;
    int quarter = (place->state_share - 1) * SEARCH_QUARTERS / OFFLOAD_SHARES; /* of the state that is away */
    if (s->room.nops >= FINE_OPS) quarter = 0;
    int *chosen = &s->updater[place->param_tier != TIER_DEVICE][when][quarter];
    if (!host_updates(s, place)) return PLIM_OK;
    enum plim_status status = PLIM_OK;
    if (*chosen == KNOB_OPEN && pin != KNOB_OPEN) *chosen = pin;
    if (*chosen == KNOB_OPEN) status = best_updater(s, place, in_backward, chosen);
    place->host_share = *chosen == KNOB_OPEN ? updaters[0] : *chosen;
    return status;
}

static enum plim_status choose_updater_again(struct search *s)
{
    struct place here = {.state_tier = s->best.knobs.state_tier, .param_tier = s->best.knobs.param_tier};
    bool open = s->best.found && host_updates(s, &here) && s->request->pins.host_share == KNOB_OPEN;
    for (int i = 0; i < updaters_of(s) && open; i++) {
        struct knobs other = s->best.knobs;
        struct plan_bound bound;
        bool fits;
        other.host_share = updaters[i];
        enum plim_status status = search_try(s, &other, &bound, &fits);
        if (status != PLIM_OK) return status;
        if (fits) search_consider(&s->best, &other, bound.step_seconds);
    }
    return PLIM_OK;
}

/* What is away comes back to the device as far as there is room for it and nothing else gets slower. *k fits, and its time
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
        if (fits && its.step_seconds <= bound->step_seconds)
            *k = less, *bound = its;
        else
            away = *share;
    }
}

static enum plim_status take_back_best(struct search *s, bool params, int away)
{
    enum plim_status status = choose_updater_again(s);
    struct plan_bound bound = {.step_seconds = s->best.seconds};
    if (status == PLIM_OK) status = take_back(s, params, away, &s->best.knobs, &bound);
    s->best.seconds = bound.step_seconds;
    return status;
}

/* A little less of the state away, whatever else that changes, as long as it pays. */
static enum plim_status refine_share(struct search *s, struct place place)
{
    enum plim_status status = PLIM_OK;
    double best = INFINITY;
    int from = s->best.knobs.state_share - 1, to = s->best.knobs.state_share - OFFLOAD_SHARES / 4;
    for (place.state_share = from;
         place.state_share > to && place.state_share > 0 && status == PLIM_OK && s->best.seconds < best;
         place.state_share--) {
        best = s->best.seconds;
        status = search_placement(s, &place);
    }
    return status;
}

/* Between two lines: the smallest share that is enough for the device, since that takes least of the host. */
static enum plim_status search_least_share(struct search *s, struct place place, bool params)
{
    enum plim_status status = PLIM_OK;
    int *share = params ? &place.param_share : &place.state_share, least = OFFLOAD_SHARES, short_of = 0;
    if (s->request->host_budget == 0 || s->request->facts->unified_memory) return PLIM_OK;
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
    struct way ways[SEARCH_WAYS];
    bool helps = true, fits = false;
    place.param_share = OFFLOAD_SHARES;
    enum plim_status status = fits_device(s, &place, &helps);
    if (status == PLIM_OK && helps) status = search_placement(s, &place);
    if (status != PLIM_OK || !helps || s->request->pins.param_tier != KNOB_OPEN) return status;
    if (!s->best.found) return search_least_share(s, place, true);
    if (s->best.seconds > 1.05 * s->bar) return PLIM_OK; /* nothing that comes back makes up for that */
    if (s->best.knobs.param_tier == place.param_tier) status = take_back_best(s, true, 0);
    if (status == PLIM_OK) status = search_updater(s, &place, 0);
    int n = search_ways(s, &place, 0, ways);
    if (!n || status != PLIM_OK || place.grad_tier != TIER_DEVICE) return status;
    int64_t micro_batch = s->divisors[0];
    struct knobs k = search_knobs(s, &ways[n - 1], micro_batch, search_finest_cut(s->request, micro_batch));
    status = search_try(s, &k, &bound, &fits);
    if (!fits || status != PLIM_OK) return status;
    status = take_back(s, true, 0, &k, &bound);
    if (status == PLIM_OK) search_consider(&s->best, &k, bound.step_seconds);
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
    int looks = s->room.nops < FINE_OPS ? -1 : 0;
    enum plim_status status = fits_device(s, &place, &helps);
    if (status != PLIM_OK || !helps) return status;
    for (place.state_share = all ? OFFLOAD_SHARES : OFFLOAD_SHARES / 4;
         place.state_share <= OFFLOAD_SHARES && status == PLIM_OK; place.state_share += OFFLOAD_SHARES / 4) {
        status = search_placement(s, &place);
        /* The first that fits travels least. More is worth a look while the best recomputes whole layers or takes the batch in
         * parts: twice, of large tapes once. */
        const struct knobs *k = &s->best.knobs;
        bool remakes = k->full_layers > 0 || k->recompute == RECOMPUTE_FULL ||
                       (k->accumulation > 1 && s->made < SEARCH_PATIENCE);
        if (s->fitted && (!remakes || ++looks > 1)) break;
    }
    if (!s->best.found && !all && status == PLIM_OK) status = search_least_share(s, place, false);
    bool here = s->best.found && s->best.knobs.state_tier == place.state_tier && !all && status == PLIM_OK;
    if (!here) return status;
    int away = s->best.knobs.state_share - OFFLOAD_SHARES / 4;
    status = take_back_best(s, false, away < 0 ? 0 : away);
    return status == PLIM_OK && s->room.nops < FINE_OPS ? refine_share(s, place) : status;
}

/* Gradients or parameters leave before the state only when a pin says so. */
#define BY_PIN 1

/* A placement's time if memory were free: the whole batch at once, nothing made again, a quarter away of what need not be
 * away as a whole. Hardly a plan of it is faster. */
static enum plim_status least_time(struct search *s, struct place place, double *seconds)
{
    const struct knobs *pins = &s->request->pins;
    struct way way = {.recompute = pins->recompute == KNOB_OPEN ? RECOMPUTE_NONE : pins->recompute,
                      .full_layers = pins->full_layers == KNOB_OPEN ? 0 : pins->full_layers,
                      .in_backward = pins->optimizer_in_backward != 0 && search_inside(s, place.grad_tier),
                      .place = place};
    int quarter = OFFLOAD_SHARES / 4;
    bool more = place.grad_tier != TIER_DEVICE || place.param_tier != TIER_DEVICE; /* then all of the state */
    way.place.state_share = place.state_tier == TIER_DEVICE ? 0 : more ? OFFLOAD_SHARES : quarter;
    way.place.param_share = place.param_tier == TIER_DEVICE ? 0 : quarter;
    *seconds = INFINITY;
    struct way allowed[SEARCH_WAYS];
    if (!search_ways(s, &place, way.in_backward, allowed)) return PLIM_OK; /* pins exclude it */
    bool by_host = host_updates(s, &place);
    for (int i = 0; i < (by_host ? updaters_of(s) : 1); i++) {
        struct plan_bound bound;
        bool fits;
        way.place.host_share = by_host ? updaters[i] : 0;
        struct knobs k = search_knobs(s, &way, s->divisors[s->ndivisors - 1], 1);
        enum plim_status status = search_try(s, &k, &bound, &fits);
        if (status != PLIM_OK) return status;
        *seconds = fmin(*seconds, bound.step_seconds);
    }
    return PLIM_OK;
}

/* Up to SEARCH_PATIENCE 4 % are worth a look, then 8 % as long as what a look takes, so many tapes like the last, ends
 * within a tenth of a second, then only a fifth. */
#define PATIENCE_ENDS 320000
#define LOOK_TAPES    20

static double worthwhile(const struct search *s)
{
    if (s->made < SEARCH_PATIENCE) return 0.96;
    return s->made + LOOK_TAPES * (int64_t)s->room.nops < PATIENCE_ENDS ? 0.92 : 0.8;
}

/* Something fits on a cheaper level. This one may be faster all the same: state away instead of layers made again, more
 * away for larger micro-batches. Not from memory to a disk, whose speed is a guess. */
static enum plim_status worth_a_look(struct search *s, const struct candidate *best,
                                     const struct place *place, bool *worth)
{
    double seconds = INFINITY;
    *worth = false;
    if (s->request->facts->unified_memory && best->knobs.state_tier == TIER_DEVICE) return PLIM_OK;
    enum plim_status status = least_time(s, *place, &seconds);
    /* Each part of the batch moves gradients or parameters: sending both makes the parts larger. */
    const struct knobs *k = &best->knobs;
    bool parts = k->accumulation > 1 && place->grad_tier != TIER_DEVICE && place->param_tier != TIER_DEVICE &&
                 (k->grad_tier != TIER_DEVICE || k->param_tier != TIER_DEVICE);
    *worth = seconds < (parts ? 0.96 : worthwhile(s)) * best->seconds;
    return status;
}

/* What copies more must be faster by more than a hair: how copies overlap is known less well than how long ops take. */
#define CLEARLY 0.98

enum plim_status search_places(struct search *s)
{
    const struct knobs *pins = &s->request->pins;
    int lower = s->request->facts->lower_tier;
    int state = pins->state_tier > TIER_DEVICE ? pins->state_tier : lower;
    int grad = pins->grad_tier > TIER_DEVICE ? pins->grad_tier : lower;
    int param = pins->param_tier > TIER_DEVICE ? pins->param_tier : lower;
    /* From free to costly. Those of one level compete; later levels are asked when nothing fits, or when they promise
     * more. */
    const struct {
        int level;
        struct place place;
    } places[] = {{0, {.state_tier = TIER_DEVICE}},
                  {BY_PIN, {.grad_tier = grad}},
                  {BY_PIN, {.param_tier = param}},
                  {BY_PIN, {.grad_tier = grad, .param_tier = param}},
                  {2, {.state_tier = state}},
                  {3, {.state_tier = state, .param_tier = param}},
                  {3, {.state_tier = state, .grad_tier = grad}},
                  {4, {.state_tier = state, .grad_tier = grad, .param_tier = param}}};
    bool keeps_state = pins->state_tier == TIER_DEVICE;
    struct candidate best = {0}; /* of all */
    int found_at = -1;
    s->nnear = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const struct place *place = &places[i].place;
        /* What stays must not move when something leaves: parameters go before their state only when both are pinned. */
        bool early_grads = pins->grad_tier > TIER_DEVICE || keeps_state;
        bool early_params = pins->param_tier > TIER_DEVICE && keeps_state;
        if (places[i].level == BY_PIN && !(place->param_tier != TIER_DEVICE ? early_params : early_grads))
            continue;
        bool worth = true;
        enum plim_status status = PLIM_OK;
        if (best.found && places[i].level > found_at) status = worth_a_look(s, &best, place, &worth);
        s->best.found = false, s->bar = best.found ? best.seconds : INFINITY;
        if (status == PLIM_OK && worth) status = search_shares(s, *place);
        if (status == PLIM_OK) status = choose_updater_again(s); /* for all that took nothing back */
        if (status != PLIM_OK) return status;
        bool near = place->param_tier == TIER_DEVICE && place->grad_tier == TIER_DEVICE;
        if (near && s->best.found) s->near[s->nnear++] = s->best;
        if (s->best.found && (!best.found || s->best.seconds < CLEARLY * best.seconds)) best = s->best;
        if (best.found && found_at < 0) found_at = places[i].level;
    }
    s->best = best;
    return PLIM_OK;
}
