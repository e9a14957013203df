/* main.c - finds the subcommand and hands over. */
#include "base/file.h"
#include "base/json.h"
#include "base/nearest.h"
#include "base/number.h"
#include "base/status.h"
#include "base/utf8.h"
#include "cli/cli.h"
#include "device/calibration.h"
#include "device/cpu/cpu_features.h"
#include "device/registry.h"
#include "job/deepspeed.h"
#include "store/gguf.h"

#include <malloc.h>
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct subcommand *const subcommands[] = {&subcommand_plan,
                                                       &subcommand_train,
                                                       &subcommand_generate,
                                                       &subcommand_serve,
                                                       &subcommand_eval,
                                                       &subcommand_export,
                                                       &subcommand_tokenize,
                                                       &subcommand_inspect,
                                                       &subcommand_calibrate,
                                                       &subcommand_pack,
                                                       &subcommand_version,
                                                       &subcommand_docs,
                                                       &subcommand_embed,
                                                       &subcommand_classify,
                                                       &subcommand_config,
                                                       &subcommand_doctor,
                                                       &subcommand_ctl,
                                                       &subcommand_watch,
                                                       &subcommand_chat,
                                                       &subcommand_replay,
                                                       &subcommand_cache,
                                                       &subcommand_trace,
                                                       NULL};

static const struct command *commands[sizeof subcommands / sizeof *subcommands];

static const struct man_section sections[] = {
    {"EXIT STATUS", "0 success; 1 doctor found problems; 2 bad input or a failed read or write, with one "
                    "line that says what, where and what to do; 3 no plan fits the budget; 4 the system "
                    "refused memory that was planned; 70 an internal error, please report it; 75 ctl: the "
                    "order did not complete in time; 130 stopped by a signal; train has saved a checkpoint."},
    {"ENVIRONMENT",
     "PLIMSOLL_CPU selects a lower level of CPU kernels (plain, neon, avx2, avx512). "
     "PLIMSOLL_CALIBRATE=0 plans with fixed rates instead of measured ones; =anew measures at "
     "this start. XDG_CACHE_HOME is the folder of measured device rates and compiled programs (plimsoll "
     "cache); PLIMSOLL_PJRT_CACHE limits the programs (8GiB; 0: none are kept). NO_COLOR turns "
     "colours off. MAX_BATCH_SIZE, CUDA_MEMORY_FRACTION, ENABLE_MIXED_PRECISION and others "
     "set keys of a job, also in a file .env next to it; plimsoll doctor shows their effect. "
     "DISCORD_WEBHOOK, SLACK_WEBHOOK and PLIMSOLL_WEBHOOK are addresses to which train "
     "reports."},
    {NULL, NULL}};

static struct program program = {
    .name = "plimsoll",
    .version = PLIMSOLL_VERSION,
    .date = PLIMSOLL_DATE,
    .summary = "train and serve transformer models inside a memory budget",
    .description =
        "Give a model and a number of bytes. Plimsoll plans every byte before the run, shows the plan, "
        "and trains or serves exactly as planned.",
    .commands = commands,
    .sections = sections,
};

const struct program *cli_program(void)
{
    int n = 0;
    for (int i = 0; subcommands[i]; i++)
        if (!subcommands[i]->hidden) commands[n++] = subcommands[i]->command;
    commands[n] = NULL;
    return &program;
}

/* On the stack: memory may be what is short. */
void cli_say(const char *fmt, ...)
{
    char text[4096], line[4 * sizeof text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    utf8_one_line(text, strlen(text), line, sizeof line);
    fprintf(stderr, "plimsoll: %s\n", line);
}

int cli_error(const struct plim_error *err)
{
    cli_say("%s", err->text);
    return plim_exit_code(err->status);
}

int cli_code(enum plim_status status, const struct plim_error *err)
{
    return status == PLIM_OK ? 0 : cli_error(err);
}

int cli_print(struct strbuf *text)
{
    size_t written = fwrite(text->data, 1, text->len, stdout);
    int failed = written != text->len || fflush(stdout);
    strbuf_release(text);
    if (failed) cli_say("standard output: write failed");
    return failed ? 2 : 0;
}

static atomic_int stop_asked;

static void on_signal(int) { stop_asked = 1; }

atomic_int *cli_stop_flag(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESETHAND}, before;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    /* A terminal that goes away asks to stop, unless nohup has said that it does not. */
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, NULL);
    return &stop_asked;
}

static atomic_int save_asked;

static void on_save_signal(int) { save_asked = 1; }

atomic_int *cli_save_flag(void)
{
    struct sigaction action = {.sa_handler = on_save_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGUSR1, &action, NULL);
    return &save_asked;
}

bool cli_colour(int fd)
{
    const char *term = getenv("TERM"), *no = getenv("NO_COLOR");
    return cli_is_terminal(fd) && !(no && *no) && term && strcmp(term, "dumb");
}

int cli_wants(const struct subcommand *sub)
{
    const char *name = sub->command->name;
    cli_say("%s: %s; see plimsoll %s --help", name, sub->wants, name);
    return plim_exit_code(PLIM_BAD_INPUT);
}

