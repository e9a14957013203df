/* space.c - the axes of the search. See space.h. */
#include "plan/space.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_TOKENS INT32_MAX

static bool pin_allows(int64_t pin, int64_t value) { return pin == KNOB_OPEN || pin == value; }

/* --- places and shares --------------------------------------------------------------------------------------- */

/* Stages 1 and 2 differ in what gradients are, and that is the same at every stage (pass.h): one of them is searched. */
static bool is_needless(const struct plan_request *r, enum zero zero)
{
    return r->pins.zero == KNOB_OPEN && zero == (r->whole_grads ? ZERO_GRADS : ZERO_STATE);
}

/* Ranks exchange gradients and parameters in the update, rows of several lengths have several loops, and a program that is
 * compiled whole cannot leave ops out. */
bool space_can_defer(const struct plan_request *r)
{
    return r->facts->ranks <= 1 && r->lengths <= 1 && !r->facts->whole_programs;
}

/* The host's updates may be made before the norm of one micro-batch's gradients; unless they are pinned, where clipping seldom binds. */
static bool may_guess(const struct plan_request *r, const struct place *p, bool whole)
{
    if (r->pins.before_norm_share == 0) return false;
    if (r->pins.before_norm_share == KNOB_OPEN && !r->clips_seldom) return false;
    bool host = r->facts->lower_tier == TIER_HOST && r->host_updates && r->pins.host_share != 0 &&
                (r->facts->host_bandwidth > 0 || r->pins.host_share > 0);
    return host && whole && p->grad == TIER_HOST;
}

/* Updates inside forward gain where the whole batch is computed at once and gradients leave with their state; other places need a pin. */
static bool may_defer(const struct plan_request *r, const struct place *p, bool whole)
{
    bool gains = whole && p->grad == TIER_HOST && r->facts->async_copies;
    bool pinned = r->pins.optimizer_in_forward == 1 || (p->before && r->pins.before_norm_share > 0);
    return space_can_defer(r) && (gains || pinned);
}

enum turn space_turn(const struct space *s, int place)
{
    const struct place *p = &s->places[place];
    const struct knobs *pins = &s->request->pins;
    if (p->before) return pins->before_norm_share > 0 ? TURN_FIRST : TURN_BEFORE;
    return p->forward && pins->optimizer_in_forward != 1 ? TURN_FORWARD : TURN_FIRST;
}

bool space_inside(const struct space *s, int place)
{
    return s->places[place].inside || s->places[place].forward;
}

/* Gradients that wait on a lower tier have no update inside backward to wait for; of several ranks' they are pieces. */
static bool place_is_allowed(const struct plan_request *r, const struct place *p)
{
    const struct knobs *pins = &r->pins;
    bool lower = p->grad != TIER_DEVICE, several = r->facts->ranks > 1;
    bool whole = pin_allows(pins->micro_batch, r->rows) && (!r->micro_most || r->micro_most >= r->rows);
    if (p->inside && (lower || r->needs_global_norm || !whole)) return false;
    if (!pin_allows(pins->optimizer_in_forward, p->forward)) return false;
    if (p->forward && !may_defer(r, p, whole)) return false;
    if (p->before ? !may_guess(r, p, whole) : pins->before_norm_share > 0) return false;
    if (p->zero != ZERO_NONE && (!several || r->whole_state)) return false;
    if (p->zero == ZERO_NODE && (r->facts->node_ranks < 2 || r->facts->node_ranks >= r->facts->ranks))
        return false;
    if (several && (is_needless(r, p->zero) || (lower && (r->whole_grads || p->zero < ZERO_GRADS))))
        return false;
    return pin_allows(pins->grad_tier, p->grad) && pin_allows(pins->optimizer_in_backward, p->inside) &&
           (!several || pin_allows(pins->zero, p->zero));
}

/* May so much of the state and of the parameters be offloaded? State leaves first, from the last parameter on, then
 * parameters (plan/layout.h, invariant 1); gradients leave when all state has. Pins overrule that, and a pinned tier means
 * all of it. */
