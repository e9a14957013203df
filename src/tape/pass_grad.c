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
 *  6. Nothing is derived by a frozen parameter, or by an activation that no trained parameter influences. An op whose inputs
 *     are all of these kinds, or whose outputs reach the loss only as constants, has no backward op. Outputs that an op cannot
 *     leave out are made and not read.
 *  7. A preference knows a slice's gradient only after all slices: several slices are then projected once more, one by
 *     one; a single one is still there.
 */
#include "tape/pass_grad.h"
#include "tape/pass.h"

#include <stdlib.h>

static void emit(struct grad_pass *pass, struct op *op, enum op_part part)
{
    op->part = part;
    tape_append(pass->tape, op);
}

/* Does anybody want the gradient of this operand? Invariant 6. */
static bool wanted(const struct grad_pass *pass, int id)
{
    return id >= 0 && pass->moves[tape_root(pass->tape, id)];
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

/* The gradient of `of` and another contribution to it become their sum. */
static void add_to_gradient(struct grad_pass *pass, const struct op *like, int of, int more,
                            enum op_part part)
{
    struct op add = tape_op(OP_ADD, like->layer);
    add.in[ADD_A] = pass->gradient[of], add.in[ADD_B] = more;
    pass->gradient[of] = add.out[ADD_Y] = gradient_tensor(pass, of);
    emit(pass, &add, part);
}

/* The add op that contribute() could not fuse. Call after the op is appended. */
static void settle(struct grad_pass *pass, const struct op *op, int slot, int of)
{
    int before = pass->gradient[of];
    if (op->out[slot] < 0 || before == op->out[slot]) return;
    add_to_gradient(pass, op, of, op->out[slot], op->part);
}

/* dy, or a further contribution to the gradient of what was only added; of -1: nothing was. */
static void pass_on(struct grad_pass *pass, const struct op *op, int of, int dy)
{
    if (!wanted(pass, of)) return;
    if (pass->gradient[of] < 0)
        pass->gradient[of] = dy;
    else
        add_to_gradient(pass, op, of, dy, PART_BACKWARD);
}

static enum op_part backward_part(const struct op *op)
{
    return op->part == PART_HEAD ? PART_HEAD : PART_BACKWARD;
}

void grad_none(struct grad_pass *pass, const struct op *op) { (void)pass, (void)op; }

void grad_embed(struct grad_pass *pass, const struct op *op)
{
    int dy = pass->gradient[op->out[EMBED_Y]];
    bool first;
    if (wanted(pass, op->in[EMBED_W])) {
        struct op back = tape_op(OP_EMBED_BWD, op->layer);
        back.attr = op->attr;
        back.in[EMBED_BWD_IDS] = op->in[EMBED_IDS], back.in[EMBED_BWD_DY] = dy;
        back.out[EMBED_BWD_DW] = param_gradient(pass, op->in[EMBED_W], &first);
        back.accumulate = first ? ACC_AFTER_FIRST : ACC_ADD;
        emit(pass, &back, PART_BACKWARD);
    }
    pass_on(pass, op, op->in[EMBED_ADD], dy); /* invariant 3 */
}

/* A norm's two gradients come together: where only the bias is trained, the weight's is like it and nobody reads it. */
static int unread_gradient(struct grad_pass *pass, int like)
{
    struct tensor t = pass->tape->tensors[like];
    t.label = "unread", t.cls = CLASS_WORK;
    return tape_tensor(pass->tape, &t);
}

void grad_norm(struct grad_pass *pass, const struct op *op)
{
    bool first = false, first_bias = false, weight = wanted(pass, op->in[NORM_W]),
         bias = wanted(pass, op->in[NORM_BIAS]);
    struct op back = tape_op(OP_NORM_BWD, op->layer);
    back.attr = op->attr;
    back.in[NORM_BWD_DY] = pass->gradient[op->out[NORM_Y]], back.in[NORM_BWD_X] = op->in[NORM_X],
    back.in[NORM_BWD_W] = op->in[NORM_W], back.in[NORM_BWD_STAT] = op->out[NORM_STAT];
    if (weight) back.out[NORM_BWD_DW] = param_gradient(pass, op->in[NORM_W], &first);
    if (bias) back.out[NORM_BWD_DBIAS] = param_gradient(pass, op->in[NORM_BIAS], &first_bias);
    if (bias && !weight) back.out[NORM_BWD_DW] = unread_gradient(pass, back.out[NORM_BWD_DBIAS]);
    back.accumulate = first || first_bias ? ACC_AFTER_FIRST : ACC_ADD;
    contribute(pass, &back, NORM_BWD_DX, op->in[NORM_X], NORM_BWD_ADD);
    emit(pass, &back, PART_BACKWARD);
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

/* Where the weight is an activation (a slice of one), it is another with each micro-batch: no sum goes on from the last. */
static int activation_gradient(struct grad_pass *pass, int of, bool *first)
{
    *first = pass->gradient[of] < 0;
    if (!*first) return pass->gradient[of];
    bool slice = pass->tape->tensors[of].view_of >= 0;
    return pass->gradient[of] = slice ? slice_gradient(pass, of) : gradient_tensor(pass, of);
}

static void linear_weight_grad(struct grad_pass *pass, const struct op *op, int dy)
{
    bool first = false, first_bias = false, param = pass->tape->tensors[op->in[LINEAR_W]].cls == CLASS_PARAM,
         weight = wanted(pass, op->in[LINEAR_W]), bias = wanted(pass, op->in[LINEAR_BIAS]);
    struct op back = tape_op(OP_LINEAR_DW, op->layer);
    back.attr = op->attr;
    back.in[LINEAR_DW_DY] = dy;
    if (weight) {
        back.in[LINEAR_DW_X] = op->in[LINEAR_X];
        back.out[LINEAR_DW_DW] =
            (param ? param_gradient : activation_gradient)(pass, op->in[LINEAR_W], &first);
    }
    if (bias) back.out[LINEAR_DW_DBIAS] = param_gradient(pass, op->in[LINEAR_BIAS], &first_bias);
    bool begins = weight ? first : first_bias;
    back.accumulate = !begins ? ACC_ADD : param ? ACC_AFTER_FIRST : ACC_OVERWRITE;
    if (weight || bias) emit(pass, &back, backward_part(op));
}

/* Operands of both gradients have the same places; so have those of the products. */
static_assert((int)LINEAR_DX_W == (int)LINEAR_Q_DX_W && (int)LINEAR_DX_ADD == (int)LINEAR_Q_DX_ADD &&
                  (int)LINEAR_X == (int)LINEAR_Q_X && (int)LINEAR_ADD == (int)LINEAR_Q_ADD,
              "one rule for both");

static void linear_input_grad(struct grad_pass *pass, const struct op *op, int dy)
{
    int x = op->in[LINEAR_X];
    struct op back = tape_op(op->kind == OP_LINEAR ? OP_LINEAR_DX : OP_LINEAR_Q_DX, op->layer);
    back.attr = op->attr;
    back.in[LINEAR_DX_DY] = dy, back.in[LINEAR_DX_W] = op->in[LINEAR_W];
    if (pass->tape->tensors[x].view_of >= 0)
        back.out[LINEAR_DX_DX] = slice_gradient(pass, x);
    else
        contribute(pass, &back, LINEAR_DX_DX, x, LINEAR_DX_ADD);
    emit(pass, &back, backward_part(op));
}

void grad_linear(struct grad_pass *pass, const struct op *op)
{
    int dy = pass->gradient[op->out[LINEAR_Y]];
    if (wanted(pass, op->in[LINEAR_X])) linear_input_grad(pass, op, dy);
    linear_weight_grad(pass, op, dy);
    pass_on(pass, op, op->in[LINEAR_ADD], dy); /* invariant 3 */
}

/* A weight in blocks is not trained, and neither is its bias. */
void grad_linear_q(struct grad_pass *pass, const struct op *op)
{
    int dy = pass->gradient[op->out[LINEAR_Q_Y]];
    if (wanted(pass, op->in[LINEAR_Q_X])) linear_input_grad(pass, op, dy);
    pass_on(pass, op, op->in[LINEAR_Q_ADD], dy);
}

void grad_attn(struct grad_pass *pass, const struct op *op)
{
    struct op back = tape_op(OP_ATTN_BWD, op->layer);
    back.attr = op->attr;
    back.in[ATTN_BWD_DO] = pass->gradient[op->out[ATTN_O]];
    back.in[ATTN_BWD_Q] = op->in[ATTN_Q], back.in[ATTN_BWD_K] = op->in[ATTN_K];
    back.in[ATTN_BWD_V] = op->in[ATTN_V], back.in[ATTN_BWD_POS] = op->in[ATTN_POS];
    back.in[ATTN_BWD_O] = op->out[ATTN_O], back.in[ATTN_BWD_LSE] = op->out[ATTN_LSE];
    back.in[ATTN_BWD_LENGTHS] = op->in[ATTN_LENGTHS], back.in[ATTN_BWD_SCALARS] = op->in[ATTN_SCALARS];
    back.in[ATTN_BWD_BIAS] = op->in[ATTN_BIAS];
    if (wanted(pass, op->in[ATTN_BIAS])) {
        bool first;
        back.out[ATTN_BWD_DBIAS] = param_gradient(pass, op->in[ATTN_BIAS], &first);
        back.accumulate = first ? ACC_AFTER_FIRST : ACC_ADD;
    }
    contribute(pass, &back, ATTN_BWD_DQ, op->in[ATTN_Q], -1);
    contribute(pass, &back, ATTN_BWD_DK, op->in[ATTN_K], -1);
    contribute(pass, &back, ATTN_BWD_DV, op->in[ATTN_V], -1);
    emit(pass, &back, PART_BACKWARD);
    settle(pass, &back, ATTN_BWD_DQ, op->in[ATTN_Q]);
    settle(pass, &back, ATTN_BWD_DK, op->in[ATTN_K]);
    settle(pass, &back, ATTN_BWD_DV, op->in[ATTN_V]);
}

void grad_glu(struct grad_pass *pass, const struct op *op)
{
    struct op back = tape_op(OP_GLU_BWD, op->layer);
    back.attr = op->attr;
    back.in[GLU_BWD_DH] = pass->gradient[op->out[GLU_H]], back.in[GLU_BWD_GATE] = op->in[GLU_GATE],
    back.in[GLU_BWD_UP] = op->in[GLU_UP];
    contribute(pass, &back, GLU_BWD_DGATE, op->in[GLU_GATE], -1);
    if (!op->attr.joint) contribute(pass, &back, GLU_BWD_DUP, op->in[GLU_UP], -1);
    emit(pass, &back, PART_BACKWARD);
    settle(pass, &back, GLU_BWD_DGATE, op->in[GLU_GATE]);
    if (!op->attr.joint) settle(pass, &back, GLU_BWD_DUP, op->in[GLU_UP]);
}

void grad_act(struct grad_pass *pass, const struct op *op)
{
    struct op back = tape_op(OP_ACT_BWD, op->layer);
    back.attr = op->attr;
    back.in[ACT_BWD_DY] = pass->gradient[op->out[ACT_Y]], back.in[ACT_BWD_X] = op->in[ACT_X];
    contribute(pass, &back, ACT_BWD_DX, op->in[ACT_X], -1);
    emit(pass, &back, PART_BACKWARD);
    settle(pass, &back, ACT_BWD_DX, op->in[ACT_X]);
}

void grad_add(struct grad_pass *pass, const struct op *op)
{
    int dy = pass->gradient[op->out[ADD_Y]];
    for (int i = ADD_A; i <= ADD_B; i++) pass_on(pass, op, op->in[i], dy);
}

/* The very op again, on the gradient: the same elements are dropped. */
void grad_dropout(struct grad_pass *pass, const struct op *op)
{
    int dy = pass->gradient[op->out[DROPOUT_Y]];
    struct op back = tape_op(OP_DROPOUT, op->layer);
    back.attr = op->attr;
    back.in[DROPOUT_X] = dy, back.in[DROPOUT_SCALARS] = op->in[DROPOUT_SCALARS];
    if (wanted(pass, op->in[DROPOUT_X])) {
        contribute(pass, &back, DROPOUT_Y, op->in[DROPOUT_X], DROPOUT_ADD);
        emit(pass, &back, PART_BACKWARD);
    }
    pass_on(pass, op, op->in[DROPOUT_ADD], dy);
}

void grad_rope(struct grad_pass *pass, const struct op *op)
{
    struct op back = tape_op(OP_ROPE, op->layer);
    back.attr = op->attr;
    back.attr.back = !op->attr.back;
    back.in[ROPE_X] = pass->gradient[op->out[ROPE_Y]], back.in[ROPE_TABLE] = op->in[ROPE_TABLE];
    contribute(pass, &back, ROPE_Y, op->in[ROPE_X], -1);
    emit(pass, &back, PART_BACKWARD);
    settle(pass, &back, ROPE_Y, op->in[ROPE_X]);
}

void grad_split3(struct grad_pass *pass, const struct op *op)
{
    struct op back = tape_op(OP_JOIN3, op->layer);
    back.in[JOIN3_Q] = pass->gradient[op->out[SPLIT3_Q]];
    back.in[JOIN3_K] = pass->gradient[op->out[SPLIT3_K]];
    back.in[JOIN3_V] = pass->gradient[op->out[SPLIT3_V]];
    back.in[JOIN3_TABLE] = op->in[SPLIT3_TABLE];
    contribute(pass, &back, JOIN3_X, op->in[SPLIT3_X], -1);
    emit(pass, &back, PART_BACKWARD);
    settle(pass, &back, JOIN3_X, op->in[SPLIT3_X]);
}

void grad_pool(struct grad_pass *pass, const struct op *op)
{
    struct op back = tape_op(OP_POOL_BWD, op->layer);
    back.attr = op->attr;
    back.in[POOL_BWD_DY] = pass->gradient[op->out[POOL_Y]], back.in[POOL_BWD_Y] = op->out[POOL_Y];
    back.in[POOL_BWD_STAT] = op->out[POOL_STAT], back.in[POOL_BWD_LENGTHS] = op->in[POOL_LENGTHS];
    contribute(pass, &back, POOL_BWD_DX, op->in[POOL_X], -1);
    emit(pass, &back, PART_BACKWARD);
    settle(pass, &back, POOL_BWD_DX, op->in[POOL_X]);
}

/* --- experts ---------------------------------------------------------------------------------------------- */

/* The router's losses are made where all layers' statistics are; what they ask of each layer is one small tensor. */
void grad_router_loss(struct grad_pass *pass, const struct op *op)
{
    pass->gradient[tape_root(pass->tape, op->in[ROUTER_LOSS_STAT])] = op->out[ROUTER_LOSS_FACTOR];
}

void grad_route(struct grad_pass *pass, const struct op *op)
{
    struct op back = tape_op(OP_ROUTE_BWD, op->layer);
    back.attr = op->attr;
    back.in[ROUTE_BWD_DWEIGHT] = pass->gradient[op->out[ROUTE_WEIGHT]];
    back.in[ROUTE_BWD_LOGITS] = op->in[ROUTE_LOGITS], back.in[ROUTE_BWD_EXPERT] = op->out[ROUTE_EXPERT];
    back.in[ROUTE_BWD_FACTOR] = pass->gradient[tape_root(pass->tape, op->out[ROUTE_STAT])];
    back.in[ROUTE_BWD_LENGTHS] = op->in[ROUTE_LENGTHS];
    contribute(pass, &back, ROUTE_BWD_DLOGITS, op->in[ROUTE_LOGITS], -1);
    emit(pass, &back, PART_BACKWARD);
    settle(pass, &back, ROUTE_BWD_DLOGITS, op->in[ROUTE_LOGITS]);
}

void grad_dispatch(struct grad_pass *pass, const struct op *op)
{
    struct op back = tape_op(OP_COMBINE, op->layer);
    back.in[COMBINE_X] = pass->gradient[op->out[DISPATCH_Y]], back.in[COMBINE_PLACE] = op->in[DISPATCH_PLACE];
    contribute(pass, &back, COMBINE_Y, op->in[DISPATCH_X], COMBINE_ADD);
    emit(pass, &back, PART_BACKWARD);
}

void grad_expert_linear(struct grad_pass *pass, const struct op *op)
{
    bool first;
    int dy = pass->gradient[op->out[EXPERT_LINEAR_Y]];
    struct op dx = tape_op(OP_EXPERT_LINEAR_DX, op->layer), dw = tape_op(OP_EXPERT_LINEAR_DW, op->layer);
    dx.attr = dw.attr = op->attr;
    dx.in[EXPERT_LINEAR_DX_DY] = dw.in[EXPERT_LINEAR_DW_DY] = dy;
    dx.in[EXPERT_LINEAR_DX_ENDS] = dw.in[EXPERT_LINEAR_DW_ENDS] = op->in[EXPERT_LINEAR_ENDS];
    dx.in[EXPERT_LINEAR_DX_W] = op->in[EXPERT_LINEAR_W], dw.in[EXPERT_LINEAR_DW_X] = op->in[EXPERT_LINEAR_X];
    if (wanted(pass, op->in[EXPERT_LINEAR_X])) {
        contribute(pass, &dx, EXPERT_LINEAR_DX_DX, op->in[EXPERT_LINEAR_X], EXPERT_LINEAR_DX_ADD);
        emit(pass, &dx, PART_BACKWARD);
    }
    if (!wanted(pass, op->in[EXPERT_LINEAR_W])) return;
    dw.out[EXPERT_LINEAR_DW_DW] = param_gradient(pass, op->in[EXPERT_LINEAR_W], &first);
    dw.accumulate = first ? ACC_AFTER_FIRST : ACC_ADD;
    emit(pass, &dw, PART_BACKWARD);
}

void grad_expert_linear_q(struct grad_pass *pass, const struct op *op)
{
    if (!wanted(pass, op->in[EXPERT_LINEAR_Q_X])) return;
    struct op dx = tape_op(OP_EXPERT_LINEAR_Q_DX, op->layer);
    dx.attr = op->attr;
    dx.in[EXPERT_LINEAR_Q_DX_DY] = pass->gradient[op->out[EXPERT_LINEAR_Q_Y]];
    dx.in[EXPERT_LINEAR_Q_DX_W] = op->in[EXPERT_LINEAR_Q_W];
    dx.in[EXPERT_LINEAR_Q_DX_ENDS] = op->in[EXPERT_LINEAR_Q_ENDS];
    contribute(pass, &dx, EXPERT_LINEAR_Q_DX_DX, op->in[EXPERT_LINEAR_Q_X], EXPERT_LINEAR_Q_DX_ADD);
    emit(pass, &dx, PART_BACKWARD);
}

void grad_combine(struct grad_pass *pass, const struct op *op)
{
    int dy = pass->gradient[op->out[COMBINE_Y]];
    struct op weights = tape_op(OP_COMBINE_DW, op->layer), rows = tape_op(OP_DISPATCH, op->layer);
    weights.in[COMBINE_DW_DY] = rows.in[DISPATCH_X] = dy;
    weights.in[COMBINE_DW_X] = op->in[COMBINE_X];
    weights.in[COMBINE_DW_PLACE] = rows.in[DISPATCH_PLACE] = op->in[COMBINE_PLACE];
    rows.in[DISPATCH_WEIGHT] = op->in[COMBINE_WEIGHT];
    if (wanted(pass, op->in[COMBINE_WEIGHT])) {
        contribute(pass, &weights, COMBINE_DW_DWEIGHT, op->in[COMBINE_WEIGHT], -1);
        emit(pass, &weights, PART_BACKWARD);
    }
    if (wanted(pass, op->in[COMBINE_X])) {
        contribute(pass, &rows, DISPATCH_Y, op->in[COMBINE_X], -1);
        emit(pass, &rows, PART_BACKWARD);
    }
    pass_on(pass, op, op->in[COMBINE_ADD], dy); /* invariant 3 */
}

void grad_row_gate(struct grad_pass *pass, const struct op *op)
{
    int dy = pass->gradient[op->out[ROW_GATE_Y]];
    struct op back = tape_op(OP_ROW_GATE_BWD, op->layer);
    back.in[ROW_GATE_BWD_DY] = dy;
    if (wanted(pass, op->in[ROW_GATE_X]) || wanted(pass, op->in[ROW_GATE_GATE])) {
        back.in[ROW_GATE_BWD_X] = op->in[ROW_GATE_X], back.in[ROW_GATE_BWD_GATE] = op->in[ROW_GATE_GATE];
        contribute(pass, &back, ROW_GATE_BWD_DX, op->in[ROW_GATE_X], -1);
        contribute(pass, &back, ROW_GATE_BWD_DGATE, op->in[ROW_GATE_GATE], -1);
        emit(pass, &back, PART_BACKWARD);
        settle(pass, &back, ROW_GATE_BWD_DX, op->in[ROW_GATE_X]);
        settle(pass, &back, ROW_GATE_BWD_DGATE, op->in[ROW_GATE_GATE]);
    }
    pass_on(pass, op, op->in[ROW_GATE_ADD], dy); /* invariant 3 */
}

void grad_column_scale(struct grad_pass *pass, const struct op *op)
{
    int dy = pass->gradient[op->out[COLUMN_SCALE_Y]];
    bool first;
    struct op back = tape_op(OP_COLUMN_SCALE_BWD, op->layer);
    back.in[COLUMN_SCALE_BWD_DY] = dy, back.in[COLUMN_SCALE_BWD_X] = op->in[COLUMN_SCALE_X];
    back.in[COLUMN_SCALE_BWD_M] = op->in[COLUMN_SCALE_M];
    back.in[COLUMN_SCALE_BWD_NORM] = op->in[COLUMN_SCALE_NORM];
    back.in[COLUMN_SCALE_BWD_BIAS] = op->in[COLUMN_SCALE_BIAS];
    back.out[COLUMN_SCALE_BWD_DM] = param_gradient(pass, op->in[COLUMN_SCALE_M], &first);
    back.accumulate = first ? ACC_AFTER_FIRST : ACC_ADD;
    contribute(pass, &back, COLUMN_SCALE_BWD_DX, op->in[COLUMN_SCALE_X], -1);
    emit(pass, &back, PART_BACKWARD);
    settle(pass, &back, COLUMN_SCALE_BWD_DX, op->in[COLUMN_SCALE_X]);
    pass_on(pass, op, op->in[COLUMN_SCALE_ADD], dy); /* invariant 3 */
}

void grad_take(struct grad_pass *pass, const struct op *op)
{
    struct op back = tape_op(OP_TAKE, op->layer);
    back.attr = op->attr;
    back.in[TAKE_X] = pass->gradient[op->out[TAKE_Y]];
    back.in[TAKE_INDEX] = op->in[TAKE_BACK], back.in[TAKE_BACK] = op->in[TAKE_INDEX];
    contribute(pass, &back, TAKE_Y, op->in[TAKE_X], -1);
    emit(pass, &back, PART_BACKWARD);
    settle(pass, &back, TAKE_Y, op->in[TAKE_X]);
}

/* --- the pass --------------------------------------------------------------------------------------------- */

/* Trained parameters, and what they influence. Ops without a gradient of their own make constants. */
static void find_moving(struct grad_pass *pass, const struct op_list *forward, int count)
{
    const struct tape *tape = pass->tape;
    for (int i = 0; i < count; i++)
        pass->moves[i] = tape->tensors[i].cls == CLASS_PARAM && !(tape->tensors[i].flags & TENSOR_FROZEN);
    for (int i = 0; i < forward->count; i++) {
        const struct op *op = &forward->ops[i];
        bool moves = false;
        for (int k = 0; k < OP_MAX_IN; k++) moves = moves || wanted(pass, op->in[k]);
        if (!moves || op_row(op->kind)->grad == grad_none) continue;
        for (int o = 0; o < OP_MAX_OUT; o++)
            if (op->out[o] >= 0) pass->moves[tape_root(tape, op->out[o])] = true;
    }
}

/* Has an op a backward op? Invariant 6. */
static bool is_derived(const struct grad_pass *pass, const struct op *op)
{
    bool moves = false, counts = op->kind == OP_ROUTER_LOSS;
    for (int k = 0; k < OP_MAX_IN; k++) moves = moves || wanted(pass, op->in[k]);
    for (int o = 0; o < OP_MAX_OUT; o++)
        counts = counts || (op->out[o] >= 0 && pass->gradient[op->out[o]] >= 0);
    return moves && counts;
}

/* The gradient of the head slice that ends with ops[i], after its xent or, in `loss`, by a weight for each row. */
static void slice_backward(struct grad_pass *pass, const struct op *ops, int i, struct op *loss)
{
    struct tape *tape = pass->tape;
    int logits = ops[i].out[0], first = tape->nops;
    const struct op *last = &tape->ops[tape->nops - 1];
    bool again = loss->in[XENT_LOGITS] != logits && last->kind == OP_COLUMN_SCALE;
    int scaled = again ? last->in[COLUMN_SCALE_X] : -1; /* the numbers before DoRA's scale, made once more */
    pass->gradient[logits] = loss->out[XENT_DLOGITS] = gradient_tensor(pass, logits);
    tape_append(tape, loss);
    for (const struct op *op = &ops[i]; op; op = pass_head_before(ops, (int)(op - ops)))
        if (pass->gradient[op->out[0]] >= 0) op_row(op->kind)->grad(pass, op);
    for (int k = first; k < tape->nops && again; k++)
        if (tape->ops[k].kind == OP_COLUMN_SCALE_BWD) tape->ops[k].in[COLUMN_SCALE_BWD_X] = scaled;
}

/* The products of a head slice that ends with ops[i] once more; returns its logits. */
static int logits_again(struct grad_pass *pass, const struct op *ops, int i)
{
    struct op again = ops[i];
    struct tensor logits = pass->tape->tensors[again.out[0]];
    if (pass_head_before(ops, i)) again.in[pass_head_slot(&again)] = logits_again(pass, ops, i - 1);
    again.out[0] = tape_tensor(pass->tape, &logits);
    tape_append(pass->tape, &again);
    return again.out[0];
}

/* Rows of the preference's weight that belong to a slice of its log-probabilities. */
static int weight_slice(struct grad_pass *pass, int weight, int logp)
{
    struct tensor t = pass->tape->tensors[logp];
    if (t.view_of < 0) return weight;
    t.label = "weight", t.view_of = weight;
    return tape_tensor(pass->tape, &t);
}

/* Invariant 7: head slices [0, count) of ops once more, now that every row's weight is known. */
static void preference_backward(struct grad_pass *pass, const struct op *ops, int count, struct op *op)
{
    struct tensor weight = pass->tape->tensors[op->in[PREFERENCE_IN_LOGP]];
    int slices = 0;
    weight.label = "weight";
    op->out[PREFERENCE_OUT_WEIGHT] = tape_tensor(pass->tape, &weight);
    tape_append(pass->tape, op);
    for (int i = 0; i < count; i++) slices += ops[i].kind == OP_XENT;
    for (int i = 1; i < count; i++) {
        if (ops[i].kind != OP_XENT) continue;
        struct op loss = ops[i];
        loss.in[XENT_WEIGHT] = weight_slice(pass, op->out[PREFERENCE_OUT_WEIGHT], ops[i].out[XENT_LOGP]);
        loss.out[XENT_LOGP] = -1;
        if (slices > 1) loss.in[XENT_LOGITS] = logits_again(pass, ops, i - 1);
        slice_backward(pass, ops, i - 1, &loss);
    }
}

/* Copy the forward ops; after each xent, its own backward and that of the projection before it. */
static enum plim_status forward_with_head(struct grad_pass *pass, const struct op *ops, int nops, bool *found,
                                          struct plim_error *err)
{
    *found = false;
    for (int i = 0; i < nops; i++) {
        struct op op = ops[i];
        bool loss = op.kind == OP_XENT, waits = loss && op.out[XENT_LOGP] >= 0;
        if (loss && (i == 0 || !pass_is_head(&ops[i - 1]) || ops[i - 1].out[0] != op.in[XENT_LOGITS]))
            return plim_fail(err, PLIM_BUG, "the loss must directly follow the output projection");
        if (op.kind == OP_PREFERENCE)
            preference_backward(pass, ops, i, &op);
        else if (loss && !waits)
            slice_backward(pass, ops, i - 1, &op);
        else
            tape_append(pass->tape, &op);
        *found = *found || op.kind == OP_PREFERENCE || (loss && !waits);
    }
    return PLIM_OK;
}

enum plim_status pass_grad(struct tape *tape, struct plim_error *err)
{
    /* Backward ops and gradients are appended to the tape; forward ops are replayed into a fresh list. */
    struct op_list forward = tape_take_ops(tape);
    int count = tape->ntensors;
    struct grad_pass pass = {.tape = tape,
                             .gradient = malloc(((size_t)count + 1) * sizeof(int)),
                             .moves = calloc((size_t)count + 1, sizeof(bool))};
    enum plim_status status = PLIM_OK;
    bool found = false;
    if (!pass.gradient || !pass.moves) {
        status = plim_fail(err, PLIM_NO_MEMORY, "out of memory while gradients were derived");
        goto out;
    }
    for (int i = 0; i < count; i++) pass.gradient[i] = -1;
    find_moving(&pass, &forward, count);
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
            status = plim_fail(err, PLIM_BUG, "op %s has no gradient", op_name(op->kind));
            goto out;
        }
        if (is_derived(&pass, op)) row->grad(&pass, op);
    }
    tape->loop_end = tape->nops;
out:
    free(pass.gradient);
    free(pass.moves);
    tape_drop_ops(tape, &forward);
    return status;
}
