/* runtime.c - planning, starting, closing, checking. See runtime.h. */
#include "runtime/runtime.h"
#include "exec/disk_speed.h"
#include "mem/os.h"
#include "runtime/feed.h"
#include "runtime/initial_weights.h"
#include "runtime/lengths.h"
#include "runtime/load.h"
#include "runtime/runtime_part.h"

#include <stdlib.h>
#include <string.h>

/* Memory that a run needs besides its team's stacks: the loader's stack, bounce buffers for loading and saving,
 * libc's buffers, the threads of monitor and control socket with their heaps, and a client's buffers. Measured on
 * aarch64 with tests/fault/truth.py and tools/soak. */
#define RUN_ALLOWANCE (1024 << 10)

/* Memory that an engine needs: bounce buffers for loading, libc's buffers, the thread of the control socket. Measured
 * with tests/fault/serve_random.py. */
#define ENGINE_ALLOWANCE (256 << 10)

/* Heap and stack of a process that has read its job and opened a CPU: 160 to 240 KiB. */
#define START_BYTES (320 << 10)

/* For a process that is larger, steps of the stated size and the least reserve: of 400 starts one in twenty was up to 100 KiB
 * smaller than the others. Beside a card the process is a hundred times larger and varies more. */
#define GRAIN   (128 << 10)
#define RESERVE GRAIN
#define LARGE   (64 << 20)

static struct overhead overhead_with(const struct context *context, int64_t allowance, int threads,
                                     const struct comm *comm)
{
    if (!context || !context->process) /* somebody else's process: its size is not ours to count */
        return (struct overhead){(context ? context->overhead : 0) + allowance + threads_bytes(threads), 0};
    int64_t code = comm ? comm->program_bytes : (int64_t)os_code_bytes();
    int64_t usual =
        code + START_BYTES + allowance + threads_bytes(threads) + (comm ? comm->library_bytes : 0);
    os_touch_code();
    int64_t least = (int64_t)os_process_counted() + allowance;
    if (least <= usual) return (struct overhead){usual, 0};
    int64_t reserve = least > LARGE ? least / 64 : RESERVE;
    int64_t stated = (least + reserve + GRAIN - 1) / GRAIN * GRAIN;
    return (struct overhead){stated, stated - least};
}

struct overhead runtime_overhead(const struct context *context, int threads, const struct comm *comm)
{
    return overhead_with(context, RUN_ALLOWANCE, threads, comm);
}

struct overhead runtime_engine_overhead(const struct context *context, int threads)
{
    return overhead_with(context, ENGINE_ALLOWANCE, threads, NULL);
}

/* Programs of several row lengths: the plan's own, one for each step of the ladder, and half as many for an evaluation, which
 * only goes forward. */
static int count_lengths(const struct job *job, int64_t time)
{
    int64_t ladder[LENGTHS_LADDER];
    int programs = 1 + lengths_ladder(time, ladder);
    return programs + (job->validation.count ? (programs + 1) / 2 : 0);
}

enum plim_status runtime_request(const struct job *job, const struct device_facts *facts, int64_t overhead,
                                 struct plan_request *out, struct plim_error *err)
{
    const struct objective_row *objective = objective_row(job_objective(job));
    job_request(job, facts, overhead, out);
    if (out->lengths > 1) out->lengths = count_lengths(job, out->time);
    struct rows rows = {.count = out->rows * objective->rows,
                        .time = out->time,
                        .source_time = job->data.max_source_length ? job->data.max_source_length : out->time};
    int64_t feeds = out->lengths > 1 ? out->lengths : 1;
    out->overhead += feeds * feed_bytes(facts, &rows, objective->feeds, job_pair_time(job, out->time)) +
                     (int64_t)facts->host_late_bytes;
    return job_check_budget(job, out, err);
}

bool runtime_search_again(int64_t reserve, const struct plan_request *request, struct plan *plan)
{
    struct plan_request exact = *request;
    struct plan tight;
    exact.overhead -= reserve;
    if (!reserve) return false;
    bool found = plan_search(&exact, &tight, NULL) == PLIM_OK;
    if (found) plan_release(plan), *plan = tight;
    if (!found) plan_release(&tight);
    return found;
}

