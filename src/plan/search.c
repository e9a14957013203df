/* search.c - the fastest predicted plan that fits the budget.
 *
 * Two facts keep the search small. Memory grows with the micro-batch (but for the last step, to one micro-batch in all)
 * and shrinks with the other knobs, so for each
 * way of recomputing and placing state the largest micro-batch that fits is found by bisection. And cutting the
 * loss is nearly free, so a way is first tried with the finest cut and the coarsest that still fits is taken at
 * the end. A way that does not fit with the smallest micro-batch is out. How many layers are made again is asked in
 * quarters first and one by one of the best. What is on lower tiers is search_places.c's question: free first, offload
 * last.
 */
#include "plan/search.h"
#include "base/bytes.h"
#include "base/clock.h"

#include <math.h>
#include <stdlib.h>

int search_finest_cut(const struct plan_request *r, int64_t micro_batch)
{
    int64_t blocks = (micro_batch * r->time + LOSS_CHUNK_ROWS - 1) / LOSS_CHUNK_ROWS;
    return blocks > 4096 ? 4096 : (int)blocks;
}

struct knobs search_knobs(const struct search *s, const struct way *way, int64_t micro_batch, int chunks)
{
    const struct plan_request *r = s->request;
    struct knobs k = {.micro_batch = micro_batch,
                      .accumulation = r->rows / micro_batch,
                      .recompute = way->recompute,
                      .full_layers = way->full_layers,
                      .loss_chunks = chunks,
                      .state_tier = way->place.state_tier,
                      .state_share = way->place.state_share,
                      .grad_tier = way->place.grad_tier,
                      .param_tier = way->place.param_tier,
                      .param_share = way->place.param_share,
                      .host_share = way->place.host_share};
    bool possible = k.accumulation == 1 && !r->needs_global_norm;
    k.optimizer_in_backward = way->in_backward && possible;
    if (r->pins.loss_chunks != KNOB_OPEN) k.loss_chunks = r->pins.loss_chunks;
    if (r->pins.offload_layers != KNOB_OPEN) k.offload_layers = r->pins.offload_layers;
    return k;
}

static bool same_knobs(const struct knobs *a, const struct knobs *b)
{
    return a->micro_batch == b->micro_batch && a->recompute == b->recompute &&
           a->full_layers == b->full_layers && a->loss_chunks == b->loss_chunks &&
           a->optimizer_in_backward == b->optimizer_in_backward && a->state_tier == b->state_tier &&
           a->grad_tier == b->grad_tier && a->state_share == b->state_share &&
           a->host_share == b->host_share && a->param_tier == b->param_tier &&
           a->param_share == b->param_share && a->offload_layers == b->offload_layers && a->late == b->late;
}

static bool has_host_ops(const struct tape *tape)
{
    for (int i = 0; i < tape->nops; i++)
        if (tape->ops[i].attr.on_host) return true;
    return false;
}

static enum plim_status ask(struct search *s, const struct knobs *knobs, struct plan_bound *bound)
{
    for (int i = 0; i < s->nasked && i < REMEMBERED; i++)
        if (same_knobs(&s->asked[i].knobs, knobs)) {
            *bound = s->asked[i].bound;
            return PLIM_OK;
        }
    enum plim_status status = plan_bound_of(s->request, knobs, &s->room, bound, s->err);
    if (status != PLIM_OK) return status;
    s->asked[s->nasked++ % REMEMBERED] = (struct asked){*knobs, *bound};
    s->tried++, s->made += s->room.nops;
    if (knobs->host_share == OFFLOAD_SHARES && !has_host_ops(&s->room))
        s->no_host_updates[knobs->param_tier != TIER_DEVICE] = true;
    return PLIM_OK;
}

/* Do parameters or gradients come and go beside computing? */
static bool has_streams(const struct search *s, const struct knobs *k)
{
    return s->request->facts->async_copies && (k->param_tier != TIER_DEVICE || k->grad_tier != TIER_DEVICE);
}

/* What late fetches take less of the device, at most: an eighth, and about a layer of the largest models. */
#define LATE_SAVES ((int64_t)4 << 30)

/* They take more time, so they are asked only where early ones do not fit. */
static enum plim_status ask_early_or_late(struct search *s, struct knobs *knobs, struct plan_bound *bound)
{
    enum plim_status status = ask(s, knobs, bound);
    if (status != PLIM_OK || knobs->late || !has_streams(s, knobs)) return status;
    int64_t saves = bound->total / 8 < LATE_SAVES ? bound->total / 8 : LATE_SAVES;
    if (bound->total <= s->allowed || bound->total - saves > s->allowed) return PLIM_OK;
    knobs->late = 1;
    return ask(s, knobs, bound);
}