const char *const cli_device_words[] = {"auto", "cpu", "cuda", "neuron", "tpu", "pjrt:", NULL};

bool cli_is_device(const char *name)
{
    struct device_name unused;
    return device_name_read(name, &unused);
}

static int print_help(const struct command *command)
{
    struct strbuf text = STRBUF_INIT;
    options_help(command, "plimsoll", &text);
    return cli_print(&text);
}

int cli_run(const struct subcommand *sub, int argc, char **argv)
{
    const struct subcommand *other = sub->instead ? sub->instead(argc, argv) : NULL;
    struct bump store = {0};
    struct options_rest rest;
    struct plim_error err = {0};
    int code;
    if (other) sub = other;
    void *flags = bump_alloc(&store, sub->size + 1);
    if (!flags)
        return cli_error((plim_fail(&err, PLIM_NO_MEMORY, "%s: out of memory", sub->command->name), &err));
    if (sub->size) memcpy(flags, sub->defaults, sub->size);
    if (options_parse(sub->command, argc, argv, flags, &store, &rest, &err) != PLIM_OK)
        code = cli_error(&err);
    else if (rest.help)
        code = print_help(sub->command);
    else if (rest.args.count < sub->least || rest.args.count > sub->most)
        code = cli_wants(sub);
    else
        code = sub->run(flags, &rest.args);
    bump_free(&store);
    return code;
}

static void print_note(void *, const char *where, const char *path, const char *note)
{
    cli_say("%s: '%s' is accepted: %s", where, path, note);
}

static void print_wrong(void *, const char *text) { cli_say("%s", text); }

/* Every --set; of those that are wrong the last is the error, and the listener hears of the others. */
static enum plim_status set_keys(struct job *job, const struct job_options *options,
                                 const struct schema_listener *listener, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (size_t i = 0; i < options->set.count; i++) {
        struct plim_error now = {0};
        enum plim_status one = job_set(job, options->set.items[i], listener, &now);
        if (one == PLIM_OK) continue;
        if (status != PLIM_OK && listener->wrong) listener->wrong(listener->arg, err->text);
        status = one, *err = now;
        if (one != PLIM_BAD_INPUT) break;
    }
    return status;
}

/* Variables, and a .env beside the job file. */
static enum plim_status take_environment(struct job *job, const struct job_options *options,
                                         struct plim_error *err)
{
    const char *slash = strrchr(options->config, '/');
    char dir[MODEL_PATH] = "";
    if (slash) snprintf(dir, sizeof dir, "%.*s", (int)(slash - options->config), options->config);
    enum plim_status status =
        job_take_environment(job, cli_context(), slash == options->config ? "/" : dir, err);
    for (int i = 0; job->environment && i < job->environment->count && !options->quiet; i++) {
        const struct variable_seen *v = &job->environment->seen[i];
        if (v->note && v->why) cli_say("%s is ignored: %s", v->where, v->why);
    }
    return status;
}

/* A job file; or a model's folder or GGUF file, which stands for a job with that model.path. */
static enum plim_status load_config(struct job *job, const char *config, const struct schema_listener *notes,
                                    struct plim_error *err)
{
    STRBUF_AUTO text = STRBUF_INIT;
    strbuf_addf(&text, "%s/config.json", config);
    if (!gguf_is(config) && !file_exists(strbuf_text(&text))) return job_load(job, config, notes, err);
    strbuf_clear(&text);
    strbuf_add(&text, "{\"model\": {\"path\": ");
    json_quote(&text, config, strlen(config));
    strbuf_add(&text, "}}");
    enum plim_status status = strbuf_status(&text, err);
    return status == PLIM_OK ? job_parse(job, text.data, config, notes, err) : status;
}

enum plim_status cli_read_job(struct job *job, const struct job_options *options, struct plim_error *err)
{
    struct schema_listener notes = {.say = options->quiet ? NULL : print_note, .wrong = print_wrong};
    const struct schema_listener *listener = options->notes ? options->notes : &notes;
    job_init(job);
    job->deepspeed_flag = options->deepspeed;
    enum plim_status status = load_config(job, options->config, listener, err);
    if (status == PLIM_OK) status = set_keys(job, options, listener, err);
    if (status == PLIM_OK) status = cli_take_flags(job, options, listener, err);
    if (status == PLIM_OK) status = take_environment(job, options, err);
    return status;
}

enum plim_status cli_load_job(struct job *job, const struct job_options *options, struct plim_error *err)
{
    enum plim_status status = cli_read_job(job, options, err);
    return status == PLIM_OK ? job_finish(job, err) : status;
}

