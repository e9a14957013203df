/* pass_shard.c - parameters, gradients, moments and masters in pieces, one on each rank.
 *
 * A tensor in pieces keeps its shape and name; `piece` says how much of it is here, and ops touch that through one view. A
 * parameter in pieces is gathered before the first op of a phase that reads it. A gradient in pieces is made whole by
 * backward and summed over ranks behind its last writer, in every micro-batch; one that stays whole is summed where the update
 * needs it first. Which of both is the same at every stage, for the order of summation follows from it. Updates compute
 * the piece alone; where the parameter is whole, its piece is taken before and gathered after. A whole update (ZERO_NONE)
 * gathers the sum.
 *
 * With ZERO_NODE the pieces are those of a node's ranks, and the sum over nodes of a gradient's piece is made where the update
 * needs it first.
 *
 * All ranks have the same tape but for attr.first, which says where in the parameter an update begins. */
#include "tape/op.h"
#include "tape/pass.h"
#include "tape/phase.h"
#include "tensor/quant8.h"

#include <stdlib.h>
#include <string.h>

struct shard {
    struct tape *tape;
    const struct shard_options *options;
    int pieces, number; /* how many there are of a tensor, and this rank's */
    enum among among;   /* who has them */
    int count;          /* tensors there were */
    /* By tensor there was; -1: none. */
    int *view;         /* of what is in pieces: the piece */
    int *near;         /* the whole of it, now */
    int *made;         /* of a gradient that is whole: its piece of the sum */
    int *gathered;     /* of a gradient in pieces: the whole of the sum */
    int *last[PHASES]; /* op of the loop that touches the parameter */
    int *writer;       /* the last op of the loop that writes the gradient */
    bool *summed;      /* a gradient that is the sum already */
    bool *stays;       /* a parameter that is whole from forward to backward */
};

static enum plim_status no_memory(struct plim_error *err)
{
    return plim_fail(err, PLIM_NO_MEMORY, "out of memory while a tape was shared among ranks");
}

static int *ids(int count)
{
    int *out = malloc(((size_t)count + 1) * sizeof *out);
    if (out) memset(out, -1, ((size_t)count + 1) * sizeof *out);
    return out;
}

static bool shard_alloc(struct shard *s)
{
    s->view = ids(s->count), s->near = ids(s->count), s->made = ids(s->count), s->writer = ids(s->count);
    s->gathered = ids(s->count);
    s->summed = calloc((size_t)s->count + 1, sizeof *s->summed);
    s->stays = calloc((size_t)s->count + 1, sizeof *s->stays);
    bool good = s->view && s->near && s->made && s->writer && s->gathered && s->summed && s->stays;
    for (int p = 0; p < PHASES; p++) good = (s->last[p] = ids(s->count)) != NULL && good;
    return good;
}

static void shard_free(struct shard *s)
{
    free(s->view), free(s->near), free(s->made), free(s->writer), free(s->gathered);
    free(s->summed), free(s->stays);
    for (int p = 0; p < PHASES; p++) free(s->last[p]);
}

/* --- pieces ------------------------------------------------------------------------------------------------- */

static int64_t row_of(const struct tensor *t) { return t->ndim > 1 ? t->dim[t->ndim - 1] : 1; }

/* Rows of a parameter's piece: whole blocks of 8-bit state, so that blocks are the same for every number of ranks. */
static int64_t piece_rows(const struct shard *s, const struct tensor *param)
{
    int64_t row = row_of(param), rows = tensor_count(param) / row, pieces = s->pieces, unit = 1;
    while (unit * row % QUANT8_BLOCK) unit *= 2;
    int64_t per = (rows + pieces - 1) / pieces;
    return (per + unit - 1) / unit * unit;
}

/* The parameter that a tensor belongs to, itself included; -1: none that is cut. */
static int owner_of(const struct tape *tape, int id)
{
    const struct tensor *t = &tape->tensors[id];
    int owner = t->cls == CLASS_PARAM ? id : t->owner;
    if (t->view_of >= 0 || owner < 0) return -1;
    const struct tensor *param = &tape->tensors[owner];
    return param->cls == CLASS_PARAM && !(param->flags & TENSOR_NEAR) && !(t->flags & TENSOR_NEAR) ? owner
                                                                                                   : -1;
}

/* A tensor in the shape of a piece of `id`. */
static struct tensor piece_of(const struct shard *s, int id)
{
    struct tensor t = s->tape->tensors[id];
    const struct tensor *param = &s->tape->tensors[owner_of(s->tape, id)];
    int64_t rows = piece_rows(s, param), row = row_of(param);
    bool blocks = tensor_count(&t) != tensor_count(param);
    t.ndim = blocks || row == 1 ? 1 : 2;
    t.dim[0] = blocks ? rows * row / QUANT8_BLOCK : rows, t.dim[1] = row, t.dim[2] = t.dim[3] = 0;
    t.piece = 0;
    return t;
}

