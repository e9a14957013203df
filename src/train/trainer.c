/* trainer.c - stepping and running; trainer_open.c makes a trainer ready. See trainer.h. */
#include "train/trainer.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/rng.h"
#include "mem/os.h"
#include "train/checkpoint.h"
#include "train/reference_pass.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The seed's random stream for rounding 16-bit weights and moments. */
#define ROUNDING_STREAM 0x726f756e64

/* The monitor's word, and the process's own line as it is right now. */
static enum memory_status judge(const struct trainer *t, int64_t used, int64_t budget)
{
    struct gauge own = gauge_of_budget(used, budget, &t->thresholds);
    enum memory_status mine = gauge_status(&own), seen = t->watch.seen.status;
    return mine > seen ? mine : seen;
}

bool trainer_owns_process(const struct trainer *t)
{
    const struct context *context = t->runtime.device->context;
    return context && context->process;
}

int64_t trainer_used(const struct trainer *t)
{
    struct os_process me = {0};
    struct device *device = t->runtime.device;
    if (device->ops->used) return (int64_t)device->ops->used(device);
    if (!trainer_owns_process(t)) return (int64_t)ledger_current(device->ledger[TIER_DEVICE]);
    os_process_memory(&me, NULL);
    return (int64_t)me.rss;
}

void trainer_tell(struct trainer *t, struct train_event *event)
{
    struct os_process me = {0};
    os_process_memory(&me, NULL);
    event->plan = &t->runtime.plan;
    event->length = &t->length;
    event->steps = t->length.steps;
    event->budget = t->runtime.request.budget;
    event->used = trainer_used(t);
    event->rss_peak = (int64_t)me.peak;
    for (int tier = 0; tier < TIER_COUNT; tier++) {
        event->planned_peak[tier] = t->runtime.planned_peak[tier];
        event->ledger_peak[tier] = runtime_ledger_peak(&t->runtime, (enum tier)tier);
    }
    event->status = judge(t, event->used, event->budget);
    event->level = t->watch.adapt.level;
    event->monitor = t->watch.monitor ? &t->watch.seen : NULL;
    event->memory = t->watch.facts.memory.reserved ? &t->watch.facts.memory : NULL;
    if (t->options.listener.hear) t->options.listener.hear(t->options.listener.arg, event);
}

/* Ranks have the new plan together or none of them: where memory was refused to some alone, they are no run any more. */
static enum plim_status agree_on_plan(struct trainer *t, enum plim_status status, struct plim_error *err)
{
    struct comm *comm = t->runtime.device->comm;
    double failed = status != PLIM_OK;
    if (!comm) return status;
    enum plim_status summed = comm_sum_numbers(comm, &failed, 1, err);
    if (summed != PLIM_OK) return summed;
    if (failed > 0 && failed < comm_ranks(comm)) t->runtime.torn = true;
    return comm_agree(comm, status, err);
}

enum plim_status trainer_replan_as(struct trainer *t, const struct replan *wish, struct plim_error *err)
{
    struct train_event event = {.kind = TRAIN_REPLANNED, .step = t->step};
    struct plim_error second;
    enum plim_status status = trainer_settle(t, err);
    if (status != PLIM_OK) return status;
    trainer_unbind(t);
    status = runtime_replan_as(&t->runtime, wish, &event.moves, err);
    status = agree_on_plan(t, status, err);
    if (status != PLIM_OK) { /* the old plan stands, with an exec of its own */
        if (!t->runtime.torn) trainer_bind(t, &second);
        return status;
    }
    t->watch.changes++;
    status = trainer_bind(t, err);
    if (status == PLIM_OK) trainer_tell(t, &event);
    return status;
}

enum plim_status trainer_replan(struct trainer *t, int64_t budget, struct plim_error *err)
{
    enum plim_status status = trainer_replan_as(t, &(struct replan){.budget = budget}, err);
    if (status != PLIM_OK) return status;
    t->watch.line = budget;
    bool shared = t->runtime.device->comm && t->watch.looks; /* ranks count samples as rank 0 does */
    adapt_reset(&t->watch.adapt, shared ? t->watch.look.sample : t->watch.seen.sample);
    return PLIM_OK;
}