static bool share_is_allowed(const struct plan_request *r, const struct place *place, struct share share)
{
    const struct knobs *pins = &r->pins;
    enum tier lower = r->facts->lower_tier;
    bool grads = place->grad != TIER_DEVICE, keeps_state = pins->state_tier == TIER_DEVICE;
    bool early = share.state == 0 && (grads || share.param > 0);
    bool may_early = share.param ? keeps_state && pins->param_tier > TIER_DEVICE
                                 : pins->grad_tier > TIER_DEVICE || keeps_state;
    if (early && !may_early) return false;
    if (place->before && !share.state) return false; /* the host has nothing to update */
    if ((share.state || share.param) && lower == TIER_DEVICE) return false; /* there is none */
    if (share.param > 0 && r->facts->ranks > 1 && place->zero < ZERO_PARAMS) return false;
    if (share.param > 0 && share.state > 0 && share.state < OFFLOAD_SHARES) return false;
    bool part = share.state > 0 && share.state < OFFLOAD_SHARES;
    bool follow =
        place->forward || pins->grad_tier > TIER_DEVICE; /* gradients leave with their part of the state */
    if (part && ((grads && !follow) || pins->state_tier != KNOB_OPEN)) return false;
    if (share.param > 0 && share.param < OFFLOAD_SHARES && pins->param_tier != KNOB_OPEN) return false;
    return pin_allows(pins->state_tier, share.state ? lower : TIER_DEVICE) &&
           pin_allows(pins->param_tier, share.param ? lower : TIER_DEVICE);
}

static int list_shares(const struct plan_request *r, const struct place *place, struct share_list *list)
{
    list->count = 0;
    for (int param = 0; param <= OFFLOAD_SHARES; param++)
        for (int state = 0; state <= OFFLOAD_SHARES; state++) {
            struct share share = {state, param};
            if (state && state < OFFLOAD_SHARES && param) continue;
            if (share_is_allowed(r, place, share)) list->items[list->count++] = share;
        }
    return list->count;
}

/* A place where pinned tiers leave no share is none. */
static void list_places(struct space *s)
{
    const struct plan_request *r = s->request;
    for (int zero = 0; zero < ZERO_COUNT; zero++)
        for (int when = 0; when < 4; when++) /* after backward, inside it, inside forward, before the norm */
            for (int lower = 0; lower < 2; lower++) {
                if (lower && r->facts->lower_tier == TIER_DEVICE) continue;
                enum tier grad = lower ? r->facts->lower_tier : TIER_DEVICE;
                struct place p = {grad, when == 1, when >= 2, when == 3, (enum zero)zero};
                if (!place_is_allowed(r, &p) || !list_shares(r, &p, &s->shares[s->nplaces])) continue;
                s->places[s->nplaces++] = p;
            }
}

static const struct place *place_at(const struct space *s, const struct point *p)
{
    return &s->places[p->at[AXIS_PLACE]];
}

static struct share share_at(const struct space *s, const struct point *p)
{
    return s->shares[p->at[AXIS_PLACE]].items[p->at[AXIS_SHARE]];
}

int space_share(const struct space *s, const struct point *p, int place)
{
    struct share from = share_at(s, p);
    const struct share_list *list = &s->shares[place];
    int at = 0;
    while (at + 1 < list->count && list->items[at].state + list->items[at].param < from.state + from.param)
        at++;
    return at;
}

/* The least reach that has a place. Gradients wait on a lower tier, and no pin says so: with updates inside forward they leave with
 * their state, once. */
static enum reach reach_of_place(const struct space *s, int place)
{
    const struct place *p = &s->places[place];
    const struct knobs *pins = &s->request->pins;
    if (p->before && pins->state_tier == KNOB_OPEN) return REACH_STATE; /* some of it leaves there */
    if (p->grad == TIER_DEVICE || pins->grad_tier != KNOB_OPEN) return REACH_NOTHING;
    return p->forward ? REACH_STATE : REACH_ALL;
}

/* Gradients of one micro-batch whose updates run inside forward only leave. */
static bool leaves_once(const struct space *s, const struct point *p)
{
    return place_at(s, p)->forward && s->micros[p->at[AXIS_MICRO]] == s->request->rows;
}

static bool streams(const struct space *s, const struct point *p)
{
    return (place_at(s, p)->grad != TIER_DEVICE && !leaves_once(s, p)) || share_at(s, p).param > 0;
}

enum reach space_reach(const struct space *s, const struct point *p)
{
    int place = p->at[AXIS_PLACE];
    if (s->reach == REACH_TOGETHER && streams(s, p) && p->at[AXIS_ACTIVATIONS]) return REACH_TOGETHER;
    if (share_at(s, p).param > s->shares[place].items[0].param) return REACH_ALL;
    bool leaves = p->at[AXIS_SHARE] || p->at[AXIS_ACTIVATIONS];
    return leaves && reach_of_place(s, place) < REACH_STATE ? REACH_STATE : reach_of_place(s, place);
}

