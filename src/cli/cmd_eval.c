/* cmd_eval.c - plimsoll eval: how well a model predicts text. */
#include "cli/cli.h"
#include "base/bytes.h"
#include "base/json.h"
#include "mem/os.h"
#include "train/best_model.h"
#include "train/checkpoint.h"
#include "train/evaluate.h"

#include <math.h>
#include <string.h>

struct eval_flags {
    struct job_options job;
    const char *model, *adapter;
    int64_t rows;
    bool json;
};

#define AT(field) offsetof(struct eval_flags, field)
static const struct option_row rows[] = {
    {"model", 'm', OPTION_STRING, AT(model), "DIR",
     "use the weights of this model, checkpoint or run (overrides the job file)"},
    {"adapter", 0, OPTION_STRING, AT(adapter), "DIR",
     "PEFT folder or GGUF file of an adapter; it is merged into those weights"},
    {"rows", 'n', OPTION_INT64, AT(rows), "N", "evaluate only the first N rows; 0: all (0)"},
    {"budget", 'b', OPTION_BYTES, AT(job.budget), "BYTES",
     "memory budget, e.g. 64MiB (overrides the job file)",
     .given = OPTION_GIVEN(struct eval_flags, job.budget_given)},
    {"json", 'j', OPTION_FLAG, AT(json), NULL, "print the result as JSON"},
    {"set", 's', OPTION_STRING_LIST, AT(job.set), "KEY=VALUE", "override a configuration key"},
    {"quiet", 'q', OPTION_FLAG, AT(job.quiet), NULL, "no notes about keys without effect"},
};

static const struct option_example examples[] = {
    {"eval small.yaml", "the newest checkpoint of the run on data.validation"},
    {"eval small.yaml --model ./other --rows 64", "another model on the first 64 rows"},
    {"eval small.yaml --set data.validation=new.txt --json", "on other text, for a program"},
    {NULL, NULL}};

