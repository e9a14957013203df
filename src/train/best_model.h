/* best_model.h - tracks the best evaluation so far, and whether the run still improves.
 *
 *     struct best_model best;
 *     best_model_init(&best, &job, &err);
 *     bool better = best_model_observe(&best, step, loss, &scores);    // after each evaluation that was due
 *     if (best_model_stops(&best)) ...                                // training.early_stopping_patience is used up
 *
 * The rules are those of transformers' Trainer and EarlyStoppingCallback: every improvement updates the best value. For
 * early stopping an evaluation counts as an improvement if it beats the previous best by more than
 * training.early_stopping_threshold. The state is part of a checkpoint.
 */
#pragma once

#include "base/node.h"
#include "base/strbuf.h"
#include "job/job.h"
#include "train/scoring.h"

/* Link to the best checkpoint in output.dir, made when a run with training.load_best_model_at_end ends. */
#define BEST_MODEL_LINK "best"

struct best_model {
    const struct job *job;
    bool greater; /* a larger value is better */
    double value; /* the best so far; step is 0 before the first evaluation */
    int64_t step;
    int64_t bad; /* consecutive evaluations without improvement */
};

/* PLIM_BAD_INPUT: the job's evaluations do not have that metric, or the run has no evaluations. */
enum plim_status best_model_init(struct best_model *best, const struct job *job, struct plim_error *err);

/* Returns true if this is the best so far. A value that is not finite never is. */
bool best_model_observe(struct best_model *best, int64_t step, double loss, const struct scores *scores);
bool best_model_stops(const struct best_model *best);

/* "eval_loss 1.23 after step 40" */
void best_model_text(const struct best_model *best, struct strbuf *out);

/* A JSON object; doubles round-trip. */
void best_model_save(const struct best_model *best, struct strbuf *out);
void best_model_restore(struct best_model *best, const struct node *saved);

/* Makes the link in output.dir point to the best checkpoint; does nothing if that was removed. */
enum plim_status best_model_link(const struct best_model *best, struct plim_error *err);
void best_model_unlink(const char *output_dir);

/* The checkpoint to use for a run's folder: the best one if the run ended with it, else the newest. Returns
 * false if there is none. */
bool best_model_or_newest(const char *output_dir, char *path, size_t size);