enum plim_status search_try(struct search *s, struct knobs *knobs, struct plan_bound *bound, bool *fits)
{
    enum plim_status status = ask_early_or_late(s, knobs, bound);
    if (status != PLIM_OK) return status;
    *fits =
        bound->total <= s->allowed && (s->device_only || plan_within(s->request, bound->total, bound->host));
    /* The nearest miss: what holds the device's line and takes least of the host, else what takes least of the device. */
    bool holds = bound->total <= s->request->budget;
    int64_t takes = holds ? bound->host : bound->total;
    bool nearer =
        takes < s->smallest_takes || (takes == s->smallest_takes && bound->total < s->smallest_total);
    if (holds != s->smallest_holds) nearer = holds;
    if (!s->has_smallest || nearer) {
        s->has_smallest = true, s->smallest = *knobs, s->smallest_holds = holds;
        s->smallest_takes = takes, s->smallest_total = bound->total;
        if (s->no_host_updates[knobs->param_tier != TIER_DEVICE]) s->smallest.host_share = 0;
    }
    return PLIM_OK;
}

/* A later candidate must be clearly faster. Updating inside backward must earn its place: it takes away the
 * gradient norm that people watch. */
void search_consider(struct candidate *best, const struct knobs *knobs, double seconds)
{
    double margin = knobs->optimizer_in_backward && !best->knobs.optimizer_in_backward ? 0.97 : 0.999;
    if (best->found && seconds >= best->seconds * margin) return;
    *best = (struct candidate){true, *knobs, seconds};
}

/* Largest micro-batch of a way that fits, and (since smaller ones can be faster on machines with a cache) every
 * one below it while time keeps falling. */
static enum plim_status search_way(struct search *s, const struct way *way, bool *fitted)
{
    int low = 0, high = s->ndivisors - 1;
    struct plan_bound bound;
    bool fits;
    enum plim_status status;
    *fitted = false;
    /* The optimizer inside backward needs accumulation 1, so its one micro-batch is the whole. */
    if (way->in_backward) low = high;
    struct knobs k = search_knobs(s, way, s->divisors[low], search_finest_cut(s->request, s->divisors[low]));
    if ((status = search_try(s, &k, &bound, &fits)) != PLIM_OK || !fits) return status;
    *fitted = true;
    search_consider(&s->best, &k, bound.step_seconds);
    double previous = bound.step_seconds;
    /* Gradients of the whole batch at once are not carried from part to part: it may fit where half of it does not. */
    if (low < high && s->divisors[high] == s->request->rows && s->room.nops < FINE_OPS / 2) {
        k = search_knobs(s, way, s->divisors[high], search_finest_cut(s->request, s->divisors[high]));
        if ((status = search_try(s, &k, &bound, &fits)) != PLIM_OK) return status;
        if (fits) search_consider(&s->best, &k, bound.step_seconds);
        if (fits && bound.step_seconds <= previous && s->request->facts->async_copies) return PLIM_OK;
        high--;
    }
    while (low < high) {
        int mid = (low + high + 1) / 2;
        k = search_knobs(s, way, s->divisors[mid], search_finest_cut(s->request, s->divisors[mid]));
        if ((status = search_try(s, &k, &bound, &fits)) != PLIM_OK) return status;
        if (fits) search_consider(&s->best, &k, bound.step_seconds);
        /* Beyond the point where time stops falling there is nothing to gain from a larger one. */
        if (fits && bound.step_seconds <= previous)
            low = mid, previous = bound.step_seconds;
        else
            high = mid - 1;
    }
    return PLIM_OK;
}

/* The coarsest cut of the loss that still fits. */
static enum plim_status coarsen_cut(struct search *s)
{
    if (s->request->pins.loss_chunks != KNOB_OPEN) return PLIM_OK;
    for (int chunks = 1; chunks < s->best.knobs.loss_chunks; chunks *= 2) {
        struct knobs k = s->best.knobs;
        struct plan_bound bound;
        bool fits;
        k.loss_chunks = chunks;
        enum plim_status status = search_try(s, &k, &bound, &fits);
        if (status != PLIM_OK) return status;
        if (!fits || bound.step_seconds > s->best.seconds) continue;
        s->best.knobs = k, s->best.seconds = bound.step_seconds;
        break;
    }
    return PLIM_OK;
}

