/* cmd_config.c - plimsoll config: a job's settings as they count, one key explained, other trainers' files as ours. */
#include "cli/cli.h"
#include "base/json.h"
#include "base/yaml.h"
#include "job/convert.h"
#include "job/job.h"

#include <stdio.h>
#include <string.h>

struct config_flags {
    struct job_options job;
    bool json, all;
};

#define AT(field) offsetof(struct config_flags, field)
static const struct option_row rows[] = {
    {"all", 'a', OPTION_FLAG, AT(all), NULL, "show: include settings at their defaults, as comments"},
    {"json", 'j', OPTION_FLAG, AT(json), NULL, "show: print values and origins as JSON"},
    {"budget", 'b', OPTION_BYTES, AT(job.budget), "BYTES", "show: memory budget (overrides the job file)",
     .given = OPTION_GIVEN(struct config_flags, job.budget_given)},
    {"deepspeed", 0, OPTION_STRING, AT(job.deepspeed), "FILE",
     "show: read this DeepSpeed JSON too (same as training.deepspeed)"},
    {"set", 's', OPTION_STRING_LIST, AT(job.set), "KEY=VALUE", "override a configuration key"},
    {"quiet", 'q', OPTION_FLAG, AT(job.quiet), NULL, "no notes"},
};

static const struct option_example examples[] = {
    {"config show small.yaml", "the effective settings and their origins"},
    {"config show small.yaml --all", "including all defaults"},
    {"config explain training.batch_size small.yaml", "the meaning of a key, and its value in this job"},
    {"config explain training.memory", "all keys of a section"},
    {"config convert training_args.json > job.yaml",
     "from Hugging Face's TrainingArguments, DeepSpeed's JSON, or YAML of Axolotl or LLaMA-Factory"},
    {NULL, NULL}};

static const struct command command = {
    .name = "config",
    .keys = &job_schema,
    .summary = "show a job's settings and their origin, explain keys, convert other trainers' files",
    .usage = "show [JOB] | explain KEY [JOB] | convert FILE",
    .description = "show prints the configuration as YAML that gives the same job, with the origin of each "
                   "setting as a comment: a flag, --set, a line of the job file, an environment variable, a "
                   "line of .env next to the job, or a preset, in this order of precedence. Without a job "
                   "it shows the defaults and the effect of the environment.\n\nexplain describes a key: "
                   "its values, meaning, other names, and effect on the plan.\n\nconvert reads the JSON of "
                   "Hugging Face's TrainingArguments or of DeepSpeed, or the YAML of Axolotl or "
                   "LLaMA-Factory, and prints a job file. Settings without effect are comments at its end. "
                   "If settings cannot be converted, all of them are named on standard error and no job is "
                   "printed.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

/* The job, or without one the defaults under this environment; finished where it is a whole job. */
static enum plim_status load(struct job *job, struct config_flags *f, const char *path,
                             struct plim_error *err)
{
    if (path) {
        f->job.config = path;
        return cli_load_job(job, &f->job, err);
    }
    job_init(job);
    enum plim_status status = schema_defaults(&job_schema, job, &job->store, err);
    for (size_t i = 0; i < f->job.set.count && status == PLIM_OK; i++)
        status = job_set(job, f->job.set.items[i], NULL, err);
    return status == PLIM_OK ? job_take_environment(job, cli_context(), "", err) : status;
}

static int show(struct config_flags *f, const struct string_list *args)
{
    struct plim_error err = {0};
    struct strbuf out = STRBUF_INIT;
    struct json_writer w;
    struct job job;
    enum plim_status status = load(&job, f, args->count > 1 ? args->items[1] : NULL, &err);
    if (status == PLIM_OK && f->json) {
        json_writer_init(&w, &out, 2);
        json_begin_object(&w, NULL);
        job_settings_json(&job, NULL, &w);
        json_end_object(&w);
        strbuf_addc(&out, '\n');
    } else if (status == PLIM_OK) {
        job_settings_yaml(&job, f->all || args->count == 1, &out);
    }
    job_release(&job);
    if (status == PLIM_OK) return cli_print(&out);
    return cli_error(&err);
}

static int explain(struct config_flags *f, const struct string_list *args)
{
    struct plim_error err = {0};
    STRBUF_AUTO out = STRBUF_INIT;
    struct job job;
    bool with_job = args->count > 2;
    enum plim_status status = load(&job, f, with_job ? args->items[2] : NULL, &err);
    if (status == PLIM_OK) status = job_explain(args->items[1], with_job ? &job : NULL, &out, &err);
    job_release(&job);
    if (status == PLIM_OK) return cli_print(&out);
    return cli_error(&err);
}

static int convert(struct config_flags *, const struct string_list *args)
{
    const char *path = args->items[1], *end = strrchr(path, '.');
    struct plim_error err = {0};
    struct doc *doc = NULL;
    struct conversion c;
    bool json = end && !strcmp(end, ".json");
    enum plim_status status = json ? json_load(path, &doc, &err) : yaml_load(path, &doc, &err);
    if (status == PLIM_OK) status = job_convert(&doc->root, path, &c, &err);
    doc_free(doc);
    if (status != PLIM_OK) return cli_error(&err);
    strbuf_release(&c.left);
    if (!c.refusals) return strbuf_release(&c.refused), cli_print(&c.yaml);
    fputs(strbuf_text(&c.refused), stderr);
    plim_fail(
        &err, PLIM_UNSUPPORTED,
        "%s: %d setting%s cannot be converted, as the job would train something else; no job is printed",
        path, c.refusals, c.refusals == 1 ? "" : "s");
    conversion_release(&c);
    return cli_error(&err);
}

static const struct {
    const char *name;
    size_t least, most; /* arguments, its name included */
    int (*run)(struct config_flags *, const struct string_list *args);
} parts[] = {{"show", 1, 2, show}, {"explain", 2, 3, explain}, {"convert", 2, 2, convert}};
enum { PARTS = sizeof parts / sizeof *parts };

static const struct config_flags defaults;

static int run(void *flags, const struct string_list *args)
{
    int i = 0;
    while (i < PARTS && strcmp(parts[i].name, args->items[0])) i++;
    if (i < PARTS && args->count >= parts[i].least && args->count <= parts[i].most)
        return parts[i].run(flags, args);
    return cli_wants(&subcommand_config);
}

const struct subcommand subcommand_config = {
    &command, run, CLI_FLAGS(defaults), 1, CLI_ANY, "give show [JOB], explain KEY [JOB] or convert FILE"};
