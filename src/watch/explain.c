/* explain.c - see explain.h. */
#include "watch/explain.h"

#include "mem/os.h"
#include <stdio.h>
#include <string.h>

/* A fragmented arena has this part of it without a use even at the peak. */
#define FRAGMENTED 0.3

/* Scratch or scores of attention count as the reason from this part of the arena on. */
#define MUCH 0.25

/* --- causes -------------------------------------------------------------------------------------------------------- */

static bool has_plan(const struct plan *plan) { return plan && plan->tape.nops > 0 && plan->layout.life; }

static bool is_evaluation(const struct explanation *why) { return why->refusal.stage == STAGE_EVALUATION; }

static bool is_leak(const struct explanation *why)
{
    const struct refusal *r = &why->refusal;
    if (r->leak && r->leak->found) return true;
    if (!has_plan(r->plan) || r->plan->layout.arena_bytes <= 0) return false;
    double unused = (double)(r->plan->layout.arena_bytes - r->plan->layout.lower_bound);
    return unused > FRAGMENTED * (double)r->plan->layout.arena_bytes;
}

/* There would be room without them. */
static bool is_others(const struct explanation *why)
{
    const struct refusal *r = &why->refusal;
    bool from_machine = r->status == PLIM_NO_MEMORY || !r->budget_given;
    return from_machine && why->total > 0 && why->needed <= why->total && why->needed > why->available;
}

/* Twice T among the dimensions of a tensor, or an attention whose scratch is a good part of everything. */
static bool is_attention(const struct explanation *why)
{
    const struct plan *plan = why->refusal.plan;
    if (!has_plan(plan)) return false;
    int64_t arena = plan->layout.arena_bytes, time = why->refusal.request->time;
    const struct op *op = &plan->tape.ops[plan->layout.peak_op];
    bool attends = op->kind == OP_ATTN || op->kind == OP_ATTN_BWD;
    if (attends && plan->layout.work_bytes &&
        (double)plan->layout.work_bytes[plan->layout.peak_op] >= MUCH * (double)arena)
        return true;
    int id = peak_tensor(&plan->tape, &plan->layout), times = 0;
    for (int k = 0; id >= 0 && k < plan->tape.tensors[id].ndim; k++)
        times += plan->tape.tensors[id].dim[k] == time;
    return times >= 2 && (double)why->peak.bytes >= MUCH * (double)arena;
}

static bool is_model(const struct explanation *) { return true; }

static const struct {
    const char *name;
    bool (*holds)(const struct explanation *why);
} causes[CAUSES] = {
    [CAUSE_EVALUATION] = {"evaluation batch", is_evaluation},
    [CAUSE_LEAK] = {"leak or fragmentation", is_leak},
    [CAUSE_OTHERS] = {"other process", is_others},
    [CAUSE_ATTENTION] = {"attention", is_attention},
    [CAUSE_MODEL] = {"model too large", is_model},
};
const char *refusal_cause_name(enum refusal_cause cause) { return causes[cause].name; }

static const char *const stages[STAGES] = {"planning", "committing", "re-planning", "step", "evaluation"};
const char *refusal_stage_name(enum refusal_stage stage) { return stages[stage]; }

/* --- remedies ------------------------------------------------------------------------------------------------------ */

static void offer_budget(struct explanation *why, int64_t budget, const struct plan *plan)
{
    struct remedy *r = &why->remedies[why->nremedies++];
    *r = (struct remedy){
        .nkeys = 1, .total = plan->total, .host = plan->host, .step_seconds = plan->step_seconds};
    r->keys[0].key = "budget";
    snprintf(r->keys[0].value, sizeof r->keys[0].value, "%lldMiB", (long long)(budget >> 20));
    snprintf(r->cost, sizeof r->cost, "none for the results; the same job, planned for what there is");
}

/* The request, limited to the memory that the machine really has. */
static struct plan_request affordable(const struct explanation *why)
{
    struct plan_request request = *why->refusal.request;
    int64_t left = why->available / 20 * 19 >> 20 << 20;
    bool lower = why->refusal.status == PLIM_NO_MEMORY && left > 0 && left < request.budget;
    if (lower) request.budget = left;
    request.search_used = 0;
    return request;
}

