/* pass_fp8.c - products with the blocks' weights become products of fp8 numbers.
 *
 * The pass sees the whole micro-batch, backward included, and replaces op by op: linear and linear_dx become linear8, the part
 * of linear_dw that multiplies becomes linear8_dw. Before the first product that wants an operand a quantise8 converts it, into the
 * layouts that later products want. Passes that follow treat quantise8 as any op: it is recomputed, offloaded and sharded by their rules.
 *
 * Invariants
 *  1. A parameter's products are all in fp8 or none is. Left out are: weights outside the blocks (the head), an adapter's, those
 *     of a router, which decide and do not add up, and shapes that tensor cores do not take (FP8_MULTIPLE).
 *  2. x is converted once, where forward reads it first, into both layouts; its transpose is all that waits for backward. If
 *     backward reads x itself as well (attention's result), the transpose is made there instead and nothing more waits.
 *  3. Kept weights are converted in the first micro-batch of a window, before their first product, into both layouts. Weights that are
 *     not kept are converted before each product, into the layout that it wants, so that a layer's are gone when it is done.
 *  4. A gradient is converted once for both of its products. The bias' gradient sums dy as it is.
 *  5. Only forward's products may be summed in fewer bits than fp32 (attr.fast_sums).
 */
#include "tape/pass.h"

#include <stdlib.h>
#include <string.h>

/* Layouts that products want of a tensor, as bits. */
enum { AS_IS = 1, TRANSPOSED = 2 };

/* A tensor as fp8 numbers; ids, -1: none. */
struct coded {
    int as_is, transposed, scale;
};

struct fp8_pass {
    struct tape *tape;
    const struct fp8_options *options;
    int count;            /* tensors before the pass */
    bool *in_fp8;         /* by tensor: a parameter whose products are in fp8 */
    bool *read_back;      /* by tensor: backward reads it, besides products */
    unsigned char *wants; /* by tensor: layouts */
    struct coded *coded;  /* by tensor, for as long as they may be read */
};

/* --- what is in fp8 ------------------------------------------------------------------------------------------ */

static bool fits_tensor_cores(const struct tensor *w, int64_t rows)
{
    return w->ndim == 2 && w->dim[0] % FP8_MULTIPLE == 0 && w->dim[1] % FP8_MULTIPLE == 0 &&
           rows % FP8_MULTIPLE == 0;
}

static bool may_be_fp8(const struct tape *tape, const struct op *op)
{
    const struct tensor *w = &tape->tensors[op->in[LINEAR_W]], *x = &tape->tensors[op->in[LINEAR_X]];
    bool block = op->layer >= 0 && op->part == PART_FORWARD && w->cls == CLASS_PARAM;
    return block && !(w->flags & TENSOR_ADDED) && x->type == DT_BF16 && w->type == DT_BF16 &&
           fits_tensor_cores(w, tensor_count(x) / (op->attr.weight_kn ? w->dim[0] : w->dim[1]));
}

/* Invariant 1; false: there is none. */
static bool choose(struct fp8_pass *p, const struct op_list *old)
{
    const struct tape *tape = p->tape;
    for (int i = 0; i < old->count; i++)
        if (old->ops[i].kind == OP_LINEAR) p->in_fp8[old->ops[i].in[LINEAR_W]] = true;
    for (int i = 0; i < old->count; i++) {
        const struct op *op = &old->ops[i];
        if (op->kind == OP_LINEAR && !may_be_fp8(tape, op)) p->in_fp8[op->in[LINEAR_W]] = false;
        if (op->kind != OP_ROUTE) continue;
        for (int k = 0; k < i; k++)
            if (old->ops[k].kind == OP_LINEAR && old->ops[k].out[LINEAR_Y] == op->in[ROUTE_LOGITS])
                p->in_fp8[old->ops[k].in[LINEAR_W]] = false;
    }
    for (int i = 0; i < p->count; i++)
        if (p->in_fp8[i]) return true;
    return false;
}

/* The parameter of a product, if that is in fp8; -1: the op is none. */
static int weight_of(const struct fp8_pass *p, const struct op *op)
{
    int w = -1;
    if (op->kind == OP_LINEAR) w = op->in[LINEAR_W];
    if (op->kind == OP_LINEAR_DX) w = op->in[LINEAR_DX_W];
    if (op->kind == OP_LINEAR_DW && op->out[LINEAR_DW_DW] >= 0)
        w = p->tape->tensors[op->out[LINEAR_DW_DW]].owner;
    return w >= 0 && p->in_fp8[w] ? w : -1;
}

