/* evaluate.h - the mean loss of a model over text, forward only.
 *
 *     struct evaluation e;
 *     evaluate_alone(&job, device, "runs/small/checkpoint-00000100", 0, &e, &err);
 *     // e.loss is the mean over e.tokens tokens, exp(e.loss) the perplexity
 *
 * trainer_evaluate (trainer.h) does the same inside the arena of a training plan.
 */
#ifndef PLIM_TRAIN_EVALUATE_H
#define PLIM_TRAIN_EVALUATE_H

#include "data/loader.h"
#include "device/device.h"
#include "job/job.h"
#include "runtime/feed.h"
#include "runtime/lengths.h"
#include "train/scoring.h"

/* More tokens than this at once make no matrix multiply faster. */
#define EVAL_TOKENS 4096

struct evaluation {
    double loss;
    struct scores scores;
    int64_t tokens, rows;
    int64_t positions, padding; /* computed, and of them without a token */
    int64_t batch;              /* rows of one pass over the longest rows */
    int64_t budget, arena,
        total; /* the plan; total: the arena and what the device's line carries beside it */
    double seconds;
};

/* Passes over rows, by row length: one where every row is padded to data.max_length. Tapes with a loss. */
struct eval_programs {
    int count;
    struct pass_shape shape[PLAN_LENGTHS];
    struct forward forward[PLAN_LENGTHS]; /* the first is empty where a plan of its own has that */
    struct exec *exec[PLAN_LENGTHS];
    struct feed feed[PLAN_LENGTHS];
    struct scoring scoring;
};
void eval_programs_close(struct eval_programs *programs);

/* The rows that one pass takes at most: as many as make EVAL_TOKENS positions, training.eval_batch_size, all there are. */
int64_t eval_rows_most(const struct job *job, int64_t time, int64_t rows);

/* Rows of one window of an evaluation's loader, at most. */
int64_t eval_window(const struct job *job);

/* Opens feeds; with several programs everything is compiled now. The execs are set and started. */
enum plim_status eval_programs_start(struct eval_programs *programs, const struct job *job,
                                     struct plim_error *err);

/* The next out->rows rows of the loader, or as many as there are: loss, tokens, rows, positions and padding of `out`. */
enum plim_status evaluate_rows(struct eval_programs *programs, struct loader *loader, const struct job *job,
                               struct evaluation *out, struct plim_error *err);

/* Weights from the Hugging Face directory `dir`, text from data.validation (data.train when there is none),
 * all inside the job's budget: as many rows at a time as fit. rows 0: all. The job's spec must be that of
 * dir. PLIM_NO_FIT names the missing bytes when not even one row fits. */
enum plim_status evaluate_alone(const struct job *job, struct device *device, const char *dir, int64_t rows,
                                struct evaluation *out, struct plim_error *err);

#endif
