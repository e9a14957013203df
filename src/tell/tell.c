/* tell.c - see tell.h: of an event each listener gets what it wants. */
#include "tell/tell.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "tell/hook.h"
#include "tell/message.h"
#include "tell/tensorboard.h"
#include "tell/wandb.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct tell {
    struct tell_options options;
    struct tensorboard board;
    struct wandb wandb;
    bool board_on, wandb_on;
    struct post_library *library;
    struct hook *hook[HOOK_KINDS];
    bool hooks_open;
    struct message last; /* what every message says of the run, as it is now */
    char host[64];
    double began, progress; /* progress: when it was last told */
    int64_t planned;
};

static void warn(const struct tell *t, const char *what, const struct plim_error *err)
{
    char line[sizeof err->text + 128];
    snprintf(line, sizeof line, "%s: %s; the run continues without it", what, err->text);
    t->options.warn(t->options.arg, line);
}

/* ---- addresses ---- */

static void warn_of_hook(const struct tell *t, int kind, const struct plim_error *err)
{
    char line[sizeof err->text + 160];
    snprintf(line, sizeof line,
             "%s: a message did not arrive: %s; the run continues, and later messages are tried",
             hook_variable((enum hook_kind)kind), err->text);
    t->options.warn(t->options.arg, line);
}

static void open_hooks(struct tell *t)
{
    struct plim_error err = {0};
    t->hooks_open = true;
    if (!job_telling_bytes(t->options.job)) return;
    if (post_library_open(&t->library, &err) != PLIM_OK) {
        warn(t, "webhooks", &err);
        return;
    }
    for (int i = 0; i < HOOK_KINDS; i++) {
        struct hook_options o = {t->library, t->options.job->telling.hook[i],
                                 t->options.job->telling.timeout};
        if (o.url && hook_open(&o, &t->hook[i], &err) != PLIM_OK)
            warn(t, hook_variable((enum hook_kind)i), &err);
    }
}

static void look_after_hooks(const struct tell *t)
{
    struct plim_error err;
    for (int i = 0; i < HOOK_KINDS; i++)
        if (t->hook[i] && hook_problem(t->hook[i], &err)) warn_of_hook(t, i, &err);
}

static void notify(struct tell *t, enum notice notice, const char *text)
{
    if (!t->options.job->telling.notices[notice]) return;
    if (!t->hooks_open) open_hooks(t);
    t->last.notice = notice, t->last.text = text;
    t->last.time = clock_wall(), t->last.seconds = clock_seconds() - t->began;
    for (int i = 0; i < HOOK_KINDS; i++) {
        struct strbuf message = STRBUF_INIT;
        if (!t->hook[i]) continue;
        message_put(&t->last, (enum hook_kind)i, &message);
        hook_send(t->hook[i], &message);
    }
}

/* ---- what is kept of events ---- */

static void remember(struct tell *t, const struct train_event *e)
{
    struct message *m = &t->last;
    m->step = e->step, m->steps = e->steps;
    m->used = e->used, m->budget = e->budget, m->status = memory_status_name(e->status);
    if (e->kind == TRAIN_STEP) {
        m->number[NUMBER_LOSS] = e->loss, m->number[NUMBER_RATE] = e->lr;
        m->number[NUMBER_NORM] = e->grad_norm >= 0 ? e->grad_norm : NAN;
        m->number[NUMBER_SPEED] = e->tokens_per_s;
    }
    if (e->kind == TRAIN_EVAL) m->number[NUMBER_EVAL] = e->loss;
    if (e->plan) t->planned = e->plan->total;
}

static void tell_progress(struct tell *t, const struct train_event *e)
{
    char text[160];
    double now = clock_seconds();
    if (now - t->progress < t->options.job->telling.progress_seconds) return;
    t->progress = now;
    snprintf(text, sizeof text, "step %lld of %lld, loss %.4f", (long long)e->step, (long long)e->steps,
             e->loss);
    notify(t, NOTICE_PROGRESS, text);
}

/* ---- files ---- */

/* A file that cannot grow any more is given up; what it has stays readable. */
static void record(struct tell *t, const struct train_event *e)
{
    struct measures m;
    struct plim_error err;
    if (!t->board_on && !t->wandb_on) return;
    measures_of(e, &m);
    if (!m.count) return;
    if (t->board_on && tensorboard_add(&t->board, e->step, &m, &err) != PLIM_OK)
        t->board_on = false, warn(t, "tensorboard", &err);
    if (t->wandb_on && wandb_add(&t->wandb, e->step, &m, &err) != PLIM_OK)
        t->wandb_on = false, warn(t, "wandb", &err);
}

