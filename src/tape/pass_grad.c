/* pass_grad.c - reverse mode: each op's table row says how to differentiate it and which inputs it must keep.
 *
 * Invariants
 *  1. gradient[t] is complete when the op that made t is differentiated, because ops are visited in reverse.
 *  2. A second contribution to the same gradient is fused into the op that makes it (its `add` operand) where
 *     the op has one, and is an add op otherwise; no gradient is ever zeroed first.
 *  3. A residual connection costs nothing: the gradient of linear's `add` operand is the gradient of its output.
 *  4. Each slice of the head (linear + xent) is differentiated where it stands, so its logits die at once.
 *  5. Gradients of parameters are f32 (until pass_narrow_grads) and obey accumulate: the first op that writes one overwrites
 *     it in the first micro-batch, later ops of the same tape always add.
 */
#include "tape/pass_grad.h"
#include "tape/pass.h"

#include <stdlib.h>

static int emit(struct grad_pass *pass, struct op *op, enum op_part part)
{
    op->part = part;
    tape_append(pass->tape, op);
    return op->out[0];
}

/* A fresh tensor shaped like `of`, for its gradient. */
static int gradient_tensor(struct grad_pass *pass, int of)
{
    struct tensor t = pass->tape->tensors[of];
    t.label = "d", t.owner = of, t.flags = 0, t.cls = CLASS_ACT, t.view_of = -1, t.view_offset = 0;
    return tape_tensor(pass->tape, &t);
}

/* The f32 gradient of a parameter, made on first use; *first says whether this is that use. */
static int param_gradient(struct grad_pass *pass, int param, bool *first)
{
    *first = pass->gradient[param] < 0;
    if (*first) {
        struct tensor t = pass->tape->tensors[param];
        t.label = "grad", t.owner = param, t.flags = 0, t.cls = CLASS_GRAD, t.type = DT_F32;
        pass->gradient[param] = tape_tensor(pass->tape, &t);
    }
    return pass->gradient[param];
}

/* Output slot `slot` of `op` is a contribution to the gradient of `of`; fused with what is there already through
 * input slot `add_slot` (-1: the op has none, and an add op follows). Call after the inputs are set. */
static void contribute(struct grad_pass *pass, struct op *op, int slot, int of, int add_slot)
{
    int before = pass->gradient[of];
    op->out[slot] = gradient_tensor(pass, of);
    if (before >= 0 && add_slot >= 0) op->in[add_slot] = before;
    if (before < 0 || add_slot >= 0) pass->gradient[of] = op->out[slot];
}

/* The add op that contribute() could not fuse. Call after the op is appended. */
static void settle(struct grad_pass *pass, const struct op *op, int slot, int of)
{
    int before = pass->gradient[of];
    if (op->out[slot] < 0 || before == op->out[slot]) return;
    struct op add = tape_op(OP_ADD, op->layer);
    add.in[0] = before, add.in[1] = op->out[slot];
    add.out[0] = gradient_tensor(pass, of);
    pass->gradient[of] = emit(pass, &add, op->part);
}

static enum op_part backward_part(const struct op *op)
{
    return op->part == PART_HEAD ? PART_HEAD : PART_BACKWARD;
}

void grad_none(struct grad_pass *pass, const struct op *op) { (void)pass, (void)op; }

void grad_embed(struct grad_pass *pass, const struct op *op)
{
    int dy = pass->gradient[op->out[0]];
    bool first;
    struct op back = tape_op(OP_EMBED_BWD, op->layer);
    back.in[0] = op->in[0], back.in[1] = dy;
    back.out[0] = param_gradient(pass, op->in[1], &first);
    back.accumulate = first ? ACC_AFTER_FIRST : ACC_ADD;
    emit(pass, &back, PART_BACKWARD);
    if (op->in[2] >= 0) pass->gradient[op->in[2]] = dy; /* invariant 3; embeddings are added once */
}

