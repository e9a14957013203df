/* pass_offload.c - optimizer moments and masters on a lower tier.
 *
 * Each update of such a parameter becomes a row of slices: fetch the slice's state into staging buffers, update,
 * store. The fetch of a slice stands before the update of the one before it, so that the executor can read ahead
 * while it computes; the packer sees two slices of staging alive at a time. The arithmetic is that of the whole
 * update, element by element: losses stay bit-identical. */
#include "tape/pass.h"

#include <stdlib.h>

/* One slice of one update: the op on near operands and its far operands. */
struct slice {
    struct op op;
    int near[OP_MAX_IN], far[OP_MAX_IN]; /* by input slot; -1: not moved */
};

static bool is_far(const struct tape *tape, int id, enum tier tier)
{
    return id >= 0 && tape->tensors[id].tier == tier;
}

static struct slice make_slice(struct tape *tape, const struct op *op, enum tier tier, int64_t first,
                               int64_t rows)
{
    struct slice s = {.op = *op};
    int64_t all = tape->tensors[op->in[0]].dim[0];
    for (int k = 0; k < OP_MAX_IN; k++) {
        s.near[k] = s.far[k] = -1;
        if (op->in[k] < 0) continue;
        bool per_element =
            tape->tensors[op->in[k]].cls != CLASS_IO; /* not the scalars, whatever their number */
        if (is_far(tape, op->in[k], tier)) {
            s.far[k] = rows == all ? op->in[k] : tape_view_rows(tape, op->in[k], first, rows);
            struct tensor t = tape->tensors[op->in[k]];
            t.tier = TIER_DEVICE, t.cls = CLASS_WORK, t.flags = 0, t.dim[0] = rows;
            s.near[k] = s.op.in[k] = tape_tensor(tape, &t);
        } else if (per_element && rows != all) {
            s.op.in[k] = tape_view_rows(tape, op->in[k], first, rows);
        }
        for (int o = 0; o < OP_MAX_OUT; o++)
            if (op->out[o] == op->in[k]) s.op.out[o] = s.op.in[k];
    }
    return s;
}

static void emit_moves(struct tape *tape, const struct slice *s, int kind)
{
    for (int k = 0; k < OP_MAX_IN; k++) {
        if (s->near[k] < 0) continue;
        struct op op = tape_op(kind, s->op.layer);
        op.part = PART_UPDATE;
        op.in[0] = kind == OP_FETCH ? s->far[k] : s->near[k];
        op.out[0] = kind == OP_FETCH ? s->near[k] : s->far[k];
        tape_append(tape, &op);
    }
}

static void emit_slice(struct tape *tape, const struct slice *s)
{
    tape_append(tape, &s->op);
    emit_moves(tape, s, OP_STORE);
}

/* Bytes of far state one row of the parameter has. */
static int64_t far_row_bytes(const struct tape *tape, const struct op *op, enum tier tier)
{
    int64_t bytes = 0;
    for (int k = 0; k < OP_MAX_IN; k++)
        if (is_far(tape, op->in[k], tier))
            bytes += tensor_bytes(&tape->tensors[op->in[k]]) / tape->tensors[op->in[k]].dim[0];
    return bytes;
}

enum plim_status pass_offload(struct tape *tape, const struct offload_options *options,
                              struct plim_error *err)
{
    if (options->state_tier == TIER_DEVICE) return PLIM_OK;
    for (int i = 0; i < tape->ntensors; i++) {
        struct tensor *t = &tape->tensors[i];
        if (t->cls == CLASS_STATE || t->cls == CLASS_MASTER) t->tier = options->state_tier;
    }
    struct op *old = tape->ops;
    int nops = tape->nops, loop_end = tape->loop_end;
    struct slice waiting;
    bool has_waiting = false;
    tape->ops = NULL, tape->nops = tape->op_cap = 0;
    for (int i = 0; i < nops; i++) {
        if (i == loop_end) tape->loop_end = tape->nops;
        int64_t row_bytes =
            old[i].part == PART_UPDATE ? far_row_bytes(tape, &old[i], options->state_tier) : 0;
        if (row_bytes == 0) {
            if (has_waiting) emit_slice(tape, &waiting);
            has_waiting = false;
            tape_append(tape, &old[i]);
            continue;
        }
        int64_t all = tape->tensors[old[i].in[0]].dim[0], per = options->slice_bytes / row_bytes;
        if (per < 1) per = 1;
        for (int64_t first = 0; first < all; first += per) {
            struct slice next =
                make_slice(tape, &old[i], options->state_tier, first, all - first < per ? all - first : per);
            emit_moves(tape, &next, OP_FETCH);
            if (has_waiting) emit_slice(tape, &waiting);
            waiting = next, has_waiting = true;
        }
    }
    if (has_waiting) emit_slice(tape, &waiting);
    if (loop_end == nops) tape->loop_end = tape->nops;
    free(old);
    return tape->failed ? plim_fail(err, PLIM_NO_MEMORY, "out of memory while offloading was placed")
                        : PLIM_OK;
}
