/* train_log.c - see train_log.h. */
#include "cli/train_log.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/table.h"
#include "cli/cli.h"
#include "report/report.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

static const char *const names[] = {"plan",       "note", "resume", "step",    "eval", "replan",
                                    "checkpoint", "end",  "memory", "refused", "epoch"};

static void put_memory(struct json_writer *w, const struct train_event *e)
{
    json_begin_object(w, "memory");
    json_int(w, "used", e->used);
    json_int(w, "budget", e->budget);
    json_str(w, "status", memory_status_name(e->status));
    json_str(w, "level", adapt_level_name(e->level));
    if (e->monitor && e->monitor->gauges) {
        const struct gauge *g = &e->monitor->gauge[0];
        json_int(w, "machine_used", g->used);
        json_int(w, "machine_total", g->total);
        json_str(w, "strain", strain_name(e->monitor->strain));
    }
    json_end_object(w);
    if (!e->rank_used) return;
    json_begin_array(w, "ranks");
    for (int r = 0; r < e->ranks; r++) json_int(w, NULL, e->rank_used[r]);
    json_end_array(w);
}

/* The four lines of the budget in bytes, and the shares of any memory that they stand for. */
static void put_lines(struct json_writer *w, const struct train_log *log, const struct train_event *e)
{
    static const char *const line_names[LINES] = {"target", "warning", "critical", "emergency"};
    struct profile p;
    job_thresholds(log->job, &p);
    const double share[LINES] = {p.target, p.warning, p.critical, p.emergency};
    struct gauge own = gauge_of_budget(e->used, e->budget, &p);
    json_begin_object(w, "lines");
    for (int i = 0; i < LINES; i++) json_int(w, line_names[i], own.line[i]);
    json_end_object(w);
    json_begin_object(w, "thresholds");
    for (int i = 0; i < LINES; i++) json_double(w, line_names[i], share[i]);
    json_end_object(w);
}

/* Live bytes at the plan's peak by what they are for; with the overhead they are what a step needs. */
static void put_classes(struct json_writer *w, const struct plan *plan)
{
    json_begin_object(w, "by_class");
    for (int i = 0; i < CLASS_COUNT; i++)
        if (plan->layout.by_class[i])
            json_int(w, tensor_class_name((enum tensor_class)i), plan->layout.by_class[i]);
    json_int(w, "overhead", plan->total - plan->layout.arena_bytes);
    json_end_object(w);
}

/* Who runs, for those who ask whether somebody still does. */
static void put_process(struct json_writer *w)
{
    char host[72] = "";
    gethostname(host, sizeof host - 1);
    json_int(w, "pid", getpid());
    json_str(w, "host", host);
}

/* One pass over the data, where it is known how much that is. */
static void put_epoch(struct json_writer *w, const struct job *job, const struct job_length *length,
                      const struct plan *plan)
{
    json_int(w, "effective_batch", job_rows_of_all(job));
    if (job->training.epochs > 0) json_double(w, "epochs", job->training.epochs);
    if (length->epoch.rows) {
        json_int(w, "epoch_rows", length->epoch.rows);
        json_int(w, "epoch_steps", job_epoch_steps(job, &length->epoch));
        json_double(w, "epoch_s", report_epoch_seconds(job, length, plan));
    }
    json_double(w, "run_s", report_run_seconds(job, length, plan));
}

static void put_plan(struct json_writer *w, struct train_log *log, const struct train_event *e)
{
    json_str(w, "device", log->facts->name);
    if (e->kind == TRAIN_PLANNED) put_process(w);
    json_int(w, "steps", e->steps);
    json_int(w, "budget_bytes", e->budget);
    json_int(w, "planned_total", e->plan->total);
    json_int(w, "arena_bytes", e->plan->layout.arena_bytes);
    json_int(w, "host_bytes", e->plan->layout.tier_bytes[TIER_HOST]);
    json_int(w, "disk_bytes", e->plan->disk);
    put_epoch(w, log->job, e->length, e->plan);
    put_classes(w, e->plan);
    put_lines(w, log, e);
    report_json_knobs(w, "knobs", log->job, &e->plan->knobs);
    json_double(w, "predicted_ms", 1e3 * e->plan->step_seconds);
    json_double(w, "plan_ms",
                1e3 * (e->kind == TRAIN_REPLANNED ? e->moves.plan_seconds : e->plan->search.seconds));
}

