/* savings.c - each row turns one trick the other way and asks the planner for the bytes and the time. */
#include "job/savings.h"

/* Sets knobs (and for precision, the job) to the other side; returns whether the trick is on now, or -1 when it
 * does not apply. */
typedef int flip(struct job *other, const struct plan_request *request, struct knobs *knobs);

static int flip_accumulation(struct job *other, const struct plan_request *r, struct knobs *k)
{
    (void)other;
    bool on = k->micro_batch < r->rows;
    if (r->rows == 1) return -1;
    k->micro_batch = on ? r->rows : 1;
    k->accumulation = r->rows / k->micro_batch;
    if (k->accumulation > 1) k->optimizer_in_backward = 0;
    return on;
}

static int flip_recompute(struct job *other, const struct plan_request *r, struct knobs *k)
{
    (void)other, (void)r;
    bool on = k->recompute != RECOMPUTE_NONE || k->full_layers > 0;
    k->recompute = on ? RECOMPUTE_NONE : RECOMPUTE_FULL;
    k->full_layers = 0;
    return on;
}

static int flip_chunks(struct job *other, const struct plan_request *r, struct knobs *k)
{
    (void)other;
    bool on = k->loss_chunks > 1;
    int64_t finest = (k->micro_batch * r->time + LOSS_CHUNK_ROWS - 1) / LOSS_CHUNK_ROWS;
    if (finest < 2) return -1;
    k->loss_chunks = on ? 1 : (int)finest;
    return on;
}

static int flip_in_backward(struct job *other, const struct plan_request *r, struct knobs *k)
{
    (void)other;
    if (r->needs_global_norm || k->accumulation > 1) return -1;
    k->optimizer_in_backward = !k->optimizer_in_backward;
    return !k->optimizer_in_backward;
}

static int flip_state_tier(struct job *other, const struct plan_request *r, struct knobs *k)
{
    (void)other;
    bool on = k->state_tier != TIER_DEVICE;
    k->state_tier = on ? TIER_DEVICE : r->facts->is_host ? TIER_DISK : TIER_HOST;
    k->state_share = on ? 0 : OFFLOAD_SHARES;
    if (on) k->host_share = 0, k->param_tier = TIER_DEVICE, k->param_share = 0;
    return on;
}

static int flip_grad_tier(struct job *other, const struct plan_request *r, struct knobs *k)
{
    (void)other;
    bool on = k->grad_tier != TIER_DEVICE;
    if (k->optimizer_in_backward) return -1;
    k->grad_tier = on ? TIER_DEVICE : r->facts->is_host ? TIER_DISK : TIER_HOST;
    return on;
}

static int flip_param_tier(struct job *other, const struct plan_request *r, struct knobs *k)
{
    (void)other;
    bool on = k->param_tier != TIER_DEVICE;
    if (!on && k->state_tier == TIER_DEVICE) return -1; /* it follows the state */
    k->param_tier = on ? TIER_DEVICE : r->facts->is_host ? TIER_DISK : TIER_HOST;
    k->param_share = on ? 0 : OFFLOAD_SHARES;
    return on;
}

static int flip_precision(struct job *other, const struct plan_request *r, struct knobs *k)
{
    (void)r, (void)k;
    bool on = other->training.precision != PRECISION_F32;
    other->training.precision = on ? PRECISION_F32 : PRECISION_BF16;
    return on;
}

static int flip_moments(struct job *other, const struct plan_request *r, struct knobs *k)
{
    (void)r, (void)k;
    bool on = other->training.optimizer == OPTIMIZER_ADAMW8;
    if (!on && other->training.optimizer != OPTIMIZER_ADAMW) return -1;
    other->training.optimizer = on ? OPTIMIZER_ADAMW : OPTIMIZER_ADAMW8;
    return on;
}

static const struct {
    const char *name;
    flip *flip;
} rows[] = {
    {"gradient accumulation", flip_accumulation},
    {"recomputation", flip_recompute},
    {"chunked loss", flip_chunks},
    {"optimizer in backward", flip_in_backward},
    {"optimizer state offload", flip_state_tier},
    {"gradient offload", flip_grad_tier},
    {"parameter streaming", flip_param_tier},
    {"mixed precision", flip_precision},
    {"8-bit moments", flip_moments},
};

/* Attention that keeps its score matrices: the bytes flash-style attention never has. */
static void add_flash(const struct job *job, const struct plan *plan, struct saving *out)
{
    const struct model_spec *s = &job->spec;
    int64_t element = job->training.precision == PRECISION_F32 ? 4 : 2;
    int64_t matrix = plan->knobs.micro_batch * s->num_heads * job->max_length * job->max_length * element;
    bool full = plan->knobs.recompute == RECOMPUTE_FULL;
    *out = (struct saving){"flash attention", true, matrix * (full ? 1 : s->num_layers), 0};
}

enum plim_status job_savings(struct job *job, const struct plan_request *request, const struct plan *plan,
                             struct saving *out, int *count, struct plim_error *err)
{
    struct plan_bound now;
    struct tape room;
    tape_init(&room);
    *count = 0;
    enum plim_status status = plan_bound_of(request, &plan->knobs, &room, &now, err);
    for (size_t i = 0; i < sizeof rows / sizeof *rows && status == PLIM_OK; i++) {
        struct job other = *job;
        struct plan_request ask = *request;
        struct knobs knobs = plan->knobs;
        struct plan_bound flipped;
        ask.build_arg = &other;
        int on = rows[i].flip(&other, request, &knobs);
        if (on < 0) continue;
        status = plan_bound_of(&ask, &knobs, &room, &flipped, err);
        int64_t bytes = on ? flipped.total - now.total : now.total - flipped.total;
        double base = on ? flipped.step_seconds : now.step_seconds;
        double extra = on ? now.step_seconds - base : flipped.step_seconds - base;
        if (status == PLIM_OK)
            out[(*count)++] = (struct saving){rows[i].name, on, bytes, base > 0 ? extra / base : 0};
    }
    tape_release(&room);
    if (status != PLIM_OK) return status;
    add_flash(job, plan, &out[(*count)++]);
    if (job->training.precision == PRECISION_BF16 && !job->training.master)
        out[(*count)++] = (struct saving){"16-bit master", true, 2 * model_param_count(&job->spec), 0};
    return PLIM_OK;
}