static bool is_cut(const struct shard *s, int id)
{
    enum zero least = ZERO_COUNT;
    switch (s->tape->tensors[id].cls) {
    case CLASS_STATE:
    case CLASS_MASTER:
        least = ZERO_STATE;
        break;
    case CLASS_GRAD:
        least = s->options->whole_grads ? ZERO_COUNT : ZERO_NONE;
        break;
    case CLASS_PARAM:
        least = ZERO_PARAMS;
        break;
    default:
        break;
    }
    bool small = least == ZERO_PARAMS && tensor_count(&s->tape->tensors[id]) < s->options->whole_below;
    return s->options->zero >= least && !small && owner_of(s->tape, id) >= 0;
}

static void cut_tensors(struct shard *s)
{
    for (int i = 0; i < s->count && !s->tape->failed; i++) {
        if (!is_cut(s, i)) continue;
        struct tensor view = piece_of(s, i);
        s->tape->tensors[i].piece = tensor_count(&view);
        view.view_of = i, view.view_offset = 0, view.flags &= ~(unsigned)TENSOR_KEPT;
        s->view[i] = tape_tensor(s->tape, &view);
    }
}

/* --- ops ------------------------------------------------------------------------------------------------------ */

static void emit_among(struct shard *s, const struct op *like, int kind, int from, int to, enum among among)
{
    struct op *op = tape_add(s->tape, kind, like->layer);
    if (op) op->part = like->part, op->attr.among = among, op->in[MOVE_FROM] = from, op->out[MOVE_TO] = to;
}

static void emit(struct shard *s, const struct op *like, int kind, int from, int to,
                 enum accumulate accumulate)
{
    emit_among(s, like, kind, from, to, s->among);
    if (!s->tape->failed) s->tape->ops[s->tape->nops - 1].accumulate = accumulate;
}

static int scratch(struct shard *s, struct tensor t)
{
    t.cls = CLASS_WORK, t.flags = 0, t.view_of = -1, t.view_offset = 0, t.piece = 0;
    return tape_tensor(s->tape, &t);
}

/* The root of what is in pieces, or -1. */
static int cut_root(const struct shard *s, int id)
{
    if (id < 0 || id >= s->count) return -1;
    int root = tape_root(s->tape, id);
    return s->view[root] >= 0 ? root : -1;
}

/* An operand as part of the whole that is near. */
static int near_operand(struct shard *s, int id, int root, int whole)
{
    if (id == root) return whole;
    struct tensor view = s->tape->tensors[id];
    view.view_of = whole;
    return tape_tensor(s->tape, &view);
}

static int read_whole(struct shard *s, const struct op *op, int id, int root)
{
    if (s->near[root] < 0) {
        s->near[root] = scratch(s, s->tape->tensors[root]);
        emit(s, op, OP_GATHER, s->view[root], s->near[root], ACC_OVERWRITE);
    }
    return near_operand(s, id, root, s->near[root]);
}

/* Does the op also add to a gradient that stays whole? A matrix' gradient comes with that of its bias. */
static bool adds_to_whole(const struct shard *s, const struct op *old)
{
    for (int o = 0; o < OP_MAX_OUT; o++)
        if (old->out[o] >= 0 && cut_root(s, old->out[o]) < 0 &&
            s->tape->tensors[tape_root(s->tape, old->out[o])].cls == CLASS_GRAD && old->kind == OP_LINEAR_DW)
            return true;
    return false;
}

/* Starts a new whole gradient; the piece holds the sums of earlier micro-batches. */
static int write_whole(struct shard *s, const struct op *old, struct op *op, int id, int root)
{
    if (s->near[root] < 0) s->near[root] = scratch(s, s->tape->tensors[root]);
    if (old->accumulate == ACC_AFTER_FIRST && adds_to_whole(s, old))
        op->attr.fresh = true;
    else if (old->accumulate == ACC_AFTER_FIRST)
        op->accumulate = ACC_OVERWRITE;
    return near_operand(s, id, root, s->near[root]);
}

