/* savings.c - each row turns one trick the other way and asks the planner for the bytes and the time.
 *
 * Bytes are counted in two places, what the budget counts and the tier below it, because most tricks of placement only
 * move them; a row that saves in neither is left out. */
#include "report/savings.h"
#include "plan/space.h"

struct trial {
    const struct plan_request *request;
    struct recipe recipe;
    struct knobs knobs;
};

/* Sets knobs (and for precision, the recipe) to the other side; returns whether the trick is on now, or -1 when it
 * does not apply. */
typedef int flip(struct trial *t);

static int flip_accumulation(struct trial *t)
{
    bool on = t->knobs.micro_batch < t->request->rows;
    if (t->request->rows == 1) return -1;
    t->knobs.micro_batch = on ? t->request->rows : 1;
    t->knobs.accumulation = t->request->rows / t->knobs.micro_batch;
    if (t->knobs.accumulation > 1) t->knobs.optimizer_in_backward = t->knobs.before_norm_share = 0;
    return on;
}

static int flip_recompute(struct trial *t)
{
    bool on = t->knobs.recompute != RECOMPUTE_NONE || t->knobs.full_layers > 0;
    t->knobs.recompute = on ? RECOMPUTE_NONE : RECOMPUTE_FULL;
    t->knobs.full_layers = 0;
    return on;
}

static int flip_chunks(struct trial *t)
{
    bool on = t->knobs.loss_chunks > 1;
    int64_t finest = (t->knobs.micro_batch * t->request->time + LOSS_CHUNK_ROWS - 1) / LOSS_CHUNK_ROWS;
    if (finest < 2) return -1;
    t->knobs.loss_chunks = on ? 1 : (int)finest;
    return on;
}

static int flip_in_backward(struct trial *t)
{
    if (t->request->needs_global_norm || t->knobs.accumulation > 1) return -1;
    t->knobs.optimizer_in_forward = t->knobs.before_norm_share = 0;
    t->knobs.optimizer_in_backward = !t->knobs.optimizer_in_backward;
    return !t->knobs.optimizer_in_backward;
}

static int flip_state_tier(struct trial *t)
{
    bool on = t->knobs.state_tier != TIER_DEVICE;
    t->knobs.state_tier = on ? TIER_DEVICE : t->request->facts->lower_tier;
    t->knobs.state_share = on ? 0 : OFFLOAD_SHARES;
    if (on)
        t->knobs.host_share = t->knobs.before_norm_share = 0, t->knobs.param_tier = TIER_DEVICE,
        t->knobs.param_share = 0;
    return on;
}

static int flip_grad_tier(struct trial *t)
{
    bool on = t->knobs.grad_tier != TIER_DEVICE;
    if (t->knobs.optimizer_in_backward) return -1;
    t->knobs.grad_tier = on ? TIER_DEVICE : t->request->facts->lower_tier;
    return on;
}

static int flip_param_tier(struct trial *t)
{
    bool on = t->knobs.param_tier != TIER_DEVICE;
    if (!on && t->knobs.state_share < OFFLOAD_SHARES) return -1; /* it follows the state */
    t->knobs.param_tier = on ? TIER_DEVICE : t->request->facts->lower_tier;
    t->knobs.param_share = on ? 0 : OFFLOAD_SHARES;
    return on;
}

/* Off: a quarter of the layers, about as much as may cost nothing. */
static int flip_activations(struct trial *t)
{
    bool on = t->knobs.offload_layers > 0;
    if (t->request->facts->unified_memory) return -1;
    t->knobs.offload_layers = on ? 0 : (t->request->layers + 3) / 4;
    return on;
}

static int flip_precision(struct trial *t)
{
    bool on = t->recipe.precision != PRECISION_F32;
    t->recipe.precision = on ? PRECISION_F32 : PRECISION_BF16;
    t->recipe.master = t->recipe.grad_type = 0; /* of bf16 weights only */
    return on;
}

static int flip_moments(struct trial *t)
{
    bool on = t->recipe.optimizer == OPTIMIZER_ADAMW8;
    if (!on && t->recipe.optimizer != OPTIMIZER_ADAMW) return -1;
    t->recipe.optimizer = on ? OPTIMIZER_ADAMW : OPTIMIZER_ADAMW8;
    t->recipe.state_type = 0;
    return on;
}

/* Only a job that turned it off is planned the other way: see flash() for one that has it. */
static int flip_flash(struct trial *t)
{
    if (t->recipe.flash) return -1;
    t->recipe.flash = true;
    return 0;
}

/* Against training all of the model. A base in blocks cannot be trained, and a job without an adapter is offered one among the
 * remedies if it does not fit. */
