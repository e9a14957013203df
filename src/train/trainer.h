/* trainer.h - trains a job exactly as planned: steps, evaluations and checkpoints over a runtime.
 *
 *     struct trainer *trainer;
 *     trainer_open(&job, device, &options, &trainer, &err);   // plans, commits, loads or makes the weights
 *     trainer_run(trainer, &err);                             // until the last step, a signal, or an error
 *     trainer_close(trainer);
 *
 * State of a trainer and the function behind each transition:
 *
 *     opened --trainer_run--> stepping --(every micro-batch ran)--> update --> stepping
 *                                |  budget due: trainer_replan, between two optimizer steps only
 *                                |  memory short or free again: trainer_adapt; orders: trainer_obey; likewise
 *                                |  save due:   checkpoint_save
 *                                '--(last step | stop asked | error)--> ended
 *
 * Invariants
 *  1. Between two optimizer steps only kept tensors have contents, and gradients whose updates wait for the next step's
 *     forward: whoever reads parameters or moves tensors calls trainer_settle first. A re-plan moves kept tensors and nothing else.
 *  2. An unfinished step leaves no trace: stopping in the middle returns to its first row.
 *  3. The runtime is ready (runtime/runtime.h) from trainer_open to trainer_close; `feed` and the tensors named below are
 *     those of its current plan (trainer_bind).
 *
 * Events are reported to a listener; nothing is printed here.
 */
#pragma once

#include "data/loader.h"
#include "job/preset.h"
#include "runtime/feed.h"
#include "runtime/plan_file.h"
#include "runtime/lengths.h"
#include "runtime/runtime.h"
#include "train/best_model.h"
#include "train/corpus.h"
#include "train/evaluate.h"
#include "train/numerics.h"
#include "train/preferences.h"
#include "train/router.h"
#include "train/run_start.h"
#include "train/run_trace.h"
#include "train/run_watch.h"
#include "train/scaler.h"
#include "train/lr_schedule.h"
#include "watch/explain.h"
#include <stdatomic.h>

enum train_event_kind {
    TRAIN_PLANNED, /* there is a plan; nothing has been computed */
    TRAIN_NOTE,    /* text */
    TRAIN_RESUMED,
    TRAIN_STEP,
    TRAIN_EVAL,
    TRAIN_REPLANNED,
    TRAIN_SAVED,
    TRAIN_ENDED,
    TRAIN_MEMORY,  /* text: the memory line, when its status changes or an action is taken */
    TRAIN_REFUSED, /* why: memory was refused, and the run ends */
    TRAIN_EPOCH,   /* epoch: number of the one that begins, if the job counts them */
};

struct train_event {
    enum train_event_kind kind;
    const struct plan *plan;
    const struct job_length *length; /* of the run */
    const char *text;                /* note, path of a checkpoint, memory line */
    bool warns;                      /* a note that deserves attention */
    const struct explanation *why;
    const char *action; /* TRAIN_MEMORY: the action taken; empty: none */
    /* [ranks] TRAIN_MEMORY: bytes of each rank as it measured them; NULL: single rank. */
    const int64_t *rank_used;
    int ranks;
    int64_t step, steps;
    double loss, lr, grad_norm;            /* grad_norm < 0: not computed (optimizer inside backward) */
    double token_loss;                     /* part of loss from tokens; auxiliary losses are the rest */
    const struct router *router;           /* of experts; NULL: none */
    const struct preferences *preferences; /* of dpo, kto and orpo; NULL: none */
    bool skipped;          /* the loss or a gradient was not finite, so the step was skipped */
    int64_t skipped_steps; /* TRAIN_ENDED: how many were skipped */
    double scale;
    struct scores scores; /* TRAIN_EVAL */
    int64_t tokens;
    int64_t rows;   /* TRAIN_STEP; TRAIN_ENDED: of the run since it was opened. Over all ranks, like tokens */
    int64_t passes; /* micro-batches, likewise */
    /* Passes over the data so far; only whole passes if the rows per pass are unknown. */
    double epoch;
    int64_t positions, padding; /* computed positions, and those of them without a token; likewise */
    double seconds, tokens_per_s;
    struct disk_use disk;      /* TRAIN_STEP: of the disk tier; all zero: there is none */
    int64_t used, budget;      /* bytes of the process as reported by system or driver, and the budget */
    enum memory_status status; /* the worst of all monitored memories */
    enum adapt_level level;    /* how much of the plan the run has given up */
    const struct monitor_state *monitor; /* the newest sample read; NULL: monitoring is off */
    const struct memory_summary *memory; /* of the current plan, by class; NULL: not committed yet */
    struct runtime_moves moves;          /* TRAIN_REPLANNED */
    /* Per tier, as on its ledger; 0 for the host if the device's ledger has both. */
    int64_t planned_peak[TIER_COUNT], ledger_peak[TIER_COUNT];
    int64_t rss_peak;
    int64_t bad_records, dropped_samples; /* TRAIN_ENDED: skipped data */
};