/* The best plan with another micro-batch and so many layers made again in full. */
static struct knobs with_layers(const struct search *s, int64_t micro_batch, int layers)
{
    struct knobs k = s->best.knobs;
    int others = s->request->layers - k.offload_layers;
    k.micro_batch = micro_batch, k.accumulation = s->request->rows / micro_batch;
    k.recompute = layers < s->request->layers ? RECOMPUTE_SELECTIVE : RECOMPUTE_FULL;
    k.full_layers = layers == s->request->layers ? 0 : layers < others ? layers : others;
    k.late = 0; /* search_try's to say */
    k.loss_chunks = s->request->pins.loss_chunks != KNOB_OPEN ? s->request->pins.loss_chunks
                                                              : search_finest_cut(s->request, micro_batch);
    return k;
}

/* Of more than none, up to `most`, which fit: the fewest layers that do. Of large tapes nearly the fewest. */
static enum plim_status remake_fewest(struct search *s, int64_t micro_batch, int most)
{
    int none = 0, step = s->room.nops < FINE_OPS ? 1 : 1 + s->request->layers / 16;
    while (most - none > step) {
        int layers = (none + most) / 2;
        struct knobs k = with_layers(s, micro_batch, layers);
        struct plan_bound bound;
        bool fits;
        enum plim_status status = search_try(s, &k, &bound, &fits);
        if (status != PLIM_OK) return status;
        if (fits) search_consider(&s->best, &k, bound.step_seconds);
        *(fits ? &most : &none) = layers;
    }
    return PLIM_OK;
}

/* A larger micro-batch that only a few more such layers keep from being faster. */
static enum plim_status remake_for(struct search *s, int64_t micro_batch)
{
    int layers = s->request->layers, ends[] = {0, layers};
    struct plan_bound bound[2];
    bool fits[2];
    for (int i = 0; i < 2; i++) {
        struct knobs k = with_layers(s, micro_batch, ends[i]);
        enum plim_status status = search_try(s, &k, &bound[i], &fits[i]);
        if (status != PLIM_OK) return status;
        if (fits[i]) search_consider(&s->best, &k, bound[i].step_seconds);
    }
    double each = (bound[1].step_seconds - bound[0].step_seconds) / layers;
    double spare = 0.99 * s->best.seconds - bound[0].step_seconds;
    if (fits[0] || !fits[1] || spare < each) return PLIM_OK;
    int most = spare < each * layers ? (int)(spare / each) : layers;
    struct knobs k = with_layers(s, micro_batch, most);
    enum plim_status status = search_try(s, &k, &bound[0], &fits[0]);
    if (status != PLIM_OK || !fits[0]) return status;
    search_consider(&s->best, &k, bound[0].step_seconds);
    return remake_fewest(s, micro_batch, most);
}

static enum plim_status count_layers(struct search *s)
{
    const struct knobs *pins = &s->request->pins;
    const struct knobs first = s->best.knobs;
    bool large = s->room.nops >= FINE_OPS;
    if (pins->recompute != KNOB_OPEN || pins->full_layers != KNOB_OPEN) return PLIM_OK;
    if (large && s->made > SEARCH_PATIENCE) return PLIM_OK;
    int most = first.recompute == RECOMPUTE_FULL ? s->request->layers : first.full_layers;
    enum plim_status status = most ? remake_fewest(s, first.micro_batch, most) : PLIM_OK;
    int at = 0;
    while (at < s->ndivisors && s->divisors[at] <= first.micro_batch) at++;
    return status == PLIM_OK && !large && at < s->ndivisors ? remake_for(s, s->divisors[at]) : status;
}

/* Fewer layers may leave no room for coarser cuts: the faster of both wins. */
static enum plim_status finish(struct search *s)
{
    struct candidate fine = s->best, coarse;
    enum plim_status status = coarsen_cut(s);
    coarse = s->best, s->best = fine;
    if (status == PLIM_OK) status = count_layers(s);
    if (status == PLIM_OK) status = coarsen_cut(s);
    if (s->best.seconds >= coarse.seconds) s->best = coarse;
    return status;
}

