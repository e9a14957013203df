/* fuse.c - see fuse.h. */
#include "plan/fuse.h"

/* Input `slot` of op `reader` is output `result` of op `maker`. With `shared`, both ops read the same tensor, and `result` is op 0's
 * input. */
struct tie {
    int reader, slot, result;
    bool shared;
    int maker;
    bool outlives; /* others may read the result, even if the pattern is `inner` */
};

enum { TIES = 4 };

/* Longer patterns come before their beginnings. A linear stands for linear_q and linear_f8 too, which have
 * its operands in the same slots. */
static const struct pattern {
    int count;
    int kind[FUSE_MOST];
    struct tie tie[TIES]; /* none: ops side by side */
    bool inner;           /* the ties' results die in the run */
    bool omits;           /* the kernel omits the first tie's result if a later one has its bytes */
} patterns[] = {
    {4,
     {OP_NORM, OP_LINEAR, OP_LINEAR, OP_GLU},
     {{1, LINEAR_X, NORM_Y, .outlives = true},
      {2, LINEAR_X, NORM_Y, .outlives = true},
      {3, GLU_GATE, LINEAR_Y, .maker = 1},
      {3, GLU_UP, LINEAR_Y, .maker = 2}},
     true},
    {3, {OP_NORM, OP_LINEAR, OP_LINEAR}, {{1, LINEAR_X, NORM_Y, false}, {2, LINEAR_X, NORM_Y, false}}, false},
    {3, {OP_GLU, OP_LINEAR, OP_LINEAR}, {{1, LINEAR_X, GLU_H, false}, {2, LINEAR_X, GLU_H, false}}, true},
    {3,
     {OP_NORM, OP_ADAPTER_LINEAR, OP_LINEAR},
     {{1, ADAPTER_LINEAR_X, NORM_Y, false}, {2, LINEAR_X, NORM_Y, false}},
     false},
    {2, {OP_NORM, OP_LINEAR}, {{1, LINEAR_X, NORM_Y, false}}, false},
    {2, {OP_GLU, OP_LINEAR}, {{1, LINEAR_X, GLU_H, false}}, true},
    {2, {OP_LINEAR, OP_LINEAR}, {{1, LINEAR_X, LINEAR_X, true}}, false},
    {2, {OP_LINEAR, OP_ACT}, {{1, ACT_X, LINEAR_Y, false}}, false, true},
    {3,
     {OP_LINEAR_DX, OP_ACT_BWD, OP_LINEAR_DW},
     {{1, ACT_BWD_DY, LINEAR_DX_DX, false}, {2, LINEAR_DW_DY, LINEAR_DX_DY, true}},
     false,
     true},
    {2, {OP_LINEAR_DX, OP_ACT_BWD}, {{1, ACT_BWD_DY, LINEAR_DX_DX, false}}, false, true},
    {3, {OP_ADAPTER_LINEAR, OP_LINEAR, OP_ADAPTER_LINEAR}, {{0}}, false},
    {2, {OP_ADAPTER_LINEAR, OP_LINEAR}, {{0}}, false},
    {2, {OP_ADAPTER_LINEAR, OP_GLU}, {{1, GLU_UP, ADAPTER_LINEAR_Y, false}}, true},
    {3,
     {OP_SPLIT3, OP_KV_PUT, OP_ATTN_PAGED},
     {{1, KV_PUT_K, SPLIT3_K, false},
      {1, KV_PUT_V, SPLIT3_V, false},
      {2, ATTN_PAGED_Q, SPLIT3_Q, false},
      {2, ATTN_PAGED_POOL, KV_PUT_NEW_POOL, .maker = 1, .outlives = true}},
     true},
    {2, {OP_SPLIT3, OP_KV_PUT}, {{1, KV_PUT_K, SPLIT3_K, false}, {1, KV_PUT_V, SPLIT3_V, false}}, false},
};

static int as_plain(int kind) { return kind == OP_LINEAR_Q || kind == OP_LINEAR_F8 ? OP_LINEAR : kind; }

