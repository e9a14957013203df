/* report_text.c - a plan one is glad to read: what fits, where the bytes are, what each trick does. */
#include "base/bytes.h"
#include "base/number.h"
#include "base/table.h"
#include "report/report.h"

#include <math.h>
#include <string.h>

static const struct {
    enum tensor_class cls;
    const char *text;
    enum table_colour colour;
} class_rows[] = {
    {CLASS_PARAM, "parameters", TABLE_BLUE},  {CLASS_MASTER, "master bits", TABLE_CYAN},
    {CLASS_GRAD, "gradients", TABLE_MAGENTA}, {CLASS_STATE, "optimizer state", TABLE_YELLOW},
    {CLASS_ACT, "activations", TABLE_GREEN},  {CLASS_WORK, "scratch and staging", TABLE_DIM},
    {CLASS_KV, "kv cache", TABLE_GREEN},      {CLASS_IO, "tokens and scalars", TABLE_DIM},
};

#define BAR 30

static void put_bar(struct strbuf *out, int64_t bytes, int64_t whole, bool colour, enum table_colour c)
{
    STRBUF_AUTO bar = STRBUF_INIT;
    table_bar(&bar, whole > 0 ? (double)bytes / (double)whole : 0, BAR);
    table_coloured(out, colour, c, bar.data);
}

static void put_line(struct strbuf *out, const char *name, int64_t bytes, int64_t whole, bool colour,
                     enum table_colour c)
{
    char text[BYTES_TEXT];
    strbuf_addf(out, "  %-19s %10s  ", name, bytes_format(text, (uint64_t)bytes));
    put_bar(out, bytes, whole, colour, c);
    strbuf_addf(out, " %5.1f %%\n", whole > 0 ? 100.0 * (double)bytes / (double)whole : 0);
}

static void put_ranks(const struct plan_report *r, struct strbuf *out)
{
    static const char *const pieces[2][ZERO_COUNT] = {
        {"gradients", "optimizer state and gradients", "optimizer state and gradients",
         "optimizer state, gradients and parameters", "the same on every node"},
        {"nothing", "optimizer state", "optimizer state", "optimizer state and parameters",
         "the same on every node"}}; /* gradients summed once a step are whole */
    char bytes[BYTES_TEXT];
    strbuf_addf(out,
                "%d ranks of this plan, in pieces %s (ZeRO %d); a rank sends %s a step; %.0f %% of the speed "
                "without a link\n",
                report_ranks(r), pieces[r->request->whole_grads][r->plan->knobs.zero],
                (int)r->plan->knobs.zero, bytes_format(bytes, (uint64_t)report_link_bytes(r)),
                100 * report_link_efficiency(r));
}

static void put_head(const struct plan_report *r, bool colour, struct strbuf *out)
{
    const struct model_spec *s = &r->job->spec;
    char params[COUNT_TEXT], trained[COUNT_TEXT], naive[BYTES_TEXT];
    const struct tape *tape = &r->plan->tape;
    bool frozen = tape_param_count(tape, true) < tape_param_count(tape, false);
    number_format_count(params, model_param_count(s));
    number_format_count(trained, tape_param_count(tape, true));
    struct strbuf verdict = STRBUF_INIT, host = STRBUF_INIT;
    report_host_need(r, &host);
    strbuf_addf(out, "%s, %s parameters%s%s%s, %s, T=%lld, effective batch %lld, on %s%s%s\n",
                model_architecture_name(s->arch), params, frozen ? ", " : "", frozen ? trained : "",
                frozen ? " trained" : "", precision_name((enum precision)r->job->training.precision),
                (long long)r->request->time, (long long)job_rows_of_all(r->job), r->request->facts->name,
                host.len ? "; " : "", strbuf_text(&host));
    strbuf_release(&host);
    if (report_ranks(r) > 1) put_ranks(r, out);
    report_verdict(r, &verdict);
    table_coloured(out, colour, report_fits(r) ? TABLE_GREEN : TABLE_RED, strbuf_text(&verdict));
    strbuf_release(&verdict);
    if (r->naive_total > 0)
        strbuf_addf(out, "; without tricks, the whole batch at once, it would take %s",
                    bytes_format(naive, (uint64_t)r->naive_total));
    strbuf_addf(out, "\n");
    struct strbuf memory = STRBUF_INIT;
    report_memory(r, &memory);
    if (memory.len) {
        table_coloured(out, colour, TABLE_RED, strbuf_text(&memory));
        strbuf_addc(out, '\n');
    }
    strbuf_release(&memory);
    if (r->request->facts->no_kernels[0]) {
        table_coloured(out, colour, TABLE_RED, "this program cannot run there yet");
        strbuf_addf(out, ": %s; the plan is what it would take\n", r->request->facts->no_kernels);
    }
    strbuf_addf(out, "\n");
}

