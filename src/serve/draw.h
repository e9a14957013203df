/* draw.h - tokens from rows of logits, all rows of a step at once.
 *
 *     struct drawer drawer;
 *     drawer_init(&drawer, team, vocab, &err);
 *     drawer_run(&drawer, draws, n);                  // draws[i].token, .logprob, .top
 *     drawer_release(&drawer);
 *
 * Penalties first, then tensor/sample.h. Log-probabilities are of the logits as the model gave them. A row's result depends
 * on its own logits and parameters alone; the team only shares rows or, of a single row, its work. A device that has its own memory
 * does the same by itself (draw_ask, draw_take): then logits stay where they are.
 */
#ifndef PLIM_SERVE_DRAW_H
#define PLIM_SERVE_DRAW_H

#include "base/threads.h"
#include "serve/engine.h"
#include "serve/seen.h"

struct draw {
    const void *logits; /* [vocab] of `type` */
    enum dtype type;
    const struct sampling *sampling;
    uint64_t step;
    const struct seen *seen; /* tokens so far; for penalties */
    int32_t given;           /* the token is this one; -1: it is drawn */
    int logprobs;            /* -1: none, else so many of the likeliest too */
    bool asked;              /* of the device (draw_ask) */
    bool done;               /* it has told */
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

/* Where the tokens that penalties of a step go by are written for a device. */
struct draw_seen {
    struct seen_token *at; /* [room] */
    int64_t used, room;
};

/* What a device needs to draw the token of a row (tape/op.h, sample); false: there is no room for what it goes by, it
 * is the host's, and the row says that there is nothing to draw. */
bool draw_ask(const struct draw *draw, int64_t vocab, struct draw_seen *seen, struct sample_row *row);
/* What the device has told of a row: the draw is done, unless it has left the token to the host. top and logprob as op sample has
 * them; only looked at where log-probabilities are wanted. */
void draw_take(struct draw *draw, int64_t vocab, int32_t token, const int32_t *top, const float *logprob);

#endif