struct train_listener {
    void (*hear)(void *arg, const struct train_event *event);
    void *arg;
};

struct budget_change {
    int64_t step; /* the budget changes before this step (counted from 1) */
    int64_t bytes;
};

struct train_options {
    bool resume, overwrite;
    const struct string_list *accepted;  /* keys that may differ from the checkpoint's (run_start.h) */
    const struct budget_change *changes; /* ascending steps */
    int nchanges;
    struct train_listener listener;
    atomic_int *stop;     /* set by a signal handler; NULL: never */
    atomic_int *save_now; /* likewise: save a checkpoint after the current step; the trainer clears it */
    bool profile;         /* time every op */
    bool numerics;        /* report the first tensor that overflows or underflows */
    const char *trace;    /* a file for a trace of one step, of each rank (snapshot_rank_path); NULL: none */
    int64_t trace_step;   /* trace this step, or the first executed after it */
    /* The plan to run, borrowed until trainer_open returns; NULL: the fastest. */
    const struct plan_file *kept;
    bool save_at_end; /* also when stopped; false and no training.save_every: output.dir is not touched */
};

struct trainer {
    const struct job *job;
    struct job_length length;
    struct train_options options;
    struct runtime runtime; /* its request holds the current budget */
    struct corpus corpus;
    struct reference *reference; /* of dpo and kto (reference_pass.h); NULL: none */
    struct run_start start;      /* holds the output folder until the end */
    struct loader *loader;
    struct loader *evaluator; /* of the validation data; NULL: none */
    bool told_bad;            /* the first bad record was reported */
    bool data_failed;         /* reading a step's rows failed; nothing was computed */
    struct lr_schedule schedule;
    struct best_model best;
    struct scaler scaler;
    struct profile thresholds;
    int64_t step;        /* optimizer steps done */
    int64_t updates;     /* steps that were not skipped */
    int64_t stuck;       /* consecutive steps skipped without a smaller loss scale (trainer_skip.c) */
    int64_t skipped_row; /* consecutive steps skipped */
    bool diverged;       /* too many were skipped: the run ends */
    bool eval_due;       /* an evaluation after `step` was interrupted */
    bool interrupted;    /* stopped before the last step */
    bool saved;          /* a checkpoint holds the last step */
    int64_t epoch;       /* told last; 0: none */
    int64_t saved_step;  /* of the checkpoint that holds the present state, when it is `step`; 0: none */
    int next_change;
    double op_seconds[OP_KIND_COUNT];
    struct numerics numerics;
    /* Tensors that the host accesses, by role; looked up after each re-plan. */
    int scalars, loss, clip, preference;
    int update_scalars; /* of updates inside forward; -1: the plan has none */
    bool pending;       /* the last step's updates wait for the next forward */
    struct clip_watch {
        bool open;    /* the planner chooses whether there are updates before the norm */
        int bound;    /* steps that were clipped more than others */
        int64_t free; /* consecutive steps that were not */
        int patience; /* of those, and of these, until the run re-plans */
        int64_t rest;
    } clipping;
    float step_scalars[SCALAR_COUNT]; /* of the current step */
    bool drops;                       /* the tape has dropout */
    struct router router;
    struct preferences preferences; /* of the last step */
    struct lengths lengths;         /* programs of the current plan, by row length */
    struct feed feed[PLAN_LENGTHS]; /* one per program */
    struct cutting cutting;         /* divides a step into passes */
    struct scores scores;           /* of the last evaluation */
    struct eval_programs eval;      /* kept for all evaluations if rows have several lengths */
    int64_t step_passes;            /* micro-batches with rows in the current step, over all ranks */
    int64_t rows_done, positions, padding, passes; /* since the trainer was opened */
    struct run_watch watch;
    struct run_trace trace;
    enum refusal_stage stage; /* current stage, in case memory is refused */
    int64_t wanted;           /* STAGE_REPLAN: the budget */
};

