/* offer.c - see offer.h. The table `order` says what is given up first. */
#include "plan/offer.h"
#include "base/minmax.h"
#include "tape/pass.h"

const char *offer_rung_name(enum offer_rung rung)
{
    static const char *const names[OFFER_RUNGS] = {"full", "fewer", "kv8", "streamed", "minimal"};
    return names[rung];
}

/* --- the list ------------------------------------------------------------------------------------------------ */

/* Each function makes *o smaller by one step towards a floor; false: it is there already. A window needs its step whole. */

static bool halve(int64_t *value, int64_t floor)
{
    if (*value <= floor) return false;
    *value = max64(*value / 2, floor);
    return true;
}

static bool to_usual_context(const struct offer_wish *w, struct offer *o)
{
    return halve(&o->context, max64(w->usual_context, w->least.context));
}

/* A step holds a token of each request. */
static int64_t least_step(const struct offer_wish *w, const struct offer *o)
{
    return max64(w->least.step, o->requests);
}

static bool to_modest_step(const struct offer_wish *w, struct offer *o)
{
    return !o->window && halve(&o->step, max64(w->modest.step, least_step(w, o)));
}

static bool to_modest_requests(const struct offer_wish *w, struct offer *o)
{
    return halve(&o->requests, max64(w->modest.requests, w->least.requests));
}

static bool to_modest_context(const struct offer_wish *w, struct offer *o)
{
    return halve(&o->context, max64(w->modest.context, w->least.context));
}

static bool code(const struct offer_wish *w, struct offer *o)
{
    if (!w->may_code || o->coded) return false;
    return o->coded = true;
}

static bool stream_more(const struct offer_wish *w, struct offer *o)
{
    if (!w->may_stream || o->share == OFFLOAD_SHARES) return false;
    o->share++;
    return true;
}

static bool stream_soon(const struct offer_wish *w, struct offer *o)
{
    return !w->stream_last && stream_more(w, o);
}

static bool to_least_requests(const struct offer_wish *w, struct offer *o)
{
    return halve(&o->requests, w->least.requests);
}

static bool to_least_context(const struct offer_wish *w, struct offer *o)
{
    return halve(&o->context, w->least.context);
}

static bool to_least_step(const struct offer_wish *w, struct offer *o)
{
    return !o->window && halve(&o->step, least_step(w, o));
}

static bool to_window(const struct offer_wish *w, struct offer *o)
{
    if (!w->window || o->window) return false;
    o->window = o->step = w->window, o->requests = 1;
    return true;
}

/* Exact again, without the window. */
static bool to_single_tokens(const struct offer_wish *w, struct offer *o)
{
    bool stays = o->window && (!w->window || w->window_last);
    if (stays || (!o->window && o->step <= o->requests)) return false;
    o->window = 0, o->step = o->requests;
    return true;
}

/* Requests too short to be of much use. */
static bool to_shortest_context(const struct offer_wish *w, struct offer *o)
{
    return !(w->window && w->window_last) && halve(&o->context, w->shortest_context);
}

/* Concessions, in the order in which they are made. No row makes a part of an offer better, so that predicted speed
 * falls along the list too. */
static bool (*const order[])(const struct offer_wish *, struct offer *) = {
    to_usual_context, to_modest_step,    to_modest_requests,  to_modest_context, code,
    stream_soon,      to_least_requests, to_least_context,    to_least_step,     stream_more,
    to_window,        to_single_tokens,  to_shortest_context,
};
enum { ROWS = sizeof order / sizeof *order };

/* Positions of the cache, and a step no fuller than all requests together can make it. */
static void settle(const struct offer_wish *w, struct offer *o)
{
    int64_t each = o->window ? min64(o->context, o->window) : o->context;
    o->positions = max64(each, min64(o->requests * w->request_positions, o->requests * each));
    o->step = max64(min64(o->step, o->requests * each), o->requests);
    if (o->window) o->step = max64(o->step, each), o->positions = each;
}

static enum offer_rung rung_of(const struct offer_wish *w, const struct offer *o, const struct offer *most)
{
    if (w->window && o->window) return OFFER_MINIMAL;
    if (o->share > most->share) return OFFER_STREAMED;
    if (o->coded && !most->coded) return OFFER_KV8;
    bool less = o->requests < most->requests || o->step < most->step ||
                o->context < min64(most->context, w->usual_context);
    return less ? OFFER_FEWER : OFFER_FULL;
}

static void push(const struct offer_wish *w, struct offer *o, struct offer_list *list)
{
    if (list->count == OFFERS_MOST) return;
    settle(w, o);
    o->rung = rung_of(w, o, list->count ? &list->offer[0] : o);
    list->offer[list->count++] = *o;
}

void offer_list_make(const struct offer_wish *wish, struct offer_list *out)
{
    struct offer o = wish->most;
    out->count = 0;
    push(wish, &o, out);
    for (int i = 0; i < ROWS; i++)
        while (order[i](wish, &o)) push(wish, &o, out);
}

/* --- choosing ------------------------------------------------------------------------------------------------ */

static bool within(const struct offer_bytes *need, const struct offer_bytes *line)
{
    return (!line->device || need->device <= line->device) && (!line->host || need->host <= line->host);
}

/* No offer fits: the smallest may use up the reserve. */
static enum plim_status last_resort(const struct offer_line *line, struct offer_choice *out)
{
    struct offer_bytes less = {out->need.device - line->reserve, out->need.host};
    if (!line->reserve || !within(&less, &line->bytes)) return PLIM_NO_FIT;
    out->used_reserve = true, out->need = less;
    return PLIM_OK;
}

enum plim_status offer_choose(const struct offer_list *list, const struct offer_oracle *oracle,
                              const struct offer_line *line, struct offer_choice *out, struct plim_error *err)
{
    *out = (struct offer_choice){.at = -1};
    for (int i = 0; i < list->count; i++) {
        const struct offer *o = &list->offer[i];
        struct offer_bytes need = {0};
        if (o->rung < line->first && (i + 1 < list->count || out->at >= 0)) continue;
        enum plim_status status = oracle->need(oracle->arg, o, &line->bytes, &need, err);
        if (status != PLIM_OK) return status;
        bool fits = within(&need, &line->bytes);
        if (fits || out->at < 0 || need.device < out->need.device) out->at = i, out->need = need;
        if (fits) break;
        if (!out->missed[o->rung] || need.device < out->missed[o->rung]) out->missed[o->rung] = need.device;
    }
    if (within(&out->need, &line->bytes)) {
        for (int r = list->offer[out->at].rung; r < OFFER_RUNGS; r++) out->missed[r] = 0;
        return PLIM_OK;
    }
    struct offer_bytes none = {0}; /* the oracle may have stopped before it knew all of the smallest */
    enum plim_status status = oracle->need(oracle->arg, &list->offer[out->at], &none, &out->need, err);
    return status == PLIM_OK ? last_resort(line, out) : status;
}
