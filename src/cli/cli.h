/* cli.h - the command line: one file per subcommand, options as tables. Only cli/ prints and exits. */
#pragma once

#include "api/device_line.h"
#include "api/find_model.h"
#include "api/open_device.h"
#include "base/options.h"
#include "base/status.h"
#include "job/job.h"
#include <signal.h>
#include <stdatomic.h>

/* A subcommand: its option table and what runs it. */
struct subcommand {
    const struct command *command;
    int (*run)(void *flags, const struct string_list *args); /* returns the exit code */
    const void *defaults; /* flags where no option is given; NULL: it has none */
    size_t size;          /* of the flags */
    size_t least, most;   /* number of arguments */
    const char *wants;    /* its arguments in words: "give one config file" */
    bool hidden;
    /* Another command that argv asks for, or NULL; may be NULL itself. */
    const struct subcommand *(*instead)(int argc, char **argv);
};

#define CLI_FLAGS(values) &(values), sizeof(values)
#define CLI_ANY           SIZE_MAX

/* Parses argv, which starts after the command's name, and runs the command; prints help when asked. Returns the exit code. */
int cli_run(const struct subcommand *sub, int argc, char **argv);
/* Tells which arguments the command wants; returns the exit code. */
int cli_wants(const struct subcommand *sub);

extern const struct subcommand subcommand_plan, subcommand_train, subcommand_generate, subcommand_eval,
    subcommand_export, subcommand_tokenize, subcommand_inspect, subcommand_calibrate, subcommand_pack,
    subcommand_version, subcommand_docs, subcommand_embed, subcommand_classify, subcommand_serve,
    subcommand_config, subcommand_doctor, subcommand_ctl, subcommand_watch, subcommand_chat, subcommand_trace,
    subcommand_replay, subcommand_cache;

/* The program for help, man page and completion. */
const struct program *cli_program(void);

/* Prints "plimsoll: ..." on stderr as one line, whatever names and values from files contain. */
void cli_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Prints the error with cli_say. Returns its exit code. */
int cli_error(const struct plim_error *err);

/* 0, or the error told by cli_error. */
int cli_code(enum plim_status status, const struct plim_error *err);

/* Flags known from other trainers' command lines. Each sets a key and overrides --set. */
enum {
    FLAG_EPOCHS,
    FLAG_BATCH,
    FLAG_ACCUMULATION,
    FLAG_SCHEDULER,
    FLAG_OUTPUT,
    FLAG_MODEL,
    FLAG_WORKERS,
    FLAG_BASE,
    JOB_FLAGS
};

/* Options of every subcommand that reads a job. */
struct job_options {
    const char *config;
    uint64_t budget;
    bool budget_given;
    struct string_list set;
    bool quiet;
    const char *flags[JOB_FLAGS]; /* NULL: not given */
    const char *deepspeed;        /* DeepSpeed's JSON; overrides training.deepspeed */
    const char *lora;             /* settings of an adapter: KEY=VALUE,...; NULL: not given */
    const char *mode;             /* "single", "multi", or NULL: any number of ranks; see cli_check_mode */
    int64_t local_rank;           /* passed by launchers, ignored: their variables count */
    bool no_graphs, no_compilation;
    /* Receives notes about keys without effect; NULL: stderr, unless quiet. */
    const struct schema_listener *notes;
};

/* Their rows of an option table; `field` is the struct job_options inside `type`. */
/* clang-format off */
#define JOB_FLAG_ROW(name, type, field, flag, metavar, key) \
    {name, 0, OPTION_STRING, offsetof(type, field.flags[flag]), metavar, "same as --set " key}