enum plim_status trainer_open(const struct job *job, struct device *device,
                              const struct train_options *options, struct trainer **out,
                              struct plim_error *err);
/* All remaining steps: trainer_advance while trainer_more, then trainer_end. */
enum plim_status trainer_run(struct trainer *trainer, struct plim_error *err);
/* True if a step is left and nobody asked to stop. */
bool trainer_more(const struct trainer *trainer);
/* Makes one optimizer step, and the evaluation and checkpoint that are due after it. */
enum plim_status trainer_advance(struct trainer *trainer, struct plim_error *err);
/* Ends a run whose last trainer_advance returned `status`: saves, reports the end, explains refused memory. Returns that
 * status, or PLIM_INTERRUPTED if it was stopped. */
enum plim_status trainer_end(struct trainer *trainer, enum plim_status status, struct plim_error *err);
void trainer_close(struct trainer *trainer);

/* Finds the tensors that the host accesses in the current plan, and makes its programs. Call it after a plan
 * or a re-plan; undo it before the next. */
enum plim_status trainer_bind(struct trainer *trainer, struct plim_error *err);
void trainer_unbind(struct trainer *trainer);

/* True if checkpoints are enabled: at the end, when stopped, or every few steps. */
bool trainer_may_save(const struct trainer *trainer);

/* Runs one optimizer step; *finished is false if it was stopped in the middle. */
enum plim_status trainer_step(struct trainer *trainer, struct train_event *event, bool *finished,
                              struct plim_error *err);

/* Reports a skipped step at once. PLIM_BAD_INPUT: too many were skipped in a row, and the run ends. */
enum plim_status trainer_skipped(struct trainer *trainer, const struct train_event *event,
                                 struct plim_error *err);
/* PLIM_BAD_INPUT: no step of the whole run was taken. */
enum plim_status trainer_check_taken(const struct trainer *trainer, struct plim_error *err);

/* Opens and starts the programs of an evaluation. PLIM_NO_FIT: not even one row fits the arena. */
enum plim_status trainer_open_eval(struct trainer *trainer, struct eval_programs *out,
                                   struct plim_error *err);

/* Mean loss over the validation files, computed in the arena of the training plan; trainer->scores has the
 * other metrics. */
enum plim_status trainer_evaluate(struct trainer *trainer, double *loss, int64_t *tokens,
                                  struct plim_error *err);

/* Changes the budget between two steps: runtime_replan, and a report to the listener. The new plan replaces earlier
 * concessions to memory pressure. */
enum plim_status trainer_replan(struct trainer *trainer, int64_t budget, struct plim_error *err);
/* Re-plans for any reason. */
enum plim_status trainer_replan_as(struct trainer *trainer, const struct replan *wish,
                                   struct plim_error *err);

/* Saves a checkpoint if enabled, and reports it. */
enum plim_status trainer_save(struct trainer *trainer, struct plim_error *err);

