/* draw.h - tokens from rows of logits, all rows of a step at once.
 *
 *     struct drawer drawer;
 *     drawer_init(&drawer, team, vocab, &err);
 *     drawer_run(&drawer, draws, n);                  // draws[i].token, .logprob, .top
 *     drawer_release(&drawer);
 *
 * Penalties apply first, then tensor/sample.h. Log-probabilities refer to the model's own logits. A row's result
 * depends only on its logits and parameters; the team divides the rows or, for a single row, its work. A device with
 * its own memory can draw by itself (draw_ask, draw_take); logits then stay on the device.
 */
#pragma once

#include "base/threads.h"
#include "serve/engine.h"
#include "serve/seen.h"

struct draw {
    const void *logits; /* [vocab] of `type` */
    enum dtype type;
    const struct sampling *sampling;
    uint64_t step;
    const struct seen *seen; /* tokens so far; for penalties */
    int32_t given;           /* forced token; -1: draw one */
    int logprobs;            /* -1: none; n: also the n likeliest */
    bool asked;              /* of the device (draw_ask) */
    bool done;               /* the device has answered */
    int32_t token;           /* out, as are those below */
    float logprob;
    int ntop;
    struct engine_logprob top[ENGINE_LOGPROBS];
};

struct drawer {
    struct threads *team;
    int64_t vocab; /* tokens that may be drawn */
    int workers;
    struct draw_room {
        float *row; /* logits in fp32 */
        struct sampler sampler;
    } * room;
    struct draw *draws; /* during a run */
};

enum plim_status drawer_init(struct drawer *d, struct threads *team, int64_t vocab, struct plim_error *err);
void drawer_release(struct drawer *d);
int64_t drawer_bytes(struct threads *team, int64_t vocab);

void drawer_run(struct drawer *d, struct draw *draws, int count);

/* Buffer for the tokens that penalties refer to, written for a device. */
struct draw_seen {
    struct seen_token *at; /* [room] */
    int64_t used, room;
};

/* Fills the row that a device needs to draw the token of a row (tape/op.h, sample). Returns false when its penalties do not
 * fit: the host must draw then, and the row tells the device to draw nothing. */
bool draw_ask(const struct draw *draw, int64_t vocab, struct draw_seen *seen, struct sample_row *row);
/* Takes the device's result for a row. The draw is done unless the device left the token to the host. top and logprob
 * are as in op sample and are read only when log-probabilities are wanted. */
void draw_take(struct draw *draw, int64_t vocab, int32_t token, const int32_t *top, const float *logprob);
