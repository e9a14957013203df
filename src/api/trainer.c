/* trainer.c - see plimsoll/train.h: a run over train/trainer.h, one optimizer step per call.
 *
 *     open --plim_trainer_step--> open ... --(no step is left)--> ended
 *                          \--(an error)--> ended, and every further call returns that error
 */
#include "api/plan.h"
#include "report/report.h"
#include "train/trainer.h"
#include "watch/explain.h"
#include <plimsoll/train.h>

#include <assert.h>
#include <string.h>

struct plim_trainer {
    struct handle handle;
    struct job job;
    struct job_place place;
    struct plim_train_options options;
    struct trainer *trainer;
    atomic_int stop;
    atomic_flag busy;      /* a call is under way */
    struct plim_step last; /* of the step under way */
    bool ended;
    struct plim_error failure; /* that ended it */
};

static_assert((int)PLIM_TRAIN_EPOCH == TRAIN_EPOCH && (int)PLIM_TRAIN_MEMORY == TRAIN_MEMORY,
              "events of the public API are those of train/trainer.h");

static void keep_step(struct plim_trainer *t, const struct train_event *e)
{
    if (e->kind == TRAIN_STEP)
        t->last = (struct plim_step){.step = e->step,
                                     .steps = e->steps,
                                     .loss = e->loss,
                                     .lr = e->lr,
                                     .grad_norm = e->grad_norm,
                                     .tokens = e->tokens,
                                     .seconds = e->seconds,
                                     .tokens_per_second = e->tokens_per_s,
                                     .skipped = e->skipped};
    if (e->kind == TRAIN_EVAL) t->last.evaluated = 1, t->last.eval_loss = e->loss;
}

static void hear(void *arg, const struct train_event *e)
{
    struct plim_trainer *t = arg;
    struct strbuf why = STRBUF_INIT;
    keep_step(t, e);
    if (!t->options.hear) return;
    if (e->kind == TRAIN_REFUSED && e->why) explanation_text(e->why, &why);
    struct plim_train_event event = {.size = sizeof event,
                                     .kind = (enum plim_train_event_kind)e->kind,
                                     .step = e->step,
                                     .steps = e->steps,
                                     .loss = e->loss,
                                     .lr = e->lr,
                                     .grad_norm = e->grad_norm,
                                     .epoch = e->epoch,
                                     .tokens = e->tokens,
                                     .seconds = e->seconds,
                                     .tokens_per_second = e->tokens_per_s,
                                     .used_bytes = (uint64_t)e->used,
                                     .budget_bytes = (uint64_t)e->budget,
                                     .text = why.len ? strbuf_text(&why) : e->text};
    t->options.hear(t->options.arg, &event);
    strbuf_release(&why);
}

static enum plim_status start(struct plim_trainer *t, const struct plim_job *job, struct plim_error *err)
{
    enum plim_status status = job_make(job, &t->job, err);
    t->job.no_final_checkpoint = t->options.no_final_checkpoint;
    if (status == PLIM_OK) status = job_check_training(&t->job, err);
    if (status == PLIM_OK)
        status = job_place_open(handle_context(&job->handle), &t->job, t->options.device, &t->place, err);
    if (status == PLIM_OK && !t->place.device)
        status = plim_fail(err, PLIM_BAD_INPUT,
                           "plim_trainer_open: %s is a preset; training needs a device of this machine",
                           t->place.preset.facts.name);
    if (status != PLIM_OK) return status;
    struct train_options options = {.resume = t->options.resume,
                                    .overwrite = t->options.overwrite,
                                    .listener = {hear, t},
                                    .stop = &t->stop,
                                    .profile = t->job.training.profile,
                                    .numerics = t->job.training.check_numerics,
                                    .save_at_end = !t->options.no_final_checkpoint};
    return trainer_open(&t->job, t->place.device, &options, &t->trainer, err);
}

enum plim_status plim_trainer_open(struct plim_job *job, const struct plim_train_options *options,
                                   struct plim_trainer **out, struct plim_error *err)
{
    if (!out) return plim_fail(err, PLIM_BAD_INPUT, "plim_trainer_open: out is NULL");
    *out = NULL;
    if (!handle_is(job, HANDLE_JOB, "plim_trainer_open", err)) return PLIM_BAD_INPUT;
    struct plim_trainer *t = handle_new(sizeof *t, HANDLE_TRAINER, job->handle.context, err);
    if (!t) return PLIM_NO_MEMORY;
    job_init(&t->job);
    enum plim_status status = options_take(&t->options, sizeof t->options, options, "plim_trainer_open", err);
    if (status == PLIM_OK) status = start(t, job, err);
    if (status != PLIM_OK) return plim_trainer_close(t), status;
    *out = t;
    return PLIM_OK;
}

void plim_trainer_close(struct plim_trainer *t)
{
    if (!handle_is(t, HANDLE_TRAINER, "plim_trainer_close", NULL)) return;
    if (t->trainer) trainer_close(t->trainer);
    job_place_close(&t->place);
    job_release(&t->job);
    handle_free(t);
}

