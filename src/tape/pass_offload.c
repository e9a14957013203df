/* pass_offload.c - optimizer moments, masters and gradients on a lower tier.
 *
 * Each update of a parameter with far companions becomes a row of slices: fetch the slice's state into staging buffers, update,
 * store. The fetch of a slice stands before the update of the one before it, so that the executor can read ahead
 * while it computes; the packer sees two slices of staging alive at a time. The arithmetic is that of the whole
 * update, element by element: losses stay bit-identical.
 *
 * A far gradient is near only around the ops that add to it: fetched before the first of them (not in the first
 * micro-batch of a window, which overwrites it), stored after the last. The slices of the head count as one. */
#include "tape/pass.h"
#include "tensor/quant8.h"

#include <stdlib.h>
#include <string.h>

/* One slice of one update: the op on near operands and its far operands. */
struct slice {
    struct op op;
    int near[OP_MAX_IN], far[OP_MAX_IN]; /* by input slot; -1: not moved */
};

static bool is_far(const struct tape *tape, int id)
{
    return id >= 0 && tape->tensors[id].tier != TIER_DEVICE;
}

/* How an operand follows the rows of the parameter, by its pattern in the op table. */
enum cut { CUT_NOT, CUT_ROWS, CUT_BLOCKS };

static enum cut cut_of(const struct op *op, int slot)
{
    const char *pattern = op_row(op->kind)->in[slot];
    if (pattern[1] == '%') return CUT_BLOCKS;
    return strpbrk(pattern + 1, "NR") ? CUT_ROWS : CUT_NOT;
}

/* Part of an operand, in its own outermost dimension. */
struct part {
    int64_t first, rows;
};

static struct part part_of(const struct tape *tape, const struct op *op, int slot, int64_t first,
                           int64_t rows)
{
    const struct tensor *p = &tape->tensors[op->in[0]], *t = &tape->tensors[op->in[slot]];
    int64_t row = tensor_count(p) / p->dim[0];
    switch (cut_of(op, slot)) {
    case CUT_ROWS:
        return (struct part){first, rows};
    case CUT_BLOCKS: /* slices begin with a block: rows_together sees to it */
        return (struct part){first * row / QUANT8_BLOCK, quant8_blocks(rows * row)};
    default:
        return (struct part){0, t->dim[0]};
    }
}

