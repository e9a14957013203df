/* pass_offload.c - parameters, their gradients, moments and masters on a lower tier.
 *
 * An update of a parameter with offloaded companions becomes a row of slices, computed by the device (offload_near.c) or by
 * the host (offload_host.c).
 *
 * An offloaded parameter is on the device only around the ops that read it, a gradient around those that add to it: fetched before
 * the first of them, a gradient stored after the last. Forward, head and backward each have their own first and last;
 * the slices of the head count as one. What the first micro-batch of a window overwrites is not fetched there. The square of
 * an offloaded gradient for the global norm is made before it leaves, in every micro-batch; the last one's is what counts. */
#include "tape/offload.h"
#include "tape/phase.h"
#include "tensor/quant8.h"

#include <stdlib.h>
#include <string.h>

/* --- how an update is cut --------------------------------------------------------------------------------- */

/* How an operand follows the rows of the parameter, by its pattern in the op table. */
enum cut { CUT_NOT, CUT_ROWS, CUT_BLOCKS };

static enum cut cut_of(const struct op *op, int slot)
{
    const char *pattern = op_row(op->kind)->in[slot];
    if (!pattern) return CUT_NOT;
    if (pattern[1] == '%') return CUT_BLOCKS;
    for (const char *dim = pattern + 1; *dim; dim++)
        if (*dim == 'N' || *dim == 'R') return CUT_ROWS;
    return CUT_NOT;
}

bool offload_is_cut(const struct op *op, int slot) { return cut_of(op, slot) != CUT_NOT; }

int64_t offload_first(const struct tape *tape, const struct op *op, int64_t row)
{
    const struct tensor *p = &tape->tensors[op->in[UPDATE_SHAPE]];
    return row * (tensor_count(p) / p->dim[0]);
}

struct part offload_part(const struct tape *tape, const struct op *op, int slot, int64_t first, int64_t rows)
{
    switch (cut_of(op, slot)) {
    case CUT_ROWS:
        return (struct part){first, rows};
    case CUT_BLOCKS: /* slices begin with a block: offload_rows sees to it */
        return (struct part){offload_first(tape, op, first) / QUANT8_BLOCK,
                             quant8_blocks(offload_first(tape, op, rows))};
    default:
        return (struct part){0, tape->tensors[op->in[slot]].dim[0]};
    }
}

int offload_view(struct tape *tape, const struct op *op, int slot, struct part part)
{
    int id = op->in[slot];
    return part.rows == tape->tensors[id].dim[0] ? id : tape_view_rows(tape, id, part.first, part.rows);
}

/* Bytes of offloaded operands that one row of the parameter has, rounded up. */
static int64_t offloaded_row_bytes(const struct tape *tape, const struct op *op)
{
    int64_t bytes = 0, rows = op->in[UPDATE_SHAPE] < 0 ? 1 : tape->tensors[op->in[UPDATE_SHAPE]].dim[0];
    for (int k = 0; k < OP_MAX_IN; k++)
        if (is_offloaded(tape, op->in[k])) bytes += tensor_bytes(&tape->tensors[op->in[k]]);
    return (bytes + rows - 1) / rows;
}

/* So many rows of usual lengths are whole blocks of a file. */
enum { DISK_ROWS = 64 };

static bool on_disk(const struct tape *tape, const struct op *op)
{
    for (int k = 0; k < OP_MAX_IN; k++)
        if (is_offloaded(tape, op->in[k]) && tape->tensors[op->in[k]].tier == TIER_DISK) return true;
    return false;
}

int64_t offload_rows(const struct tape *tape, const struct op *op, int64_t slice_bytes)
{
    int64_t row_bytes = offloaded_row_bytes(tape, op);
    if (row_bytes == 0) return 0;
    const struct tensor *p = &tape->tensors[op->in[UPDATE_SHAPE]];
    int64_t row = tensor_count(p) / p->dim[0], unit = 1, per = slice_bytes / row_bytes;
    if (op_row(op->kind)->whole) return p->dim[0];
    if (on_disk(tape, op) && per > 2 * DISK_ROWS) unit = DISK_ROWS;
    for (int k = 0; k < OP_MAX_IN && op_row(op->kind)->in[k]; k++)
        if (cut_of(op, k) == CUT_BLOCKS)
            while (unit * row % QUANT8_BLOCK) unit *= 2; /* 256 rows do, whatever their length */
    return per < unit ? unit : per / unit * unit;
}

void offload_move(struct tape *tape, const struct op *like, int kind, int from, int to)
{
    struct op *op = tape_add(tape, kind, like->layer);
    if (op) op->part = like->part, op->in[MOVE_FROM] = from, op->out[MOVE_TO] = to;
}

