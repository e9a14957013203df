/* replan.c - another budget between two optimizer steps. See runtime.h.
 *
 * Parameters lie at the bottom of the arena in every plan of a job and stay where they are; state that changes its
 * tier is written out or read back, constants are written again, everything above is dead. Pages above the new plan
 * go back to the system at once. Whatever fails, the old plan stands again.
 *
 *     reduce     of the old plan only kept tensors and their places are left, of its arena only their bytes (with hold: as
 *                many as the new plan may take); a disk store rests
 *     search     in the memory that this makes free, where the arena is the process's own; it has no more (plan.h, search_line)
 *     take       bytes of tiers that grow, and of the arena what the new plan keeps; the disk store's buffers, small ones where it will
 *                close
 *     move       tensors that change their tier
 *     settle     the rest of the old plan goes, with the memory of a disk store that is not needed any more, then the arena becomes
 *                the new plan's, then tiers shrink
 *
 * So the larger of the two budgets is never exceeded. A plan follows from its request and knobs: after an error before the
 * end of settle, the old one is made again (stand_by).
 */
#include "base/clock.h"
#include "exec/disk.h"
#include "mem/os.h"
#include "plan/space.h"
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

/* Finds the kept tensor with equal class, layer, label and owner in the other tape. */
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
        status = exec_read_own(m->from, from, m->piece, at, n, err);
        if (status == PLIM_OK) status = exec_write_own(m->to, to, m->piece, at, n, err);
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

/* --- the old plan ------------------------------------------------------------------------------------------- */

/* Frees tape and layout. The numbers stay: stand_by and runtime_planned ask for them. */
static void drop_tape(struct plan *plan)
{
    struct layout numbers = plan->layout;
    tape_release(&plan->tape);
    layout_release(&plan->layout);
    numbers.offset = numbers.work_offset = numbers.work_bytes = NULL;
    numbers.life = NULL, numbers.buffer = numbers.group_end = NULL;
    numbers.ntensors = numbers.nops = 0;
    plan->layout = numbers;
}

/* Leaves of the tape the tensors that hold something, and of the layout their offsets. */
static enum plim_status reduce_tape(struct plan *plan, struct plim_error *err)
{
    struct tape *tape = &plan->tape, kept;
    int n = 0, *place = malloc(((size_t)tape->ntensors + 1) * sizeof *place);
    int64_t *offset = malloc(((size_t)tape->ntensors + 1) * sizeof *offset);
    bool good = place && offset;
    tape_init(&kept);
    for (int i = 0; i < tape->ntensors && good; i++) {
        place[i] = -1;
        if (!holds_something(&tape->tensors[i])) continue;
        offset[n] = plan->layout.offset[i];
        place[i] = n++;
        good = tape_tensor(&kept, &tape->tensors[i]) >= 0;
    }
    for (int i = 0; i < n && good; i++)
        if (kept.tensors[i].owner >= 0) kept.tensors[i].owner = place[kept.tensors[i].owner];
    free(place);
    if (!good) {
        tape_release(&kept), free(offset);
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory while a budget was changed");
    }
    drop_tape(plan);
    tape_trim(&kept);
    plan->tape = kept;
    plan->layout.offset = offset, plan->layout.ntensors = n;
    return PLIM_OK;
}

/* Memory in use besides the overhead while plans are compared: the remains of the old plan. If the process is smaller
 * than that sum, buffers that only steps and checkpoints use are not resident. */
static int64_t count_search_used(const struct runtime *rt)
{
    int64_t tape = (int64_t)((size_t)rt->plan.tape.ntensors * (sizeof(struct tensor) + sizeof(int64_t)));
    if (!rt->device->facts.unified_memory) return tape;
    int64_t planned = tape + runtime_taken(rt, TIER_DEVICE);
    int64_t counted = (int64_t)os_process_counted(), resident = counted - rt->request.overhead;
    return counted && resident < planned ? resident : planned;
}

