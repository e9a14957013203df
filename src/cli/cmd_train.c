/* cmd_train.c - plimsoll train: exactly as planned. */
#include "cli/cli.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "cli/train_log.h"
#include "cli/train_ranks.h"
#include "comm/comm.h"
#include "exec/exec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct train_flags {
    struct job_options job;
    int64_t steps;
    bool steps_given;
    const char *log, *trace, *plan;
    struct plan_file kept;
    int64_t trace_step;
    bool resume, overwrite, profile, numerics, json, save, verbose;
    struct string_list budget_at, change;
};

#define AT(field) offsetof(struct train_flags, field)
static const struct option_row rows[] = {
    {"budget", 'b', OPTION_BYTES, AT(job.budget), "BYTES",
     "memory budget, e.g. 64MiB (overrides the job file)",
     .given = OPTION_GIVEN(struct train_flags, job.budget_given)},
    {"budget-at", 0, OPTION_STRING_LIST, AT(budget_at), "STEP=BYTES",
     "change the budget to BYTES before this step"},
    {"plan", 0, OPTION_STRING, AT(plan), "FILE",
     "run exactly the plan saved by plimsoll plan -o FILE; refused if the job, budget or "
     "device has changed"},
    {"steps", 'n', OPTION_INT64, AT(steps), "N", "number of optimizer steps (overrides the job file)",
     .given = OPTION_GIVEN(struct train_flags, steps_given), .expected = "1 or more", .least = 1,
     .most = INT64_MAX},
    {"log", 'l', OPTION_STRING, AT(log), "FILE", "write JSON lines to FILE (- for standard output)"},
    {"log-file", 0, OPTION_STRING, AT(log), "FILE",
     "same as --log; torchrun would take --log for one of its own options"},
    {"json", 'j', OPTION_FLAG, AT(json), NULL,
     "write JSON lines to standard output (the default if it is not a terminal, unless "
     "--quiet)"},
    {"resume", 'r', OPTION_FLAG, AT(resume), NULL,
     "continue from the newest checkpoint in output.dir, if there is one"},
    {"change", 0, OPTION_STRING_LIST, AT(change), "KEY",
     "with --resume: allow this key to differ from the checkpoint"},
    {"overwrite", 0, OPTION_FLAG, AT(overwrite), NULL,
     "replace existing checkpoints in output.dir once the first new one is complete"},
    {"checkpoint", 0, OPTION_FLAG, AT(save), NULL,
     "save a checkpoint at the end and when stopped (the default)"},
    {"check-numerics", 0, OPTION_FLAG, AT(numerics), NULL,
     "report the first tensor that overflows or underflows (slow)"},
    {"trace", 0, OPTION_STRING, AT(trace), "FILE",
     "measure one step and write a trace, with the plan, for ui.perfetto.dev or "
     "chrome://tracing"},
    {"trace-step", 0, OPTION_INT64, AT(trace_step), "N", "the step that --trace measures (2)",
     .expected = "1 or more", .least = 1, .most = INT64_MAX},
    {"profile", 0, OPTION_FLAG, AT(profile), NULL, "time every op and print each kind's share of the step"},
    {"set", 's', OPTION_STRING_LIST, AT(job.set), "KEY=VALUE", "override a configuration key"},
    JOB_FLAG_ROWS(struct train_flags, job),
    {"verbose", 'v', OPTION_FLAG, AT(verbose), NULL, "after each step, print the expert load of each layer"},
    {"quiet", 'q', OPTION_FLAG, AT(job.quiet), NULL, "no progress and no notes"},
};

static const struct option_example examples[] = {
    {"train small.yaml --budget 64MiB", "plan and train inside 64 MiB"},
    {"train small.yaml --plan small.plan", "run the plan saved by plimsoll plan -o small.plan"},
    {"train small.yaml --log run.jsonl", "write a JSON line per step"},
    {"train small.yaml --budget-at 50=40MiB --budget-at 80=64MiB", "change the budget during the run"},
    {"train llama.yaml --deepspeed ds.json", "with DeepSpeed's configuration"},
    {"train small.yaml --resume", "continue after a stop or a crash"},
    {"train small.yaml --resume --set training.seed=2 --change training.seed", "continue with another seed"},
    {NULL, NULL}};

