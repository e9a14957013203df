/* pass_update.c - optimizer ops: at the end, each as soon as its gradient is complete, or each before the next step's
 * forward reads its parameter.
 *
 * Inside the backward part a parameter is updated after the last op that reads it or writes its gradient, so the
 * mathematics is that of an update at the end, and gradients are never all alive. The loss is known before the first of these
 * updates: a clip op over it, in place of gradients, has them change nothing when it is not finite.
 *
 * Inside forward, a step begins with the updates of the step before; then come forward, backward and norm. Gradients, the values of
 * the clip op and a copy of the scalars ("pending.scalars") wait from one step to the next. The updates run only in a window's first
 * micro-batch (device_skips). A clip value that says "not finite" means that nothing is pending. */
#include "tape/pass.h"
#include "base/hash.h"
#include "tensor/quant8.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[OPTIMIZER_COUNT] = {"adamw", "sgd", "adamw8bit", "adafactor"};
const char *optimizer_name(enum optimizer o) { return names[o]; }

struct update_pass {
    struct tape *tape;
    const struct update_options *options;
    int scalars, coef;
};

/* The ops that update one parameter, in order: its first one or two here, all of a parameter of many parts in `many`. */
struct update {
    struct op op[2];
    struct op *many; /* NULL: no more than these */
    int count;
};

static struct op *update_ops(struct update *update) { return update->many ? update->many : update->op; }

/* A kept companion of a parameter: moments, master. */
static int companion(struct update_pass *u, int param, const char *label, enum tensor_class cls,
                     enum dtype type)
{
    struct tensor t = u->tape->tensors[param];
    t.label = label, t.owner = param, t.cls = cls, t.type = type;
    t.flags = TENSOR_KEPT | (t.flags & TENSOR_NEAR);
    return tape_tensor(u->tape, &t);
}

/* A list of `count` f32 numbers that belongs to a parameter. */
static int list_of(struct update_pass *u, int param, const char *label, enum tensor_class cls, unsigned flags,
                   int64_t count)
{
    struct tensor t = u->tape->tensors[param];
    t.label = label, t.owner = param, t.cls = cls, t.type = DT_F32, t.flags = flags | (t.flags & TENSOR_NEAR);
    t.ndim = 1, t.dim[0] = count;
    return tape_tensor(u->tape, &t);
}

static int moment(struct update_pass *u, int param, const char *label)
{
    return companion(u, param, label, CLASS_STATE, u->options->narrow_state ? DT_BF16 : DT_F32);
}

static int master_of(struct update_pass *u, int param)
{
    enum dtype type = u->tape->tensors[param].type;
    if (!dtype_is_narrow(type) || (dtype_master(type) == DT_U16 && u->options->no_master)) return -1;
    return companion(u, param, "master", CLASS_MASTER, dtype_master(type));
}

static struct update adamw_update(struct update_pass *u, int param, int grad)
{
    bool narrow = u->options->optimizer == OPTIMIZER_ADAMW;
    struct op op = tape_op(OP_ADAMW, u->tape->tensors[param].layer);
    op.in[ADAMW_P] = op.out[ADAMW_NEW_P] = param, op.in[ADAMW_G] = grad;
    op.in[ADAMW_M] = op.out[ADAMW_NEW_M] =
        narrow ? moment(u, param, "m") : companion(u, param, "m", CLASS_STATE, DT_F32);
    op.in[ADAMW_V] = op.out[ADAMW_NEW_V] =
        narrow ? moment(u, param, "v") : companion(u, param, "v", CLASS_STATE, DT_F32);
    op.in[ADAMW_MASTER] = op.out[ADAMW_NEW_MASTER] = master_of(u, param);
    op.in[ADAMW_SCALARS] = u->scalars, op.in[ADAMW_COEF] = u->coef;
    return (struct update){{op}, NULL, 1};
}

static struct update sgd_update(struct update_pass *u, int param, int grad)
{
    struct op op = tape_op(OP_SGD, u->tape->tensors[param].layer);
    op.in[SGD_P] = op.out[SGD_NEW_P] = param, op.in[SGD_G] = grad;
    if (u->options->beta1 > 0) op.in[SGD_M] = op.out[SGD_NEW_M] = moment(u, param, "m");
    op.in[SGD_MASTER] = op.out[SGD_NEW_MASTER] = master_of(u, param);
    op.in[SGD_SCALARS] = u->scalars, op.in[SGD_COEF] = u->coef;
    return (struct update){{op}, NULL, 1};
}

