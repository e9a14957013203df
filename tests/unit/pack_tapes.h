/* pack_tapes.h - lifetimes of made-up transformer training steps, for the tests and benchmarks of the packer.
 *
 * A step is written down op by op as the real tape would be: forward layers, (chunked) loss, backward layers,
 * update. Every op is one tick; a tensor lives from the tick that writes it to the last tick that reads it.
 * The knobs are those that change the shape of the packing problem: recompute, loss chunks, offload, when
 * gradients die, how many micro-batches are accumulated.
 *
 *     struct pack_tape tape = {0};
 *     pack_tape_step(&tape, &(struct pack_tape_shape){.layers = 32, .batch = 4, ...});
 *     ... tape.items, tape.n ...
 *     pack_tape_release(&tape);
 */
#ifndef PLIM_TESTS_PACK_TAPES_H
#define PLIM_TESTS_PACK_TAPES_H

#include "plan/pack.h"
#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

enum pack_tape_recompute { TAPE_KEEP_ALL, TAPE_RECOMPUTE_CHEAP, TAPE_RECOMPUTE_LAYER };

struct pack_tape_shape {
    int layers, batch, time, channels, kv_channels, hidden, vocabulary; /* sizes, in elements */
    int micro_batches; /* unrolled accumulation, at least 1 */
    int loss_chunks;   /* at least 1 */
    enum pack_tape_recompute recompute;
    bool offload_weights; /* layer weights are fetched two layers ahead into buffers of their own */
    bool
        offload_activations; /* a layer's input leaves after the forward and comes back before its backward */
    bool update_early;       /* a gradient dies as soon as it exists (update inside the backward) */
    bool resident;           /* weights and optimizer state lie in the same arena for the whole step */
};

struct pack_tape {
    struct pack_item *items;
    int n, room;
    int64_t now;
};

static inline void pack_tape_release(struct pack_tape *tape)
{
    free(tape->items);
    *tape = (struct pack_tape){0};
}

/* A tensor written at the present tick. Sizes are elements of two bytes. */
static inline int tape_make(struct pack_tape *tape, int64_t elements)
{
    if (tape->n == tape->room) {
        tape->room = tape->room ? 2 * tape->room : 1024;
        tape->items = realloc(tape->items, (size_t)tape->room * sizeof *tape->items);
        assert(tape->items);
    }
    tape->items[tape->n] =
        (struct pack_item){.lower = tape->now, .upper = tape->now + 1, .size = 2 * elements};
    return tape->n++;
}

static inline void tape_use(struct pack_tape *tape, int id)
{
    if (id >= 0) tape->items[id].upper = tape->now + 1;
}

/* One op of up to three inputs (-1: none), one output and a workspace of one tick. */
static inline int tape_op(struct pack_tape *tape, int64_t elements, int x, int y, int z, int64_t work)
{
    tape->now++;
    tape_use(tape, x), tape_use(tape, y), tape_use(tape, z);
    if (work > 0) tape_make(tape, work);
    return tape_make(tape, elements);
}

struct tape_layer {
    int x, h1, s1, q, k, v, o, lse, r, h2, s2, g, u, a, out; /* activations, -1 when dropped */
    int w[7], dw[7];                                         /* q k v o gate up down; -1: elsewhere */
};

static inline int64_t tape_weight_size(const struct pack_tape_shape *s, int i)
{
    int64_t c = s->channels, kv = s->kv_channels, f = s->hidden;
    int64_t size[7] = {c * c, c * kv, c * kv, c * c, c * f, c * f, f * c};
    return size[i];
}

static inline void tape_fetch_weights(struct pack_tape *tape, const struct pack_tape_shape *s,
                                      struct tape_layer *l)
{
    tape->now++;
    for (int i = 0; i < 7; i++) l->w[i] = tape_make(tape, tape_weight_size(s, i));
}

