/* plan.c - one set of knobs made into a plan. */
#include "plan/plan.h"
#include "plan/cost.h"

#include <stdio.h>
#include <string.h>

void knobs_open(struct knobs *pins)
{
    *pins = (struct knobs){KNOB_OPEN, KNOB_OPEN, KNOB_OPEN, KNOB_OPEN, KNOB_OPEN, KNOB_OPEN, KNOB_OPEN,
                           KNOB_OPEN, KNOB_OPEN, KNOB_OPEN, KNOB_OPEN, KNOB_OPEN, KNOB_OPEN};
}

const char *knobs_recompute_text(const struct knobs *knobs, char *buf, size_t size)
{
    if (knobs->full_layers > 0 && knobs->recompute != RECOMPUTE_FULL)
        snprintf(buf, size, "%s + %d layer%s in full", recompute_name((enum recompute)knobs->recompute),
                 knobs->full_layers, knobs->full_layers == 1 ? "" : "s");
    else
        snprintf(buf, size, "%s", recompute_name((enum recompute)knobs->recompute));
    return buf;
}

static int percent(int share) { return (100 * share + OFFLOAD_SHARES / 2) / OFFLOAD_SHARES; }

static const char *place_text(int tier, int share, char *buf, size_t size)
{
    if (share > 0 && share < OFFLOAD_SHARES)
        snprintf(buf, size, "%s (%d %% of it)", tier_name((enum tier)tier), percent(share));
    else
        snprintf(buf, size, "%s", tier_name((enum tier)tier));
    return buf;
}

const char *knobs_state_text(const struct knobs *knobs, char *buf, size_t size)
{
    place_text(knobs->state_tier, knobs->state_share, buf, size);
    size_t used = strlen(buf);
    if (knobs->host_share >= OFFLOAD_SHARES)
        snprintf(buf + used, size - used, ", updated there");
    else if (knobs->host_share > 0)
        snprintf(buf + used, size - used, ", %d %% of that updated there", percent(knobs->host_share));
    return buf;
}

const char *knobs_param_text(const struct knobs *knobs, char *buf, size_t size)
{
    return place_text(knobs->param_tier, knobs->param_share, buf, size);
}

const char *knobs_parked_text(const struct knobs *knobs, char *buf, size_t size)
{
    int n = knobs->offload_layers;
    buf[0] = '\0';
    if (n > 0) snprintf(buf, size, ", activations of %d layer%s wait on the host", n, n == 1 ? "" : "s");
    return buf;
}

struct knobs knobs_naive(const struct plan_request *request)
{
    return (struct knobs){.micro_batch = request->rows,
                          .accumulation = 1,
                          .recompute = RECOMPUTE_NONE,
                          .full_layers = 0,
                          .loss_chunks = 1,
                          .optimizer_in_backward = 0,
                          .state_tier = TIER_DEVICE,
                          .grad_tier = TIER_DEVICE};
}

bool plan_within(const struct plan_request *request, int64_t total, int64_t host)
{
    bool limited = request->host_budget > 0 && !request->facts->unified_memory;
    return total <= request->budget && (!limited || host <= request->host_budget);
}

/* What tape and layout take themselves: megabytes, when offloaded updates are cut into many slices. */
static int64_t own_bytes(const struct plan *plan)
{
    const struct layout *l = &plan->layout;
    size_t op = sizeof *plan->tape.ops + sizeof *l->work_offset + sizeof *l->work_bytes +
                (l->group_end ? sizeof *l->group_end : 0);
    size_t tensor = sizeof *plan->tape.tensors + sizeof *l->offset + sizeof *l->life + sizeof *l->buffer;
    return (int64_t)((size_t)plan->tape.nops * op + (size_t)plan->tape.ntensors * tensor);
}

static void fill_totals(struct plan *plan, const struct plan_request *request, int64_t arena)
{
    plan->budget = request->budget, plan->overhead = request->overhead + own_bytes(plan);
    plan->device = arena + (int64_t)request->facts->overhead_bytes;
    plan->host = plan->overhead + plan->layout.tier_bytes[TIER_HOST];
    plan->disk = plan->layout.tier_bytes[TIER_DISK];
    plan->total = request->facts->unified_memory ? plan->device + plan->host : plan->device;
    plan->fits = plan_within(request, plan->total, plan->host);
}

static enum plim_status find_seconds(const struct tape *tape, const struct plan_request *request,
                                     const struct knobs *knobs, double *out, struct plim_error *err)
{
    struct tape_time time = {0};
    enum plim_status status = tape_time_of(tape, request->facts, knobs->accumulation == 1, &time, err);
    *out = (double)knobs->accumulation * time.loop_seconds + time.update_seconds;
    return status;
}

static struct layout_options options_of(const struct plan_request *request, const struct knobs *knobs)
{
    return (struct layout_options){.facts = request->facts, .accumulation = knobs->accumulation};
}

enum plim_status plan_bound_of(const struct plan_request *request, const struct knobs *knobs,
                               struct tape *room, struct plan_bound *out, struct plim_error *err)
{
    struct plan plan = {0};
    struct layout_options options = options_of(request, knobs);
    if (room) plan.tape = *room;
    enum plim_status status = request->build(request->build_arg, knobs, &plan.tape, err);
    if (status == PLIM_OK) status = layout_bound(&plan.tape, &options, &plan.layout, err);
    if (status == PLIM_OK) {
        fill_totals(&plan, request, plan.layout.lower_bound);
        out->total = plan.total, out->host = plan.host;
        status = find_seconds(&plan.tape, request, knobs, &out->step_seconds, err);
    }
    if (room) *room = plan.tape, tape_init(&plan.tape);
    plan_release(&plan);
    return status;
}

enum plim_status plan_make(const struct plan_request *request, const struct knobs *knobs, struct plan *out,
                           struct plim_error *err)
{
    *out = (struct plan){.knobs = *knobs};
    struct layout_options options = options_of(request, knobs);
    enum plim_status status = request->build(request->build_arg, knobs, &out->tape, err);
    if (status == PLIM_OK) status = tape_verify(&out->tape, err);
    if (status == PLIM_OK) status = layout_make(&out->tape, &options, &out->layout, err);
    if (status == PLIM_OK) fill_totals(out, request, out->layout.arena_bytes);
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