/* Below the lines of the budget: what is on other tiers. The process is measured as it is here, whatever the device. */
static void put_below(const struct plan_report *r, struct strbuf *out)
{
    const struct plan *p = r->plan;
    char text[BYTES_TEXT], tier[BYTES_TEXT], program[BYTES_TEXT];
    bytes_format(text, (uint64_t)p->host);
    bytes_format(program, (uint64_t)p->overhead);
    bytes_format(tier, (uint64_t)p->layout.tier_bytes[TIER_HOST]);
    if (!r->request->facts->unified_memory && p->layout.tier_bytes[TIER_HOST])
        strbuf_addf(
            out, "  %-19s %10s  beside the budget: %s left the device, %s this process and its data loader\n",
            "on the host", text, tier, program);
    else if (!r->request->facts->unified_memory)
        strbuf_addf(out, "  %-19s %10s  beside the budget: this process and its data loader\n", "on the host",
                    text);
    const struct disk_line *disk = &r->disk;
    int64_t on_disk = disk->total ? disk->total : p->disk;
    if (on_disk) strbuf_addf(out, "  %-19s %10s", "on disk", bytes_format(text, (uint64_t)on_disk));
    if (disk->total)
        strbuf_addf(out, "  of %s free: %s of tensors, %lld checkpoint%s of %s",
                    disk->free < 0 ? "?" : bytes_format(text, (uint64_t)disk->free),
                    bytes_format(tier, (uint64_t)disk->tier), (long long)disk->checkpoints,
                    disk->checkpoints == 1 ? "" : "s", bytes_format(program, (uint64_t)disk->checkpoint));
    if (on_disk) strbuf_addc(out, '\n');
}

/* Classes share bytes over time, so that their lines say what is alive at one moment: the fullest. */
static void put_classes(const struct plan_report *r, bool colour, struct strbuf *out)
{
    const struct plan *p = r->plan;
    int64_t whole = p->total;
    strbuf_addf(out, "  bytes %s", r->request->facts->unified_memory ? "" : "on the device ");
    report_peak(r, out);
    strbuf_addf(out, ":\n");
    for (size_t i = 0; i < sizeof class_rows / sizeof *class_rows; i++)
        if (p->layout.by_class[class_rows[i].cls])
            put_line(out, class_rows[i].text, p->layout.by_class[class_rows[i].cls], whole, colour,
                     class_rows[i].colour);
    int64_t slack = p->layout.arena_bytes - p->layout.lower_bound;
    if (slack) put_line(out, "gaps", slack, whole, colour, TABLE_RED);
    int64_t loader = report_counted_loader(r);
    if (loader) put_line(out, "data loader", loader, whole, colour, TABLE_DIM);
    put_line(out, "overhead", p->total - p->layout.arena_bytes - loader, whole, colour, TABLE_DIM);
    char text[BYTES_TEXT];
    strbuf_addf(out, "  %-19s %10s  planned arena is %.4f x the live-bytes lower bound\n", "total",
                bytes_format(text, (uint64_t)whole),
                p->layout.lower_bound ? (double)p->layout.arena_bytes / (double)p->layout.lower_bound : 1.0);
    put_below(r, out);
    strbuf_addf(out, "\n");
}

/* "proven within 0.2 % of the fastest that fits (31 tapes, 12.0 ms)" */
static void put_search(const struct plan_search_report *s, bool fits, struct strbuf *out)
{
    if (fits)
        strbuf_addf(out, "  proven within %.1f %% of the fastest that fits", 100 * s->gap);
    else
        strbuf_add(out, "  the smallest that was found");
    strbuf_addf(out, " (%d tapes, %lld ops, %.1f ms)\n\n", s->tapes, (long long)s->work, s->seconds * 1e3);
}