static void find_wants(struct fp8_pass *p, const struct op_list *old)
{
    for (int i = 0; i < old->count; i++) {
        const struct op *op = &old->ops[i];
        bool product = weight_of(p, op) >= 0;
        if (product && op->kind == OP_LINEAR) p->wants[op->in[LINEAR_X]] |= AS_IS;
        if (product && op->kind == OP_LINEAR_DX) p->wants[op->in[LINEAR_DX_DY]] |= AS_IS;
        if (product && op->kind == OP_LINEAR_DW)
            p->wants[op->in[LINEAR_DW_DY]] |= TRANSPOSED, p->wants[op->in[LINEAR_DW_X]] |= TRANSPOSED;
        for (int k = 0; k < OP_MAX_IN && !product && op->part == PART_BACKWARD; k++)
            if (op->in[k] >= 0) p->read_back[tape_root(p->tape, op->in[k])] = true;
    }
}

/* --- conversions ----------------------------------------------------------------------------------------------- */

/* A tensor to convert, seen as a matrix: heads side by side are one row. */
struct operand {
    int id;
    int64_t columns;
};

static int make_tensor(struct fp8_pass *p, const struct tensor *like, const char *label, int64_t rows,
                       int64_t columns)
{
    struct tensor t = *like;
    t.label = label, t.view_of = -1;
    t.ndim = columns ? 2 : 1, t.dim[0] = rows, t.dim[1] = columns;
    return tape_tensor(p->tape, &t);
}

/* Emits the conversion of x before `op`; `kept`: a weight's for the whole window. */
static struct coded convert(struct fp8_pass *p, const struct op *op, struct operand x, int layouts,
                            enum dtype type, bool kept)
{
    struct tensor like = {
        .cls = kept ? CLASS_WORK : CLASS_ACT, .flags = kept ? TENSOR_CARRIED : 0, .type = type};
    struct coded c = {-1, -1, -1};
    struct op q = tape_op(OP_QUANTISE8, op->layer);
    int64_t rows = tensor_count(&p->tape->tensors[x.id]) / x.columns;
    like.layer = p->tape->tensors[x.id].layer, like.owner = x.id;
    if (layouts & AS_IS) c.as_is = make_tensor(p, &like, "fp8", rows, x.columns);
    if (layouts & TRANSPOSED) c.transposed = make_tensor(p, &like, "fp8.t", x.columns, rows);
    like.type = DT_F32, like.flags |= TENSOR_STAT;
    c.scale = make_tensor(p, &like, "fp8.scale", 1, 0);
    q.part = op->part, q.accumulate = kept ? ACC_AFTER_FIRST : ACC_OVERWRITE;
    q.in[QUANTISE8_X] = x.id;
    q.out[QUANTISE8_Y] = c.as_is, q.out[QUANTISE8_T] = c.transposed, q.out[QUANTISE8_SCALE] = c.scale;
    tape_append(p->tape, &q);
    return c;
}

static int pick(const struct coded *c, int layout) { return layout == AS_IS ? c->as_is : c->transposed; }

/* x in forward and backward (invariant 2), dy (invariant 4). */
static struct coded activation(struct fp8_pass *p, const struct op *op, struct operand x, int layout,
                               enum dtype type)
{
    struct coded *c = &p->coded[x.id];
    if (pick(c, layout) >= 0) return *c;
    int layouts = p->wants[x.id];
    if (op->part == PART_FORWARD && p->read_back[tape_root(p->tape, x.id)]) layouts = AS_IS;
    if (c->scale >= 0) layouts = layout;
    return *c = convert(p, op, x, layouts, type, false);
}

/* Invariant 3. */
static struct coded weight(struct fp8_pass *p, const struct op *op, int id, int layout)
{
    struct coded *c = &p->coded[id];
    struct operand w = {id, p->tape->tensors[id].dim[1]};
    if (!p->options->keep_weights) return convert(p, op, w, layout, DT_E4M3, false);
    if (c->scale < 0) *c = convert(p, op, w, AS_IS | TRANSPOSED, DT_E4M3, true);
    return *c;
}

/* --- products -------------------------------------------------------------------------------------------------- */

/* Columns of x (forward) or of dy, which a weight of [out,in] or [in,out] multiplies. */
static int64_t columns_of(const struct fp8_pass *p, int w, bool kn, bool forward)
{
    return p->tape->tensors[w].dim[forward != kn];
}