static struct slice make_slice(struct tape *tape, const struct op *op, int64_t first, int64_t rows)
{
    struct slice s = {.op = *op};
    const struct tensor *p = &tape->tensors[op->in[0]];
    s.op.attr.first = first * (tensor_count(p) / p->dim[0]);
    for (int k = 0; k < OP_MAX_IN; k++) {
        s.near[k] = s.far[k] = -1;
        if (op->in[k] < 0) continue;
        struct part part = part_of(tape, op, k, first, rows);
        bool whole = part.rows == tape->tensors[op->in[k]].dim[0];
        int view = whole ? op->in[k] : tape_view_rows(tape, op->in[k], part.first, part.rows);
        if (is_far(tape, op->in[k])) {
            struct tensor t = tape->tensors[op->in[k]];
            t.tier = TIER_DEVICE, t.cls = CLASS_WORK, t.flags = 0, t.dim[0] = part.rows;
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

static void emit_moves(struct tape *tape, const struct slice *s, int kind)
{
    for (int k = 0; k < OP_MAX_IN; k++) {
        if (s->near[k] < 0 || (kind == OP_STORE && !writes(&s->op, s->near[k]))) continue;
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

/* Bytes of far state one row of the parameter has, rounded up; 0: none of the operands is far. */
static int64_t far_row_bytes(const struct tape *tape, const struct op *op)
{
    int64_t bytes = 0, rows = op->in[0] < 0 ? 1 : tape->tensors[op->in[0]].dim[0];
    for (int k = 0; k < OP_MAX_IN; k++)
        if (is_far(tape, op->in[k])) bytes += tensor_bytes(&tape->tensors[op->in[k]]);
    return (bytes + rows - 1) / rows;
}

/* Rows of a slice: as many as slice_bytes allow, at least one, in multiples of what may not be parted. */
static int64_t rows_together(const struct tape *tape, const struct op *op, int64_t slice_bytes,
                             int64_t row_bytes)
{
    const struct tensor *p = &tape->tensors[op->in[0]];
    int64_t row = tensor_count(p) / p->dim[0], unit = 1, per = slice_bytes / row_bytes;
    if (op->kind == OP_FACTOR_STAT) return p->dim[0];
    for (int k = 0; k < OP_MAX_IN && op_row(op->kind)->in[k]; k++)
        if (cut_of(op, k) == CUT_BLOCKS)
            while (unit * row % QUANT8_BLOCK) unit *= 2; /* 256 rows do, whatever their length */
    return per < unit ? unit : per / unit * unit;
}

/* Gradients in the loop. By tensor: the last op of the head and of the rest that writes it, and its near copy. */
struct far_grads {
    int *last_head, *last_back, *near;
};

static enum plim_status find_writers(struct far_grads *g, const struct tape *tape, struct plim_error *err)
{
    size_t bytes = ((size_t)tape->ntensors + 1) * sizeof(int);
    g->last_head = malloc(bytes), g->last_back = malloc(bytes), g->near = malloc(bytes);
    if (!g->last_head || !g->last_back || !g->near)
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory while offloading was placed");
    for (int i = 0; i < tape->ntensors; i++) g->last_head[i] = g->last_back[i] = g->near[i] = -1;
    for (int i = 0; i < tape->loop_end; i++)
        for (int o = 0; o < OP_MAX_OUT; o++)
            if (is_far(tape, tape->ops[i].out[o]))
                (tape->ops[i].part == PART_HEAD ? g->last_head : g->last_back)[tape->ops[i].out[o]] = i;
    return PLIM_OK;
}

static void move_gradient(struct tape *tape, const struct op *writer, int kind, int near, int far)
{
    struct op op = tape_op(kind, writer->layer);
    op.part = writer->part;
    op.in[0] = kind == OP_FETCH ? far : near, op.out[0] = kind == OP_FETCH ? near : far;
    /* What the writer would overwrite need not be fetched. */
    if (kind == OP_FETCH && writer->accumulate == ACC_AFTER_FIRST) op.accumulate = ACC_AFTER_FIRST;
    tape_append(tape, &op);
}

/* One op of the loop, with the moves its far gradients need. */
static void emit_writer(struct tape *tape, struct far_grads *g, const struct op *old, int index)
{
    struct op op = *old;
    for (int o = 0; o < OP_MAX_OUT; o++) {
        int far = old->out[o];
        if (!is_far(tape, far)) continue;
        if (g->near[far] < 0) {
            struct tensor t = tape->tensors[far];
            t.tier = TIER_DEVICE, t.cls = CLASS_WORK, t.flags = 0;
            g->near[far] = tape_tensor(tape, &t);
            move_gradient(tape, old, OP_FETCH, g->near[far], far);
        }
        op.out[o] = g->near[far];
    }
    tape_append(tape, &op);
    const int *last = old->part == PART_HEAD ? g->last_head : g->last_back;
    for (int o = 0; o < OP_MAX_OUT; o++) {
        int far = old->out[o];
        if (!is_far(tape, far) || last[far] != index) continue;
        move_gradient(tape, old, OP_STORE, g->near[far], far);
        g->near[far] = -1;
    }
}

static bool may_leave(const struct tensor *t)
{
    return (t->cls == CLASS_STATE || t->cls == CLASS_MASTER) && t->view_of < 0 && !(t->flags & TENSOR_NEAR);
}

/* The state of the last parameters goes, until the share is reached: what stays lies at the same place in every plan
 * (invariant 1 of plan/layout.h). */
static enum plim_status mark_far_state(struct tape *tape, const struct offload_options *options,
                                       struct plim_error *err)
{
    int64_t *bytes = calloc((size_t)tape->ntensors + 1, sizeof *bytes), all = 0, kept = 0;
    if (!bytes) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while offloading was placed");
    for (int i = 0; i < tape->ntensors; i++)
        if (may_leave(&tape->tensors[i])) {
            int64_t n = tensor_bytes(&tape->tensors[i]);
            bytes[tape->tensors[i].owner] += n, all += n;
        }
    int64_t leave = options->state_share ? options->state_share : OFFLOAD_SHARES;
    int64_t stays = all / OFFLOAD_SHARES * (OFFLOAD_SHARES - leave);
    int first = 0;
    while (first < tape->ntensors && kept + bytes[first] <= stays) kept += bytes[first++];
    for (int i = 0; i < tape->ntensors; i++) {
        struct tensor *t = &tape->tensors[i];
        if (may_leave(t) && t->owner >= first) t->tier = options->state_tier;
    }
    free(bytes);
    return PLIM_OK;
}

static enum plim_status mark_far(struct tape *tape, const struct offload_options *options,
                                 struct plim_error *err)
{
    for (int i = 0; i < tape->ntensors; i++) {
        struct tensor *t = &tape->tensors[i];
        if (t->cls == CLASS_GRAD && options->grad_tier != TIER_DEVICE)
            t->tier = options->grad_tier, t->flags |= TENSOR_KEPT;
    }
    return options->state_tier == TIER_DEVICE ? PLIM_OK : mark_far_state(tape, options, err);
}

/* An update whose operands are far, slice by slice; `waiting` is the slice fetched but not yet computed. */
static void emit_update(struct tape *tape, const struct op *op, int64_t per, struct slice *waiting,
                        bool *has_waiting)
{
    int64_t all = tape->tensors[op->in[0]].dim[0];
    for (int64_t first = 0; first < all; first += per) {
        struct slice next = make_slice(tape, op, first, all - first < per ? all - first : per);
        if (first > 0 && op->kind == OP_SUMSQ) next.op.accumulate = ACC_ADD;
        emit_moves(tape, &next, OP_FETCH);
        if (*has_waiting) emit_slice(tape, waiting);
        *waiting = next, *has_waiting = true;
    }
}

enum plim_status pass_offload(struct tape *tape, const struct offload_options *options,
                              struct plim_error *err)
{
    if (options->state_tier == TIER_DEVICE && options->grad_tier == TIER_DEVICE) return PLIM_OK;
    struct op *old = tape->ops;
    int nops = tape->nops, loop_end = tape->loop_end;
    struct slice waiting;
    bool has_waiting = false;
    struct far_grads grads = {0};
    enum plim_status status = mark_far(tape, options, err);
    if (status == PLIM_OK) status = find_writers(&grads, tape, err);
    if (status != PLIM_OK) goto out;
    tape->ops = NULL, tape->nops = tape->op_cap = 0;
    for (int i = 0; i < nops; i++) {
        if (i == loop_end) tape->loop_end = tape->nops;
        int64_t row_bytes = old[i].part == PART_UPDATE ? far_row_bytes(tape, &old[i]) : 0;
        if (row_bytes > 0) {
            int64_t per = rows_together(tape, &old[i], options->slice_bytes, row_bytes);
            emit_update(tape, &old[i], per, &waiting, &has_waiting);
            continue;
        }
        if (has_waiting) emit_slice(tape, &waiting);
        has_waiting = false;
        emit_writer(tape, &grads, &old[i], i);
    }
    if (has_waiting) emit_slice(tape, &waiting);
    if (loop_end == nops) tape->loop_end = tape->nops;
    free(old);
    if (tape->failed) status = plim_fail(err, PLIM_NO_MEMORY, "out of memory while offloading was placed");
out:
    free(grads.last_head), free(grads.last_back), free(grads.near);
    return status;
}