static inline void tape_forward_layer(struct pack_tape *tape, const struct pack_tape_shape *s,
                                      struct tape_layer *l, bool again)
{
    int64_t rows = (int64_t)s->batch * s->time, c = rows * s->channels, kv = rows * s->kv_channels,
            f = rows * s->hidden;
    l->s1 = tape_op(tape, rows * 2, l->x, -1, -1, 0);
    l->h1 = tape_make(tape, c);
    l->q = tape_op(tape, c, l->h1, l->w[0], -1, 4096);
    l->k = tape_op(tape, kv, l->h1, l->w[1], -1, 4096);
    l->v = tape_op(tape, kv, l->h1, l->w[2], -1, 4096);
    l->lse = tape_op(tape, rows * 2, l->q, l->k, l->v, rows * 16);
    l->o = tape_make(tape, c);
    int p = tape_op(tape, c, l->o, l->w[3], -1, 4096);
    l->r = tape_op(tape, c, l->x, p, -1, 0);
    l->s2 = tape_op(tape, rows * 2, l->r, -1, -1, 0);
    l->h2 = tape_make(tape, c);
    l->g = tape_op(tape, f, l->h2, l->w[4], -1, 4096);
    l->u = tape_op(tape, f, l->h2, l->w[5], -1, 4096);
    l->a = tape_op(tape, f, l->g, l->u, -1, 0);
    if (again) return; /* the backward part needs no further output */
    int d = tape_op(tape, c, l->a, l->w[6], -1, 4096);
    l->out = tape_op(tape, c, l->r, d, -1, 0);
}

/* After the forward part: what the policy does not keep is read no more, so its lifetime ends here. */
static inline void tape_drop(struct tape_layer *l, enum pack_tape_recompute policy)
{
    if (policy == TAPE_KEEP_ALL) return;
    l->h1 = l->h2 = l->a = -1;
    if (policy == TAPE_RECOMPUTE_LAYER)
        l->s1 = l->q = l->k = l->v = l->o = l->lse = l->r = l->s2 = l->g = l->u = -1;
}

static inline void tape_weight_grad(struct pack_tape *tape, const struct pack_tape_shape *s,
                                    struct tape_layer *l, int i, int x, int dy)
{
    if (l->dw[i] >= 0 && !s->update_early) { /* accumulates in place */
        tape->now++;
        tape_use(tape, x), tape_use(tape, dy), tape_use(tape, l->dw[i]);
        return;
    }
    l->dw[i] = tape_op(tape, tape_weight_size(s, i), x, dy, -1, 8192);
    if (s->update_early) tape_op(tape, 1, l->dw[i], l->w[i], -1, 0);
}

/* Reads the gradient of the layer's output, returns that of its input. */
static inline int tape_backward_layer(struct pack_tape *tape, const struct pack_tape_shape *s,
                                      struct tape_layer *l, int dout)
{
    int64_t rows = (int64_t)s->batch * s->time, c = rows * s->channels, kv = rows * s->kv_channels,
            f = rows * s->hidden;
    if (s->recompute == TAPE_RECOMPUTE_LAYER) tape_forward_layer(tape, s, l, true);
    if (l->a < 0) l->a = tape_op(tape, f, l->g, l->u, -1, 0);
    tape_weight_grad(tape, s, l, 6, l->a, dout);
    int da = tape_op(tape, f, dout, l->w[6], -1, 4096);
    int dg = tape_op(tape, f, da, l->g, l->u, 0), du = tape_make(tape, f);
    if (l->h2 < 0) l->h2 = tape_op(tape, c, l->r, l->s2, -1, 0);
    tape_weight_grad(tape, s, l, 4, l->h2, dg);
    tape_weight_grad(tape, s, l, 5, l->h2, du);
    int dh2 = tape_op(tape, c, dg, l->w[4], -1, 4096);
    dh2 = tape_op(tape, c, du, l->w[5], dh2, 4096);
    int dn = tape_op(tape, c, dh2, l->r, l->s2, 0);
    int dr = tape_op(tape, c, dn, dout, -1, 0);
    tape_weight_grad(tape, s, l, 3, l->o, dr);
    int doo = tape_op(tape, c, dr, l->w[3], -1, 4096);
    tape->now++;
    tape_use(tape, doo), tape_use(tape, l->o), tape_use(tape, l->lse);
    tape_make(tape, rows * 16);
    int dq = tape_op(tape, c, l->q, l->k, l->v, 0), dk = tape_make(tape, kv), dv = tape_make(tape, kv);
    tape_use(tape, doo);
    if (l->h1 < 0) l->h1 = tape_op(tape, c, l->x, l->s1, -1, 0);
    tape_weight_grad(tape, s, l, 0, l->h1, dq);
    tape_weight_grad(tape, s, l, 1, l->h1, dk);
    tape_weight_grad(tape, s, l, 2, l->h1, dv);
    int dh = tape_op(tape, c, dq, l->w[0], -1, 4096);
    dh = tape_op(tape, c, dk, l->w[1], dh, 4096);
    dh = tape_op(tape, c, dv, l->w[2], dh, 4096);
    int dx = tape_op(tape, c, dh, l->x, l->s1, 0);
    return tape_op(tape, c, dx, dr, -1, 0);
}

