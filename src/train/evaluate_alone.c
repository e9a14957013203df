/* evaluate_alone.c - evaluation without training: a forward-only plan of its own. See evaluate.h. */
#include "train/evaluate.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "runtime/load.h"
#include "runtime/runtime.h"
#include "train/corpus.h"

static enum plim_status refuse(const struct evaluation *e, const char *dir, struct plim_error *err)
{
    char need[BYTES_TEXT], have[BYTES_TEXT], missing[BYTES_TEXT];
    bytes_format(need, (uint64_t)e->total);
    bytes_format(have, (uint64_t)e->budget);
    bytes_format(missing, (uint64_t)(e->total - e->budget));
    return plim_fail(
        err, PLIM_NO_FIT,
        "%s: does not fit: one row takes %s, the budget is %s: %s (%lld bytes) missing; raise the budget "
        "or lower data.max_length",
        dir, need, have, missing, (long long)(e->total - e->budget));
}

struct length {
    const struct job *job;
    int64_t time;
};

static enum plim_status build(void *arg, int64_t rows, struct tape *out, struct plim_error *err)
{
    const struct length *l = arg;
    return job_build_eval(l->job, NULL, NULL, rows, l->time, out, err);
}

/* As many rows at a time as fit. */
static enum plim_status plan(const struct job *job, struct device *device, const char *dir,
                             const struct plan_request *request, int64_t reserve, struct runtime *rt,
                             struct evaluation *e, struct plim_error *err)
{
    struct length whole = {job, job->max_length};
    struct forward_family family = {.build = build, .arg = &whole, .adds = true};
    struct forward_line line = {request->budget, request->host_budget, {request->overhead, reserve}};
    int64_t most = eval_rows_most(job, job->max_length, e->rows);
    enum plim_status status = runtime_plan_forward(rt, device, &job->spec, &line, &family, most, err);
    e->batch = rt->size;
    e->budget = request->budget, e->arena = rt->arena, e->total = rt->plan.total;
    return status == PLIM_NO_FIT ? refuse(e, dir, err) : status;
}

/* Plans with a loader that leaves room for one row. */
static enum plim_status plan_beside_loader(const struct job *job, struct loader_sizes *loader,
                                           struct device *device, const char *dir,
                                           struct plan_request *request, int64_t reserve, struct runtime *rt,
                                           struct evaluation *e, struct plim_error *err)
{
    for (;;) {
        int64_t before = loader_sizes_bytes(loader);
        enum plim_status status = plan(job, device, dir, request, reserve, rt, e, err);
        bool counted = request->facts->unified_memory;
        if (status != PLIM_NO_FIT || !counted || !loader_sizes_shrink(loader, e->total - e->budget))
            return status;
        request->overhead -= before - loader_sizes_bytes(loader);
        runtime_close(rt);
    }
}

/* Passes over shorter rows beside the plan's own; what does not fit is left out. */
static enum plim_status plan_lengths(const struct job *job, struct runtime *rt, int64_t rows,
                                     struct eval_programs *p, struct plim_error *err)
{
    int64_t ladder[LENGTHS_LADDER];
    int steps = job->data.padding == PADDING_LONGEST ? lengths_ladder(job->max_length, ladder) : 1;
    *p = (struct eval_programs){.count = 1, .shape = {{rt->size, job->max_length}}, .exec = {&rt->exec}};
    for (int i = 1; i < steps; i++) {
        struct length length = {job, ladder[i]};
        struct forward_family family = {.build = build, .arg = &length, .adds = true};
        enum plim_status status = runtime_forward(rt, &family, eval_rows_most(job, length.time, rows), 1,
                                                  &p->forward[p->count], err);
        if (status == PLIM_NO_FIT) continue;
        if (status != PLIM_OK) return status;
        p->shape[p->count] = (struct pass_shape){p->forward[p->count].size, length.time};
        p->exec[p->count] = &p->forward[p->count].exec;
        p->count++;
    }
    return PLIM_OK;
}

static enum plim_status run(const struct job *job, struct runtime *rt, const struct eval_weights *weights,
                            struct loader *loader, struct evaluation *e, struct plim_error *err)
{
    struct eval_programs p;
    enum plim_status status = plan_lengths(job, rt, e->rows, &p, err);
    e->arena = rt->arena, e->total = rt->plan.total;
    if (status == PLIM_OK) status = runtime_commit(rt, err);
    for (int i = 1; i < p.count && status == PLIM_OK; i++) status = forward_start(rt, &p.forward[i], err);
    const struct log *log = context_log(rt->exec.device->context);
    struct log warnings = log ? (struct log){LOG_LEVEL_WARN, log->sink, log->arg} : (struct log){0};
    if (status == PLIM_OK)
        status = weights_from_directory(&rt->exec, &rt->spec, weights->dir, log ? &warnings : NULL, err);
    if (status == PLIM_OK && weights->adapter)
        status = weights_merge(&rt->exec, &rt->spec, weights->adapter, err);
    if (status == PLIM_OK) status = eval_programs_start(&p, job, err);
    double start = clock_seconds();
    if (status == PLIM_OK) status = evaluate_rows(&p, loader, job, e, err);
    e->seconds = clock_seconds() - start;
    eval_programs_close(&p);
    return status;
}

enum plim_status evaluate_alone(const struct job *job, struct device *device,
                                const struct eval_weights *weights, int64_t rows, struct evaluation *out,
                                struct plim_error *err)
{
    struct plan_request request;
    struct corpus corpus;
    struct loader *loader = NULL;
    struct runtime rt = {0};
    struct overhead overhead = runtime_overhead(device->context, device->facts.threads, device->comm);
    *out = (struct evaluation){0};
    enum plim_status status =
        corpus_open(job, job->validation.count ? CORPUS_VALIDATION : CORPUS_TRAIN, &corpus, err);
    if (status != PLIM_OK) return status;
    struct dataset *data = corpus.validation ? corpus.validation : corpus.train;
    overhead.bytes += loader_sizes_bytes(&corpus.sizes);
    out->rows = corpus_rows(data, rows);
    status = runtime_request(job, &device->facts, overhead.bytes, &request, err);
    if (status == PLIM_OK)
        status = budget_check(job->name, "key 'budget'", request.budget, request.facts, err);
    if (status == PLIM_OK)
        status = plan_beside_loader(job, &corpus.sizes, device, weights->dir, &request, overhead.reserve, &rt,
                                    out, err);
    if (status == PLIM_OK) status = corpus_evaluator(&corpus, data, &loader, err);
    if (status == PLIM_OK) status = run(job, &rt, weights, loader, out, err);
    runtime_close(&rt);
    loader_close(loader);
    corpus_close(&corpus);
    return status;
}
