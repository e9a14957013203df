/* pass_update.c - optimizer ops: at the end, or each as soon as its gradient is complete.
 *
 * Inside the backward part a parameter is updated after the last op that reads it or writes its gradient, so the
 * mathematics is that of an update at the end, and gradients are never all alive. */
#include "tape/pass.h"

#include <stdlib.h>

static const char *const names[OPTIMIZER_COUNT] = {"adamw", "sgd"};
const char *optimizer_name(enum optimizer o) { return names[o]; }

struct update_pass {
    struct tape *tape;
    const struct update_options *options;
    int scalars, coef;
};

/* A kept companion of a parameter: moments, master. */
static int companion(struct update_pass *u, int param, const char *label, enum tensor_class cls,
                     enum dtype type)
{
    struct tensor t = u->tape->tensors[param];
    t.label = label, t.owner = param, t.cls = cls, t.type = type, t.flags = TENSOR_KEPT;
    return tape_tensor(u->tape, &t);
}

static int master_of(struct update_pass *u, int param)
{
    enum dtype type = u->tape->tensors[param].type;
    if (type == DT_F32) return -1;
    return companion(u, param, "master", CLASS_MASTER, type == DT_BF16 ? DT_U16 : DT_F32);
}

static struct op adamw_op(struct update_pass *u, int param, int grad)
{
    struct op op = tape_op(OP_ADAMW, u->tape->tensors[param].layer);
    op.in[0] = op.out[0] = param, op.in[1] = grad;
    op.in[2] = op.out[1] = companion(u, param, "m", CLASS_STATE, DT_F32);
    op.in[3] = op.out[2] = companion(u, param, "v", CLASS_STATE, DT_F32);
    op.in[4] = op.out[3] = master_of(u, param);
    op.in[5] = u->scalars, op.in[6] = u->coef;
    return op;
}

static struct op sgd_op(struct update_pass *u, int param, int grad)
{
    struct op op = tape_op(OP_SGD, u->tape->tensors[param].layer);
    op.in[0] = op.out[0] = param, op.in[1] = grad;
    if (u->options->beta1 > 0) op.in[2] = op.out[1] = companion(u, param, "m", CLASS_STATE, DT_F32);
    op.in[3] = op.out[2] = master_of(u, param);
    op.in[4] = u->scalars, op.in[5] = u->coef;
    return op;
}

static struct op (*const makers[OPTIMIZER_COUNT])(struct update_pass *, int, int) = {adamw_op, sgd_op};

static struct op update_op(struct update_pass *u, int grad)
{
    int param = u->tape->tensors[grad].owner;
    struct op op = makers[u->options->optimizer](u, param, grad);
    op.part = PART_UPDATE;
    op.attr.beta1 = u->options->beta1, op.attr.beta2 = u->options->beta2, op.attr.eps = u->options->eps;
    op.attr.decay = u->tape->tensors[param].ndim >= 2 ? u->options->weight_decay : 0;
    return op;
}

/* Sum of squares of all gradients, then the multiplier made of it. */
static void emit_global_norm(struct update_pass *u, int first_grad, int end)
{
    struct tape *tape = u->tape;
    struct tensor sum = {.label = "grad.sumsq",
                         .layer = -1,
                         .type = DT_F64,
                         .cls = CLASS_WORK,
                         .flags = TENSOR_STAT,
                         .ndim = 1,
                         .dim = {1},
                         .view_of = -1,
                         .owner = -1};
    struct tensor coef = {.label = "clip",
                          .layer = -1,
                          .type = DT_F32,
                          .cls = CLASS_IO,
                          .flags = TENSOR_STAT | TENSOR_OUTPUT,
                          .ndim = 1,
                          .dim = {CLIP_COUNT},
                          .view_of = -1,
                          .owner = -1};
    int sum_id = tape_tensor(tape, &sum);
    u->coef = tape_tensor(tape, &coef);
    enum accumulate accumulate = ACC_OVERWRITE;
    for (int i = first_grad; i < end; i++) {
        if (tape->tensors[i].cls != CLASS_GRAD) continue;
        struct op op = tape_op(OP_SUMSQ, -1);
        op.part = PART_UPDATE, op.accumulate = accumulate, op.in[0] = i, op.out[0] = sum_id;
        tape_append(tape, &op);
        accumulate = ACC_ADD;
    }
    struct op op = tape_op(OP_CLIP, -1);
    op.part = PART_UPDATE, op.in[0] = sum_id, op.in[1] = u->scalars, op.out[0] = u->coef;
    tape_append(tape, &op);
}

