/* evaluate.c - evaluation inside the training arena: a forward-only tape laid out above the kept tensors, with as
 * many rows as fit below the training plan's mark. It can therefore never be the one that runs out. */
#include "train/evaluate.h"
#include "runtime/feed.h"
#include "train/trainer.h"

static enum plim_status build(void *arg, int64_t rows, struct tape *out, struct plim_error *err)
{
    struct trainer *t = arg;
    return job_build_eval(t->job, &t->runtime.plan.knobs, rows, t->job->max_length, out, err);
}

/* One pass over n rows of the window; the rest of the batch counts nothing. */
static enum plim_status evaluate_pass(struct exec *exec, struct feed *feed, struct loader *loader, int64_t n,
                                      bool first, struct plim_error *err)
{
    enum plim_status status = loader_fill(loader, n, &feed->rows, err);
    if (status == PLIM_OK) status = feed_send(feed, err);
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
        status = evaluate_pass(exec, &feed, loader, window.rows, done == 0, err);
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
    struct forward_family family = {.build = build, .arg = t, .adds = true};
    struct forward pass;
    int64_t rows = corpus_rows(t->corpus.validation, t->job->training.eval_rows);
    double sum[2] = {0};
    enum plim_status status = runtime_forward(&t->runtime, &family, rows, 1, &pass, err);
    if (status == PLIM_NO_FIT)
        return plim_fail(err, PLIM_NO_FIT,
                         "evaluation of one row does not fit the training plan; raise the budget");
    if (status != PLIM_OK) return status;
    status = loader_seek(t->evaluator, &(struct loader_state){0}, err);
    if (status == PLIM_OK) status = evaluate_rows(&pass.exec, t->evaluator, &rows, pass.size, sum, err);
    forward_close(&pass);
    *loss = sum[1] > 0 ? sum[0] / sum[1] : 0;
    *tokens = (int64_t)sum[1];
    return status;
}