void grad_norm(struct grad_pass *pass, const struct op *op)
{
    bool first, first_bias;
    struct op back = tape_op(OP_NORM_BWD, op->layer);
    back.attr = op->attr;
    back.in[0] = pass->gradient[op->out[0]], back.in[1] = op->in[0], back.in[2] = op->in[1],
    back.in[3] = op->out[1];
    back.out[1] = param_gradient(pass, op->in[1], &first);
    if (op->in[2] >= 0) back.out[2] = param_gradient(pass, op->in[2], &first_bias);
    back.accumulate = first ? ACC_AFTER_FIRST : ACC_ADD;
    contribute(pass, &back, 0, op->in[0], 4);
    emit(pass, &back, PART_BACKWARD);
}

static void linear_weight_grad(struct grad_pass *pass, const struct op *op, int dy)
{
    bool first, first_bias;
    struct op back = tape_op(OP_LINEAR_DW, op->layer);
    back.attr = op->attr;
    back.in[0] = dy, back.in[1] = op->in[0];
    back.out[0] = param_gradient(pass, op->in[1], &first);
    if (op->in[2] >= 0) back.out[1] = param_gradient(pass, op->in[2], &first_bias);
    back.accumulate = first ? ACC_AFTER_FIRST : ACC_ADD;
    emit(pass, &back, backward_part(op));
}

/* Slices of one hidden tensor in the head: their gradients are slices of one gradient. */
static int slice_gradient(struct grad_pass *pass, int slice)
{
    const struct tensor *t = &pass->tape->tensors[slice];
    int root = t->view_of;
    int64_t rows = t->dim[0], row_bytes = tensor_bytes(t) / rows, first = t->view_offset / row_bytes;
    if (pass->gradient[root] < 0) pass->gradient[root] = gradient_tensor(pass, root);
    /* The root may have other outer dimensions than its slices: give the view the slice's shape. */
    struct tensor v = pass->tape->tensors[slice];
    v.label = "d", v.owner = slice, v.cls = CLASS_ACT, v.flags = 0;
    v.view_of = pass->gradient[root], v.view_offset = first * row_bytes;
    return tape_tensor(pass->tape, &v);
}

void grad_linear(struct grad_pass *pass, const struct op *op)
{
    int dy = pass->gradient[op->out[0]], x = op->in[0];
    struct op back = tape_op(OP_LINEAR_DX, op->layer);
    back.attr = op->attr;
    back.in[0] = dy, back.in[1] = op->in[1];
    if (pass->tape->tensors[x].view_of >= 0)
        back.out[0] = slice_gradient(pass, x);
    else
        contribute(pass, &back, 0, x, 2);
    emit(pass, &back, backward_part(op));
    linear_weight_grad(pass, op, dy);
    if (op->in[3] < 0) return;
    if (pass->gradient[op->in[3]] < 0)
        pass->gradient[op->in[3]] = dy; /* invariant 3 */
    else {
        struct op add = tape_op(OP_ADD, op->layer);
        add.in[0] = pass->gradient[op->in[3]], add.in[1] = dy;
        add.out[0] = gradient_tensor(pass, op->in[3]);
        pass->gradient[op->in[3]] = emit(pass, &add, PART_BACKWARD);
    }
}

void grad_attn(struct grad_pass *pass, const struct op *op)
{
    struct op back = tape_op(OP_ATTN_BWD, op->layer);
    back.attr = op->attr;
    const int in[] = {
        pass->gradient[op->out[0]], op->in[0], op->in[1], op->in[2], op->out[0], op->out[1], op->in[3]};
    for (int i = 0; i < 7; i++) back.in[i] = in[i];
    for (int i = 0; i < 3; i++) contribute(pass, &back, i, op->in[i], -1);
    emit(pass, &back, PART_BACKWARD);
    for (int i = 0; i < 3; i++) settle(pass, &back, i, op->in[i]);
}

void grad_swiglu(struct grad_pass *pass, const struct op *op)
{
    struct op back = tape_op(OP_SWIGLU_BWD, op->layer);
    back.in[0] = pass->gradient[op->out[0]], back.in[1] = op->in[0], back.in[2] = op->in[1];
    for (int i = 0; i < 2; i++) contribute(pass, &back, i, op->in[i], -1);
    emit(pass, &back, PART_BACKWARD);
    for (int i = 0; i < 2; i++) settle(pass, &back, i, op->in[i]);
}