enum plim_status cli_meet_device(struct job *job, const struct device_facts *facts,
                                 const struct job_options *options, struct plim_error *err)
{
    STRBUF_AUTO note = STRBUF_INIT;
    enum plim_status status = job_meet_device(job, facts, err);
    if (status == PLIM_OK && !options->quiet) job_preset_text(job, facts, &note);
    if (note.len) cli_say("%s: %s", job->name, note.data);
    strbuf_clear(&note);
    if (status == PLIM_OK && !options->quiet) job_idle_text(job, facts, &note);
    if (status == PLIM_OK && !options->quiet)
        deepspeed_auto_text(job, facts->ranks > 1 ? facts->ranks : 1, &note);
    for (const char *line = strbuf_text(&note); *line; line = strchr(line, '\n') + 1)
        cli_say("%.*s", (int)strcspn(line, "\n"), line);
    return status;
}

void cli_say_bytes(const struct job *job, const struct job_options *options)
{
    STRBUF_AUTO note = STRBUF_INIT;
    if (!options->quiet) job_bytes_text(job, &note);
    if (note.len) cli_say("%s", note.data);
}

/* --- variables ----------------------------------------------------------------------------------------------- */

/* Wherever one of these variables is read, a value that cannot be read counts as none; so a slip would act in silence. Those that
 * stand for keys of a job are checked with it (job/environment.h). */
static bool is_level(const char *value)
{
    for (int i = 0; i < CPU_LEVELS; i++)
        if (!strcmp(value, cpu_level_name((enum cpu_level)i))) return true;
    return false;
}

static bool is_switch(const char *value) { return !strcmp(value, "0") || !strcmp(value, "1"); }

static bool is_calibration(const char *value)
{
    return is_switch(value) || !strcmp(value, CALIBRATION_ANEW_WORD);
}

static bool is_seconds(const char *value)
{
    double x;
    return number_parse_double(value, strlen(value), &x) && x > 0 && isfinite(x);
}

static bool is_count(const char *value)
{
    int64_t n;
    return number_parse_int64(value, strlen(value), &n) && n >= 1 && n <= 1000000;
}

static bool is_port(const char *value)
{
    int64_t n;
    return number_parse_int64(value, strlen(value), &n) && n >= 1 && n <= 65535;
}

static bool is_kernels(const char *value) { return !strcmp(value, "portable") || !strcmp(value, "best"); }

static const struct {
    const char *name;
    bool (*good)(const char *value);
    const char *takes;
} variables[] = {
    {"PLIMSOLL_CPU", is_level, "plain, neon, neon-bf16, avx2, avx512, avx512-bf16 or amx"},
    {CALIBRATION_WISH, is_calibration, "0, 1 or " CALIBRATION_ANEW_WORD},
    {"PLIMSOLL_PATIENCE", is_seconds, "seconds above 0, e.g. 300"},
    {"PLIMSOLL_LANE", is_switch, "0 or 1"},
    {"PLIMSOLL_PORT", is_port, "a port from 1 to 65535, e.g. 29600"},
    {"PLIMSOLL_RANKS_PER_NODE", is_count, "a whole number of at least 1, e.g. 4"},
    {"PLIMSOLL_GPU", is_kernels, "portable or best"},
};

/* PLIM_BAD_INPUT: "environment: variable PLIMSOLL_CPU: expected ..., found ...". An empty one counts as absent. */
static enum plim_status variables_check(struct plim_error *err)
{
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i].name);
        if (value && *value && !variables[i].good(value))
            return plim_fail(err, PLIM_BAD_INPUT,
                             "environment: variable %s: expected %s, found '%.60s'; fix it, or unset it",
                             variables[i].name, variables[i].takes, value);
    }
    return PLIM_OK;
}

static int overview(FILE *to)
{
    STRBUF_AUTO text = STRBUF_INIT;
    options_overview(cli_program(), &text);
    fwrite(text.data, 1, text.len, to);
    return to == stdout ? 0 : 2;
}

int main(int argc, char **argv)
{
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is a write that fails, with a line that says so */
    /* Large blocks come from the system one by one and go back to it. Left alone, the C library takes the first that is
     * freed as a sign that others will be wanted, and keeps them: memory that no plan knows of. */
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    if (argc < 2) return overview(stderr);
    bool help = !strcmp(argv[1], "help");
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || (help && argc == 2)) return overview(stdout);
    char *asked[] = {argv[0], argv[argc > 2 ? 2 : 1], (char[]){"--help"},
                     NULL}; /* help train: train --help */
    if (help) argc = 3, argv = asked;
    if (!strcmp(argv[1], "--version")) return cli_run(&subcommand_version, 0, NULL);
    struct plim_error err = {0};
    if (cli_own_process(&err) != PLIM_OK || variables_check(&err) != PLIM_OK) return cli_error(&err);
    struct nearest near = nearest_begin(argv[1]);
    for (int i = 0; subcommands[i]; i++) {
        if (!strcmp(argv[1], subcommands[i]->command->name))
            return cli_run(subcommands[i], argc - 2, argv + 2);
        if (!subcommands[i]->hidden) nearest_offer(&near, subcommands[i]->command->name);
    }
    cli_say("unknown command '%s'; %s%s%s", argv[1], near.best ? "did you mean '" : "see plimsoll --help",
            near.best ? near.best : "", near.best ? "'?" : "");
    return 2;
}
