/* budget.c - a job's memory budget, and what can be said of it and of pinned tiers before anything is planned. */
#include "job/job.h"
#include "base/bytes.h"
#include "job/preset.h"

/* Without a budget of its own. */
static int64_t share_of_memory(const struct job *job, const struct device_facts *facts)
{
    struct profile profile;
    job_thresholds(job, &profile);
    bool fraction = job->wishes.cuda_fraction > 0 && !facts->unified_memory;
    double target = fraction ? job->wishes.cuda_fraction : profile.target;
    int64_t share = (int64_t)((double)facts->memory_bytes * target);
    int64_t free_share = (int64_t)(facts->free_bytes / 20 * 19);
    return free_share && free_share < share ? free_share : share;
}

int64_t job_budget(const struct job *job, const struct device_facts *facts)
{
    int64_t budget = job->budget ? (int64_t)job->budget : share_of_memory(job, facts);
    int64_t pool = (int64_t)(job->wishes.pool_gb * 1e9);
    return pool && pool < budget ? pool : budget;
}

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

enum plim_status budget_check_next(const char *who, const char *where, int64_t before, int64_t bytes,
                                   const struct device_facts *facts, struct plim_error *err)
{
    char budget[BYTES_TEXT];
    bool less = bytes && (!before || bytes < before);
    if (!facts->keeps_memory || !less) return budget_check(who, where, bytes, facts, err);
    return plim_fail(err, PLIM_UNSUPPORTED,
                     "%s: %s: the plug-in of %s keeps the memory that it has taken, so a smaller budget "
                     "would free none; start again with a budget of %s",
                     who, where, facts->name, bytes_format(budget, (uint64_t)bytes));
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
    status = budget_check(job->name, "key 'budget'", request->budget, request->facts, err);
    return status == PLIM_OK ? check_host(job, request, err) : status;
}
