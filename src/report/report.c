/* report.c - gathering what reports show, and the JSON form. */
#include "report/report.h"

enum plim_status report_fill(struct plan_report *report, const struct job *job,
                             const struct loader_sizes *loader, const struct job_length *length,
                             const struct plan_request *request, const struct plan *plan,
                             struct plim_error *err)
{
    *report = (struct plan_report){
        .job = job, .loader = loader, .length = length, .request = request, .plan = plan};
    struct knobs naive = knobs_naive(request);
    struct plan_bound bound;
    enum plim_status status = plan_bound_of(request, &naive, NULL, &bound, err);
    if (status != PLIM_OK) return status;
    report->naive_total = bound.total;
    report->npins = report_pins(job, report->pins);
    status = job_savings(job, request, plan, report->savings, &report->nsavings, err);
    if (status == PLIM_OK) status = job_forward_seconds(request, plan, &report->forward_seconds, err);
    if (status == PLIM_OK && !plan->fits)
        status = job_remedies(job, request, plan, report->remedies, &report->nremedies, err);
    return status;
}

bool report_fits(const struct plan_report *r)
{
    return r->plan->fits && report_holds_device(r) && disk_line_held(&r->disk);
}

void report_json_knobs(struct json_writer *w, const char *key, const struct job *job,
                       const struct knobs *knobs)
{
    json_begin_object(w, key);
    struct knobs shown = *knobs;
    if (shown.recompute == RECOMPUTE_FULL) shown.full_layers = model_layers(&job->spec);
    knobs_json(w, &shown);
    json_str(w, "precision", precision_name((enum precision)job->training.precision));
    json_str(w, "optimizer", optimizer_name((enum optimizer)job->training.optimizer));
    json_end_object(w);
}

/* by_class sums to the total; by_host to the host's, whose program and loader the total counts on a CPU only. */
static void put_bytes(struct json_writer *w, const struct plan_report *r)
{
    const struct plan *p = r->plan;
    int64_t loader = report_counted_loader(r);
    json_begin_object(w, "peak_bytes");
    json_int(w, "total", p->total);
    json_int(w, "device", p->device);
    json_int(w, "host", p->host);
    json_int(w, "disk", p->disk);
    json_end_object(w);
    json_begin_object(w, "by_class");
    for (int c = 0; c < CLASS_COUNT; c++)
        json_int(w, tensor_class_name((enum tensor_class)c),
                 p->layout.by_class[c] + (c == CLASS_IO ? loader : 0));
    json_int(w, "slack", p->layout.arena_bytes - p->layout.lower_bound);
    json_int(w, "overhead", p->total - p->layout.arena_bytes - loader);
    json_end_object(w);
    json_begin_object(w, "by_host");
    json_int(w, "program", p->overhead - loader_sizes_bytes(r->loader));
    json_int(w, "loader", loader_sizes_bytes(r->loader));
    json_int(w, "tier", p->layout.tier_bytes[TIER_HOST]);
    json_end_object(w);
    json_int(w, "arena_bytes", p->layout.arena_bytes);
    json_int(w, "lower_bound_bytes", p->layout.lower_bound);
}

/* Writes the device's memory, and whether it can satisfy the request. */
static void put_memory(struct json_writer *w, const struct plan_report *r)
{
    const struct device_facts *f = r->request->facts;
    json_begin_object(w, "memory");
    json_int(w, "bytes", (int64_t)f->memory_bytes);
    json_bool(w, "limited", f->memory_limited);
    if (f->free_bytes)
        json_int(w, "free_bytes", (int64_t)f->free_bytes);
    else
        json_null(w, "free_bytes");
    json_bool(w, "holds_plan", r->plan->total <= (int64_t)f->memory_bytes);
    json_bool(w, "holds_budget", r->plan->budget <= (int64_t)f->memory_bytes);
    json_end_object(w);
}

static void put_disk(struct json_writer *w, const struct disk_line *disk)
{
    json_begin_object(w, "disk");
    json_int(w, "bytes", disk->total);
    json_int(w, "tier", disk->tier);
    json_int(w, "checkpoint", disk->checkpoint);
    json_int(w, "checkpoints", disk->checkpoints);
    if (disk->free >= 0)
        json_int(w, "free_bytes", disk->free);
    else
        json_null(w, "free_bytes");
    json_bool(w, "holds_plan", disk_line_held(disk));
    json_end_object(w);
}

static void put_loader(struct json_writer *w, const struct loader_sizes *s)
{
    const struct loader_size *size = &s->at[s->chosen];
    json_begin_object(w, "loader");
    json_int(w, "bytes", size->bytes);
    json_int(w, "workers", size->workers);
    json_int(w, "pieces", size->pieces);
    json_int(w, "max_line_bytes", size->max_line_bytes);
    json_bool(w, "shrunk", s->chosen > 0);
    json_end_object(w);
}

void report_json_savings(struct json_writer *w, const struct plan_report *r)
{
    bool unified_memory = r->request->facts->unified_memory;
    json_begin_array(w, "savings");
    for (int i = 0; i < r->nsavings; i++) {
        const struct saving *s = &r->savings[i];
        json_begin_object(w, NULL);
        json_str(w, "name", s->name);
        json_bool(w, "on", s->on);
        json_int(w, "bytes", s->bytes);
        json_int(w, "host_bytes", unified_memory ? 0 : s->far);
        json_int(w, "disk_bytes", unified_memory ? s->far : 0);
        json_double(w, "time_cost", s->time_cost);
        json_end_object(w);
    }
    json_end_array(w);
}

