/* trainer_watch.c - a trainer looks at its memory between two steps, tells about it, and gives way or takes back what it gave.
 *
 * What is done is adapt.c's to decide; here an act becomes a re-plan. The budget that somebody asked for (`line`) is kept,
 * so that restoring leads back to the very plan the run began with. */
#include "train/trainer.h"
#include "base/bytes.h"
#include "mem/allocations.h"

#include <stdio.h>
#include <stdlib.h>

/* Normal samples before a run takes back what it gave. */
#define CALM_SAMPLES 3

/* Growth outside the plan that is no leak: what processes of one job differ by, several times over. */
#define LEAK_ALLOWED (4 << 20)

/* A budget that follows the machine moves when it is off by more than this part of it. */
#define FOLLOW_PART 64

static struct adapt_rules rules_of(const struct trainer *t)
{
    const struct job *job = t->job;
    int64_t least = 1, most = 0;
    job_micro_bounds(job, &least, &most);
    return (struct adapt_rules){.enabled = job->batching.enabled,
                                .smooth = job->batching.smooth,
                                .follows = !job->budget && job_given(job, &job->budget),
                                .pinned = job_given(job, &job->training.micro_batch),
                                .every = job->batching.every,
                                .least = least,
                                .calm = CALM_SAMPLES};
}

/* --- telling ------------------------------------------------------------------------------------------------------- */

static void tell_line(struct trainer *t, const struct gauge *gauge, enum memory_status status,
                      const char *action)
{
    struct run_watch *w = &t->watch;
    STRBUF_AUTO line = STRBUF_INIT;
    char bytes[BYTES_TEXT];
    bool hidden = t->job->monitor.silent && status == MEMORY_WARNING && !action;
    status_line(&line, t->step, gauge, status, action);
    int ranks = comm_ranks(t->runtime.device->comm);
    for (int r = 0; r < ranks && w->rank_used; r++)
        strbuf_addf(&line, "%s rank %d %s", r ? "," : "; used:", r,
                    bytes_format(bytes, (uint64_t)w->rank_used[r]));
    w->told = true, w->told_status = status;
    if (!hidden)
        trainer_tell(t, &(struct train_event){.kind = TRAIN_MEMORY,
                                              .step = t->step,
                                              .text = strbuf_text(&line),
                                              .action = action ? action : "",
                                              .rank_used = w->rank_used,
                                              .ranks = ranks});
}

static void tell_leak(struct trainer *t)
{
    struct run_watch *w = &t->watch;
    STRBUF_AUTO text = STRBUF_INIT;
    if (!w->seen.leak.found || w->leak_told) return;
    leak_text(&w->seen.leak, &text);
    if (allocations_counted()) strbuf_add(&text, "; grown since the run began: ");
    allocations_text(&text, 3);
    trainer_tell(t, &(struct train_event){
                        .kind = TRAIN_NOTE, .step = t->step, .text = strbuf_text(&text), .warns = true});
    w->leak_told = true;
}

void trainer_note_step(struct trainer *t, const struct train_event *event)
{
    struct run_watch *w = &t->watch;
    struct run_facts *f = &w->facts;
    const struct knobs *k = &t->runtime.plan.knobs;
    f->step = t->step, f->steps = t->length.steps;
    if (event) {
        f->loss = event->loss, f->lr = event->lr, f->tokens = event->tokens;
        f->tokens_per_s = event->tokens_per_s, f->step_seconds = event->seconds;
    }
    f->micro_batch = k->micro_batch, f->accumulation = k->accumulation;
    f->level = w->adapt.level, f->changes = w->changes;
    summary_of(&t->runtime, &f->memory);
    if (w->control) run_control_tell(w->control, f);
    if (!w->monitor) return;
    monitor_tell(w->monitor,
                 &(struct monitor_own){.step = t->step,
                                       .budget = trainer_owns_process(t) ? t->runtime.request.budget : 0,
                                       .gives_way = w->adapt.rules.enabled,
                                       .loader_held = w->loader_held,
                                       .planned = t->runtime.plan.overhead,
                                       .allowed = trainer_owns_process(t) ? LEAK_ALLOWED : 0});
    monitor_look(w->monitor, &w->seen);
    int64_t every = t->job->monitor.log_every;
    bool due = every > 0 && t->step % every == 0;
    if (event && w->seen.gauges && (due || !w->told || w->told_status != w->seen.status))
        tell_line(t, &w->seen.gauge[w->seen.worst], w->seen.status, NULL);
    tell_leak(t);
}