/* Bytes of the arena that stay until the next plan is known. */
static int64_t stays_taken(const struct runtime *rt, const struct replan *wish)
{
    const struct plan *plan = &rt->plan;
    int64_t kept = plan->layout.kept_bytes, taken = runtime_taken(rt, TIER_DEVICE);
    if (!wish->hold) return kept;
    int64_t most = wish->micro_batch ? taken : wish->budget - (plan->total - plan->layout.arena_bytes);
    return most > taken ? taken : most < kept ? kept : most;
}

static enum plim_status reduce(struct runtime *rt, const struct replan *wish, struct plim_error *err)
{
    struct device *device = rt->device;
    int64_t stay = stays_taken(rt, wish);
    enum plim_status status = device->ops->sync(device, err); /* the tape has no user after this */
    if (status != PLIM_OK) return status;
    exec_close(&rt->exec); /* programs go before the memory they were compiled for */
    status = disk_rest(rt->disk, err);
    if (status == PLIM_OK) status = reduce_tape(&rt->plan, err);
    if (status != PLIM_OK || !device->facts.unified_memory) return status;
    if (stay >= runtime_taken(rt, TIER_DEVICE)) return PLIM_OK;
    return device->ops->commit(device, (size_t)stay, err);
}

/* Remakes the previous plan from its request and knobs. */
static enum plim_status make_again(struct runtime *rt, struct plim_error *err)
{
    struct plan again, *plan = &rt->plan;
    struct plan_request request = rt->request;
    if (rt->reserve_used) request.overhead -= rt->reserve;
    request.search_line = 0; /* nothing is compared */
    drop_tape(plan);
    enum plim_status status = plan_make(&request, &plan->knobs, &again, err);
    if (status != PLIM_OK) return status;
    bool same = again.layout.arena_bytes == plan->layout.arena_bytes &&
                again.layout.kept_bytes == plan->layout.kept_bytes;
    if (!same) {
        plan_release(&again);
        return plim_fail(err, PLIM_BUG, "re-plan: the old plan could not be reproduced");
    }
    plan->tape = again.tape, plan->layout = again.layout;
    return PLIM_OK;
}

/* With the plan's buffers; or with small ones, to bring back what is on disk before the store closes. */
static enum plim_status wake_disk(struct runtime *rt, bool stays, struct plim_error *err)
{
    const struct device_facts *facts = &rt->device->facts;
    return stays ? disk_wake(rt->disk, facts->disk_depth, facts->disk_piece, err)
                 : disk_wake(rt->disk, DISK_DEPTH, DISK_PIECE, err);
}

/* The old plan again after a re-plan that failed: tape, memory, programs, constants. */
static enum plim_status stand_by(struct runtime *rt, struct plim_error *err)
{
    runtime_set_lines(rt, rt->request.budget);
    exec_close(&rt->exec);
    enum plim_status status = make_again(rt, err);
    if (status == PLIM_OK) status = wake_disk(rt, true, err);
    if (status == PLIM_OK) status = runtime_take(rt, &rt->plan, rt->plan.layout.arena_bytes, err);
    if (status == PLIM_OK) status = runtime_give(rt, &rt->plan, rt->plan.layout.arena_bytes, err);
    return status == PLIM_OK ? runtime_start(rt, false, err) : status;
}

/* --- the new plan ------------------------------------------------------------------------------------------- */

static enum plim_status search(struct runtime *rt, const struct plan_request *request, struct plan *next,
                               bool *reserve_used, struct plim_error *err)
{
    for (;;) {
        enum plim_status status = plan_search(request, next, err);
        *reserve_used = status == PLIM_NO_FIT && runtime_search_again(rt->reserve, request, next);
        if (*reserve_used) return PLIM_OK;
        if (status != PLIM_NO_FIT || !facts_shrink_disk(&rt->device->facts)) return status;
        plan_release(next);
    }
}

