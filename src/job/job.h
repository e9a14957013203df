/* job.h - what the user asked: one struct from a YAML file and overrides, checked, with defaults.
 *
 *     struct job job;
 *     job_init(&job);
 *     job_load(&job, "small.yaml", &notes, &err);          // reads, checks; model.path reads config.json too
 *     job_set(&job, "training.steps=20", &notes, &err);    // the same names on the command line
 *     job_finish(&job, &err);                              // cross-checks after the last override
 *     job_meet_device(&job, &facts, &err);                 // const from here on
 *     job_release(&job);
 *
 * Whether a key was given is asked of its origin (job_given). What follows from the data is not in the job: struct loader_sizes and
 * struct job_length are made beside it (train/corpus.h). A job owns its texts.
 * The keys are the table in keys.c, which also makes docs/configuration.md.
 */
#ifndef PLIM_JOB_JOB_H
#define PLIM_JOB_JOB_H

#include "base/schema.h"
#include "data/objective.h"
#include "job/environment.h"
#include "job/telling.h"
#include "model/fields.h"
#include "plan/plan.h"
#include "tape/pass.h"

enum schedule_kind {
    SCHEDULE_CONSTANT,
    SCHEDULE_LINEAR,
    SCHEDULE_COSINE,
    SCHEDULE_WSD, /* warm-up, stable, decay */
    SCHEDULE_GREEDY,
    SCHEDULE_RESTARTS, /* cosine_with_restarts */
    SCHEDULE_POLYNOMIAL,
    SCHEDULE_INVERSE_SQRT,
    SCHEDULE_COUNT
};

/* How wsd falls at its end. */
enum schedule_decay { DECAY_LINEAR, DECAY_COSINE, DECAY_ROOT };

struct job_schedule {
    int kind; /* enum schedule_kind */
    double learning_rate, min_lr;
    int64_t warmup_steps, decay_steps; /* decay_steps: the last steps of wsd */
    int warmup_type;                   /* 0: by equal steps, 1: by the logarithm of the step */
    double warmup_min_lr;              /* where the warm-up begins */
    double warmup_ratio;               /* share of the run's steps, instead of warmup_steps; 0: they count */
    /* Arguments of single schedules; see docs/schedules.md. */
    double min_lr_ratio;  /* min_lr as a share of learning_rate; 0: min_lr counts */
    double cycles;        /* cosine waves; cosine_with_restarts: falls */
    double power;         /* of polynomial */
    int64_t stable_steps; /* of wsd; below 0: what warm-up and decay leave */
    int64_t timescale;
    int decay_type; /* enum schedule_decay */
    /* GreedyLR; see docs/schedules.md */
    double factor, threshold, max_lr, eps;
    int64_t patience, cooldown, warmup, window_size, reset_start;
    bool smooth, relative;
    int on; /* 0: every optimizer step with the training loss, 1: every evaluation */
};

enum { ATTENTION_FLASH, ATTENTION_WINDOW, ATTENTION_SPARSE }; /* as the key's names */

struct job_model { /* as written; becomes the spec */
    const char *path, *architecture;
    struct model_spec said;   /* fields that are keys of the job (model/fields.h) */
    bool given[MODEL_FIELDS]; /* which of them were */
    double dropout;
    bool dropout_given;
    bool flash;
    int pooling; /* enum pooling, of vectors */
    bool pooling_given;
    int attention_type; /* flash, sliding_window, sparse */
    bool attention_given;
    int feed_forward; /* T5: relu, gated-gelu */
    bool feed_forward_given;
};

enum {
    MATMUL_HIGHEST,
    MATMUL_HIGH,
    MATMUL_MEDIUM
}; /* as people know them from PyTorch; the last two are TF32 */

/* training.eval_strategy and save_strategy. */
enum { EVERY_STEPS, EVERY_EPOCH, EVERY_NEVER };

/* training.mixed_precision: auto, until the device is known. */
enum { PRECISION_AUTO = PRECISION_COUNT };

