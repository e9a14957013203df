/* job.h - the user's settings: one struct from a YAML file and overrides, checked, with defaults.
 *
 *     struct job job;
 *     job_init(&job);
 *     job_load(&job, "small.yaml", &notes, &err);          // reads, checks; model.path reads config.json too
 *     job_set(&job, "training.steps=20", &notes, &err);    // the same names on the command line
 *     job_finish(&job, &err);                              // cross-checks after the last override
 *     job_meet_device(&job, &facts, &err);                 // const from here on
 *     job_release(&job);
 *
 * Ask job_given whether a key was given. Values that follow from the data are not in the job: struct loader_sizes and struct
 * job_length are separate (train/corpus.h). A job owns its texts. The keys are the table in keys.c, which also generates
 * docs/configuration.md.
 */
#pragma once

#include "base/schema.h"
#include "data/objective.h"
#include "job/environment.h"
#include "job/telling.h"
#include "model/adapter.h"
#include "model/quantise.h"
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

/* The shape of wsd's decay. */
enum schedule_decay { DECAY_LINEAR, DECAY_COSINE, DECAY_ROOT };

struct job_schedule {
    int kind; /* enum schedule_kind */
    double learning_rate, min_lr;
    int64_t warmup_steps, decay_steps; /* decay_steps: the last steps of wsd */
    int warmup_type;                   /* 0: linear in the step, 1: linear in its logarithm */
    double warmup_min_lr;              /* learning rate at the start of the warm-up */
    double warmup_ratio;               /* share of the run's steps; overrides warmup_steps; 0: not given */
    /* Arguments of single schedules; see docs/schedules.md. */
    double min_lr_ratio;  /* min_lr as a share of learning_rate; 0: use min_lr */
    double cycles;        /* cosine waves; cosine_with_restarts: falls */
    double power;         /* of polynomial */
    int64_t stable_steps; /* of wsd; below 0: the steps that warm-up and decay leave */
    int64_t timescale;
    int decay_type; /* enum schedule_decay */
    /* GreedyLR; see docs/schedules.md */
    double factor, threshold, max_lr, eps;
    int64_t patience, cooldown, warmup, window_size, reset_start;
    bool smooth, relative;
    int on; /* 0: every optimizer step with the training loss, 1: every evaluation */
};

enum { ATTENTION_FLASH, ATTENTION_WINDOW, ATTENTION_SPARSE }; /* the names of the key's values */

struct job_model { /* as written; becomes the spec */
    const char *path, *architecture;
    struct model_spec said;   /* fields that are keys of the job (model/fields.h) */
    bool given[MODEL_FIELDS]; /* which of them were given */
    double dropout;
    bool dropout_given;
    bool flash;
    int pooling; /* enum pooling, of vectors */
    bool pooling_given;
    int attention_type; /* flash, sliding_window, sparse */
    bool attention_given;
    int feed_forward; /* T5: relu, gated-gelu */
    bool feed_forward_given;
    int weights; /* enum weights_kind, of the matrices that an adapter leaves frozen */
};

/* As in PyTorch; the last two use TF32. */
enum { MATMUL_HIGHEST, MATMUL_HIGH, MATMUL_MEDIUM };

/* training.eval_strategy and save_strategy. */
enum { EVERY_STEPS, EVERY_EPOCH, EVERY_NEVER };

/* training.mixed_precision: auto; resolved when the device is known. */
enum { PRECISION_AUTO = PRECISION_COUNT };

