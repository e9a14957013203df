/* pass_prefetch.c - fetches and gathers earlier, buffers of stores and of what is sent to other ranks held longer.
 *
 * Every op gets a key: computing ops their number among themselves, copies the number of the computing op they stand
 * before; a fetch is moved up by lead. A store stays where it is, for the sooner it begins the better, but a hold of
 * its buffer follows lag computing ops later: until then the packer reuses none of the bytes, for the next user would have to wait
 * for the copy. Sorting by key keeps everything else in its order. Three things bound a fetch: its part of the tape,
 * copies of the same offloaded tensor or slice before it (a whole tensor follows all its slices), and an op of the host that makes
 * what is fetched. (A whole tensor that is stored and then fetched in slices within one part would be a fourth; updates inside
 * backward have their gradients on the device, and updates inside forward come before backward.) */
#include "tape/pass.h"

#include <stdlib.h>
#include <string.h>

struct placed {
    int key;
    int index; /* in the old order */
    bool hold; /* not the op, a store, but a hold of what it stores */
};

struct spread {
    struct tape *tape;
    int *least;                     /* by tensor: the key before which it cannot be fetched */
    struct placed *placed, *sorted; /* until all are placed, `sorted` has the holds */
    int *start;                     /* by key */
    int count, holds;
    /* Where what is gathered has bounds: by computing op, elements that are whole then and elements that are not read yet; by
     * tensor, the last computing op that reads it. */
    int64_t *live, *ahead, most_live, most_ahead;
    int *last;
};

static void spread_free(struct spread *s)
{
    free(s->least), free(s->placed), free(s->sorted), free(s->start);
    free(s->live), free(s->ahead), free(s->last);
}

static bool is_bounded(const struct spread *s) { return s->most_live > 0 || s->most_ahead > 0; }

static bool bounds_alloc(struct spread *s)
{
    size_t n = (size_t)s->tape->nops + 1;
    if (!is_bounded(s)) return true;
    s->live = calloc(n, sizeof *s->live), s->ahead = calloc(n, sizeof *s->ahead);
    s->last = malloc(((size_t)s->tape->ntensors + 1) * sizeof *s->last);
    return s->live && s->ahead && s->last;
}

static bool spread_alloc(struct spread *s)
{
    size_t n = (size_t)s->tape->nops + 1;
    s->least = malloc(((size_t)s->tape->ntensors + 1) * sizeof *s->least);
    s->placed = malloc(2 * n * sizeof *s->placed);
    s->sorted = malloc(2 * n * sizeof *s->sorted);
    s->start = malloc((2 * n + 2) * sizeof *s->start);
    return s->least && s->placed && s->sorted && s->start && bounds_alloc(s);
}

static bool is_kept(const struct tape *tape, int id)
{
    return tape->tensors[tape_root(tape, id)].flags & TENSOR_KEPT;
}

/* Between ranks, around the ops of the loop. Exchanges of an update stand where its op needs them. */
static bool is_exchange(const struct op *op)
{
    return op->part != PART_UPDATE && (op->kind == OP_GATHER || op->kind == OP_REDUCE);
}

/* Returns the operand that is elsewhere: on another tier, or sharded. */
static int far_of(const struct op *op)
{
    if (op->kind == OP_GATHER) return op->in[MOVE_FROM];
    return op->kind == OP_REDUCE ? op->out[MOVE_TO] : move_far(op);
}

/* Computing ops that something is moved up, or held behind. */
struct distance {
    int fetch, gather;   /* earlier */
    int state, weights;  /* likewise, of an update: what it needs, and what the host has updated */
    int store, exchange; /* longer */
};

static int lead_of(const struct tape *tape, const struct op *op, const struct distance *d)
{
    bool there = op->attr.half != HALF_ANY; /* the host has updated it in backward */
    if (op->part == PART_UPDATE && op->kind == OP_FETCH)
        return there || is_kept(tape, op->in[MOVE_FROM]) ? d->state : d->weights;
    return op->kind == OP_FETCH ? d->fetch : op->kind == OP_GATHER ? d->gather : 0;
}

/* How long the bytes that a copy or an exchange reads are held; 0: they need not be. */
static int lag_of(const struct tape *tape, const struct op *op, const struct distance *d)
{
    bool sends = op->kind == OP_GATHER || op->kind == OP_REDUCE;
    if (op->kind != OP_STORE && !sends) return 0;
    int from = op->in[MOVE_FROM];
    if (is_kept(tape, from) || tape->tensors[from].cls == CLASS_ACT) return 0;
    return sends ? d->exchange : d->store;
}

static void find_last_reads(struct spread *s, const struct op *ops, int begin, int end)
{
    int computed = 0;
    for (int i = 0; i < s->tape->ntensors; i++) s->last[i] = -1;
    for (int i = 0; i <= end - begin; i++) s->live[i] = s->ahead[i] = 0;
    for (int i = begin; i < end; i++) {
        if (op_moves(&ops[i]) || is_exchange(&ops[i])) continue;
        for (int k = 0; k < OP_MAX_IN; k++)
            if (ops[i].in[k] >= 0) s->last[tape_root(s->tape, ops[i].in[k])] = computed;
        computed++;
    }
}