static void emit_in_loop(struct shard *s, const struct op *old, int index)
{
    struct op op = *old;
    const int *last = s->last[phase_of(old)];
    int root;
    for (int k = 0; k < OP_MAX_IN; k++)
        if ((root = cut_root(s, old->in[k])) >= 0) op.in[k] = read_whole(s, old, old->in[k], root);
    for (int o = 0; o < OP_MAX_OUT; o++)
        if ((root = cut_root(s, old->out[o])) >= 0) op.out[o] = write_whole(s, old, &op, old->out[o], root);
    tape_append(s->tape, &op);
    for (int o = 0; o < OP_MAX_OUT; o++)
        if ((root = cut_root(s, old->out[o])) >= 0 && s->writer[root] == index && s->near[root] >= 0) {
            emit(s, old, OP_REDUCE, s->near[root], s->view[root], ACC_AFTER_FIRST);
            s->near[root] = -1;
        }
    for (int k = 0; k < OP_MAX_IN; k++)
        if ((root = cut_root(s, old->in[k])) >= 0 && last[root] == index &&
            !(s->stays[root] && phase_of(old) == PHASE_FORWARD))
            s->near[root] = -1;
}

/* --- updates ----------------------------------------------------------------------------------------------------- */

/* A small gradient becomes the sum. */
static void sum_small(struct shard *s, const struct op *op, int grad)
{
    if (s->summed[grad]) return;
    emit_among(s, op, OP_SUM, grad, grad, AMONG_ALL);
    s->summed[grad] = true;
}

/* A piece of what a node has summed becomes the sum of all. */
static void sum_nodes(struct shard *s, const struct op *op, int grad, int piece)
{
    if (s->among != AMONG_NODE || s->summed[grad]) return;
    emit_among(s, op, OP_SUM, piece, piece, AMONG_NODES);
    s->summed[grad] = true;
}

/* This rank's piece of the summed gradient. */
static int grad_piece(struct shard *s, const struct op *op, int grad)
{
    int piece = s->view[grad] >= 0 ? s->view[grad] : s->made[grad];
    if (piece < 0) {
        piece = s->made[grad] = scratch(s, piece_of(s, grad));
        emit(s, op, OP_REDUCE, grad, piece, ACC_OVERWRITE);
    }
    sum_nodes(s, op, grad, piece);
    return piece;
}

/* The summed gradient, whole: in its own place, or beside its piece. */
static int whole_grad(struct shard *s, const struct op *op, int grad)
{
    if (owner_of(s->tape, grad) < 0) {
        sum_small(s, op, grad);
        return grad;
    }
    if (s->gathered[grad] < 0) {
        int piece = grad_piece(s, op, grad);
        s->gathered[grad] = s->view[grad] >= 0 ? scratch(s, s->tape->tensors[grad]) : grad;
        emit(s, op, OP_GATHER, piece, s->gathered[grad], ACC_OVERWRITE);
    }
    return s->gathered[grad];
}

/* The norm is summed over pieces whatever the stage, and so has the same bits in all of them. */
static void emit_square(struct shard *s, const struct op *old)
{
    struct op op = *old;
    int grad = tape_root(s->tape, old->in[SUMSQ_GRAD]);
    if (owner_of(s->tape, grad) >= 0) {
        op.in[SUMSQ_GRAD] = grad_piece(s, old, grad);
    } else {
        struct tensor t = s->tape->tensors[grad];
        t.dim[0] = (tensor_count(&t) + s->pieces - 1) / s->pieces, t.ndim = 1;
        sum_small(s, old, grad);
        op.in[SUMSQ_GRAD] = scratch(s, t);
        emit(s, old, OP_PIECE, grad, op.in[SUMSQ_GRAD], ACC_OVERWRITE);
    }
    tape_append(s->tape, &op);
    if (s->options->zero == ZERO_NONE && s->options->whole_grads) whole_grad(s, old, grad);
}

/* Operand `from` of an update becomes `to`, where it is read and where it is written. */
static void put_operand(struct op *op, int slot, int from, int to)
{
    op->in[slot] = to;
    for (int o = 0; o < OP_MAX_OUT; o++)
        if (op->out[o] == from) op->out[o] = to;
}

static void emit_piece_update(struct shard *s, const struct op *old, int param, int grad)
{
    struct op op = *old;
    bool whole = s->view[param] < 0;
    int piece = whole ? scratch(s, piece_of(s, param)) : s->view[param];
    if (s->tape->failed) return;
    if (whole) emit(s, old, OP_PIECE, param, piece, ACC_OVERWRITE);
    op.in[UPDATE_G] = grad_piece(s, old, grad);
    put_operand(&op, UPDATE_P, param, piece);
    for (int k = 0; k < OP_MAX_IN; k++)
        if (old->in[k] >= 0 && k != UPDATE_P && k != UPDATE_G && s->view[old->in[k]] >= 0)
            put_operand(&op, k, old->in[k], s->view[old->in[k]]);
    op.attr.first += s->number * tensor_count(&s->tape->tensors[piece]);
    tape_append(s->tape, &op);
    if (whole) emit(s, old, OP_GATHER, piece, param, ACC_OVERWRITE);
}