static bool has_kinds(const struct tape *tape, const struct pattern *p, int begin, int end)
{
    int last = begin + p->count - 1;
    if (last >= end || (begin < tape->loop_end && last >= tape->loop_end)) return false;
    for (int i = 0; i < p->count; i++)
        if (as_plain(tape->ops[begin + i].kind) != p->kind[i] || tape->ops[begin + i].attr.on_host)
            return false;
    return true;
}

static bool same_bytes(const struct tape *tape, const struct layout *layout, int a, int b)
{
    return a >= 0 && b >= 0 && tape_root(tape, a) == tape_root(tape, b) &&
           layout->offset[a] == layout->offset[b];
}

/* Only the run reads it. A result of the run that takes over its bytes is made by its last reader, and lengthens its life (layout.h). */
static bool dies_in_run(const struct tape *tape, const struct layout *layout, const struct pattern *p,
                        int begin, int made)
{
    int root = tape_root(tape, made);
    if (layout->life[root].last < begin + p->count) return true;
    for (const struct op *op = &tape->ops[begin]; op < &tape->ops[begin + p->count]; op++)
        for (int k = 0; k < OP_MAX_OUT; k++)
            if (op->out[k] >= 0 && op->out[k] != root && layout->buffer[op->out[k]] == root) return true;
    return false;
}

static bool is_tied(const struct tape *tape, const struct layout *layout, const struct pattern *p, int begin)
{
    for (const struct tie *t = p->tie; t < p->tie + TIES && t->reader; t++) {
        const struct op *maker = &tape->ops[begin + t->maker];
        int made = t->shared ? maker->in[t->result] : maker->out[t->result];
        bool inner = p->inner && !t->outlives;
        if (!same_bytes(tape, layout, made, tape->ops[begin + t->reader].in[t->slot])) return false;
        if (inner && !dies_in_run(tape, layout, p, begin, made)) return false;
    }
    return true;
}

static bool overlap(const struct tape *tape, const struct layout *layout, int a, int b)
{
    const struct tensor *x = &tape->tensors[a], *y = &tape->tensors[b];
    return x->tier == y->tier && layout->offset[a] < layout->offset[b] + tensor_bytes(y) &&
           layout->offset[b] < layout->offset[a] + tensor_bytes(x);
}

/* Roots of results that the kernel need not write, as only the run reads them. */
struct unwritten {
    int root[TIES], count;
};

static bool is_unwritten(const struct unwritten *u, int root)
{
    for (int i = 0; i < u->count; i++)
        if (u->root[i] == root) return true;
    return false;
}

/* True if `writer` would overwrite an operand of `other`. A tensor that one hands to the other does not count, nor one that is not written. Neither
 * does a result of the first op that nobody reads: the kernel does not write it if another result needs its bytes. */
static bool spoils(const struct tape *tape, const struct layout *layout, const struct op *writer,
                   const struct op *other, int first, const struct unwritten *unwritten)
{
    for (int w = 0; w < OP_MAX_OUT; w++)
        for (int k = 0; k < OP_MAX_IN + OP_MAX_OUT && writer->out[w] >= 0; k++) {
            int out = writer->out[w], id = k < OP_MAX_IN ? other->in[k] : other->out[k - OP_MAX_IN];
            if (id < 0 || tape_root(tape, out) == tape_root(tape, id)) continue;
            if (is_unwritten(unwritten, tape_root(tape, out)) || is_unwritten(unwritten, tape_root(tape, id)))
                continue;
            bool unread = k >= OP_MAX_IN && (layout->life[tape_root(tape, id)].last == first ||
                                             layout->life[tape_root(tape, out)].last == first);
            if (!unread && overlap(tape, layout, out, id)) return true;
        }
    return false;
}

