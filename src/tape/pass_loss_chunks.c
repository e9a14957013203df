/* pass_loss_chunks.c - the output projection and its loss over slices of rows. A preference that follows reads the
 * log-probabilities of all slices and is not cut. A projection with an adapter is two products, the second of which adds to the first;
 * DoRA scales the columns of their sum.
 *
 * Slices are whole multiples of LOSS_CHUNK_ROWS, the block in which matmuls sum over rows, so that the gradient
 * of the projection is summed in the same order whatever the number of slices: losses stay bit-identical. */
#include "tape/pass.h"

#include <string.h>

enum { HEAD_OPS = 3 }; /* the projection, its adapter, DoRA's scale */

/* Rows [first, first+rows) of `of` seen as [N, width] (width 0: as [N]). */
static int row_slice(struct tape *tape, int of, int64_t width, int64_t first, int64_t rows)
{
    struct tensor t = tape->tensors[of];
    t.view_offset += first * (width ? width : 1) * (int64_t)dtype_size(t.type);
    t.view_of = tape_root(tape, of);
    t.ndim = width ? 2 : 1, t.dim[0] = rows, t.dim[1] = width, t.flags &= ~(unsigned)TENSOR_INPUT;
    return tape_tensor(tape, &t);
}

bool pass_is_head(const struct op *op) { return op->kind == OP_LINEAR || op->kind == OP_COLUMN_SCALE; }

int pass_head_slot(const struct op *op)
{
    return op->kind == OP_LINEAR ? (int)LINEAR_ADD : (int)COLUMN_SCALE_X;
}

/* An op of the head over rows [first, first+rows); `made`: the slice of the op before it, or -1. Returns the slice of its result. */
static int emit_part(struct tape *tape, const struct op *op, int made, int64_t first, int64_t rows)
{
    struct tensor slice = tape->tensors[op->out[0]];
    struct op part = *op;
    slice.dim[1] = slice.dim[slice.ndim - 1], slice.dim[0] = rows, slice.ndim = 2;
    if (op->kind == OP_LINEAR) {
        const struct tensor *x = &tape->tensors[op->in[LINEAR_X]];
        part.in[LINEAR_X] = row_slice(tape, op->in[LINEAR_X], x->dim[x->ndim - 1], first, rows);
    }
    part.in[pass_head_slot(op)] = made;
    part.out[0] = tape_tensor(tape, &slice);
    tape_append(tape, &part);
    return part.out[0];
}

static void emit_slice(struct tape *tape, const struct op *head, int count, const struct op *xent,
                       int64_t first, int64_t rows)
{
    struct op loss = *xent;
    int made = -1;
    for (int i = 0; i < count; i++) made = emit_part(tape, &head[i], made, first, rows);
    loss.in[XENT_LOGITS] = made;
    loss.in[XENT_TARGETS] = row_slice(tape, xent->in[XENT_TARGETS], 0, first, rows);
    if (xent->out[XENT_LOGP] >= 0)
        loss.out[XENT_LOGP] = row_slice(tape, xent->out[XENT_LOGP], 0, first, rows);
    if (first) loss.accumulate = ACC_ADD;
    tape_append(tape, &loss);
}

_Static_assert(LINEAR_Y == 0 && COLUMN_SCALE_Y == 0, "an op of the head has one output");

const struct op *pass_head_before(const struct op *ops, int i)
{
    const struct op *before = i > 0 ? &ops[i - 1] : NULL;
    int made = pass_is_head(&ops[i]) ? ops[i].in[pass_head_slot(&ops[i])] : -1;
    bool adds = made >= 0 && before && before->kind == OP_LINEAR;
    return adds && before->out[LINEAR_Y] == made ? before : NULL;
}

enum plim_status pass_loss_chunks(struct tape *tape, int chunks, struct plim_error *err)
{
    int n = tape->nops;
    bool prefers = n > 0 && tape->ops[n - 1].kind == OP_PREFERENCE;
    n -= prefers;
    if (n < 2 || tape->ops[n - 1].kind != OP_XENT || !pass_is_head(&tape->ops[n - 2]))
        return plim_fail(err, PLIM_BUG, "the tape does not end in an output projection and its loss");
    int count = 1;
    while (pass_head_before(tape->ops, n - 1 - count)) count++;
    struct op head[HEAD_OPS], xent = tape->ops[n - 1], preference = tape->ops[tape->nops - 1];
    memcpy(head, &tape->ops[n - 1 - count], (size_t)count * sizeof *head);
    int64_t rows = tensor_count(&tape->tensors[xent.in[XENT_TARGETS]]);
    int64_t blocks = (rows + LOSS_CHUNK_ROWS - 1) / LOSS_CHUNK_ROWS;
    if (chunks <= 1 || blocks <= 1) return PLIM_OK;
    int64_t per = (blocks + chunks - 1) / chunks * LOSS_CHUNK_ROWS;
    tape->nops = n - 1 - count;
    for (int64_t first = 0; first < rows; first += per)
        emit_slice(tape, head, count, &xent, first, rows - first < per ? rows - first : per);
    if (prefers) tape_append(tape, &preference);
    tape->loop_end = tape->nops;
    return tape->failed ? plim_fail(err, PLIM_NO_MEMORY, "out of memory while the loss was cut") : PLIM_OK;
}