/* Rates of a step or of the run: rows are samples, unless they are packed; micro-batches are batches. */
static void put_rates(struct json_writer *w, const struct train_event *e, double seconds)
{
    json_double(w, "samples_per_s", seconds > 0 ? (double)e->rows / seconds : 0);
    json_double(w, "batches_per_s", seconds > 0 ? (double)e->passes / seconds : 0);
}

/* Rows, positions that were computed for them, and the share of those that were padding. */
static void put_padding(struct json_writer *w, const struct train_event *e)
{
    json_int(w, "rows", e->rows);
    json_int(w, "positions", e->positions);
    json_double(w, "padding", e->positions ? (double)e->padding / (double)e->positions : 0);
}

/* Auxiliary losses one by one, and of each layer the rows of its experts. */
static void put_router(struct json_writer *w, const struct train_event *e)
{
    const struct router *r = e->router;
    if (!r) return;
    json_double(w, "token_loss", e->token_loss);
    json_double(w, "router_balance_loss", r->balance);
    json_double(w, "router_z_loss", r->z);
    json_begin_array(w, "expert_load");
    for (int layer = 0; layer < r->layers; layer++) {
        json_begin_array(w, NULL);
        for (int k = 0; k < r->experts; k++) json_int(w, NULL, (int64_t)r->load[layer * r->experts + k]);
        json_end_array(w);
    }
    json_end_array(w);
}

static void put_number(void *arg, const char *name, double value) { json_double(arg, name, value); }

/* Bytes that the disk tier moved, how long it had nothing to do, and how long the step waited for it. */
static void put_disk(struct json_writer *w, const struct train_event *e)
{
    if (!e->disk.read && !e->disk.written) return;
    json_begin_object(w, "disk");
    json_int(w, "read", (int64_t)e->disk.read);
    json_int(w, "written", (int64_t)e->disk.written);
    json_double(w, "idle_ms", 1e3 * e->disk.idle);
    json_double(w, "waited_ms", 1e3 * e->disk.waited);
    json_end_object(w);
}

static void put_step(struct json_writer *w, const struct train_event *e)
{
    json_double(w, "loss", e->loss);
    put_router(w, e);
    if (e->preferences) preferences_each(e->preferences, put_number, w);
    json_double(w, "lr", e->lr);
    if (e->grad_norm >= 0)
        json_double(w, "grad_norm", e->grad_norm);
    else
        json_null(w, "grad_norm");
    json_int(w, "tokens", e->tokens);
    json_double(w, "tokens_per_s", e->tokens_per_s);
    json_double(w, "step_ms", e->seconds * 1e3);
    put_rates(w, e, e->seconds);
    json_double(w, "epoch", e->epoch);
    put_padding(w, e);
    if (e->scale != 1) json_double(w, "loss_scale", e->scale);
    if (e->skipped) json_bool(w, "skipped", true);
    put_disk(w, e);
    put_memory(w, e);
}

/* The device's by the short names; of the other tiers, those that hold anything. */
static void put_peaks(struct json_writer *w, const struct train_event *e)
{
    json_int(w, "planned_peak", e->planned_peak[TIER_DEVICE]);
    json_int(w, "ledger_peak", e->ledger_peak[TIER_DEVICE]);
    for (int tier = TIER_DEVICE + 1; tier < TIER_COUNT; tier++) {
        char name[48];
        if (!e->planned_peak[tier] && !e->ledger_peak[tier]) continue;
        snprintf(name, sizeof name, "%s_planned_peak", tier_name((enum tier)tier));
        json_int(w, name, e->planned_peak[tier]);
        snprintf(name, sizeof name, "%s_ledger_peak", tier_name((enum tier)tier));
        json_int(w, name, e->ledger_peak[tier]);
    }
}

