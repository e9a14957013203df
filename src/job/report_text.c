/* report_text.c - a plan one is glad to read: what fits, where the bytes are, what each trick does. */
#include "base/bytes.h"
#include "base/table.h"
#include "job/report.h"

#include <stdio.h>
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
    struct strbuf bar = STRBUF_INIT;
    table_bar(&bar, whole > 0 ? (double)bytes / (double)whole : 0, BAR);
    table_coloured(out, colour, c, bar.data);
    strbuf_release(&bar);
}

static void put_line(struct strbuf *out, const char *name, int64_t bytes, int64_t whole, bool colour,
                     enum table_colour c)
{
    char text[BYTES_TEXT];
    strbuf_addf(out, "  %-19s %10s  ", name, bytes_format(text, (uint64_t)bytes));
    put_bar(out, bytes, whole, colour, c);
    strbuf_addf(out, " %5.1f %%\n", whole > 0 ? 100.0 * (double)bytes / (double)whole : 0);
}

static void put_head(const struct plan_report *r, bool colour, struct strbuf *out)
{
    const struct plan *p = r->plan;
    const struct model_spec *s = &r->job->spec;
    char params[32], total[BYTES_TEXT], budget[BYTES_TEXT], naive[BYTES_TEXT];
    double n = (double)model_param_count(s);
    snprintf(params, sizeof params, n >= 1e9 ? "%.2f B" : "%.1f M", n >= 1e9 ? n / 1e9 : n / 1e6);
    strbuf_addf(out, "%s, %s parameters, %s, T=%lld, effective batch %lld, on %s\n",
                model_architecture_name(s->arch), params,
                precision_name((enum precision)r->job->training.precision), (long long)r->request->time,
                (long long)r->request->rows, r->request->facts->name);
    int64_t need = p->total;
    bytes_format(total, (uint64_t)need);
    bytes_format(budget, (uint64_t)p->budget);
    struct strbuf verdict = STRBUF_INIT;
    bool host_only = !p->fits && need <= p->budget; /* the device's line holds, the host's does not */
    if (host_only) {
        bytes_format(total, (uint64_t)p->host);
        bytes_format(budget, (uint64_t)r->request->host_budget);
    }
    strbuf_addf(&verdict,
                p->fits     ? "fits: %s of %s"
                : host_only ? "does not fit: %s of the host at the least, where %s may be taken"
                            : "does not fit: %s at the least, the budget is %s",
                total, budget);
    table_coloured(out, colour, p->fits ? TABLE_GREEN : TABLE_RED, verdict.data);
    strbuf_release(&verdict);
    if (r->naive_total > 0)
        strbuf_addf(out, "; without tricks, the whole batch at once, it would take %s",
                    bytes_format(naive, (uint64_t)r->naive_total));
    strbuf_addf(out, "\n\n");
}

static void put_classes(const struct plan_report *r, bool colour, struct strbuf *out)
{
    const struct plan *p = r->plan;
    int64_t whole = p->total;
    for (size_t i = 0; i < sizeof class_rows / sizeof *class_rows; i++)
        if (p->layout.by_class[class_rows[i].cls])
            put_line(out, class_rows[i].text, p->layout.by_class[class_rows[i].cls], whole, colour,
                     class_rows[i].colour);
    int64_t slack = p->layout.arena_bytes - p->layout.lower_bound;
    if (slack) put_line(out, "gaps", slack, whole, colour, TABLE_RED);
    bool is_host = r->request->facts->is_host;
    int64_t loader = is_host ? r->job->loader_bytes : 0;
    if (loader) put_line(out, "data loader", loader, whole, colour, TABLE_DIM);
    put_line(out, "overhead", p->total - p->layout.arena_bytes - loader, whole, colour, TABLE_DIM);
    char text[BYTES_TEXT];
    strbuf_addf(out, "  %-19s %10s  planned arena is %.4f x the live-bytes lower bound\n", "total",
                bytes_format(text, (uint64_t)whole),
                p->layout.lower_bound ? (double)p->layout.arena_bytes / (double)p->layout.lower_bound : 1.0);
    if (!is_host)
        strbuf_addf(out, "  %-19s %10s  beside the budget: program, data loader, what is on the host tier\n",
                    "on the host", bytes_format(text, (uint64_t)p->host));
    if (p->disk) strbuf_addf(out, "  %-19s %10s\n", "on disk", bytes_format(text, (uint64_t)p->disk));
    strbuf_addf(out, "\n");
}

