/* report_words.c - phrases of a report that its text and its page have in common. */
#include "base/bytes.h"
#include "report/report.h"

#include <stdio.h>

static bool on_host(const struct plan_report *r) { return r->request->facts->unified_memory; }

const char *report_lower_name(const struct plan_report *r) { return on_host(r) ? "disk" : "host"; }
const char *report_near_name(const struct plan_report *r) { return on_host(r) ? "memory" : "device"; }

int64_t report_counted_loader(const struct plan_report *r)
{
    return on_host(r) ? loader_sizes_bytes(r->loader) : 0;
}

char *report_duration(char buf[DURATION_TEXT], double seconds)
{
    static const struct {
        double below, unit;
        const char *name;
    } units[] = {{0.9995, 1e-3, "ms"}, {119.95, 1, "s"}, {7197, 60, "min"}, {172710, 3600, "h"}};
    double unit = 86400;
    const char *name = "days";
    for (int i = (int)(sizeof units / sizeof *units) - 1; i >= 0; i--)
        if (seconds < units[i].below) unit = units[i].unit, name = units[i].name;
    double value = seconds / unit;
    snprintf(buf, DURATION_TEXT, "%.*f %s", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value, name);
    return buf;
}

/* Steps take as long as their share of all positions; the update is a small part of them. */
static double seconds_a_row(const struct job *job, const struct job_epoch *e, const struct plan *plan)
{
    double row = plan->step_seconds / (double)job_rows_of_all(job);
    int64_t positions = job->max_length + job_source_time(job, job->max_length);
    return e->rows ? row * (double)e->positions / ((double)e->rows * (double)positions) : row;
}

double report_epoch_seconds(const struct job *job, const struct job_length *length, const struct plan *plan)
{
    return (double)length->epoch.rows * seconds_a_row(job, &length->epoch, plan);
}

double report_run_seconds(const struct job *job, const struct job_length *length, const struct plan *plan)
{
    double epochs = job->training.epochs, rows = (double)length->steps * (double)job_rows_of_all(job);
    if (epochs > 0 && length->epoch.rows) rows = epochs * (double)length->epoch.rows;
    return rows * seconds_a_row(job, &length->epoch, plan);
}

void report_run(const struct job *job, const struct job_length *length, const struct plan *plan,
                struct strbuf *out)
{
    const struct job_epoch *e = &length->epoch;
    char text[DURATION_TEXT];
    if (e->rows) {
        strbuf_addf(out, "an epoch is %s%lld rows, %lld steps", e->exact ? "" : "about ", (long long)e->rows,
                    (long long)job_epoch_steps(job, e));
        if (e->tokens)
            strbuf_addf(out, ", %.0f %% padding", 100 * (1 - (double)e->tokens / (double)e->positions));
        strbuf_addf(out, ": %s; ", report_duration(text, report_epoch_seconds(job, length, plan)));
    }
    strbuf_addf(out, "the run's %lld steps take %s\n", (long long)length->steps,
                report_duration(text, report_run_seconds(job, length, plan)));
}

char *report_saved(char buf[SAVED_TEXT], int64_t bytes)
{
    char text[BYTES_TEXT];
    bytes_format(text, (uint64_t)(bytes < 0 ? -bytes : bytes));
    snprintf(buf, SAVED_TEXT, "%s%s", bytes < 0 ? "takes " : "", bytes ? text : "-");
    return buf;
}

/* " (training.recompute is pinned)": what may stand in the way of something smaller. */
static void put_pins(const struct plan_report *r, struct strbuf *out)
{
    for (int i = 0; i < r->npins; i++) strbuf_addf(out, "%s%s", i ? ", " : " (", r->pins[i]);
    if (r->npins) strbuf_addf(out, " %s pinned)", r->npins == 1 ? "is" : "are");
}