/* The present plan in micro-batches of another size: nothing is compared. */
static enum plim_status recut(const struct runtime *rt, const struct plan_request *request,
                              int64_t micro_batch, struct plan *next, bool *reserve_used,
                              struct plim_error *err)
{
    struct plan_request exact = *request;
    struct knobs knobs = rt->plan.knobs;
    int64_t finest = space_finest_cut(request, micro_batch);
    *reserve_used = rt->reserve_used;
    if (rt->reserve_used) exact.overhead -= rt->reserve;
    exact.search_line = 0;
    knobs.micro_batch = micro_batch, knobs.accumulation = request->rows / micro_batch;
    if (knobs.accumulation > 1) /* gradients wait for other micro-batches */
        knobs.optimizer_in_backward = knobs.before_norm_share = 0;
    if (knobs.loss_chunks > finest) knobs.loss_chunks = finest;
    enum plim_status status = plan_make(&exact, &knobs, next, err);
    bool useless = micro_batch < rt->plan.knobs.micro_batch && next->total >= rt->plan.total;
    if (status != PLIM_OK || (plan_within(&exact, next->total, next->host) && !useless)) return status;
    return plim_fail(err, PLIM_NO_FIT, "micro-batches of %lld rows %s", (long long)micro_batch,
                     useless ? "take no less memory" : "do not fit");
}

/* Ranks plan from the same numbers: what one of them has beside its plan, the largest counts. Tensors stay cut as they are. */
static enum plim_status share_request(const struct runtime *rt, struct plan_request *request,
                                      struct plim_error *err)
{
    struct comm *comm = rt->device->comm;
    if (!comm) return PLIM_OK;
    int64_t *all = calloc((size_t)comm_ranks(comm), sizeof *all), mine = request->search_used;
    if (!all) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while ranks planned");
    enum plim_status status =
        comm_gather(comm, &mine, sizeof mine, all, (size_t)comm_ranks(comm) * sizeof mine, err);
    for (int r = 0; r < comm_ranks(comm) && status == PLIM_OK; r++)
        if (all[r] > request->search_used) request->search_used = all[r];
    request->pins.zero = rt->plan.knobs.zero;
    free(all);
    return status;
}

/* Less than a twentieth of the bytes for more than a tenth of the time. */
static bool is_worth_it(const struct plan *old, const struct plan *next)
{
    return next->total <= old->total - old->total / 20 || next->step_seconds <= 1.1 * old->step_seconds;
}

static bool uses_disk(const struct plan *plan) { return plan->layout.tier_bytes[TIER_DISK] > 0; }

/* Bytes above the larger line while tensors come back from a disk store that closes afterwards: what the new plan keeps is there, and
 * so are the store's buffers. */
static int64_t above_while_moving(const struct runtime *rt, const struct plan *next, int64_t budget)
{
    const struct device_facts *facts = &rt->device->facts;
    int64_t line = budget > rt->request.budget ? budget : rt->request.budget;
    int64_t transients = next->layout.arena_bytes - next->layout.kept_bytes;
    if (!facts->unified_memory || !rt->disk || uses_disk(next)) return 0;
    return next->total - transients + DISK_DEPTH * DISK_PIECE + PIECE - line;
}

/* The fastest plan that is also within the line while tensors move; where there is none, the present one. */
static enum plim_status search_and_move(struct runtime *rt, struct plan_request *request, struct plan *next,
                                        bool *reserve_used, struct plim_error *err)
{
    enum plim_status status = search(rt, request, next, reserve_used, err);
    int64_t above = status == PLIM_OK ? above_while_moving(rt, next, request->budget) : 0;
    if (above <= 0) return status;
    int64_t line = request->budget;
    plan_release(next);
    request->budget -= above;
    status = search(rt, request, next, reserve_used, err);
    request->budget = line;
    if (status != PLIM_NO_FIT || rt->plan.total > line) return status;
    plan_release(next);
    if (err) *err = (struct plim_error){0};
    return recut(rt, request, rt->plan.knobs.micro_batch, next, reserve_used, err); /* the present one */
}

/* The next plan; request->budget is its line. */
static enum plim_status choose(struct runtime *rt, const struct replan *wish, struct plan_request *request,
                               struct plan *next, bool *reserve_used, struct plim_error *err)
{
    if (wish->micro_batch) return recut(rt, request, wish->micro_batch, next, reserve_used, err);
    enum plim_status status = search_and_move(rt, request, next, reserve_used, err);
    bool smallest =
        status == PLIM_NO_FIT && wish->or_smallest && next->tape.nops && next->total < rt->plan.total;
    if (smallest) request->budget = next->total;
    if (status != PLIM_OK && !smallest) return status;
    if (wish->worthwhile && !is_worth_it(&rt->plan, next))
        return plim_fail(err, PLIM_NO_FIT,
                         "a smaller plan would free too little memory for the time it costs");
    return PLIM_OK;
}