static void put_knobs(const struct plan_report *r, struct strbuf *out)
{
    const struct knobs *k = &r->plan->knobs;
    char recompute[64];
    strbuf_addf(out, "  micro-batch %lld x %lld accumulation, recompute %s, loss in %d slice%s,\n",
                (long long)k->micro_batch, (long long)k->accumulation,
                knobs_recompute_text(k, recompute, sizeof recompute), k->loss_chunks,
                k->loss_chunks == 1 ? "" : "s");
    strbuf_addf(out, "  %s %s, optimizer state on %s",
                optimizer_name((enum optimizer)r->job->training.optimizer),
                k->optimizer_in_backward ? "inside backward" : "after backward",
                knobs_state_text(k, recompute, sizeof recompute));
    if (k->grad_tier != TIER_DEVICE)
        strbuf_addf(out, ", gradients wait on %s", tier_name((enum tier)k->grad_tier));
    if (k->param_tier != TIER_DEVICE)
        strbuf_addf(out, ", parameters come from %s", knobs_param_text(k, recompute, sizeof recompute));
    strbuf_addf(out, "\n");
    double step = r->plan->step_seconds;
    strbuf_addf(out, "  predicted %.3g s a step, %.0f tokens/s   (planned in %.1f ms, %d tapes)\n\n", step,
                step > 0 ? (double)(r->request->rows * r->request->time) / step : 0,
                r->plan->search_seconds * 1e3, r->plan->tried);
}

static void put_savings(const struct plan_report *r, bool colour, struct strbuf *out)
{
    struct table t;
    char text[BYTES_TEXT];
    table_init(&t, "llrr");
    table_header(&t, "trick", "", "bytes", "time");
    for (int i = 0; i < r->nsavings; i++) {
        const struct saving *s = &r->savings[i];
        int64_t size = s->bytes < 0 ? -s->bytes : s->bytes;
        table_cell(&t, "%s", s->name);
        table_cell(&t, "%s", s->on ? "on, saves" : "off, would save");
        table_cell(&t, "%s%s", s->bytes < 0 ? "-" : "", bytes_format(text, (uint64_t)size));
        table_cell(&t, "%+.1f %%", 100 * s->time_cost);
    }
    table_render(&t, out, &(struct table_style){.colour = colour, .indent = 2});
    table_release(&t);
}

static void put_remedies(const struct plan_report *r, bool colour, struct strbuf *out)
{
    struct table t;
    char text[BYTES_TEXT];
    strbuf_addf(out, "\n  what would make it fit, cheapest first:\n");
    table_init(&t, "lrl");
    table_header(&t, "change", "then takes", "cost");
    for (int i = 0; i < r->nremedies; i++) {
        table_cell(&t, "%s", r->remedies[i].change);
        table_cell(&t, "%s", bytes_format(text, (uint64_t)r->remedies[i].total));
        table_cell(&t, "%s", r->remedies[i].cost);
    }
    table_render(&t, out, &(struct table_style){.colour = colour, .indent = 2});
    table_release(&t);
}

void report_text(const struct plan_report *r, bool colour, struct strbuf *out)
{
    put_head(r, colour, out);
    put_classes(r, colour, out);
    put_knobs(r, out);
    put_savings(r, colour, out);
    if (!r->plan->fits) put_remedies(r, colour, out);
}
