/* best_model.h - which evaluation was the best so far, and whether the run still improves.
 *
 *     struct best_model best;
 *     best_model_init(&best, &job, &err);
 *     bool better = best_model_observe(&best, step, loss, &scores);    // after each evaluation that was due
 *     if (best_model_stops(&best)) ...                                // training.early_stopping_patience is used up
 *
 * The rules are those of transformers' Trainer and EarlyStoppingCallback: the best value moves with every improvement, and an
 * evaluation counts as one for early stopping when it is better than the best before it by more than
 * training.early_stopping_threshold. The state is part of a checkpoint.
 */
#ifndef PLIM_TRAIN_BEST_MODEL_H
#define PLIM_TRAIN_BEST_MODEL_H

#include "base/node.h"
#include "base/strbuf.h"
#include "job/job.h"
#include "train/scoring.h"

/* Link to the best checkpoint in output.dir, made when a run with training.load_best_model_at_end ends. */
#define BEST_MODEL_LINK "best"

struct best_model {
    const struct job *job;
    bool greater; /* a larger value is better */
    double value; /* the best so far; its step is 0 before the first evaluation */
    int64_t step;
    int64_t bad; /* evaluations in a row that did not improve */
};

/* PLIM_BAD_INPUT: the job's evaluations have no such metric, or there are none while the run goes on. */
enum plim_status best_model_init(struct best_model *best, const struct job *job, struct plim_error *err);

/* True: this is the best so far. A value that is not finite never is. */
bool best_model_observe(struct best_model *best, int64_t step, double loss, const struct scores *scores);
bool best_model_stops(const struct best_model *best);

/* "eval_loss 1.23 after step 40" */
void best_model_text(const struct best_model *best, struct strbuf *out);

/* A JSON object; doubles round-trip. */
void best_model_save(const struct best_model *best, struct strbuf *out);
void best_model_restore(struct best_model *best, const struct node *saved);

/* The link in output.dir points at the best checkpoint from here on; nothing where that has gone. */
enum plim_status best_model_link(const struct best_model *best, struct plim_error *err);
void best_model_unlink(const char *output_dir);

/* The checkpoint that a run's folder stands for: the best one where the run has ended with it, else the newest. False: there
 * is none. */
bool best_model_or_newest(const char *output_dir, char *path, size_t size);

#endif