bool trainer_may_save(const struct trainer *t) { return t->options.save_at_end || t->length.save_every > 0; }

static bool stop_asked(const struct trainer *t)
{
    return (t->options.stop && *t->options.stop) ||
           (t->watch.control && run_control_stopped(t->watch.control));
}

/* One rank alone stops between two passes; several agree on it between two steps. */
static bool stops_here(const struct trainer *t) { return !t->runtime.device->comm && stop_asked(t); }

/* The window must be cut into its passes by now: ranks have cut it alike, and the router's losses are the mean of all. */
static enum plim_status write_scalars(struct trainer *t, const struct loader_window *window, double lr,
                                      struct plim_error *err)
{
    int64_t tokens = window->all_targets;
    const struct job_training *c = &t->job->training;
    float *scalars = t->step_scalars;
    memset(scalars, 0, sizeof t->step_scalars);
    double n = (double)(t->updates + 1);
    scalars[SCALAR_LOSS_GRAD] = (float)(t->scaler.scale / (double)(tokens ? tokens : 1));
    scalars[SCALAR_LR] = (float)lr;
    scalars[SCALAR_BIAS1] = (float)(1 - pow(c->beta1, n));
    scalars[SCALAR_BIAS2] = (float)(1 - pow(c->beta2, n));
    scalars[SCALAR_CLIP] = (float)c->clip;
    scalars[SCALAR_UNSCALE] = (float)(1 / t->scaler.scale);
    scalars[SCALAR_ROW_SKIP] = (float)(comm_ranks(t->runtime.device->comm) - 1);
    scalars[SCALAR_SAMPLE_GRAD] =
        (float)(t->scaler.scale / (double)(window->all_rows ? window->all_rows : 1));
    scalars[SCALAR_AUX_GRAD] = (float)(t->scaler.scale / (double)t->step_passes);
    scalars[SCALAR_BETA2] = (float)(1 - pow(n, -0.8));
    uint64_t random = rng_u64((uint64_t)c->seed, ROUNDING_STREAM, (uint64_t)t->step);
    scalars[SCALAR_KEY_LOW] = (float)(random & 0xffff);
    scalars[SCALAR_KEY_HIGH] = (float)(random >> 16 & 0xffff);
    return exec_write(&t->runtime.exec, t->scalars, scalars, 0, sizeof t->step_scalars, err);
}

/* Dropout follows a row's number in the batch of the step, however that is cut into passes and dealt to ranks (loader.h). */
static enum plim_status write_first_row(struct trainer *t, int64_t row, struct plim_error *err)
{
    const struct comm *comm = t->runtime.device->comm;
    float first = (float)(row * comm_ranks(comm) + comm_rank(comm));
    if (!t->drops) return PLIM_OK;
    return exec_write(&t->runtime.exec, t->scalars, &first, SCALAR_FIRST_ROW * sizeof first, sizeof first,
                      err);
}

/* One pass over the next rows of the window, of which this rank has `left`: the rest of the pass is blank. */
static enum plim_status run_pass(struct trainer *t, const struct length_cut *cut, int64_t first_row,
                                 int64_t left, int64_t micro, struct plim_error *err)
{
    struct feed *feed = &t->feed[cut->program];
    int64_t rows = left < 0 ? 0 : left < cut->rows ? left : cut->rows;
    enum plim_status status = loader_fill(t->loader, rows, &feed->rows, err);
    if (status == PLIM_OK) status = reference_check(&feed->rows, rows, err);
    if (status == PLIM_OK) status = feed_send(feed, err);
    if (status == PLIM_OK) status = write_first_row(t, first_row, err);
    if (status == PLIM_OK && micro == 0) status = trainer_begin_pending(t, err);
    return status == PLIM_OK ? trainer_loop(t, cut->program, micro, err) : status;
}

