/* report_html.c - a picture of the hold: the planned arena, address x time, as one page that needs nothing else.
 *
 * The page carries the plan's snapshot and the script that draws it (data/map.js), which the page of a run has, too. Kept tensors
 * lie at the bottom and span the whole width. */
#include "base/bytes.h"
#include "report/page.h"
#include "report/report.h"
#include "report/snapshot.h"

static void put_snapshot(const struct plan_report *r, struct strbuf *out)
{
    struct snapshot s;
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    if (snapshot_init(&s, r->plan, r->request->facts, NULL, NULL) != PLIM_OK) {
        out->failed = true;
        return;
    }
    json_writer_init(&w, &text, 0);
    json_begin_object(&w, NULL);
    snapshot_json(&s, &w);
    json_end_object(&w);
    snapshot_release(&s);
    page_json(out, "snapshot", &text);
    strbuf_release(&text);
}

static void put_summary(const struct plan_report *r, struct strbuf *out)
{
    const struct plan *p = r->plan;
    char arena[BYTES_TEXT], recompute[64], step[DURATION_TEXT];
    const char *why = r->request->facts->no_kernels;
    strbuf_addf(out, "<h1>");
    report_verdict(r, out);
    strbuf_add(out, "</h1><p>");
    report_host_need(r, out);
    report_memory(r, out);
    strbuf_addf(out,
                "</p>%s%s%s<p class=sub>arena %s, %.4f x its lower bound; micro-batch %lld x %lld, "
                "recompute %s, loss in "
                "%d, ",
                *why ? "<p><b>this program cannot run there yet</b>: " : "", why,
                *why ? "; the plan is what it would take</p>" : "",
                bytes_format(arena, (uint64_t)p->layout.arena_bytes),
                p->layout.lower_bound ? (double)p->layout.arena_bytes / (double)p->layout.lower_bound : 1.0,
                (long long)p->knobs.micro_batch, (long long)p->knobs.accumulation,
                knobs_recompute_text(&p->knobs, recompute, sizeof recompute), (int)p->knobs.loss_chunks);
    report_places(r, out);
    if (r->disk.total && disk_line_held(&r->disk)) {
        strbuf_add(out, "; ");
        disk_line_text(&r->disk, out);
    }
    strbuf_addf(out, "; predicted %s a step<br>the dashed line is the op where live bytes peak: ",
                report_duration(step, p->step_seconds));
    report_peak(r, out);
    strbuf_add(out, "</p><section id=\"map\"></section>\n");
}

static void put_savings(const struct plan_report *r, struct strbuf *out)
{
    char near[SAVED_TEXT], far[SAVED_TEXT];
    strbuf_addf(out, "<section><table><tr><th>trick<th><th>%s<th>%s<th>time\n", report_near_name(r),
                report_lower_name(r));
    for (int i = 0; i < r->nsavings; i++) {
        const struct saving *s = &r->savings[i];
        strbuf_addf(out, "<tr><td>%s<td>%s<td class=n>%s<td class=n>%s<td class=n>%+.1f %%\n", s->name,
                    s->on ? "on, saves" : "off, would save", report_saved(near, s->bytes),
                    report_saved(far, s->far), 100 * s->time_cost);
    }
    strbuf_addf(out, "</table></section>\n");
}

static void put_remedies(const struct plan_report *r, struct strbuf *out)
{
    char total[BYTES_TEXT], host[BYTES_TEXT], step[DURATION_TEXT], change[512];
    bool unified_memory = r->request->facts->unified_memory;
    if (!r->nremedies) return;
    strbuf_addf(out,
                "<section><p>what would make it fit, cheapest first:</p><table><tr><th>change<th>then "
                "takes%s<th>a step"
                "<th>cost\n",
                unified_memory ? "" : "<th>of the host");
    for (int i = 0; i < r->nremedies; i++) {
        const struct remedy *remedy = &r->remedies[i];
        strbuf_addf(out, "<tr><td>");
        strbuf_add_html(out, remedy_text(remedy, change, sizeof change));
        strbuf_addf(out, "<td class=n>%s%s%s<td class=n>%s<td>", bytes_format(total, (uint64_t)remedy->total),
                    unified_memory ? "" : "<td class=n>",
                    unified_memory ? "" : bytes_format(host, (uint64_t)remedy->host),
                    report_duration(step, remedy->step_seconds));
        strbuf_add_html(out, remedy->cost);
        strbuf_addf(out, "\n");
    }
    strbuf_addf(out, "</table></section>\n");
}

void report_html(const struct plan_report *r, struct strbuf *out)
{
    page_data(out, "plan");
    put_summary(r, out);
    put_savings(r, out);
    put_remedies(r, out);
    strbuf_addf(out, "<p>");
    report_larger_device(r, out);
    strbuf_addf(out, "</p>\n");
    put_snapshot(r, out);
    strbuf_add(out, "<script>\n");
    page_data(out, "map");
    strbuf_add(out, "const map = new Hold.Map(document.getElementById('map'));\n"
                    "map.show(JSON.parse(document.getElementById('snapshot').textContent));\n</script>\n");
}