static void put_knobs(const struct plan_report *r, struct strbuf *out)
{
    const struct knobs *k = &r->plan->knobs;
    char recompute[64], step[DURATION_TEXT], line[BYTES_TEXT];
    strbuf_addf(out, "  micro-batch %lld x %lld accumulation, recompute %s, loss in %d slice%s,\n  ",
                (long long)k->micro_batch, (long long)k->accumulation,
                knobs_recompute_text(k, recompute, sizeof recompute), (int)k->loss_chunks,
                k->loss_chunks == 1 ? "" : "s");
    report_places(r, out);
    const struct loader_size *loader = &r->loader->at[r->loader->chosen];
    if (r->loader->chosen)
        strbuf_addf(
            out,
            "\n  a smaller data loader leaves room: %lld workers, %lld pieces read ahead, lines up to %s",
            (long long)loader->workers, (long long)loader->pieces,
            bytes_format(line, (uint64_t)loader->max_line_bytes));
    double seconds = r->plan->step_seconds;
    int64_t tokens = job_rows_of_all(r->job) * r->request->time;
    strbuf_addf(out, "\n  predicted %s a step, %.0f tokens/s%s\n", report_duration(step, seconds),
                seconds > 0 ? (double)tokens / seconds : 0, report_ranks(r) > 1 ? " of all ranks" : "");
    if (r->forward_seconds > 0)
        strbuf_addf(out, "  with training.optimizer_in_forward: true, %s a step\n",
                    report_duration(step, r->forward_seconds));
    strbuf_add(out, "  ");
    report_run(r->job, r->length, r->plan, out);
    put_search(&r->plan->search, r->plan->fits, out);
}

void report_savings(const struct plan_report *r, bool colour, struct strbuf *out)
{
    struct table t;
    char near[SAVED_TEXT], far[SAVED_TEXT];
    table_init(&t, "llrrr");
    table_header(&t, "trick", "", report_near_name(r), report_lower_name(r), "time");
    for (int i = 0; i < r->nsavings; i++) {
        const struct saving *s = &r->savings[i];
        table_cell(&t, "%s", s->name);
        table_cell(&t, "%s", s->on ? "on, saves" : "off, would save");
        table_cell(&t, "%s", report_saved(near, s->bytes));
        table_cell(&t, "%s", report_saved(far, s->far));
        table_cell(&t, "%+.1f %%", 100 * s->time_cost);
    }
    table_render(&t, out, &(struct table_style){.colour = colour, .indent = 2});
    table_release(&t);
}

static void put_remedies(const struct plan_report *r, bool colour, struct strbuf *out)
{
    struct table t;
    char text[BYTES_TEXT], step[DURATION_TEXT], change[512];
    bool unified_memory = r->request->facts->unified_memory;
    strbuf_addf(out, "\n  what would make it fit, cheapest first:\n");
    table_init(&t, unified_memory ? "lrrl" : "lrrrl");
    if (unified_memory)
        table_header(&t, "change", "then takes", "a step", "cost");
    else
        table_header(&t, "change", "then takes", "of the host", "a step", "cost");
    for (int i = 0; i < r->nremedies; i++) {
        const struct remedy *remedy = &r->remedies[i];
        table_cell(&t, "%s", remedy_text(remedy, change, sizeof change));
        table_cell(&t, "%s", bytes_format(text, (uint64_t)remedy->total));
        if (!unified_memory) table_cell(&t, "%s", bytes_format(text, (uint64_t)remedy->host));
        table_cell(&t, "%s", report_duration(step, remedy->step_seconds));
        table_cell(&t, "%s", remedy->cost);
    }
    table_render(&t, out, &(struct table_style){.colour = colour, .indent = 2});
    table_release(&t);
}

static void put_settings(const struct plan_report *r, struct strbuf *out)
{
    STRBUF_AUTO lines = STRBUF_INIT;
    job_settings_text(r->job, r->length, r->all_settings, &lines);
    if (lines.len) strbuf_addf(out, "\n  settings, and where they came from:\n%s", lines.data);
}

void report_text(const struct plan_report *r, bool colour, struct strbuf *out)
{
    put_head(r, colour, out);
    put_classes(r, colour, out);
    put_knobs(r, out);
    report_savings(r, colour, out);
    struct strbuf larger = STRBUF_INIT;
    if (!r->plan->fits && r->nremedies) put_remedies(r, colour, out);
    if (!r->plan->fits) report_larger_device(r, &larger);
    if (larger.len) strbuf_addf(out, "%s  %s\n", r->nremedies ? "" : "\n", strbuf_text(&larger));
    strbuf_release(&larger);
    put_settings(r, out);
}
