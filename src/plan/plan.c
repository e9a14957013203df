/* plan.c - one set of knobs made into a plan. */
#include "plan/plan.h"
#include "base/bytes.h"
#include "plan/cost.h"

/* Bytes that a tape and its layout have for each tensor. */
#define TENSOR_OWN(l) (sizeof(struct tensor) + sizeof *(l)->offset + sizeof *(l)->life + sizeof *(l)->buffer)

struct knobs knobs_naive(const struct plan_request *request)
{
    return (struct knobs){.micro_batch = request->rows,
                          .accumulation = 1,
                          .recompute = RECOMPUTE_NONE,
                          .full_layers = 0,
                          .loss_chunks = 1,
                          .optimizer_in_backward = 0,
                          .state_tier = TIER_DEVICE,
                          .grad_tier = TIER_DEVICE,
                          .prefetch_ops = PREFETCH_AHEAD};
}

/* Comparing plans takes so many quarters of the largest tape that was built, before there is an arena. */
#define PLANNING_QUARTERS 9

int64_t plan_needs(const struct plan_request *request, int64_t tape)
{
    return request->overhead + request->search_used + (tape * PLANNING_QUARTERS + 3) / 4;
}

int64_t plan_tape_most(const struct plan_request *request)
{
    int64_t room = request->search_line - request->overhead - request->search_used;
    if (request->search_line == 0) return INT64_MAX;
    return room > 0 ? room * 4 / PLANNING_QUARTERS : 0;
}

enum plim_status plan_refuse_search(const struct plan_request *request, int64_t tape, struct plim_error *err)
{
    char need[BYTES_TEXT], have[BYTES_TEXT], missing[BYTES_TEXT];
    int64_t needs = plan_needs(request, tape);
    bytes_format(need, (uint64_t)needs);
    bytes_format(have, (uint64_t)request->search_line);
    bytes_format(missing, (uint64_t)(needs - request->search_line));
    return plim_fail(
        err, PLIM_NO_FIT,
        "does not fit: comparing plans alone takes %s or more, the budget is %s: at least %s missing", need,
        have, missing);
}

bool plan_within(const struct plan_request *request, int64_t total, int64_t host)
{
    bool limited = request->host_budget > 0 && !request->facts->unified_memory;
    return total <= request->budget && (!limited || host <= request->host_budget);
}

struct knobs plan_compute_knobs(const struct knobs *k)
{
    return (struct knobs){.micro_batch = k->micro_batch,
                          .recompute = k->recompute,
                          .full_layers = k->full_layers,
                          .offload_layers = k->full_layers ? k->offload_layers : 0, /* where they begin */
                          .loss_chunks = k->loss_chunks,
                          .optimizer_in_backward = k->optimizer_in_backward,
                          .optimizer_in_forward = k->optimizer_in_forward,
                          .grad_tier = k->grad_tier,
                          .keep_fp8 = k->keep_fp8};
}

static enum plim_status build(const struct plan_request *request, const struct knobs *knobs, struct tape *out,
                              struct plim_error *err)
{
    enum plim_status status = request->compute(request, knobs, TAPE_WHOLE, out, err);
    return status == PLIM_OK ? request->place(request, knobs, out, err) : status;
}

struct plan_own plan_own_bytes(const struct tape *tape, const struct layout *l)
{
    size_t op = sizeof(struct op) + sizeof *l->work_offset + sizeof *l->work_bytes +
                (l->group_end ? sizeof *l->group_end : 0);
    size_t tensor = TENSOR_OWN(l);
    size_t loop = (size_t)tape->loop_end * op + (size_t)l->part_tensors[0] * tensor;
    size_t update = (size_t)(tape->nops - tape->loop_end) * op + (size_t)l->part_tensors[1] * tensor;
    return (struct plan_own){(int64_t)loop, (int64_t)update};
}

/* A shorter row's tape has the loop's ops, and at most as many tensors; a forward tape has less than half of them. */
struct plan_own plan_own_all(const struct plan_request *request, const struct tape *tape,
                             const struct layout *l)
{
    struct plan_own own = plan_own_bytes(tape, l);
    int64_t shorter = request->lengths > 1 ? request->lengths - 1 : 0;
    own.loop += (2 * shorter + request->forward_tape) * own.loop / 2;
    own.update += shorter * l->part_tensors[1] * (int64_t)TENSOR_OWN(l);
    return own;
}

/* Device bytes outside the arena: the context, programs for further lengths and of many forward passes, and what a large recorded step takes.
 * Its loop is recorded for either half of the host's pairs. */
static int64_t device_overhead(const struct plan_request *request, int64_t own, bool pairs)
{
    enum {
        PROGRAMS = 2, /* of a tape: a step's first pass begins sums, the others add to them */
        COVERED = 40  /* programs of forward passes that overhead_bytes has room for */
    };
    int64_t more = request->lengths > 1 ? PROGRAMS * (request->lengths - 1) : 0;
    if (request->programs > COVERED) more += request->programs - COVERED;
    const struct device_facts *facts = request->facts;
    int64_t graph = facts->graph_share * (pairs ? 2 * own : own) - FACTS_GRAPH_ROOM;
    return (int64_t)(facts->overhead_bytes + facts->beyond_bytes) + more * (int64_t)facts->program_bytes +
           (graph > 0 ? graph : 0);
}

