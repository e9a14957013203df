/* pass_recompute.c - drop chosen activations and re-emit the ops that make them where backward needs them.
 *
 * Invariants
 *  1. A dropped activation is made again by the very op that made it, from the same values: results are
 *     bit-identical by construction.
 *  2. Work is made on demand: an op is re-emitted only when a backward op reads what it made, just before that.
 *     One exception saves the op: where the weight gradient of a product wants a cheap op's result and the gradient
 *     of that op is next, the two change places and the latter leaves the result beside its own. The gradient of a product's input may
 *     stand between them: an adapter's weight gradient comes before its base's.
 *  3. What crosses from one layer to the next is never dropped, so recomputation reaches at most one layer back.
 *  4. An optional result that nobody reads any more is not made.
 *  5. In a layer with experts the rows of all experts are the peak, several times as many as the layer's. There the result of a
 *     cheap op is made once more rather than kept across them: what was made again only to make others again is forgotten,
 *     and dispatched rows after every use; the gradient of a weight, which wants such rows, goes before that of its input.
 */
#include "tape/pass.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[RECOMPUTE_COUNT] = {"none", "selective", "full"};
const char *recompute_name(enum recompute r) { return names[r]; }

struct remat {
    struct tape *tape;
    const struct op *ops; /* the ops before the pass */
    int *producer;        /* by tensor: index of its forward op, -1: none */
    bool *dropped;
    int *again;         /* by tensor: the tensor that holds it in the backward part, -1: not made again yet */
    bool *crowded;      /* by layer: it has experts */
    int *fresh, nfresh; /* what was made again for the op at hand */
    int count;
};

static bool is_crowded(const struct remat *r, const struct op *op)
{
    return op->layer >= 0 && r->crowded[op->layer];
}

static bool wants_drop(const struct op *op, const struct tensor *t, const struct recompute_options *options)
{
    if (t->cls != CLASS_ACT || t->view_of >= 0 || op->layer < 0) return false;
    int first = options->full_first;
    bool full =
        options->policy == RECOMPUTE_FULL || (op->layer >= first && op->layer < first + options->full_layers);
    if (full) return true;
    return options->policy == RECOMPUTE_SELECTIVE && op_row(op->kind)->cheap && !(t->flags & TENSOR_STAT);
}

static void choose(struct remat *r, int nops, const struct recompute_options *options)
{
    for (int i = 0; i < nops; i++) {
        const struct op *op = &r->ops[i];
        if (op->part != PART_FORWARD) continue;
        for (int o = 0; o < OP_MAX_OUT; o++) {
            if (op->out[o] < 0) continue;
            r->producer[op->out[o]] = i;
            r->dropped[op->out[o]] = wants_drop(op, &r->tape->tensors[op->out[o]], options);
        }
    }
    for (int i = 0; i < nops; i++) { /* invariant 3 */
        const struct op *op = &r->ops[i];
        if (op->part != PART_FORWARD && op->part != PART_HEAD) continue;
        for (int k = 0; k < OP_MAX_IN; k++) {
            int id = op->in[k] < 0 ? -1 : tape_root(r->tape, op->in[k]);
            if (id >= 0 && r->producer[id] >= 0 && r->ops[r->producer[id]].layer != op->layer)
                r->dropped[id] = false;
        }
    }
}

static int layers_of(const struct tape *tape)
{
    int most = 0;
    for (int i = 0; i < tape->nops; i++)
        if (tape->ops[i].layer > most) most = tape->ops[i].layer;
    return most + 1;
}

static void find_crowded(struct remat *r, int nops)
{
    for (int i = 0; i < nops; i++)
        if (r->ops[i].kind == OP_DISPATCH && r->ops[i].layer >= 0) r->crowded[r->ops[i].layer] = true;
}

