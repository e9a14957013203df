/* plan_job.c - see plan_job.h. */
#include "api/plan_job.h"
#include "base/bytes.h"
#include "comm/comm.h"
#include "runtime/runtime.h"
#include "train/best_model.h"
#include "train/checkpoint.h"
#include "train/corpus.h"

/* A plan may hold its budget and still be more than the device has. */
static enum plim_status beyond_device(const struct job *job, const struct plan_request *request,
                                      const struct plan *plan, struct plim_error *err)
{
    char need[BYTES_TEXT], has[BYTES_TEXT];
    const struct device_facts *f = request->facts;
    if (plan->total <= (int64_t)f->memory_bytes) return PLIM_OK;
    return plim_fail(err, PLIM_NO_FIT,
                     "%s: does not fit %s: the plan needs %s, only %s are available; lower the budget",
                     job->name, facts_holder(f), bytes_format(need, (uint64_t)plan->total),
                     bytes_format(has, f->memory_bytes));
}

/* The plan that a run would have. When there is none, plans are compared without a line, to name what is missing. */
static enum plim_status make_plan(const struct job *job, struct device_facts *facts, int64_t reserve,
                                  struct planned *p, struct plim_error *err)
{
    bool reserve_used;
    struct plan_request *request = &p->request;
    request->search_line = facts->unified_memory ? request->budget : 0;
    enum plim_status status =
        runtime_find_plan(job, &p->loader, facts, reserve, request, &p->plan, &reserve_used, err);
    if (reserve_used) request->overhead -= reserve;
    if (status != PLIM_NO_FIT) return status;
    plan_release(&p->plan);
    *err = (struct plim_error){0};
    request->search_line = 0;
    return job_plan(job, &p->loader, request, &p->plan, err);
}

/* Which disk is below the host of a card elsewhere nobody knows: it counts where the job wants one. */
static bool names_disk(const struct job *job)
{
    const struct job_training *t = &job->training;
    return (t->state_tier == TIER_DISK) || (t->param_tier == TIER_DISK);
}

enum plim_status plan_job(const struct context *context, const struct job *job, struct device_facts *facts,
                          bool here, struct planned *out, struct plim_error *err)
{
    struct overhead overhead = runtime_overhead(context, facts->threads, NULL);
    overhead.bytes += job_telling_bytes(job);
    if (facts->ranks > 1)
        overhead.bytes += comm_library_bytes(context, facts->node_ranks ? facts->node_ranks : facts->ranks);
    struct plim_error filling = {0};
    *out = (struct planned){0};
    struct best_model best;
    enum plim_status status = corpus_measure(job, here, &out->loader, &out->length, &out->no_data, err);
    if (status == PLIM_OK) status = best_model_init(&best, job, err); /* as train would refuse it */
    if (status != PLIM_OK) return status;
    if (here)
        runtime_recall_disk(context, job, facts);
    else if (!facts->unified_memory && names_disk(job))
        facts->disk_bandwidth = FACTS_DISK_ASSUMED;
    overhead.bytes += loader_sizes_bytes(&out->loader);
    status = runtime_request(job, facts, overhead.bytes, &out->request, err);
    if (status != PLIM_OK) return status;
    status = make_plan(job, facts, overhead.reserve, out, err);
    if (status != PLIM_OK && status != PLIM_NO_FIT) return status;
    if (report_fill(&out->report, job, &out->loader, &out->length, &out->request, &out->plan, &filling) !=
        PLIM_OK)
        return *err = filling, filling.status;
    out->known = true;
    if (here)
        disk_line_of(job, &out->length, &out->plan, checkpoint_count(job->output_dir), &out->report.disk);
    if (status == PLIM_NO_FIT) corpus_remedies(&out->report);
    if (status == PLIM_OK) status = beyond_device(job, &out->request, &out->plan, err);
    if (status == PLIM_OK) status = disk_line_check(&out->report.disk, job, err);
    return status;
}

void planned_release(struct planned *p) { plan_release(&p->plan); }