/* --- giving way ---------------------------------------------------------------------------------------------------- */

/* A budget of `auto` leaves the reserve free beside what others take. */
static void follow(const struct trainer *t, const struct gauge *g, struct adapt_look *look)
{
    int64_t reserve = t->job->monitor.reserve ? (int64_t)t->job->monitor.reserve : g->total / 20;
    look->over = g->used - (g->total - reserve);
    look->room = -look->over;
    if (look->more > look->ours / 8) look->more = look->ours / 8;
    if (look->over > g->total / FOLLOW_PART && look->status < MEMORY_WARNING) look->status = MEMORY_WARNING;
    if (look->over <= g->total / FOLLOW_PART && look->status == MEMORY_WARNING) look->status = MEMORY_NORMAL;
}

static struct adapt_look look_of(const struct trainer *t)
{
    const struct run_watch *w = &t->watch;
    const struct gauge *g = &w->seen.gauge[w->seen.leading];
    struct adapt_look look = {.step = t->step,
                              .sample = w->seen.sample,
                              .status = gauge_status(g),
                              .over = g->used - g->line[LINE_TARGET],
                              .room = g->line[LINE_WARNING] - g->used,
                              .ours = t->runtime.plan.total,
                              .more = w->full_bytes - t->runtime.plan.total};
    if (w->adapt.rules.follows && w->seen.leading == 0) follow(t, g, &look);
    return look;
}

static struct replan tighten(const struct trainer *t, const struct adapt_look *look)
{
    int64_t budget = t->runtime.plan.total - look->over;
    bool emergency = look->status == MEMORY_EMERGENCY;
    return (struct replan){.budget = budget > 1 ? budget : 1, .or_smallest = true, .worthwhile = !emergency};
}

/* Activations are about as large as their micro-batch; kept tensors stay. */
static struct replan shrink(const struct trainer *t, const struct adapt_look *look)
{
    const struct adapt_rules *rules = &t->watch.adapt.rules;
    const struct plan *plan = &t->runtime.plan;
    double moving = (double)(plan->layout.arena_bytes - plan->layout.kept_bytes);
    double share = moving > 0 ? 1 - (double)look->over / moving : 0;
    return (struct replan){.budget = trainer_owns_process(t) ? t->runtime.request.budget : 0,
                           .micro_batch = adapt_smaller(t->runtime.request.rows, plan->knobs.micro_batch,
                                                        rules->least, rules->smooth ? 1 : share)};
}

static struct replan restore(const struct trainer *t, const struct adapt_look *look)
{
    const struct run_watch *w = &t->watch;
    int64_t now = t->runtime.plan.knobs.micro_batch, afford = t->runtime.plan.total + look->room;
    if (w->adapt.rules.follows) return (struct replan){.budget = afford < w->line ? afford : w->line};
    bool stepwise = w->adapt.rules.smooth && w->adapt.level == ADAPT_REDUCED;
    int64_t next = stepwise ? adapt_larger(t->runtime.request.rows, now, w->full_micro) : 0;
    return (struct replan){.budget = w->line, .micro_batch = next < w->full_micro ? next : 0};
}

static struct replan (*const wishes[ADAPT_ACTS])(const struct trainer *, const struct adapt_look *) = {
    [ADAPT_SHRINK] = shrink, [ADAPT_TIGHTEN] = tighten, [ADAPT_RESTORE] = restore};