struct job_training {
    const char *preset; /* "none", "auto" or a name; see job_take_preset */
    int64_t batch_size, accumulation, micro_batch, max_micro_batch, steps;
    int64_t total_batch; /* rows per step over all ranks; 0: not given. See job_settle_batch */
    int64_t zero;        /* enum zero */
    int objective;       /* 0: the architecture's; else 1 + enum objective */
    bool completion_only, assistant_only; /* targets of prompts with completions, and of conversations */
    double pair_scale;                    /* sentence_pairs: factor of cosines in the loss */
    /* dpo, kto and orpo (tape/preference.h) */
    int loss_type; /* enum preference_loss, of dpo */
    double beta, label_smoothing, desirable_weight, undesirable_weight, sft_weight;
    int precision; /* enum precision, or PRECISION_AUTO before job_meet_device */
    int optimizer;
    int master;                /* master of narrow weights: 0 fp32, 1 none */
    int state_type, grad_type; /* 0 fp32, 1 bf16 */
    int fp8_gradients;         /* 0 e5m2, 1 e4m3 */
    bool fp16, bf16, checkpointing;
    double beta1, beta2, eps, weight_decay, clip;
    struct string_list freeze, train_only; /* patterns of parameter names; see model/freeze.h */
    int recompute;
    int64_t full_layers, loss_chunks;
    bool in_backward, in_forward;
    int state_tier, grad_tier, param_tier;
    int64_t offload_layers; /* layers whose activations wait in a GPU's host memory */
    double before_norm;     /* share of those that it computes before the norm is known */
    double host_update;     /* share of the updates of state in host memory that the CPU computes */
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
    bool whole_epochs; /* the job gives epochs: a step ends with its epoch, even if --steps ends the run */
    double loss_scale;
    int64_t loss_scale_window, loss_scale_hysteresis;
    double min_loss_scale;
    /* Consecutive steps with a loss or gradient that is not finite before the run fails. */
    int64_t max_skipped;
    bool profile;               /* ops are timed */
    const char *link, *network; /* of job/cluster.h, or "auto" */
    int64_t threads;
    int matmul_precision; /* MATMUL_HIGHEST: fp32 products are fp32 */
    bool tf32;
    bool cuda_graphs;   /* compile steps into programs if the device can */
    bool deterministic; /* identical bits on every run and every device */
    const char *device; /* "auto", "cpu", "cuda", "cuda:N"; see device/registry.h */
};

/* How far rows are padded. */
enum { PADDING_MAX_LENGTH, PADDING_LONGEST, PADDING_NONE };

struct job_data { /* see data/dataset.h and data/loader.h */
    int format, rows, overlong, padding;
    bool group_by_length; /* default: only with PADDING_LONGEST */
    const char *first_field, *second_field, *score_field;
    struct string_list labels;
    int64_t max_source_length;
    int64_t pair_length; /* of a preference's prompt and completions together; 0: two rows */
    const char *tokenizer, *chat_template;
    /* Tokenizer of model.path, saved with checkpoints if the data are already tokens; NULL: none. */
    const char *kept_tokenizer;
    const char *field, *prompt_field, *response_field, *source_field, *target_field, *messages_field;
    const char *tools_field, *chosen_field, *rejected_field, *label_field;
    bool packing, add_special, append_eos, skip_bad;
    uint64_t max_line_bytes, shuffle_bytes;
    int64_t workers, prefetch_factor, shuffle_buffer;
};

/* Limits of sharded parameters (training.zero), in elements; and when gradients are summed. */
struct job_zero {
    int64_t max_live, max_reuse, prefetch, whole_below;
    int sum_gradients; /* 0: in every micro-batch, 1: once per step */
};

/* training.deepspeed.offload_optimizer and offload_param. */
enum offload_device { OFFLOAD_NONE, OFFLOAD_CPU, OFFLOAD_NVME };

/* Keys of other frameworks with a demand: wishes.c satisfies it or says what to write instead. */
struct job_wishes {
    bool use_deepspeed, checkpointing;
    bool cpu_offload, nvme_offload; /* an explicit false is a demand too: nothing is offloaded */
    int64_t zero_stage;
    int offload_optimizer, offload_param; /* enum offload_device */
    bool memory_offload;                  /* training.memory.enable_cpu_offload */
    double pool_gb;                       /* a budget in GB; 0: none */
    /* Share of a GPU's memory used as the budget, instead of the profile's; 0: not given. */
    double cuda_fraction;
    double min_lr_ratio, warmup_min_ratio; /* DeepSpeed's floors as shares of the learning rate; 0: none */
};