static struct update adamw8_update(struct update_pass *u, int param, int grad)
{
    int64_t n = tensor_count(&u->tape->tensors[param]);
    if (n < ADAMW8_LEAST) return adamw_update(u, param, grad);
    struct op op = tape_op(OP_ADAMW8, u->tape->tensors[param].layer);
    op.in[ADAMW8_P] = op.out[ADAMW8_NEW_P] = param, op.in[ADAMW8_G] = grad;
    op.in[ADAMW8_MQ] = op.out[ADAMW8_NEW_MQ] = companion(u, param, "m", CLASS_STATE, DT_U8);
    op.in[ADAMW8_VQ] = op.out[ADAMW8_NEW_VQ] = companion(u, param, "v", CLASS_STATE, DT_U8);
    op.in[ADAMW8_MS] = op.out[ADAMW8_NEW_MS] =
        list_of(u, param, "m.scale", CLASS_STATE, TENSOR_KEPT, quant8_blocks(n));
    op.in[ADAMW8_VS] = op.out[ADAMW8_NEW_VS] =
        list_of(u, param, "v.scale", CLASS_STATE, TENSOR_KEPT, quant8_blocks(n));
    op.in[ADAMW8_MASTER] = op.out[ADAMW8_NEW_MASTER] = master_of(u, param);
    op.in[ADAMW8_SCALARS] = u->scalars, op.in[ADAMW8_COEF] = u->coef;
    return (struct update){{op}, NULL, 1};
}

/* One part of a joint parameter: rows [first, first + rows), as views; of experts a matrix; -1 stays -1. */
struct factored_part {
    int index;
    int64_t first, rows;
};

static int part_of(struct update_pass *u, int id, const struct factored_part *part)
{
    if (id >= 0 && u->tape->tensors[id].ndim == 3) {
        int view = tape_view_rows(u->tape, id, part->index, 1);
        if (view < 0) return -1;
        struct tensor *t = &u->tape->tensors[view];
        t->ndim = 2, t->dim[0] = t->dim[1], t->dim[1] = t->dim[2], t->dim[2] = 0;
        return view;
    }
    if (id < 0 || u->tape->tensors[id].dim[0] == part->rows) return id;
    return tape_view_rows(u->tape, id, part->first, part->rows);
}

/* Tensors shared by all parts of a parameter: [R], [parts C], [parts FACTOR_COUNT]; moment and master, or -1. */
struct factored {
    int param, grad, row, col, factor, m, master;
    int64_t columns;
};

static void factor_part(struct update_pass *u, const struct factored *f, const struct factored_part *part,
                        struct update *out)
{
    const struct factored_part columns = {part->index, part->index * f->columns, f->columns},
                               numbers = {part->index, part->index * FACTOR_COUNT, FACTOR_COUNT};
    int layer = u->tape->tensors[f->param].layer, grad = part_of(u, f->grad, part),
        row = part_of(u, f->row, part), col = part_of(u, f->col, &columns),
        factor = part_of(u, f->factor, &numbers);
    struct op stat = tape_op(OP_FACTOR_STAT, layer), step = tape_op(OP_ADAFACTOR, layer);
    stat.in[FACTOR_STAT_G] = grad, stat.in[FACTOR_STAT_SCALARS] = u->scalars,
    stat.in[FACTOR_STAT_COEF] = u->coef;
    stat.in[FACTOR_STAT_ROW] = stat.out[FACTOR_STAT_NEW_ROW] = row;
    stat.in[FACTOR_STAT_COL] = stat.out[FACTOR_STAT_NEW_COL] = col;
    stat.out[FACTOR_STAT_FACTOR] = factor;
    step.in[ADAFACTOR_P] = step.out[ADAFACTOR_NEW_P] = part_of(u, f->param, part);
    step.in[ADAFACTOR_G] = grad, step.in[ADAFACTOR_ROW] = row, step.in[ADAFACTOR_COL] = col;
    step.in[ADAFACTOR_FACTOR] = factor;
    step.in[ADAFACTOR_M] = step.out[ADAFACTOR_NEW_M] = part_of(u, f->m, part);
    step.in[ADAFACTOR_MASTER] = step.out[ADAFACTOR_NEW_MASTER] = part_of(u, f->master, part);
    step.in[ADAFACTOR_SCALARS] = u->scalars, step.in[ADAFACTOR_COEF] = u->coef;
    step.attr.first = part->first * f->columns;
    update_ops(out)[out->count++] = stat, update_ops(out)[out->count++] = step;
}