enum plim_status runtime_measure(struct device_facts *facts, const struct tape *tape,
                                 const struct layout *layout, int64_t arena, bool *again,
                                 struct plim_error *err)
{
    int64_t more = 0;
    enum plim_status status =
        facts->measure ? facts->measure(facts, tape, layout, arena, &more, err) : PLIM_OK;
    *again = status == PLIM_OK && more > (int64_t)facts->beyond_bytes;
    if (*again) facts->beyond_bytes = (size_t)more;
    return status;
}

static enum plim_status find_plan(const struct job *job, struct loader_sizes *loader,
                                  struct device_facts *facts, int64_t reserve, struct plan_request *request,
                                  struct plan *out, bool *reserve_used, struct plim_error *err)
{
    struct plan_request first = *request;
    int chosen = loader->chosen;
    for (;;) {
        enum plim_status status = job_plan(job, loader, request, out, err);
        *reserve_used = status == PLIM_NO_FIT && runtime_search_again(reserve, request, out);
        if (*reserve_used && err) *err = (struct plim_error){0};
        if (*reserve_used) return PLIM_OK;
        if (status != PLIM_NO_FIT || !facts_shrink_disk(facts)) return status;
        plan_release(out);
        loader->chosen = chosen, *request = first;
        if (err) *err = (struct plim_error){0};
    }
}

enum plim_status runtime_find_plan(const struct job *job, struct loader_sizes *loader,
                                   struct device_facts *facts, int64_t reserve, struct plan_request *request,
                                   struct plan *out, bool *reserve_used, struct plim_error *err)
{
    int chosen = loader->chosen;
    struct plan_request first = *request;
    facts->beyond_bytes = 0;
    for (bool again = true;;) {
        enum plim_status status = find_plan(job, loader, facts, reserve, request, out, reserve_used, err);
        if (status == PLIM_OK)
            status = runtime_measure(facts, &out->tape, &out->layout, out->layout.arena_bytes, &again, err);
        if (status != PLIM_OK || !again) return status;
        plan_release(out);
        loader->chosen = chosen, *request = first;
    }
}

int64_t runtime_search_line(const struct runtime *rt, int64_t budget)
{
    return rt->device->facts.unified_memory ? budget
                                            : 0; /* else the host tier is taken after plans were compared */
}

/* Values that may differ between ranks but must be equal in the plan. */
struct shared_line {
    int64_t budget, host_budget, overhead, reserve;
};

/* Ranks plan from the same numbers and so make the same plan: rates are rank 0's, the smallest line counts and the largest
 * process. */
static enum plim_status share_facts(struct device *device, struct plim_error *err)
{
    struct device_facts mine = device->facts, *facts = &device->facts;
    enum plim_status status = comm_broadcast(device->comm, facts, sizeof *facts, 0, err);
    memcpy(facts->name, mine.name, sizeof facts->name);
    facts->rank = mine.rank, facts->free_bytes = mine.free_bytes;
    facts->workspace = mine.workspace, facts->backend = mine.backend;
    return status;
}

static enum plim_status share_line(struct runtime *rt, struct plim_error *err)
{
    struct plan_request *r = &rt->request;
    struct comm *comm = rt->device->comm;
    struct shared_line mine = {r->budget, r->host_budget, r->overhead, rt->reserve};
    struct shared_line *all = calloc((size_t)comm_ranks(comm), sizeof *all);
    if (!all) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while ranks planned");
    enum plim_status status =
        comm_gather(comm, &mine, sizeof mine, all, (size_t)comm_ranks(comm) * sizeof mine, err);
    for (int i = 0; i < comm_ranks(comm) && status == PLIM_OK; i++) {
        if (all[i].budget < r->budget) r->budget = all[i].budget;
        int64_t host = all[i].host_budget; /* 0: no line */
        if (host && (!r->host_budget || host < r->host_budget)) r->host_budget = host;
        if (all[i].overhead > r->overhead) r->overhead = all[i].overhead;
        if (all[i].reserve < rt->reserve) rt->reserve = all[i].reserve;
    }
    free(all);
    return status;
}

enum plim_status runtime_same_plan(const struct runtime *rt, const struct plan *plan, struct plim_error *err)
{
    struct comm *comm = rt->device->comm;
    enum plim_status status = comm_same(comm, &plan->knobs, sizeof plan->knobs, "the plan", err);
    size_t bytes = (size_t)plan->layout.ntensors * sizeof *plan->layout.offset;
    return status == PLIM_OK ? comm_same(comm, plan->layout.offset, bytes, "the layout", err) : status;
}