/* Monitoring settings. Thresholds come from job_thresholds. */
struct job_monitor {
    bool enabled;    /* monitoring.enabled */
    bool silent;     /* training.memory.silent_mode: no printed warnings; status and actions are unaffected */
    double interval; /* monitoring.interval: seconds between two readings */
    /* monitoring.log_every: steps between two memory lines; 0: only on a change. */
    int64_t log_every;
    /* monitoring.reserve: with budget: auto, bytes to keep free in addition to other processes' use; 0: 5
     * %. */
    uint64_t reserve;
};

/* How the micro-batch may change during a run (training.dynamic_batching); the effective batch never does. */
struct job_batching {
    bool enabled;     /* false: the micro-batch stays as planned */
    int64_t min, max; /* rows; max 0: no limit. The planner obeys them too: job_micro_bounds */
    double target;    /* share of memory, see job_thresholds; 0: training.memory.target_utilization */
    int64_t every;    /* adjustment_frequency: steps between two checks */
    bool smooth;      /* smooth_transitions: one divisor of the effective batch at a time */
};

/* Possible sizes of the data loader, from the keys' values down to the smallest that gives the same rows.
 * Given keys never change. A corpus fills it (train/corpus.h), and job_plan chooses. */
struct loader_size {
    int64_t workers;
    int64_t pieces; /* pieces of text that each worker reads ahead */
    int64_t max_line_bytes, shuffle_samples, shuffle_bytes;
    int64_t bytes; /* host memory of tokenizer and loaders */
};
enum { LOADER_SIZES = 12 };
struct loader_sizes {
    struct loader_size at[LOADER_SIZES];
    int count, chosen; /* count 0: unknown, counted as nothing */
    int64_t reading;   /* peak of reading the tokenizer, before there is an arena */
};

/* One pass over the training data. */
struct job_epoch {
    int64_t rows, tokens; /* rows 0: unknown */
    int64_t positions;    /* approximate computed positions, including padding */
    bool exact;           /* all data were read */
};

/* The length of a run in optimizer steps: as the keys say or, if they count epochs, as follows from the
 * data. */
struct job_length {
    struct job_epoch epoch;
    int64_t steps, eval_every, save_every;
};

struct job {
    struct job_model model;
    struct job_training training;
    struct job_schedule schedule;
    struct adapter_options adapter; /* as written, or as adapter.path says */
    struct adapter *adapting;       /* after job_finish; NULL: the model itself is trained */
    struct quantisation base;       /* its frozen matrices that are in blocks; in the job's store */
    struct string_list train, validation;
    struct job_data data;
    struct job_wishes wishes;
    struct job_zero zero;
    const char *deepspeed;         /* DeepSpeed's file: training.deepspeed */
    const char *deepspeed_flag;    /* the same from the command line, set before job_load; overrides it */
    struct deepspeed_autos *autos; /* its "auto" values, see deepspeed.h; NULL: none */
    struct job_monitor monitor;
    struct job_batching batching;
    struct job_telling telling;
    int ranks, rank; /* ranks that train together, and this one's number; 0: one */
    int64_t max_length;
    const char *output_dir, *disk_dir; /* disk_dir NULL: output_dir */
    int64_t keep_checkpoints;
    bool gather_weights;      /* in checkpoints of several ranks */
    bool no_final_checkpoint; /* the run was told to save nothing at its end */
    /* Budget 0: not given, or `auto`; host_budget 0: the machine's memory. */
    uint64_t budget, host_budget;
    int profile;
    char preset[32];                             /* the preset in effect; empty: none */
    double target, warning, critical, emergency; /* 0: the profile's */

    struct model_spec spec;              /* after job_finish */
    const char *name;                    /* the file it was read from */
    struct origin origins[ORIGINS];      /* per row of job_schema, see origin.h */
    struct job_environment *environment; /* the variables found; NULL: none */
    struct bump store;                   /* texts live here */
};