/* An evaluation lies in the arena of the plan: the line at which there is one large enough. */
static void raise_for_evaluation(struct explanation *why)
{
    struct plan_request request = *why->refusal.request;
    int64_t missing = why->refusal.arena - why->arena;
    struct plan larger = {0};
    request.search_used = 0;
    request.budget = (((why->needed + missing) >> 20) + 1) << 20;
    if (missing > 0 && plan_search(&request, &larger, NULL) == PLIM_OK)
        offer_budget(why, request.budget, &larger);
    plan_release(&larger);
}

/* A line above what the machine has left is none. */
static void drop_raised_lines(struct explanation *why)
{
    int kept = 0;
    for (int i = 0; i < why->nremedies; i++) {
        bool raised = false;
        for (int k = 0; k < why->remedies[i].nkeys; k++)
            raised |= !strcmp(why->remedies[i].keys[k].key, "budget");
        if (!raised) why->remedies[kept++] = why->remedies[i];
    }
    why->nremedies = kept;
}

/* A plan without knobs: comparing plans takes more than the line. */
static void find_remedies(struct explanation *why, const struct plan_request *request,
                          const struct plan *found, enum plim_status status)
{
    struct plim_error err;
    if (why->cause == CAUSE_EVALUATION)
        raise_for_evaluation(why);
    else if (status == PLIM_OK && request->budget < why->refusal.request->budget)
        offer_budget(why, request->budget, found);
    else if (status == PLIM_NO_FIT && found->knobs.micro_batch > 0)
        job_remedies(why->refusal.job, request, found, why->remedies, &why->nremedies, &err);
    if (status == PLIM_NO_FIT && why->refusal.status == PLIM_NO_MEMORY) drop_raised_lines(why);
}

/* The memory that the plan lies in. */
static void read_memory(const struct watch_reading *r, const struct device_facts *facts,
                        struct explanation *why)
{
    bool card = !facts->unified_memory;
    if (!r) return;
    why->total = card ? (int64_t)r->device.total : (int64_t)r->machine.total;
    why->available = card ? (int64_t)(r->device.total - r->device.used + r->device.ours)
                          : (int64_t)(r->machine.available + r->process.rss);
}

/* Examines the plan while its memory is still available. */
static void look_at(struct explanation *why, struct plan *plan)
{
    why->refusal.plan = plan;
    why->needed = plan->total, why->arena = plan->layout.arena_bytes;
    peak_of(&plan->tape, &plan->layout, &why->peak);
    while (!causes[why->cause].holds(why)) why->cause++;
    why->refusal.plan = NULL;
    tape_release(&plan->tape);
    layout_release(&plan->layout);
}

void explain(const struct refusal *refusal, struct explanation *out)
{
    *out = (struct explanation){.refusal = *refusal, .peak = {.cls = ""}};
    read_memory(refusal->reading, refusal->request->facts, out);
    if (refusal->plan) look_at(out, refusal->plan);
    struct plan_request request = affordable(out);
    struct plan found = {0};
    enum plim_status status = plan_search(&request, &found, NULL);
    if (!refusal->plan) look_at(out, &found);
    tape_release(&found.tape);
    layout_release(&found.layout);
    out->nholders = holders_of(refusal->reading, os_machine_root(), out->holders);
    find_remedies(out, &request, &found, status);
    plan_release(&found);
}

void explain_plan(const struct refusal *refusal, const struct device_facts *facts, const struct peak *peak,
                  int64_t needed, struct explanation *out)
{
    *out = (struct explanation){.refusal = *refusal, .peak = *peak, .needed = needed};
    read_memory(refusal->reading, facts, out);
    out->cause = is_others(out) ? CAUSE_OTHERS : CAUSE_MODEL;
    out->nholders = holders_of(refusal->reading, os_machine_root(), out->holders);
}