/* Ranks cut their windows alike; where an epoch ends, some have no rows for their last passes. */
static void cut_window(struct trainer *t, const struct loader_window *window)
{
    int64_t ranks = comm_ranks(t->runtime.device->comm), row = 0;
    lengths_cut(&t->cutting, t->lengths.shape, t->lengths.count, window->lengths, window->slots);
    t->step_passes = 0;
    for (int64_t i = 0; i < t->cutting.count; row += t->cutting.cuts[i++].rows) {
        int64_t first = row * ranks, busy = window->all_rows - first;
        t->step_passes += busy < ranks ? busy : ranks;
    }
}

/* The passes of one window, which is cut. */
static enum plim_status run_window(struct trainer *t, const struct loader_window *window,
                                   struct train_event *event, bool *finished, struct plim_error *err)
{
    int64_t row = 0;
    const struct length_cut *cuts = t->cutting.cuts;
    *finished = true;
    event->rows = window->all_rows;
    for (int64_t i = 0; i < t->cutting.count; i++) {
        if (stops_here(t)) { /* invariant 2 */
            loader_rewind(t->loader);
            *finished = false;
            return PLIM_OK;
        }
        enum plim_status status = run_pass(t, &cuts[i], row, window->rows - row, i, err);
        if (status != PLIM_OK) return status;
        const struct pass_shape *shape = &t->lengths.shape[cuts[i].program];
        event->positions += shape->rows * (shape->time + t->feed[cuts[i].program].rows.source_time);
        row += cuts[i].rows;
    }
    event->positions *= comm_ranks(t->runtime.device->comm); /* ranks cut their rows into the same passes */
    event->padding = event->positions - window->all_positions;
    return PLIM_OK;
}

/* Rewards of the step, over all ranks; the loss over tokens is a part of loss[0]. */
static enum plim_status read_preferences(struct trainer *t, double loss[2], struct plim_error *err)
{
    double stat[PREFERENCE_STATS] = {0};
    if (t->preference < 0) return PLIM_OK;
    enum plim_status status = exec_read(&t->runtime.exec, t->preference, stat, 0, sizeof stat, err);
    if (status == PLIM_OK) status = comm_sum_numbers(t->runtime.device->comm, stat, PREFERENCE_STATS, err);
    struct preference_rule rule = job_preference(t->job);
    preferences_of(&rule, stat, loss, &t->preferences);
    return status;
}

/* The mean loss of the step over all ranks' tokens. */
static enum plim_status read_loss(struct trainer *t, struct train_event *event, struct plim_error *err)
{
    double loss[2] = {0};
    enum plim_status status = exec_read(&t->runtime.exec, t->loss, loss, 0, sizeof loss, err);
    if (status == PLIM_OK) status = comm_sum_numbers(t->runtime.device->comm, loss, 2, err);
    if (status == PLIM_OK) status = router_read(&t->router, &t->runtime.exec, t->step_passes, err);
    if (status == PLIM_OK) status = read_preferences(t, loss, err);
    event->token_loss = loss[1] > 0 ? loss[0] / loss[1] : 0;
    event->preferences = t->preference >= 0 ? &t->preferences : NULL;
    event->loss = event->token_loss + t->router.balance + t->router.z;
    event->router = t->router.experts ? &t->router : NULL;
    return status;
}

/* The update is made only when the loss is finite, and changes nothing when a gradient is not (trainer_skip.c). */
static enum plim_status finish_step(struct trainer *t, struct train_event *event, struct plim_error *err)
{
    float clip[CLIP_COUNT] = {[CLIP_NORM] = -1, [CLIP_FINITE] = 1};
    enum plim_status status = read_loss(t, event, err);
    bool finite = isfinite(event->loss);
    if (status == PLIM_OK && finite) status = trainer_update(t, err);
    if (status == PLIM_OK && finite && t->clip >= 0)
        status = exec_read(&t->runtime.exec, t->clip, clip, 0, sizeof clip, err);
    if (status != PLIM_OK) return status;
    finite = finite && clip[CLIP_FINITE] != 0;
    if (finite && t->clip >= 0) trainer_clip_note(t, clip);
    if (finite) status = trainer_leave_pending(t, err);
    if (status != PLIM_OK) return status;
    event->grad_norm = clip[CLIP_NORM];
    event->skipped = !finite;
    event->scale = t->scaler.scale;
    t->updates += finite;
    if (finite) t->stuck = t->skipped_row = 0;
    scaler_update(&t->scaler, finite);
    return PLIM_OK;
}