/* --- what is offloaded ------------------------------------------------------------------------------------- */

/* Its own flag or its parameter's: what is small stays, for each copy has its price. */
static bool may_leave(const struct tape *tape, int id)
{
    const struct tensor *t = &tape->tensors[id];
    unsigned flags = t->flags | (t->owner < 0 ? 0 : tape->tensors[t->owner].flags);
    return t->view_of < 0 && !(flags & TENSOR_NEAR);
}

/* Classes as bits. */
enum { STATE = 1 << CLASS_STATE | 1 << CLASS_MASTER, PARAM = 1 << CLASS_PARAM };

static bool may_leave_of(const struct tape *tape, int id, int classes)
{
    return (classes >> tape->tensors[id].cls & 1) && may_leave(tape, id);
}

/* Moves tensors of the last parameters from one tier to a lower one until the share is reached. What stays is at the
 * same address in every plan (invariant 1 of plan/layout.h). */
static enum plim_status mark_share(struct tape *tape, int classes, enum tier from, enum tier tier, int share,
                                   struct plim_error *err)
{
    int64_t *bytes = calloc((size_t)tape->ntensors + 1, sizeof *bytes), all = 0, kept = 0;
    if (!bytes) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while offloading was placed");
    for (int i = 0; i < tape->ntensors; i++)
        if (may_leave_of(tape, i, classes)) {
            int64_t n = tensor_bytes(&tape->tensors[i]);
            bytes[tape->tensors[i].owner < 0 ? i : tape->tensors[i].owner] += n, all += n;
        }
    int64_t leave = share ? share : OFFLOAD_SHARES;
    int64_t stays = all / OFFLOAD_SHARES * (OFFLOAD_SHARES - leave);
    int first = 0;
    while (first < tape->ntensors && kept + bytes[first] <= stays) kept += bytes[first++];
    for (int i = 0; i < tape->ntensors; i++) {
        struct tensor *t = &tape->tensors[i];
        bool goes = may_leave_of(tape, i, classes) && (t->owner < 0 ? i : t->owner) >= first;
        if (goes && t->tier == from) t->tier = tier;
    }
    free(bytes);
    return PLIM_OK;
}

/* Gradients leave with their parameter's state; all of them where all state leaves or none does. */
static enum plim_status mark_grads(struct tape *tape, const struct offload_options *o, struct plim_error *err)
{
    bool part = o->state_tier != TIER_DEVICE && o->state_share > 0 && o->state_share < OFFLOAD_SHARES;
    bool *leaves = calloc((size_t)tape->ntensors + 1, sizeof *leaves);
    if (!leaves) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while offloading was placed");
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *t = &tape->tensors[i];
        if (part && (STATE >> t->cls & 1) && t->owner >= 0 && t->tier != TIER_DEVICE) leaves[t->owner] = true;
    }
    for (int i = 0; i < tape->ntensors; i++) {
        struct tensor *t = &tape->tensors[i];
        if (t->cls == CLASS_GRAD && may_leave(tape, i) && (!part || leaves[t->owner]))
            t->tier = o->grad_tier, t->flags |= TENSOR_KEPT;
    }
    free(leaves);
    return PLIM_OK;
}

static enum plim_status mark_far(struct tape *tape, const struct offload_options *o, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    int state = o->disk_share < OFFLOAD_SHARES ? o->disk_share : OFFLOAD_SHARES,
        param = o->disk_share - state;
    if (o->state_tier != TIER_DEVICE)
        status = mark_share(tape, STATE, TIER_DEVICE, o->state_tier, o->state_share, err);
    if (o->grad_tier != TIER_DEVICE && status == PLIM_OK) status = mark_grads(tape, o, err);
    if (o->param_tier != TIER_DEVICE && status == PLIM_OK)
        status = mark_share(tape, PARAM, TIER_DEVICE, o->param_tier, o->param_share, err);
    if (state > 0 && status == PLIM_OK) status = mark_share(tape, STATE, TIER_HOST, TIER_DISK, state, err);
    if (param > 0 && status == PLIM_OK) status = mark_share(tape, PARAM, TIER_HOST, TIER_DISK, param, err);
    for (int i = 0; i < tape->ntensors; i++) /* parts of what leaves go with it */
        if (tape->tensors[i].view_of >= 0) tape->tensors[i].tier = tape->tensors[tape_root(tape, i)].tier;
    return status;
}

/* --- copies around the ops of the loop ----------------------------------------------------------------------- */