/* Has this parameter the rows of the model's joint products? The others, A of their adapters, have as many rows for each part. */
static bool has_joint_rows(const struct update_pass *u, const struct tensor *param)
{
    int64_t sum = 0;
    for (int i = 0; i < UPDATE_PARTS; i++) sum += u->options->joint_rows[i];
    return sum == param->dim[0];
}

/* A joint parameter is factored as the parameters it stands for are, and each expert by itself. */
static int parts_of(const struct update_pass *u, const struct tensor *param)
{
    const char *mark = strchr(param->label, '{');
    if (param->ndim == 3) return (int)param->dim[0];
    if (!mark || mark[1] == '}') return 1;
    return has_joint_rows(u, param) || param->dim[0] % UPDATE_PARTS == 0 ? UPDATE_PARTS : 1;
}

static int64_t rows_of_part(const struct update_pass *u, const struct tensor *param, int parts, int i)
{
    if (param->ndim == 3) return param->dim[1];
    if (parts > 1 && has_joint_rows(u, param)) return u->options->joint_rows[i];
    return param->dim[0] / parts;
}

/* Row and column statistics are small: they stay near whatever the tier of the rest. */
static struct update adafactor_update(struct update_pass *u, int param, int grad)
{
    const struct tensor t = u->tape->tensors[param];
    unsigned near = TENSOR_KEPT | TENSOR_NEAR;
    int64_t columns = t.ndim == 3 ? t.dim[2] : tensor_count(&t) / t.dim[0];
    int parts = parts_of(u, &t);
    bool matrix = t.ndim >= 2;
    struct factored f = {.param = param, .grad = grad, .col = -1, .m = -1, .columns = columns};
    struct update update = {.count = 0};
    if (parts > 1) update.many = malloc(2 * (size_t)parts * sizeof *update.many);
    if (parts > 1 && !update.many) {
        u->tape->failed = true;
        return update;
    }
    f.row = list_of(u, param, matrix ? "v.row" : "v", CLASS_STATE, near, tensor_count(&t) / columns);
    if (matrix) f.col = list_of(u, param, "v.col", CLASS_STATE, near, parts * columns);
    f.factor = list_of(u, param, "factor", CLASS_WORK, 0, parts * FACTOR_COUNT);
    if (u->options->beta1 > 0) f.m = moment(u, param, "m");
    f.master = master_of(u, param);
    struct factored_part part = {0};
    for (int i = 0; i < parts; i++) {
        part.index = i, part.rows = rows_of_part(u, &t, parts, i);
        factor_part(u, &f, &part, &update);
        part.first += part.rows;
    }
    return update;
}

static struct update (*const makers[OPTIMIZER_COUNT])(struct update_pass *, int, int) = {
    adamw_update, sgd_update, adamw8_update, adafactor_update};

/* The parameter's name decides: the same stream of random bits in every plan. */
static uint32_t stream_of(const struct tape *tape, int param)
{
    char name[192];
    uint64_t hash = hash_text(tape_tensor_name(tape, param, name, sizeof name));
    return (uint32_t)(hash ^ hash >> 32);
}

static struct update update_of(struct update_pass *u, int grad)
{
    const struct update_options *o = u->options;
    int param = u->tape->tensors[grad].owner;
    struct update update = makers[o->optimizer](u, param, grad);
    for (int i = 0; i < update.count; i++) {
        struct op *op = &update_ops(&update)[i];
        op->part = PART_UPDATE;
        op->attr.beta1 = o->beta1, op->attr.beta2 = o->beta2, op->attr.eps = o->eps;
        op->attr.limit = o->limit;
        op->attr.decay = u->tape->tensors[param].ndim >= 2 ? o->weight_decay : 0;
        op->attr.stochastic = o->no_master || o->narrow_state;
        if (op->attr.stochastic) op->attr.stream = stream_of(u->tape, param);
    }
    return update;
}

/* The ops go onto the tape, and what held them is given back. */
static void append_update(struct tape *tape, struct update *update)
{
    for (int i = 0; i < update->count; i++) tape_append(tape, &update_ops(update)[i]);
    free(update->many);
    update->many = NULL;
}

/* Creates the tensor through which a clip op passes values to the updates (enum clip_value). */
static int coef_of(struct tape *tape, const char *label, enum tensor_class cls, unsigned flags)
{
    struct tensor coef = {.label = label,
                          .layer = -1,
                          .type = DT_F32,
                          .cls = cls,
                          .flags = TENSOR_STAT | flags,
                          .ndim = 1,
                          .dim = {CLIP_COUNT},
                          .view_of = -1,
                          .owner = -1};
    return tape_tensor(tape, &coef);
}

