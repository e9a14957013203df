/* replan.c - another budget between two optimizer steps.
 *
 * Parameters lie at the bottom of the arena in every plan of a job and stay where they are; state that changes its
 * tier is written out or read back, constants are written again, everything above is dead. Pages above the new plan
 * go back to the system at once. Whatever fails, the old plan still stands.
 *
 *     grow: commit first, then move in        shrink: move out, then give pages back
 */
#include "base/clock.h"
#include "train/trainer.h"

#include <stdlib.h>
#include <string.h>

#define PIECE (1 << 20)

struct move {
    struct trainer *t;
    struct exec from, to;
    char *piece;
    int64_t moved;
};

static bool holds_something(const struct tensor *x)
{
    return x->view_of < 0 && (x->flags & TENSOR_KEPT) && x->cls != CLASS_IO && x->cls != CLASS_GRAD;
}

/* The same kept tensor in the other tape: same class, layer, label and owner. */
static int counterpart(const struct tape *in, const struct tape *from, int id, int hint)
{
    const struct tensor *x = &from->tensors[id];
    for (int k = 0; k < in->ntensors; k++) {
        int i = (hint + k) % in->ntensors;
        const struct tensor *y = &in->tensors[i];
        if (!holds_something(y) || y->cls != x->cls || y->layer != x->layer || strcmp(y->label, x->label))
            continue;
        if ((x->owner < 0) != (y->owner < 0)) continue;
        if (x->owner < 0) return i;
        const struct tensor *a = &from->tensors[x->owner], *b = &in->tensors[y->owner];
        if (a->layer == b->layer && !strcmp(a->label, b->label)) return i;
    }
    return -1;
}

static bool stays(const struct move *m, int from, int to)
{
    return m->from.tape->tensors[from].tier == m->to.tape->tensors[to].tier &&
           m->from.layout->offset[from] == m->to.layout->offset[to];
}

static enum plim_status copy_through(struct move *m, int from, int to, struct plim_error *err)
{
    int64_t bytes = tensor_bytes(&m->from.tape->tensors[from]);
    enum plim_status status = PLIM_OK;
    for (int64_t at = 0; at < bytes && status == PLIM_OK; at += PIECE) {
        int64_t n = bytes - at < PIECE ? bytes - at : PIECE;
        status = exec_read(&m->from, from, m->piece, at, n, err);
        if (status == PLIM_OK) status = exec_write(&m->to, to, m->piece, at, n, err);
    }
    m->moved += bytes;
    return status;
}

/* Where each kept tensor goes: -1 when it stays. Both tapes are of the same job, so parameters lie at the same
 * offsets and state has the same order on whatever tier: tensors change their tier or do not move at all. */
static enum plim_status find_moves(const struct move *m, int *to, struct plim_error *err)
{
    const struct tape *old = m->from.tape, *new = m->to.tape;
    char name[160];
    for (int i = 0, hint = 0; i < old->ntensors; i++) {
        to[i] = -1;
        if (!holds_something(&old->tensors[i])) continue;
        int other = counterpart(new, old, i, hint);
        if (other < 0 || (old->tensors[i].tier == new->tensors[other].tier && !stays(m, i, other)))
            return plim_fail(err, PLIM_BUG, "re-plan: %s has no place in the new plan",
                             tape_tensor_name(old, i, name, sizeof name));
        hint = other + 1;
        if (!stays(m, i, other)) to[i] = other;
    }
    return PLIM_OK;
}

/* Nothing that holds something is overwritten: what leaves is copied, what comes in lands where only transients and
 * constants were. So an error half-way leaves the old plan whole. */
static enum plim_status move_kept(struct move *m, struct plim_error *err)
{
    int n = m->from.tape->ntensors, *to = malloc(((size_t)n + 1) * sizeof *to);
    if (!to) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while tensors were moved");
    enum plim_status status = find_moves(m, to, err);
    for (int i = 0; i < n && status == PLIM_OK; i++)
        if (to[i] >= 0) status = copy_through(m, i, to[i], err);
    free(to);
    return status;
}

