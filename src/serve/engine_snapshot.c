/* engine_snapshot.c - see engine_snapshot.h. */
#include "serve/engine_snapshot.h"
#include "exec/op_clock.h"
#include "serve/engine_part.h"
#include "serve/plan_text.h"
#include "watch/explain.h"
#include "watch/holders.h"

#include <stdio.h>
#include <string.h>

/* --- orders --------------------------------------------------------------------------------------------------------- */

enum plim_status engine_snapshot(struct engine *e, const struct snapshot_wish *wish, int64_t *number,
                                 struct plim_error *err)
{
    struct engine_orders *o = &e->orders;
    pthread_mutex_lock(&e->lock);
    int64_t waiting = o->waiting;
    if (!waiting) {
        *number = o->waiting = o->done + 1, e->wish = *wish;
        pthread_cond_signal(&e->more);
    }
    pthread_mutex_unlock(&e->lock);
    if (!waiting) return PLIM_OK;
    return plim_fail(err, PLIM_BUSY, "order %lld is waiting for the next step; try again when it is done",
                     (long long)waiting);
}

void engine_orders(struct engine *e, struct engine_orders *out)
{
    LOCKED(&e->lock);
    *out = e->orders;
}

static void finish(struct engine *e, enum plim_status status, const struct plim_error *err)
{
    struct engine_orders *o = &e->orders;
    LOCKED(&e->lock);
    o->done = o->waiting, o->waiting = 0, o->good = status == PLIM_OK;
    snprintf(o->text, sizeof o->text, "%.500s", o->good ? e->wish.file : err->text);
}

/* Is one waiting, for a step or, idle, for an engine without one? The wish stays as it is until it is finished. */
static bool waits(struct engine *e, bool idle)
{
    LOCKED(&e->lock);
    return e->orders.waiting && (!idle || !e->live_count);
}

/* --- writing -------------------------------------------------------------------------------------------------------- */

/* Adds the server's own fields to the JSON form of its plan. */
static void put_more(void *arg, struct json_writer *w)
{
    struct engine *e = arg;
    struct engine_stats stats;
    struct watch_reading reading;
    struct holder holders[HOLDERS_MAX];
    const struct watch_source source = {.root = os_machine_root(), .device = e->device};
    engine_stats(e, &stats);
    watch_read(watch_readers, &source, &reading);
    environment_json(e->device->context, &e->device->facts, e->device->ops->name, w, "environment");
    json_begin_object(w, "serving");
    plan_text_json(&e->plan, w);
    json_int(w, "running", stats.running);
    json_int(w, "waiting", stats.waiting);
    json_end_object(w);
    holders_json(holders, holders_of(&reading, source.root, holders), w, "holders");
}

/* A member of a family has a tape and places of its own; line, totals and the arena's size are the family's. */
static enum plim_status save(struct engine *e, const struct tape *tape, const struct layout *layout,
                             const struct snapshot_run *run, const struct snapshot_wish *wish,
                             struct plim_error *err)
{
    struct plan plan = {.knobs = {.micro_batch = 1, .accumulation = 1},
                        .tape = *tape,
                        .layout = *layout,
                        .budget = e->plan.budget,
                        .total = e->plan.total};
    struct snapshot s;
    plan.layout.arena_bytes = e->plan.arena;
    enum plim_status status = snapshot_init(&s, &plan, &e->device->facts, run, err);
    if (status != PLIM_OK) return status;
    plan.step_seconds = s.seconds;
    status = snapshot_save(&s, wish->format, wish->file, err);
    snapshot_release(&s);
    return status;
}

enum plim_status engine_save_plan(struct engine *e, const struct snapshot_wish *wish, struct plim_error *err)
{
    const struct tape *tape;
    const struct layout *layout;
    e->kind->largest(e, &tape, &layout);
    return save(e, tape, layout, NULL, wish, err);
}

void engine_snapshot_idle(struct engine *e)
{
    struct plim_error err = {0};
    if (waits(e, true)) finish(e, engine_save_plan(e, &e->wish, &err), &err);
}

/* --- measuring ------------------------------------------------------------------------------------------------------ */

static int64_t used(const struct engine *e)
{
    struct os_process me = {0};
    if (e->device->ops->used) return (int64_t)e->device->ops->used(e->device);
    os_process_memory(&me, NULL);
    return (int64_t)me.rss;
}

static enum plim_status write_pass(struct engine *e, const struct exec *exec, const struct op_clock *clock,
                                   const struct snapshot_pass *pass, int64_t before, struct plim_error *err)
{
    struct engine_stats stats;
    engine_stats(e, &stats);
    const struct snapshot_run run = {.job = e->model,
                                     .step = stats.steps,
                                     .seconds = pass->seconds,
                                     .used = before,
                                     .ops = clock->ops,
                                     .pass = pass,
                                     .passes = 1,
                                     .more = put_more,
                                     .arg = e};
    return save(e, exec->tape, exec->layout, &run, &e->wish, err);
}

static enum plim_status measured_pass(struct engine *e, struct exec *exec, struct plim_error *err)
{
    struct plim_error why = {0};
    struct op_clock clock;
    struct op_span span;
    int64_t before = used(e);
    enum plim_status written = op_clock_start(&clock, exec, false, &why);
    if (written != PLIM_OK) return finish(e, written, &why), exec_loop(exec, 0, err);
    enum plim_status status = op_clock_pass(&clock, exec, false, 0, true, &span, err);
    struct snapshot_pass pass = {span.start, span.seconds, false, used(e)};
    if (status == PLIM_OK) {
        written = op_clock_read(&clock, exec, &why);
        if (written == PLIM_OK) written = write_pass(e, exec, &clock, &pass, before, &why);
    } else
        written = plim_fail(&why, status, "the step that was measured failed");
    finish(e, written, &why);
    op_clock_stop(&clock, exec);
    return status;
}

enum plim_status engine_loop(struct engine *e, struct exec *exec, struct plim_error *err)
{
    return waits(e, false) ? measured_pass(e, exec, err) : exec_loop(exec, 0, err);
}
