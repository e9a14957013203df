/* evaluate_alone.c - evaluation without training: a forward-only plan of its own. See evaluate.h. */
#include "train/evaluate.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "runtime/load.h"
#include "train/trainer.h"

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

/* The largest batch that fits; halved until one does. */
static enum plim_status fit(const struct job *job, const struct device *device, const char *dir,
                            struct evaluation *e, struct tape *tape, struct layout *layout,
                            struct plim_error *err)
{
    struct layout_options options = {.facts = &device->facts, .accumulation = 2};
    int64_t batch = EVAL_TOKENS / job->max_length;
    for (batch = batch > e->rows ? e->rows : batch < 1 ? 1 : batch;; batch /= 2) {
        enum plim_status status = job_build_eval(job, NULL, batch, tape, err);
        if (status != PLIM_OK) return status;
        status = layout_make(tape, &options, layout, err);
        if (status == PLIM_OK) {
            e->batch = batch;
            e->arena = layout->arena_bytes;
            e->total = e->overhead + e->arena;
            if (e->total <= e->budget) return PLIM_OK;
            layout_release(layout);
            if (batch == 1) status = refuse(e, dir, err);
        }
        tape_release(tape);
        if (status != PLIM_OK) return status;
    }
}

static enum plim_status run(const struct job *job, struct device *device, const char *dir,
                            struct loader *loader, const struct tape *tape, const struct layout *layout,
                            struct evaluation *e, struct plim_error *err)
{
    struct exec exec;
    double sum[2] = {0};
    enum plim_status status = device->ops->commit(device, (size_t)layout->arena_bytes, err);
    if (status == PLIM_OK) status = exec_open(&exec, device, tape, layout, NULL, err);
    if (status == PLIM_OK) status = weights_write_constants(&exec, &job->spec, err);
    if (status == PLIM_OK) status = weights_from_directory(&exec, &job->spec, dir, NULL, err);
    double start = clock_seconds();
    if (status == PLIM_OK) status = evaluate_rows(&exec, loader, &e->rows, e->batch, sum, err);
    e->seconds = clock_seconds() - start;
    e->loss = sum[1] > 0 ? sum[0] / sum[1] : 0;
    e->tokens = (int64_t)sum[1];
    device->ops->commit(device, 0, NULL);
    return status;
}

/* Everything after the data are open. */
static enum plim_status evaluate(const struct job *job, struct device *device, const char *dir,
                                 struct loader *loader, struct evaluation *out, struct plim_error *err)
{
    struct tape tape;
    struct layout layout;
    enum plim_status status = fit(job, device, dir, out, &tape, &layout, err);
    if (status != PLIM_OK) return status;
    ledger_set_budget(device->ledger, (uint64_t)out->budget);
    status = ledger_reserve(device->ledger, DEVICE_LEDGER_OVERHEAD, (uint64_t)out->overhead, err);
    if (status == PLIM_OK) {
        status = run(job, device, dir, loader, &tape, &layout, out, err);
        ledger_release(device->ledger, DEVICE_LEDGER_OVERHEAD, (uint64_t)out->overhead);
    }
    layout_release(&layout);
    tape_release(&tape);
    return status;
}

enum plim_status evaluate_alone(struct job *job, struct device *device, const char *dir, int64_t rows,
                                struct evaluation *out, struct plim_error *err)
{
    struct plan_request request;
    struct corpus corpus;
    struct loader *loader = NULL;
    int64_t overhead = trainer_overhead();
    *out = (struct evaluation){0};
    enum plim_status status =
        corpus_open(job, job->validation.count ? CORPUS_VALIDATION : CORPUS_TRAIN, &corpus, err);
    if (status != PLIM_OK) return status;
    struct dataset *data = corpus.validation ? corpus.validation : corpus.train;
    corpus_count(&corpus, job);
    job_request(job, &device->facts, overhead, &request);
    out->rows = corpus_rows(data, rows);
    out->budget = request.budget;
    out->overhead = device->facts.unified_memory ? request.overhead : (int64_t)device->facts.overhead_bytes;
    status = job_check_budget(job, &request, err);
    if (status == PLIM_OK) status = job_check_memory(job, "key 'budget'", request.budget, request.facts, err);
    if (status == PLIM_OK) status = corpus_evaluator(&corpus, data, &loader, err);
    if (status == PLIM_OK) status = evaluate(job, device, dir, loader, out, err);
    loader_close(loader);
    corpus_close(&corpus);
    return status;
}
