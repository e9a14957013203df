/* plan.c - see plan.h and plimsoll/plan.h. */
#include "api/plan.h"
#include "api/open_device.h"
#include "api/plan_job.h"
#include <plimsoll/plan.h>

#include <stdlib.h>
#include <string.h>

struct plim_plan {
    struct handle handle;
    struct job job;
    struct job_place place;
    struct planned planned;
};

enum plim_status job_place_open(const struct context *context, struct job *job, struct plim_device *given,
                                struct job_place *out, struct plim_error *err)
{
    *out = (struct job_place){0};
    if (given && !handle_is(given, HANDLE_DEVICE, "device", err)) return PLIM_BAD_INPUT;
    enum plim_status status = PLIM_OK;
    if (given)
        status = device_ready(given, &out->device, err), out->preset = given->preset;
    else
        status = open_job_device(context, job, &out->device, err), out->own = true;
    if (status != PLIM_OK) return status;
    if (out->device) out->preset.facts = out->device->facts;
    status = job_meet_device(job, &out->preset.facts, err);
    if (status == PLIM_OK && !out->device) job_take_profile(job, &out->preset);
    return status;
}

void job_place_close(struct job_place *place)
{
    if (place->own && place->device) place->device->ops->close(place->device);
    place->device = NULL;
}

static enum plim_status make_plan(struct plim_plan *plan, const struct plim_job *job,
                                  struct plim_device *device, struct plim_error *err)
{
    const struct context *context = handle_context(&job->handle);
    enum plim_status status = job_make(job, &plan->job, err);
    if (status == PLIM_OK) status = job_check_training(&plan->job, err);
    if (status == PLIM_OK) status = job_place_open(context, &plan->job, device, &plan->place, err);
    if (status != PLIM_OK) return status;
    return plan_job(context, &plan->job, &plan->place.preset.facts, plan->place.device != NULL,
                    &plan->planned, err);
}

enum plim_status plim_plan_open(struct plim_job *job, struct plim_device *device, struct plim_plan **out,
                                struct plim_error *err)
{
    if (!out) return plim_fail(err, PLIM_BAD_INPUT, "plim_plan_open: out is NULL");
    *out = NULL;
    if (!handle_is(job, HANDLE_JOB, "plim_plan_open", err)) return PLIM_BAD_INPUT;
    struct plim_plan *plan = handle_new(sizeof *plan, HANDLE_PLAN, job->handle.context, err);
    if (!plan) return PLIM_NO_MEMORY;
    enum plim_status status = make_plan(plan, job, device, err);
    if (!plan->planned.known) return plim_plan_close(plan), status;
    *out = plan;
    return status;
}

void plim_plan_close(struct plim_plan *plan)
{
    if (!handle_is(plan, HANDLE_PLAN, "plim_plan_close", NULL)) return;
    planned_release(&plan->planned);
    job_place_close(&plan->place);
    job_release(&plan->job);
    handle_free(plan);
}

enum plim_status plim_plan_figures(const struct plim_plan *plan, struct plim_plan_figures *out)
{
    if (!handle_is(plan, HANDLE_PLAN, "plim_plan_figures", NULL)) return PLIM_BAD_INPUT;
    const struct plan *p = &plan->planned.plan;
    const struct plan_report *r = &plan->planned.report;
    const int64_t *by = p->layout.by_class;
    int64_t missing = p->total > p->budget && p->budget ? p->total - p->budget : 0;
    double tokens = (double)(plan->planned.request.rows * plan->planned.request.time);
    struct plim_plan_figures f = {
        .fits = report_fits(r),
        .budget = (uint64_t)p->budget,
        .total_bytes = (uint64_t)p->total,
        .missing_bytes = (uint64_t)missing,
        .parameter_bytes = (uint64_t)(by[CLASS_PARAM] + by[CLASS_MASTER]),
        .gradient_bytes = (uint64_t)by[CLASS_GRAD],
        .optimizer_bytes = (uint64_t)by[CLASS_STATE],
        .activation_bytes = (uint64_t)by[CLASS_ACT],
        .overhead_bytes = (uint64_t)(p->total - p->layout.arena_bytes),
        .host_bytes = (uint64_t)p->host,
        .disk_bytes = (uint64_t)p->disk,
        .parameters = model_param_count(&plan->job.spec),
        .micro_batch = p->knobs.micro_batch,
        .accumulation = p->knobs.accumulation,
        .step_seconds = p->step_seconds,
        .tokens_per_second = p->step_seconds > 0 ? tokens / p->step_seconds : 0,
    };
    return figures_give(out, &f, sizeof f, "plim_plan_figures", NULL);
}

static char *write_report(const struct plim_plan *plan, const char *function,
                          void (*write)(const struct plan_report *, struct strbuf *))
{
    struct strbuf out = STRBUF_INIT;
    if (!handle_is(plan, HANDLE_PLAN, function, NULL)) return NULL;
    write(&plan->planned.report, &out);
    return text_give(&out);
}

static void write_text(const struct plan_report *report, struct strbuf *out)
{
    report_text(report, false, out);
}

char *plim_plan_json(const struct plim_plan *plan)
{
    return write_report(plan, "plim_plan_json", report_json);
}
char *plim_plan_text(const struct plim_plan *plan)
{
    return write_report(plan, "plim_plan_text", write_text);
}
char *plim_plan_html(const struct plim_plan *plan)
{
    return write_report(plan, "plim_plan_html", report_html);
}