/* --- which evaluation was the best (trainer_best.c) --- */

/* Call it before the first step. PLIM_BAD_INPUT: the job compares evaluations but has none, or saves none of
 * them. */
enum plim_status trainer_best_open(struct trainer *trainer, struct plim_error *err);
/* Call it after a regular evaluation. Returns true if it is the best so far and a checkpoint should be saved. */
bool trainer_best_hear(struct trainer *trainer, double loss);
/* At the end of the run: links the best checkpoint and reports it. */
enum plim_status trainer_best_end(struct trainer *trainer, struct plim_error *err);

/* --- between two optimizer steps (trainer_watch.c, trainer_orders.c) --- */

/* Starts monitor and control socket; if they fail, the run continues with a note. */
void trainer_watch_open(struct trainer *trainer);
void trainer_watch_close(struct trainer *trainer);
/* Updates monitor and socket, and reports a changed status. event NULL: no step was made. */
void trainer_note_step(struct trainer *trainer, const struct train_event *event);
/* Reads the state of the memory that this rank's plan can relieve. Returns false when monitoring is off. */
bool trainer_look(struct trainer *trainer, struct adapt_look *out);
/* Frees memory when it is short, and takes it back when it is not. An error ends the run. */
enum plim_status trainer_adapt(struct trainer *trainer, struct plim_error *err);
/* After PLIM_NO_FIT or PLIM_NO_MEMORY: reports the cause and remedies. There is no runtime afterwards. */
void trainer_explain(struct trainer *trainer, const struct plim_error *err);
/* Executes the orders received so far. */
enum plim_status trainer_obey(struct trainer *trainer, struct plim_error *err);

/* --- a step that is measured (trainer_trace.c); see run_trace.h --- */

/* True if the next step is to be measured: by order, or because trace_step has come. */
void trainer_trace_order(struct trainer *trainer, const struct run_order *order);
void trainer_trace_due(struct trainer *trainer);
/* Wraps trainer_step: measures the step if wanted, and writes the result. Failures are reported and end nothing. */
void trainer_trace_begin(struct trainer *trainer);
void trainer_trace_end(struct trainer *trainer, const struct train_event *event);
/* Discards the measurement of a step that did not finish or never ran. */
void trainer_trace_drop(struct trainer *trainer);
/* Run one micro-batch; run the update. */
enum plim_status trainer_loop(struct trainer *trainer, int program, int64_t micro, struct plim_error *err);
enum plim_status trainer_update(struct trainer *trainer, struct plim_error *err);

/* --- updates inside the next step's forward (trainer_pending.c) --- */

/* Call it before a window's first pass, and when a step's update is due. Without such updates nothing happens. */
enum plim_status trainer_begin_pending(struct trainer *trainer, struct plim_error *err);
enum plim_status trainer_leave_pending(struct trainer *trainer, struct plim_error *err);
/* Makes the updates that wait for the next step's forward, if any: parameters and state are then those of the last step. */
enum plim_status trainer_settle(struct trainer *trainer, struct plim_error *err);

/* --- updates before the norm, by how often clipping binds (trainer_clip.c) --- */

enum { CLIP_PATIENCE = 8, CLIP_REST = 64 };
/* When the first plan is made. */
void trainer_clip_open(struct trainer *trainer);
/* After a step that was not skipped. */
void trainer_clip_note(struct trainer *trainer, const float clip[CLIP_COUNT]);
/* Between two steps: re-plans if it is time. */
enum plim_status trainer_clip_mind(struct trainer *trainer, struct plim_error *err);

/* False inside another program, whose memory is not the run's. */
bool trainer_owns_process(const struct trainer *trainer);
/* Bytes of the device as its driver tells them, of the process, or of this run inside another program. */
int64_t trainer_used(const struct trainer *trainer);

/* Reports an event to the listener; fills in plan, budget and the system's memory figures. */
void trainer_tell(struct trainer *trainer, struct train_event *event);
