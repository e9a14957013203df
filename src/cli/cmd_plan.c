/* cmd_plan.c - plimsoll plan: where every byte will live, before anything runs. */
#include "cli/cli.h"
#include "base/file.h"
#include "api/plan_job.h"
#include "cli/train_ranks.h"
#include "job/cluster.h"
#include "job/preset.h"
#include "report/snapshot.h"
#include "runtime/plan_file.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct plan_options {
    struct job_options job;
    const char *device, *html, *keep;
    const char *snapshot[SNAPSHOT_FORMATS]; /* files */
    bool json, tape, list_devices, save, settings, serve;
    struct cluster cluster;
};

#define AT(field) offsetof(struct plan_options, field)
static const struct option_row rows[] = {
    {"budget", 'b', OPTION_BYTES, AT(job.budget), "BYTES",
     "memory budget, e.g. 64MiB (overrides the job file)",
     .given = OPTION_GIVEN(struct plan_options, job.budget_given)},
    {"device", 'd', OPTION_STRING, AT(device), "NAME",
     "plan for the preset of this device, e.g. a10g; it need not be present"},
    {"ranks", 0, OPTION_INT64, AT(cluster.ranks), "N",
     "number of ranks that train together; shows the plan of one rank (1)"},
    {"nodes", 0, OPTION_INT64, AT(cluster.nodes), "N", "number of machines that the ranks are on (1)"},
    {"link", 0, OPTION_STRING, AT(cluster.link), "NAME",
     "link between ranks of a node: shared-memory, pcie, nvlink (the usual one of the device)"},
    {"network", 0, OPTION_STRING, AT(cluster.network), "NAME",
     "network between nodes: 1g, 10g, 25g, 100g, 400g (100g)"},
    {"list-devices", 0, OPTION_FLAG, AT(list_devices), NULL, "list the device presets and exit"},
    {"output", 'o', OPTION_STRING, AT(keep), "FILE", "save the plan to a file for train --plan"},
    {"json", 'j', OPTION_FLAG, AT(json), NULL, "print the plan as JSON"},
    {"html", 0, OPTION_STRING, AT(html), "FILE", "draw the arena (address x time) as a self-contained page"},
    {"trace", 0, OPTION_STRING, AT(snapshot[SNAPSHOT_TRACE]), "FILE",
     "write a trace of ops and tensors for ui.perfetto.dev or chrome://tracing"},
    {"memory-viz", 0, OPTION_STRING, AT(snapshot[SNAPSHOT_MEMORY_VIZ]), "FILE",
     "write a pickle for PyTorch's memory_viz"},
    {"snapshot", 0, OPTION_STRING, AT(snapshot[SNAPSHOT_JSON]), "FILE",
     "write every op and tensor with its address and time as JSON"},
    {"tape", 0, OPTION_FLAG, AT(tape), NULL, "print the tape: one line per op"},
    {"checkpoint", 0, OPTION_FLAG, AT(save), NULL,
     "count a final checkpoint in the disk space (the default)"},
    {"set", 's', OPTION_STRING_LIST, AT(job.set), "KEY=VALUE", "override a configuration key"},
    JOB_FLAG_ROWS(struct plan_options, job),
    {"settings", 0, OPTION_FLAG, AT(settings), NULL,
     "also list settings at their defaults; each with its origin"},
    {"quiet", 'q', OPTION_FLAG, AT(job.quiet), NULL, "no notes about keys without effect"},
    {"serve", 0, OPTION_FLAG, AT(serve), NULL,
     "plan serving instead of training; takes MODEL and the options of serve"},
};

