/* oracle.c - parts of tapes, remembered. See oracle.h. */
#include "plan/oracle.h"
#include "base/hash.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void oracle_init(struct oracle *o, const struct plan_request *request)
{
    *o = (struct oracle){.request = request};
    tape_init(&o->tape);
    for (int i = 0; i < 2; i++) tape_init(&o->computed[i].tape);
}

static void forget_computed(struct oracle *o)
{
    for (int i = 0; i < 2; i++) tape_release(&o->computed[i].tape), o->computed[i].made = false;
}

void oracle_rest(struct oracle *o)
{
    tape_release(&o->tape);
    forget_computed(o);
}

void oracle_release(struct oracle *o)
{
    oracle_rest(o);
    free(o->loops.items), free(o->loops.slots);
    free(o->updates.items), free(o->updates.slots);
    *o = (struct oracle){0};
}

static bool streams(const struct oracle *o, const struct knobs *k)
{
    return k->param_tier != TIER_DEVICE || k->grad_tier != TIER_DEVICE || o->request->facts->ranks > 1;
}

/* Gradients on a lower tier that leave with a part of the state: which of them do depends on its share. */
static bool sends_part(const struct knobs *k)
{
    return k->grad_tier != TIER_DEVICE && k->state_share > 0 && k->state_share < OFFLOAD_SHARES;
}

/* The knobs that the loop depends on: state is touched there only by updates inside it. */
static struct knobs loop_key(const struct oracle *o, const struct knobs *k)
{
    struct knobs key = *k;
    key.accumulation = 0;
    if (!knobs_inside(k)) {
        if (!sends_part(k)) key.state_tier = key.state_share = 0;
        key.host_share = 0;
        if (key.disk_share <= OFFLOAD_SHARES) key.disk_share = 0; /* no parameters */
    }
    if (!streams(o, k) && key.state_tier != TIER_DISK) key.prefetch_ops = 0;
    return key;
}

static struct knobs update_key(const struct oracle *o, const struct knobs *k)
{
    if (knobs_inside(k)) return loop_key(o, k);
    return (struct knobs){.zero = k->zero,
                          .state_tier = k->state_tier,
                          .state_share = k->state_share,
                          .prefetch_ops = k->state_tier == TIER_DISK ? k->prefetch_ops : 0,
                          .host_share = k->host_share,
                          .grad_tier = k->grad_tier,
                          .param_tier = k->param_tier,
                          .param_share = k->param_share,
                          .disk_share = k->disk_share};
}

/* Where a key is in the list's index, or would be: an index into slots, at most half of which are taken. */
static int slot_of(const struct part_list *list, const struct knobs *key)
{
    uint64_t hash = hash64(key, sizeof *key, 0);
    for (int slot = (int)(hash % (uint64_t)list->nslots);; slot = (slot + 1) % list->nslots)
        if (!list->slots[slot] || knobs_equal(&list->items[list->slots[slot] - 1].key, key)) return slot;
}

static const struct part_cost *find(const struct part_list *list, const struct knobs *key)
{
    if (!list->nslots) return NULL;
    int at = list->slots[slot_of(list, key)];
    return at ? &list->items[at - 1] : NULL;
}

static bool grow(struct part_list *list)
{
    int cap = list->cap ? 2 * list->cap : 64;
    struct part_cost *items = realloc(list->items, (size_t)cap * sizeof *items);
    if (!items) return false;
    list->items = items, list->cap = cap;
    int *slots = calloc(2 * (size_t)cap, sizeof *slots);
    if (!slots) return false;
    free(list->slots);
    list->slots = slots, list->nslots = 2 * cap;
    for (int i = 0; i < list->count; i++) list->slots[slot_of(list, &items[i].key)] = i + 1;
    return true;
}

static enum plim_status add(struct part_list *list, const struct part_cost *cost, struct plim_error *err)
{
    if (find(list, &cost->key)) return PLIM_OK;
    if (list->count == list->cap && !grow(list))
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory while plans were compared");
    list->slots[slot_of(list, &cost->key)] = list->count + 1;
    list->items[list->count++] = *cost;
    return PLIM_OK;
}

