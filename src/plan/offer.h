/* offer.h - the promises a server can make, and the largest one that fits a budget.
 *
 *     struct offer_list list;
 *     offer_list_make(&wish, &list);                          // from everything that was requested down to the least
 *     struct offer_oracle oracle = {.need = bytes_of_an_offer, .arg = engine};
 *     offer_choose(&list, &oracle, &line, &choice, &err);     // the first offer of the list that fits
 *
 * An offer sets the longest request, the number of concurrent requests, the tokens per step, the share of the
 * parameters that streams from the tier below, and the format of keys and values. The list has one order for every
 * budget and device; a table in offer.c says what is given up first.
 *
 * Invariants
 *  1. An offer gives no more than the offer before it: not in context, requests or tokens of a step, and no more of its
 *     parameters stay on the device. So it is no faster either, in prompts or in answers, except that keys and values
 *     in 8 bits may be.
 *  2. The bytes of an offer do not depend on the budget. The oracle must ensure that.
 *  3. offer_choose takes the first offer that fits. So a larger budget never refuses what a smaller one accepts, and never
 *     promises less.
 *
 * Pure: no model, no device, no I/O. It plans decoders, encoder-decoders and encoders alike.
 */
#pragma once

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

/* Distance of an offer from the request. Operators see its name: offer_rung_name. */
enum offer_rung {
    OFFER_FULL,     /* everything that was requested, and a usual context */
    OFFER_FEWER,    /* fewer concurrent requests, shorter ones, or smaller steps */
    OFFER_KV8,      /* keys and values in 8 bits */
    OFFER_STREAMED, /* parameters on the tier below, fetched for each step */
    OFFER_MINIMAL,  /* one request at a time, each token computed from the last few, without a cache */
    OFFER_RUNGS
};
const char *offer_rung_name(enum offer_rung rung);

struct offer {
    int64_t context;   /* positions of the longest request */
    int64_t requests;  /* at once */
    int64_t positions; /* minimum positions in the cache, over all requests */
    int64_t step;      /* tokens of one step */
    int64_t share;     /* parts of the parameters that stream, of OFFLOAD_SHARES */
    int64_t window;    /* each token is computed from the last `window` tokens; 0: from all */
    bool coded;        /* keys and values in 8 bits */
    enum offer_rung rung;
};

struct offer_wish {
    /* The largest offer. `share` is its first value and usually 0. */
    struct offer most;
    /* A value that is the same in `most` and `least` is pinned. least.step is at least
     * `window`, or most.step if that is less: the offer with a window must not be the fastest. */
    struct offer least;
    /* Context above usual_context is given up first: it matters less than requests or speed. */
    int64_t usual_context;
    /* Values worth keeping at the price of speed: offers go below them only after the parameters have left the
     * device. */
    struct offer modest;
    /* Positions in the cache for each running request; 0: one request's are enough. */
    int64_t request_positions;
    int64_t shortest_context; /* last resort, below `least` and after the window */
    bool may_code;            /* offers of OFFER_KV8 are allowed */
    bool may_stream;          /* there is a tier below */
    /* That tier is slow: parameters stay on the device until everything else is at `least`. */
    bool stream_last;
    int64_t window; /* of OFFER_MINIMAL; 0: there is no such offer */
    /* Computing the window for each token takes longer than computing one token. Offers after it would be faster, so
     * there are none. */
    bool window_last;
};

enum { OFFERS_MOST = 96 };

struct offer_list {
    struct offer offer[OFFERS_MOST]; /* the largest first */
    int count;
};

void offer_list_make(const struct offer_wish *wish, struct offer_list *out);

/* Device bytes, and host bytes next to a device with its own memory. As a limit, 0 means none. */
struct offer_bytes {
    int64_t device, host;
};

struct offer_oracle {
    /* Computes the bytes of an offer. It may stop once they exceed `line`; *out is then above the limit. */
    enum plim_status (*need)(void *arg, const struct offer *offer, const struct offer_bytes *line,
                             struct offer_bytes *out, struct plim_error *err);
    void *arg;
};

struct offer_line {
    struct offer_bytes bytes;
    int64_t reserve;       /* device bytes that may be used only when nothing else fits */
    enum offer_rung first; /* offers of the rungs above are not considered */
};

struct offer_choice {
    int at;                  /* index in the list; the last tried if none fits */
    struct offer_bytes need; /* of that offer */
    bool used_reserve;
    /* Fewest device bytes for an offer of each rung above the chosen one; 0: no such offer. */
    int64_t missed[OFFER_RUNGS];
};

/* PLIM_NO_FIT, without a message: no offer fits, and *out describes the smallest. Other errors come from the oracle. */
enum plim_status offer_choose(const struct offer_list *list, const struct offer_oracle *oracle,
                              const struct offer_line *line, struct offer_choice *out,
                              struct plim_error *err);