void job_init(struct job *job);
void job_release(struct job *job);
enum plim_status job_load(struct job *job, const char *path, const struct schema_listener *notes,
                          struct plim_error *err);
/* job_load from text; `name` takes the place of the file's name in errors. */
enum plim_status job_parse(struct job *job, const char *text, const char *name,
                           const struct schema_listener *notes, struct plim_error *err);
enum plim_status job_set(struct job *job, const char *assignment, const struct schema_listener *notes,
                         struct plim_error *err);
/* Sets a key from a command's flag: "--steps" for training.steps. */
enum plim_status job_set_flag(struct job *job, const char *flag, const char *key, const char *value,
                              const struct schema_listener *notes, struct plim_error *err);
enum plim_status job_finish(struct job *job, struct plim_error *err);

/* Appends one line, without newline, if text is read as bytes by default: neither data.tokenizer nor the
 * model gives a tokenizer. */
void job_bytes_text(const struct job *job, struct strbuf *out);

/* Call it after job_finish, when the device is known (for an absent one, with a preset's facts). Resolves
 * training.preset: auto and makes the remaining checks. */
enum plim_status job_meet_device(struct job *job, const struct device_facts *facts, struct plim_error *err);

/* The enum precision that training.mixed_precision: auto means on this device. */
int job_automatic_precision(const struct device_facts *facts);

/* Call it after job_finish, before planning. PLIM_UNSUPPORTED: config.json cannot express the model.
 * PLIM_BAD_INPUT: dropout would drop everything. With eval_strategy: no, removes the validation data from the
 * job. */
enum plim_status job_check_training(struct job *job, struct plim_error *err);

/* The schedule, with defaults that depend on its kind. */
struct job_schedule job_schedule(const struct job *job);

/* The first moment's decay for this optimizer: Adafactor has no first moment unless beta1 was given. */
double job_beta1(const struct job *job, enum optimizer optimizer);

/* The training objective: training.objective, or the default for the model's task. */
enum objective job_objective(const struct job *job);
/* The loss of dpo, kto and orpo. */
struct preference_rule job_preference(const struct job *job);
/* True if a batch is one pass, because the loss of a sample depends on the others in it. */
bool job_whole_passes(const struct job *job);
/* True if a pass over the data before step 1 computes the log-probabilities of the starting weights. */
bool job_needs_reference(const struct job *job);
/* The heads of tapes that train, and of those that evaluate. */
enum model_head job_head(const struct job *job);
enum model_head job_eval_head(const struct job *job);

/* For job_finish, once the spec is read. PLIM_UNSUPPORTED: the architecture cannot learn the objective.
 * Otherwise sets the spec's task, labels and pooling (objective.c, labels.c). of_model: the model that was
 * read has labels. */
enum plim_status job_settle_objective(struct job *job, struct plim_error *err);
enum plim_status job_settle_labels(struct job *job, bool of_model, struct plim_error *err);

/* Maximum source tokens for targets of `time` tokens: data.max_source_length (default data.max_length),
 * scaled down for shorter targets. 0: the model has no source. */
int64_t job_source_time(const struct job *job, int64_t time);

/* Positions of a pair whose rows of `time` tokens share their beginning; 0: the rows share nothing (data.pair_length). */
int64_t job_pair_time(const struct job *job, int64_t time);

/* Folder of the disk tier. */
const char *job_disk_dir(const struct job *job);

/* Once the number of ranks is known, divides training.train_batch_size among batch_size and
 * gradient_accumulation_steps, as far as these are open. PLIM_BAD_INPUT: it is not their product. For
 * job_meet_device. */
enum plim_status job_settle_batch(struct job *job, int ranks, struct plim_error *err);

/* Rows of one optimizer step per rank: batch_size x gradient_accumulation_steps. */
int64_t job_rows(const struct job *job);
/* Rows per step over all ranks. */
int64_t job_rows_of_all(const struct job *job);

