/* evaluate_alone.c - evaluation without training: a forward-only plan of its own. See evaluate.h. */
#include "train/evaluate.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "model/load.h"
#include "train/trainer.h"

/* More tokens than this at once make no matrix multiply faster. */
#define ENOUGH_TOKENS 4096

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
    int64_t batch = ENOUGH_TOKENS / job->max_length;
    for (batch = batch > e->rows ? e->rows : batch < 1 ? 1 : batch;; batch /= 2) {
        enum plim_status status = job_build_eval(job, batch, tape, err);
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
                            struct dataset *data, const struct tape *tape, const struct layout *layout,
                            struct evaluation *e, struct plim_error *err)
{
    struct exec exec;
    double sum[2] = {0};
    enum plim_status status = device->ops->commit(device, (size_t)layout->arena_bytes, err);
    if (status == PLIM_OK) status = exec_open(&exec, device, tape, layout, NULL, err);
    if (status == PLIM_OK) status = weights_write_constants(&exec, &job->spec, err);
    if (status == PLIM_OK) status = weights_from_directory(&exec, &job->spec, dir, NULL, err);
    double start = clock_seconds();
    if (status == PLIM_OK) status = evaluate_rows(&exec, data, e->rows, e->batch, sum, err);
    e->seconds = clock_seconds() - start;
    e->loss = sum[1] > 0 ? sum[0] / sum[1] : 0;
    e->tokens = (int64_t)sum[1];
    device->ops->commit(device, 0, NULL);
    return status;
}

enum plim_status evaluate_alone(struct job *job, struct device *device, const char *dir, int64_t rows,
                                struct evaluation *out, struct plim_error *err)
{
    const struct string_list *files = job->validation.count ? &job->validation : &job->train;
    struct plan_request request;
    struct dataset *data = NULL;
    struct tape tape;
    struct layout layout;
    *out = (struct evaluation){0};
    const char *key = job->validation.count ? "data.validation" : "data.train";
    enum plim_status status = trainer_open_files(job, key, files, &data, err);
    if (status != PLIM_OK) return status;
    job_request(job, &device->facts, trainer_overhead(), &request);
    out->rows = rows > 0 && rows < dataset_rows(data) ? rows : dataset_rows(data);
    out->budget = request.budget;
    out->overhead = device->facts.is_host ? request.overhead : (int64_t)device->facts.overhead_bytes;
    status = trainer_check_budget(job, &request, err);
    if (status == PLIM_OK) status = fit(job, device, dir, out, &tape, &layout, err);
    if (status == PLIM_OK) {
        ledger_set_budget(device->ledger, (uint64_t)out->budget);
        status = ledger_reserve(device->ledger, DEVICE_LEDGER_OVERHEAD, (uint64_t)out->overhead, err);
        if (status == PLIM_OK) {
            status = run(job, device, dir, data, &tape, &layout, out, err);
            ledger_release(device->ledger, DEVICE_LEDGER_OVERHEAD, (uint64_t)out->overhead);
        }
        layout_release(&layout);
        tape_release(&tape);
    }
    dataset_close(data);
    return status;
}