/* Appends the memory needed below the device. */
static void put_below(const struct plan_report *r, const char *join, struct strbuf *out)
{
    const struct plan *p = r->plan;
    char need[BYTES_TEXT], line[BYTES_TEXT];
    int64_t budget = r->request->host_budget;
    if (p->disk) strbuf_addf(out, "%s%s on disk", join, bytes_format(need, (uint64_t)p->disk));
    if (on_host(r) || !(p->layout.tier_bytes[TIER_HOST] || (budget && p->host > budget))) return;
    strbuf_addf(out, "%s%s of the host", join, bytes_format(need, (uint64_t)p->host));
    if (budget) strbuf_addf(out, ", where %s may be taken", bytes_format(line, (uint64_t)budget));
}

void report_host_need(const struct plan_report *r, struct strbuf *out)
{
    char need[BYTES_TEXT];
    if (on_host(r) || r->request->host_budget) return;
    strbuf_addf(out, "needs %s of host memory%s", bytes_format(need, (uint64_t)r->plan->host),
                r->request->facts->ranks > 1 ? " for each rank" : "");
}

bool report_holds_device(const struct plan_report *r)
{
    return r->plan->total <= (int64_t)r->request->facts->memory_bytes;
}

/* Whose memory it is and how much, with the word for a container. */
static void put_holder(const struct device_facts *f, struct strbuf *out)
{
    char has[BYTES_TEXT];
    strbuf_addf(out, "%s, which has %s%s", facts_holder(f), bytes_format(has, f->memory_bytes),
                f->memory_limited ? ", the container's limit" : "");
}

void report_verdict(const struct plan_report *r, struct strbuf *out)
{
    const struct plan *p = r->plan;
    char total[BYTES_TEXT], budget[BYTES_TEXT], host[BYTES_TEXT], line[BYTES_TEXT];
    bytes_format(total, (uint64_t)p->total);
    bytes_format(budget, (uint64_t)p->budget);
    if (p->fits && !report_holds_device(r)) {
        strbuf_add(out, "does not fit ");
        put_holder(r->request->facts, out);
        strbuf_addf(out, ": %s, inside a budget of %s", total, budget);
    } else if (p->fits && !disk_line_held(&r->disk)) {
        strbuf_add(out, "does not fit the disk: ");
        disk_line_text(&r->disk, out);
        strbuf_addf(out, "; %s of %s of memory", total, budget);
    } else if (p->fits) {
        strbuf_addf(out, "fits: %s of %s", total, budget);
        put_below(r, ", and ", out);
    } else if (p->total > p->budget) {
        strbuf_addf(out, "does not fit: %s at the least", total);
        put_pins(r, out);
        strbuf_addf(out, ", the budget is %s", budget);
        put_below(r, "; beside it ", out);
    } else { /* the device's line holds, the host's does not */
        strbuf_addf(out, "does not fit: %s of the host at the least", bytes_format(host, (uint64_t)p->host));
        put_pins(r, out);
        strbuf_addf(out, ", where %s may be taken, and %s of %s on the device",
                    bytes_format(line, (uint64_t)r->request->host_budget), total, budget);
    }
}

void report_memory(const struct plan_report *r, struct strbuf *out)
{
    const struct device_facts *f = r->request->facts;
    char has[BYTES_TEXT], spare[BYTES_TEXT];
    const char *whose = facts_holder(f), *limit = f->memory_limited ? ", the container's limit" : "";
    bytes_format(has, f->memory_bytes);
    if (!report_holds_device(r)) {
        if (r->plan->fits) return; /* the verdict says so */
        strbuf_add(out, "does not fit ");
        put_holder(f, out);
    } else if (r->plan->budget > (int64_t)f->memory_bytes)
        strbuf_addf(out, "the budget is more than %s has (%s%s): no run may hold such a line", whose, has,
                    limit);
    else if (f->free_bytes && r->plan->total > (int64_t)f->free_bytes)
        strbuf_addf(out, "only %s of %s is free on %s now", bytes_format(spare, f->free_bytes), has, whose);
}

static const char *tier_phrase(int tier)
{
    static const char *const phrases[TIER_COUNT] = {
        [TIER_DEVICE] = "the device", [TIER_HOST] = "the host", [TIER_DISK] = "disk"};
    return phrases[tier];
}