static void put_fields(struct json_writer *w, struct train_log *log, const struct train_event *e)
{
    switch (e->kind) {
    case TRAIN_PLANNED:
        put_plan(w, log, e);
        break;
    case TRAIN_STEP:
        put_step(w, e);
        break;
    case TRAIN_NOTE:
        json_str(w, "text", e->text);
        break;
    case TRAIN_MEMORY:
        json_str(w, "text", e->text);
        json_str(w, "action", e->action);
        put_memory(w, e);
        break;
    case TRAIN_REFUSED:
        explanation_json(e->why, w);
        break;
    case TRAIN_EPOCH:
        json_int(w, "epoch", (int64_t)e->epoch);
        if (log->job->training.epochs > 0) json_double(w, "epochs", log->job->training.epochs);
        break;
    case TRAIN_RESUMED:
    case TRAIN_SAVED:
        json_str(w, "path", e->text);
        break;
    case TRAIN_EVAL:
        cli_json_scores(w, e->loss, &e->scores);
        json_int(w, "tokens", e->tokens);
        break;
    case TRAIN_REPLANNED:
        put_plan(w, log, e);
        json_double(w, "move_ms", e->moves.move_seconds * 1e3);
        json_int(w, "moved_bytes", e->moves.moved_bytes);
        put_memory(w, e);
        break;
    case TRAIN_ENDED:
        put_peaks(w, e);
        json_int(w, "rss_peak", e->rss_peak);
        put_padding(w, e);
        json_double(w, "epoch", e->epoch);
        put_rates(w, e, clock_seconds() - log->started);
        if (e->skipped_steps) json_int(w, "skipped_steps", e->skipped_steps);
        if (e->bad_records) json_int(w, "bad_records", e->bad_records);
        if (e->dropped_samples) json_int(w, "dropped_samples", e->dropped_samples);
        json_double(w, "seconds", clock_seconds() - log->started);
        break;
    }
}

/* A stream could not be written. A pipe whose reader has left is no failure of the run: it goes on without. */
static void lose(struct train_log *log, FILE **stream)
{
    bool left = errno == EPIPE;
    if (!left) log->failed |= *stream == log->json;
    if (!left) return;
    if (*stream != stderr) cli_say("the output was closed; training continues without it");
    *stream = NULL;
}

static void write_json(struct train_log *log, const struct train_event *e)
{
    STRBUF_AUTO line = STRBUF_INIT;
    struct json_writer w = json_object(&line, 0);
    json_str(&w, "event", names[e->kind]);
    json_double(&w, "time", floor(1e3 * clock_wall()) / 1e3);
    if (e->kind != TRAIN_PLANNED && e->kind != TRAIN_NOTE) json_int(&w, "step", e->step);
    put_fields(&w, log, e);
    json_end_object(&w);
    strbuf_addf(&line, "\n");
    train_folder_event(&log->folder, strbuf_text(&line), line.len);
    if (log->json && (fwrite(line.data, 1, line.len, log->json) != line.len || fflush(log->json)))
        lose(log, &log->json);
}

/* Hours and minutes left, at the speed of the steps made since the run was started or resumed. */
static const char *time_left(const struct train_log *log, const struct train_event *e, char *buf, size_t size)
{
    int64_t made = e->step - log->first_step;
    double each = (clock_seconds() - log->stepping) / (double)(made > 0 ? made : 1);
    long left = lround(each * (double)(e->steps - e->step));
    snprintf(buf, size, left >= 3600 ? "%ld:%02ld h" : "%ld:%02ld", left >= 3600 ? left / 3600 : left / 60,
             left >= 3600 ? left / 60 % 60 : left % 60);
    return buf;
}

static void draw_step(struct train_log *log, const struct train_event *e)
{
    STRBUF_AUTO line = STRBUF_INIT;
    char used[BYTES_TEXT], budget[BYTES_TEXT], left[32];
    int room = (int)(sizeof log->losses / sizeof *log->losses);
    if (log->nlosses == room)
        memmove(log->losses, log->losses + 1, sizeof log->losses - sizeof *log->losses), log->nlosses--;
    log->losses[log->nlosses++] = e->loss;
    if (log->bar) {
        strbuf_addf(&line, "\r\033[K");
        table_bar(&line, (double)e->step / (double)e->steps, 20);
        strbuf_addf(&line, " ");
    }
    strbuf_addf(&line, "step %lld/%lld  loss %.4f  ", (long long)e->step, (long long)e->steps, e->loss);
    if (e->router && (e->router->balance > 0 || e->router->z > 0))
        strbuf_addf(&line, "(balance %.4f, z %.4f)  ", e->router->balance, e->router->z);
    if (e->preferences) strbuf_addf(&line, "margin %.3f  ", e->preferences->margin);
    if (e->preferences && e->preferences->kind != PREFERENCE_KTO)
        strbuf_addf(&line, "accuracy %.2f  ", e->preferences->accuracy);
    int from = log->nlosses > 16 ? log->nlosses - 16 : 0;
    if (log->bar)
        table_spark(&line, log->losses + from, (size_t)(log->nlosses - from)), strbuf_addf(&line, "  ");
    strbuf_addf(&line, "%.0f tok/s  ", e->tokens_per_s);
    if (!log->bar && e->seconds > 0)
        strbuf_addf(&line, "%.3g samples/s  %.3g batches/s  ", (double)e->rows / e->seconds,
                    (double)e->passes / e->seconds);
    strbuf_addf(&line, "%s of %s", bytes_format(used, (uint64_t)e->used),
                bytes_format(budget, (uint64_t)e->budget));
    if (e->padding) strbuf_addf(&line, "  %.0f %% padding", 100 * (double)e->padding / (double)e->positions);
    if (e->status != MEMORY_NORMAL) strbuf_addf(&line, " (%s)", memory_status_name(e->status));
    if (log->bar) strbuf_addf(&line, "  %s left", time_left(log, e, left, sizeof left));
    if (!log->bar || e->step == e->steps) strbuf_addf(&line, "\n");
    fwrite(line.data, 1, line.len, log->people);
}