static int count_places(const struct space *s, const struct point *) { return s->nplaces; }

static void apply_place(const struct space *s, const struct point *p, struct knobs *k)
{
    k->grad_tier = place_at(s, p)->grad;
    k->optimizer_in_backward = place_at(s, p)->inside;
    k->optimizer_in_forward = place_at(s, p)->forward;
    k->zero = place_at(s, p)->zero;
}

/* Shares are listed from the least that pins allow; those of the parameters come last. */
static int count_shares(const struct space *s, const struct point *p)
{
    const struct share_list *list = &s->shares[p->at[AXIS_PLACE]];
    int count = list->count;
    if (s->reach == REACH_NOTHING) return 1;
    while (s->reach == REACH_STATE && list->items[count - 1].param > list->items[0].param) count--;
    return count;
}

/* Behind the last share of the state parameters begin to leave, and then the loop streams. */
static int share_kink(const struct space *s, const struct point *p)
{
    const struct share_list *list = &s->shares[p->at[AXIS_PLACE]];
    int last = 0;
    while (last + 1 < list->count && list->items[last + 1].param == 0) last++;
    return last;
}

static void apply_shares(const struct space *s, const struct point *p, struct knobs *k)
{
    struct share share = share_at(s, p);
    enum tier lower = s->request->facts->lower_tier;
    k->state_share = share.state, k->state_tier = share.state ? lower : TIER_DEVICE;
    k->param_share = share.param, k->param_tier = share.param ? lower : TIER_DEVICE;
    bool lower_still = s->request->pins.disk_share > 0 && (share.state || share.param);
    k->disk_share = lower_still ? s->request->pins.disk_share : 0;
}

/* --- micro-batches ----------------------------------------------------------------------------------------- */

#define MAX_DIVISORS 6720 /* no number up to 10^12 has more */

/* Divisors of the batch, ascending; only 1 may be more tokens than an index holds. */
static int list_divisors(const struct plan_request *r, int64_t *out)
{
    int n = 0;
    for (int64_t d = 1; d * d <= r->rows && n < MAX_DIVISORS / 2; d++)
        if (r->rows % d == 0 && (d == 1 || d * r->time <= MAX_TOKENS)) out[n++] = d;
    for (int i = n - 1; i >= 0; i--) { /* the other half mirrors the first */
        int64_t other = r->rows / out[i];
        if (other != out[i] && other * r->time <= MAX_TOKENS) out[n++] = other;
    }
    return n;
}

/* Those that the request allows, in their order; how many. */
static int keep_allowed(const struct plan_request *r, int64_t *divisors, int count)
{
    int kept = 0;
    for (int i = 0; i < count; i++)
        if (divisors[i] >= r->micro_least && (!r->micro_most || divisors[i] <= r->micro_most))
            divisors[kept++] = divisors[i];
    return kept;
}

static enum plim_status no_micro(const struct plan_request *r, struct plim_error *err)
{
    char most[24] = "any number";
    if (r->micro_most) snprintf(most, sizeof most, "%lld", (long long)r->micro_most);
    return plim_fail(
        err, PLIM_BAD_INPUT,
        "no divisor of the effective batch of %lld rows lies between %lld and %s (the smallest and largest "
        "micro-batch of training.dynamic_batching, training.max_micro_batch_size); change one of them",
        (long long)r->rows, (long long)r->micro_least, most);
}

/* All divisors, or of very many a geometric row with both ends. */
static enum plim_status list_micros(struct space *s, struct plim_error *err)
{
    const struct plan_request *r = s->request;
    int64_t pin = r->pins.micro_batch;
    if (pin != KNOB_OPEN && (pin < 1 || r->rows % pin))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "training.micro_batch_size %lld does not divide the effective batch of %lld rows; "
                         "choose a divisor",
                         (long long)pin, (long long)r->rows);
    if (pin != KNOB_OPEN) {
        s->micros[s->nmicros++] = pin;
        return PLIM_OK;
    }
    int64_t *all = malloc(MAX_DIVISORS * sizeof *all);
    if (!all) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while plans were compared");
    int n = keep_allowed(r, all, list_divisors(r, all));
    if (!n) {
        free(all);
        return no_micro(r, err);
    }
    double ratio = n > SPACE_MICROS ? pow((double)all[n - 1], 1.0 / (SPACE_MICROS - 2)) : 1, next = INFINITY;
    for (int i = n - 1; i >= 0; i--) {
        if ((double)all[i] > next && i > 0) continue;
        s->micros[s->nmicros++] = all[i];
        next = (double)all[i] / ratio;
    }
    free(all);
    return PLIM_OK;
}

