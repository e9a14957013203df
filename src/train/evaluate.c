/* evaluate.c - evaluation inside the training arena: a forward-only tape laid out above the kept tensors, with as
 * many rows as fit below the training plan's mark. It can therefore never be the one that runs out. */
#include "train/evaluate.h"
#include "runtime/feed.h"
#include "train/trainer.h"

/* The largest micro-batch up to `rows` whose layout stays inside the arena. */
static enum plim_status fit_eval(struct trainer *t, int64_t rows, int64_t *batch, struct tape *tape,
                                 struct layout *layout, struct plim_error *err)
{
    struct layout_options options = {
        .facts = &t->device->facts, .accumulation = 2, .above = &t->plan.layout, .above_tape = &t->plan.tape};
    for (int64_t b = rows; b >= 1; b /= 2) {
        enum plim_status status = job_build_eval(t->job, &t->plan.knobs, b, tape, err);
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

/* One pass over n rows of the window; the rest of the batch counts nothing. */
static enum plim_status evaluate_pass(struct exec *exec, struct feed *feed, struct loader *loader, int64_t n,
                                      int64_t batch, bool first, struct plim_error *err)
{
    int64_t time = tensor_count(&exec->tape->tensors[feed->tensor[0]]) / batch;
    enum plim_status status = loader_fill(loader, n, feed->ids, feed->targets, feed->pos, err);
    if (status != PLIM_OK) return status;
    for (int64_t i = n * time; i < batch * time; i++)
        feed->ids[i] = 0, feed->targets[i] = -1, feed->pos[i] = (int32_t)(i % time);
    status = feed_send(feed, err);
    return status == PLIM_OK ? exec_loop(exec, !first, err) : status;
}

enum plim_status evaluate_rows(struct exec *exec, struct loader *loader, int64_t *rows, int64_t batch,
                               double sum[2], struct plim_error *err)
{
    struct feed feed;
    int64_t done = 0;
    sum[0] = sum[1] = 0;
    enum plim_status status = feed_open(&feed, exec, err);
    while (done < *rows && status == PLIM_OK) {
        struct loader_window window;
        status = loader_window(loader, *rows - done < batch ? *rows - done : batch, &window, err);
        if (status != PLIM_OK || !window.rows) break;
        status = evaluate_pass(exec, &feed, loader, window.rows, batch, done == 0, err);
        done += window.rows;
    }
    *rows = done;
    feed_close(&feed);
    if (status == PLIM_OK && !done)
        status = plim_fail(err, PLIM_BAD_INPUT, "the data to evaluate hold no sample with a target");
    if (status != PLIM_OK) return status;
    return exec_read(exec, tape_find(exec->tape, "loss", -1), sum, 0, 2 * sizeof *sum, err);
}

enum plim_status trainer_evaluate(struct trainer *t, double *loss, int64_t *tokens, struct plim_error *err)
{
    struct tape tape;
    struct layout layout = {0};
    struct exec exec;
    struct loader *loader = NULL;
    int64_t rows = corpus_rows(t->corpus.validation, t->job->training.eval_rows), batch = 1;
    double sum[2] = {0};
    enum plim_status status = fit_eval(t, rows, &batch, &tape, &layout, err);
    if (status != PLIM_OK) return status;
    status = corpus_evaluator(&t->corpus, t->corpus.validation, &loader, err);
    if (status == PLIM_OK) status = exec_open(&exec, t->device, &tape, &layout, t->disk, err);
    if (status == PLIM_OK) status = evaluate_rows(&exec, loader, &rows, batch, sum, err);
    loader_close(loader);
    *loss = sum[1] > 0 ? sum[0] / sum[1] : 0;
    *tokens = (int64_t)sum[1];
    layout_release(&layout);
    tape_release(&tape);
    return status;
}
