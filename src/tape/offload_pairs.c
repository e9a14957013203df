/* offload_pairs.c - updates by the host before the norm is known.
 *
 * Clipping mostly does not bind. So as soon as a gradient is on the host, in backward, the host updates its rows of the parameter as if
 * the clip's multiplier were that of a step it does not bind in (attr.guesses), and not in place: from one half of a pair to the other. The
 * halves are the kept tensors (home) and as many bytes beside them (away); one of them is valid. Where the next forward begins, an op
 * for the same rows looks at the clip (attr.redoes): it does nothing where the guess was right, and otherwise makes the update once more
 * from the valid half. Either way the other half is valid then, and its weights return to the device. A skipped step changes neither.
 *
 *     home is valid      backward guesses home -> away
 *     away is valid      forward redoes home -> away, weights return from away; backward guesses away -> home
 *     home is valid      forward redoes away -> home, ...
 *
 * Ops for both directions are on the tape; a step skips those of the other half (device_skips). exec/pairs.c knows which half is valid,
 * and brings it home for whoever reads kept tensors. */
#include "tape/offload.h"

#include <stdlib.h>

bool pair_can_update(const struct tape *tape, const struct op *op)
{
    return !is_offloaded(tape, op->in[UPDATE_P]) && tape_find(tape, "step.scalars", -1) >= 0;
}

/* As many bytes as `home` has, which last from step to step. */
static int away_of(struct tape *tape, int home)
{
    struct tensor t = tape->tensors[home];
    t.label = "update.away", t.view_of = -1, t.view_offset = 0;
    t.cls = CLASS_WORK, t.flags = TENSOR_INPUT | TENSOR_OUTPUT;
    return tape_tensor(tape, &t);
}

/* From an update in place, one from home to away and one from away to home. */
static void split(struct tape *tape, const struct op *in_place, struct op out[2])
{
    out[0] = out[1] = *in_place;
    for (int o = 0; o < OP_MAX_OUT; o++) {
        if (in_place->out[o] < 0) continue;
        int home = in_place->out[o], away = away_of(tape, home);
        out[0].out[o] = away;
        for (int k = 0; k < OP_MAX_IN; k++)
            if (in_place->in[k] == home) out[1].in[k] = away;
    }
}

static void remember(struct host_updates *h, struct tape *tape, const struct host_pair *pair)
{
    if (h->npairs == h->pair_cap) {
        int cap = h->pair_cap ? 2 * h->pair_cap : 64;
        struct host_pair *more = realloc(h->pairs, (size_t)cap * sizeof *more);
        if (!more) {
            tape->failed = true;
            return;
        }
        h->pairs = more, h->pair_cap = cap;
    }
    h->pairs[h->npairs++] = *pair;
}

void pair_update(struct host_updates *h, struct tape *tape, const struct op *op, int64_t first, int64_t rows)
{
    static const enum pair_half valid[2] = {HALF_AWAY, HALF_HOME}; /* when the update is made */
    const struct update_slots *slots = &op_row(op->kind)->update;
    int near, scalars = host_copy_of(h, tape, op, tape_find(tape, "step.scalars", -1));
    struct op in_place = host_op(h, tape, op, first, rows, &near);
    struct host_pair pair = {.grad = op->in[UPDATE_G]};
    split(tape, &in_place, pair.ops);
    for (int way = 0; way < 2; way++) {
        struct op *made = &pair.ops[way];
        made->attr.redoes = true, made->attr.half = (unsigned char)valid[way];
        tape_append(tape, made);
        host_return_later(h, tape, &(struct host_return){op, made->out[UPDATE_NEW_P], near, valid[way]});
        made->attr.redoes = false, made->attr.guesses = true, made->attr.half = (unsigned char)valid[!way];
        made->in[slots->scalars] = scalars, made->in[slots->coef] = -1;
    }
    remember(h, tape, &pair);
}

void pair_begin(struct host_updates *h, struct tape *tape, int grad)
{
    for (int i = 0; i < h->npairs; i++)
        for (int way = 0; way < 2 && h->pairs[i].grad == grad; way++)
            tape_append(tape, &h->pairs[i].ops[way]);
}