static const struct option_example examples[] = {
    {"plan small.yaml --budget 64MiB", "the fastest plan inside 64 MiB, or what is missing"},
    {"plan small.yaml --json | jq .peak_bytes", "the peak, for a program"},
    {"plan small.yaml --budget 64MiB -o small.plan", "save the plan for train --plan"},
    {"plan llama.yaml --device a10g", "for a GPU that this machine does not have"},
    {"plan llama.yaml --device g5.12xlarge", "for a machine with four GPUs"},
    {"plan llama.yaml --device h100 --ranks 1024 --nodes 128 --link nvlink",
     "for 128 nodes with eight GPUs each"},
    {"plan small.yaml --html plan.html", "a picture of the arena"},
    {"plan small.yaml --trace plan.trace.json", "a trace to zoom into at ui.perfetto.dev"},
    {"plan --serve runs/demo --budget 64MiB", "how many requests of which length a server could handle"},
    {"plan --serve runs/demo --trace step.trace.json", "a trace of its largest step"},
    {NULL, NULL}};

static const struct command command = {
    .name = "plan",
    .keys = &job_schema,
    .summary = "show the memory plan of a job, before anything runs",
    .usage = "[OPTION...] CONFIG",
    .description = "Chooses micro-batch, accumulation, recompute, loss slices, optimizer placement and "
                   "offload so that the job fits its budget and is predicted to run fastest, and shows the "
                   "result. Offloads nothing unless that is necessary or predicted to be faster by more "
                   "than a tenth. Exits with 0 if the job fits. Otherwise exits with 3 and lists the "
                   "missing bytes and the cheapest remedies.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

static enum plim_status write_html(const struct plan_report *report, const char *path, struct plim_error *err)
{
    STRBUF_AUTO page = STRBUF_INIT;
    report_html(report, &page);
    enum plim_status status = strbuf_status(&page, err);
    if (status == PLIM_OK) status = file_write_atomic(path, page.data, page.len, err);
    return status;
}

/* Every file that was asked for. */
static enum plim_status write_files(const struct plan_report *report, const struct plan_options *o,
                                    struct plim_error *err)
{
    struct snapshot snapshot = {0};
    bool any = false;
    for (int i = 0; i < SNAPSHOT_FORMATS; i++) any |= o->snapshot[i] != NULL;
    enum plim_status status = o->html ? write_html(report, o->html, err) : PLIM_OK;
    if (status == PLIM_OK && any)
        status = snapshot_init(&snapshot, report->plan, report->request->facts, NULL, err);
    for (int i = 0; i < SNAPSHOT_FORMATS && status == PLIM_OK; i++)
        if (o->snapshot[i]) status = snapshot_save(&snapshot, (enum snapshot_format)i, o->snapshot[i], err);
    snapshot_release(&snapshot);
    return status;
}

/* The device that is planned for: its preset's facts, or those of one of this machine, which is then open. */
static enum plim_status find_device(struct job *job, struct plan_options *o, struct preset *preset,
                                    struct device **device, struct plim_error *err)
{
    if (o->cluster.ranks < 0 || o->cluster.nodes < 0)
        return plim_fail(err, PLIM_BAD_INPUT, "plan: options '--ranks' and '--nodes': write 1 or more");
    cluster_from_keys(&o->cluster, job->training.link, job->training.network);
    if (o->device) cluster_find(o->device, &o->cluster);
    int64_t nodes = o->cluster.nodes ? o->cluster.nodes : 1, local = o->cluster.ranks / nodes;
    if (!o->device && local > 1) ranks_share_cores(job, (int)local);
    struct device_wish wish = device_wish_of(job);
    if (strcmp(wish.name, "auto")) wish.budget = 0; /* planned for, whatever the budget leaves of it */
    enum plim_status status =
        o->device ? preset_find(o->device, preset, err) : open_device(cli_context(), &wish, device, err);
    if (status != PLIM_OK && o->device) plim_error_prefix(err, "plan: option '--device'");
    if (status == PLIM_OK && !o->device) preset->facts = (*device)->facts;
    if (status == PLIM_OK && !o->device && local > 1 && preset->facts.unified_memory)
        ranks_share_memory(&preset->facts, (int)local);
    if (status == PLIM_OK) status = plan_find_link(&o->cluster, !o->device, &preset->facts, err);
    if (status == PLIM_OK) job->ranks = preset->facts.ranks;
    if (status == PLIM_OK) status = cli_check_mode(&o->job, preset->facts.ranks, "write --ranks N", err);
    if (status == PLIM_OK) status = cli_meet_device(job, &preset->facts, &o->job, err);
    if (status == PLIM_OK && o->device) job_take_profile(job, preset);
    return status;
}

/* Everything after the job is loaded: search, then the forms that were asked for. */
static int show(const struct job *job, const struct plan_options *o, const char *settings,
                struct device_facts *facts)
{
    struct planned p;
    struct plim_error err = {0}, unwritten = {0};
    struct strbuf out = STRBUF_INIT;
    enum plim_status status = plan_job(cli_context(), job, facts, !o->device, &p, &err);
    int code = p.known ? plim_exit_code(status) : cli_error(&err);
    if (p.known && write_files(&p.report, o, &unwritten) != PLIM_OK)
        p.known = false, code = cli_error(&unwritten);
    if (p.known && status == PLIM_OK && o->keep &&
        plan_file_save(o->keep, settings, job, &p.loader.at[p.loader.chosen], &p.request, &p.plan,
                       &unwritten) != PLIM_OK)
        p.known = false, code = cli_error(&unwritten);
    if (p.known) {
        p.report.all_settings = o->settings;
        if (o->tape) tape_print(&p.plan.tape, &out);
        if (o->json)
            report_json(&p.report, &out);
        else if (!o->tape)
            report_text(&p.report, cli_colour(STDOUT_FILENO), &out);
        int failed = cli_print(&out);
        if (p.no_data && !o->job.quiet)
            cli_say("%s: data.train or data.validation is not on this machine; it was neither checked nor "
                    "counted",
                    job->name);
        if (status == PLIM_NO_FIT) cli_say("%s", err.text);
        if (status == PLIM_OK) cli_say_bytes(job, &o->job);
        if (failed) code = failed;
    }
    planned_release(&p);
    return code;
}

static const struct plan_options defaults = {.save = true};

static int list_devices(void)
{
    struct strbuf text = STRBUF_INIT;
    preset_list(&text);
    return cli_print(&text);
}

static int run(void *flags, const struct string_list *args)
{
    struct plan_options *o = flags;
    struct plim_error err = {0};
    struct job job;
    struct device *device = NULL;
    struct preset preset;
    struct strbuf settings = STRBUF_INIT;
    if (o->list_devices) return list_devices();
    if (!args->count) return cli_wants(&subcommand_plan);
    o->job.config = args->items[0];
    job_init(&job);
    enum plim_status status = cli_load_job(&job, &o->job, &err);
    job.no_final_checkpoint = !o->save;
    if (status == PLIM_OK) status = job_check_training(&job, &err);
    if (status == PLIM_OK && o->keep && o->device)
        status = plim_fail(&err, PLIM_BAD_INPUT,
                           "plan: option '-o' saves a plan for this machine, but --device names another "
                           "device; give one of them");
    if (status == PLIM_OK) plan_file_settings(&job, &settings);
    if (status == PLIM_OK) status = find_device(&job, o, &preset, &device, &err);
    int code = status == PLIM_OK ? show(&job, o, strbuf_text(&settings), &preset.facts) : cli_error(&err);
    strbuf_release(&settings);
    if (device) device->ops->close(device);
    job_release(&job);
    return code;
}

/* plan --serve ...: the words go to serve --plan. */
static const struct subcommand *instead(int argc, char **argv)
{
    static char plan[] = "--plan";
    int i = 0;
    while (i < argc && strcmp(argv[i], "--") && strcmp(argv[i], "--serve")) i++;
    if (i == argc || strcmp(argv[i], "--serve")) return NULL;
    argv[i] = plan;
    return &subcommand_serve;
}

const struct subcommand subcommand_plan = {
    &command, run, CLI_FLAGS(defaults), 0, 1, "give one config file", .instead = instead};