struct job_training {
    const char *preset; /* "none", "auto" or a name; see job_take_preset */
    int64_t batch_size, accumulation, micro_batch, max_micro_batch, steps;
    int64_t total_batch; /* rows of a step on all ranks; 0: not given. See job_settle_batch */
    int64_t zero;        /* enum zero */
    int objective;       /* 0: the architecture's; else 1 + enum objective */
    double pair_scale;   /* sentence_pairs: of cosines in the loss */
    int precision;       /* enum precision, or PRECISION_AUTO before job_meet_device */
    int optimizer;
    int master;                /* of narrow weights: 0 fp32, 1 none */
    int state_type, grad_type; /* 0 fp32, 1 bf16 */
    bool fp16, bf16, checkpointing;
    double beta1, beta2, eps, weight_decay, clip;
    int recompute;
    int64_t full_layers, loss_chunks;
    bool in_backward;
    int state_tier, grad_tier, param_tier;
    int64_t offload_layers; /* whose activations wait in a GPU's host memory */
    double host_update;     /* share of the updates of state in host memory that the CPU makes */
    int64_t seed, eval_every, eval_rows, eval_batch, save_every, log_every;
    int eval_strategy, save_strategy; /* EVERY_EPOCH: see job_length */
    bool load_best;                   /* load_best_model_at_end; see train/best_model.h */
    const char *best_metric;          /* metric_for_best_model; NULL: the loss */
    bool greater_is_better;
    int64_t stop_patience; /* early_stopping_patience: evaluations; 0: never */
    double stop_threshold;
    struct string_list debug; /* words of TrainingArguments */
    bool check_numerics;      /* training.debug: underflow_overflow */
    double epochs;            /* 0: not given */
    bool whole_epochs; /* the job gives epochs: a step ends with its epoch, also where --steps ends the run */
    double loss_scale;
    int64_t loss_scale_window, loss_scale_hysteresis;
    double min_loss_scale;
    int64_t max_skipped;        /* steps in a row whose loss or gradient is not finite, before the run ends */
    bool profile;               /* ops are timed */
    const char *link, *network; /* of job/cluster.h, or "auto" */
    int64_t threads;
    int matmul_precision; /* MATMUL_HIGHEST: fp32 products are fp32 */
    bool tf32;
    bool cuda_graphs;   /* steps are compiled into programs where the device can */
    bool deterministic; /* the same bits on every run, on every device */
    const char *device; /* "auto", "cpu", "cuda", "cuda:N"; see device/registry.h */
};

/* How far rows are padded. */
enum { PADDING_MAX_LENGTH, PADDING_LONGEST, PADDING_NONE };

struct job_data { /* see data/dataset.h and data/loader.h */
    int format, rows, overlong, padding;
    bool group_by_length; /* not given: with PADDING_LONGEST alone */
    const char *first_field, *second_field, *score_field;
    struct string_list labels;
    int64_t max_source_length;
    const char *tokenizer, *chat_template;
    /* Tokenizer of model.path, for checkpoints, when the data are already tokens; NULL: none. */
    const char *kept_tokenizer;
    const char *field, *prompt_field, *response_field, *source_field, *target_field, *messages_field;
    bool packing, add_special, append_eos, skip_bad;
    uint64_t max_line_bytes, shuffle_bytes;
    int64_t workers, prefetch_factor, shuffle_buffer;
};

/* Limits for sharded parameters (training.zero), in elements, and when gradients are summed. */
struct job_zero {
    int64_t max_live, max_reuse, prefetch, whole_below;
    int sum_gradients; /* 0: in every micro-batch, 1: once a step */
};

/* training.deepspeed.offload_optimizer and offload_param. */
enum offload_device { OFFLOAD_NONE, OFFLOAD_CPU, OFFLOAD_NVME };

/* Keys of other frameworks that ask for something: wishes.c grants it or says what to write instead. */
struct job_wishes {
    bool use_deepspeed, checkpointing;
    bool cpu_offload, nvme_offload; /* false, where it is given, is a wish, too: nothing is offloaded */
    int64_t zero_stage;
    int offload_optimizer, offload_param; /* enum offload_device */
    bool memory_offload;                  /* training.memory.enable_cpu_offload */
    double pool_gb;                       /* a budget in GB; 0: none */
    /* Share of a GPU's memory that is the budget, instead of the profile's; 0: not given. */
    double cuda_fraction;
    double min_lr_ratio, warmup_min_ratio; /* DeepSpeed's floors, of the learning rate; 0: none */
};

