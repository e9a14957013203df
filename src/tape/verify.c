/* verify.c - the checker for the invariants numbered in tape.h. */
#include "tape/op.h"

#include <stdlib.h>

static enum plim_status check_tensor(const struct tape *tape, int id, struct plim_error *err)
{
    const struct tensor *t = &tape->tensors[id];
    const char *wrong = NULL;
    if (t->ndim < 1 || t->ndim > TENSOR_MAX_DIM) wrong = "number of dimensions";
    for (int i = 0; i < t->ndim && !wrong; i++)
        if (t->dim[i] < 1) wrong = "empty dimension";
    if (t->owner >= tape->ntensors) wrong = "owner out of range";
    if (!wrong && t->view_of >= 0) {
        if (t->view_of >= tape->ntensors || tape->tensors[t->view_of].view_of >= 0)
            wrong = "view of something that is no root";
        else if (t->view_offset < 0 ||
                 t->view_offset + tensor_bytes(t) > tensor_bytes(&tape->tensors[t->view_of]))
            wrong = "view leaves its root";
    }
    return wrong ? plim_fail(err, PLIM_BUG, "tensor %d (%s): %s", id, t->label, wrong) : PLIM_OK;
}

static bool may_write_kept(const struct op *op)
{
    return op->part == PART_UPDATE || op_row(op->kind)->writes_kept;
}

/* Invariant 5. */
static enum plim_status check_place(const struct tape *tape, int index, struct plim_error *err)
{
    const struct op *op = &tape->ops[index];
    enum tier place = op->attr.on_host ? TIER_HOST : TIER_DEVICE;
    char name[160];
    if (op_moves(op)) return PLIM_OK;
    for (int i = 0; i < OP_MAX_IN + OP_MAX_OUT; i++) {
        int id = i < OP_MAX_IN ? op->in[i] : op->out[i - OP_MAX_IN];
        if (id >= 0 && tape->tensors[id].tier != place)
            return plim_fail(err, PLIM_BUG, "op %d %s touches %s, which is on tier %s", index,
                             op_name(op->kind), tape_tensor_name(tape, id, name, sizeof name),
                             tier_name(tape->tensors[id].tier));
    }
    return PLIM_OK;
}

/* Reads before writes, adds after writes, kept tensors left alone. `written` is by root. */
static enum plim_status check_flow(const struct tape *tape, int index, bool *written, struct plim_error *err)
{
    const struct op *op = &tape->ops[index];
    char name[160];
    for (int i = 0; i < OP_MAX_IN; i++) {
        if (op->in[i] < 0) continue;
        if (!written[tape_root(tape, op->in[i])])
            return plim_fail(err, PLIM_BUG, "op %d %s reads %s before it is written", index,
                             op_name(op->kind), tape_tensor_name(tape, op->in[i], name, sizeof name));
    }
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (op->out[i] < 0) continue;
        int root = tape_root(tape, op->out[i]);
        bool adds = tape->tensors[root].cls == CLASS_GRAD && op->accumulate == ACC_ADD;
        if (adds && !written[root])
            return plim_fail(err, PLIM_BUG, "op %d adds to %s before anything wrote it", index,
                             tape_tensor_name(tape, root, name, sizeof name));
        if ((tape->tensors[root].flags & TENSOR_KEPT) && !may_write_kept(op))
            return plim_fail(err, PLIM_BUG, "op %d %s writes the kept tensor %s outside the update", index,
                             op_name(op->kind), tape_tensor_name(tape, root, name, sizeof name));
        written[root] = true;
    }
    return PLIM_OK;
}

enum plim_status tape_verify(const struct tape *tape, struct plim_error *err)
{
    if (tape->failed) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while the tape was made");
    if (tape->loop_end < 0 || tape->loop_end > tape->nops)
        return plim_fail(err, PLIM_BUG, "tape: loop end %d of %d ops", tape->loop_end, tape->nops);
    bool *written = calloc((size_t)tape->ntensors + 1, sizeof *written);
    if (!written) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while a tape was verified");
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < tape->ntensors && status == PLIM_OK; i++) {
        status = check_tensor(tape, i, err);
        written[i] = tape->tensors[i].flags & (TENSOR_KEPT | TENSOR_INPUT);
    }
    for (int i = 0; i < tape->nops && status == PLIM_OK; i++) {
        status = op_check(tape, &tape->ops[i], err);
        if (status == PLIM_OK) status = check_place(tape, i, err);
        if (status == PLIM_OK) status = check_flow(tape, i, written, err);
    }
    free(written);
    return status;
}
