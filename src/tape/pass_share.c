/* pass_share.c - what two rows begin with is computed once.
 *
 * Rows i and B/2 + i of a batch [B,T] begin alike. Their tokens lie in two ways: wide, [B,T], as the model emitted them, and packed,
 * [B/2,L], where the common beginning is there once. Two tables say which token of one is which of the other, and `take` moves
 * rows between them:
 *
 *     packed = take(wide, pack, once)     the first copy of each token; gradients come back to that copy
 *     wide   = take(packed, wide)         every copy; its gradient is the sum over the copies
 *
 * Invariants:
 *  1. Attention, rotation, embeddings, and the head with its loss are wide: they compute what they did.
 *  2. A product is packed, unless it adds to something wide: an adapter of queries, keys or values.
 *  3. Other ops are packed if one of their operands is, else wide. Tokens that the blocks read first are packed.
 *  4. Every packed row is a function of the tokens before it in its own row, so results are those of wide rows.
 */
#include "tape/op.h"
#include "tape/pass.h"

#include <stdlib.h>

struct sharing {
    struct tape *tape;
    int64_t rows, time, packed; /* B, T, L */
    int pack, wide;             /* the tables */
    bool *is_packed;            /* by tensor of the old tape */
    int *other;                 /* its copy in the other layout, -1: none yet */
    int *maker;                 /* layer of the op that made it */
    int count;
};

static int table(struct sharing *s, const char *label, int64_t rows)
{
    struct tensor t = {.label = label,
                       .layer = -1,
                       .type = DT_I32,
                       .cls = CLASS_IO,
                       .flags = TENSOR_INPUT,
                       .ndim = 2,
                       .dim = {rows, 2},
                       .view_of = -1,
                       .owner = -1};
    return tape_tensor(s->tape, &t);
}

/* Does the tensor have numbers for each token? */
static bool has_tokens(const struct sharing *s, int id)
{
    if (id < 0 || id >= s->count) return false;
    const struct tensor *t = &s->tape->tensors[id];
    if (t->cls != CLASS_ACT) return false;
    return t->ndim >= 3 && t->dim[1] == (s->is_packed[id] ? s->packed : s->time) &&
           t->dim[0] == (s->is_packed[id] ? s->rows / 2 : s->rows);
}

static void set_rows(const struct sharing *s, struct tensor *t, bool packed)
{
    t->dim[0] = packed ? s->rows / 2 : s->rows, t->dim[1] = packed ? s->packed : s->time;
}

/* The tensor, or its copy in the layout that is wanted. */
static int in_layout(struct sharing *s, const struct op *op, int id, bool packed)
{
    if (!has_tokens(s, id) || s->is_packed[id] == packed) return id;
    if (s->other[id] >= 0) return s->other[id];
    struct tensor t = s->tape->tensors[id];
    struct op take = tape_op(OP_TAKE, op->layer);
    t.label = packed ? "share.packed[%d]" : "share.rows[%d]", t.layer = op->layer;
    t.flags &= ~(unsigned)(TENSOR_OUTPUT | TENSOR_INPUT);
    set_rows(s, &t, packed);
    take.attr.once = packed;
    take.in[TAKE_X] = id, take.in[TAKE_INDEX] = packed ? s->pack : s->wide;
    take.in[TAKE_BACK] = packed ? s->wide : s->pack;
    take.out[TAKE_Y] = s->other[id] = tape_tensor(s->tape, &t);
    tape_append(s->tape, &take);
    return s->other[id];
}

static bool is_wide_kind(const struct op *op)
{
    switch (op->kind) {
    case OP_EMBED:
    case OP_ROPE_TABLE:
    case OP_SPLIT3:
    case OP_ROPE:
    case OP_ATTN:
        return true;
    default:
        return op->part == PART_HEAD;
    }
}

/* Invariants 1 to 3. Ops outside of the blocks have layer -1. */
static bool wants_packed(const struct sharing *s, const struct op *op)
{
    bool block = op->layer >= 0;
    if (is_wide_kind(op)) return false;
    if (op->kind == OP_LINEAR && block) {
        int add = op->in[LINEAR_ADD];
        return add < 0 || s->is_packed[add] || s->maker[add] < 0;
    }
    for (int k = 0; k < OP_MAX_IN; k++) {
        int id = op->in[k];
        if (has_tokens(s, id) && (s->is_packed[id] || (block && s->maker[id] < 0))) return true;
    }
    return false;
}

static void emit(struct sharing *s, const struct op *old)
{
    struct op op = *old;
    bool packed = wants_packed(s, old);
    for (int k = 0; k < OP_MAX_IN; k++) op.in[k] = in_layout(s, old, old->in[k], packed);
    for (int o = 0; o < OP_MAX_OUT; o++) {
        int id = old->out[o];
        if (id < 0) continue;
        bool tokens = has_tokens(s, id);
        s->maker[id] = old->layer;
        if (tokens && packed) set_rows(s, &s->tape->tensors[id], true), s->is_packed[id] = true;
    }
    tape_append(s->tape, &op);
}

enum plim_status pass_share(struct tape *tape, const struct share_options *options, struct plim_error *err)
{
    int count = tape->ntensors;
    struct sharing s = {.tape = tape,
                        .rows = options->rows,
                        .time = options->time,
                        .packed = options->packed,
                        .is_packed = calloc((size_t)count + 1, sizeof *s.is_packed),
                        .other = malloc(((size_t)count + 1) * sizeof *s.other),
                        .maker = malloc(((size_t)count + 1) * sizeof *s.maker),
                        .count = count};
    bool good = s.is_packed && s.other && s.maker;
    for (int i = 0; good && i < count; i++) s.other[i] = s.maker[i] = -1;
    if (good) {
        s.pack = table(&s, "share.pack", options->rows / 2 * options->packed);
        s.wide = table(&s, "share.wide", options->rows * options->time);
        struct op_list old = tape_take_ops(tape);
        for (int i = 0; i < old.count && !tape->failed; i++) emit(&s, &old.ops[i]);
        tape->loop_end = tape->nops;
        tape_drop_ops(tape, &old);
    }
    free(s.is_packed), free(s.other), free(s.maker);
    return good && !tape->failed ? PLIM_OK
                                 : plim_fail(err, PLIM_NO_MEMORY, "out of memory while rows were packed");
}