/* linear and linear_dx: W's rows are those of the result's columns, transposed where it is stored the other way. */
static void emit_product(struct fp8_pass *p, const struct op *old, int w)
{
    bool forward = old->kind == OP_LINEAR;
    int layout = forward != old->attr.weight_kn ? AS_IS : TRANSPOSED;
    struct operand rows = {forward ? old->in[LINEAR_X] : old->in[LINEAR_DX_DY],
                           columns_of(p, w, old->attr.weight_kn, forward)};
    struct coded x = activation(p, old, rows, AS_IS, forward ? DT_E4M3 : p->options->gradients),
                 weights = weight(p, old, w, layout);
    struct op op = tape_op(OP_LINEAR8, old->layer);
    op.part = old->part, op.attr = old->attr, op.attr.fast_sums = forward;
    op.in[LINEAR8_X] = x.as_is, op.in[LINEAR8_X_SCALE] = x.scale;
    op.in[LINEAR8_W] = pick(&weights, layout), op.in[LINEAR8_W_SCALE] = weights.scale;
    if (forward) op.in[LINEAR8_BIAS] = old->in[LINEAR_BIAS];
    op.in[LINEAR8_ADD] = forward ? old->in[LINEAR_ADD] : old->in[LINEAR_DX_ADD];
    op.out[LINEAR8_Y] = forward ? old->out[LINEAR_Y] : old->out[LINEAR_DX_DX];
    tape_append(p->tape, &op);
}

static void emit_weight_gradient(struct fp8_pass *p, const struct op *old, int w)
{
    bool kn = old->attr.weight_kn;
    struct operand back = {old->in[LINEAR_DW_DY], columns_of(p, w, kn, false)},
                   rows = {old->in[LINEAR_DW_X], columns_of(p, w, kn, true)};
    struct coded dy = activation(p, old, back, TRANSPOSED, p->options->gradients),
                 x = activation(p, old, rows, TRANSPOSED, DT_E4M3);
    struct op op = tape_op(OP_LINEAR8_DW, old->layer), bias = *old;
    op.part = old->part, op.attr = old->attr, op.accumulate = old->accumulate;
    op.in[LINEAR8_DW_DY] = dy.transposed, op.in[LINEAR8_DW_DY_SCALE] = dy.scale;
    op.in[LINEAR8_DW_X] = x.transposed, op.in[LINEAR8_DW_X_SCALE] = x.scale;
    op.out[LINEAR8_DW_DW] = old->out[LINEAR_DW_DW];
    tape_append(p->tape, &op);
    if (old->out[LINEAR_DW_DBIAS] < 0) return;
    bias.in[LINEAR_DW_X] = bias.out[LINEAR_DW_DW] = -1;
    tape_append(p->tape, &bias);
}

static void rewrite(struct fp8_pass *p, const struct op_list *old)
{
    for (int i = 0; i < old->count; i++) {
        const struct op *op = &old->ops[i];
        int w = weight_of(p, op);
        if (w < 0)
            tape_append(p->tape, op);
        else if (op->kind == OP_LINEAR_DW)
            emit_weight_gradient(p, op, w);
        else
            emit_product(p, op, w);
    }
    p->tape->loop_end = p->tape->nops;
}

enum plim_status pass_fp8(struct tape *tape, const struct fp8_options *options, struct plim_error *err)
{
    size_t n = (size_t)tape->ntensors + 1;
    struct fp8_pass p = {.tape = tape, .options = options, .count = tape->ntensors};
    p.in_fp8 = calloc(n, sizeof *p.in_fp8), p.read_back = calloc(n, sizeof *p.read_back);
    p.wants = calloc(n, sizeof *p.wants), p.coded = malloc(n * sizeof *p.coded);
    bool good = p.in_fp8 && p.read_back && p.wants && p.coded, found = false;
    if (good) {
        memset(p.coded, -1, n * sizeof *p.coded);
        struct op_list old = tape_take_ops(tape);
        found = choose(&p, &old);
        find_wants(&p, &old);
        rewrite(&p, &old);
        tape_drop_ops(tape, &old);
    }
    free(p.in_fp8), free(p.read_back), free(p.wants), free(p.coded);
    if (good && !found)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "training.mixed_precision: fp8 changes nothing in this model: no weight of its blocks has both "
            "dimensions in multiples of %d; write bf16",
            FP8_MULTIPLE);
    return good && !tape->failed
               ? PLIM_OK
               : plim_fail(err, PLIM_NO_MEMORY, "out of memory while products were made fp8");
}
