/* pass_loss_chunks.c - the output projection and its loss over slices of rows. A preference that follows reads the
 * log-probabilities of all slices and is not cut. A projection with an adapter is two products, the second of which adds to the first.
 *
 * Slices are whole multiples of LOSS_CHUNK_ROWS, the block in which matmuls sum over rows, so that the gradient
 * of the projection is summed in the same order whatever the number of slices: losses stay bit-identical. */
#include "tape/pass.h"

/* Rows [first, first+rows) of `of` seen as [N, width] (width 0: as [N]). */
static int row_slice(struct tape *tape, int of, int64_t width, int64_t first, int64_t rows)
{
    struct tensor t = tape->tensors[of];
    t.view_offset += first * (width ? width : 1) * (int64_t)dtype_size(t.type);
    t.view_of = tape_root(tape, of);
    t.ndim = width ? 2 : 1, t.dim[0] = rows, t.dim[1] = width, t.flags &= ~(unsigned)TENSOR_INPUT;
    return tape_tensor(tape, &t);
}

/* A product over rows [first, first+rows); `add`: what it adds to, or -1. Returns the slice of its result. */
static int emit_product(struct tape *tape, const struct op *linear, int add, int64_t first, int64_t rows)
{
    const struct tensor *x = &tape->tensors[linear->in[LINEAR_X]];
    struct tensor slice = tape->tensors[linear->out[LINEAR_Y]];
    struct op project = *linear;
    slice.dim[1] = slice.dim[slice.ndim - 1], slice.dim[0] = rows, slice.ndim = 2;
    project.in[LINEAR_X] = row_slice(tape, linear->in[LINEAR_X], x->dim[x->ndim - 1], first, rows);
    project.in[LINEAR_ADD] = add;
    project.out[LINEAR_Y] = tape_tensor(tape, &slice);
    tape_append(tape, &project);
    return project.out[LINEAR_Y];
}

static void emit_slice(struct tape *tape, const struct op *base, const struct op *linear,
                       const struct op *xent, int64_t first, int64_t rows)
{
    struct op loss = *xent;
    int add = base ? emit_product(tape, base, -1, first, rows) : -1;
    loss.in[XENT_LOGITS] = emit_product(tape, linear, add, first, rows);
    loss.in[XENT_TARGETS] = row_slice(tape, xent->in[XENT_TARGETS], 0, first, rows);
    if (xent->out[XENT_LOGP] >= 0)
        loss.out[XENT_LOGP] = row_slice(tape, xent->out[XENT_LOGP], 0, first, rows);
    if (first) loss.accumulate = ACC_ADD;
    tape_append(tape, &loss);
}

const struct op *pass_head_base(const struct op *ops, int i)
{
    const struct op *before = i > 0 ? &ops[i - 1] : NULL;
    bool adds = ops[i].in[LINEAR_ADD] >= 0 && before && before->kind == OP_LINEAR;
    return adds && before->out[LINEAR_Y] == ops[i].in[LINEAR_ADD] ? before : NULL;
}

enum plim_status pass_loss_chunks(struct tape *tape, int chunks, struct plim_error *err)
{
    int n = tape->nops;
    bool prefers = n > 0 && tape->ops[n - 1].kind == OP_PREFERENCE;
    n -= prefers;
    if (n < 2 || tape->ops[n - 1].kind != OP_XENT || tape->ops[n - 2].kind != OP_LINEAR)
        return plim_fail(err, PLIM_BUG, "the tape does not end in an output projection and its loss");
    bool adapted = pass_head_base(tape->ops, n - 2) != NULL;
    struct op base = tape->ops[adapted ? n - 3 : n - 2], linear = tape->ops[n - 2], xent = tape->ops[n - 1],
              preference = tape->ops[tape->nops - 1];
    int64_t rows = tensor_count(&tape->tensors[xent.in[XENT_TARGETS]]);
    int64_t blocks = (rows + LOSS_CHUNK_ROWS - 1) / LOSS_CHUNK_ROWS;
    if (chunks <= 1 || blocks <= 1) return PLIM_OK;
    int64_t per = (blocks + chunks - 1) / chunks * LOSS_CHUNK_ROWS;
    tape->nops = n - 2 - adapted;
    for (int64_t first = 0; first < rows; first += per)
        emit_slice(tape, adapted ? &base : NULL, &linear, &xent, first,
                   rows - first < per ? rows - first : per);
    if (prefers) tape_append(tape, &preference);
    tape->loop_end = tape->nops;
    return tape->failed ? plim_fail(err, PLIM_NO_MEMORY, "out of memory while the loss was cut") : PLIM_OK;
}
