/* budget.c - what can be said of a budget and of pinned tiers before anything is planned, and the plan itself with a data
 * loader that leaves room for it. */
#include "job/job.h"
#include "base/bytes.h"

/* Below a CPU is the disk, below a GPU the host; state and parameters may go further down to a disk (recipe.c). */
static enum plim_status check_tier(const struct job *job, const char *key, int tier, enum tier lower,
                                   struct plim_error *err)
{
    if (tier <= TIER_DEVICE || tier == (int)lower) return PLIM_OK;
    return plim_fail(err, PLIM_UNSUPPORTED,
                     "%s: key 'training.%s': below this device there is no tier %s; write %s", job->name, key,
                     tier_name((enum tier)tier), tier_name(lower));
}

enum plim_status budget_check(const char *who, const char *where, int64_t bytes,
                              const struct device_facts *facts, struct plim_error *err)
{
    char budget[BYTES_TEXT], memory[BYTES_TEXT];
    if (bytes <= (int64_t)facts->memory_bytes) return PLIM_OK;
    bytes_format(budget, (uint64_t)bytes);
    bytes_format(memory, facts->memory_bytes);
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s: %s: %s is more than %s has (%s%s); write less, or leave it out", who, where, budget,
                     facts_holder(facts), memory, facts->memory_limited ? ", the container's limit" : "");
}

enum plim_status job_check_memory(const struct job *job, const char *where, int64_t bytes,
                                  const struct device_facts *facts, struct plim_error *err)
{
    return budget_check(job->name, where, bytes, facts, err);
}

/* A machine that is planned for from afar has what it has; on one that is here others may make room. */
static enum plim_status check_host(const struct job *job, const struct plan_request *request,
                                   struct plim_error *err)
{
    char budget[BYTES_TEXT], has[BYTES_TEXT];
    int64_t most = (int64_t)request->facts->host_bytes;
    if (request->facts->free_bytes || !most || request->host_budget <= most) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s: key 'host_budget': %s is more than the machine's host has for a rank (%s); write "
                     "less, or leave it out",
                     job->name, bytes_format(budget, (uint64_t)request->host_budget),
                     bytes_format(has, (uint64_t)most));
}

enum plim_status job_check_budget(const struct job *job, const struct plan_request *request,
                                  struct plim_error *err)
{
    bool unified_memory = request->facts->unified_memory;
    enum tier lower = request->facts->lower_tier;
    enum plim_status status = check_tier(job, "state_tier", request->pins.state_tier, lower, err);
    if (status == PLIM_OK) status = check_tier(job, "grad_tier", request->pins.grad_tier, lower, err);
    if (status == PLIM_OK) status = check_tier(job, "param_tier", request->pins.param_tier, lower, err);
    if (status != PLIM_OK) return status;
    if (unified_memory && request->pins.offload_layers > 0)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: key 'training.offload_layers': on a CPU activations are in host memory anyway; remove "
            "the key",
            job->name);
    if (unified_memory) return PLIM_OK;
    status = job_check_memory(job, "key 'budget'", request->budget, request->facts, err);
    return status == PLIM_OK ? check_host(job, request, err) : status;
}

bool job_shrink_loader(struct job *job, int64_t missing)
{
    struct loader_sizes *s = &job->loader_sizes;
    int64_t wanted = job->loader_bytes - missing;
    if (s->chosen + 1 >= s->count) return false;
    do s->chosen++;
    while (s->chosen + 1 < s->count && s->at[s->chosen].bytes > wanted);
    job->data.workers = s->at[s->chosen].workers;
    job->data.pieces = s->at[s->chosen].pieces;
    job->data.max_line_bytes = (uint64_t)s->at[s->chosen].max_line_bytes;
    job->loader_bytes = s->at[s->chosen].bytes;
    return true;
}

/* Bytes missing on the line that the loader is counted on. */
static int64_t missing_beside_loader(const struct plan_request *r, const struct plan *smallest)
{
    if (r->facts->unified_memory) return smallest->total - r->budget;
    return r->host_budget ? smallest->host - r->host_budget : 0;
}

/* A budget below the program's own size has a reason of its own; a loader that is a good part of what is missing is
 * worth a word. */
static void name_overhead(const struct job *job, const struct plan_request *r, const struct plan *smallest,
                          struct plim_error *err)
{
    char loader[BYTES_TEXT], program[BYTES_TEXT];
    int64_t host = smallest->host > smallest->total ? smallest->host : smallest->total;
    if (!err) return;
    bytes_format(loader, (uint64_t)job->loader_bytes);
    bytes_format(program, (uint64_t)(r->overhead - job->loader_bytes));
    if (r->facts->unified_memory && r->budget <= r->overhead - job->loader_bytes)
        plim_fail(err, PLIM_NO_FIT, "%s; the program itself takes %s of it, and the data loader %s",
                  err->text, program, loader);
    else if (job->loader_bytes >= host / 16)
        plim_fail(err, PLIM_NO_FIT, "%s; the data loader takes %s of it (see docs/data.md, Memory)",
                  err->text, loader);
}

/* Reading the tokenizer can take more than the whole of a small plan: what is missing then is overhead. */
static bool add_reading(const struct job *job, struct plan_request *request, const struct plan *plan)
{
    int64_t line = request->facts->unified_memory ? plan->total : plan->host;
    int64_t reading = request->overhead - job->loader_bytes + job->reading_bytes;
    if (line >= reading || !plan->tape.nops) return false; /* without a tape: refused before it was known */
    request->overhead += reading - line;
    return true;
}

enum plim_status job_plan(struct job *job, struct plan_request *request, struct plan *out,
                          struct plim_error *err)
{
    bool counted = false;
    for (;;) {
        enum plim_status status = plan_search(request, out, err);
        if (status == PLIM_BAD_INPUT) plim_error_prefix(err, "%s", job->name);
        if (status != PLIM_NO_FIT && status != PLIM_OK) return status;
        int64_t missing = missing_beside_loader(request, out), before = job->loader_bytes;
        bool shrunk = status == PLIM_NO_FIT && missing > 0 && !counted && job_shrink_loader(job, missing);
        if (shrunk) request->overhead -= before - job->loader_bytes;
        if (!shrunk && !counted) counted = add_reading(job, request, out), shrunk = counted;
        if (!shrunk) {
            if (status == PLIM_NO_FIT && missing > 0) name_overhead(job, request, out, err);
            return status;
        }
        plan_release(out);
    }
}