static void append_clip(struct update_pass *u, int sums)
{
    struct op op = tape_op(OP_CLIP, -1);
    op.part = PART_UPDATE, op.in[CLIP_SUMS] = sums, op.in[CLIP_SCALARS] = u->scalars,
    op.out[CLIP_COEF] = u->coef;
    tape_append(u->tape, &op);
}

/* The sum of squares of each gradient, wherever it is made (pass_offload), and the multiplier made of all of them. */
static void emit_global_norm(struct update_pass *u, int end)
{
    struct tape *tape = u->tape;
    int grads = 0, next = 0;
    for (int i = 0; i < end; i++) grads += tape->tensors[i].cls == CLASS_GRAD;
    struct tensor sum = {.label = "grad.sumsq",
                         .layer = -1,
                         .type = DT_F64,
                         .cls = CLASS_WORK,
                         .flags = TENSOR_STAT,
                         .ndim = 1,
                         .dim = {grads},
                         .view_of = -1,
                         .owner = -1};
    int sum_id = tape_tensor(tape, &sum);
    u->coef = coef_of(tape, "clip", CLASS_IO, TENSOR_OUTPUT);
    for (int i = 0; i < end; i++) {
        if (tape->tensors[i].cls != CLASS_GRAD) continue;
        struct op op = tape_op(OP_SUMSQ, -1);
        op.part = PART_UPDATE, op.in[SUMSQ_GRAD] = i,
        op.out[SUMSQ_SUM] = tape_view_rows(tape, sum_id, next++, 1);
        tape_append(tape, &op);
    }
    append_clip(u, sum_id);
}

/* The last op that adds to the loss; -1: the tape has none. */
static int last_of_loss(const struct tape *tape, int loss)
{
    int last = -1;
    for (int i = 0; i < tape->nops && loss >= 0; i++)
        for (int k = 0; k < OP_MAX_OUT; k++)
            if (tape->ops[i].out[k] == loss) last = i;
    return last;
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
 * the same order in every plan of a job and a re-plan need not move them. Gradients are few among the tensors: number[i]
 * says which update is that of gradient i. */
static struct update *make_updates(struct update_pass *u, int end, int *number)
{
    int count = 0;
    for (int i = 0; i < end; i++)
        if (u->tape->tensors[i].cls == CLASS_GRAD) number[i] = count++;
    struct update *updates = malloc(((size_t)count + 1) * sizeof *updates);
    for (int i = 0; i < end && updates; i++)
        if (u->tape->tensors[i].cls == CLASS_GRAD) updates[number[i]] = update_of(u, i);
    return updates;
}

/* Both may be NULL. */
static void free_updates(const struct tape *tape, int end, struct update *updates, int *number)
{
    for (int i = 0; i < end && updates && number; i++)
        if (tape->tensors[i].cls == CLASS_GRAD) free(updates[number[i]].many);
    free(updates);
    free(number);
}

static enum plim_status update_in_backward(struct update_pass *u, int end, struct plim_error *err)
{
    struct tape *tape = u->tape;
    int loss = u->options->guards_loss ? tape_find(tape, "loss", -1) : -1, known = last_of_loss(tape, loss);
    if (known >= 0) u->coef = coef_of(tape, "loss.finite", CLASS_WORK, 0);
    int *number = malloc(((size_t)end + 1) * sizeof *number);
    struct update *updates = number ? make_updates(u, end, number) : NULL;
    int *grad_of = malloc(((size_t)tape->ntensors + 1) * sizeof *grad_of),
        *last = malloc(((size_t)end + 1) * sizeof *last);
    enum plim_status status = PLIM_OK;
    if (!updates || !grad_of || !last) {
        status = plim_fail(err, PLIM_NO_MEMORY, "out of memory while updates were placed");
        goto out;
    }
    for (int i = 0; i < tape->ntensors; i++) grad_of[i] = -1;
    for (int i = 0; i < end; i++) last[i] = -1;
    for (int i = 0; i < end; i++)
        if (tape->tensors[i].cls == CLASS_GRAD) grad_of[tape->tensors[i].owner] = i;
    last_touches(tape, grad_of, last);
    struct op_list all = tape_take_ops(tape);
    const struct op *old = all.ops;
    for (int i = 0; i < all.count; i++) {
        tape_append(tape, &old[i]);
        if (i == known) append_clip(u, loss); /* no clipping: it only says whether the loss is finite */
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
            append_update(tape, &updates[number[due[k]]]);
        }
    }
    tape->loop_end = tape->nops;
    tape_drop_ops(tape, &all);
out:
    free_updates(tape, end, updates, number);
    free(grad_of);
    free(last);
    return status;
}