/* Heap that the loader has kept for itself is its own, should memory outside the plan grow. */
static enum plim_status next_window(struct trainer *t, struct loader_window *window, struct plim_error *err)
{
    int64_t before = (int64_t)os_heap_bytes();
    enum plim_status status = loader_window(t->loader, t->runtime.request.rows, window, err);
    fault_lose(FAULT_LEAK_LOADER);
    t->watch.loader_held += (int64_t)os_heap_bytes() - before;
    fault_lose(FAULT_LEAK);
    return status;
}

/* Passes over the training data so far; where it is not known how many rows one has, those that are finished. */
static double epochs_done(const struct trainer *t)
{
    struct loader_state at;
    loader_state(t->loader, &at);
    int64_t rows = t->length.epoch.rows;
    return rows ? (double)at.rows / (double)rows : (double)at.epoch;
}

/* Where the job counts epochs: the first window of one, or of a run that goes on inside it. */
static void tell_epoch(struct trainer *t, const struct loader_window *window)
{
    int64_t number = (int64_t)window->epoch + 1;
    if (!t->job->training.whole_epochs || number == t->epoch) return;
    t->epoch = number;
    trainer_tell(t, &(struct train_event){.kind = TRAIN_EPOCH, .step = t->step, .epoch = (double)number});
}

/* Disk use since `then`. */
static struct disk_use disk_since(const struct trainer *t, struct disk_use then)
{
    if (!t->runtime.disk) return (struct disk_use){0};
    struct disk_use now = disk_use_of(t->runtime.disk);
    return (struct disk_use){now.read - then.read, now.written - then.written, now.copied - then.copied,
                             now.idle - then.idle, now.waited - then.waited};
}

enum plim_status trainer_step(struct trainer *t, struct train_event *event, bool *finished,
                              struct plim_error *err)
{
    double start = clock_seconds();
    struct disk_use before = disk_since(t, (struct disk_use){0});
    t->stage = STAGE_STEP;
    struct loader_window window = {0};
    double lr = lr_schedule_rate(&t->schedule, t->updates); /* skipped steps do not move it */
    enum plim_status status = next_window(t, &window, err);
    if (t->runtime.device->comm) {
        if (status == PLIM_OK && stop_asked(t)) status = plim_fail(err, PLIM_INTERRUPTED, "stopped");
        status = comm_agree(t->runtime.device->comm, status, err);
        if (status == PLIM_INTERRUPTED) loader_rewind(t->loader);
    }
    if (status == PLIM_INTERRUPTED) { /* invariant 2, while rows were looked for */
        *finished = false;
        return PLIM_OK;
    }
    t->data_failed = status != PLIM_OK;
    int64_t tokens = window.all_targets;
    if (status == PLIM_OK) tell_epoch(t, &window);
    if (status == PLIM_OK) cut_window(t, &window);
    if (status == PLIM_OK) status = write_scalars(t, &window, lr, err);
    if (status == PLIM_OK) status = run_window(t, &window, event, finished, err);
    if (status != PLIM_OK || !*finished) return status;
    fault_may_die();
    status = finish_step(t, event, err);
    if (status != PLIM_OK) return status;
    t->step++;
    if (!event->skipped) lr_schedule_observe(&t->schedule, SCHEDULE_ON_STEP, event->loss);
    t->rows_done += event->rows, t->positions += event->positions, t->padding += event->padding;
    event->kind = TRAIN_STEP;
    event->step = t->step, event->lr = lr, event->tokens = tokens;
    event->passes = t->step_passes, t->passes += event->passes;
    event->epoch = epochs_done(t);
    event->seconds = clock_seconds() - start;
    event->tokens_per_s = (double)tokens / event->seconds;
    event->disk = disk_since(t, before);
    return PLIM_OK;
}

static bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

/* The first bad record is worth a line; the others are counted. */
static void tell_bad(struct trainer *t)
{
    struct loader_stats stats;
    char text[320];
    loader_stats(t->loader, &stats);
    if (t->told_bad || !stats.problem) return;
    snprintf(text, sizeof text, "skipped: %s", stats.problem);
    trainer_tell(t, &(struct train_event){.kind = TRAIN_NOTE, .step = t->step, .text = text, .warns = true});
    t->told_bad = true;
}