/* By offloaded tensor: its near copy now, the last op of each phase that touches it, and of a gradient the op of the update that
 * squares it, as an index or -1. By op: whether it touches an offloaded tensor. */
struct loop_copies {
    int *near, *last[PHASES], *square;
    bool *touches;
    bool once;
};

static void loop_copies_free(struct loop_copies *c)
{
    free(c->near), free(c->square), free(c->touches);
    for (int p = 0; p < PHASES; p++) free(c->last[p]);
}

/* Where gradients leave, all squares that pass_part counts as the loop's are made there, also of those that stay. */
static bool is_squared_early(const struct tape *tape, const struct offload_options *o, int id)
{
    return id >= 0 && o->grad_tier != TIER_DEVICE && tape->tensors[id].cls == CLASS_GRAD &&
           may_leave(tape, id);
}

static bool squares_early(const struct tape *tape, const struct offload_options *o, const struct op *op)
{
    return op->kind == OP_SUMSQ && is_squared_early(tape, o, op->in[SUMSQ_GRAD]);
}

static bool loop_copies_alloc(struct loop_copies *c, const struct tape *tape)
{
    size_t bytes = ((size_t)tape->ntensors + 1) * sizeof(int);
    bool good = (c->near = malloc(bytes)) != NULL;
    good = (c->square = malloc(bytes)) != NULL && good;
    good = (c->touches = malloc((size_t)tape->nops + 1)) != NULL && good;
    for (int p = 0; p < PHASES; p++) good = (c->last[p] = malloc(bytes)) != NULL && good;
    if (!good) return false;
    memset(c->near, -1, bytes), memset(c->square, -1, bytes);
    for (int p = 0; p < PHASES; p++) memset(c->last[p], -1, bytes);
    return true;
}

static enum plim_status find_last(struct loop_copies *c, const struct tape *tape,
                                  const struct offload_options *o, struct plim_error *err)
{
    if (!loop_copies_alloc(c, tape))
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory while offloading was placed");
    for (int i = 0; i < tape->nops; i++) {
        const struct op *op = &tape->ops[i];
        const struct op_row *row = op_row(op->kind);
        int *last = i < tape->loop_end && op->part != PART_UPDATE ? c->last[phase_of(op)] : NULL;
        c->touches[i] = false;
        for (int k = 0; k < OP_MAX_IN && row->in[k]; k++) {
            if (!is_offloaded(tape, op->in[k])) continue;
            c->touches[i] = true;
            if (last) last[op->in[k]] = i;
        }
        for (int k = 0; k < OP_MAX_OUT && row->out[k]; k++) {
            if (!is_offloaded(tape, op->out[k]) && !is_squared_early(tape, o, op->out[k])) continue;
            c->touches[i] = true;
            if (last) last[op->out[k]] = i;
        }
        if (i >= tape->loop_end && squares_early(tape, o, op)) c->square[op->in[SUMSQ_GRAD]] = i;
    }
    return PLIM_OK;
}

/* An offloaded tensor gets a near copy, fetched, if it has none yet. */
static void come_near(struct loop_copies *c, struct tape *tape, const struct op *op, int far)
{
    if (c->near[far] >= 0) return;
    struct tensor t = tape->tensors[far];
    bool is_grad = t.cls == CLASS_GRAD;
    t.flags = offload_near_flags(&t), t.tier = TIER_DEVICE, t.cls = CLASS_WORK;
    t.view_of = -1, t.view_offset = 0;
    c->near[far] = tape_tensor(tape, &t);
    /* The writer would overwrite the first value, so it is not fetched. */
    bool overwrites = is_grad && op->accumulate == ACC_AFTER_FIRST;
    if (overwrites && c->once) return;
    offload_move(tape, op, OP_FETCH, far, c->near[far]);
    if (overwrites && !tape->failed) tape->ops[tape->nops - 1].accumulate = ACC_AFTER_FIRST;
}

/* Does nothing add to this gradient any more, behind the last op of this phase that touches it? */
static bool is_whole(const struct loop_copies *c, const struct op *like, int grad)
{
    return phase_of(like) == PHASE_BACKWARD || c->last[PHASE_BACKWARD][grad] < 0;
}

/* The square of a gradient, if it is whole. */
static void square(struct tape *tape, struct loop_copies *c, const struct op *old, int index, int grad)
{
    const struct op *like = &old[index];
    if (c->square[grad] < 0 || !is_whole(c, like, grad)) return;
    struct op op = old[c->square[grad]];
    op.part = like->part, op.layer = like->layer;
    if (c->near[grad] >= 0) op.in[SUMSQ_GRAD] = c->near[grad];
    tape_append(tape, &op);
}