/* Everything after the new plan is known. The far store must be large enough for both plans. */
static enum plim_status execute(struct trainer *t, struct plan *next, int64_t *moved, struct plim_error *err)
{
    struct device *dev = t->device;
    struct move m = {.t = t, .piece = malloc(PIECE)};
    enum plim_status status =
        m.piece ? PLIM_OK : plim_fail(err, PLIM_NO_MEMORY, "out of memory while tensors were moved");
    if (status == PLIM_OK) status = dev->ops->sync(dev, err); /* the old tape has no user after this */
    bool less = trainer_overhead_of(t, next) < t->reserved_overhead;
    if (status == PLIM_OK && less) status = trainer_take_overhead(t, next, err);
    uint64_t tier_bytes = (uint64_t)next->layout.tier_bytes[TIER_DISK];
    if (status == PLIM_OK && tier_bytes)
        status = t->disk ? disk_reserve(t->disk, tier_bytes, err)
                         : disk_open(t->job->output_dir, tier_bytes, &t->disk, err);
    int64_t host = t->plan.layout.tier_bytes[TIER_HOST], next_host = next->layout.tier_bytes[TIER_HOST];
    if (status == PLIM_OK && next_host > host) status = trainer_commit_host(t, next_host, err);
    if (status == PLIM_OK && next->layout.arena_bytes > t->plan.layout.arena_bytes)
        status = dev->ops->commit(dev, (size_t)next->layout.arena_bytes, err);
    if (status == PLIM_OK) {
        m.from = t->exec;
        status = exec_open(&m.to, dev, &next->tape, &next->layout, t->disk, err);
    }
    if (status == PLIM_OK) status = move_kept(&m, err);
    if (status == PLIM_OK && next->layout.arena_bytes < t->plan.layout.arena_bytes)
        status = dev->ops->commit(dev, (size_t)next->layout.arena_bytes, err);
    if (status == PLIM_OK && next_host < host) status = trainer_commit_host(t, next_host, err);
    if (status == PLIM_OK && !less) status = trainer_take_overhead(t, next, err);
    *moved = m.moved;
    free(m.piece);
    return status;
}

/* The old plan again after a re-plan that failed: arena, lower tiers, constants. */
static enum plim_status stand_by(struct trainer *t, int64_t budget, struct plim_error *err)
{
    ledger_set_budget(t->device->ledger, (uint64_t)budget);
    enum plim_status status = t->device->ops->commit(t->device, (size_t)t->plan.layout.arena_bytes, err);
    if (status == PLIM_OK) status = trainer_take_overhead(t, &t->plan, err);
    if (t->plan.layout.tier_bytes[TIER_DISK] == 0) disk_close(t->disk), t->disk = NULL;
    if (status == PLIM_OK) status = trainer_commit_host(t, t->plan.layout.tier_bytes[TIER_HOST], err);
    return status == PLIM_OK ? trainer_bind(t, false, err) : status;
}

enum plim_status trainer_replan(struct trainer *t, int64_t budget, struct plim_error *err)
{
    struct plan next;
    struct plan_request request = t->request;
    struct train_event event = {.kind = TRAIN_REPLANNED, .step = t->step};
    double start = clock_seconds();
    request.budget = budget;
    enum plim_status status = plan_search(&request, &next, err);
    event.plan_seconds = clock_seconds() - start;
    if (status != PLIM_OK) {
        plan_release(&next);
        return status;
    }
    ledger_set_budget(t->device->ledger, (uint64_t)budget);
    start = clock_seconds();
    status = execute(t, &next, &event.moved_bytes, err);
    event.move_seconds = clock_seconds() - start;
    if (status != PLIM_OK) {
        struct plim_error second = {0};
        plan_release(&next);
        if (stand_by(t, t->request.budget, &second) != PLIM_OK) t->torn = true;
        return status;
    }
    plan_release(&t->plan);
    t->plan = next;
    t->request.budget = budget;
    if (t->plan.total > t->planned_peak) t->planned_peak = t->plan.total;
    if (t->plan.layout.tier_bytes[TIER_DISK] == 0) disk_close(t->disk), t->disk = NULL;
    status = trainer_bind(t, false, err);
    if (status == PLIM_OK) trainer_tell(t, &event);
    return status;
}