static void tell_end(struct trainer *t)
{
    struct loader_stats stats;
    loader_stats(t->loader, &stats);
    trainer_tell(t, &(struct train_event){.kind = TRAIN_ENDED,
                                          .step = t->step,
                                          .rows = t->rows_done,
                                          .positions = t->positions,
                                          .padding = t->padding,
                                          .passes = t->passes,
                                          .epoch = epochs_done(t),
                                          .skipped_steps = t->step - t->updates,
                                          .bad_records = (int64_t)stats.bad,
                                          .dropped_samples = (int64_t)stats.dropped});
}

/* An evaluation that is due by training.eval_every feeds the schedule; one at a run's end alone does not, so that a run that
 * is extended later has the rates of one that was never interrupted. A stop in the middle of it leaves it to the resumed run. */
static enum plim_status evaluate_and_tell(struct trainer *t, bool scheduled, bool *best,
                                          struct plim_error *err)
{
    struct train_event event = {.kind = TRAIN_EVAL, .step = t->step};
    t->stage = STAGE_EVALUATION;
    enum plim_status status = trainer_evaluate(t, &event.loss, &event.tokens, err);
    t->eval_due = status == PLIM_INTERRUPTED && scheduled;
    if (status == PLIM_NO_FIT && t->watch.adapt.level != ADAPT_FULL) { /* the full plan has room for it */
        trainer_tell(t, &(struct train_event){.kind = TRAIN_NOTE,
                                              .step = t->step,
                                              .text = "evaluation left out while memory is short"});
        return PLIM_OK;
    }
    if (status != PLIM_OK) return status;
    event.scores = t->scores;
    if (scheduled) lr_schedule_observe(&t->schedule, SCHEDULE_ON_EVAL, event.loss);
    trainer_tell(t, &event);
    if (scheduled) *best = trainer_best_hear(t, event.loss);
    return PLIM_OK;
}

enum plim_status trainer_save(struct trainer *t, struct plim_error *err)
{
    char path[512];
    if (!trainer_may_save(t)) return PLIM_OK;
    enum plim_status status = trainer_settle(t, err);
    if (status == PLIM_OK) status = checkpoint_save(t, path, sizeof path, err);
    if (status == PLIM_OK)
        trainer_tell(t, &(struct train_event){.kind = TRAIN_SAVED, .step = t->step, .text = path});
    return status;
}

static enum plim_status change_budget(struct trainer *t, struct plim_error *err)
{
    while (t->next_change < t->options.nchanges && t->options.changes[t->next_change].step <= t->step + 1) {
        t->stage = STAGE_REPLAN, t->wanted = t->options.changes[t->next_change++].bytes;
        enum plim_status status = trainer_replan(t, t->wanted, err);
        if (status != PLIM_OK &&
            !t->runtime.torn) { /* the old plan still stands: keep the work before giving up */
            struct plim_error unsaved;
            trainer_save(t, &unsaved);
        }
        if (status != PLIM_OK) return status;
    }
    return PLIM_OK;
}

static const char *who_stopped(const struct trainer *t)
{
    if (t->options.stop && *t->options.stop) return "a signal";
    bool told = t->watch.control && run_control_stopped(t->watch.control);
    return told ? "plimsoll ctl" : "a signal to another rank";
}

/* Seconds that this thread has computed, where somebody wants to know what watching takes of them. */
static double thread_seconds(const struct trainer *t) { return t->options.profile ? clock_thread() : 0; }

/* An evaluation that a run before this one could not finish. */
static bool eval_pending(const struct trainer *t) { return t->eval_due && t->corpus.validation; }

bool trainer_more(const struct trainer *t)
{
    bool left = t->step < t->length.steps || eval_pending(t);
    return left && !t->interrupted && !best_model_stops(&t->best);
}