static int count_micros(const struct space *s, const struct point *p)
{
    if (s->reach < reach_of_place(s, p->at[AXIS_PLACE])) return 0;
    const struct place *place = place_at(s, p);
    bool whole = place->inside || place->before || space_turn(s, p->at[AXIS_PLACE]) != TURN_FIRST;
    if (!whole) return s->nmicros;
    return s->micros[0] == s->request->rows; /* no gradient waits for another micro-batch */
}

static void apply_micro(const struct space *s, const struct point *p, struct knobs *k)
{
    k->micro_batch = s->micros[p->at[AXIS_MICRO]];
    k->accumulation = s->request->rows / k->micro_batch;
}

/* --- recomputation ------------------------------------------------------------------------------------------ */

static enum plim_status list_recompute(struct space *s, struct plim_error *err)
{
    const struct knobs *pins = &s->request->pins;
    int layers = s->request->layers, n = 0;
    struct recompute_choice *list = malloc((size_t)(layers + 3) * sizeof *list);
    if (!list) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while plans were compared");
    if (pins->full_layers > 0) {
        list[n++] = (struct recompute_choice){
            pins->recompute == KNOB_OPEN ? RECOMPUTE_SELECTIVE : pins->recompute, pins->full_layers};
    } else {
        if (pin_allows(pins->recompute, RECOMPUTE_NONE))
            list[n++] = (struct recompute_choice){RECOMPUTE_NONE, 0};
        if (pin_allows(pins->recompute, RECOMPUTE_SELECTIVE))
            list[n++] = (struct recompute_choice){RECOMPUTE_SELECTIVE, 0};
        for (int full = 1; full < layers && pins->recompute == KNOB_OPEN && pins->full_layers == KNOB_OPEN;
             full++)
            list[n++] = (struct recompute_choice){RECOMPUTE_SELECTIVE, full};
        if (pin_allows(pins->recompute, RECOMPUTE_FULL))
            list[n++] = (struct recompute_choice){RECOMPUTE_FULL, 0};
    }
    s->recompute = list, s->nrecompute = n;
    return PLIM_OK;
}

static int count_recompute(const struct space *s, const struct point *) { return s->nrecompute; }

/* Selective recomputation drops much for little time; each layer in full is like the next. */
static int recompute_kink(const struct space *s, const struct point *)
{
    return s->nrecompute > 1 && s->recompute[0].policy == RECOMPUTE_NONE ? 1 : 0;
}

static void apply_recompute(const struct space *s, const struct point *p, struct knobs *k)
{
    k->recompute = s->recompute[p->at[AXIS_RECOMPUTE]].policy;
    k->full_layers = s->recompute[p->at[AXIS_RECOMPUTE]].full_layers;
}

/* --- loss, activations --------------------------------------------------------------------------------------- */

int64_t space_finest_cut(const struct plan_request *r, int64_t micro_batch)
{
    int64_t blocks = (micro_batch * r->time + LOSS_CHUNK_ROWS - 1) / LOSS_CHUNK_ROWS;
    return blocks > 4096 ? 4096 : blocks;
}

static int count_chunks(const struct space *s, const struct point *p)
{
    int64_t finest = space_finest_cut(s->request, s->micros[p->at[AXIS_MICRO]]);
    int n = 1;
    if (s->request->pins.loss_chunks != KNOB_OPEN) return 1;
    while ((int64_t)1 << (n - 1) < finest) n++;
    return n;
}

static void apply_chunks(const struct space *s, const struct point *p, struct knobs *k)
{
    int64_t pin = s->request->pins.loss_chunks, chunks = (int64_t)1 << p->at[AXIS_CHUNKS];
    int64_t finest = space_finest_cut(s->request, s->micros[p->at[AXIS_MICRO]]);
    k->loss_chunks = pin != KNOB_OPEN ? pin : chunks < finest ? chunks : finest;
}

static int count_activations(const struct space *s, const struct point *p)
{
    const struct plan_request *r = s->request;
    bool can = s->reach > REACH_NOTHING && r->facts->async_copies && r->facts->lower_bandwidth > 0 &&
               (place_at(s, p)->grad == TIER_DEVICE || leaves_once(s, p) || s->reach == REACH_TOGETHER) &&
               r->pins.full_layers <= 0 && r->pins.offload_layers == KNOB_OPEN;
    return can ? r->layers + 1 : 1;
}