static int64_t disk_buffers(const struct plan_request *request, bool on_disk)
{
    return on_disk ? facts_disk_buffers(request->facts) : 0;
}

void plan_lines(const struct plan_request *request, const struct knobs *knobs, int64_t arena, int64_t own,
                int64_t on_host, bool on_disk, struct plan_bound *out)
{
    int64_t device = arena + device_overhead(request, own, knobs->before_norm_share > 0);
    out->host = request->overhead + own + on_host + disk_buffers(request, on_disk), out->own = own;
    out->total = request->facts->unified_memory ? device + out->host : device;
}

void plan_sum(struct plan *plan, const struct plan_request *request, int64_t arena, int64_t own)
{
    struct plan_bound lines;
    bool on_disk = plan->layout.tier_bytes[TIER_DISK] > 0;
    plan_lines(request, &plan->knobs, arena, own, plan->layout.tier_bytes[TIER_HOST], on_disk, &lines);
    plan->budget = request->budget;
    plan->overhead = request->overhead + own + disk_buffers(request, on_disk);
    plan->beside_arena = device_overhead(request, own, plan->knobs.before_norm_share > 0);
    plan->device = arena + plan->beside_arena;
    plan->host = lines.host, plan->total = lines.total;
    plan->disk = plan->layout.tier_bytes[TIER_DISK];
    plan->fits = request->budget == 0 || plan_within(request, plan->total, plan->host);
}

static void fill_totals(struct plan *plan, const struct plan_request *request, int64_t arena)
{
    struct plan_own own = plan_own_all(request, &plan->tape, &plan->layout);
    plan_sum(plan, request, arena, own.loop + own.update);
}

static enum plim_status find_seconds(const struct tape *tape, const struct plan_request *request,
                                     const struct knobs *knobs, double *out, struct plim_error *err)
{
    struct tape_time time = {0};
    enum plim_status status = tape_time_of(tape, request->facts, knobs->accumulation == 1, &time, err);
    *out = (double)knobs->accumulation * time.loop_seconds + time.update_seconds;
    return status;
}

struct layout_options plan_layout_options(const struct plan_request *request, const struct knobs *knobs)
{
    bool several = request->lengths > 1; /* a step may take more passes than the knobs say */
    return (struct layout_options){
        .facts = request->facts, .accumulation = several ? 2 : knobs->accumulation, .carried_below = several};
}

enum plim_status plan_bound_of(const struct plan_request *request, const struct knobs *knobs,
                               struct tape *room, struct plan_bound *out, struct plim_error *err)
{
    struct plan plan = {0};
    struct layout_options options = plan_layout_options(request, knobs);
    if (room) plan.tape = *room;
    enum plim_status status = build(request, knobs, &plan.tape, err);
    if (status == PLIM_OK) status = layout_bound(&plan.tape, &options, &plan.layout, err);
    if (status == PLIM_OK) fill_totals(&plan, request, plan.layout.lower_bound);
    if (status == PLIM_OK) status = find_seconds(&plan.tape, request, knobs, &out->step_seconds, err);
    out->total = plan.total, out->host = plan.host;
    if (room) *room = plan.tape, tape_init(&plan.tape);
    plan_release(&plan);
    return status;
}

/* Packs the tape. Where the greedy passes end above a budget that the lower bound is within, deeper ones look for a packing
 * that is not: a counted number of them, so that plans do not depend on the machine. */
static enum plim_status pack(struct plan *plan, const struct plan_request *request, struct plim_error *err)
{
    enum { DIVES = 300 };
    struct layout_options options = plan_layout_options(request, &plan->knobs);
    enum plim_status status = layout_make(&plan->tape, &options, &plan->layout, err);
    if (status != PLIM_OK) return status;
    fill_totals(plan, request, plan->layout.arena_bytes);
    if (plan->fits) return status;
    int64_t above = plan->total - request->budget;
    if (above > plan->layout.arena_bytes - plan->layout.lower_bound) return status;
    options.capacity = plan->layout.arena_bytes - above, options.dives = DIVES;
    layout_release(&plan->layout);
    status = layout_make(&plan->tape, &options, &plan->layout, err);
    if (status == PLIM_OK) fill_totals(plan, request, plan->layout.arena_bytes);
    return status;
}

enum plim_status plan_make(const struct plan_request *request, const struct knobs *knobs, struct plan *out,
                           struct plim_error *err)
{
    *out = (struct plan){.knobs = *knobs};
    enum plim_status status = build(request, knobs, &out->tape, err);
    if (status == PLIM_OK) status = tape_verify(&out->tape, err);
    if (status == PLIM_OK) tape_trim(&out->tape);
    if (status == PLIM_OK) status = pack(out, request, err);
    if (status == PLIM_OK) status = layout_verify(&out->tape, &out->layout, err);
    if (status == PLIM_OK) status = find_seconds(&out->tape, request, knobs, &out->step_seconds, err);
    if (status != PLIM_OK) plan_release(out);
    return status;
}

void plan_release(struct plan *plan)
{
    tape_release(&plan->tape);
    layout_release(&plan->layout);
    *plan = (struct plan){0};
}
