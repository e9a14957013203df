/* cmd_doctor.c - plimsoll doctor: problems of a job or a run first, then what is on, what it saves, and what is ignored. */
#include "cli/cli.h"
#include "base/bytes.h"
#include "base/json.h"
#include "api/plan_job.h"
#include "device/registry.h"
#include "report/doctor.h"
#include "train/checkpoint.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct doctor_flags {
    struct job_options job;
    bool json;
};

#define AT(field) offsetof(struct doctor_flags, field)
static const struct option_row rows[] = {
    {"budget", 'b', OPTION_BYTES, AT(job.budget), "BYTES", "memory budget (overrides the job file)",
     .given = OPTION_GIVEN(struct doctor_flags, job.budget_given)},
    {"json", 'j', OPTION_FLAG, AT(json), NULL, "print it as JSON"},
    {"set", 's', OPTION_STRING_LIST, AT(job.set), "KEY=VALUE", "override a configuration key"},
};

static const struct option_example examples[] = {
    {"doctor small.yaml", "problems of a job, techniques in use and what each saves"},
    {"doctor runs/small", "whether a run's files are intact, and how it was made"},
    {"doctor", "this machine and the effect of its environment variables"},
    {NULL, NULL}};

static const struct command command = {
    .name = "doctor",
    .keys = &job_schema,
    .summary = "find problems in a job or a run; show active techniques and ignored settings",
    .usage = "[OPTION...] [CONFIG|RUN]",
    .description = "Lists problems first: settings that contradict each other or defeat their purpose, "
                   "budgets that nothing fits, damaged checkpoints. Then lists the memory-saving techniques "
                   "that are on and what they save, those that are off and what they would save, and "
                   "settings of the job file and the environment that are ignored, and why. Exits with 0 if "
                   "there are no problems and with 1 otherwise.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

enum { EXIT_PROBLEMS = 1 };

/* The findings, one line each. */
struct diagnosis {
    const char *subject;
    struct strbuf problems, ignored, about;
    int count;
    struct device *device; /* whose facts the plan refers to */
    struct planned planned;
};

static void add_problem(struct diagnosis *d, const char *text)
{
    strbuf_addf(&d->problems, "%s\n", text);
    d->count++;
}

static void hear_note(void *arg, const char *where, const char *path, const char *note)
{
    struct diagnosis *d = arg;
    strbuf_addf(&d->ignored, "%s, %s: %s\n", where, path, note);
}

static void add_environment(struct diagnosis *d, const struct job *job)
{
    for (int i = 0; job->environment && i < job->environment->count; i++) {
        const struct variable_seen *v = &job->environment->seen[i];
        const char *comma = strstr(v->where, v->name) ? "" : ", ", *name = *comma ? v->name : "";
        if (v->key)
            strbuf_addf(&d->about, "%s%s%s sets %s\n", v->where, comma, name, v->key);
        else if (v->does)
            strbuf_addf(&d->about, "%s%s%s %s\n", v->where, comma, name, v->does);
        else
            strbuf_addf(&d->ignored, "%s%s%s: %s\n", v->where, comma, name, v->why);
    }
}

static void add_device(struct diagnosis *d, const struct device_facts *f)
{
    char memory[BYTES_TEXT], spare[BYTES_TEXT];
    strbuf_addf(&d->about, "device %s, %s%s", f->name, bytes_format(memory, f->memory_bytes),
                f->memory_limited ? " (the container's limit)" : "");
    if (f->free_bytes) strbuf_addf(&d->about, ", %s free", bytes_format(spare, f->free_bytes));
    strbuf_addc(&d->about, '\n');
}

static bool gpu_is_here(void)
{
    const struct backend *b, *last = backend_fallback();
    for (int i = 0; (b = backend_at(i)) != last; i++)
        if (b->present()) return true;
    return false;
}

static void examine_plan(struct diagnosis *d, const struct job *job)
{
    struct plim_error err = {0};
    struct device *device = d->device;
    struct doctor_case c = {.job = job,
                            .context = cli_context(),
                            .length = &d->planned.length,
                            .facts = &device->facts,
                            .checkpoints = checkpoint_count(job->output_dir),
                            .cpus = (int)sysconf(_SC_NPROCESSORS_ONLN),
                            .gpu_here = gpu_is_here()};
    enum plim_status status = plan_job(cli_context(), job, &device->facts, true, &d->planned, &err);
    if (d->planned.known) c.report = &d->planned.report;
    bool told = d->planned.known && !report_fits(&d->planned.report);
    if (status != PLIM_OK && !told) add_problem(d, err.text);
    d->count += doctor_examine(&c, &d->problems);
    add_device(d, &device->facts);
    job_idle_text(job, &device->facts, &d->ignored);
    size_t before = d->about.len;
    job_bytes_text(job, &d->about);
    if (d->about.len > before) strbuf_addc(&d->about, '\n');
}

static void hear_wrong(void *arg, const char *text) { add_problem(arg, text); }

static void examine_job(struct diagnosis *d, struct doctor_flags *f, struct job *job)
{
    struct plim_error err = {0};
    struct schema_listener notes = {.say = hear_note, .arg = d, .wrong = hear_wrong};
    f->job.config = d->subject, f->job.quiet = true, f->job.notes = &notes;
    enum plim_status status = cli_load_job(job, &f->job, &err);
    add_environment(d, job);
    if (status == PLIM_OK) status = job_check_training(job, &err);
    if (status == PLIM_OK) status = open_job_device(cli_context(), job, &d->device, &err);
    if (status == PLIM_OK) status = cli_meet_device(job, &d->device->facts, &f->job, &err);
    if (status == PLIM_OK)
        examine_plan(d, job);
    else
        add_problem(d, err.text);
}

static void examine_run(struct diagnosis *d)
{
    struct plim_error err = {0};
    struct checkpoint *saved = NULL;
    enum plim_status status = checkpoint_find(d->subject, NULL, &saved, &err);
    if (status != PLIM_OK) add_problem(d, err.text);
    if (status == PLIM_OK && !saved)
        add_problem(d, "there is no checkpoint; point at a run folder or a job file");
    if (!saved) return;
    const struct node *manifest = checkpoint_manifest(saved);
    strbuf_addf(&d->about, "%s is whole\n", checkpoint_path(saved));
    if (!manifest) add_problem(d, "its newest checkpoint has no manifest: nothing says whether it is whole");
    strbuf_addf(&d->about, "step %lld, made on %s\n", (long long)node_int(node_get(manifest, "step"), 0),
                node_string(node_get(manifest, "machine"), "an unknown machine"));
    static const char *const parts[] = {"knobs", "run"};
    for (int p = 0; p < 2; p++) {
        const struct node *map = node_get(manifest, parts[p]);
        for (size_t i = 0; i < node_count(map); i++) {
            STRBUF_AUTO value = STRBUF_INIT;
            struct json_writer w;
            json_writer_init(&w, &value, 0);
            json_node(&w, NULL, node_item(map, i));
            strbuf_addf(&d->about, "%s %s %s\n", parts[p], node_item(map, i)->key, strbuf_text(&value));
        }
    }
    checkpoint_close(saved);
}

/* Without a subject: this machine and its environment. */
static void examine_machine(struct diagnosis *d, struct job *job)
{
    struct plim_error err = {0};
    struct device *device = NULL;
    job_init(job);
    enum plim_status status = schema_defaults(&job_schema, job, &job->store, &err);
    if (status == PLIM_OK) status = job_take_environment(job, cli_context(), "", &err);
    add_environment(d, job);
    if (status == PLIM_OK) status = open_job_device(cli_context(), job, &device, &err);
    if (status == PLIM_OK)
        add_device(d, &device->facts);
    else
        add_problem(d, err.text);
    device_plugins_text(cli_context(), &d->about);
    if (device) device->ops->close(device);
}

/* ---- telling ---- */

static void put_lines(struct strbuf *out, const char *title, const struct strbuf *lines)
{
    if (!lines->len) return;
    strbuf_addf(out, "\n%s:\n", title);
    for (const char *line = lines->data; *line; line = strchr(line, '\n') + 1)
        strbuf_addf(out, "  %.*s\n", (int)strcspn(line, "\n"), line);
}

static void put_text(const struct diagnosis *d, struct strbuf *out)
{
    char count[32];
    snprintf(count, sizeof count, "%d problem%s", d->count, d->count == 1 ? "" : "s");
    strbuf_addf(out, "%s: %s\n", d->subject, d->count ? count : "no problems");
    put_lines(out, "problems", &d->problems);
    if (d->planned.known) {
        strbuf_addc(out, '\n');
        report_savings(&d->planned.report, cli_colour(STDOUT_FILENO), out);
    }
    put_lines(out, "ignored", &d->ignored);
    put_lines(out, "about", &d->about);
}

static void put_array(struct json_writer *w, const char *key, const struct strbuf *lines)
{
    json_begin_array(w, key);
    for (const char *line = strbuf_text(lines); *line; line = strchr(line, '\n') + 1)
        json_strn(w, NULL, line, strcspn(line, "\n"));
    json_end_array(w);
}

static void put_json(const struct diagnosis *d, struct strbuf *out)
{
    struct json_writer w = json_object(out, 2);
    json_str(&w, "subject", d->subject);
    put_array(&w, "problems", &d->problems);
    if (d->planned.known) report_json_savings(&w, &d->planned.report);
    put_array(&w, "ignored", &d->ignored);
    put_array(&w, "about", &d->about);
    json_end_object(&w);
    strbuf_addc(out, '\n');
}

static int examine(struct doctor_flags *f, const char *subject)
{
    struct diagnosis d = {.subject = subject ? subject : "this machine"};
    struct strbuf out = STRBUF_INIT;
    struct job job;
    struct stat st;
    job_init(&job);
    if (!subject)
        examine_machine(&d, &job);
    else if (stat(subject, &st) == 0 && S_ISDIR(st.st_mode))
        examine_run(&d);
    else
        examine_job(&d, f, &job);
    if (f->json)
        put_json(&d, &out);
    else
        put_text(&d, &out);
    int code = cli_print(&out);
    planned_release(&d.planned);
    if (d.device) d.device->ops->close(d.device);
    strbuf_release(&d.problems);
    strbuf_release(&d.ignored);
    strbuf_release(&d.about);
    job_release(&job);
    return code ? code : d.count ? EXIT_PROBLEMS : 0;
}

static const struct doctor_flags defaults;

static int run(void *flags, const struct string_list *args)
{
    return examine(flags, args->count ? args->items[0] : NULL);
}

const struct subcommand subcommand_doctor = {&command, run, CLI_FLAGS(defaults),
                                             0,        1,   "give one job file or run folder"};