/* The best of all is found and finished; each placement that may park may still beat it that way. */
static enum plim_status park(struct search *s)
{
    struct candidate best = s->best;
    enum plim_status status = best.found ? PLIM_OK : search_park(s, INFINITY);
    if (!best.found) return status;
    for (int i = 0; i < s->nnear && status == PLIM_OK; i++) {
        s->best = s->near[i];
        status = search_park(s, best.seconds);
        if (status == PLIM_OK && s->best.knobs.offload_layers > 0) status = finish(s);
        if (s->best.knobs.offload_layers > 0 && s->best.seconds < 0.995 * best.seconds) best = s->best;
    }
    s->best = best;
    return status;
}

static bool is_allowed(const struct knobs *pins, const struct way *way)
{
    return (pins->recompute == KNOB_OPEN || pins->recompute == way->recompute) &&
           (pins->full_layers == KNOB_OPEN || pins->full_layers == way->full_layers) &&
           (pins->optimizer_in_backward == KNOB_OPEN || pins->optimizer_in_backward == way->in_backward) &&
           (pins->state_tier == KNOB_OPEN || pins->state_tier == way->place.state_tier) &&
           (pins->grad_tier == KNOB_OPEN || pins->grad_tier == way->place.grad_tier) &&
           (pins->param_tier == KNOB_OPEN || pins->param_tier == way->place.param_tier);
}

/* Ways of recomputing, from free to costly: in quarters of the layers between selective and full. */
static int recompute_ways(const struct plan_request *r, struct way *ways)
{
    int n = 0;
    ways[n++] = (struct way){.recompute = RECOMPUTE_NONE};
    ways[n++] = (struct way){.recompute = RECOMPUTE_SELECTIVE};
    for (int quarter = 1; quarter < 4; quarter++) {
        int layers = r->layers * quarter / 4;
        if (layers > 0 && layers < r->layers)
            ways[n++] = (struct way){.recompute = RECOMPUTE_SELECTIVE, .full_layers = layers};
    }
    ways[n++] = (struct way){.recompute = RECOMPUTE_FULL};
    const struct knobs *pins = &r->pins;
    if (pins->full_layers > 0) {
        int policy = pins->recompute == KNOB_OPEN ? RECOMPUTE_SELECTIVE : pins->recompute;
        ways[n++] = (struct way){.recompute = policy, .full_layers = pins->full_layers};
    }
    return n;
}

int search_ways(const struct search *s, const struct place *place, int in_backward, struct way *ways)
{
    int n = recompute_ways(s->request, ways), allowed = 0;
    for (int i = 0; i < n; i++) {
        struct way way = ways[i];
        way.place = *place, way.in_backward = in_backward;
        if (is_allowed(&s->request->pins, &way)) ways[allowed++] = way;
    }
    return allowed;
}

/* Does this way fit with the smallest micro-batch? */
enum plim_status search_tightest(struct search *s, const struct way *way, struct plan_bound *bound,
                                 bool *fits)
{
    int64_t micro_batch = s->divisors[way->in_backward ? s->ndivisors - 1 : 0];
    struct knobs k = search_knobs(s, way, micro_batch, search_finest_cut(s->request, micro_batch));
    return search_try(s, &k, bound, fits);
}

/* Does any way of the list fit? The one that recomputes most needs least when activations are the peak. Where weights and
 * gradients are, what a whole layer takes while it is made again can make others the smaller: by a few per cent, by more
 * when parameters of small models come and go. */
enum plim_status search_any_fits(struct search *s, const struct way *ways, int n, bool *fits)
{
    struct plan_bound bound;
    *fits = false;
    enum plim_status status = n ? search_tightest(s, &ways[n - 1], &bound, fits) : PLIM_OK;
    if (!n || *fits || status != PLIM_OK) return status;
    int part = s->room.nops >= FINE_OPS ? 24 : ways[0].place.param_tier != TIER_DEVICE ? 2 : 8;
    if (bound.total - bound.total / part > s->allowed) return status;
    for (int i = n - 2; i >= 0 && !*fits && status == PLIM_OK; i--)
        status = search_tightest(s, &ways[i], &bound, fits);
    return status;
}

/* One list of ways, from free to costly. Once one fits, ways that recompute more are slower and can only win
 * through a larger micro-batch: look at one more, then stop. Far gradients and parameters travel once per micro-batch, so
 * there larger ones are worth most: from costly to free, as long as it pays. */
static enum plim_status search_list(struct search *s, const struct way *ways, int n)
{
    bool fits = false;
    enum plim_status status = search_any_fits(s, ways, n, &fits);
    bool reverse = n && (ways[0].place.grad_tier != TIER_DEVICE || ways[0].place.param_tier != TIER_DEVICE);
    bool before = false; /* one of this list has fitted */
    for (int i = 0; i < n && fits && status == PLIM_OK; i++) {
        bool fitted;
        double best = s->best.found ? s->best.seconds : INFINITY;
        status = search_way(s, &ways[reverse ? n - 1 - i : i], &fitted);
        if (before && !(reverse && s->best.seconds < best)) break;
        before = before || fitted;
        s->fitted = s->fitted || fitted;
    }
    return status;
}