static void tell_experts(const struct train_log *log, const struct router *r)
{
    if (log->bar) fputc('\n', log->people);
    for (int layer = 0; layer < r->layers; layer++) {
        double share;
        int busiest = router_busiest(r, layer, &share), idle = router_idle(r, layer);
        fprintf(log->people, "  layer %d: expert %d has %.2f of an even load, %d of %d have no token\n",
                r->layer[layer], busiest, share, idle, r->experts);
    }
}

/* How large a step is, and how long epoch and run take by the plan. */
static void tell_run(const struct train_log *log, const struct train_event *e)
{
    const struct knobs *k = &e->plan->knobs;
    STRBUF_AUTO line = STRBUF_INIT;
    strbuf_addf(&line, "effective batch %lld rows (micro-batch %lld x accumulation %lld",
                (long long)job_rows_of_all(log->job), (long long)k->micro_batch, (long long)k->accumulation);
    if (log->job->ranks > 1) strbuf_addf(&line, " x %d ranks", log->job->ranks);
    strbuf_add(&line, "); predicted: ");
    report_run(log->job, e->length, e->plan, &line);
    fputs(strbuf_text(&line), log->people);
}

/* Reports what a re-plan moved and freed. */
static void tell_moves(const struct train_log *log, const struct train_event *e)
{
    char moved[BYTES_TEXT], freed[BYTES_TEXT];
    int64_t less = log->planned - e->plan->total;
    if (e->moves.moved_bytes)
        fprintf(log->people, "  moved %s in %.1f ms", bytes_format(moved, (uint64_t)e->moves.moved_bytes),
                1e3 * e->moves.move_seconds);
    else
        fprintf(log->people, "  weights and state already in place");
    if (less > 0) fprintf(log->people, ", freed %s", bytes_format(freed, (uint64_t)less));
    fputc('\n', log->people);
}

static void tell_plan(struct train_log *log, const struct train_event *e)
{
    char total[BYTES_TEXT], budget[BYTES_TEXT], recompute[64], state[96], params[64], activations[64];
    const struct knobs *k = &e->plan->knobs;
    fprintf(
        log->people,
        "%s%s %s of %s: micro-batch %lld x %lld, recompute %s, loss in %d, state on %s%s%s%s%s\n",
        log->bar && e->kind == TRAIN_REPLANNED ? "\r\033[K" : "",
        e->kind == TRAIN_REPLANNED ? "re-planned" : "planned", bytes_format(total, (uint64_t)e->plan->total),
        bytes_format(budget, (uint64_t)e->budget), (long long)k->micro_batch, (long long)k->accumulation,
        knobs_recompute_text(k, recompute, sizeof recompute), (int)k->loss_chunks,
        knobs_state_text(k, state, sizeof state), k->param_tier != TIER_DEVICE ? ", parameters from " : "",
        k->param_tier != TIER_DEVICE ? knobs_param_text(k, params, sizeof params) : "",
        knobs_activations_text(k, activations, sizeof activations),
        k->optimizer_in_backward  ? ", optimizer in backward"
        : k->optimizer_in_forward ? ", optimizer in the next forward"
                                  : "");
    if (e->kind == TRAIN_PLANNED)
        tell_run(log, e);
    else
        tell_moves(log, e);
    log->planned = e->plan->total;
}

static void tell_eval(struct train_log *log, const struct train_event *e)
{
    STRBUF_AUTO line = STRBUF_INIT;
    cli_tell_scores(&line, e->loss, 4, &e->scores);
    fprintf(log->people, "%sevaluation after step %lld: %s\n", log->bar ? "\r\033[K" : "", (long long)e->step,
            strbuf_text(&line));
}