static const struct command command = {
    .name = "train",
    .keys = &job_schema,
    .summary = "train a model inside its budget, exactly as planned",
    .usage = "[OPTION...] CONFIG",
    .description = "Makes a plan, commits every byte of it, loads or initialises the weights, and trains. "
                   "SIGINT, SIGTERM and SIGHUP save a checkpoint and exit with 130. SIGUSR1 saves a "
                   "checkpoint and continues. A closed standard output does not end the run. If the budget "
                   "falls below the smallest plan, train saves a checkpoint and exits with 3.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

static int by_step(const void *a, const void *b)
{
    int64_t x = ((const struct budget_change *)a)->step, y = ((const struct budget_change *)b)->step;
    return (x > y) - (x < y);
}

/* "50=40MiB" */
static enum plim_status read_changes(const struct string_list *texts, struct budget_change *out,
                                     struct plim_error *err)
{
    for (size_t i = 0; i < texts->count; i++) {
        char *end;
        uint64_t bytes;
        errno = 0;
        long long step = strtoll(texts->items[i], &end, 10);
        if (*end != '=' || end == texts->items[i] || step < 1 || errno)
            return plim_fail(err, PLIM_BAD_INPUT, "--budget-at %s: write STEP=BYTES, e.g. 50=40MiB",
                             texts->items[i]);
        enum plim_status status = bytes_parse(end + 1, &bytes, err);
        if (status != PLIM_OK) {
            plim_error_prefix(err, "--budget-at");
            return status;
        }
        out[i] = (struct budget_change){step, (int64_t)bytes};
    }
    qsort(out, texts->count, sizeof *out, by_step);
    return PLIM_OK;
}

static enum plim_status open_log(struct train_log *log, const struct train_flags *f, const struct job *job,
                                 const struct device *device, struct plim_error *err)
{
    *log = (struct train_log){.started = clock_seconds(),
                              .job = job,
                              .facts = &device->facts,
                              .resume = f->resume,
                              .folder = {.told = f->job.quiet}};
    bool asked = f->json || (f->log && !strcmp(f->log, "-"));
    bool to_stdout = asked || (!f->log && !f->job.quiet && !cli_is_terminal(STDOUT_FILENO));
    if (f->log && strcmp(f->log, "-")) {
        log->json = fopen(f->log, f->resume ? "a" : "w");
        if (!log->json)
            return plim_fail(err, PLIM_IO, "%s: cannot write the log: %s; choose another --log", f->log,
                             strerror(errno));
    } else if (to_stdout) {
        log->json = stdout;
    }
    if (!f->job.quiet && !to_stdout) log->people = stdout;
    if (!f->job.quiet && to_stdout && cli_is_terminal(STDERR_FILENO)) log->people = stderr;
    log->verbose = f->verbose;
    log->bar = log->people && cli_is_terminal(fileno(log->people));
    struct tell_options told = {job, device->facts.name, f->resume, train_log_note, log};
    return tell_open(&told, &log->tell, err);
}

static void print_profile(const struct trainer *t)
{
    double all = 0;
    for (int k = 0; k < OP_KIND_COUNT; k++) all += t->op_seconds[k];
    fprintf(stderr, "%-12s %10s %7s\n", "op", "seconds", "share");
    for (int k = 0; k < OP_KIND_COUNT; k++)
        if (t->op_seconds[k] > 0)
            fprintf(stderr, "%-12s %10.3f %6.1f%%\n", op_name(k), t->op_seconds[k],
                    100 * t->op_seconds[k] / all);
    fprintf(stderr, "%-12s %10.6f %6.3f%%\n", "watching", t->watch.seconds, 100 * t->watch.seconds / all);
}

/* Rank 0 tells an error that all ranks have; a rank that cannot reach the others tells its own and ends them all. */
static int tell_error(struct comm *comm, enum plim_status status, const struct plim_error *err)
{
    bool link = comm && status == PLIM_LINK;
    int code = comm_rank(comm) == 0 || link ? cli_error(err) : plim_exit_code(status);
    if (link) comm_abort(comm, code);
    return code;
}

/* GPUs exchange by themselves where every rank has one and NCCL is there, and through host memory otherwise. */
static enum plim_status join_cards(struct device *device, struct comm *comm, struct plim_error *err)
{
    const char *named = getenv("PLIMSOLL_NCCL");
    struct device_facts facts;
    bool own = device->ops->exchange && device_cuda_peek(cli_context(), comm->local_ranks - 1, &facts);
    bool refused = named && !strcmp(named, "0");
    double without[] = {own && !refused ? 0 : 1,
                        named && !refused ? 1 : 0}; /* a card of its own or NCCL; a choice */
    enum plim_status status = comm_sum_numbers(comm, without, 2, err);
    if (status == PLIM_OK && without[0] > 0 && without[1] > 0)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "PLIMSOLL_NCCL names a library, but not every rank has a card of its own and NCCL; "
                         "start one rank "
                         "per card, or unset PLIMSOLL_NCCL: then GPUs exchange through host memory");
    if (status == PLIM_OK) status = comm_stage(comm, err);
    if (status != PLIM_OK || without[0] > 0) return status;
    status = exec_join_devices(device, err);
    if (status != PLIM_UNSUPPORTED || named) return status;
    if (comm->rank == 0) cli_say("%s: GPUs exchange through host memory", err->text);
    return PLIM_OK;
}