/* The near copy of a gradient goes where it belongs. */
static void send_back(struct tape *tape, struct loop_copies *c, const struct op *like, int far)
{
    offload_move(tape, like, OP_STORE, c->near[far], far);
    c->near[far] = -1;
}

/* One op of the loop, with the copies its offloaded operands need. */
static void emit_in_loop(struct tape *tape, struct loop_copies *c, const struct op *ops, int index)
{
    const struct op *old = &ops[index];
    const int *last = c->last[phase_of(old)];
    for (int k = 0; k < OP_MAX_IN; k++)
        if (is_offloaded(tape, old->in[k])) come_near(c, tape, old, old->in[k]);
    for (int o = 0; o < OP_MAX_OUT; o++)
        if (is_offloaded(tape, old->out[o])) come_near(c, tape, old, old->out[o]);
    tape_append(tape, old);
    if (tape->failed) return;
    struct op *op = &tape->ops[tape->nops - 1];
    for (int k = 0; k < OP_MAX_IN; k++)
        if (is_offloaded(tape, old->in[k])) op->in[k] = c->near[old->in[k]];
    for (int o = 0; o < OP_MAX_OUT; o++)
        if (is_offloaded(tape, old->out[o])) op->out[o] = c->near[old->out[o]];
    for (int o = 0; o < OP_MAX_OUT; o++) {
        int id = old->out[o];
        if (id < 0 || last[id] != index) continue;
        square(tape, c, ops, index, id);
        if (is_offloaded(tape, id)) send_back(tape, c, old, id);
    }
    for (int k = 0; k < OP_MAX_IN; k++)
        if (is_offloaded(tape, old->in[k]) && last[old->in[k]] == index) c->near[old->in[k]] = -1;
}

/* --- the pass ---------------------------------------------------------------------------------------------- */

struct rewrite {
    struct tape *tape;
    const struct offload_options *options;
    struct near_updates near;
    struct host_updates host;
    int owed; /* to the host, in parts of a slice */
    int late; /* the gradient that is whole last of all: where it is, nothing is left of backward that an update could run beside */
};

static int64_t update_rows(const struct rewrite *r, const struct op *op)
{
    return op->part == PART_UPDATE ? offload_rows(r->tape, op, r->options->slice_bytes) : 0;
}

/* The last rows of a parameter, which the host updates early, at once. A late one has all of forward wait for it, so device and
 * host share it. */
static int64_t early_rows(const struct rewrite *r, const struct op *op)
{
    int share = r->options->host_share;
    if (op->in[UPDATE_G] == r->late && share > OFFLOAD_SHARES / 2) share = OFFLOAD_SHARES / 2;
    return r->tape->tensors[op->in[UPDATE_SHAPE]].dim[0] * share / OFFLOAD_SHARES;
}

static int late_gradient(const struct tape *tape, const struct loop_copies *copies)
{
    int late = -1, last = -1;
    for (int i = 0; i < tape->ntensors; i++)
        if (tape->tensors[i].cls == CLASS_GRAD && copies->last[PHASE_BACKWARD][i] > last)
            late = i, last = copies->last[PHASE_BACKWARD][i];
    return late;
}

/* An update with offloaded operands: slices, the host's share of them evenly among the device's. */
static void emit_update(struct rewrite *r, const struct op *op, int64_t per)
{
    int64_t all = r->tape->tensors[op->in[UPDATE_SHAPE]].dim[0];
    bool by_host = r->options->host_share && host_can_update(r->tape, op);
    if (by_host && host_is_early(&r->host, r->tape, op)) all -= early_rows(r, op), by_host = false;
    for (int64_t first = 0; first < all; first += per) {
        int64_t rows = all - first < per ? all - first : per;
        if (by_host) r->owed += r->options->host_share;
        if (by_host && r->owed >= OFFLOAD_SHARES) {
            r->owed -= OFFLOAD_SHARES;
            host_update(&r->host, r->tape, op, first, rows);
        } else {
            near_update(&r->near, r->tape, op, first, rows);
        }
    }
}

/* Moments and masters, which nothing but their update touches, are all that this one fetches. */
static bool fetches_state_alone(const struct tape *tape, const struct op *op)
{
    for (int k = 0; k < OP_MAX_IN; k++)
        if (is_offloaded(tape, op->in[k]) && !(STATE >> tape->tensors[tape_root(tape, op->in[k])].cls & 1))
            return false;
    return true;
}

