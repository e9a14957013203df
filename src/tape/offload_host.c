/* offload_host.c - an update by the CPU, where the state is, slice by slice.
 *
 * Gradient and weights go down into a stage (unless they are on the host already), the update runs on operands in host
 * memory, the weights go up again. That is a third of the bytes that state on its way to the device and back would be,
 * and the device has no part in it. Stages are used in turn: while one slice is computed, the next comes down and those
 * before go up. They are sent up late, when they are likely to be there: other fetches wait behind them. What is small
 * and the same for all slices is copied down once.
 *
 * Updates inside forward need only scalars from the device if their gradients are on the host: the host keeps a copy of the
 * weights that it updates, without a stage. An update changes the copy, and the changed rows go up into the parameter, so the two
 * stay equal. A step with nothing pending fills the copies first (exec_prime). */
#include "tape/offload.h"

#include <stdlib.h>

#define STAGE_ALIGN 64 /* of operands inside a stage */

enum { STAGED_SLOTS = UPDATE_G + 1 }; /* the parameter and its gradient */

bool host_can_update(const struct tape *tape, const struct op *op)
{
    if (!op_row(op->kind)->on_cpu) return false;
    bool any = tape->tensors[op->in[UPDATE_P]].tier == TIER_HOST;
    for (int k = STAGED_SLOTS; k < OP_MAX_IN; k++) {
        if (op->in[k] < 0 || !offload_is_cut(op, k)) continue;
        if (tape->tensors[op->in[k]].tier != TIER_HOST) return false;
        any = true;
    }
    return any;
}

bool host_is_early(const struct host_updates *h, const struct tape *tape, const struct op *op)
{
    return h->early && host_can_update(tape, op) && is_offloaded(tape, op->in[UPDATE_G]);
}

static int64_t align_up(int64_t n) { return (n + STAGE_ALIGN - 1) / STAGE_ALIGN * STAGE_ALIGN; }

/* Bytes of a slice that come down and wait in a stage. */
static int64_t staged_bytes(const struct tape *tape, const struct op *op, int64_t rows)
{
    int64_t bytes = 0, all = tape->tensors[op->in[UPDATE_P]].dim[0];
    if (rows > all) rows = all;
    for (int k = 0; k < STAGED_SLOTS; k++)
        if (!is_offloaded(tape, op->in[k]))
            bytes += align_up(tensor_bytes(&tape->tensors[op->in[k]]) / all * rows);
    return bytes;
}

static int host_tensor(struct tape *tape, const char *label, enum dtype type, int64_t count)
{
    struct tensor t = {.label = label,
                       .layer = -1,
                       .type = type,
                       .cls = CLASS_WORK,
                       .tier = TIER_HOST,
                       .ndim = 1,
                       .dim = {count},
                       .view_of = -1,
                       .owner = -1};
    return tape_tensor(tape, &t);
}

void host_begin(struct host_updates *h, struct tape *tape, const struct op *ops, int nops,
                int64_t slice_bytes)
{
    int64_t most = 0;
    for (int i = 0; i < nops; i++) {
        if (ops[i].part != PART_UPDATE || !host_can_update(tape, &ops[i])) continue;
        if (host_is_early(h, tape, &ops[i])) continue;
        int64_t bytes = staged_bytes(tape, &ops[i], offload_rows(tape, &ops[i], slice_bytes));
        if (bytes > most) most = bytes;
    }
    for (int i = 0; i < HOST_STAGES; i++)
        h->stage[i] = most ? host_tensor(tape, "update.stage", DT_U8, most) : -1;
}

int host_copy_of(struct host_updates *h, struct tape *tape, const struct op *op, int id)
{
    for (int i = 0; i < h->ncopies; i++)
        if (h->copied[i] == id) return h->copy[i];
    int copy = host_tensor(tape, "update.scalars", tape->tensors[id].type, tensor_count(&tape->tensors[id]));
    offload_move(tape, op, OP_STORE, id, copy);
    if (h->ncopies < HOST_COPIES) h->copied[h->ncopies] = id, h->copy[h->ncopies++] = copy;
    return copy;
}

/* `near`, a part of a parameter or gradient, as it lies in the stage from `offset` on. */
static int stage_view(struct tape *tape, int stage, int near, int64_t offset)
{
    struct tensor t = tape->tensors[near];
    t.view_of = stage, t.view_offset = offset, t.tier = TIER_HOST, t.cls = CLASS_WORK, t.flags = 0;
    return tape_tensor(tape, &t);
}