/* Where the budget is the process's own memory, tapes beyond this are not worth to be held twice. */
#define REMEMBERED_MOST (1 << 20)

static int64_t tape_bytes(const struct tape *tape)
{
    return (int64_t)((size_t)tape->nops * sizeof *tape->ops + (size_t)tape->ntensors * sizeof *tape->tensors);
}

/* The tape of these knobs, or one part of it, in o->tape. What is computed does not change with tiers and shares, and is
 * remembered: of the update always, of the loop for the knobs that were asked last. */
static enum plim_status build(struct oracle *o, const struct knobs *knobs, enum tape_part part,
                              struct plim_error *err)
{
    const struct plan_request *r = o->request;
    struct computed *c = &o->computed[part == TAPE_UPDATE];
    struct knobs key = plan_compute_knobs(knobs);
    if (part == TAPE_UPDATE) key = (struct knobs){.grad_tier = knobs->grad_tier};
    if (o->frugal) {
        enum plim_status status = r->compute(r, knobs, part, &o->tape, err);
        return status == PLIM_OK ? r->place(r, knobs, &o->tape, err) : status;
    }
    if (!c->made || c->part != part || !knobs_equal(&c->key, &key)) {
        c->made = false;
        enum plim_status status = r->compute(r, knobs, part, &c->tape, err);
        if (status != PLIM_OK) return status;
        c->made = true, c->part = part, c->key = key;
        tape_trim(&c->tape);
        o->frugal = r->facts->unified_memory && tape_bytes(&c->tape) > REMEMBERED_MOST;
    }
    if (o->frugal) {
        tape_release(&o->tape);
        o->tape = c->tape, tape_init(&c->tape);
        forget_computed(o);
    } else if (!tape_borrow(&o->tape, &c->tape)) {
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory while plans were compared");
    }
    return r->place(r, knobs, &o->tape, err);
}

static int64_t offloaded_activations(const struct tape *tape, int64_t align)
{
    int64_t bytes = 0;
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *t = &tape->tensors[i];
        if (t->cls == CLASS_ACT && t->view_of < 0 && t->tier == TIER_HOST)
            bytes += (tensor_bytes(t) + align - 1) / align * align;
    }
    return bytes;
}

/* A tape that cannot be held while plans are compared cannot be run either: its plan takes more than there is. */
#define TOO_LARGE (INT64_MAX / 8)
#define TOO_LONG  1e30

static enum plim_status remember(struct oracle *o, const struct part_cost *loop,
                                 const struct part_cost *update, enum tape_part part, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    if (part != TAPE_UPDATE) status = add(&o->loops, loop, err);
    if (status == PLIM_OK && part != TAPE_LOOP) status = add(&o->updates, update, err);
    return status;
}

/* Builds the tape of these knobs, or one part of it, and measures it. */
static enum plim_status measure(struct oracle *o, const struct knobs *knobs, enum tape_part part,
                                struct part_cost *loop, struct part_cost *update, struct plim_error *err)
{
    const struct plan_request *r = o->request;
    struct layout layout = {0};
    struct layout_options options = plan_layout_options(r, knobs);
    struct tape_time time = {0};
    enum plim_status status = build(o, knobs, part, err);
    if (status != PLIM_OK) return status;
    struct plan_own least = plan_own_bytes(&o->tape, &(struct layout){.part_tensors = {o->tape.ntensors, 0}});
    int64_t held = least.loop + least.update;                              /* other ranks' tensors, too */
    if (held > plan_tape_most(r)) return plan_refuse_search(r, held, err); /* before the layout is made */
    status = layout_bound(&o->tape, &options, &layout, err);
    if (status != PLIM_OK) return status;
    status = tape_time_of(&o->tape, r->facts, knobs->accumulation == 1, &time, err);
    struct plan_own own = plan_own_bytes(&o->tape, &layout);
    if (own.loop + own.update > held) held = own.loop + own.update;
    o->tapes++, o->work += o->tape.nops;
    if (status == PLIM_OK && held > plan_tape_most(r)) status = plan_refuse_search(r, held, err);
    if (status == PLIM_OK && held > o->largest) o->largest = held;
    loop->tape = own.loop, update->tape = own.update;
    own = plan_own_all(r, &o->tape, &layout);
    loop->forward = time.forward_seconds;
    loop->seconds = time.loop_seconds, update->seconds = time.update_seconds;
    memcpy(loop->busy, time.loop_busy, sizeof loop->busy),
        memcpy(update->busy, time.update_busy, sizeof update->busy);
    loop->own = own.loop, update->own = own.update;
    loop->peak = layout.part_peak[0], update->peak = layout.part_peak[1];
    loop->offloaded = offloaded_activations(&o->tape, (int64_t)r->facts->align);
    update->offloaded = layout.tier_bytes[TIER_HOST] - loop->offloaded;
    update->kept = layout.kept_bytes;
    loop->on_disk = update->on_disk = layout.tier_bytes[TIER_DISK] > 0;
    layout_release(&layout);
    return status;
}

