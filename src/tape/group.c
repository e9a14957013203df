/* group.c - see group.h.
 *
 * What the ops so far read and write is kept by root, as the smallest range around it, in a hash table on the stack.
 * Ranges around several views may hold bytes that nobody touches; a group then ends early, which is never wrong. */
#include "tape/group.h"
#include "tape/op.h"

#include <string.h>

enum { OPERANDS = OP_MAX_IN + OP_MAX_OUT, SLOT_BITS = 9, SLOTS = 1 << SLOT_BITS, FULL = SLOTS * 7 / 8 };
_Static_assert(FULL + OPERANDS < SLOTS, "a slot is free for each operand of one more op");

struct range { /* bytes of a root; empty when from == to */
    int64_t from, to;
};

/* An operand of an op. */
struct touch {
    int id; /* -1: none */
    unsigned slot;
    struct range range;
    bool writes;
};

struct seen {
    int count;
    int root[SLOTS]; /* -1: free */
    struct range read[SLOTS], written[SLOTS];
    struct touch last[OPERANDS]; /* by place, as found last: some operands are every op's */
};

static bool overlap(struct range a, struct range b) { return a.from < b.to && b.from < a.to; }

static void widen(struct range *a, struct range b)
{
    bool empty = a->from == a->to;
    if (b.from == b.to) return;
    if (empty || b.from < a->from) a->from = b.from;
    if (empty || b.to > a->to) a->to = b.to;
}

static struct range range_of(const struct tensor *t)
{
    if (t->view_of < 0) return (struct range){0, INT64_MAX};
    return (struct range){t->view_offset, t->view_offset + tensor_bytes(t)};
}

static unsigned slot_of(struct seen *s, int root)
{
    unsigned at = (unsigned)root * 0x9e3779b1u >> (32 - SLOT_BITS);
    while (s->root[at] >= 0 && s->root[at] != root) at = (at + 1) % SLOTS;
    if (s->root[at] < 0) s->root[at] = root, s->read[at] = s->written[at] = (struct range){0, 0}, s->count++;
    return at;
}

static bool collides(const struct seen *s, const struct touch *t)
{
    return overlap(t->range, s->written[t->slot]) || (t->writes && overlap(t->range, s->read[t->slot]));
}

static bool is_output(const struct op *op, int id)
{
    for (int k = 0; k < OP_MAX_OUT; k++)
        if (op->out[k] == id) return true;
    return false;
}

/* Lists the ranges that the op touches. An input that is also written counts as written, which is stricter. */
static int touches_of(struct seen *s, const struct tape *tape, const struct op *op, struct touch *list)
{
    int n = 0;
    for (int k = 0; k < OPERANDS; k++) {
        bool writes = k >= OP_MAX_IN;
        int id = writes ? op->out[k - OP_MAX_IN] : op->in[k];
        if (id < 0 || (!writes && is_output(op, id))) continue;
        struct touch *last = &s->last[k];
        if (last->id != id)
            *last = (struct touch){id, slot_of(s, tape_root(tape, id)), range_of(&tape->tensors[id]), writes};
        list[n++] = *last;
    }
    return n;
}

/* Takes the op into the group, unless it touches what is written there or writes what is read there. */
static bool join(struct seen *s, const struct tape *tape, const struct op *op)
{
    struct touch list[OPERANDS];
    if (s->count > FULL) return false;
    int n = touches_of(s, tape, op, list);
    for (int k = 0; k < n; k++)
        if (collides(s, &list[k])) return false;
    for (int k = 0; k < n; k++) widen((list[k].writes ? s->written : s->read) + list[k].slot, list[k].range);
    return true;
}

static bool may_join(const struct tape *tape, const struct op *first, int i)
{
    return i < tape->nops && i != tape->loop_end && tape->ops[i].kind == first->kind &&
           !tape->ops[i].attr.on_host;
}

int tape_group_search(const struct tape *tape, int first)
{
    const struct op *op = &tape->ops[first];
    int end = first + 1;
    if (!op_row(op->kind)->together || op->attr.on_host || !may_join(tape, op, end)) return end;
    struct seen seen;
    seen.count = 0;
    memset(seen.root, 0xff, sizeof seen.root);
    for (int k = 0; k < OPERANDS; k++) seen.last[k].id = -1;
    join(&seen, tape, op);
    while (end - first < TAPE_GROUP_MOST && may_join(tape, op, end) && join(&seen, tape, &tape->ops[end]))
        end++;
    return end;
}
