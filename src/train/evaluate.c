/* evaluate.c - evaluation inside the training arena: a forward-only tape laid out above the kept tensors, with as
 * many rows as fit below the training plan's mark. It can therefore never be the one that runs out. */
#include "train/evaluate.h"
#include "train/trainer.h"

/* The largest micro-batch up to `rows` whose layout stays inside the arena. */
static enum plim_status fit_eval(struct trainer *t, int64_t rows, int64_t *batch, struct tape *tape,
                                 struct layout *layout, struct plim_error *err)
{
    struct layout_options options = {
        .facts = &t->device->facts, .accumulation = 2, .above = &t->plan.layout, .above_tape = &t->plan.tape};
    for (int64_t b = rows; b >= 1; b /= 2) {
        enum plim_status status = job_build_eval(t->job, b, tape, err);
        if (status == PLIM_OK) status = layout_make(tape, &options, layout, err);
        if (status == PLIM_OK && layout->arena_bytes <= t->plan.layout.arena_bytes) {
            *batch = b;
            return PLIM_OK;
        }
        layout_release(layout);
        tape_release(tape);
        if (status != PLIM_OK) return status;
    }
    return plim_fail(err, PLIM_NO_FIT,
                     "evaluation of one row does not fit the training plan; raise the budget");
}

enum plim_status evaluate_rows(struct exec *exec, struct dataset *data, int64_t rows, int64_t batch,
                               double sum[2], struct plim_error *err)
{
    const struct tape *tape = exec->tape;
    int ids = tape_find(tape, "ids", -1), targets = tape_find(tape, "targets", -1),
        pos = tape_find(tape, "pos", -1);
    struct loader loader = {.data = data, .in_order = true};
    int64_t tokens, time = dataset_time(data);
    for (int64_t first = 0; first < rows; first += batch) {
        int64_t n = rows - first < batch ? rows - first : batch;
        int32_t *wanted = exec_host(exec, targets);
        enum plim_status status =
            loader_fill(&loader, n, exec_host(exec, ids), wanted, exec_host(exec, pos), &tokens, err);
        if (status != PLIM_OK) return status;
        int32_t *id = exec_host(exec, ids), *at = exec_host(exec, pos);
        for (int64_t i = n * time; i < batch * time; i++)
            id[i] = 0, wanted[i] = -1, at[i] = (int32_t)(i % time);
        status = exec_loop(exec, first > 0, err);
        if (status != PLIM_OK) return status;
    }
    return exec_read(exec, tape_find(tape, "loss", -1), sum, 0, 2 * sizeof *sum, err);
}

enum plim_status trainer_evaluate(struct trainer *t, double *loss, int64_t *tokens, struct plim_error *err)
{
    struct tape tape;
    struct layout layout = {0};
    struct exec exec;
    int64_t rows = dataset_rows(t->validation), batch = 1;
    double sum[2] = {0};
    if (rows > t->job->training.eval_rows) rows = t->job->training.eval_rows;
    enum plim_status status = fit_eval(t, rows, &batch, &tape, &layout, err);
    if (status != PLIM_OK) return status;
    status = exec_open(&exec, t->device, &tape, &layout, NULL, err);
    if (status == PLIM_OK) status = evaluate_rows(&exec, t->validation, rows, batch, sum, err);
    *loss = sum[1] > 0 ? sum[0] / sum[1] : 0;
    *tokens = (int64_t)sum[1];
    layout_release(&layout);
    tape_release(&tape);
    return status;
}