/* For each gradient, the index of the last op that reads its parameter or touches it. */
static void last_touches(const struct tape *tape, const int *grad_of, int *last)
{
    for (int i = 0; i < tape->nops; i++) {
        const struct op *op = &tape->ops[i];
        for (int k = 0; k < OP_MAX_IN; k++)
            if (op->in[k] >= 0 && grad_of[op->in[k]] >= 0) last[grad_of[op->in[k]]] = i;
        for (int k = 0; k < OP_MAX_OUT; k++)
            if (op->out[k] >= 0 && tape->tensors[op->out[k]].cls == CLASS_GRAD) last[op->out[k]] = i;
    }
}

/* The update of each gradient, in the order of their ids whatever the placement, so that moments and masters have
 * the same order in every plan of a job and a re-plan need not move them. */
static struct op *make_updates(struct update_pass *u, int end)
{
    struct op *updates = malloc(((size_t)end + 1) * sizeof *updates);
    for (int i = 0; i < end && updates; i++)
        if (u->tape->tensors[i].cls == CLASS_GRAD) updates[i] = update_op(u, i);
    return updates;
}

static enum plim_status update_in_backward(struct update_pass *u, const struct op *updates, int end,
                                           struct plim_error *err)
{
    struct tape *tape = u->tape;
    int nops = tape->nops;
    int *grad_of = malloc(((size_t)tape->ntensors + 1) * sizeof *grad_of),
        *last = malloc(((size_t)end + 1) * sizeof *last);
    struct op *old = tape->ops;
    enum plim_status status = PLIM_OK;
    if (!grad_of || !last) {
        status = plim_fail(err, PLIM_NO_MEMORY, "out of memory while updates were placed");
        goto out;
    }
    for (int i = 0; i < tape->ntensors; i++) grad_of[i] = -1;
    for (int i = 0; i < end; i++) last[i] = -1;
    for (int i = 0; i < end; i++)
        if (tape->tensors[i].cls == CLASS_GRAD) grad_of[tape->tensors[i].owner] = i;
    last_touches(tape, grad_of, last);
    tape->ops = NULL, tape->nops = tape->op_cap = 0;
    for (int i = 0; i < nops; i++) {
        tape_append(tape, &old[i]);
        /* Candidates for an update after op i are the few parameters and gradients it touches. */
        int due[OP_MAX_IN + OP_MAX_OUT], count = 0;
        for (int k = 0; k < OP_MAX_IN; k++)
            if (old[i].in[k] >= 0 && grad_of[old[i].in[k]] >= 0) due[count++] = grad_of[old[i].in[k]];
        for (int k = 0; k < OP_MAX_OUT; k++)
            if (old[i].out[k] >= 0 && tape->tensors[old[i].out[k]].cls == CLASS_GRAD)
                due[count++] = old[i].out[k];
        for (int k = 0; k < count; k++) {
            if (last[due[k]] != i) continue;
            last[due[k]] = -1;
            tape_append(tape, &updates[due[k]]);
        }
    }
    tape->loop_end = tape->nops;
    free(old);
out:
    free(grad_of);
    free(last);
    return status;
}

enum plim_status pass_update(struct tape *tape, const struct update_options *options, struct plim_error *err)
{
    struct update_pass u = {.tape = tape, .options = options, .coef = -1};
    u.scalars = tape_find(tape, "step.scalars", -1);
    if (u.scalars < 0) return plim_fail(err, PLIM_BUG, "the tape has no step.scalars");
    if (options->in_backward && options->global_norm)
        return plim_fail(err, PLIM_BUG,
                         "the optimizer cannot run inside backward: clipping needs all gradients");
    int end = tape->ntensors;
    tape->loop_end = tape->nops;
    if (options->global_norm) emit_global_norm(&u, 0, end);
    struct op *updates = make_updates(&u, end);
    if (!updates) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while updates were placed");
    enum plim_status status = PLIM_OK;
    if (options->in_backward)
        status = update_in_backward(&u, updates, end, err);
    else
        for (int i = 0; i < end; i++)
            if (tape->tensors[i].cls == CLASS_GRAD) tape_append(tape, &updates[i]);
    free(updates);
    if (status == PLIM_OK && tape->failed)
        status = plim_fail(err, PLIM_NO_MEMORY, "out of memory while updates were placed");
    return status;
}