/* Writes a change for people and for programs: values to set, and keys to remove. */
static void put_change(struct json_writer *w, const struct remedy *remedy)
{
    char text[512];
    json_str(w, "change", remedy_text(remedy, text, sizeof text));
    json_begin_object(w, "set");
    for (int i = 0; i < remedy->nkeys; i++)
        if (remedy->keys[i].value[0]) json_str(w, remedy->keys[i].key, remedy->keys[i].value);
    json_end_object(w);
    json_begin_array(w, "unset");
    for (int i = 0; i < remedy->nkeys; i++)
        if (!remedy->keys[i].value[0]) json_str(w, NULL, remedy->keys[i].key);
    json_end_array(w);
}

static void put_remedies(struct json_writer *w, const struct plan_report *r)
{
    json_begin_array(w, "remedies");
    for (int i = 0; i < r->nremedies; i++) {
        json_begin_object(w, NULL);
        put_change(w, &r->remedies[i]);
        json_str(w, "cost", r->remedies[i].cost);
        json_int(w, "total_bytes", r->remedies[i].total);
        json_int(w, "host_bytes", r->remedies[i].host);
        json_double(w, "step_ms", r->remedies[i].step_seconds * 1e3);
        json_end_object(w);
    }
    json_end_array(w);
}

static void put_search(struct json_writer *w, const struct plan_search_report *search)
{
    json_begin_object(w, "search");
    json_double(w, "gap", search->gap);
    json_int(w, "tapes", search->tapes);
    json_int(w, "work", search->work);
    json_double(w, "ms", search->seconds * 1e3);
    json_end_object(w);
}

static void put_epoch(struct json_writer *w, const struct plan_report *r)
{
    const struct job_epoch *e = &r->length->epoch;
    json_begin_object(w, "epoch");
    json_int(w, "rows", e->rows);
    json_int(w, "tokens", e->tokens);
    json_double(w, "padding", e->positions ? 1 - (double)e->tokens / (double)e->positions : 0);
    json_double(w, "predicted_s", report_epoch_seconds(r->job, r->length, r->plan));
    json_bool(w, "exact", e->exact);
    json_end_object(w);
}

static void put_ranks(struct json_writer *w, const struct plan_report *r)
{
    json_begin_object(w, "ranks");
    json_int(w, "count", report_ranks(r));
    json_int(w, "zero_stage", r->plan->knobs.zero);
    json_double(w, "link_bytes_per_step", report_link_bytes(r));
    json_double(w, "efficiency", report_link_efficiency(r));
    json_end_object(w);
}

static void put_predicted(struct json_writer *w, const struct plan_report *r)
{
    double seconds = r->plan->step_seconds;
    int64_t tokens = job_rows_of_all(r->job) * r->request->time;
    json_begin_object(w, "predicted");
    json_double(w, "step_ms", seconds * 1e3);
    json_double(w, "tokens_per_s", seconds > 0 ? (double)tokens / seconds : 0);
    if (r->forward_seconds > 0) json_double(w, "in_forward_ms", r->forward_seconds * 1e3);
    json_double(w, "run_s", report_run_seconds(r->job, r->length, r->plan));
    json_int(w, "steps", r->length->steps);
    json_end_object(w);
}

void report_json(const struct plan_report *r, struct strbuf *out)
{
    const struct plan *p = r->plan;
    int64_t need = p->total;
    struct json_writer w = json_object(out, 2);
    json_bool(&w, "fits", report_fits(r));
    json_int(&w, "budget_bytes", p->budget);
    json_int(&w, "missing_bytes", need > p->budget ? need - p->budget : 0);
    int64_t host_line = r->request->facts->unified_memory ? 0 : r->request->host_budget;
    json_int(&w, "host_budget_bytes", host_line);
    json_int(&w, "missing_host_bytes", host_line && p->host > host_line ? p->host - host_line : 0);
    put_bytes(&w, r);
    put_memory(&w, r);
    if (r->disk.total) put_disk(&w, &r->disk);
    put_loader(&w, r->loader);
    json_int(&w, "naive_bytes", r->naive_total);
    json_str(&w, "device", r->request->facts->name);
    json_bool(&w, "runnable", !r->request->facts->no_kernels[0]);
    if (r->request->facts->no_kernels[0]) json_str(&w, "not_runnable", r->request->facts->no_kernels);
    json_int(&w, "parameters", model_param_count(&r->job->spec));
    json_int(&w, "trained_parameters", tape_param_count(&p->tape, true));
    json_int(&w, "effective_batch", job_rows_of_all(r->job));
    if (report_ranks(r) > 1) put_ranks(&w, r);
    json_int(&w, "max_length", r->request->time);
    report_json_knobs(&w, "knobs", r->job, &p->knobs);
    json_begin_array(&w, "pins");
    for (int i = 0; i < r->npins; i++) json_str(&w, NULL, r->pins[i]);
    json_end_array(&w);
    report_json_savings(&w, r);
    if (!p->fits) put_remedies(&w, r);
    put_predicted(&w, r);
    if (r->length->epoch.rows) put_epoch(&w, r);
    json_begin_object(&w, "planning");
    json_int(&w, "ops", p->tape.nops);
    json_int(&w, "tensors", p->tape.ntensors);
    json_end_object(&w);
    put_search(&w, &p->search);
    job_settings_json(r->job, r->length, &w);
    json_end_object(&w);
    strbuf_addf(out, "\n");
}