/* Chooses the frozen matrices that are in blocks (base.c); after job_settle_adapter. */
enum plim_status job_settle_base(struct job *job, struct plim_error *err);
/* Those of the job's model under an adapter, turned into blocks of that kind; the caller releases them. */
enum plim_status job_base_of(const struct job *job, const struct adapter *adapter, enum weights_kind kind,
                             struct quantisation *out, struct plim_error *err);

/* For job_finish, once the spec and objective are known (adapter.c): reads adapter.path, matches names, and takes the
 * learning rate that adapters are usually trained with if the job gives none. */
enum plim_status job_settle_adapter(struct job *job, struct plim_error *err);

/* Adapters' usual settings: all linear layers, r 16, alpha 32, learning rate 2e-4. */
#define ADAPTER_RANK          16
#define ADAPTER_LEARNING_RATE 2e-4
/* Likewise for dpo, kto and orpo: of the model, and of adapters. */
#define PREFERENCE_LEARNING_RATE 1e-6
#define PREFERENCE_ADAPTER_RATE  1e-5

extern const struct schema job_schema;

/* ---- wishes.c: for job_set, job_finish and job_meet_device ---- */

/* Keys with the same meaning (mixed_precision and bf16, recompute and gradient_checkpointing) may all be
 * given if they agree. PLIM_BAD_INPUT names two that do not. */
enum plim_status job_agree(struct job *job, struct plim_error *err);
/* An override replaces such a key of the job file or the environment, as if that had not been given. Two
 * overrides that contradict each other both stay, and job_agree names them; so do fp16 and bf16, which
 * exclude each other. */
enum plim_status job_override(struct job *job, const char *key, struct plim_error *err);
/* Applies settings given in other frameworks' terms: DeepSpeed's offload pins the tiers of state and, with stage 3,
 * of parameters. PLIM_UNSUPPORTED names a key that this device cannot satisfy and what to write instead;
 * PLIM_BAD_INPUT names one that contradicts another. */
enum plim_status job_grant_wishes(struct job *job, const struct device_facts *facts, struct plim_error *err);
/* Lines about settings without effect on this device: "job.yaml:7, training.zero_stage: why". */
void job_idle_text(const struct job *job, const struct device_facts *facts, struct strbuf *out);
/* For job_finish: checks that do not depend on the device. */
enum plim_status job_check_wishes(struct job *job, struct plim_error *err);

/* Rows of a micro-batch allowed by dynamic_batching and max_micro_batch_size; *most 0: no limit. */
void job_micro_bounds(const struct job *job, int64_t *least, int64_t *most);

/* Optimizer steps of an epoch with a known number of rows; 0: unknown. */
int64_t job_epoch_steps(const struct job *job, const struct job_epoch *epoch);
/* The run's length. The last step of an epoch has the remaining rows, so every epoch has the same number of
 * steps. The number of packed rows varies slightly with the order, so with packing an epoch may be a step
 * longer or shorter. */
struct job_length job_length(const struct job *job, const struct job_epoch *epoch);
/* True if the rows of an epoch must be counted before the run begins. */
bool job_counts_epochs(const struct job *job);

/* Builds a forward-only tape with a loss, for evaluation. Parameters are where the knobs of a training plan
 * put them (NULL: all on the device). */
enum plim_status job_build_eval(const struct job *job, const struct device_facts *facts,
                                const struct knobs *knobs, int64_t rows, int64_t time, struct tape *out,
                                struct plim_error *err);

/* Knobs that the job's keys pin on this device; the others are KNOB_OPEN. left_out: a bit mask of knobs (rows
 * of the table) whose keys are ignored. */
void job_pins(const struct job *job, const struct device_facts *facts, unsigned left_out, struct knobs *pins);
/* The key that pins a knob, as the user wrote it; NULL: none. */
const char *job_pin_name(const struct job *job, int knob);