/* Monitoring settings. Thresholds come from job_thresholds. */
struct job_monitor {
    bool enabled;    /* monitoring.enabled */
    bool silent;     /* training.memory.silent_mode: warnings are not printed; statuses and actions stay */
    double interval; /* monitoring.interval: seconds between two readings */
    /* monitoring.log_every: steps between two step lines of memory; 0: only on a change. */
    int64_t log_every;
    /* monitoring.reserve: with budget: auto, bytes to leave free besides other processes' use; 0: 5 %. */
    uint64_t reserve;
};

/* How the micro-batch may move while a run goes on (training.dynamic_batching); its effective batch never does. */
struct job_batching {
    bool enabled;     /* false: the plan's micro-batch holds for the whole run */
    int64_t min, max; /* rows; max 0: no limit. The planner keeps to them, too: job_micro_bounds */
    double target;    /* share of memory, see job_thresholds; 0: training.memory.target_utilization alone */
    int64_t every;    /* adjustment_frequency: steps between two looks */
    bool smooth;      /* smooth_transitions: one divisor of the effective batch at a time */
};

/* How large the data loader may be, from what the keys say to the smallest that makes the same rows: keys that were given
 * stay. A corpus fills it (train/corpus.h), and job_plan chooses. */
struct loader_size {
    int64_t workers;
    int64_t pieces; /* of text that each worker reads ahead */
    int64_t max_line_bytes, shuffle_samples, shuffle_bytes;
    int64_t bytes; /* host memory of tokenizer and loaders */
};
enum { LOADER_SIZES = 12 };
struct loader_sizes {
    struct loader_size at[LOADER_SIZES];
    int count, chosen; /* count 0: nothing is known, and it takes nothing */
    int64_t reading;   /* the most that reading the tokenizer takes, before there is an arena */
};

/* One pass over the training data. */
struct job_epoch {
    int64_t rows, tokens; /* rows 0: unknown */
    int64_t positions;    /* computed for them, padding included, about */
    bool exact;           /* all of it was read */
};

/* How long a run is, in optimizer steps: as the keys say or, where they count epochs, as the data make of them. */
struct job_length {
    struct job_epoch epoch;
    int64_t steps, eval_every, save_every;
};

struct job {
    struct job_model model;
    struct job_training training;
    struct job_schedule schedule;
    struct string_list train, validation;
    struct job_data data;
    struct job_wishes wishes;
    struct job_zero zero;
    const char *deepspeed;         /* DeepSpeed's file: training.deepspeed */
    const char *deepspeed_flag;    /* the same from a command line, set before job_load: instead of that */
    struct deepspeed_autos *autos; /* what such a file leaves open, see deepspeed.h; NULL: nothing */
    struct job_monitor monitor;
    struct job_batching batching;
    struct job_telling telling;
    int ranks, rank; /* that train it together, and this one's number; 0: one */
    int64_t max_length;
    const char *output_dir, *disk_dir; /* disk_dir NULL: output_dir */
    int64_t keep_checkpoints;
    bool gather_weights;      /* of checkpoints of several ranks */
    bool no_final_checkpoint; /* a run that was asked to save nothing at its end */
    uint64_t budget,
        host_budget; /* budget 0: none is given, or `auto`; host_budget 0: what the machine has */
    int profile;
    char preset[32];                             /* whose recommendations were taken; empty: nobody's */
    double target, warning, critical, emergency; /* 0: the profile's */

    struct model_spec spec;              /* after job_finish */
    const char *name;                    /* the file it was read from */
    struct origin origins[ORIGINS];      /* per row of job_schema, see origin.h */
    struct job_environment *environment; /* what was seen of it; NULL: nothing */
    struct bump store;                   /* texts live here */
};

void job_init(struct job *job);
void job_release(struct job *job);
enum plim_status job_load(struct job *job, const char *path, const struct schema_listener *notes,
                          struct plim_error *err);
enum plim_status job_set(struct job *job, const char *assignment, const struct schema_listener *notes,
                         struct plim_error *err);
/* A flag of a command that stands for a key: "--steps" for training.steps. */
enum plim_status job_set_flag(struct job *job, const char *flag, const char *key, const char *value,
                              const struct schema_listener *notes, struct plim_error *err);
enum plim_status job_finish(struct job *job, struct plim_error *err);

/* Appends a line, without its end, where text is read as bytes although nobody asked for it: neither data.tokenizer nor the model has a
 * tokenizer. */
void job_bytes_text(const struct job *job, struct strbuf *out);

/* After job_finish, when the device is known (a preset's facts for one that is not here): training.preset: auto is
 * resolved, and what could not be checked before is. */
