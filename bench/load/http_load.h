/* http_load.h - a client that keeps a server full: many connections, each with one completion under way at any time.
 *
 *     struct http_load load = {.port = 8000, .model = "m", .requests = 3000, .connections = 1024, .tokens = 128,
 *                              .ids = ids, .prompt = 128, .streams = true};
 *     http_load_run(&load, &err);        // load.seconds, .bytes, .first_half
 *
 * One thread and epoll, so that the client takes little of the machine it shares with the server. A prompt is a list of token ids;
 * prompts differ in their first ids, so that none shares blocks with another. PLIM_IO: an answer is not a whole 200.
 *
 * With `watch` the client asks it often, and hangs up on everybody once it says that this is enough.
 */
#pragma once

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

struct http_load_watch {
    void (*size)(void *arg, int number, int64_t *prompt, int64_t *tokens); /* of request `number`, from 0 */
    bool (*goes_on)(void *arg, bool full); /* full: requests are left that were not sent yet */
    void *arg;
};

struct http_load {
    int port, requests, connections;
    const char *model;
    int64_t prompt, tokens;              /* of each request, unless watch says otherwise */
    const struct http_load_watch *watch; /* NULL: to the last answer */
    int64_t vocab;                       /* ids are below it */
    bool streams;
    /* Results. */
    double seconds;  /* from the first connection to the end of the last answer */
    int64_t bytes;   /* received */
    double until;    /* until the last request was sent: all connections were busy */
    int64_t by_then; /* requests answered until then */
};

enum plim_status http_load_run(struct http_load *load, struct plim_error *err);