/* Does as decided; what cannot shrink is planned anew. */
static enum plim_status carry_out(struct trainer *t, enum adapt_act *act, const struct adapt_look *look,
                                  bool *whole, struct plim_error *err)
{
    struct replan wish = wishes[*act](t, look);
    bool smaller = *act != ADAPT_SHRINK || wish.micro_batch > 0;
    wish.hold = true;
    *whole = !wish.micro_batch && wish.budget == t->watch.line;
    enum plim_status status = smaller ? trainer_replan_as(t, &wish, err) : PLIM_NO_FIT;
    if (status == PLIM_NO_FIT && *act == ADAPT_SHRINK && !t->runtime.torn) {
        *act = ADAPT_TIGHTEN;
        return carry_out(t, act, look, whole, err);
    }
    if (*act == ADAPT_TIGHTEN) os_give_back();
    return status;
}

bool trainer_look(struct trainer *t, struct adapt_look *out)
{
    struct run_watch *w = &t->watch;
    if (!w->monitor || !w->seen.gauges) return false;
    if (w->adapt.level == ADAPT_FULL)
        w->full_bytes = t->runtime.plan.total, w->full_micro = t->runtime.plan.knobs.micro_batch;
    *out = look_of(t);
    return true;
}

/* The number of the newest sample; ranks count as rank 0 does. */
static enum plim_status newest_sample(struct trainer *t, int64_t *out, struct plim_error *err)
{
    struct monitor_state newest;
    monitor_look(t->watch.monitor, &newest);
    *out = newest.sample;
    return comm_broadcast(t->runtime.device->comm, out, sizeof *out, 0, err);
}

enum plim_status trainer_adapt(struct trainer *t, struct plim_error *err)
{
    struct run_watch *w = &t->watch;
    int64_t sample;
    bool whole;
    if (!w->looks) return PLIM_OK;
    struct adapt_look look = w->look;
    enum adapt_act act = adapt_decide(&w->adapt, &look);
    if (act == ADAPT_STAY) return PLIM_OK;
    enum plim_status status = carry_out(t, &act, &look, &whole, err);
    enum plim_status told = newest_sample(t, &sample, err);
    if (told != PLIM_OK) return told;
    adapt_done(&w->adapt, act, t->step, sample, status == PLIM_OK, whole);
    bool stands = (status == PLIM_NO_FIT || status == PLIM_NO_MEMORY) && !t->runtime.torn;
    if (status == PLIM_OK) tell_line(t, &w->seen.gauge[w->seen.leading], look.status, adapt_act_text(act));
    trainer_note_step(t, NULL);
    return stands ? PLIM_OK : status; /* what cannot be given up stays as it is */
}

/* --- opening and closing ------------------------------------------------------------------------------------------- */

static void note(struct trainer *t, const char *what, const struct plim_error *err)
{
    char text[640];
    snprintf(text, sizeof text, "%s: %s", what, err->text);
    trainer_tell(t, &(struct train_event){.kind = TRAIN_NOTE, .step = t->step, .text = text});
}

void trainer_watch_open(struct trainer *t)
{
    struct run_watch *w = &t->watch;
    struct plim_error err = {0};
    struct monitor_options options = {.source = {.root = os_machine_root(), .device = t->runtime.device},
                                      .thresholds = t->thresholds,
                                      .interval = t->job->monitor.interval};
    w->adapt = (struct adapt){.rules = rules_of(t)};
    w->line = t->runtime.request.budget;
    int ranks = comm_ranks(t->runtime.device->comm);
    if (ranks > 1) w->rank_used = calloc((size_t)ranks, sizeof *w->rank_used); /* NULL: it is not told */
    if (t->job->monitor.enabled && monitor_open(&options, &w->monitor, &err) != PLIM_OK)
        note(t, "the run continues without a monitor", &err);
    if (t->start.lock.held && /* of several ranks, rank 0 */
        run_control_open(t->job->output_dir, w->monitor, &w->control, &err) != PLIM_OK)
        note(t, "the run continues without a control socket", &err);
    trainer_note_step(t, NULL);
    allocations_mark();
}

void trainer_watch_close(struct trainer *t)
{
    run_control_close(t->watch.control);
    monitor_close(t->watch.monitor);
    free(t->watch.rank_used);
    t->watch.control = NULL, t->watch.monitor = NULL, t->watch.rank_used = NULL;
}