/* Work between two steps: a changed budget, orders, memory pressure. */
static enum plim_status prepare_step(struct trainer *t, struct plim_error *err)
{
    t->watch.seconds -= thread_seconds(t);
    trainer_trace_due(t);
    enum plim_status status = change_budget(t, err);
    if (status == PLIM_OK) status = trainer_obey(t, err);
    if (status == PLIM_OK) status = trainer_adapt(t, err);
    if (status == PLIM_OK) status = trainer_clip_mind(t, err);
    t->watch.seconds += thread_seconds(t);
    return status;
}

static void report_step(struct trainer *t, struct train_event *event)
{
    trainer_trace_end(t, event);
    t->watch.seconds -= thread_seconds(t);
    tell_bad(t);
    trainer_tell(t, event);
    trainer_note_step(t, event);
    t->watch.seconds += thread_seconds(t);
    t->saved = false;
}

/* The evaluation and the checkpoint that are due after a step. */
static enum plim_status after_step(struct trainer *t, const struct train_event *event, struct plim_error *err)
{
    const struct job_length *length = &t->length;
    bool best = false, last = t->step == length->steps, evaluates = due(length->eval_every, t->step);
    enum plim_status status = event->skipped ? trainer_skipped(t, event, err) : PLIM_OK;
    if (status != PLIM_OK) return status;
    if (t->corpus.validation && (evaluates || last)) status = evaluate_and_tell(t, evaluates, &best, err);
    if (status == PLIM_INTERRUPTED) status = PLIM_OK; /* the step counts; its evaluation is left out */
    bool saves = due(length->save_every, t->step) && !t->stuck; /* else weights may be bad already */
    if (status == PLIM_OK && (best || saves)) status = trainer_save(t, err), t->saved = true;
    if (stops_here(t)) t->interrupted = true;
    return status;
}

enum plim_status trainer_advance(struct trainer *t, struct plim_error *err)
{
    struct train_event event = {0};
    bool best = false, finished = true;
    enum plim_status status = PLIM_OK;
    if (eval_pending(t)) status = evaluate_and_tell(t, true, &best, err);
    if (status == PLIM_INTERRUPTED) return t->interrupted = true, PLIM_OK;
    if (status == PLIM_OK && !trainer_more(t)) return PLIM_OK;
    if (status == PLIM_OK) status = prepare_step(t, err);
    if (status == PLIM_OK) trainer_trace_begin(t);
    if (status == PLIM_OK) status = trainer_step(t, &event, &finished, err);
    if (status != PLIM_OK) return status;
    if (!finished) return t->interrupted = true, PLIM_OK;
    report_step(t, &event);
    return after_step(t, &event, err);
}

enum plim_status trainer_end(struct trainer *t, enum plim_status status, struct plim_error *err)
{
    bool finished = !t->interrupted;
    trainer_trace_drop(t);
    if (status == PLIM_OK) status = trainer_settle(t, err);
    if (status == PLIM_OK && finished) status = trainer_check_taken(t, err);
    if (status == PLIM_OK && !t->saved && (t->options.save_at_end || !finished))
        status = trainer_save(t, err);
    if (status == PLIM_OK && finished) status = trainer_best_end(t, err);
    bool keeps =
        t->data_failed || (t->diverged && !t->saved_step); /* an older checkpoint is better than that state */
    if (keeps && t->updates > 0 && t->options.save_at_end) { /* no reason to lose the work */
        struct plim_error unsaved;
        trainer_save(t, &unsaved);
    }
    tell_end(t);
    if ((status == PLIM_IO || status == PLIM_LINK) &&
        t->runtime.device->comm) /* who reads it looks for a step */
        plim_fail(err, status, "%s; in step %lld", err->text, (long long)t->step + 1);
    if (status != PLIM_OK) trainer_explain(t, err);
    if (status == PLIM_OK && !finished)
        return plim_fail(
            err, PLIM_INTERRUPTED, "stopped by %s after step %lld; %s", who_stopped(t), (long long)t->step,
            trainer_may_save(t) ? "continue with --resume" : "nothing was saved, as --no-checkpoint asks");
    return status;
}

enum plim_status trainer_run(struct trainer *t, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    while (status == PLIM_OK && trainer_more(t)) status = trainer_advance(t, err);
    return trainer_end(t, status, err);
}
