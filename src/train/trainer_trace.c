/* trainer_trace.c - measuring one step, and the snapshot that comes of it. See run_trace.h. */
#include "mem/allocations.h"
#include "train/trainer.h"
#include "watch/explain.h"
#include "watch/holders.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- measuring ------------------------------------------------------------------------------------------------------ */

/* A pass of the step that is measured; by_op: each of its ops, too. */
static enum plim_status measure(struct trainer *t, struct exec *exec, bool update, bool by_op, int64_t micro,
                                struct plim_error *err)
{
    struct run_trace *r = &t->trace;
    struct op_span span;
    enum plim_status status = op_clock_pass(&r->clock, exec, update, micro, by_op, &span, err);
    if (status == PLIM_OK && r->passes < r->room)
        r->pass[r->passes++] = (struct snapshot_pass){span.start, span.seconds, update, trainer_used(t)};
    return status;
}

/* Ops of the plan's own tape are timed, the first time it runs; rows of other lengths have other tapes. */
enum plim_status trainer_loop(struct trainer *t, int program, int64_t micro, struct plim_error *err)
{
    struct exec *exec = lengths_exec(&t->lengths, program);
    if (!t->trace.on) return exec_loop(exec, micro, err);
    bool by_op = program == 0 && !t->trace.measured;
    t->trace.measured |= by_op;
    return measure(t, exec, false, by_op, micro, err);
}

enum plim_status trainer_update(struct trainer *t, struct plim_error *err)
{
    if (!t->trace.on) return exec_update(&t->runtime.exec, err);
    return measure(t, &t->runtime.exec, true, true, 0, err);
}

/* --- wanting -------------------------------------------------------------------------------------------------------- */

/* An order waits for what the options ask for, and is told again before the next step. */
void trainer_trace_order(struct trainer *t, const struct run_order *order)
{
    struct run_trace *r = &t->trace;
    if (r->wanted) return;
    r->wanted = true;
    r->order = *order;
    struct snapshot_wish *wish = &r->order.snapshot;
    if (!*wish->file)
        snprintf(wish->file, sizeof wish->file, "%.400s/snapshot-%lld%s", t->job->output_dir,
                 (long long)t->step + 1, snapshot_format_ending(wish->format));
}

void trainer_trace_due(struct trainer *t)
{
    struct run_trace *r = &t->trace;
    const struct train_options *o = &t->options;
    bool last = t->step + 1 == t->length.steps;
    if (!o->trace || r->given || (t->step + 1 < o->trace_step && !last)) return;
    r->given = true;
    struct run_order order = {.snapshot = {.format = SNAPSHOT_TRACE}};
    snapshot_rank_path(o->trace, comm_rank(t->runtime.device->comm), order.snapshot.file);
    trainer_trace_order(t, &order);
}

/* The socket's caller hears what came of it; of what the options asked for only what went wrong is worth a line. */
static void tell(struct trainer *t, enum plim_status status, const struct plim_error *err)
{
    struct run_trace *r = &t->trace;
    char text[640];
    if (r->order.number && t->watch.control)
        run_control_done(t->watch.control, &r->order, status,
                         status == PLIM_OK ? r->order.snapshot.file : err->text);
    snprintf(text, sizeof text,
             status == PLIM_OK ? "trace of step %lld written: %.500s" : "no trace of step %lld: %.500s",
             (long long)t->step, status == PLIM_OK ? r->order.snapshot.file : err->text);
    if (!r->order.number)
        trainer_tell(t, &(struct train_event){.kind = TRAIN_NOTE, .step = t->step, .text = text});
}

static void end(struct trainer *t, enum plim_status status, const struct plim_error *err)
{
    struct run_trace *r = &t->trace;
    if (r->wanted) tell(t, status, err);
    op_clock_stop(&r->clock, &t->runtime.exec);
    free(r->pass);
    *r = (struct run_trace){.given = r->given};
}

void trainer_trace_begin(struct trainer *t)
{
    struct run_trace *r = &t->trace;
    struct plim_error err = {0};
    if (!r->wanted) return;
    r->room = (int)t->runtime.request.rows + 1; /* a pass for each row at most, and the update */
    r->pass = malloc((size_t)r->room * sizeof *r->pass);
    r->before = t->watch.facts.step_seconds;
    r->used = trainer_used(t);
    enum plim_status status =
        r->pass ? op_clock_start(&r->clock, &t->runtime.exec, t->runtime.plan.knobs.accumulation > 1, &err)
                : plim_fail(&err, PLIM_NO_MEMORY, "out of memory for a snapshot");
    r->on = status == PLIM_OK;
    if (!r->on) end(t, status, &err);
}

void trainer_trace_drop(struct trainer *t)
{
    struct plim_error err = {0};
    if (t->trace.wanted) end(t, plim_fail(&err, PLIM_INTERRUPTED, "the run ended before the step did"), &err);
}

/* --- writing -------------------------------------------------------------------------------------------------------- */

/* Adds the run's own fields to the JSON form of its plan. */
static void put_more(void *arg, struct json_writer *w)
{
    const struct trainer *t = arg;
    struct holder holders[HOLDERS_MAX];
    const struct device *device = t->runtime.device;
    environment_json(device->context, &device->facts, device->ops->name, w, "environment");
    summary_json(&t->watch.facts.memory, w, "memory");
    json_begin_object(w, "knobs");
    knobs_json(w, &t->runtime.plan.knobs);
    json_end_object(w);
    if (t->watch.monitor) monitor_json(&t->watch.seen, w, "monitor");
    holders_json(holders, holders_of(&t->watch.seen.now, os_machine_root(), holders), w, "holders");
    allocations_json(w, "allocations", 32);
}

/* A step whose rows were all of other lengths has no ops of its loop. */
void trainer_trace_end(struct trainer *t, const struct train_event *event)
{
    struct run_trace *r = &t->trace;
    struct plim_error err = {0};
    struct snapshot s;
    if (!r->on) return;
    enum plim_status status = op_clock_read(&r->clock, &t->runtime.exec, &err);
    const struct snapshot_run run = {.job = t->job->name,
                                     .step = t->step,
                                     .steps = t->length.steps,
                                     .loss = event->loss,
                                     .lr = event->lr,
                                     .tokens_per_s = event->tokens_per_s,
                                     .seconds = event->seconds,
                                     .last_seconds = r->before,
                                     .used = r->used,
                                     .ops = r->measured ? r->clock.ops : NULL,
                                     .pass = r->pass,
                                     .passes = r->passes,
                                     .more = put_more,
                                     .arg = t};
    if (status == PLIM_OK)
        status = snapshot_init(&s, &t->runtime.plan, &t->runtime.device->facts, &run, &err);
    if (status == PLIM_OK) {
        status = snapshot_save(&s, r->order.snapshot.format, r->order.snapshot.file, &err);
        snapshot_release(&s);
    }
    end(t, status, &err);
}