/* The tensor to read instead of `id` in the backward part, making it (and what it needs) again when needed. */
static int make_again(struct remat *r, int id)
{
    if (id < 0 || id >= r->count || !r->dropped[id]) return id;
    if (r->again[id] >= 0) return r->again[id];
    struct op op = r->ops[r->producer[id]];
    for (int k = 0; k < OP_MAX_IN; k++) op.in[k] = make_again(r, op.in[k]);
    for (int o = 0; o < OP_MAX_OUT; o++) {
        if (op.out[o] < 0) continue;
        struct tensor t = r->tape->tensors[op.out[o]];
        int clone = tape_tensor(r->tape, &t);
        if (r->dropped[op.out[o]]) {
            r->again[op.out[o]] = clone;
            r->fresh[r->nfresh++] = op.out[o];
        }
        op.out[o] = clone;
    }
    op.part = PART_RECOMPUTE;
    tape_append(r->tape, &op);
    return r->again[id];
}

/* Gradient ops that can leave the result of their forward op once more: inputs are the gradient, then the forward op's. */
static const struct remaker {
    int forward, backward, slot;
} remakers[] = {{OP_GLU, OP_GLU_BWD, GLU_BWD_H}, {OP_ACT, OP_ACT_BWD, ACT_BWD_Y}};

static const struct remaker *remaker_of(const struct op *forward, const struct op *backward)
{
    for (size_t i = 0; i < sizeof remakers / sizeof *remakers; i++) {
        const struct remaker *m = &remakers[i];
        if (m->forward != forward->kind || m->backward != backward->kind) continue;
        for (int k = 0; k + 1 < OP_MAX_IN; k++)
            if (forward->in[k] != backward->in[k + 1]) return NULL;
        return m;
    }
    return NULL;
}

static bool reads(const struct op *op, int id)
{
    for (int k = 0; k < OP_MAX_IN; k++)
        if (op->in[k] == id) return true;
    return false;
}

/* Invariant 5, of what was made for `op`, whose inputs are those before the pass. */
static void forget(struct remat *r, const struct op *op)
{
    for (int i = 0; i < r->nfresh; i++) {
        int id = r->fresh[i];
        const struct op *by = &r->ops[r->producer[id]];
        bool brief =
            is_crowded(r, by) && op_row(by->kind)->cheap && !(r->tape->tensors[id].flags & TENSOR_STAT);
        if (brief && (by->kind == OP_DISPATCH || !reads(op, id))) r->again[id] = -1;
    }
    r->nfresh = 0;
}

/* `op`, a copy of `before`, reads what is made again. */
static void read_again(struct remat *r, const struct op *before, struct op *op)
{
    for (int k = 0; k < OP_MAX_IN; k++) op->in[k] = make_again(r, before->in[k]);
    forget(r, before);
}

static void emit(struct remat *r, const struct op *before)
{
    struct op op = *before;
    read_again(r, before, &op);
    tape_append(r->tape, &op);
}

/* linear_dw, of one weight or of experts, wants dropped x, and `next` is the gradient of what made x: emits `between`, if there is one, and
 * `next` with x among its results. */
static bool remade_by(struct remat *r, const struct op *op, const struct op *between, const struct op *next)
{
    _Static_assert((int)EXPERT_LINEAR_DW_X == (int)LINEAR_DW_X, "both have x in the same slot");
    int x = op->in[LINEAR_DW_X];
    bool products = op->kind == OP_LINEAR_DW || op->kind == OP_EXPERT_LINEAR_DW;
    if (!products || x < 0 || x >= r->count || !r->dropped[x] || r->again[x] >= 0) return false;
    const struct remaker *m = remaker_of(&r->ops[r->producer[x]], next);
    if (!m) return false;
    if (between) emit(r, between);
    struct op back = *next;
    struct tensor t = r->tape->tensors[x];
    read_again(r, next, &back);
    r->again[x] = back.out[m->slot] = tape_tensor(r->tape, &t);
    tape_append(r->tape, &back);
    return true;
}

static bool is_input_gradient(const struct op *op)
{
    return op->kind == OP_LINEAR_DX || op->kind == OP_LINEAR_Q_DX;
}