enum plim_status job_meet_device(struct job *job, const struct device_facts *facts, struct plim_error *err);

/* training.mixed_precision: auto on this device: an enum precision. */
int job_automatic_precision(const struct device_facts *facts);

/* After job_finish, before training is planned: PLIM_UNSUPPORTED when the model has something that its config.json could not
 * say, PLIM_BAD_INPUT when it would drop everything. With eval_strategy: no the job has no validation data from here on. */
enum plim_status job_check_training(struct job *job, struct plim_error *err);

/* The schedule with what follows from its kind where keys are not given. */
struct job_schedule job_schedule(const struct job *job);

/* The first moment's decay as this optimizer takes it: Adafactor has no first moment unless beta1 was given. */
double job_beta1(const struct job *job, enum optimizer optimizer);

/* The training objective: training.objective, or the default for the model's task. */
enum objective job_objective(const struct job *job);
/* The heads of tapes that train, and of those that evaluate. */
enum model_head job_head(const struct job *job);
enum model_head job_eval_head(const struct job *job);

/* For job_finish, when the spec has been read: PLIM_UNSUPPORTED when the architecture does not learn the objective; else
 * the spec gets the task, labels and pooling that it asks for (objective.c, labels.c). of_model: the model that was read has
 * labels. */
enum plim_status job_settle_objective(struct job *job, struct plim_error *err);
enum plim_status job_settle_labels(struct job *job, bool of_model, struct plim_error *err);

/* Tokens of a source at most beside targets of `time`: data.max_source_length, or as data.max_length, and of shorter targets
 * the same share of it; 0: the model has no source. */
int64_t job_source_time(const struct job *job, int64_t time);

/* Where the disk tier lies. */
const char *job_disk_dir(const struct job *job);

/* When the number of ranks is known: training.train_batch_size is divided among what is left open of batch_size and
 * gradient_accumulation_steps. PLIM_BAD_INPUT: it is not their product. For job_meet_device. */
enum plim_status job_settle_batch(struct job *job, int ranks, struct plim_error *err);

/* Rows of one optimizer step of a rank: batch_size x gradient_accumulation_steps. */
int64_t job_rows(const struct job *job);
/* Rows per step over all ranks. */
int64_t job_rows_of_all(const struct job *job);

extern const struct schema job_schema;

/* ---- wishes.c: for job_set, job_finish and job_meet_device ---- */

/* Keys that say the same in other words (mixed_precision and bf16, recompute and gradient_checkpointing) may all be
 * given while they agree. PLIM_BAD_INPUT names the two that do not. */
enum plim_status job_agree(struct job *job, struct plim_error *err);
/* An override wins over such a key of the job file or the environment: that one is as if it had not been given. Two
 * overrides that contradict each other stay, and job_agree names them; so do fp16 and bf16, which are never both meant. */
enum plim_status job_override(struct job *job, const char *key, struct plim_error *err);
/* Applies settings given in other frameworks' terms: DeepSpeed's offload pins the tiers of state and, with stage 3,
 * of parameters. PLIM_UNSUPPORTED names a key that this device cannot satisfy and what to write instead;
 * PLIM_BAD_INPUT names one that contradicts another. */
enum plim_status job_grant_wishes(struct job *job, const struct device_facts *facts, struct plim_error *err);
/* Lines about what was given and has nothing to act on with this device: "job.yaml:7, training.zero_stage: why". */
void job_idle_text(const struct job *job, const struct device_facts *facts, struct strbuf *out);
/* For job_finish: what does not depend on the device. */
enum plim_status job_check_wishes(struct job *job, struct plim_error *err);

/* Rows of a micro-batch that dynamic_batching and max_micro_batch_size allow; *most 0: no limit. */
void job_micro_bounds(const struct job *job, int64_t *least, int64_t *most);

/* Optimizer steps of one epoch whose rows are known; 0: they are not. */
int64_t job_epoch_steps(const struct job *job, const struct job_epoch *epoch);
/* The run's length. The last step of an epoch has the rows that are left, so each epoch has as many steps. Packed rows are as many
 * in any order only about: then an epoch may be a step longer or shorter. */
struct job_length job_length(const struct job *job, const struct job_epoch *epoch);
/* Must the rows of an epoch be counted before the run begins? */
bool job_counts_epochs(const struct job *job);