/* The link carries either activations or what the loop streams or updates, unless nothing fits that way. */
static void apply_activations(const struct space *s, const struct point *p, struct knobs *k)
{
    int64_t pin = s->request->pins.offload_layers;
    k->offload_layers = pin != KNOB_OPEN                             ? pin
                        : streams(s, p) && s->reach < REACH_TOGETHER ? 0
                                                                     : p->at[AXIS_ACTIVATIONS];
}

/* --- fp8 ----------------------------------------------------------------------------------------------------- */

static int count_fp8(const struct space *s, const struct point *)
{
    return s->request->fp8 && s->request->pins.keep_fp8 == KNOB_OPEN ? 2 : 1;
}

/* Kept fp8 numbers of parameters that are not here themselves would take their place. */
static void apply_fp8(const struct space *s, const struct point *p, struct knobs *k)
{
    int64_t pin = s->request->pins.keep_fp8;
    bool here = share_at(s, p).param == 0 && place_at(s, p)->zero < ZERO_PARAMS;
    k->keep_fp8 = s->request->fp8 && (pin != KNOB_OPEN ? pin : here && p->at[AXIS_FP8] == 0);
}

/* --- updates and prefetching ----------------------------------------------------------------------------------- */

/* In slices of OFFLOAD_SHARES; the first entry takes the least device memory. */
struct updater {
    int host, before; /* and of that, before the norm is known */
};
enum { ALL = OFFLOAD_SHARES };
static const struct updater_list {
    int count;
    struct updater items[4];
} updaters = {4, {{ALL}, {ALL * 5 / 8}, {ALL / 2}, {0}}},
  forward_updaters = {4, {{ALL}, {ALL * 3 / 4}, {ALL / 2}, {0}}},
  before_updaters = {4, {{ALL, ALL}, {ALL, ALL * 5 / 8}, {ALL * 7 / 8, ALL / 2}, {ALL * 3 / 4, ALL * 5 / 8}}},
  pinned_updaters = {3, {{ALL}, {ALL * 3 / 4}, {ALL / 2}}}; /* the part before the norm is pinned */

static const struct updater_list *updaters_at(const struct space *s, const struct point *p)
{
    const struct place *place = place_at(s, p);
    if (place->before) return s->request->pins.before_norm_share > 0 ? &pinned_updaters : &before_updaters;
    return place->forward ? &forward_updaters : &updaters;
}

static int count_updaters(const struct space *s, const struct point *p)
{
    const struct plan_request *r = s->request;
    bool can = share_at(s, p).state > 0 && r->facts->lower_tier == TIER_HOST &&
               r->facts->host_bandwidth > 0 && r->host_updates;
    bool open =
        r->pins.host_share == KNOB_OPEN || (place_at(s, p)->before && r->pins.before_norm_share == KNOB_OPEN);
    return can && open ? updaters_at(s, p)->count : 1;
}

static void apply_updater(const struct space *s, const struct point *p, struct knobs *k)
{
    int64_t pin = s->request->pins.host_share;
    bool host = share_at(s, p).state > 0 && s->request->facts->lower_tier == TIER_HOST;
    const struct updater *u = &updaters_at(s, p)->items[p->at[AXIS_UPDATER]];
    int64_t before = s->request->pins.before_norm_share;
    bool open = pin == KNOB_OPEN && count_updaters(s, p) > 1;
    k->host_share = open ? u->host : host && pin > 0 ? pin : 0;
    if (place_at(s, p)->before) k->before_norm_share = before > 0 ? before : u->before ? u->before : ALL;
}

/* Ranks exchange in every micro-batch, beside computing. */
static bool exchanges(const struct space *s, const struct point *p)
{
    const struct plan_request *r = s->request;
    return r->facts->async_exchanges && r->facts->ranks > 1 &&
           (!r->whole_grads || place_at(s, p)->zero >= ZERO_PARAMS);
}

static bool may_keep(const struct space *s, const struct point *p)
{
    return s->request->may_keep_gathered && place_at(s, p)->zero >= ZERO_PARAMS;
}

/* A disk below a CPU's memory works beside all that is computed, or beside most of it in less memory. */
static bool reads_disk(const struct space *s, const struct point *p)
{
    return s->request->facts->lower_tier == TIER_DISK && share_at(s, p).state > 0;
}