/* The part of a job that determines its tapes; a trial plan (report/remedies.c, savings.c) may change it. */
struct recipe {
    const struct job *job;                                /* borrowed */
    int64_t precision, optimizer;                         /* enum precision, enum optimizer */
    int64_t master, state_type, grad_type, fp8_gradients; /* as in struct job_training */
    int64_t clips, flash;                                 /* clip gradients; do not keep scores */
    int64_t max_length, micro_least;
    const struct adapter *adapter;   /* NULL: none */
    const struct quantisation *base; /* frozen matrices in blocks */
};
struct recipe recipe_of(const struct job *job);
/* job_request for a recipe, which lives as long as the request. */
void recipe_request(const struct recipe *recipe, const struct device_facts *facts, int64_t overhead,
                    struct plan_request *out);

/* Fills a request for the planner: pins from the config, rows, callbacks. The caller supplies facts, and the
 * overhead including the data loader. */
void job_request(const struct job *job, const struct device_facts *facts, int64_t overhead,
                 struct plan_request *out);

/* Applies training.preset to batch_size, gradient_accumulation_steps, mixed_precision (also as fp16, bf16) and
 * profile where the job leaves them open. `auto` uses the preset of `facts` and does nothing without facts. Called by
 * job_finish and job_meet_device. */
enum plim_status job_take_preset(struct job *job, const struct device_facts *facts, struct plim_error *err);
/* True if its precision is not known before the device is. */
bool job_awaits_device(const struct job *job);
/* One line that says which settings were taken from which preset, or that no preset is known; nothing if none
 * was requested. */
void job_preset_text(const struct job *job, const struct device_facts *facts, struct strbuf *out);
/* Takes the profile of the planned device if neither the job nor its preset names one. */
struct preset;
void job_take_profile(struct job *job, const struct preset *preset);

/* Shares of memory at which the status changes: the profile's, or those of training.memory. The target is the
 * smaller of training.memory's and dynamic_batching's if both are given. */
struct profile;
void job_thresholds(const struct job *job, struct profile *out);

/* The budget: as given, or the profile's share of the device's memory, limited to 95 % of its free memory;
 * and limited to training.memory.pool_size_gb. */
int64_t job_budget(const struct job *job, const struct device_facts *facts);

/* PLIM_BAD_INPUT: the budget exceeds the memory of a device that has its own. PLIM_UNSUPPORTED: a pinned tier
 * is not below this device. */
enum plim_status job_check_budget(const struct job *job, const struct plan_request *request,
                                  struct plim_error *err);

/* Bytes of the chosen size. */
int64_t loader_sizes_bytes(const struct loader_sizes *loader);
/* Chooses the first size that frees `missing` bytes, or the smallest. Returns false if it is already the
 * smallest. */
bool loader_sizes_shrink(struct loader_sizes *loader, int64_t missing);

/* plan_search. If nothing fits, first makes the data loader smaller, by as little as necessary;
 * loader->chosen and request->overhead, which includes the loader, then change. */
enum plim_status job_plan(const struct job *job, struct loader_sizes *loader, struct plan_request *request,
                          struct plan *out, struct plim_error *err);

/* Refuses a budget above the memory of the device or its container. `where` names the key or option, `who`
 * the job or command. A plan may still be made for such a budget on a CPU; it says so. */
enum plim_status budget_check(const char *who, const char *where, int64_t bytes,
                              const struct device_facts *facts, struct plim_error *err);
/* budget_check of a budget that follows another, 0 for none. PLIM_UNSUPPORTED: it is smaller, and the device keeps its memory. */
enum plim_status budget_check_next(const char *who, const char *where, int64_t before, int64_t bytes,
                                   const struct device_facts *facts, struct plim_error *err);

/* One key, or a section of them, for people: what it takes, means, is also called, and does to a plan (explain.c). job may be NULL;
 * else its value, and where that came from, is told, too. PLIM_BAD_INPUT: nobody knows such a key. */
enum plim_status job_explain(const char *key, const struct job *job, struct strbuf *out,
                             struct plim_error *err);