/* Invariant 5: whether `dw`, the gradient of experts' weights, goes before that of their input: not where the op behind both
 * leaves what dw wants. */
static bool weights_first(const struct remat *r, const struct op *dx, const struct op *dw,
                          const struct op *behind)
{
    if (dx->kind != OP_EXPERT_LINEAR_DX || dw->kind != OP_EXPERT_LINEAR_DW || !is_crowded(r, dx))
        return false;
    int x = dw->in[EXPERT_LINEAR_DW_X];
    return x < r->count && r->dropped[x] && !(behind && remaker_of(&r->ops[r->producer[x]], behind));
}

static void rewrite(struct remat *r, const struct op_list *old)
{
    for (int i = 0; i < old->count; i++) {
        const struct op *op = &old->ops[i], *next = i + 1 < old->count ? op + 1 : NULL;
        if (op->part != PART_BACKWARD) {
            tape_append(r->tape, op);
            continue;
        }
        if (next && weights_first(r, op, next, i + 2 < old->count ? op + 2 : NULL))
            emit(r, next), i++;
        else if (next && remade_by(r, op, NULL, next))
            i++;
        else if (i + 2 < old->count && is_input_gradient(next) && remade_by(r, op, next, op + 2))
            i += 2;
        emit(r, op);
    }
}

/* Invariant 4. `read` has room for every tensor. */
static void drop_unread(struct tape *tape, bool *read)
{
    for (int i = 0; i < tape->nops; i++)
        for (int k = 0; k < OP_MAX_IN; k++)
            if (tape->ops[i].in[k] >= 0) read[tape_root(tape, tape->ops[i].in[k])] = true;
    for (int i = 0; i < tape->nops; i++) {
        struct op *op = &tape->ops[i];
        const struct op_row *row = op_row(op->kind);
        for (int o = 0; o < OP_MAX_OUT && row->out[o]; o++) {
            const struct tensor *t = op->out[o] < 0 ? NULL : &tape->tensors[op->out[o]];
            bool optional = t && strchr(row->out[o], '?') && t->cls == CLASS_ACT && !t->flags;
            bool forward = op->part == PART_FORWARD || op->part == PART_RECOMPUTE;
            if (optional && forward && !read[tape_root(tape, op->out[o])]) op->out[o] = -1;
        }
    }
}

enum plim_status pass_recompute(struct tape *tape, const struct recompute_options *options,
                                struct plim_error *err)
{
    if (options->policy == RECOMPUTE_NONE && options->full_layers <= 0) return PLIM_OK;
    int n = tape->ntensors;
    struct remat r = {.tape = tape, .ops = tape->ops, .count = n};
    enum plim_status status = PLIM_OK;
    r.producer = malloc((size_t)n * sizeof *r.producer);
    r.dropped = calloc((size_t)n, sizeof *r.dropped);
    r.again = malloc((size_t)n * sizeof *r.again);
    r.fresh = malloc((size_t)n * sizeof *r.fresh);
    r.crowded = calloc((size_t)layers_of(tape), sizeof *r.crowded);
    if (!r.producer || !r.dropped || !r.again || !r.fresh || !r.crowded) {
        status = plim_fail(err, PLIM_NO_MEMORY, "out of memory while recomputation was placed");
        goto out;
    }
    memset(r.producer, -1, (size_t)n * sizeof *r.producer);
    memset(r.again, -1, (size_t)n * sizeof *r.again);
    choose(&r, tape->nops, options);
    find_crowded(&r, tape->nops);
    struct op_list old = tape_take_ops(tape);
    rewrite(&r, &old);
    tape->loop_end = tape->nops;
    tape_drop_ops(tape, &old);
    bool *read = calloc((size_t)tape->ntensors + 1, sizeof *read);
    if (read)
        drop_unread(tape, read);
    else
        status = plim_fail(err, PLIM_NO_MEMORY, "out of memory while recomputation was placed");
    free(read);
out:
    free(r.producer);
    free(r.dropped);
    free(r.again);
    free(r.fresh);
    free(r.crowded);
    return status;
}