/* Values: keep gathered parameters where allowed; fetch early; fetch late. */
static int count_prefetch(const struct space *s, const struct point *p)
{
    bool late = exchanges(s, p) || reads_disk(s, p) || (s->request->facts->async_copies && streams(s, p));
    return 1 + late + may_keep(s, p);
}

static void apply_prefetch(const struct space *s, const struct point *p, struct knobs *k)
{
    int at = p->at[AXIS_PREFETCH], keep = may_keep(s, p), count = count_prefetch(s, p);
    bool late = at > keep && at < count;
    k->keep_gathered = keep && at == 0;
    k->prefetch_ops = !late ? PREFETCH_AHEAD : exchanges(s, p) ? PREFETCH_RANKS : PREFETCH_LEAST;
}

/* --- the table ------------------------------------------------------------------------------------------------ */

const struct axis space_axes[AXES] = {
    [AXIS_PLACE] = {"place", AXIS_EACH, .count = count_places, .apply = apply_place},
    [AXIS_MICRO] = {"micro_batch", AXIS_ORDERED, .count = count_micros, .apply = apply_micro},
    [AXIS_RECOMPUTE] = {"recompute", AXIS_ORDERED, .count = count_recompute, .kink = recompute_kink,
                        .apply = apply_recompute},
    [AXIS_CHUNKS] = {"loss_chunks", AXIS_ORDERED, .count = count_chunks, .apply = apply_chunks},
    [AXIS_ACTIVATIONS] = {"offload_layers", AXIS_ORDERED, .fills_host = true, .count = count_activations,
                          .apply = apply_activations},
    [AXIS_SHARE] = {"share", AXIS_ORDERED, .fills_host = true, .count = count_shares, .kink = share_kink,
                    .apply = apply_shares},
    [AXIS_FP8] = {"keep_fp8", AXIS_ORDERED, .count = count_fp8, .apply = apply_fp8},
    [AXIS_UPDATER] = {"host_share", AXIS_BEST, .count = count_updaters, .apply = apply_updater},
    [AXIS_PREFETCH] = {"prefetch_ops", AXIS_BEST, .count = count_prefetch, .apply = apply_prefetch},
};

enum plim_status space_init(struct space *s, const struct plan_request *request, struct plim_error *err)
{
    *s = (struct space){.request = request, .reach = REACH_ALL};
    list_places(s);
    enum plim_status status = list_micros(s, err);
    return status == PLIM_OK ? list_recompute(s, err) : status;
}

void space_release(struct space *s)
{
    free(s->recompute);
    *s = (struct space){0};
}

int space_count(const struct space *s, enum axis_id axis, const struct point *point)
{
    return space_axes[axis].count(s, point);
}

int space_kink(const struct space *s, enum axis_id axis, const struct point *point)
{
    int kink = space_axes[axis].kink ? space_axes[axis].kink(s, point) : 0;
    return kink > point->at[axis] ? kink : space_count(s, axis, point) - 1;
}

struct knobs space_knobs(const struct space *s, const struct point *point)
{
    struct knobs k = {0};
    for (int a = 0; a < AXES; a++) space_axes[a].apply(s, point, &k);
    int64_t others = s->request->layers - k.offload_layers; /* an offloaded layer is not recomputed */
    if (k.full_layers > others) k.full_layers = others < 0 ? 0 : others;
    return k;
}

/* Where gradients do not leave: updates inside forward send them with their state. */
static int home_place(const struct space *s, int place)
{
    const struct place *from = &s->places[place];
    int found = place;
    for (int i = 0; i < s->nplaces && from->forward; i++) {
        const struct place *p = &s->places[i];
        if (p->inside || p->forward || p->zero != from->zero) continue;
        if (p->grad == TIER_DEVICE) return i;
        if (from->before) found = i; /* gradients are pinned elsewhere */
    }
    return found;
}

struct point space_at_home(const struct space *s, const struct point *point)
{
    struct point p = *point;
    p.at[AXIS_PLACE] = home_place(s, p.at[AXIS_PLACE]);
    p.at[AXIS_SHARE] = p.at[AXIS_ACTIVATIONS] = p.at[AXIS_UPDATER] = 0;
    int last = count_prefetch(s, &p) - 1;
    if (p.at[AXIS_PREFETCH] > last) p.at[AXIS_PREFETCH] = last;
    return p;
}