/* Invariants 3 and 4. */
static struct unwritten unwritten_of(const struct tape *tape, const struct layout *layout,
                                     const struct pattern *p, int begin)
{
    struct unwritten u = {0};
    for (const struct tie *t = p->tie; t < p->tie + TIES && t->reader; t++) {
        int made = tape->ops[begin + t->maker].out[t->result];
        bool omits = p->omits && t == p->tie, inner = p->inner && !t->outlives && !t->shared;
        if ((omits || inner) && dies_in_run(tape, layout, p, begin, made))
            u.root[u.count++] = tape_root(tape, made);
    }
    return u;
}

static bool is_safe(const struct tape *tape, const struct layout *layout, const struct pattern *p, int begin)
{
    struct unwritten unwritten = unwritten_of(tape, layout, p, begin);
    for (int i = begin, end = begin + p->count; i < end; i++)
        for (int k = begin; k < end; k++)
            if (i != k && spoils(tape, layout, &tape->ops[i], &tape->ops[k], begin, &unwritten)) return false;
    return true;
}

static int64_t rows_of(const struct tape *tape, int id)
{
    const struct tensor *t = &tape->tensors[id];
    return tensor_count(t) / t->dim[t->ndim - 1];
}

/* A norm of few rows, and a gated unit of two products with weights in blocks that read it. */
static bool gates_products(const struct tape *tape, int begin)
{
    const struct op *op = &tape->ops[begin];
    int end = begin < tape->loop_end ? tape->loop_end : tape->nops;
    if (begin + 4 > end || op[0].kind != OP_NORM || op[1].kind != OP_LINEAR_Q || op[2].kind != OP_LINEAR_Q ||
        op[3].kind != OP_GLU)
        return false;
    int x = tape_root(tape, op[0].out[NORM_Y]);
    return rows_of(tape, op[0].out[NORM_Y]) <= FUSE_FEW_ROWS && x == tape_root(tape, op[1].in[LINEAR_X]) &&
           x == tape_root(tape, op[2].in[LINEAR_X]);
}

/* Queries, keys and values of few rows that one kernel splits, keeps and attends with. */
static bool attends_split(const struct tape *tape, int begin)
{
    const struct op *op = &tape->ops[begin];
    int end = begin < tape->loop_end ? tape->loop_end : tape->nops;
    if (op->kind != OP_SPLIT3 || begin + 3 > end || op[1].kind != OP_KV_PUT || op[2].kind != OP_ATTN_PAGED)
        return false;
    const struct tensor *q = &tape->tensors[op->out[SPLIT3_Q]];
    return q->dim[0] * q->dim[1] <= FUSE_FEW_ROWS &&
           tape_root(tape, op->out[SPLIT3_Q]) == tape_root(tape, op[2].in[ATTN_PAGED_Q]);
}

int fuse_kept_apart(const struct tape *tape, int begin)
{
    const struct op *first = &tape->ops[begin];
    if (attends_split(tape, begin)) return begin + 3;
    if (gates_products(tape, begin)) return begin + 4;
    if (first->kind != OP_NORM && first->kind != OP_GLU) return begin + 1;
    if (first->attr.layer_norm || first->attr.joint) return begin + 1;
    int made = tape_root(tape, first->out[first->kind == OP_NORM ? (int)NORM_Y : (int)GLU_H]),
        end = begin + 1;
    int until = begin < tape->loop_end ? tape->loop_end : tape->nops;
    if (until > begin + FUSE_MOST) until = begin + FUSE_MOST;
    while (end < until && tape->ops[end].kind == OP_LINEAR_F8 &&
           tape_root(tape, tape->ops[end].in[LINEAR_F8_X]) == made)
        end++;
    return end;
}

int fuse_end(const struct tape *tape, const struct layout *layout, int begin, int end, fuse_can *can,
             void *arg)
{
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        const struct pattern *p = &patterns[i];
        if (has_kinds(tape, p, begin, end) && is_tied(tape, layout, p, begin) &&
            is_safe(tape, layout, p, begin) && can(arg, begin, p->count))
            return begin + p->count;
    }
    return begin + 1;
}