/* A copy on the host of some rows of a parameter. */
static int weights_copy(struct tape *tape, const struct op *op, int rows)
{
    struct tensor t = tape->tensors[rows];
    t.label = "update.weights", t.view_of = -1, t.view_offset = 0;
    t.tier = TIER_HOST, t.cls = CLASS_WORK, t.flags = 0;
    int copy = tape_tensor(tape, &t);
    offload_move(tape, op, OP_STORE, rows, copy);
    if (!tape->failed) tape->ops[tape->nops - 1].attr.primes = true;
    return copy;
}

void host_return_later(struct host_updates *h, struct tape *tape, const struct host_return *r)
{
    if (h->nreturns == h->cap) {
        int cap = h->cap ? 2 * h->cap : 64;
        struct host_return *more = realloc(h->returns, (size_t)cap * sizeof *more);
        if (!more) {
            tape->failed = true;
            return;
        }
        h->returns = more, h->cap = cap;
    }
    h->returns[h->nreturns++] = *r;
}

static void return_first(struct host_updates *h, struct tape *tape)
{
    const struct host_return *r = &h->returns[h->returned++];
    offload_move(tape, r->like, OP_FETCH, r->from, r->to);
    if (!tape->failed) tape->ops[tape->nops - 1].attr.half = (unsigned char)r->half;
}

static bool returns_to(const struct host_updates *h, const struct tape *tape, int root)
{
    for (int i = h->returned; i < h->nreturns; i++)
        if (tape_root(tape, h->returns[i].to) == root) return true;
    return false;
}

void host_return(struct host_updates *h, struct tape *tape, const struct op *op)
{
    for (int k = 0; k < OP_MAX_IN && h->returned < h->nreturns; k++) {
        int root = op->in[k] < 0 ? -1 : tape_root(tape, op->in[k]);
        if (root < 0 || tape->tensors[root].cls != CLASS_PARAM) continue;
        while (returns_to(h, tape, root)) return_first(h, tape);
    }
}

void host_finish(struct host_updates *h, struct tape *tape)
{
    while (h->returned < h->nreturns) return_first(h, tape);
}

void host_release(struct host_updates *h) { free(h->returns), free(h->pairs); }

struct op host_op(struct host_updates *h, struct tape *tape, const struct op *op, int64_t first, int64_t rows,
                  int *near)
{
    struct op here = *op;
    bool early = host_is_early(h, tape, op);
    int stage = h->stage[h->next];
    int64_t used = 0;
    *near = -1;
    here.attr.on_host = true, here.attr.first += offload_first(tape, op, first);
    for (int k = 0; k < OP_MAX_IN; k++) {
        if (op->in[k] < 0) continue;
        int id = offload_is_cut(op, k) ? offload_view(tape, op, k, offload_part(tape, op, k, first, rows))
                                       : host_copy_of(h, tape, op, op->in[k]);
        if (!is_offloaded(tape, id) && early) {
            *near = id;
            id = weights_copy(tape, op, id);
        } else if (!is_offloaded(tape, id)) {
            int view = stage_view(tape, stage, id, used);
            used += align_up(tensor_bytes(&tape->tensors[id]));
            offload_move(tape, op, OP_STORE, id, view);
            if (k == UPDATE_P) *near = id;
            id = view;
        }
        here.in[k] = id;
        for (int o = 0; o < OP_MAX_OUT; o++)
            if (op->out[o] == op->in[k]) here.out[o] = id;
    }
    return here;
}

void host_update(struct host_updates *h, struct tape *tape, const struct op *op, int64_t first, int64_t rows)
{
    int near;
    struct op here = host_op(h, tape, op, first, rows, &near);
    tape_append(tape, &here);
    if (!host_is_early(h, tape, op)) {
        h->next = (h->next + 1) % HOST_STAGES;
        /* Every slice takes a stage, so every slice lets one go that is due. */
        int due = h->nreturns - h->returned;
        if (due == HOST_RETURNS || (near < 0 && due)) return_first(h, tape);
    }
    if (near >= 0)
        host_return_later(h, tape, &(struct host_return){op, here.out[UPDATE_NEW_P], near, HALF_ANY});
}