static void tell_ended(struct train_log *log, const struct train_event *e)
{
    char planned[BYTES_TEXT], ledger[BYTES_TEXT], rss[BYTES_TEXT];
    fprintf(log->people, "planned %s, ledger %s, process %s at its peak; %lld steps in %.1f s\n",
            bytes_format(planned, (uint64_t)e->planned_peak[TIER_DEVICE]),
            bytes_format(ledger, (uint64_t)e->ledger_peak[TIER_DEVICE]),
            bytes_format(rss, (uint64_t)e->rss_peak), (long long)e->step, clock_seconds() - log->started);
    double seconds = clock_seconds() - log->started;
    if (e->rows && seconds > 0) {
        fprintf(log->people, "%lld rows trained", (long long)e->rows);
        if (e->length->epoch.rows) fprintf(log->people, ", %.2f epochs so far", e->epoch);
        fprintf(log->people, ": %.3g samples/s, %.3g batches/s\n", (double)e->rows / seconds,
                (double)e->passes / seconds);
    }
    if (e->skipped_steps)
        fprintf(log->people, "%lld steps were skipped: their loss or gradients were not finite\n",
                (long long)e->skipped_steps);
    if (e->padding)
        fprintf(log->people, "%.1f %% of the %lld computed positions were padding\n",
                100 * (double)e->padding / (double)e->positions, (long long)e->positions);
    if (e->bad_records || e->dropped_samples)
        fprintf(log->people,
                "of the data, %lld bad records were skipped and %lld samples had nothing to learn\n",
                (long long)e->bad_records, (long long)e->dropped_samples);
}

static void tell_refusal(struct train_log *log, const struct train_event *e)
{
    STRBUF_AUTO text = STRBUF_INIT;
    explanation_text(e->why, &text);
    fprintf(log->people, "%s%s", log->bar ? "\r\033[K" : "", strbuf_text(&text));
}

static void tell_people(struct train_log *log, const struct train_event *e)
{
    const char *clear = log->bar ? "\r\033[K" : "";
    switch (e->kind) {
    case TRAIN_PLANNED:
    case TRAIN_REPLANNED:
        tell_plan(log, e);
        break;
    case TRAIN_STEP:
        draw_step(log, e);
        if (log->verbose && e->router) tell_experts(log, e->router);
        break;
    case TRAIN_NOTE:
    case TRAIN_MEMORY:
        fprintf(log->people, "%s%s\n", clear, e->text);
        break;
    case TRAIN_REFUSED:
        tell_refusal(log, e);
        break;
    case TRAIN_EPOCH:
        fprintf(log->people, "%sstarting epoch %.0f", clear, e->epoch);
        if (log->job->training.epochs > 0) fprintf(log->people, "/%g", ceil(log->job->training.epochs));
        fputc('\n', log->people);
        break;
    case TRAIN_RESUMED:
        fprintf(log->people, "going on after step %lld from %s\n", (long long)e->step, e->text);
        break;
    case TRAIN_SAVED:
        fprintf(log->people, "%ssaved %s\n", clear, e->text);
        break;
    case TRAIN_EVAL:
        tell_eval(log, e);
        break;
    case TRAIN_ENDED:
        tell_ended(log, e);
        break;
    }
}

void train_log_begin(struct train_log *log, const char *folder, const struct plan *plan)
{
    log->stepping = clock_seconds();
    train_folder_begin(&log->folder, folder, log->resume, log->json);
    train_folder_plan(&log->folder, plan, log->facts);
}

static void put_event(struct train_log *log, const struct train_event *event)
{
    bool rare = event->kind == TRAIN_STEP && event->step % log->job->training.log_every &&
                event->step != event->steps;
    if (event->kind == TRAIN_RESUMED) log->first_step = event->step;
    if (rare) return;
    if (event->kind == TRAIN_REPLANNED) train_folder_plan(&log->folder, event->plan, log->facts);
    if (log->json || log->folder.log || !log->folder.begun) write_json(log, event);
    if (!log->people) return;
    tell_people(log, event);
    if (fflush(log->people)) lose(log, &log->people);
}

void train_log_hear(void *arg, const struct train_event *event)
{
    struct train_log *log = arg;
    put_event(log, event);
    tell_hear(log->tell, event);
}

void train_log_note(void *arg, const char *line)
{
    put_event(arg, &(struct train_event){.kind = TRAIN_NOTE, .text = line});
}