static int flip_adapter(struct trial *t)
{
    if (!t->recipe.adapter || t->recipe.job->base.count) return -1;
    t->recipe.adapter = NULL;
    return 1;
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
    {"activation offload", flip_activations},
    {"mixed precision", flip_precision},
    {"8-bit moments", flip_moments},
    {"flash attention", flip_flash},
    {"adapter", flip_adapter},
};

/* Bytes of a tape on the tier below the device, of one class or (CLASS_COUNT) of all. */
static int64_t tier_bytes(const struct tape *tape, int cls)
{
    int64_t sum = 0;
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *t = &tape->tensors[i];
        bool counts = t->view_of < 0 && t->tier != TIER_DEVICE && (cls == CLASS_COUNT || (int)t->cls == cls);
        if (counts) sum += tensor_bytes(t);
    }
    return sum;
}

static void add(struct saving *out, int *count, struct saving saving)
{
    if (saving.bytes > 0 || saving.far > 0) out[(*count)++] = saving;
}

/* Attention that keeps its score matrices: the bytes flash-style attention never has. */
static struct saving flash(const struct job *job, const struct plan *plan)
{
    const struct model_spec *s = &job->spec;
    const struct knobs *k = &plan->knobs;
    if (!job->model.flash) return (struct saving){0};
    int64_t element = job->training.precision == PRECISION_F32 ? 4 : 2;
    int64_t matrix = k->micro_batch * s->num_heads * job->max_length * job->max_length * element;
    int64_t kept = k->recompute == RECOMPUTE_FULL ? 0 : model_layers(s) - k->full_layers;
    return (struct saving){.name = "flash attention", .on = true, .bytes = matrix * (kept > 1 ? kept : 1)};
}

/* A whole fp32 copy would be twice the 16 bits, wherever they are. */
static struct saving short_master(const struct job *job, const struct plan *plan)
{
    if (precision_type((enum precision)job->training.precision) != DT_BF16) return (struct saving){0};
    return (struct saving){.name = "16-bit master",
                           .on = true,
                           .bytes = plan->layout.by_class[CLASS_MASTER],
                           .far = tier_bytes(&plan->tape, CLASS_MASTER)};
}

enum plim_status job_savings(const struct job *job, const struct plan_request *request,
                             const struct plan *plan, struct saving *out, int *count, struct plim_error *err)
{
    /* Bounds are compared with bounds: gaps of the packing are no part of either. */
    int64_t now = plan->total - (plan->layout.arena_bytes - plan->layout.lower_bound);
    int64_t far = tier_bytes(&plan->tape, CLASS_COUNT);
    enum plim_status status = PLIM_OK;
    struct tape room;
    tape_init(&room);
    *count = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && status == PLIM_OK; i++) {
        struct trial t = {request, recipe_of(job), plan->knobs};
        struct plan_request ask = *request;
        struct plan_bound flipped;
        ask.variant = &t.recipe;
        int on = rows[i].flip(&t);
        if (on < 0) continue;
        status = plan_bound_of(&ask, &t.knobs, &room, &flipped, err);
        if (status != PLIM_OK) break;
        int64_t sign = on ? 1 : -1;
        double with = on ? plan->step_seconds : flipped.step_seconds;
        double without = on ? flipped.step_seconds : plan->step_seconds;
        add(out, count,
            (struct saving){.name = rows[i].name,
                            .on = on,
                            .bytes = sign * (flipped.total - now),
                            .far = sign * (tier_bytes(&room, CLASS_COUNT) - far),
                            .time_cost = without > 0 ? with / without - 1 : 0});
    }
    tape_release(&room);
    if (status != PLIM_OK) return status;
    add(out, count, flash(job, plan));
    add(out, count, short_master(job, plan));
    return PLIM_OK;
}

enum plim_status job_forward_seconds(const struct plan_request *request, const struct plan *plan, double *out,
                                     struct plim_error *err)
{
    struct knobs knobs = plan->knobs;
    struct plan_bound bound;
    bool may = plan->fits && request->pins.optimizer_in_forward == KNOB_OPEN && space_can_defer(request) &&
               request->facts->async_copies && knobs.state_tier != TIER_DEVICE && !knobs_inside(&knobs);
    *out = 0;
    if (!may) return PLIM_OK;
    knobs.optimizer_in_forward = 1;
    enum plim_status status = plan_bound_of(request, &knobs, NULL, &bound, err);
    if (status != PLIM_OK || !plan_within(request, bound.total, bound.host)) return status;
    if (bound.step_seconds < plan->step_seconds) *out = bound.step_seconds;
    return PLIM_OK;
}