/* Forward-only tape with a loss, for evaluation; parameters are where the knobs of a training plan have them (NULL: all
 * on the device). */
enum plim_status job_build_eval(const struct job *job, const struct device_facts *facts,
                                const struct knobs *knobs, int64_t rows, int64_t time, struct tape *out,
                                struct plim_error *err);

/* Knobs that keys of the job pin on this device; the others are KNOB_OPEN. left_out: knobs, by the bits of their rows, whose keys
 * do not count. */
void job_pins(const struct job *job, const struct device_facts *facts, unsigned left_out, struct knobs *pins);
/* The key that pins a knob, by the name that the user wrote; NULL: none does. */
const char *job_pin_name(const struct job *job, int knob);

/* The part of a job that decides its tapes; a trial plan (report/remedies.c, savings.c) may change it. */
struct recipe {
    const struct job *job;                 /* borrowed */
    int64_t precision, optimizer;          /* enum precision, enum optimizer */
    int64_t master, state_type, grad_type; /* as in struct job_training */
    int64_t clips, flash;                  /* gradients are clipped; scores are not kept */
    int64_t max_length, micro_least;
};
struct recipe recipe_of(const struct job *job);
/* job_request for a recipe, which lives as long as the request. */
void recipe_request(const struct recipe *recipe, const struct device_facts *facts, int64_t overhead,
                    struct plan_request *out);

/* Everything the planner needs: pins from the config, rows, callbacks. facts are the caller's, and so is the overhead, with the data
 * loader in it. */
void job_request(const struct job *job, const struct device_facts *facts, int64_t overhead,
                 struct plan_request *out);

/* Applies training.preset to batch_size, gradient_accumulation_steps, mixed_precision (also as fp16, bf16) and
 * profile where the job leaves them open. `auto` uses the preset of `facts` and does nothing without facts. Called by
 * job_finish and job_meet_device. */
enum plim_status job_take_preset(struct job *job, const struct device_facts *facts, struct plim_error *err);
/* Its precision is not known before the device is. */
bool job_awaits_device(const struct job *job);
/* One line that says what was taken of which preset, or that none is known; nothing when none was asked for. */
void job_preset_text(const struct job *job, const struct device_facts *facts, struct strbuf *out);
/* The profile alone, of the device that is planned for, where neither the job nor its preset names one. */
struct preset;
void job_take_profile(struct job *job, const struct preset *preset);

/* Shares of memory at which the status changes: the profile's, or what training.memory says. The target is the smaller of
 * training.memory's and dynamic_batching's, where both are given. */
struct profile;
void job_thresholds(const struct job *job, struct profile *out);

/* The budget: what was given, or the profile's share of the device's memory, but no more than 95 % of what is free
 * there; and no more than training.memory.pool_size_gb. */
int64_t job_budget(const struct job *job, const struct device_facts *facts);

/* PLIM_BAD_INPUT when the budget is above what a device with memory of its own has; PLIM_UNSUPPORTED when a pinned tier is not below this device. */
enum plim_status job_check_budget(const struct job *job, const struct plan_request *request,
                                  struct plim_error *err);

/* Bytes of the chosen size. */
int64_t loader_sizes_bytes(const struct loader_sizes *loader);
/* Chooses the first size that gives up so many bytes, or the smallest. False: it is the smallest already. */
bool loader_sizes_shrink(struct loader_sizes *loader, int64_t missing);

/* plan_search, and where nothing fits the data loader is made smaller first, as little as is needed: then loader->chosen
 * and request->overhead, which counts the loader, are those of the smaller one. */
enum plim_status job_plan(const struct job *job, struct loader_sizes *loader, struct plan_request *request,
                          struct plan *out, struct plim_error *err);

/* No run holds a line above what its device, or the container it is in, has; `where` names the key or option that asks for
 * it, `who` the job or command. A plan may be made for such a line on a CPU and says so. */
enum plim_status budget_check(const char *who, const char *where, int64_t bytes,
                              const struct device_facts *facts, struct plim_error *err);

/* One key, or a section of them, for people: what it takes, means, is also called, and does to a plan (explain.c). job may be NULL;
 * else its value, and where that came from, is told, too. PLIM_BAD_INPUT: nobody knows such a key. */
enum plim_status job_explain(const char *key, const struct job *job, struct strbuf *out,
                             struct plim_error *err);

#endif