bool runtime_recall_disk(const struct context *context, const struct job *job, struct device_facts *facts)
{
    struct disk_speed speed;
    bool known = disk_speed_recall(context, job_disk_dir(job), &speed);
    disk_speed_apply(&speed, facts);
    return known;
}

enum plim_status runtime_ask(struct runtime *rt, struct device *device, const struct job *job,
                             struct overhead overhead, struct plim_error *err)
{
    *rt = (struct runtime){.device = device, .job = job, .spec = job->spec, .reserve = overhead.reserve};
    enum plim_status status = device->comm ? share_facts(device, err) : PLIM_OK;
    if (status == PLIM_OK) status = runtime_request(job, &device->facts, overhead.bytes, &rt->request, err);
    if (device->comm) status = comm_agree(device->comm, status, err);
    if (status == PLIM_OK && device->comm) status = share_line(rt, err);
    rt->request.search_line = runtime_search_line(rt, rt->request.budget);
    return status;
}

enum plim_status runtime_plan(struct runtime *rt, struct device *device, const struct job *job,
                              struct loader_sizes *loader, struct overhead overhead, const struct knobs *pins,
                              struct plim_error *err)
{
    runtime_recall_disk(device->context, job, &device->facts);
    overhead.bytes += loader_sizes_bytes(loader);
    enum plim_status status = runtime_ask(rt, device, job, overhead, err);
    for (int i = 0; pins && i < KNOB_COUNT; i++)
        if (knob_get(pins, i) != KNOB_OPEN) knob_set(&rt->request.pins, i, knob_get(pins, i));
    if (status == PLIM_OK)
        status = runtime_find_plan(job, loader, &device->facts, rt->reserve, &rt->request, &rt->plan,
                                   &rt->reserve_used, err);
    if (status == PLIM_OK) status = runtime_same_plan(rt, &rt->plan, err);
    if (status != PLIM_OK) return status;
    rt->arena = rt->plan.layout.arena_bytes;
    rt->state = RUNTIME_PLANNED;
    return PLIM_OK;
}

enum plim_status runtime_fit_loader(const struct job *job, struct loader_sizes *loader,
                                    const struct device_facts *facts, struct overhead overhead,
                                    int64_t budget, struct plim_error *err)
{
    struct plan_request request;
    struct plan plan = {0};
    struct loader_sizes smaller = *loader;
    struct device_facts least = *facts;
    if (loader->count < 2) return PLIM_OK;
    facts_shrink_disk(&least); /* as a re-plan does, before it refuses */
    overhead.bytes += loader_sizes_bytes(loader);
    enum plim_status status = runtime_request(job, &least, overhead.bytes, &request, err);
    if (status != PLIM_OK) return status;
    request.search_line = facts->unified_memory ? request.budget : 0; /* it begins there */
    request.budget = budget;
    status = job_plan(job, &smaller, &request, &plan, err);
    bool good = status == PLIM_OK || (status == PLIM_NO_FIT && plan.total - budget <= overhead.reserve);
    plan_release(&plan);
    if (good) *loader = smaller;
    return status == PLIM_NO_FIT ? PLIM_OK : status;
}

static void note_peaks(struct runtime *rt)
{
    for (int tier = 0; tier < TIER_COUNT; tier++) {
        int64_t planned = runtime_planned(rt, &rt->plan, (enum tier)tier);
        if (planned > rt->planned_peak[tier]) rt->planned_peak[tier] = planned;
    }
}

enum plim_status runtime_tune(const struct runtime *rt, struct exec *exec, struct plim_error *err)
{
    enum plim_status status = exec_tune(exec, err);
    if (rt->op_by_op || (rt->job && !rt->job->training.cuda_graphs)) exec->compiles = false;
    return status;
}

enum plim_status runtime_start(struct runtime *rt, bool fresh, struct plim_error *err)
{
    enum plim_status status =
        exec_open(&rt->exec, rt->device, &rt->plan.tape, &rt->plan.layout, rt->disk, err);
    if (status == PLIM_OK && fresh) exec_fresh(&rt->exec);
    if (status == PLIM_OK) status = runtime_tune(rt, &rt->exec, err);
    if (status == PLIM_OK && rt->device->facts.whole_programs)
        status = exec_prepare(&rt->exec, rt->plan.knobs.accumulation > 1, err);
    if (status == PLIM_OK) status = weights_write_constants(&rt->exec, &rt->spec, err);
    if (status == PLIM_OK) note_peaks(rt);
    return status;
}