/* Output projection and cross-entropy, a slice of the rows at a time; returns the gradient of `h`. */
static inline int tape_loss(struct pack_tape *tape, const struct pack_tape_shape *s, int h, int *dhead)
{
    int64_t rows = (int64_t)s->batch * s->time, slice = rows / s->loss_chunks + 1;
    int dh = tape_op(tape, rows * s->channels, h, -1, -1, 0);
    for (int i = 0; i < s->loss_chunks; i++) {
        int logits = tape_op(tape, slice * s->vocabulary, h, -1, -1, 4096);
        int dlogits = tape_op(tape, slice * s->vocabulary, logits, -1, -1, slice * 2);
        tape->now++;
        if (*dhead < 0) *dhead = tape_make(tape, (int64_t)s->vocabulary * s->channels);
        tape_use(tape, dlogits), tape_use(tape, dh), tape_use(tape, h), tape_use(tape, *dhead);
    }
    return dh;
}

static inline void tape_micro_batch(struct pack_tape *tape, const struct pack_tape_shape *s,
                                    struct tape_layer *layer, int *dhead)
{
    int64_t c = (int64_t)s->batch * s->time * s->channels;
    int x = tape_op(tape, c, -1, -1, -1, 0);
    for (int i = 0; i < s->layers; i++) {
        struct tape_layer *l = &layer[i];
        int ahead = i + 2;
        if (s->offload_weights && i == 0) tape_fetch_weights(tape, s, l), tape_fetch_weights(tape, s, l + 1);
        if (s->offload_weights && ahead < s->layers) tape_fetch_weights(tape, s, &layer[ahead]);
        l->x = x;
        tape_forward_layer(tape, s, l, false);
        tape_drop(l, s->recompute);
        x = l->out;
    }
    int dx = tape_loss(tape, s, x, dhead);
    for (int i = s->layers - 1; i >= 0; i--) {
        struct tape_layer *l = &layer[i];
        int ahead = i - 2;
        if (s->offload_weights && i == s->layers - 1 && i > 0)
            tape_fetch_weights(tape, s, l), tape_fetch_weights(tape, s, l - 1);
        if (s->offload_weights && ahead >= 0) tape_fetch_weights(tape, s, &layer[ahead]);
        if (s->offload_activations && i > 0)
            layer[i - 1].x = i > 1 ? tape_op(tape, c, -1, -1, -1, 0) : layer[0].x;
        dx = tape_backward_layer(tape, s, l, dx);
    }
}

/* Append one training step. */
static inline void pack_tape_step(struct pack_tape *tape, const struct pack_tape_shape *s)
{
    struct tape_layer *layer = calloc((size_t)s->layers + 2, sizeof *layer);
    assert(layer);
    int begin = tape->n, dhead = -1;
    for (int i = 0; i < s->layers; i++)
        for (int w = 0; w < 7; w++) {
            layer[i].dw[w] = -1;
            layer[i].w[w] = s->resident && !s->offload_weights ? tape_make(tape, tape_weight_size(s, w)) : -1;
        }
    int state = s->resident ? tape_make(tape, 4 * s->layers * (int64_t)s->channels * s->channels) : -1;
    int resident = tape->n;
    for (int m = 0; m < s->micro_batches; m++) tape_micro_batch(tape, s, layer, &dhead);
    for (int i = 0; i < s->layers && !s->update_early; i++)
        for (int w = 0; w < 7; w++) tape_op(tape, 1, layer[i].dw[w], state, -1, 0);
    tape_op(tape, 1, dhead, state, -1, 0);
    if (s->resident)
        for (int i = begin; i < resident; i++) tape_use(tape, i);
    free(layer);
}

#endif
