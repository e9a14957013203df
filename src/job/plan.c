/* plan.c - a job's plan, with a data loader that leaves room for it. */
#include "job/job.h"
#include "base/bytes.h"

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
