/* remedies.c - when nothing fits: try one change at a time, cheapest for the mathematics first. */
#include "base/bytes.h"
#include "job/savings.h"

#include <stdio.h>

struct attempt {
    struct job job;
    struct plan_request request;
    struct remedy *out;
};

/* Changes a copy of the job; false when it does not apply. */
typedef bool change(struct attempt *a);

static bool unpin_all(struct attempt *a)
{
    const struct knobs *p = &a->request.pins;
    if (p->micro_batch == KNOB_OPEN && p->recompute == KNOB_OPEN && p->loss_chunks == KNOB_OPEN &&
        p->optimizer_in_backward == KNOB_OPEN && p->state_tier == KNOB_OPEN && p->grad_tier == KNOB_OPEN &&
        p->param_tier == KNOB_OPEN)
        return false;
    knobs_open(&a->request.pins);
    snprintf(a->out->change, sizeof a->out->change,
             "unpin micro_batch_size, recompute, loss_chunks, state_tier");
    snprintf(a->out->cost, sizeof a->out->cost, "none for the results");
    return true;
}

static bool drop_clipping(struct attempt *a)
{
    if (a->job.training.clip <= 0) return false;
    a->job.training.clip = 0;
    a->request.needs_global_norm = a->job.training.precision == PRECISION_F16;
    snprintf(a->out->change, sizeof a->out->change, "training.max_grad_norm: 0");
    snprintf(a->out->cost, sizeof a->out->cost, "no clipping; gradients need not all be alive");
    return true;
}

static bool narrow(struct attempt *a)
{
    if (a->job.training.precision != PRECISION_F32) return false;
    a->job.training.precision = PRECISION_BF16;
    snprintf(a->out->change, sizeof a->out->change, "training.mixed_precision: bf16");
    snprintf(a->out->cost, sizeof a->out->cost, "bf16 rounding; weights keep an fp32 master");
    return true;
}

static bool halve_length(struct attempt *a)
{
    for (int64_t length = a->job.max_length / 2; length >= 16; length /= 2) {
        struct plan_bound bound;
        a->job.max_length = a->request.time = length;
        int lower = a->request.facts->is_host ? TIER_DISK : TIER_HOST;
        struct knobs tight = {.micro_batch = 1,
                              .accumulation = a->request.rows,
                              .recompute = RECOMPUTE_FULL,
                              .loss_chunks = 4096,
                              .state_tier = lower,
                              .state_share = OFFLOAD_SHARES,
                              .grad_tier = lower,
                              .param_tier = lower,
                              .param_share = OFFLOAD_SHARES};
        if (plan_bound_of(&a->request, &tight, NULL, &bound, NULL) != PLIM_OK) return false;
        if (bound.total > a->request.budget) continue;
        snprintf(a->out->change, sizeof a->out->change, "data.max_length: %lld", (long long)length);
        snprintf(a->out->cost, sizeof a->out->cost, "shorter context");
        return true;
    }
    return false;
}

static bool eight_bits(struct attempt *a)
{
    if (a->job.training.optimizer != OPTIMIZER_ADAMW || a->job.training.state_type) return false;
    a->job.training.optimizer = OPTIMIZER_ADAMW8;
    snprintf(a->out->change, sizeof a->out->change, "training.optimizer: adamw8bit");
    snprintf(a->out->cost, sizeof a->out->cost, "moments in 8 bits: slightly other results");
    return true;
}

static bool lighter_optimizer(struct attempt *a)
{
    if (a->job.training.optimizer != OPTIMIZER_ADAMW) return false;
    a->job.training.optimizer = OPTIMIZER_SGD;
    snprintf(a->out->change, sizeof a->out->change, "training.optimizer: sgd");
    snprintf(a->out->cost, sizeof a->out->cost, "another optimizer: other results");
    return true;
}

static change *const changes[] = {unpin_all,     narrow,       eight_bits,
                                  drop_clipping, halve_length, lighter_optimizer};

enum plim_status job_remedies(const struct job *job, const struct plan_request *request,
                              const struct plan *smallest, struct remedy *out, int *count,
                              struct plim_error *err)
{
    (void)err;
    *count = 0;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        struct attempt a = {.job = *job, .request = *request, .out = &out[*count]};
        struct plan plan = {0};
        a.request.build_arg = &a.job;
        if (!changes[i](&a)) continue;
        if (plan_search(&a.request, &plan, NULL) == PLIM_OK) {
            out[*count].total = plan.total, out[*count].step_seconds = plan.step_seconds;
            (*count)++;
        }
        plan_release(&plan);
    }
    struct remedy *raise = &out[(*count)++];
    bool on_host = smallest->total <= request->budget; /* the device's line holds, the host's does not */
    int64_t need = on_host ? smallest->host : smallest->total;
    int64_t have = on_host ? request->host_budget : request->budget, mib = (need + (1 << 20) - 1) >> 20;
    char text[BYTES_TEXT];
    snprintf(raise->change, sizeof raise->change, "%s: %lldMiB", on_host ? "host_budget" : "budget",
             (long long)mib);
    snprintf(raise->cost, sizeof raise->cost, "%s more memory%s", bytes_format(text, (uint64_t)(need - have)),
             on_host ? " of the host" : "");
    raise->total = smallest->total, raise->step_seconds = smallest->step_seconds;
    return PLIM_OK;
}