/* An update ends and ops [i, end) follow: the next one's first slice comes beside them. */
static void read_ahead(struct rewrite *r, const struct op *old, int i, int end)
{
    if (!r->options->overlap_disk || !r->near.has_waiting || r->near.has_ahead) return;
    while (i < end && !update_rows(r, &old[i])) i++;
    if (i == end || !fetches_state_alone(r->tape, &old[i])) return;
    int64_t per = update_rows(r, &old[i]), all = r->tape->tensors[old[i].in[UPDATE_SHAPE]].dim[0];
    near_ahead(&r->near, r->tape, &old[i], per < all ? per : all);
}

/* Updates by the host that need nothing from the device begin with the loop; their weights return where they are read. */
static void emit_early(struct rewrite *r, const struct op *old, int nops)
{
    for (int i = 0; i < nops; i++) {
        if (!update_rows(r, &old[i]) || !host_is_early(&r->host, r->tape, &old[i])) continue;
        int64_t all = r->tape->tensors[old[i].in[UPDATE_SHAPE]].dim[0], rows = early_rows(r, &old[i]);
        int64_t before = rows * r->options->before_norm / OFFLOAD_SHARES;
        if (!pair_can_update(r->tape, &old[i]) || old[i].in[UPDATE_G] == r->late) before = 0;
        if (before > 0) pair_update(&r->host, r->tape, &old[i], all - before, before);
        if (rows > before) host_update(&r->host, r->tape, &old[i], all - rows, rows - before);
    }
}

/* The host begins its updates before the norm behind the copy of their gradient. */
static void emit_before_norm(struct rewrite *r, const struct loop_copies *copies, const struct op *ops, int i)
{
    const struct op *op = &ops[i];
    for (int o = 0; o < OP_MAX_OUT && r->host.npairs; o++) {
        int id = op->out[o];
        bool last = id >= 0 && is_offloaded(r->tape, id) && copies->last[phase_of(op)][id] == i;
        if (last && is_whole(copies, op, id)) pair_begin(&r->host, r->tape, id);
    }
}

static void rewrite(struct tape *tape, const struct offload_options *options, struct loop_copies *copies,
                    const struct op *old, int nops)
{
    struct rewrite r = {.tape = tape, .options = options, .near = {.behind = options->overlap_disk}};
    int loop_end = tape->loop_end;
    r.host.early = options->in_forward && options->host_share;
    if (options->host_share) host_begin(&r.host, tape, old, nops, options->slice_bytes);
    r.late = options->before_norm ? late_gradient(tape, copies) : -1;
    if (r.host.early) emit_early(&r, old, nops);
    for (int i = 0; i <= nops; i++) {
        int64_t per = i < nops ? update_rows(&r, &old[i]) : 0;
        if (per == 0 && i != loop_end) read_ahead(&r, old, i, i < loop_end ? loop_end : nops);
        if (per == 0 || i == loop_end) near_finish(&r.near, tape);
        if (i == loop_end || i == nops) near_settle(&r.near, tape);
        bool exchange = i < nops && old[i].part == PART_UPDATE && op_collects(&old[i]);
        if (i == loop_end || i == nops || exchange) host_finish(&r.host, tape);
        if (i < loop_end && old[i].part != PART_UPDATE) host_return(&r.host, tape, &old[i]);
        if (i == loop_end)
            tape->loop_end = loop_end ? tape->nops : 0; /* what is early may be an update's own */
        if (i < nops && i >= loop_end && squares_early(tape, options, &old[i])) continue;
        if (per > 0)
            emit_update(&r, &old[i], per);
        else if (i < nops && copies->touches[i]) {
            emit_in_loop(tape, copies, old, i);
            if (i < loop_end) emit_before_norm(&r, copies, old, i);
        } else if (i < nops)
            tape_append(tape, &old[i]);
    }
    host_release(&r.host);
}

enum plim_status pass_offload(struct tape *tape, const struct offload_options *options,
                              struct plim_error *err)
{
    if (options->state_tier == TIER_DEVICE && options->grad_tier == TIER_DEVICE &&
        options->param_tier == TIER_DEVICE)
        return PLIM_OK;
    struct loop_copies copies = {.once = options->once};
    enum plim_status status = mark_far(tape, options, err);
    if (status == PLIM_OK) status = find_last(&copies, tape, options, err);
    if (status == PLIM_OK) {
        struct op_list old = tape_take_ops(tape);
        rewrite(tape, options, &copies, old.ops, old.count);
        tape_drop_ops(tape, &old);
        if (tape->failed)
            status = plim_fail(err, PLIM_NO_MEMORY, "out of memory while offloading was placed");
    }
    loop_copies_free(&copies);
    return status;
}
