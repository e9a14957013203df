/* offload_near.c - an update of offloaded state by the device, slice by slice.
 *
 * Fetch the slice's state into staging buffers, update, store. The fetch of a slice stands before the update of the one
 * before it, so that the executor can read ahead while it computes; the packer sees two slices of staging alive at a
 * time. The arithmetic is that of the whole update, element by element: losses stay bit-identical. */
#include "tape/offload.h"

static struct near_slice make_slice(struct tape *tape, const struct op *op, int64_t first, int64_t rows)
{
    struct near_slice s = {.op = *op};
    s.op.attr.first += offload_first(tape, op, first);
    for (int k = 0; k < OP_MAX_IN; k++) {
        s.near[k] = s.far[k] = -1;
        if (op->in[k] < 0) continue;
        struct part part = offload_part(tape, op, k, first, rows);
        int view = offload_view(tape, op, k, part);
        if (is_offloaded(tape, op->in[k])) {
            struct tensor t = tape->tensors[op->in[k]];
            t.tier = TIER_DEVICE, t.cls = CLASS_WORK, t.flags = 0, t.dim[0] = part.rows;
            t.view_of = -1, t.view_offset = 0;
            s.far[k] = view;
            view = s.near[k] = tape_tensor(tape, &t);
        }
        s.op.in[k] = view;
        for (int o = 0; o < OP_MAX_OUT; o++)
            if (op->out[o] == op->in[k]) s.op.out[o] = view;
    }
    return s;
}

static bool writes(const struct op *op, int id)
{
    for (int o = 0; o < OP_MAX_OUT; o++)
        if (op->out[o] == id) return true;
    return false;
}

static void emit_fetches(struct tape *tape, const struct near_slice *s)
{
    for (int k = 0; k < OP_MAX_IN; k++)
        if (s->near[k] >= 0) offload_move(tape, &s->op, OP_FETCH, s->far[k], s->near[k]);
}

static void emit_slice(struct tape *tape, const struct near_slice *s)
{
    tape_append(tape, &s->op);
    for (int k = 0; k < OP_MAX_IN; k++)
        if (s->near[k] >= 0 && writes(&s->op, s->near[k]))
            offload_move(tape, &s->op, OP_STORE, s->near[k], s->far[k]);
}

void near_finish(struct near_updates *n, struct tape *tape)
{
    if (n->has_waiting) emit_slice(tape, &n->waiting);
    n->has_waiting = false;
}

void near_update(struct near_updates *n, struct tape *tape, const struct op *op, int64_t first, int64_t rows)
{
    struct near_slice next = make_slice(tape, op, first, rows);
    emit_fetches(tape, &next);
    near_finish(n, tape);
    n->waiting = next, n->has_waiting = true;
}