/* Updates come this many parameters before forward reads theirs, about half a layer: then their copies run beside computing. */
#define FORWARD_LEAD 4

/* A gradient, and the first op that reads its parameter. */
struct first_use {
    int grad, op;
};

static int used_before(const void *a, const void *b)
{
    const struct first_use *x = a, *y = b;
    return x->op != y->op ? (x->op > y->op) - (x->op < y->op) : (x->grad > y->grad) - (x->grad < y->grad);
}

/* Gradients in the order in which forward reads their parameters; how many. An unread parameter comes first. */
static int list_uses(const struct tape *tape, int end, struct first_use *uses, int *use_of)
{
    int count = 0;
    for (int i = 0; i < tape->ntensors; i++) use_of[i] = -1;
    for (int i = 0; i < end; i++)
        if (tape->tensors[i].cls == CLASS_GRAD) {
            use_of[tape->tensors[i].owner] = count;
            uses[count++] = (struct first_use){i, -1};
        }
    for (int i = tape->loop_end - 1; i >= 0; i--)
        for (int k = 0; k < OP_MAX_IN; k++) {
            int id = tape->ops[i].in[k], use = id < 0 ? -1 : use_of[tape_root(tape, id)];
            if (use >= 0) uses[use].op = i;
        }
    qsort(uses, (size_t)count, sizeof *uses, used_before);
    return count;
}

/* A tensor that one step leaves for the next is there throughout. */
static void carry(struct tape *tape, int id) { tape->tensors[id].flags |= TENSOR_INPUT | TENSOR_OUTPUT; }

static int pending_scalars(struct tape *tape, int scalars)
{
    struct tensor t = tape->tensors[scalars];
    t.label = UPDATE_SCALARS, t.view_of = -1;
    int id = tape_tensor(tape, &t);
    if (id >= 0) carry(tape, id);
    return id;
}

/* The norm's ops are on the tape, behind the loop. */
static enum plim_status update_in_forward(struct update_pass *u, int end, struct plim_error *err)
{
    struct tape *tape = u->tape;
    u->scalars = pending_scalars(tape, u->scalars);
    if (u->coef >= 0) carry(tape, u->coef);
    for (int i = 0; i < end; i++)
        if (tape->tensors[i].cls == CLASS_GRAD) carry(tape, i);
    int *number = malloc(((size_t)end + 1) * sizeof *number);
    struct update *updates = number ? make_updates(u, end, number) : NULL;
    int *use_of = malloc(((size_t)tape->ntensors + 1) * sizeof *use_of);
    struct first_use *uses = malloc(((size_t)end + 1) * sizeof *uses);
    enum plim_status status = PLIM_OK;
    if (!updates || !use_of || !uses) {
        status = plim_fail(err, PLIM_NO_MEMORY, "out of memory while updates were placed");
        goto out;
    }
    int count = list_uses(tape, end, uses, use_of), next = 0, loop_end = tape->loop_end;
    struct op_list all = tape_take_ops(tape);
    for (int i = 0; i < all.count; i++) {
        if (i == loop_end) tape->loop_end = tape->nops;
        for (; next < count && (next < FORWARD_LEAD || uses[next - FORWARD_LEAD].op <= i); next++)
            append_update(tape, &updates[number[uses[next].grad]]);
        tape_append(tape, &all.ops[i]);
    }
    tape_drop_ops(tape, &all);
out:
    free_updates(tape, end, updates, number);
    free(use_of);
    free(uses);
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
    if (options->global_norm) emit_global_norm(&u, end);
    if (options->part == TAPE_LOOP && options->global_norm) { /* every gradient is read there */
        for (int i = 0; i < end && options->part_state; i++)
            if (tape->tensors[i].cls == CLASS_GRAD) free(update_of(&u, i).many);
        return tape->failed ? plim_fail(err, PLIM_NO_MEMORY, "out of memory while updates were placed")
                            : PLIM_OK;
    }
    bool inside = options->in_backward || options->in_forward;
    for (int i = 0; i < end && !inside; i++) {
        if (tape->tensors[i].cls != CLASS_GRAD) continue;
        struct update update = update_of(&u, i);
        append_update(tape, &update);
    }
    enum plim_status status = options->in_backward  ? update_in_backward(&u, end, err)
                              : options->in_forward ? update_in_forward(&u, end, err)
                                                    : PLIM_OK;
    if (status == PLIM_OK && tape->failed)
        status = plim_fail(err, PLIM_NO_MEMORY, "out of memory while updates were placed");
    return status;
}
