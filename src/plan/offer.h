/* offer.h - what a server can promise, and the largest promise that fits a budget.
 *
 *     struct offer_list list;
 *     offer_list_make(&wish, &list);                          // from everything that was asked for down to the least
 *     struct offer_oracle oracle = {.need = bytes_of_an_offer, .arg = engine};
 *     offer_choose(&list, &oracle, &line, &choice, &err);     // the first offer of the list that fits
 *
 * An offer names the longest request, how many requests run at once, how many tokens one step takes, which share of the
 * parameters streams from the tier below, and how keys and values are kept. The list has one order, for every budget and
 * device: offer.c has it as a table of what is given up first.
 *
 * Invariants
 *  1. An offer gives no more than the offer before it: not in context, requests, positions or tokens of a step, and no
 *     more of its parameters stay on the device. A window is an exception: its step is its length, and it needs no cache.
 *  2. The bytes of an offer do not depend on the budget. The oracle must see to that.
 *  3. offer_choose takes the first offer that fits. So a larger budget never refuses what a smaller one accepts, and never
 *     promises less.
 *
 * Pure: no model, no device, no I/O. Decoders, encoder-decoders and encoders are planned by it alike.
 */
#ifndef PLIM_PLAN_OFFER_H
#define PLIM_PLAN_OFFER_H

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

/* How far an offer is from what was asked for. A rung is also how operators speak of it: offer_rung_name. */
enum offer_rung {
    OFFER_FULL,     /* everything that was asked for, and a usual context */
    OFFER_FEWER,    /* fewer requests at once, shorter ones, or smaller steps */
    OFFER_KV8,      /* keys and values in 8 bits */
    OFFER_STREAMED, /* parameters on the tier below, fetched for each step */
    OFFER_MINIMAL,  /* one request at a time, each token computed from the last few, without a cache */
    OFFER_RUNGS
};
const char *offer_rung_name(enum offer_rung rung);

struct offer {
    int64_t context;   /* positions of the longest request */
    int64_t requests;  /* at once */
    int64_t positions; /* the cache holds at least so many, of all requests together */
    int64_t step;      /* tokens of one step */
    int64_t share;     /* parts of the parameters that stream, of OFFLOAD_SHARES */
    int64_t window;    /* each token is computed from the last `window` tokens; 0: from all */
    bool coded;        /* keys and values in 8 bits */
    enum offer_rung rung;
};

struct offer_wish {
    /* The largest offer. `share` is its first value and usually 0. */
    struct offer most;
    /* A value that is the same in `most` and `least` is pinned. */
    struct offer least;
    /* Nobody misses a context above usual_context as much as requests or speed, so it is given up first. */
    int64_t usual_context;
    /* Values that people keep at the price of speed: below them offers go only after the parameters have left. */
    struct offer modest;
    int64_t
        request_positions; /* the cache holds so many for each request that runs; 0: one request's are enough */
    int64_t shortest_context; /* below `least`, and after the window: rather than nothing */
    bool may_code;            /* offers of OFFER_KV8 are allowed */
    bool may_stream;          /* there is a tier below */
    bool stream_last; /* it is slow: parameters stay on the device down to `least` of everything else */
    int64_t window;   /* of OFFER_MINIMAL; 0: there is no such offer */
};

enum { OFFERS_MOST = 96 };

struct offer_list {
    struct offer offer[OFFERS_MOST]; /* the largest first */
    int count;
};

void offer_list_make(const struct offer_wish *wish, struct offer_list *out);

/* Bytes of the device, and of the host beside a device with its own memory. As a line: 0 is no limit. */
struct offer_bytes {
    int64_t device, host;
};

struct offer_oracle {
    /* Bytes of an offer. It may stop as soon as it knows that they are more than `line`: *out is then above the line. */
    enum plim_status (*need)(void *arg, const struct offer *offer, const struct offer_bytes *line,
                             struct offer_bytes *out, struct plim_error *err);
    void *arg;
};

struct offer_line {
    struct offer_bytes bytes;
    int64_t reserve;       /* device bytes that an offer may do without where nothing else fits */
    enum offer_rung first; /* offers of the rungs above are not considered */
};

struct offer_choice {
    int at;                  /* in the list; the last one tried where none fits */
    struct offer_bytes need; /* of that offer */
    bool used_reserve;
    /* The fewest device bytes that an offer of each rung above the chosen one would take; 0: there is none. */
    int64_t missed[OFFER_RUNGS];
};

/* PLIM_NO_FIT without a text: no offer fits, and *out is about the smallest. Otherwise the oracle's errors. */
enum plim_status offer_choose(const struct offer_list *list, const struct offer_oracle *oracle,
                              const struct offer_line *line, struct offer_choice *out,
                              struct plim_error *err);

#endif
