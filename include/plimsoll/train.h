/* plimsoll/train.h - trains a job exactly as planned, step by step.
 *
 *     struct plim_job *job;
 *     plim_job_open(context, "small.yaml", &job, &err);
 *     struct plim_trainer *trainer;
 *     plim_trainer_open(job, NULL, &trainer, &err);         // plans, commits every byte, loads or makes the weights
 *     struct plim_step step = {.size = sizeof step};
 *     while (plim_trainer_step(trainer, &step, &err) == PLIM_OK && !step.done)
 *         printf("%lld %.4f\n", (long long)step.step, step.loss);
 *     plim_trainer_close(trainer), plim_job_close(job);
 *
 * The job may be closed once the trainer is open. One call at a time: a second one, from another thread
 * or from an event handler, is PLIM_BAD_INPUT. plim_trainer_stop may be called at any time.
 */
#ifndef PLIMSOLL_TRAIN_H
#define PLIMSOLL_TRAIN_H

#include <plimsoll/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

struct plim_trainer;

enum plim_train_event_kind {
    PLIM_TRAIN_PLANNED = 0,
    PLIM_TRAIN_NOTE = 1,
    PLIM_TRAIN_RESUMED = 2,
    PLIM_TRAIN_STEP = 3,
    PLIM_TRAIN_EVAL = 4,
    PLIM_TRAIN_REPLANNED = 5,
    PLIM_TRAIN_SAVED = 6,
    PLIM_TRAIN_ENDED = 7,
    PLIM_TRAIN_MEMORY = 8,
    PLIM_TRAIN_REFUSED = 9,
    PLIM_TRAIN_EPOCH = 10
};

struct plim_train_event {
    size_t size;
    enum plim_train_event_kind kind;
    int64_t step, steps;
    double loss, lr, grad_norm; /* grad_norm below 0: not computed */
    double epoch;
    int64_t tokens;
    double seconds, tokens_per_second;
    uint64_t used_bytes, budget_bytes;
    const char *text; /* a note, a checkpoint's path, a memory line, an explanation; valid during the call; may be NULL */
};

struct plim_train_options {
    size_t size;
    struct plim_device *device; /* NULL: the job's own */
    int resume;                 /* continue from the newest checkpoint of output.dir */
    int overwrite;              /* replace the checkpoints in output.dir */
    int no_final_checkpoint;
    /* Called during plim_trainer_open and plim_trainer_step. */
    void (*hear)(void *arg, const struct plim_train_event *event);
    void *arg;
};

/* options may be NULL. PLIM_NO_FIT: err names what is missing; the explanation with remedies is an event. */
PLIM_API enum plim_status plim_trainer_open(struct plim_job *job, const struct plim_train_options *options,
                                            struct plim_trainer **out, struct plim_error *err);
/* Closing before the last step saves nothing; see plim_trainer_save. */
PLIM_API void plim_trainer_close(struct plim_trainer *trainer);

struct plim_step {
    size_t size;
    int64_t step, steps; /* done so far, of so many */
    double loss, lr, grad_norm;
    int64_t tokens;
    double seconds, tokens_per_second;
    int skipped;         /* loss or gradients were not finite */
    int evaluated;       /* eval_loss is of this step */
    double eval_loss;
    int done;            /* the run is complete; no step was made */
};
/* One optimizer step, with the evaluation and checkpoint that are due after it. After the last step one more call ends the
 * run: it saves the final checkpoint and sets done. PLIM_INTERRUPTED: plim_trainer_stop was called. */
PLIM_API enum plim_status plim_trainer_step(struct plim_trainer *trainer, struct plim_step *out,
                                            struct plim_error *err);
/* All remaining steps. */
PLIM_API enum plim_status plim_trainer_run(struct plim_trainer *trainer, struct plim_error *err);

/* Changes the budget before the next step. PLIM_NO_FIT: too small; the old plan stays. */
PLIM_API enum plim_status plim_trainer_set_budget(struct plim_trainer *trainer, uint64_t budget,
                                                  struct plim_error *err);
/* Saves a checkpoint now. The folder's path is reported as an event. */
PLIM_API enum plim_status plim_trainer_save(struct plim_trainer *trainer, struct plim_error *err);
/* Mean loss over the validation data. */
PLIM_API enum plim_status plim_trainer_evaluate(struct plim_trainer *trainer, double *loss,
                                                struct plim_error *err);
/* Asks a step under way to end early. From any thread. */
PLIM_API void plim_trainer_stop(struct plim_trainer *trainer);
/* The plan that runs, as JSON (plim_plan_json). */
PLIM_API char *plim_trainer_plan(struct plim_trainer *trainer);

#ifdef __cplusplus
}
#endif
#endif