/* Kept tensors into their places of the new plan, whose arena has what it keeps and not more. */
static enum plim_status move(struct runtime *rt, struct plan *next, int64_t *moved, struct plim_error *err)
{
    struct exec to = {0};
    struct move m = {.from = &rt->exec, .to = &to, .piece = malloc(PIECE)};
    enum plim_status status =
        m.piece ? PLIM_OK : plim_fail(err, PLIM_NO_MEMORY, "out of memory while tensors were moved");
    if (status == PLIM_OK) status = wake_disk(rt, uses_disk(next), err);
    if (status == PLIM_OK) status = runtime_take(rt, next, next->layout.kept_bytes, err);
    if (status == PLIM_OK)
        status = exec_open(&rt->exec, rt->device, &rt->plan.tape, &rt->plan.layout, rt->disk, err);
    if (status == PLIM_OK) status = exec_open(&to, rt->device, &next->tape, &next->layout, rt->disk, err);
    if (status == PLIM_OK) status = move_kept(&m, err);
    *moved = m.moved;
    free(m.piece);
    return status;
}

static enum plim_status settle(struct runtime *rt, struct plan *next, struct plim_error *err)
{
    exec_close(&rt->exec);
    drop_tape(&rt->plan);
    enum plim_status status = uses_disk(next) ? PLIM_OK : disk_rest(rt->disk, err);
    if (status == PLIM_OK) status = runtime_take(rt, next, next->layout.arena_bytes, err);
    return status == PLIM_OK ? runtime_give(rt, next, next->layout.arena_bytes, err) : status;
}

enum plim_status runtime_replan_as(struct runtime *rt, const struct replan *wish, struct runtime_moves *out,
                                   struct plim_error *err)
{
    struct plan next = {0};
    struct plan_request request = rt->request;
    bool reserve_used = false;
    double start = clock_seconds();
    int64_t larger = wish->budget > rt->request.budget ? wish->budget : rt->request.budget;
    *out = (struct runtime_moves){0};
    request.budget = wish->budget;
    if (!rt->device->facts.unified_memory) /* else what is on the host would change its place there */
        request.pins.disk_share = rt->plan.knobs.disk_share;
    request.search_line = wish->hold ? 0 : runtime_search_line(rt, larger);
    enum plim_status status = reduce(rt, wish, err);
    request.search_used = count_search_used(rt);
    status = comm_agree(rt->device->comm, status, err);
    if (status == PLIM_OK) status = share_request(rt, &request, err);
    if (status == PLIM_OK)
        status = comm_agree(rt->device->comm, choose(rt, wish, &request, &next, &reserve_used, err), err);
    if (status == PLIM_OK) status = runtime_same_plan(rt, &next, err);
    out->plan_seconds = clock_seconds() - start;
    start = clock_seconds();
    if (status == PLIM_OK) {
        runtime_set_lines(rt, request.budget);
        status = move(rt, &next, &out->moved_bytes, err);
        if (status == PLIM_OK) status = settle(rt, &next, err);
    }
    out->move_seconds = clock_seconds() - start;
    if (status != PLIM_OK) {
        struct plim_error second = {0};
        /* If the arena has already shrunk, the tensors that left it exist only at the new plan's addresses. */
        bool lost = runtime_taken(rt, TIER_DEVICE) < rt->plan.layout.kept_bytes && out->moved_bytes;
        plan_release(&next);
        rt->torn = stand_by(rt, &second) != PLIM_OK || lost;
        return status;
    }
    plan_release(&rt->plan);
    rt->plan = next;
    rt->request.budget = request.budget, rt->reserve_used = reserve_used;
    status = runtime_start(rt, false, err);
    return status == PLIM_OK ? runtime_check(rt, err) : status;
}

enum plim_status runtime_replan(struct runtime *rt, int64_t budget, struct runtime_moves *out,
                                struct plim_error *err)
{
    return runtime_replan_as(rt, &(struct replan){.budget = budget}, out, err);
}
