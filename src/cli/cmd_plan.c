/* cmd_plan.c - plimsoll plan: where every byte will live, before anything runs. */
#include "cli/cli.h"
#include "base/bytes.h"
#include "base/file.h"
#include "job/cluster.h"
#include "job/preset.h"
#include "report/report.h"
#include "runtime/runtime.h"
#include "train/checkpoint.h"
#include "train/corpus.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct plan_options {
    struct job_options job;
    const char *device, *html;
    bool json, tape, list_devices, save;
    struct cluster cluster;
};

#define AT(field) offsetof(struct plan_options, field)
static const struct option_row rows[] = {
    {"budget", 'b', OPTION_BYTES, AT(job.budget), "BYTES",
     "hold this line instead of the config's, e.g. 64MiB",
     .given = OPTION_GIVEN(struct plan_options, job.budget_given)},
    {"device", 'd', OPTION_STRING, AT(device), "NAME", "plan for this device from its preset, e.g. a10g"},
    {"ranks", 0, OPTION_INT64, AT(cluster.ranks), "N",
     "for so many ranks that train together (per-rank plan)"},
    {"nodes", 0, OPTION_INT64, AT(cluster.nodes), "N", "ranks are on so many machines (1)"},
    {"link", 0, OPTION_STRING, AT(cluster.link), "NAME",
     "between ranks of a node: shared-memory, pcie, nvlink (the device's usual one)"},
    {"network", 0, OPTION_STRING, AT(cluster.network), "NAME",
     "between nodes: 1g, 10g, 25g, 100g, 400g (100g)"},
    {"list-devices", 0, OPTION_FLAG, AT(list_devices), NULL, "list the presets and stop"},
    {"json", 'j', OPTION_FLAG, AT(json), NULL, "print the plan as JSON"},
    {"html", 0, OPTION_STRING, AT(html), "FILE",
     "draw the arena (address x time) as one self-contained page"},
    {"tape", 0, OPTION_FLAG, AT(tape), NULL, "print the tape: one line per op"},
    {"checkpoint", 0, OPTION_FLAG, AT(save), NULL, "count a checkpoint at the end (the default)"},
    {"set", 's', OPTION_STRING_LIST, AT(job.set), "KEY=VALUE", "override a configuration key"},
    {"quiet", 'q', OPTION_FLAG, AT(job.quiet), NULL, "no notes about needless keys"},
};

static const struct option_example examples[] = {
    {"plan small.yaml --budget 64MiB", "the fastest plan inside 64 MiB, or what is missing"},
    {"plan small.yaml --json | jq .peak_bytes", "the peak, for a program"},
    {"plan llama.yaml --device a10g", "on a card that is not here"},
    {"plan llama.yaml --device g5.12xlarge", "on a machine of four cards"},
    {"plan llama.yaml --device h100 --ranks 1024 --nodes 128 --link nvlink", "on 128 nodes of eight"},
    {"plan small.yaml --html plan.html", "a picture of the hold"},
    {NULL, NULL}};