/* Measures the tape of these knobs, or one part of it, and caches the result. */
static enum plim_status look(struct oracle *o, const struct knobs *knobs, enum tape_part part,
                             struct plim_error *err)
{
    struct part_cost loop = {.key = loop_key(o, knobs)}, update = {.key = update_key(o, knobs)};
    enum plim_status status = measure(o, knobs, part, &loop, &update, err);
    if (status == PLIM_NO_FIT && o->patient) {
        loop.peak = update.peak = TOO_LARGE, loop.seconds = update.seconds = TOO_LONG;
        status = PLIM_OK;
    }
    return status == PLIM_OK ? remember(o, &loop, &update, part, err) : status;
}

/* Only what is unknown is built: one part, beside which the other is as small as it can be. */
static enum plim_status look_for(struct oracle *o, const struct knobs *k, bool loop, bool update,
                                 struct plim_error *err)
{
    struct knobs at = *k;
    if (knobs_inside(k)) return look(o, k, TAPE_WHOLE, err);
    enum plim_status status = PLIM_OK;
    if (!loop) {
        if (k->param_tier == TIER_DEVICE) at.host_share = at.disk_share = 0;
        if (k->param_tier == TIER_DEVICE && !sends_part(k)) at.state_tier = TIER_DEVICE, at.state_share = 0;
        status = look(o, &at, TAPE_LOOP, err);
        at = *k;
    }
    if (!update && status == PLIM_OK) {
        at.recompute = RECOMPUTE_NONE, at.full_layers = 0, at.loss_chunks = 1, at.offload_layers = 0;
        status = look(o, &at, TAPE_UPDATE, err);
    }
    return status;
}

struct parts {
    const struct part_cost *loop, *update;
};

static enum plim_status find_parts(struct oracle *o, const struct knobs *k, struct parts *out,
                                   struct plim_error *err)
{
    struct knobs loop_knobs = loop_key(o, k), update_knobs = update_key(o, k);
    *out = (struct parts){find(&o->loops, &loop_knobs), find(&o->updates, &update_knobs)};
    if (out->loop && out->update) return PLIM_OK;
    enum plim_status status = look_for(o, k, out->loop != NULL, out->update != NULL, err);
    *out = (struct parts){find(&o->loops, &loop_knobs), find(&o->updates, &update_knobs)};
    return status;
}

enum plim_status oracle_ask(struct oracle *o, const struct knobs *k, struct plan_bound *out,
                            struct plim_error *err)
{
    struct parts p;
    enum plim_status status = find_parts(o, k, &p, err);
    if (status != PLIM_OK) return status;
    int64_t arena = p.update->kept + (p.loop->peak > p.update->peak ? p.loop->peak : p.update->peak);
    plan_lines(o->request, k, arena, p.loop->own + p.update->own, p.loop->offloaded + p.update->offloaded,
               p.loop->on_disk || p.update->on_disk, out);
    out->tape = p.loop->tape + p.update->tape;
    out->step_seconds = (double)k->accumulation * p.loop->seconds + p.update->seconds;
    return PLIM_OK;
}

