/* budget.c - what can be said of a budget and of pinned tiers before anything is planned. */
#include "job/job.h"
#include "base/bytes.h"

/* Below a CPU is the disk, below a GPU the host. */
static enum plim_status check_tier(const struct job *job, const char *key, int tier, enum tier lower,
                                   struct plim_error *err)
{
    if (tier <= TIER_DEVICE || tier == (int)lower) return PLIM_OK;
    return plim_fail(err, PLIM_UNSUPPORTED,
                     "%s: key 'training.%s': below this device there is no tier %s; write %s", job->name, key,
                     tier_name((enum tier)tier), tier_name(lower));
}

/* No line lies above what a device with memory of its own has. */
enum plim_status job_check_memory(const struct job *job, const char *where, int64_t bytes,
                                  const struct device_facts *facts, struct plim_error *err)
{
    char budget[BYTES_TEXT], memory[BYTES_TEXT];
    if (bytes <= (int64_t)facts->memory_bytes) return PLIM_OK;
    bytes_format(budget, (uint64_t)bytes);
    bytes_format(memory, facts->memory_bytes);
    return plim_fail(err, PLIM_BAD_INPUT, "%s: %s: %s is more than %s has (%s); write less, or leave it out",
                     job->name, where, budget, facts->name, memory);
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
    char overhead[BYTES_TEXT], budget[BYTES_TEXT];
    if (!unified_memory) return job_check_memory(job, "key 'budget'", request->budget, request->facts, err);
    if (request->budget > request->overhead) return PLIM_OK;
    bytes_format(overhead, (uint64_t)request->overhead);
    bytes_format(budget, (uint64_t)request->budget);
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s: key 'budget': %s is below what the program itself takes (%s); raise the budget",
                     job->name, budget, overhead);
}