static const struct command command = {
    .name = "plan",
    .summary = "show where every byte will live, before anything runs",
    .usage = "[OPTION...] CONFIG",
    .description =
        "Chooses micro-batch, accumulation, recomputation, loss slices, optimizer placement and tiers "
        "so that the job fits its budget and is predicted to run fastest, and shows the result. Exits 0 "
        "when it fits and 3 when nothing does; then the missing bytes and the cheapest remedies are "
        "listed.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

static enum plim_status write_html(const struct plan_report *report, const char *path, struct plim_error *err)
{
    struct strbuf page = STRBUF_INIT;
    report_html(report, &page);
    enum plim_status status = file_write_atomic(path, page.data, page.len, err);
    strbuf_release(&page);
    return status;
}

/* The device that is planned for: its preset's facts, or those of one of this machine, which is then open. */
static enum plim_status find_device(struct job *job, struct plan_options *o, struct preset *preset,
                                    struct device **device, struct plim_error *err)
{
    if (o->cluster.ranks < 0 || o->cluster.nodes < 0)
        return plim_fail(err, PLIM_BAD_INPUT, "plan: options '--ranks' and '--nodes': write 1 or more");
    if (o->device && cluster_find(o->device, &o->cluster)) o->device = o->cluster.device;
    struct job asked = *job; /* a device that is named is planned for, whatever the budget leaves of it */
    if (strcmp(job->training.device, "auto")) asked.budget = 0;
    enum plim_status status =
        o->device ? preset_find(o->device, preset, err) : cli_open_device(&asked, device, err);
    if (status != PLIM_OK && o->device) plim_error_prefix(err, "plan: option '--device'");
    if (status == PLIM_OK && !o->device) preset->facts = (*device)->facts;
    if (status == PLIM_OK) status = cluster_apply(&o->cluster, &preset->facts, err);
    if (status == PLIM_OK) status = cli_meet_device(job, &preset->facts, &o->job, err);
    if (status == PLIM_OK && o->device) job_take_profile(job, preset);
    return status;
}

/* A plan may hold its budget and still be more than the device has. */
static enum plim_status beyond_device(const struct job *job, const struct plan_request *request,
                                      const struct plan *plan, struct plim_error *err)
{
    char need[BYTES_TEXT], has[BYTES_TEXT];
    const struct device_facts *f = request->facts;
    if (plan->total <= (int64_t)f->memory_bytes) return PLIM_OK;
    return plim_fail(
        err, PLIM_NO_FIT, "%s: does not fit %s: the plan takes %s, there are %s; lower the budget", job->name,
        facts_holder(f), bytes_format(need, (uint64_t)plan->total), bytes_format(has, f->memory_bytes));
}

/* The plan that a run would have: compared inside the line, and where it is missed by no more than processes differ in size,
 * with the reserve. When there is none, plans are compared once more without a line, to name what is missing. */
static enum plim_status make_plan(struct job *job, struct plan_request *request, struct overhead overhead,
                                  struct plan *out, struct plim_error *err)
{
    request->search_line = request->facts->unified_memory ? request->budget : 0;
    enum plim_status status = job_plan(job, request, out, err);
    if (status != PLIM_NO_FIT) return status;
    bool near = out->tape.nops && out->total - request->budget <= overhead.reserve;
    if (near) request->overhead -= overhead.reserve;
    if (!near) request->search_line = 0;
    plan_release(out);
    *err = (struct plim_error){0};
    return job_plan(job, request, out, err);
}

/* Everything after the job is loaded: search, then the forms that were asked for. */
static int show(struct job *job, const struct plan_options *o, const struct device_facts *facts)
{
    struct plan_request request;
    struct plan plan = {0};
    struct plan_report report;
    struct plim_error err = {0}, no_fit = {0};
    struct strbuf out = STRBUF_INIT;
    struct overhead overhead = runtime_overhead();
    enum plim_status status = corpus_measure(job, &err);
    if (status == PLIM_OK) status = runtime_request(job, facts, overhead.bytes, &request, &err);
    if (status == PLIM_OK) status = make_plan(job, &request, overhead, &plan, &no_fit);
    bool shown = status == PLIM_OK || status == PLIM_NO_FIT;
    if (shown && report_fill(&report, job, &request, &plan, &err) != PLIM_OK)
        shown = false, status = err.status;
    if (!shown && err.status == PLIM_OK) err = no_fit;
    if (shown && !o->device) disk_line_of(job, &plan, checkpoint_count(job->output_dir), &report.disk);
    if (status == PLIM_NO_FIT && shown) corpus_remedies(&report);
    if (status == PLIM_OK) status = beyond_device(job, &request, &plan, &no_fit);
    if (status == PLIM_OK) status = disk_line_check(&report.disk, job, &no_fit);
    if (shown && o->html && write_html(&report, o->html, &err) != PLIM_OK) shown = false, status = err.status;
    int code = shown ? plim_exit_code(status) : cli_error(&err);
    if (shown) {
        if (o->tape) tape_print(&plan.tape, &out);
        if (o->json)
            report_json(&report, &out);
        else if (!o->tape)
            report_text(&report, cli_colour(STDOUT_FILENO), &out);
        int failed = cli_print(&out);
        if (status == PLIM_NO_FIT) fprintf(stderr, "plimsoll: %s\n", no_fit.text);
        if (failed) code = failed;
    }
    plan_release(&plan);
    return code;
}

static int run(int argc, char **argv)
{
    struct plan_options o = {.save = true};
    struct bump store = {0};
    struct options_rest rest;
    struct plim_error err = {0};
    struct job job;
    struct device *device = NULL;
    struct preset preset;
    int code = cli_options(&command, argc, argv, &o, &store, &rest);
    if (code >= 0) goto out;
    if (o.list_devices) {
        struct strbuf text = STRBUF_INIT;
        preset_list(&text);
        code = cli_print(&text);
        goto out;
    }
    if (rest.args.count != 1) {
        plim_fail(&err, PLIM_BAD_INPUT, "plan: give one config file; see plimsoll plan --help");
        code = cli_error(&err);
        goto out;
    }
    o.job.config = rest.args.items[0];
    job_init(&job);
    enum plim_status status = cli_load_job(&job, &o.job, &err);
    job.no_final_checkpoint = !o.save;
    if (status == PLIM_OK) status = job_check_training(&job, &err);
    if (status == PLIM_OK) status = find_device(&job, &o, &preset, &device, &err);
    code = status == PLIM_OK ? show(&job, &o, &preset.facts) : cli_error(&err);
    if (device) device->ops->close(device);
    job_release(&job);
out:
    bump_free(&store);
    return code;
}

const struct subcommand subcommand_plan = {&command, run, false};