static const struct command command = {
    .name = "eval",
    .keys = &job_schema,
    .summary = "measure the loss of a model on text, inside its budget",
    .usage = "[OPTION...] CONFIG",
    .description = "Prints the mean loss per token and the perplexity over data.validation, or over "
                   "data.train if there is none. For models that label words it prints precision, recall "
                   "and F1 of entities. For models that embed texts it prints the cosines of pairs, how "
                   "often a pair's second text is the nearest, and the correlation with the pairs' scores. "
                   "Uses the weights of --model, else the newest checkpoint in output.dir, else model.path. "
                   "Makes a forward-only plan for the budget; exits with 3 if not even one row fits.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

/* Which weights; the job's model becomes that folder. */
static enum plim_status choose_model(struct job *job, const struct eval_flags *f, char *dir,
                                     struct plim_error *err)
{
    struct job_model *m = &job->model;
    bool own = false; /* the job's keys are of the model it would train, not of one that was trained */
    enum plim_status status = PLIM_OK;
    if (f->model)
        status = find_model(cli_context(), f->model, dir, MODEL_PATH, err);
    else if (!best_model_or_newest(job->output_dir, dir, MODEL_PATH)) {
        if (!m->path)
            return plim_fail(
                err, PLIM_BAD_INPUT,
                "%s: key 'output.dir': there is no checkpoint in %s; train first, or give --model", job->name,
                job->output_dir);
        status = find_model(cli_context(), m->path, dir, MODEL_PATH, err);
        own = true;
    } else {
        status = check_weights(cli_context(), dir, err);
    }
    if (!own) *m = (struct job_model){.flash = m->flash};
    m->path = dir, m->architecture = NULL;
    /* An adapter's checkpoint is merged when it is loaded: into numbers. */
    job->adapter = (struct adapter_options){0}, job->model.weights = WEIGHTS_AS_IS;
    return status;
}

static const char *first_file(const struct job *job)
{
    return job->validation.count ? job->validation.items[0] : job->train.items[0];
}

static int tell(const struct job *job, const char *dir, const struct evaluation *e)
{
    struct strbuf out = STRBUF_INIT;
    size_t files = job->validation.count ? job->validation.count : job->train.count;
    char total[BYTES_TEXT], budget[BYTES_TEXT];
    static const char *const units[] = {[SCORE_LOSS] = "tokens",
                                        [SCORE_TOKENS] = "masked tokens",
                                        [SCORE_ENTITIES] = "labels",
                                        [SCORE_PAIRS] = "pairs",
                                        [SCORE_PREFERENCES] = "samples"};
    cli_tell_scores(&out, e->loss, 6, &e->scores);
    strbuf_addf(&out, "\nover %lld %s in %lld rows of %s%s, %.0f %s/s, %lld row%s at a time\n",
                (long long)e->tokens, units[e->scores.kind], (long long)e->rows, first_file(job),
                files > 1 ? " and others" : "", e->seconds > 0 ? (double)e->tokens / e->seconds : 0,
                units[e->scores.kind], (long long)e->batch, e->batch == 1 ? "" : "s");
    strbuf_addf(&out, "weights of %s in %s, planned %s of %s\n", dir,
                precision_name((enum precision)job->training.precision),
                bytes_format(total, (uint64_t)e->total), bytes_format(budget, (uint64_t)e->budget));
    return cli_print(&out);
}

static int tell_json(const struct job *job, const char *dir, const struct evaluation *e, uint64_t ledger)
{
    struct strbuf out = STRBUF_INIT;
    struct os_process me = {0};
    os_process_memory(&me, NULL);
    struct json_writer w = json_object(&out, 2);
    cli_json_scores(&w, e->loss, &e->scores);
    json_int(&w, "tokens", e->tokens);
    json_int(&w, "rows", e->rows);
    json_str(&w, "model", dir);
    json_str(&w, "precision", precision_name((enum precision)job->training.precision));
    json_double(&w, "tokens_per_s", e->seconds > 0 ? (double)e->tokens / e->seconds : 0);
    json_int(&w, "batch", e->batch);
    json_double(&w, "padding", e->positions ? (double)e->padding / (double)e->positions : 0);
    json_begin_object(&w, "memory");
    json_int(&w, "budget_bytes", e->budget);
    json_int(&w, "planned_total", e->total);
    json_int(&w, "arena_bytes", e->arena);
    json_int(&w, "ledger_peak", (int64_t)ledger);
    json_int(&w, "rss_peak", (int64_t)me.peak);
    json_end_object(&w);
    json_end_object(&w);
    strbuf_addc(&out, '\n');
    return cli_print(&out);
}

static int evaluate(const struct eval_flags *f)
{
    struct plim_error err = {0};
    struct job job;
    struct device *device = NULL;
    struct evaluation e;
    char dir[MODEL_PATH];
    int code = 0;
    enum plim_status status = cli_read_job(&job, &f->job, &err);
    if (status == PLIM_OK && f->rows < 0)
        status = plim_fail(&err, PLIM_BAD_INPUT,
                           "eval: option '--rows': %lld; write 0 for all, or a number of rows",
                           (long long)f->rows);
    if (status == PLIM_OK) status = choose_model(&job, f, dir, &err);
    if (status == PLIM_OK) status = job_finish(&job, &err);
    if (status == PLIM_OK) status = open_job_device(cli_context(), &job, &device, &err);
    if (status == PLIM_OK) status = cli_meet_device(&job, &device->facts, &f->job, &err);
    if (status == PLIM_OK)
        status = evaluate_alone(&job, device, &(struct eval_weights){dir, f->adapter}, f->rows, &e, &err);
    if (status == PLIM_OK) cli_say_bytes(&job, &f->job);
    if (status == PLIM_OK)
        code = f->json ? tell_json(&job, dir, &e, ledger_peak(device->ledger[TIER_DEVICE]))
                       : tell(&job, dir, &e);
    if (device) device->ops->close(device);
    job_release(&job);
    return status == PLIM_OK ? code : cli_error(&err);
}

static const struct eval_flags defaults;

static int run(void *flags, const struct string_list *args)
{
    struct eval_flags *f = flags;
    f->job.config = args->items[0];
    return evaluate(f);
}

const struct subcommand subcommand_eval = {&command, run, CLI_FLAGS(defaults), 1, 1, "give one config file"};
