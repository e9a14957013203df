/* cli.h - the command line: one file per subcommand, options as tables. Only cli/ prints and exits. */
#ifndef PLIM_CLI_CLI_H
#define PLIM_CLI_CLI_H

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
    subcommand_config, subcommand_doctor, subcommand_ctl, subcommand_watch, subcommand_chat;

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
    const char *mode;             /* "single", "multi", or NULL: any number of ranks; see cli_check_mode */
    int64_t local_rank;           /* passed by launchers, ignored: their variables count */
    bool no_graphs, no_compilation;
    /* receives notes about keys without effect; NULL: stderr, unless quiet */
    const struct schema_listener *notes;
};

/* Rows of an option table for them; `field` is the struct job_options inside `type`. */
/* clang-format off */
#define JOB_FLAG_ROW(name, type, field, flag, metavar, key) \
    {name, 0, OPTION_STRING, offsetof(type, field.flags[flag]), metavar, "the same as --set " key}
#define JOB_FLAG_ROWS(type, field) \
    JOB_FLAG_ROW("epochs", type, field, FLAG_EPOCHS, "N", "training.epochs=N"), \
    JOB_FLAG_ROW("batch-size", type, field, FLAG_BATCH, "N", "training.batch_size=N"), \
    JOB_FLAG_ROW("gradient-accumulation-steps", type, field, FLAG_ACCUMULATION, "N", \
                 "training.gradient_accumulation_steps=N"), \
    JOB_FLAG_ROW("lr-scheduler", type, field, FLAG_SCHEDULER, "NAME", "training.lr_scheduler=NAME"), \
    JOB_FLAG_ROW("model-output", type, field, FLAG_OUTPUT, "DIR", "output.dir=DIR"), \
    JOB_FLAG_ROW("pretrained-model", type, field, FLAG_MODEL, "DIR", "model.path=DIR"), \
    JOB_FLAG_ROW("dataloader-num-workers", type, field, FLAG_WORKERS, "N", "data.workers=N"), \
    {"deepspeed", 0, OPTION_STRING, offsetof(type, field.deepspeed), "FILE", \
     "DeepSpeed's JSON beside the job, as training.deepspeed"}, \
    {"mode", 0, OPTION_STRING, offsetof(type, field.mode), "NAME", \
     "refuse to run as several ranks, or as one alone", .choices = cli_modes}, \
    {"local-rank", 0, OPTION_INT64, offsetof(type, field.local_rank), "N", \
     "accepted: launchers pass it, and their variables count"}, \
    {"disable-cudagraphs", 0, OPTION_FLAG, offsetof(type, field.no_graphs), NULL, \
     "the same as --set performance.cuda_graphs=false"}, \
    {"disable-compilation", 0, OPTION_FLAG, offsetof(type, field.no_compilation), NULL, \
     "accepted: kernels are compiled ahead"}
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

/* A model with this many tokens and no tokenizer was trained on bytes; no note is needed. */
enum { CLI_BYTE_TOKENS = 256 };

/* Options of the commands that run a model. */
struct model_flags {
    const char *tokenizer, *device, *weights;
    int threads;
    struct device_line line; /* --budget */
};
#define MODEL_FLAGS                                                                                          \
    {                                                                                                        \
        .device = "auto", .weights = "as-is"                                                                 \
    }

/* Rows for them, and what those of other tables take; `field` is the struct model_flags inside `type`. */
/* clang-format off */
#define MODEL_ROWS(type, field) \
    {"budget", 'b', OPTION_BYTES, offsetof(type, field.line.budget), "BYTES", \
     "memory budget, e.g. 256MiB; default: none, or in a container what its limit leaves", CLI_BUDGET(type, field)}, \
    {"device", 0, OPTION_STRING, offsetof(type, field.device), "NAME", \
     "cpu, cuda, cuda:N, or auto: a GPU that works and leaves room in the budget, else the CPU (auto)", CLI_DEVICE}, \
    {"threads", 0, OPTION_INT, offsetof(type, field.threads), "N", "CPU threads; 0: one per core (0)", CLI_THREADS}, \
    {"weights", 0, OPTION_STRING, offsetof(type, field.weights), "KIND", \
     "as-is, or in blocks of 8 or 4 bits made while they are read: q8, q4 (as-is)", .choices = cli_weights}
#define CLI_BUDGET(type, field) \
    .given = OPTION_GIVEN(type, field.line.given), .expected = "bytes to hold something", .least = 1, .most = INT64_MAX
#define CLI_DEVICE   .expected = "auto, cpu, cuda or cuda:1", .valid = cli_is_device
#define CLI_THREADS  .expected = "0 for one per core, or up to 1024", .most = 1024
#define CLI_MAX_LINE .expected = "64 bytes to 1TiB, e.g. 16MiB", .least = 64, .most = 1ull << 40

/* Rows of commands that draw tokens; `field` is the struct sampling inside `type`. */
#define SAMPLING_ROWS(type, field) \
    {"temperature", 't', OPTION_DOUBLE, offsetof(type, field.temperature), "X", "0: always the likeliest token (0.8)"}, \
    {"top-k", 0, OPTION_INT64, offsetof(type, field.top_k), "K", "sample from the K likeliest tokens; 0: from all (0)"}, \
    {"top-p", 0, OPTION_DOUBLE, offsetof(type, field.top_p), "P", \
     "nucleus sampling: keep the smallest set of tokens with total probability P (1); 0: the likeliest alone"}, \
    {"min-p", 0, OPTION_DOUBLE, offsetof(type, field.min_p), "P", \
     "keep tokens with at least the share P of the likeliest token's probability (0)"}, \
    {"seed", 0, OPTION_INT64, offsetof(type, field.seed), "N", "same seed and same input, same text (1)"}
#define SAMPLING_FLAGS {.temperature = 0.8, .top_p = 1, .seed = 1}
/* clang-format on */

extern const char *const cli_weights[]; /* kinds that --weights takes */
bool cli_is_device(const char *name);

/* Opens the device and, by `open`, the model on it. Where nobody asked for the card, one without room for the model is left for
 * the CPU. *device is the caller's to close, whatever is returned. */
typedef enum plim_status model_opener(void *arg, struct device *device, struct plim_error *err);
enum plim_status cli_open_model(const char *command, const struct model_flags *flags, model_opener *open,
                                void *arg, struct device **device, struct plim_error *err);

/* Tells the job its device: resolves training.preset: auto. A note on stderr lists the settings of a preset,
 * unless quiet. */
enum plim_status cli_meet_device(struct job *job, const struct device_facts *facts,
                                 const struct job_options *options, struct plim_error *err);

/* Prints one line if text is read as bytes by default, unless quiet (job_bytes_text). */
void cli_say_bytes(const struct job *job, const struct job_options *options);

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

#endif