void grad_gelu(struct grad_pass *pass, const struct op *op)
{
    struct op back = tape_op(OP_GELU_BWD, op->layer);
    back.in[0] = pass->gradient[op->out[0]], back.in[1] = op->in[0];
    contribute(pass, &back, 0, op->in[0], -1);
    emit(pass, &back, PART_BACKWARD);
    settle(pass, &back, 0, op->in[0]);
}

void grad_add(struct grad_pass *pass, const struct op *op)
{
    int dy = pass->gradient[op->out[0]];
    for (int i = 0; i < 2; i++) {
        int before = pass->gradient[op->in[i]];
        if (before < 0) {
            pass->gradient[op->in[i]] = dy;
            continue;
        }
        struct op add = tape_op(OP_ADD, op->layer);
        add.in[0] = before, add.in[1] = dy, add.out[0] = gradient_tensor(pass, op->in[i]);
        pass->gradient[op->in[i]] = emit(pass, &add, PART_BACKWARD);
    }
}

void grad_split3(struct grad_pass *pass, const struct op *op)
{
    struct op back = tape_op(OP_JOIN3, op->layer);
    for (int i = 0; i < 3; i++) back.in[i] = pass->gradient[op->out[i]];
    back.in[3] = op->in[1];
    contribute(pass, &back, 0, op->in[0], -1);
    emit(pass, &back, PART_BACKWARD);
    settle(pass, &back, 0, op->in[0]);
}

/* Copy the forward ops; after each xent, its own backward and that of the linear before it. */
static enum plim_status forward_with_head(struct grad_pass *pass, const struct op *ops, int nops, bool *found,
                                          struct plim_error *err)
{
    *found = false;
    for (int i = 0; i < nops; i++) {
        struct op op = ops[i];
        if (op.kind != OP_XENT) {
            tape_append(pass->tape, &op);
            continue;
        }
        if (i == 0 || ops[i - 1].kind != OP_LINEAR || ops[i - 1].out[0] != op.in[0])
            return plim_fail(err, PLIM_BUG, "the loss must directly follow the output projection");
        op.out[1] = gradient_tensor(pass, op.in[0]);
        pass->gradient[op.in[0]] = op.out[1];
        tape_append(pass->tape, &op);
        grad_linear(pass, &ops[i - 1]);
        *found = true;
    }
    return PLIM_OK;
}

enum plim_status pass_grad(struct tape *tape, struct plim_error *err)
{
    /* Backward ops and gradients are appended to the tape; forward ops are replayed into a fresh list. */
    struct op_list forward = tape_take_ops(tape);
    int count = tape->ntensors;
    struct grad_pass pass = {.tape = tape, .gradient = malloc(((size_t)count + 1) * sizeof(int))};
    enum plim_status status = PLIM_OK;
    bool found = false;
    if (!pass.gradient) {
        status = plim_fail(err, PLIM_NO_MEMORY, "out of memory while gradients were derived");
        goto out;
    }
    for (int i = 0; i < count; i++) pass.gradient[i] = -1;
    status = forward_with_head(&pass, forward.ops, forward.count, &found, err);
    if (status != PLIM_OK) goto out;
    if (!found) {
        status = plim_fail(err, PLIM_BUG, "a tape without a loss cannot be differentiated");
        goto out;
    }
    for (int i = forward.count - 1; i >= 0; i--) {
        const struct op *op = &forward.ops[i];
        if (op->part == PART_HEAD) continue;
        const struct op_row *row = op_row(op->kind);
        if (!row->grad) {
            status = plim_fail(err, PLIM_BUG, "op %s has no gradient", row->name);
            goto out;
        }
        row->grad(&pass, op);
    }
    tape->loop_end = tape->nops;
out:
    free(pass.gradient);
    tape_drop_ops(tape, &forward);
    return status;
}