/* Appends the part of it that is on disk. */
static void put_on_disk(int64_t share, struct strbuf *out)
{
    if (share >= OFFLOAD_SHARES)
        strbuf_add(out, " and from there on disk");
    else if (share > 0)
        strbuf_addf(out, " (%d %% of all on disk)", (int)(100 * share / OFFLOAD_SHARES));
}

static int percent(int share) { return (100 * share + OFFLOAD_SHARES / 2) / OFFLOAD_SHARES; }

/* "parameters", "56 % of the parameters" */
static void put_part(struct strbuf *out, int share, const char *what)
{
    if (share > 0 && share < OFFLOAD_SHARES)
        strbuf_addf(out, "%d %% of the %s", percent(share), what);
    else
        strbuf_add(out, what);
}

void report_places(const struct plan_report *r, struct strbuf *out)
{
    const struct knobs *k = &r->plan->knobs;
    strbuf_addf(out, "%s %s, ", optimizer_name((enum optimizer)r->job->training.optimizer),
                k->optimizer_in_backward  ? "inside backward"
                : k->optimizer_in_forward ? "inside the next step's forward"
                                          : "after backward");
    put_part(out, k->state_share, "optimizer state");
    strbuf_addf(out, " on %s", tier_phrase(k->state_tier));
    put_on_disk(k->disk_share, out);
    if (k->host_share >= OFFLOAD_SHARES)
        strbuf_add(out, ", updated there");
    else if (k->host_share > 0)
        strbuf_addf(out, ", %d %% of its updates made there", percent(k->host_share));
    if (k->before_norm_share >= OFFLOAD_SHARES)
        strbuf_add(out, " before the norm is known");
    else if (k->before_norm_share > 0)
        strbuf_addf(out, ", %d %% of that before the norm is known", percent(k->before_norm_share));
    if (k->grad_tier != TIER_DEVICE) strbuf_addf(out, ", gradients wait on %s", tier_phrase(k->grad_tier));
    char activations[64];
    strbuf_add(out, knobs_activations_text(k, activations, sizeof activations));
    if (k->param_tier == TIER_DEVICE) return;
    strbuf_add(out, ", ");
    put_part(out, k->param_share, "parameters");
    strbuf_addf(out, " come from %s", tier_phrase(k->param_tier));
    put_on_disk(k->disk_share - OFFLOAD_SHARES, out);
}

void report_peak(const struct plan_report *r, struct strbuf *out)
{
    static const char *const parts[PART_COUNT] = {[PART_FORWARD] = "forward",
                                                  [PART_HEAD] = "the loss",
                                                  [PART_BACKWARD] = "backward",
                                                  [PART_RECOMPUTE] = "recomputation",
                                                  [PART_UPDATE] = "the update"};
    const struct tape *tape = &r->plan->tape;
    int at = r->plan->layout.peak_op;
    if (at < 0 || at >= tape->nops) return;
    strbuf_addf(out, "at the peak, op %d of %d (%s, in %s)", at + 1, tape->nops, op_name(tape->ops[at].kind),
                parts[tape->ops[at].part]);
}

void report_larger_device(const struct plan_report *r, struct strbuf *out)
{
    const struct device_facts *f = r->request->facts;
    char need[BYTES_TEXT], has[BYTES_TEXT];
    const char *begin = r->nremedies ? "or " : "what would make it fit: ";
    if (r->plan->fits) return;
    if (r->plan->total > (int64_t)f->memory_bytes)
        strbuf_addf(out, "%sa device with %s: %s has %s", begin, bytes_format(need, (uint64_t)r->plan->total),
                    f->name, bytes_format(has, f->memory_bytes));
    else if (!on_host(r) && f->host_bytes && r->plan->host > (int64_t)f->host_bytes)
        strbuf_addf(out, "%sa machine whose host has %s%s: this one has %s", begin,
                    bytes_format(need, (uint64_t)r->plan->host), f->ranks > 1 ? " for each rank" : "",
                    bytes_format(has, f->host_bytes));
}