/* The update's ops as updates inside forward have them, without the loop: what its lanes have to do there. */
static enum plim_status find_forward_update(struct oracle *o, const struct knobs *k, struct parts *p,
                                            struct plim_error *err)
{
    struct knobs at = *k;
    at.optimizer_in_forward = at.before_norm_share = 0;
    struct part_cost loop = {0}, update = {.key = update_key(o, &at)};
    update.key.optimizer_in_forward = 1;
    p->update = find(&o->updates, &update.key);
    if (p->update) return PLIM_OK;
    at.optimizer_in_forward = 1;
    at.recompute = RECOMPUTE_NONE, at.full_layers = 0, at.loss_chunks = 1, at.offload_layers = 0;
    enum plim_status status = measure(o, &at, TAPE_UPDATE, &loop, &update, err);
    if (status == PLIM_NO_FIT && o->patient) status = PLIM_OK; /* no bound */
    if (status == PLIM_OK) status = add(&o->updates, &update, err);
    p->update = find(&o->updates, &update.key);
    return status;
}

enum plim_status oracle_least_inside(struct oracle *o, const struct knobs *k, double *out,
                                     struct plim_error *err)
{
    struct parts p;
    struct knobs apart = *k;
    apart.optimizer_in_backward = apart.optimizer_in_forward = apart.before_norm_share = 0;
    enum plim_status status = find_parts(o, &apart, &p, err);
    if (status == PLIM_OK && k->optimizer_in_forward) status = find_forward_update(o, k, &p, err);
    *out = 0;
    for (int lane = 0; lane < LANES && status == PLIM_OK; lane++)
        *out = fmax(*out, (double)k->accumulation * p.loop->busy[lane] + p.update->busy[lane]);
    if (!k->optimizer_in_forward || status != PLIM_OK) return status;
    /* The first micro-batch's forward does not end before what is fetched and what the host updates is there. */
    double early =
        (double)(OFFLOAD_SHARES - k->before_norm_share) / OFFLOAD_SHARES; /* the others need not be */
    double updates = fmax(p.update->busy[LANE_COPY_IN], p.update->busy[LANE_HOST] * early);
    double behind = (double)k->accumulation * p.loop->seconds - p.loop->forward;
    *out = fmax(*out, behind + fmax(updates, p.loop->forward));
    return status;
}

enum plim_status oracle_least_bytes(struct oracle *o, const struct knobs *k, struct plan_bound *out,
                                    struct plim_error *err)
{
    struct parts p;
    struct knobs apart = *k;
    apart.optimizer_in_forward = apart.before_norm_share = 0;
    enum plim_status status = find_parts(o, &apart, &p, err);
    if (status != PLIM_OK) return status;
    plan_lines(o->request, k, p.update->kept + p.loop->peak, p.loop->own, p.loop->offloaded, p.loop->on_disk,
               out);
    out->tape = p.loop->tape;
    return PLIM_OK;
}

enum plim_status oracle_exchanges(struct oracle *o, const struct knobs *k, struct exchange_seconds *out,
                                  struct plim_error *err)
{
    struct parts p;
    struct knobs apart = *k;
    apart.optimizer_in_backward = apart.optimizer_in_forward = apart.before_norm_share = 0;
    enum plim_status status = find_parts(o, &apart, &p, err);
    if (status == PLIM_OK)
        *out = (struct exchange_seconds){(double)k->accumulation * p.loop->busy[LANE_LINK],
                                         p.update->busy[LANE_LINK]};
    return status;
}

enum plim_status oracle_kept(struct oracle *o, const struct knobs *k, struct plan_bound *out,
                             struct plim_error *err)
{
    struct knobs apart = *k;
    apart.optimizer_in_backward = apart.optimizer_in_forward = apart.before_norm_share = 0;
    struct knobs key = update_key(o, &apart);
    enum plim_status status = find(&o->updates, &key) ? PLIM_OK : look_for(o, &apart, true, false, err);
    if (status == PLIM_OK) plan_lines(o->request, k, find(&o->updates, &key)->kept, 0, 0, false, out);
    return status;
}

enum plim_status oracle_update_seconds(struct oracle *o, const struct knobs *k, double *out,
                                       struct plim_error *err)
{
    struct knobs key = update_key(o, k);
    enum plim_status status = find(&o->updates, &key) ? PLIM_OK : look_for(o, k, true, false, err);
    if (status == PLIM_OK) *out = find(&o->updates, &key)->seconds;
    return status;
}