enum plim_status runtime_commit(struct runtime *rt, struct plim_error *err)
{
    runtime_set_lines(rt, rt->request.budget);
    enum plim_status status = runtime_take(rt, &rt->plan, rt->arena, err);
    if (status == PLIM_OK) status = runtime_give(rt, &rt->plan, rt->arena, err);
    if (status == PLIM_OK) status = runtime_start(rt, true, err);
    if (status != PLIM_OK) return status;
    rt->state = RUNTIME_READY;
    return runtime_check(rt, err);
}

enum plim_status runtime_weights(struct runtime *rt, const struct log *log, struct plim_error *err)
{
    const char *path = rt->job->model.path;
    uint64_t seed = (uint64_t)rt->job->training.seed;
    if (!path) return initial_weights(&rt->exec, &rt->spec, seed, err);
    enum plim_status status = initial_head(&rt->exec, &rt->spec, seed, err);
    return status == PLIM_OK ? weights_to_train(&rt->exec, &rt->spec, path, log, err) : status;
}

enum plim_status runtime_adapter(struct runtime *rt, struct plim_error *err)
{
    const struct adapter *adapter = rt->job->adapting;
    const char *from = adapter ? adapter_options(adapter)->path : NULL;
    if (!adapter) return PLIM_OK;
    if (from) return weights_of_adapter(&rt->exec, &rt->spec, adapter, from, err);
    return initial_adapter(&rt->exec, &rt->spec, adapter, (uint64_t)rt->job->training.seed, err);
}

void runtime_close(struct runtime *rt)
{
    if (!rt->device) return;
    exec_close(&rt->exec);
    disk_close(rt->disk);
    rt->disk = NULL;
    rt->device->ops->commit(rt->device, 0, NULL);
    if (rt->device->ops->host_commit) rt->device->ops->host_commit(rt->device, 0, NULL);
    for (int tier = 0; tier < TIER_COUNT; tier++)
        if (rt->overhead[tier])
            ledger_release(rt->device->ledger[tier], DEVICE_LEDGER_OVERHEAD, (uint64_t)rt->overhead[tier]);
    plan_release(&rt->plan);
    *rt = (struct runtime){0};
}

int64_t runtime_ledger_peak(const struct runtime *rt, enum tier tier)
{
    bool shared = tier == TIER_HOST && rt->device->ledger[tier] == rt->device->ledger[TIER_DEVICE];
    return shared ? 0 : (int64_t)ledger_peak(rt->device->ledger[tier]);
}

static enum plim_status check_tier(const struct runtime *rt, enum tier tier, struct plim_error *err)
{
    struct ledger *ledger = rt->device->ledger[tier];
    int64_t planned = runtime_planned(rt, &rt->plan, tier), used = (int64_t)ledger_current(ledger);
    if (tier == TIER_HOST && ledger == rt->device->ledger[TIER_DEVICE]) return PLIM_OK;
    if (used != planned)
        return plim_fail(err, PLIM_BUG, "runtime: the ledger of tier %s has %lld bytes, the plan %lld",
                         tier_name(tier), (long long)used, (long long)planned);
    return ledger_check(ledger, err);
}

enum plim_status runtime_check(const struct runtime *rt, struct plim_error *err)
{
    if (rt->state != RUNTIME_READY || rt->torn) return PLIM_OK;
    enum plim_status status = PLIM_OK;
    for (int tier = 0; tier < TIER_COUNT && status == PLIM_OK; tier++)
        status = check_tier(rt, (enum tier)tier, err);
    if (status != PLIM_OK) return status;
    if (rt->arena < rt->plan.layout.arena_bytes)
        return plim_fail(err, PLIM_BUG, "runtime: the plan is larger than the arena");
    if ((rt->disk != NULL) != (rt->plan.layout.tier_bytes[TIER_DISK] > 0))
        return plim_fail(err, PLIM_BUG, "runtime: a disk store without use, or a use without one");
    if (rt->exec.tape != &rt->plan.tape || rt->exec.layout != &rt->plan.layout || rt->exec.disk != rt->disk)
        return plim_fail(err, PLIM_BUG, "runtime: programs of another plan");
    return PLIM_OK;
}
