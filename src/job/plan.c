/* plan.c - a job's plan, with a data loader that leaves room for it. */
#include "job/job.h"
#include "base/bytes.h"

int64_t loader_sizes_bytes(const struct loader_sizes *s) { return s->count ? s->at[s->chosen].bytes : 0; }

bool loader_sizes_shrink(struct loader_sizes *s, int64_t missing)
{
    int64_t wanted = loader_sizes_bytes(s) - missing;
    if (s->chosen + 1 >= s->count) return false;
    do s->chosen++;
    while (s->chosen + 1 < s->count && s->at[s->chosen].bytes > wanted);
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
static void name_overhead(int64_t loader, const struct plan_request *r, const struct plan *smallest,
                          struct plim_error *err)
{
    char data[BYTES_TEXT], program[BYTES_TEXT];
    int64_t host = smallest->host > smallest->total ? smallest->host : smallest->total;
    if (!err) return;
    bytes_format(data, (uint64_t)loader);
    bytes_format(program, (uint64_t)(r->overhead - loader));
    if (r->facts->unified_memory && r->budget <= r->overhead - loader)
        plim_fail(err, PLIM_NO_FIT, "%s; the program itself takes %s of it, and the data loader %s",
                  err->text, program, data);
    else if (loader >= host / 16)
        plim_fail(err, PLIM_NO_FIT, "%s; the data loader takes %s of it (see docs/data.md, Memory)",
                  err->text, data);
}

/* Reading the tokenizer can take more than the whole of a small plan: what is missing then is overhead. */
static bool add_reading(const struct loader_sizes *loader, struct plan_request *request,
                        const struct plan *plan)
{
    int64_t line = request->facts->unified_memory ? plan->total : plan->host;
    int64_t reading = request->overhead - loader_sizes_bytes(loader) + loader->reading;
    if (line >= reading || !plan->tape.nops) return false; /* without a tape: refused before it was known */
    request->overhead += reading - line;
    return true;
}

enum plim_status job_plan(const struct job *job, struct loader_sizes *loader, struct plan_request *request,
                          struct plan *out, struct plim_error *err)
{
    bool counted = false;
    for (;;) {
        enum plim_status status = plan_search(request, out, err);
        if (status == PLIM_BAD_INPUT) plim_error_prefix(err, "%s", job->name);
        if (status != PLIM_NO_FIT && status != PLIM_OK) return status;
        int64_t missing = missing_beside_loader(request, out), before = loader_sizes_bytes(loader);
        bool again = status == PLIM_NO_FIT && missing > 0 && !counted && loader_sizes_shrink(loader, missing);
        if (again) request->overhead -= before - loader_sizes_bytes(loader);
        if (!again && !counted) again = counted = add_reading(loader, request, out);
        if (!again) {
            if (status == PLIM_NO_FIT && missing > 0) name_overhead(before, request, out, err);
            return status;
        }
        plan_release(out);
    }
}