#define JOB_FLAG_ROWS(type, field) \
    JOB_FLAG_ROW("epochs", type, field, FLAG_EPOCHS, "N", "training.epochs=N"), \
    JOB_FLAG_ROW("batch-size", type, field, FLAG_BATCH, "N", "training.batch_size=N"), \
    JOB_FLAG_ROW("gradient-accumulation-steps", type, field, FLAG_ACCUMULATION, "N", \
                 "training.gradient_accumulation_steps=N"), \
    JOB_FLAG_ROW("lr-scheduler", type, field, FLAG_SCHEDULER, "NAME", "training.lr_scheduler=NAME"), \
    JOB_FLAG_ROW("model-output", type, field, FLAG_OUTPUT, "DIR", "output.dir=DIR"), \
    JOB_FLAG_ROW("pretrained-model", type, field, FLAG_MODEL, "DIR", "model.path=DIR"), \
    JOB_FLAG_ROW("dataloader-num-workers", type, field, FLAG_WORKERS, "N", "data.workers=N"), \
    JOB_FLAG_ROW("base", type, field, FLAG_BASE, "KIND", "model.weights=KIND, the storage of the frozen base: nf4, q8"), \
    {"lora", 0, OPTION_STRING, offsetof(type, field.lora), "SETTINGS", \
     "train a LoRA adapter instead of the model; alone: r=16, alpha=32, all linear layers, learning rate 2e-4; else " \
     "keys of the section adapter, e.g. r=8,dropout=0.05", .optional = true}, \
    {"deepspeed", 0, OPTION_STRING, offsetof(type, field.deepspeed), "FILE", \
     "read this DeepSpeed JSON in addition to the job (same as training.deepspeed)"}, \
    {"mode", 0, OPTION_STRING, offsetof(type, field.mode), "NAME", \
     "single: refuse to run with several ranks; multi: refuse to run with one", .choices = cli_modes}, \
    {"local-rank", 0, OPTION_INT64, offsetof(type, field.local_rank), "N", \
     "accepted and ignored; launchers pass it"}, \
    {"disable-cudagraphs", 0, OPTION_FLAG, offsetof(type, field.no_graphs), NULL, \
     "same as --set performance.cuda_graphs=false"}, \
    {"disable-compilation", 0, OPTION_FLAG, offsetof(type, field.no_compilation), NULL, \
     "accepted and ignored; kernels are compiled ahead of time"}
/* clang-format on */

extern const char *const cli_modes[];

/* PLIM_BAD_INPUT: --mode is single with several ranks, or multi with one. `how` says how to start several. */
enum plim_status cli_check_mode(const struct job_options *options, int ranks, const char *how,
                                struct plim_error *err);

/* Applies the command line's flags to the job, including --budget. */
enum plim_status cli_take_flags(struct job *job, const struct job_options *options,
                                const struct schema_listener *notes, struct plim_error *err);

/* Loads the config and applies overrides. Notes about keys without effect go to stderr unless quiet. Release
 * the job even on failure. */
enum plim_status cli_load_job(struct job *job, const struct job_options *options, struct plim_error *err);
/* cli_load_job without job_finish, for callers that still change the job. */
enum plim_status cli_read_job(struct job *job, const struct job_options *options, struct plim_error *err);

/* Values that options of several commands take. */
#define CLI_DEVICES  "cpu, cuda, cuda:N, neuron, tpu, pjrt:PATH"
#define CLI_DEVICE   .suggested = cli_device_words
#define CLI_THREADS  .expected = "0 for one per core, or up to 1024", .most = 1024
#define CLI_MAX_LINE .expected = "64 bytes to 1TiB, e.g. 16MiB", .least = 64, .most = 1ull << 40
bool cli_is_device(const char *name);
extern const char *const cli_device_words[];

/* Tells the job its device: resolves training.preset: auto. A note on stderr lists the settings of a preset,
 * unless quiet. */
enum plim_status cli_meet_device(struct job *job, const struct device_facts *facts,
                                 const struct job_options *options, struct plim_error *err);

/* Prints one line if text is read as bytes by default, unless quiet (job_bytes_text). */
void cli_say_bytes(const struct job *job, const struct job_options *options);

/* Append a file of at most 4 GiB, or standard input where the path is "-". */
enum plim_status cli_read_text(const char *path, struct strbuf *out, struct plim_error *err);

/* Writes a text to stdout. Returns 0, or the exit code of a failed write. */
int cli_print(struct strbuf *text);

/* Prints an evaluation's results (tell_scores.c): the rest of a line that begins with the loss in `digits` digits, or
 * the fields of a JSON object. */
struct scores;
void cli_tell_scores(struct strbuf *out, double loss, int digits, const struct scores *scores);
void cli_json_scores(struct json_writer *w, double loss, const struct scores *scores);

/* The context of every command (base/context.h). */
const struct context *cli_context(void);
/* Call it first: takes control of the process, including the variables that simulate a machine or a CPU.
 * PLIM_BAD_INPUT. */
enum plim_status cli_own_process(struct plim_error *err);

/* From now on SIGINT, SIGTERM and SIGHUP set the returned flag; a second signal ends the program as usual. */
atomic_int *cli_stop_flag(void);

/* From now on each SIGUSR1 sets the returned flag. */
atomic_int *cli_save_flag(void);

bool cli_is_terminal(int fd); /* a terminal that somebody watches, also through mpirun */
bool cli_colour(int fd);      /* a terminal that accepts colours (NO_COLOR, TERM) */
