/* replan.c - another budget between two optimizer steps. See runtime.h.
 *
 * Parameters lie at the bottom of the arena in every plan of a job and stay where they are; state that changes its
 * tier is written out or read back, constants are written again, everything above is dead. Pages above the new plan
 * go back to the system at once. Whatever fails, the old plan still stands.
 *
 *     grow: commit first, then move in        shrink: move out, then give pages back
 *
 * The search needs memory, too. Between two steps nothing above what is kept holds anything: where the arena is the
 * process's own memory, that part of it is given back while plans are compared.
 */
#include "base/clock.h"
#include "runtime/runtime_part.h"

#include <stdlib.h>
#include <string.h>

#define PIECE (1 << 18) /* beside two plans there is not room for much */

struct move {
    const struct exec *from, *to;
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
    return m->from->tape->tensors[from].tier == m->to->tape->tensors[to].tier &&
           m->from->layout->offset[from] == m->to->layout->offset[to];
}

static enum plim_status copy_through(struct move *m, int from, int to, struct plim_error *err)
{
    int64_t bytes = tensor_bytes(&m->from->tape->tensors[from]);
    enum plim_status status = PLIM_OK;
    for (int64_t at = 0; at < bytes && status == PLIM_OK; at += PIECE) {
        int64_t n = bytes - at < PIECE ? bytes - at : PIECE;
        status = exec_read(m->from, from, m->piece, at, n, err);
        if (status == PLIM_OK) status = exec_write(m->to, to, m->piece, at, n, err);
    }
    m->moved += bytes;
    return status;
}

/* Where each kept tensor goes: -1 when it stays. Both tapes are of the same job, so parameters lie at the same
 * offsets and state has the same order on whatever tier: tensors change their tier or do not move at all. */
static enum plim_status find_moves(const struct move *m, int *to, struct plim_error *err)
{
    const struct tape *old = m->from->tape, *new = m->to->tape;
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
    int n = m->from->tape->ntensors, *to = malloc(((size_t)n + 1) * sizeof *to);
    if (!to) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while tensors were moved");
    enum plim_status status = find_moves(m, to, err);
    for (int i = 0; i < n && status == PLIM_OK; i++)
        if (to[i] >= 0) status = copy_through(m, i, to[i], err);
    free(to);
    return status;
}

/* Everything after the new plan is known. Between take and give there is memory for both plans. */
static enum plim_status execute(struct runtime *rt, struct plan *next, int64_t *moved, struct plim_error *err)
{
    struct device *device = rt->device;
    struct exec to = {0};
    struct move m = {.from = &rt->exec, .to = &to, .piece = malloc(PIECE)};
    enum plim_status status =
        m.piece ? PLIM_OK : plim_fail(err, PLIM_NO_MEMORY, "out of memory while tensors were moved");
    if (status == PLIM_OK) status = device->ops->sync(device, err); /* the old tape has no user after this */
    if (status == PLIM_OK) status = runtime_take(rt, next, next->layout.arena_bytes, err);
    rt->exec.disk = rt->disk;
    if (status == PLIM_OK) status = exec_open(&to, device, &next->tape, &next->layout, rt->disk, err);
    if (status == PLIM_OK) status = move_kept(&m, err);
    if (status == PLIM_OK) exec_close(&rt->exec); /* no program of the old plan may outlive its memory */
    if (status == PLIM_OK) status = runtime_give(rt, next, next->layout.arena_bytes, err);
    *moved = m.moved;
    free(m.piece);
    return status;
}

/* The old plan again after a re-plan that failed: memory, programs, constants. */
static enum plim_status stand_by(struct runtime *rt, struct plim_error *err)
{
    runtime_set_lines(rt, rt->request.budget);
    exec_close(&rt->exec);
    enum plim_status status = runtime_take(rt, &rt->plan, rt->plan.layout.arena_bytes, err);
    if (status == PLIM_OK) status = runtime_give(rt, &rt->plan, rt->plan.layout.arena_bytes, err);
    return status == PLIM_OK ? runtime_start(rt, false, err) : status;
}

static enum plim_status search(struct runtime *rt, const struct plan_request *request, struct plan *next,
                               struct plim_error *err)
{
    enum plim_status status = plan_search(request, next, err);
    return status == PLIM_NO_FIT && runtime_search_again(rt, request, next) ? PLIM_OK : status;
}

/* The same, with the pages of transients for its own memory. They come back with the next plan, or here where there is
 * none. */
static enum plim_status search_in_their_place(struct runtime *rt, const struct plan_request *request,
                                              struct plan *next, struct plim_error *err)
{
    struct device *device = rt->device;
    int64_t arena = runtime_taken(rt, TIER_DEVICE), kept = rt->plan.layout.kept_bytes;
    *next = (struct plan){0};
    if (!request->facts->unified_memory || kept >= arena) return search(rt, request, next, err);
    enum plim_status status = device->ops->sync(device, err);
    if (status == PLIM_OK) status = device->ops->commit(device, (size_t)kept, err);
    if (status != PLIM_OK) return status;
    status = search(rt, request, next, err);
    if (status != PLIM_OK) rt->torn = device->ops->commit(device, (size_t)arena, NULL) != PLIM_OK;
    return status;
}

enum plim_status runtime_replan(struct runtime *rt, int64_t budget, struct runtime_moves *out,
                                struct plim_error *err)
{
    struct plan next;
    struct plan_request request = rt->request;
    double start = clock_seconds();
    *out = (struct runtime_moves){0};
    request.budget = budget;
    enum plim_status status = search_in_their_place(rt, &request, &next, err);
    out->plan_seconds = clock_seconds() - start;
    if (status != PLIM_OK) {
        plan_release(&next);
        return status;
    }
    runtime_set_lines(rt, budget);
    start = clock_seconds();
    status = execute(rt, &next, &out->moved_bytes, err);
    out->move_seconds = clock_seconds() - start;
    if (status != PLIM_OK) {
        struct plim_error second = {0};
        /* What had left an arena that is smaller already is only in the new plan's places. */
        bool lost = runtime_taken(rt, TIER_DEVICE) < rt->plan.layout.kept_bytes && out->moved_bytes;
        rt->torn = stand_by(rt, &second) != PLIM_OK || lost;
        plan_release(&next);
        return status;
    }
    plan_release(&rt->plan);
    rt->plan = next;
    rt->request.budget = budget;
    status = runtime_start(rt, false, err);
    return status == PLIM_OK ? runtime_check(rt, err) : status;
}
