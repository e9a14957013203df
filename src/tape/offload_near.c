/* offload_near.c - an update of offloaded state by the device, slice by slice.
 *
 * Fetch the slice's state into staging buffers, update, store. The fetch of a slice stands before the update of the one
 * before it, so that the executor can read ahead while it computes; the packer sees two slices of staging alive at a
 * time. With `behind` they are three: a slice is held until the next one has been computed, so that it can be stored from where it is,
 * meanwhile. near_ahead fetches the first slice of the next update before the last one of this update is computed, and it waits
 * while the ops between them run: a disk has something to do beside them. The arithmetic is that of the whole update, element by
 * element: losses stay bit-identical.
 *
 *     fetch 2, update 1, store 1, fetch 3, update 2, hold 1, store 2, fetch 4, update 3, hold 2, ... */
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
            t.flags = offload_near_flags(&t), t.tier = TIER_DEVICE, t.cls = CLASS_WORK, t.dim[0] = part.rows;
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

void near_settle(struct near_updates *n, struct tape *tape)
{
    if (n->nheld) tape_append(tape, &n->hold);
    n->nheld = 0;
}

static void emit_store(struct near_updates *n, struct tape *tape, const struct near_slice *s, int slot)
{
    offload_move(tape, &s->op, OP_STORE, s->near[slot], s->far[slot]);
    if (!n->behind || tape->failed) return;
    tape->ops[tape->nops - 1].attr.behind = true;
    if (!n->nheld) n->hold = tape_op(OP_HOLD, s->op.layer), n->hold.part = s->op.part;
    n->hold.in[n->nheld++] = s->near[slot];
}

static void emit_slice(struct near_updates *n, struct tape *tape, const struct near_slice *s)
{
    tape_append(tape, &s->op);
    near_settle(n, tape);
    for (int k = 0; k < OP_MAX_IN; k++)
        if (s->near[k] >= 0 && writes(&s->op, s->near[k])) emit_store(n, tape, s, k);
}

void near_finish(struct near_updates *n, struct tape *tape)
{
    if (n->has_waiting) emit_slice(n, tape, &n->waiting);
    n->has_waiting = false;
}

void near_ahead(struct near_updates *n, struct tape *tape, const struct op *op, int64_t rows)
{
    n->ahead = make_slice(tape, op, 0, rows), n->has_ahead = true;
    emit_fetches(tape, &n->ahead);
}

void near_update(struct near_updates *n, struct tape *tape, const struct op *op, int64_t first, int64_t rows)
{
    struct near_slice next = n->has_ahead ? n->ahead : make_slice(tape, op, first, rows);
    if (!n->has_ahead) emit_fetches(tape, &next);
    near_finish(n, tape);
    n->waiting = next, n->has_waiting = true, n->has_ahead = false;
}