/* Ranks on one machine share its cores and its memory. */
static enum plim_status share_machine(struct device *device, struct comm *comm, struct plim_error *err)
{
    if (!comm) return PLIM_OK;
    device->comm = comm;
    device->facts.ranks = comm->ranks, device->facts.rank = comm->rank;
    device->facts.node_ranks = comm->node ? comm->node->ranks : 0;
    device->facts.async_exchanges = comm->lane && device->facts.unified_memory;
    device->facts.host_bytes /= (size_t)comm->local_ranks;
    if (!device->facts.unified_memory) return join_cards(device, comm, err);
    ranks_share_memory(&device->facts, comm->local_ranks);
    return PLIM_OK;
}

/* Ranks of a machine take its GPUs in turn. */
static void share_cards(struct job *job, const struct comm *comm)
{
    static char name[32];
    struct device_facts facts;
    int cards = 0;
    bool open = !strcmp(job->training.device, "cuda") || !strcmp(job->training.device, "auto");
    while (open && cards < comm->local_ranks && device_cuda_peek(cli_context(), cards, &facts)) cards++;
    if (!cards) return;
    snprintf(name, sizeof name, "cuda:%d", comm->local_rank % cards);
    job->training.device = name;
}

/* Before the device is opened: which one, and how many cores for it. */
static void share_out(struct job *job, const struct comm *comm)
{
    if (!comm) return;
    job->ranks = comm->ranks, job->rank = comm->rank;
    share_cards(job, comm);
    ranks_share_cores(job, comm->local_ranks);
}

/* A trainer that is ready for its first step; what goes wrong on one rank is every rank's error. */
static enum plim_status open_trainer(struct job *job, const struct train_flags *f, struct comm *comm,
                                     struct train_log *log, const struct budget_change *changes,
                                     struct device **device, struct trainer **trainer, struct plim_error *err)
{
    enum plim_status status = open_job_device(cli_context(), job, device, err);
    if (status == PLIM_OK) status = share_machine(*device, comm, err);
    status = comm_agree(comm, status, err);
    if (status == PLIM_OK && comm) status = train_find_link(job, *device, err);
    if (status == PLIM_OK) status = cli_meet_device(job, &(*device)->facts, &f->job, err);
    if (status == PLIM_OK && comm_rank(comm) == 0) status = open_log(log, f, job, *device, err);
    status = comm_agree(comm, status, err);
    if (status == PLIM_OK) status = train_tell_uneven(job, *device, &f->job, err);
    if (status != PLIM_OK) return status;
    struct train_options options = {.resume = f->resume,
                                    .overwrite = f->overwrite,
                                    .accepted = &f->change,
                                    .changes = changes,
                                    .nchanges = (int)f->budget_at.count,
                                    .listener = {comm_rank(comm) == 0 ? train_log_hear : NULL, log},
                                    .stop = cli_stop_flag(),
                                    .save_now = cli_save_flag(),
                                    .profile = f->profile || job->training.profile,
                                    .numerics = f->numerics || job->training.check_numerics,
                                    .trace = f->trace,
                                    .trace_step = f->trace_step,
                                    .kept = f->plan ? &f->kept : NULL,
                                    .save_at_end = f->save};
    status = trainer_open(job, *device, &options, trainer, err);
    if (status != PLIM_OK) return status;
    const char *folder = (*trainer)->start.lock.fd >= 0 ? job->output_dir : NULL;
    if (comm_rank(comm) == 0) {
        cli_say_bytes(job, &f->job);
        train_log_begin(log, folder, &(*trainer)->runtime.plan);
    }
    return comm_agree(comm, tell_start(log->tell, &(*trainer)->length, (*trainer)->step, err), err);
}