/* Where an update has its gradient. Adafactor's statistics are of whole matrices. */
static int grad_slot(const struct op *op)
{
    return op->kind == OP_FACTOR_STAT ? (int)FACTOR_STAT_G : (int)UPDATE_G;
}

static void emit_update(struct shard *s, const struct op *old)
{
    if (old->kind == OP_SUMSQ) {
        emit_square(s, old);
        return;
    }
    if (old->kind == OP_CLIP) {
        emit(s, old, OP_SUM, old->in[CLIP_SUMS], old->in[CLIP_SUMS], ACC_OVERWRITE);
        tape_append(s->tape, old);
        return;
    }
    int grad = tape_root(s->tape, old->in[grad_slot(old)]), param = s->tape->tensors[grad].owner;
    bool pieces = s->options->zero != ZERO_NONE && owner_of(s->tape, grad) >= 0 &&
                  !op_row(old->kind)->whole && old->kind != OP_ADAFACTOR;
    if (pieces) {
        emit_piece_update(s, old, param, grad);
        return;
    }
    struct op op = *old;
    int whole = whole_grad(s, old, grad), slot = grad_slot(old);
    if (whole != grad) op.in[slot] = near_operand(s, old->in[slot], grad, whole);
    tape_append(s->tape, &op);
}

/* --- the pass ------------------------------------------------------------------------------------------------------ */

static void find_last(struct shard *s)
{
    const struct tape *tape = s->tape;
    int root;
    for (int i = 0; i < tape->loop_end; i++) {
        const struct op *op = &tape->ops[i];
        if (op->part == PART_UPDATE) continue;
        for (int k = 0; k < OP_MAX_IN; k++)
            if ((root = cut_root(s, op->in[k])) >= 0) s->last[phase_of(op)][root] = i;
        for (int o = 0; o < OP_MAX_OUT; o++)
            if ((root = cut_root(s, op->out[o])) >= 0) s->writer[root] = i;
    }
}

/* Backward reads first what forward reads last. Between the two uses of a parameter, each parameter after it is read
 * twice. */
static void find_staying(struct shard *s)
{
    int64_t behind = 0;
    for (int i = s->tape->loop_end - 1; i >= 0 && s->options->reuse > 0; i--) {
        const struct op *op = &s->tape->ops[i];
        enum phase phase = phase_of(op);
        for (int k = 0; k < OP_MAX_IN && phase != PHASE_BACKWARD; k++) {
            int root = cut_root(s, op->in[k]);
            if (root < 0 || s->last[phase][root] != i || s->stays[root]) continue;
            s->stays[root] = phase == PHASE_FORWARD && 2 * behind <= s->options->reuse;
            behind += tensor_count(&s->tape->tensors[root]);
        }
    }
}

/* Views of rows of a parameter that is in pieces have become views of what is gathered: nobody reads the old ones, which would
 * leave the piece. */
static void drop_views(struct shard *s)
{
    for (int i = 0; i < s->count; i++) {
        struct tensor *t = &s->tape->tensors[i];
        bool leaves = t->view_of >= 0 && s->tape->tensors[t->view_of].piece &&
                      s->tape->tensors[t->view_of].cls == CLASS_PARAM;
        if (leaves) t->ndim = 1, t->dim[0] = 1, t->view_offset = 0;
    }
}

static void rewrite(struct shard *s, const struct op_list *old)
{
    int loop_end = s->tape->loop_end;
    for (int i = 0; i < old->count && !s->tape->failed; i++) {
        if (i == loop_end) s->tape->loop_end = s->tape->nops;
        if (old->ops[i].part == PART_UPDATE)
            emit_update(s, &old->ops[i]);
        else
            emit_in_loop(s, &old->ops[i], i);
    }
    if (loop_end == old->count) s->tape->loop_end = s->tape->nops;
}

enum plim_status pass_shard(struct tape *tape, const struct shard_options *options, struct plim_error *err)
{
    if (options->ranks <= 1) return PLIM_OK;
    bool node = options->zero == ZERO_NODE;
    struct shard s = {.tape = tape, .options = options, .count = tape->ntensors};
    s.pieces = node ? options->node_ranks : options->ranks, s.number = options->rank % s.pieces;
    s.among = node ? AMONG_NODE : AMONG_ALL, tape->node_pieces = node;
    bool good = shard_alloc(&s);
    if (good) {
        cut_tensors(&s);
        find_last(&s);
        find_staying(&s);
        struct op_list old = tape_take_ops(tape);
        rewrite(&s, &old);
        drop_views(&s);
        tape_drop_ops(tape, &old);
    }
    shard_free(&s);
    return good && !tape->failed ? PLIM_OK : no_memory(err);
}