/* How far a gather that computing op number `first` needs may come earlier, and from then on does. */
static int bound_lead(struct spread *s, const struct op *op, int first, int lead)
{
    int near = op->out[MOVE_TO], from = first, last = s->last[near] > first ? s->last[near] : first;
    int64_t n = tensor_count(&s->tape->tensors[near]);
    while (from > 0 && first - from < lead && (!s->most_live || s->live[from - 1] + n <= s->most_live) &&
           (!s->most_ahead || s->ahead[from - 1] + n <= s->most_ahead))
        from--;
    for (int i = from; i <= last; i++) s->live[i] += n;
    for (int i = from; i < first; i++) s->ahead[i] += n;
    return first - from;
}

/* A tensor is whole when all its slices are. */
static void written(struct spread *s, int far, int key)
{
    int root = tape_root(s->tape, far);
    s->least[far] = key;
    if (key > s->least[root]) s->least[root] = key;
}

/* Keys of ops [begin, end); the number of computing ops among them. Holds come last: where keys are equal, behind all
 * else. */
static int find_keys(struct spread *s, const struct op *ops, int begin, int end, const struct distance *d)
{
    int computed = 0;
    s->count = s->holds = 0;
    if (is_bounded(s)) find_last_reads(s, ops, begin, end);
    for (int i = begin; i < end; i++) {
        const struct op *op = &ops[i];
        int key = 2 * computed, lag = lag_of(s->tape, op, d);
        if (op->attr.guesses) {
            ; /* behind the copy of its gradient, and no op that others count by */
        } else if (!op_moves(op) && !is_exchange(op)) {
            for (int o = 0; o < OP_MAX_OUT && op->attr.on_host; o++)
                if (op->out[o] >= 0) written(s, op->out[o], key + 2);
            key++, computed++;
        } else {
            int far = far_of(op); /* slices of one tensor are each their own */
            int lead = lead_of(s->tape, op, d);
            if (lead && op->kind == OP_GATHER && is_bounded(s)) lead = bound_lead(s, op, computed, lead);
            key -= 2 * lead;
            if (key < s->least[far]) key = s->least[far];
            s->least[far] = key;
            if (op->kind == OP_STORE) written(s, far, key);
            if (op->kind == OP_FETCH)
                s->least[op->out[MOVE_TO]] = key; /* a gather may read what is fetched */
        }
        s->placed[s->count++] = (struct placed){key, i, false};
        if (lag > 0) s->sorted[s->holds++] = (struct placed){key + 2 * lag, i, true};
    }
    for (int k = 0; k < s->holds; k++) {
        struct placed hold = s->sorted[k];
        if (hold.key > 2 * computed) hold.key = 2 * computed;
        s->placed[s->count++] = hold;
    }
    return computed;
}

/* By key, otherwise in order: counted, since keys are small whole numbers. */
static void sort(struct spread *s, int most)
{
    for (int k = 0; k <= most + 1; k++) s->start[k] = 0;
    for (int i = 0; i < s->count; i++) s->start[s->placed[i].key + 1]++;
    for (int k = 0; k < most; k++) s->start[k + 1] += s->start[k];
    for (int i = 0; i < s->count; i++) s->sorted[s->start[s->placed[i].key]++] = s->placed[i];
}

/* Holds of the same place are one op, as far as its operands reach. */
static void emit(struct spread *s, const struct op *ops)
{
    int held = 0; /* operands of the hold that was emitted last; 0: something else was */
    for (int i = 0; i < s->count; i++) {
        const struct placed p = s->sorted[i];
        const struct op *op = &ops[p.index];
        if (!p.hold) {
            tape_append(s->tape, op);
            held = 0;
            continue;
        }
        if (held == 0 || held == OP_MAX_IN) {
            struct op *hold = tape_add(s->tape, OP_HOLD, op->layer);
            if (!hold) return;
            hold->part = op->part, held = 0;
        }
        s->tape->ops[s->tape->nops - 1].in[held++] = op->in[MOVE_FROM];
    }
}

enum plim_status pass_prefetch(struct tape *tape, const struct prefetch_options *o, struct plim_error *err)
{
    struct spread s = {.tape = tape, .most_live = o->most_live, .most_ahead = o->most_ahead};
    if (!spread_alloc(&s)) {
        spread_free(&s);
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory while copies were spread");
    }
    struct op_list old = tape_take_ops(tape);
    int parts[3] = {0, tape->loop_end, old.count};
    struct distance distances[2] = {
        {o->loop_lead, o->gather_lead, o->state_lead, o->weights_lead, o->loop_lag, o->exchange_lag},
        {0, 0, 0, 0, o->update_lag, o->exchange_update_lag}};
    for (int p = 0; p < 2; p++) {
        memset(s.least, 0, (size_t)tape->ntensors * sizeof *s.least);
        int computed = find_keys(&s, old.ops, parts[p], parts[p + 1], &distances[p]);
        sort(&s, 2 * computed);
        emit(&s, old.ops);
        if (p == 0) tape->loop_end = tape->nops;
    }
    tape_drop_ops(tape, &old);
    spread_free(&s);
    return tape->failed ? plim_fail(err, PLIM_NO_MEMORY, "out of memory while copies were spread") : PLIM_OK;
}