static int train(struct job *job, const struct train_flags *f, struct comm *comm)
{
    signal(SIGPIPE, SIG_IGN); /* a reader of the progress may leave; the run goes on */
    struct plim_error err = {0};
    struct device *device = NULL;
    struct trainer *trainer = NULL;
    struct train_log log = {0};
    struct budget_change *changes = calloc(f->budget_at.count + 1, sizeof *changes);
    enum plim_status status = changes ? read_changes(&f->budget_at, changes, &err)
                                      : plim_fail(&err, PLIM_NO_MEMORY, "out of memory");
    if (status == PLIM_OK) status = open_trainer(job, f, comm, &log, changes, &device, &trainer, &err);
    if (status == PLIM_OK) status = trainer_run(trainer, &err);
    if (trainer && (f->profile || job->training.profile) && comm_rank(comm) == 0) print_profile(trainer);
    if (status == PLIM_OK && log.failed)
        status = plim_fail(&err, PLIM_IO, "%s: the log could not be written in full",
                           f->log ? f->log : "standard output");
    tell_end(log.tell, status, err.text);
    trainer_close(trainer);
    tell_close(log.tell);
    train_folder_close(&log.folder);
    if (log.json && log.json != stdout) fclose(log.json);
    if (device) device->ops->close(device);
    free(changes);
    return status == PLIM_OK ? 0 : tell_error(comm, status, &err);
}

enum { TRACE_PATH = SNAPSHOT_PATH - 32 }; /* with the number of a rank in it, too */

/* A file that cannot be written is told of now, not when its step is done. */
static enum plim_status check_trace(const char *path, struct plim_error *err)
{
    struct file_atomic file;
    if (!path) return PLIM_OK;
    if (strlen(path) >= TRACE_PATH)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "train: option '--trace': the path is too long; write fewer than %d bytes",
                         TRACE_PATH);
    enum plim_status status = file_atomic_begin(&file, path, err);
    if (status == PLIM_OK)
        file_atomic_abandon(&file);
    else
        plim_error_prefix(err, "train: option '--trace'");
    return status;
}

static enum plim_status check_flags(const struct train_flags *f, struct plim_error *err)
{
    if (f->resume && f->overwrite)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "train: --resume continues a run and --overwrite replaces it; give one of them");
    if (f->change.count && !f->resume)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "train: --change %s allows a difference from a checkpoint; add --resume",
                         f->change.items[0]);
    return check_trace(f->trace, err);
}

static enum plim_status load(struct job *job, struct train_flags *f, struct plim_error *err)
{
    enum plim_status status = cli_load_job(job, &f->job, err);
    if (status == PLIM_OK) status = job_check_training(job, err);
    if (status == PLIM_OK && f->plan) status = plan_file_load(f->plan, &f->kept, err);
    if (status == PLIM_OK && f->plan) status = plan_file_meet(&f->kept, job, err);
    if (f->steps_given) {
        job->training.steps = f->steps, job->training.epochs = 0;
        job_origin_set(job, "training.steps", ORIGIN_FLAG, "--steps");
    }
    job->no_final_checkpoint = !f->save;
    return status;
}

/* On every rank, and agreed upon. */
static enum plim_status prepare(struct train_flags *f, struct comm *comm, struct job *job,
                                struct plim_error *err)
{
    enum plim_status status =
        cli_check_mode(&f->job, comm_ranks(comm), "start several by mpirun -n 4 plimsoll train ...", err);
    if (status == PLIM_OK) status = load(job, f, err);
    status = comm_agree(comm, status, err);
    if (status == PLIM_OK) share_out(job, comm);
    return status;
}

static int load_and_train(struct train_flags *f, const char *config)
{
    struct plim_error err = {0};
    struct comm *comm = NULL;
    struct job job = {0};
    f->job.config = config;
    bool tells;
    enum plim_status status = comm_open(cli_context(), &comm, &tells, ranks_end_stuck, &err);
    if (status != PLIM_OK && !comm) return tells ? cli_error(&err) : plim_exit_code(status);
    if (comm_rank(comm) > 0) f->job.quiet = true; /* notes that all ranks have are rank 0's to tell */
    if (status == PLIM_OK) status = prepare(f, comm, &job, &err);
    int code = status == PLIM_OK ? train(&job, f, comm) : tell_error(comm, status, &err);
    plan_file_release(&f->kept);
    job_release(&job);
    comm_close(comm);
    return code;
}

static const struct train_flags defaults = {.save = true, .trace_step = 2};

static int run(void *flags, const struct string_list *args)
{
    struct train_flags *f = flags;
    struct plim_error err = {0};
    return check_flags(f, &err) == PLIM_OK ? load_and_train(f, args->items[0]) : cli_error(&err);
}

const struct subcommand subcommand_train = {&command, run, CLI_FLAGS(defaults), 1, 1, "give one config file"};
