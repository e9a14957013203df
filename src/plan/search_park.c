/* search_park.c - activations that wait on the host instead of being made again or of a smaller micro-batch.
 *
 * As long as the copies hide behind computing, parking a layer costs nothing; beyond that, making a layer again is the
 * cheaper of the two. So as many layers are parked as cost nothing, and the fewest made again that then fit; where that
 * many need not be parked, fewer are. */
#include "plan/search.h"

#define FREE       1.003 /* of a step's time */
#define PARK_TAPES 12    /* that one look takes, about */
#define LARGER     2     /* so many larger micro-batches are asked, the largest first */
#define HOPE       1.01  /* with the finest cut of the loss: coarser ones make up for that */

/* Of models with many layers nearly the right number is enough. */
static int step_of(const struct search *s) { return 1 + s->request->layers / 40; }

/* Asks with so many layers parked and so many made again. */
static enum plim_status ask(struct search *s, struct knobs *k, int parked, int remade,
                            struct plan_bound *bound, bool *fits)
{
    k->offload_layers = parked, k->full_layers = remade;
    enum plim_status status = search_try(s, k, bound, fits);
    if (status == PLIM_OK && *fits) search_consider(&s->best, k, bound->step_seconds);
    return status;
}

/* The most layers that cost nothing beside `alone` seconds; *fits says whether that is enough. */
static enum plim_status most_free(struct search *s, struct knobs *k, double alone, int *most, bool *fits)
{
    int none = 0, costly = s->request->layers;
    *fits = false;
    while (costly - none > step_of(s)) {
        struct plan_bound bound;
        bool fit;
        int layers = none ? (none + costly) / 2 : (costly + 3) / 4; /* few are */
        enum plim_status status = ask(s, k, layers, 0, &bound, &fit);
        if (status != PLIM_OK) return status;
        bool free = bound.step_seconds <= FREE * alone;
        *(free ? &none : &costly) = layers;
        if (free) *fits = fit;
    }
    *most = none;
    return PLIM_OK;
}

/* With so many parked, a coarse cut of the loss that fits; the coarsest is found in the end. */
static enum plim_status coarsen(struct search *s, struct knobs *k, int parked)
{
    bool fits = false;
    if (s->request->pins.loss_chunks != KNOB_OPEN) return PLIM_OK;
    for (int chunks = 1; chunks < search_finest_cut(s->request, k->micro_batch) && !fits; chunks *= 4) {
        struct plan_bound bound;
        struct knobs coarse = *k;
        coarse.loss_chunks = chunks;
        enum plim_status status = ask(s, &coarse, parked, 0, &bound, &fits);
        if (status != PLIM_OK) return status;
        if (fits) *k = coarse;
    }
    return PLIM_OK;
}

enum kind { PARKED, REMADE };

/* The fewest of one kind, beside so many of the other: between `none`, which does not fit, and `most`, which does. */
static enum plim_status fewest(struct search *s, struct knobs *k, enum kind kind, int others, int none,
                               int most)
{
    while (most - none > step_of(s)) {
        int layers = (none + most) / 2;
        struct plan_bound bound;
        bool fits;
        enum plim_status status =
            ask(s, k, kind == PARKED ? layers : others, kind == PARKED ? others : layers, &bound, &fits);
        if (status != PLIM_OK) return status;
        *(fits ? &most : &none) = layers;
    }
    return PLIM_OK;
}

/* One micro-batch, with nothing made again or only what is cheap. */
static enum plim_status park(struct search *s, int64_t micro_batch, int recompute, double bar)
{
    const struct knobs *pins = &s->request->pins;
    struct knobs k = s->best.knobs;
    struct plan_bound bound;
    bool fits;
    int free = 0;
    k.micro_batch = micro_batch, k.accumulation = s->request->rows / micro_batch;
    k.recompute = recompute, k.late = 0, k.offload_layers = 0;
    k.loss_chunks =
        pins->loss_chunks != KNOB_OPEN ? pins->loss_chunks : search_finest_cut(s->request, micro_batch);
    enum plim_status status = ask(s, &k, 0, 0, &bound, &fits);
    bool coarse = fits && bar < bound.step_seconds / FREE; /* that plan has coarser cuts already */
    if (status != PLIM_OK || coarse || bound.step_seconds > HOPE * bar) return status;
    status = most_free(s, &k, bound.step_seconds, &free, &fits);
    if (status != PLIM_OK || free == 0) return status;
    if (fits) {
        status = coarsen(s, &k, free);
        return status == PLIM_OK ? fewest(s, &k, PARKED, 0, 0, free) : status;
    }
    if (recompute == RECOMPUTE_NONE || pins->full_layers != KNOB_OPEN) return PLIM_OK;
    int most = s->request->layers - free;
    status = ask(s, &k, free, most, &bound, &fits);
    return status == PLIM_OK && fits ? fewest(s, &k, REMADE, free, 0, most) : status;
}

/* Nothing fits, and pins forbid to make more again or to take less at once: as few layers as make it fit. */
static enum plim_status park_to_fit(struct search *s)
{
    const struct knobs *pins = &s->request->pins;
    bool forbidden = pins->recompute != KNOB_OPEN || pins->micro_batch != KNOB_OPEN;
    struct way ways[SEARCH_WAYS];
    int n = search_ways(s, &(struct place){0}, 0, ways), remade = n ? ways[n - 1].full_layers : 0;
    if (!n || !forbidden) return PLIM_OK;
    int64_t micro_batch = s->divisors[0];
    struct knobs k = search_knobs(s, &ways[n - 1], micro_batch, search_finest_cut(s->request, micro_batch));
    struct plan_bound bound;
    bool fits;
    enum plim_status status = ask(s, &k, s->request->layers, remade, &bound, &fits);
    return status == PLIM_OK && fits ? fewest(s, &k, PARKED, remade, 0, s->request->layers) : status;
}

enum plim_status search_park(struct search *s, double bar)
{
    const struct plan_request *r = s->request;
    if (!r->facts->async_copies || r->facts->lower_bandwidth <= 0 || r->pins.offload_layers != KNOB_OPEN ||
        r->pins.full_layers > 0)
        return PLIM_OK;
    if (!s->best.found) return park_to_fit(s);
    int64_t patience = (s->room.nops < FINE_OPS / 2 ? 3 : 1) * (int64_t)SEARCH_PATIENCE;
    enum plim_status status = PLIM_OK;
    int at = 0;
    while (at < s->ndivisors && s->divisors[at] < s->best.knobs.micro_batch) at++;
    int last = at + LARGER < s->ndivisors ? at + LARGER : s->ndivisors - 1;
    for (int m = last; m >= at && !s->best.knobs.offload_layers; m--)
        for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_SELECTIVE; recompute++) {
            bool open = r->pins.recompute == KNOB_OPEN || r->pins.recompute == recompute;
            if (status == PLIM_OK && open && s->made + PARK_TAPES * (int64_t)s->room.nops < patience)
                status = park(s, s->divisors[m], recompute, bar);
        }
    return status;
}