static enum plim_status open_files(struct tell *t, const struct job_length *length, int64_t step,
                                   struct plim_error *err)
{
    const struct job *job = t->options.job;
    enum plim_status status = PLIM_OK;
    char path[512];
    if (job->telling.tensorboard) {
        job_telling_folder(job, TOLD_TENSORBOARD, path, sizeof path);
        status = tensorboard_open(&t->board, path, step, err);
        t->board_on = status == PLIM_OK;
        if (!t->board_on) plim_error_prefix(err, "key 'training.logging_dir'");
    }
    if (job->telling.wandb && status == PLIM_OK) {
        job_telling_folder(job, TOLD_WANDB, path, sizeof path);
        status = wandb_open(&t->wandb,
                            &(struct wandb_options){.folder = path,
                                                    .job = job,
                                                    .length = length,
                                                    .name = job_run_name(job),
                                                    .project = job->telling.project,
                                                    .device = t->options.device,
                                                    .step = step,
                                                    .resumed = t->options.resume && step > 0},
                            err);
        t->wandb_on = status == PLIM_OK;
        if (!t->wandb_on) plim_error_prefix(err, "key 'training.report_to': wandb");
    }
    return status;
}

/* ---- a run ---- */

enum plim_status tell_open(const struct tell_options *options, struct tell **out, struct plim_error *err)
{
    struct tell *t = calloc(1, sizeof *t);
    *out = t;
    if (!t) return plim_fail(err, PLIM_NO_MEMORY, "out of memory");
    t->options = *options;
    t->board = (struct tensorboard)TENSORBOARD_NONE, t->wandb = (struct wandb)WANDB_NONE;
    gethostname(t->host, sizeof t->host - 1);
    t->last = (struct message){.run = job_run_name(options->job), .job = options->job->name, .host = t->host};
    for (int i = 0; i < MESSAGE_NUMBERS; i++) t->last.number[i] = NAN;
    t->began = t->progress = clock_seconds();
    return PLIM_OK;
}

void tell_hear(void *arg, const struct train_event *e)
{
    struct tell *t = arg;
    if (!t) return;
    bool rare = e->kind == TRAIN_STEP && e->step % t->options.job->training.log_every && e->step != e->steps;
    if (rare) return;
    remember(t, e);
    record(t, e);
    if (e->kind == TRAIN_STEP) tell_progress(t, e);
    if ((e->kind == TRAIN_MEMORY && (e->status > MEMORY_NORMAL || *e->action)) ||
        (e->kind == TRAIN_NOTE && e->warns))
        notify(t, NOTICE_WARNING, e->text);
    look_after_hooks(t);
}

enum plim_status tell_start(struct tell *t, const struct job_length *length, int64_t step,
                            struct plim_error *err)
{
    char text[320], planned[BYTES_TEXT], budget[BYTES_TEXT], after[48] = "";
    if (!t) return PLIM_OK;
    enum plim_status status = open_files(t, length, step, err);
    if (status != PLIM_OK) return status;
    if (step) snprintf(after, sizeof after, " after step %lld", (long long)step);
    snprintf(text, sizeof text, "%s%s: %lld steps on %.100s, planned %s of %s", step ? "goes on" : "started",
             after, (long long)t->last.steps, t->options.device, bytes_format(planned, (uint64_t)t->planned),
             bytes_format(budget, (uint64_t)t->last.budget));
    t->last.step = step;
    notify(t, NOTICE_START, text);
    return PLIM_OK;
}

void tell_end(struct tell *t, enum plim_status status, const char *error)
{
    char text[96];
    struct plim_error err;
    if (!t) return;
    if (t->wandb_on && wandb_end(&t->wandb, plim_exit_code(status), &err) != PLIM_OK) warn(t, "wandb", &err);
    snprintf(text, sizeof text, "finished: %lld steps in %.0f s", (long long)t->last.step,
             clock_seconds() - t->began);
    bool good = status == PLIM_OK || status == PLIM_INTERRUPTED;
    notify(t, good ? NOTICE_END : NOTICE_ERROR, status == PLIM_OK ? text : error);
}

void tell_close(struct tell *t)
{
    struct plim_error err;
    if (!t) return;
    for (int i = 0; i < HOOK_KINDS; i++) hook_finish(t->hook[i]);
    for (int i = 0; i < HOOK_KINDS; i++)
        if (hook_close(t->hook[i], &err)) warn_of_hook(t, i, &err);
    post_library_close(t->library);
    tensorboard_close(&t->board);
    wandb_close(&t->wandb);
    free(t);
}
