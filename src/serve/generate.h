/* generate.h - text from a model, inside a budget: one row, a key/value cache, one token after the other.
 *
 *     struct generator *g;
 *     generator_open("runs/demo/checkpoint-00000080", device,
 *                    &(struct generate_room){.prompt = n, .tokens = 200, .budget = 64 << 20}, &g, &err);
 *     struct generate_request ask = {.prompt = ids, .count = n, .tokens = 200, .sampling = {.temperature =
 * 0.8}, .hear = print_token, .arg = stdout}; generator_run(g, &ask, &result, &err); generator_close(g);
 *
 * Parameters stay in the type their files have. The arena holds parameters, a cache of exactly the positions
 * that prompt and answer need, and the transients of one pass; it is planned and committed before the weights
 * are read, so what does not fit is refused at once and nothing can run out later. On a GPU the budget is of its
 * memory. The prompt is read in chunks of up to GENERATE_CHUNK tokens, as many as the budget allows.
 */
#ifndef PLIM_SERVE_GENERATE_H
#define PLIM_SERVE_GENERATE_H

#include "base/log.h"
#include "device/device.h"
#include "model/model.h"
#include "serve/sample.h"
#include "tape/pass.h"
#include <signal.h>

#define GENERATE_CHUNK 32

/* What to make room for. */
struct generate_room {
    int64_t prompt;        /* tokens, at least 1 */
    int64_t tokens;        /* of the answer, at most; the model's last position may cut it short */
    int64_t budget;        /* bytes the process may take; 0: no line */
    int64_t overhead;      /* host bytes outside the arena; 0: measured now */
    const struct log *log; /* hears of unused tensors; NULL: nobody */
};

/* The plan that was committed. */
struct generate_plan {
    int64_t budget, overhead, arena, total; /* total: arena and what the device's line carries beside it */
    int64_t params, cache;                  /* bytes, parts of the arena */
    int64_t positions;                      /* the cache's */
    int64_t chunk;                          /* prompt tokens per pass */
    enum precision precision;
};

struct generator;

/* PLIM_NO_FIT with the bytes missing, PLIM_BAD_INPUT for a
 * prompt beyond the model's positions, and the errors of hf_config_load and weights_from_directory. The
 * device is borrowed until generator_close. */
enum plim_status generator_open(const char *dir, struct device *device, const struct generate_room *room,
                                struct generator **out, struct plim_error *err);
void generator_close(struct generator *g);

const struct model_spec *generator_spec(const struct generator *g);
const struct generate_plan *generator_plan(const struct generator *g);

enum generate_stop {
    GENERATE_ENOUGH, /* as many tokens as asked for */
    GENERATE_END,    /* the model's end-of-text token, which is not handed out */
    GENERATE_FULL,   /* the model's last position */
    GENERATE_ASKED,  /* *stop was set, or hear said so */
};
const char *generate_stop_name(enum generate_stop stop); /* "length", "end", "positions", "stopped" */

struct generate_request {
    const int32_t *prompt; /* ids below the vocabulary */
    int64_t count, tokens;
    int64_t vocab; /* ids from here on have no text and are never drawn (padded models); 0: all may be */
    struct sampling sampling;
    bool (*hear)(void *arg, int32_t token); /* each token as it comes; false: stop */
    void *arg;
    volatile sig_atomic_t *stop; /* NULL: never */
};

struct generate_result {
    int64_t tokens;
    enum generate_stop stop;
    double prompt_seconds, seconds; /* reading the prompt; making the tokens after the first */
    double tokens_per_s;            /* of the latter; 0 when there was only one */
};

/* Starts from an empty cache each time. */
enum plim_status generator_run(struct generator *g, const struct generate_request *request,
                               struct generate_result *result, struct plim_error *err);

#endif