/* A trainer serves one call at a time: false, with the error set, while another thread's is under way, or in an event handler. */
static bool enter(struct plim_trainer *t, const char *function, struct plim_error *err)
{
    if (!handle_is(t, HANDLE_TRAINER, function, err)) return false;
    if (!atomic_flag_test_and_set(&t->busy)) return true;
    plim_fail(err, PLIM_BAD_INPUT, "%s: another call on this plim_trainer is under way", function);
    return false;
}

static void leave(struct plim_trainer *t) { atomic_flag_clear(&t->busy); }

/* True if the run goes on; otherwise *status is the answer. */
static bool runs(struct plim_trainer *t, const char *function, enum plim_status *status,
                 struct plim_error *err)
{
    if (!handle_is(t, HANDLE_TRAINER, function, err)) return *status = PLIM_BAD_INPUT, false;
    *status = t->failure.status;
    if (t->failure.status != PLIM_OK && err) *err = t->failure;
    return !t->ended;
}

static enum plim_status end(struct plim_trainer *t, enum plim_status status, struct plim_error *err)
{
    struct plim_error own = {0};
    struct plim_error *e = err ? err : &own;
    t->ended = true;
    status = trainer_end(t->trainer, status, e);
    if (status != PLIM_OK) t->failure = *e;
    return status;
}

enum plim_status plim_trainer_step(struct plim_trainer *t, struct plim_step *out, struct plim_error *err)
{
    enum plim_status status;
    if (!enter(t, "plim_trainer_step", err)) return PLIM_BAD_INPUT;
    struct plim_error own = {0};
    struct plim_error *e = err ? err : &own;
    bool run = runs(t, "plim_trainer_step", &status, err);
    t->last = (struct plim_step){.step = t->trainer->step, .steps = t->trainer->length.steps};
    bool more = run && trainer_more(t->trainer);
    if (more) status = trainer_advance(t->trainer, e);
    if (run && (!more || status != PLIM_OK || t->trainer->interrupted)) status = end(t, status, e);
    t->last.done = !more;
    enum plim_status given = figures_give(out, &t->last, sizeof t->last, "plim_trainer_step", err);
    leave(t);
    return status == PLIM_OK ? given : status;
}

enum plim_status plim_trainer_run(struct plim_trainer *t, struct plim_error *err)
{
    struct plim_step step = {.size = sizeof step};
    enum plim_status status = PLIM_OK;
    while (status == PLIM_OK && !step.done) status = plim_trainer_step(t, &step, err);
    return status;
}

/* PLIM_OK, or why a run that has ended takes no more orders. */
static enum plim_status still_runs(struct plim_trainer *t, const char *function, struct plim_error *err)
{
    enum plim_status status;
    if (runs(t, function, &status, err)) return PLIM_OK;
    return status == PLIM_OK ? plim_fail(err, PLIM_BAD_INPUT, "%s: the run has ended", function) : status;
}

enum plim_status plim_trainer_set_budget(struct plim_trainer *t, uint64_t budget, struct plim_error *err)
{
    if (!enter(t, "plim_trainer_set_budget", err)) return PLIM_BAD_INPUT;
    enum plim_status status = still_runs(t, "plim_trainer_set_budget", err);
    if (status == PLIM_OK) status = trainer_replan(t->trainer, (int64_t)budget, err);
    leave(t);
    return status;
}

enum plim_status plim_trainer_save(struct plim_trainer *t, struct plim_error *err)
{
    if (!enter(t, "plim_trainer_save", err)) return PLIM_BAD_INPUT;
    enum plim_status status = still_runs(t, "plim_trainer_save", err);
    if (status == PLIM_OK && !trainer_may_save(t->trainer))
        status = plim_fail(err, PLIM_BAD_INPUT,
                           "plim_trainer_save: this run saves nothing (no_final_checkpoint and no "
                           "training.save_every)");
    if (status == PLIM_OK) status = trainer_save(t->trainer, err);
    leave(t);
    return status;
}

enum plim_status plim_trainer_evaluate(struct plim_trainer *t, double *loss, struct plim_error *err)
{
    int64_t tokens;
    enum plim_status status = PLIM_OK;
    if (!enter(t, "plim_trainer_evaluate", err)) return PLIM_BAD_INPUT;
    if (!loss) status = plim_fail(err, PLIM_BAD_INPUT, "plim_trainer_evaluate: loss is NULL");
    if (loss && !t->trainer->corpus.validation)
        status = plim_fail(err, PLIM_BAD_INPUT, "plim_trainer_evaluate: the job has no data.validation");
    if (status == PLIM_OK) status = trainer_evaluate(t->trainer, loss, &tokens, err);
    leave(t);
    return status;
}

void plim_trainer_stop(struct plim_trainer *t)
{
    if (handle_is(t, HANDLE_TRAINER, "plim_trainer_stop", NULL)) t->stop = 1;
}

char *plim_trainer_plan(struct plim_trainer *t)
{
    struct strbuf out = STRBUF_INIT;
    struct plan_report report = {0};
    if (!handle_is(t, HANDLE_TRAINER, "plim_trainer_plan", NULL)) return NULL;
    const struct runtime *rt = &t->trainer->runtime;
    if (report_fill(&report, &t->job, &t->trainer->corpus.sizes, &t->trainer->length, &rt->request, &rt->plan,
                    NULL) != PLIM_OK)
        return NULL;
    report_json(&report, &out);
    return text_give(&out);
}