bool search_inside(const struct search *s, int grad_tier)
{
    return !s->request->needs_global_norm && grad_tier == TIER_DEVICE &&
           s->divisors[s->ndivisors - 1] == s->request->rows;
}

/* All ways with one placement, with the optimizer at the end or inside backward (where gradients do not wait for
 * anything). */
enum plim_status search_placement(struct search *s, const struct place *place)
{
    enum plim_status status = PLIM_OK;
    int inside = search_inside(s, place->grad_tier);
    s->fitted = false;
    for (int in_backward = 0; in_backward <= inside && status == PLIM_OK; in_backward++) {
        struct way ways[SEARCH_WAYS];
        struct place with = *place;
        status = search_updater(s, &with, in_backward);
        int n = search_ways(s, &with, in_backward, ways);
        if (status == PLIM_OK) status = search_list(s, ways, n);
    }
    return status;
}

static enum plim_status list_divisors(struct search *s)
{
    const struct plan_request *r = s->request;
    int64_t pin = r->pins.micro_batch;
    if (pin != KNOB_OPEN && (pin < 1 || r->rows % pin))
        return plim_fail(s->err, PLIM_BAD_INPUT,
                         "training.micro_batch_size %lld does not divide the effective batch of %lld rows; "
                         "choose a divisor",
                         (long long)pin, (long long)r->rows);
    int n = 0;
    if (pin != KNOB_OPEN) {
        s->divisors[n++] = pin;
    } else {
        for (int64_t d = 1; d * d <= r->rows && n < MAX_DIVISORS / 2; d++)
            if (r->rows % d == 0 && (d == 1 || d * r->time <= MAX_TOKENS)) s->divisors[n++] = d;
        for (int i = n - 1; i >= 0; i--) { /* the other half mirrors the first */
            int64_t other = r->rows / s->divisors[i];
            if (other != s->divisors[i] && other * r->time <= MAX_TOKENS) s->divisors[n++] = other;
        }
    }
    s->ndivisors = n;
    return PLIM_OK;
}

static enum plim_status nothing_fits(struct search *s, struct plan *out, struct plim_error *err)
{
    char need[32], have[32], missing[32];
    if (!s->has_smallest) return plim_fail(err, PLIM_BAD_INPUT, "the pinned settings exclude each other");
    s->smallest.late = has_streams(s, &s->smallest);
    enum plim_status status = plan_make(s->request, &s->smallest, out, err);
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
    bytes_format(need, (uint64_t)out->total);
    bytes_format(have, (uint64_t)s->request->budget);
    bytes_format(missing, (uint64_t)(out->total - s->request->budget));
    return plim_fail(err, PLIM_NO_FIT,
                     "does not fit: the smallest plan takes %s, the budget is %s: %s (%lld bytes) missing",
                     need, have, missing, (long long)(out->total - s->request->budget));
}

enum plim_status plan_search(const struct plan_request *request, struct plan *out, struct plim_error *err)
{
    double start = clock_seconds();
    struct search s = {.request = request, .allowed = request->budget, .err = err};
    for (int *u = s.updater[0][0], *end = u + sizeof s.updater / sizeof *u; u < end; u++) *u = KNOB_OPEN;
    *out = (struct plan){0};
    enum plim_status status = list_divisors(&s);
    /* Packing can need a little more than the bound: then search again with that much less. */
    for (int attempt = 0; attempt < 4 && status == PLIM_OK; attempt++) {
        status = search_places(&s);
        if (status == PLIM_OK && s.best.found) status = finish(&s);
        if (status == PLIM_OK) status = park(&s);
        if (status != PLIM_OK || !s.best.found) break;
        plan_release(out);
        status = plan_make(request, &s.best.knobs, out, err);
        if (status != PLIM_OK || out->fits) break;
        s.allowed -= out->layout.arena_bytes - out->layout.lower_bound;
    }
    if (status == PLIM_OK && !out->fits) {
        plan_release(out);
        status = nothing_fits(&s, out, err);
    }
    tape_release(&s.room);
    out->search_seconds = clock_seconds() - start;
    out->tried = s.tried;
    return status;
}
