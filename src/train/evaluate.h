/* evaluate.h - the mean loss of a model over text, forward only.
 *
 *     struct evaluation e;
 *     evaluate_alone(&job, device, &(struct eval_weights){"runs/small/checkpoint-00000100"}, 0, &e, &err);
 *     // e.loss is the mean over e.tokens tokens, exp(e.loss) the perplexity
 *
 * trainer_evaluate (trainer.h) does the same inside the arena of a training plan.
 */
#pragma once

#include "data/loader.h"
#include "device/device.h"
#include "job/job.h"
#include "runtime/feed.h"
#include "runtime/lengths.h"
#include "train/scoring.h"

/* Maximum tokens per pass; more do not make matrix multiplication faster. */
#define EVAL_TOKENS 4096

struct evaluation {
    double loss;
    struct scores scores;
    int64_t tokens, rows;
    int64_t positions, padding; /* computed, and those without a token */
    int64_t batch;              /* rows per pass over the longest rows */
    int64_t budget, arena;      /* of the plan */
    int64_t total;              /* arena plus overhead that counts against the device's budget */
    double seconds;
};

/* Passes over rows, by row length; only one if every row is padded to data.max_length. Tapes with a loss. */
struct eval_programs {
    int count;
    struct pass_shape shape[PLAN_LENGTHS];
    struct forward forward[PLAN_LENGTHS]; /* the first is empty if a plan of its own has it */
    struct exec *exec[PLAN_LENGTHS];
    struct feed feed[PLAN_LENGTHS];
    struct scoring scoring;
};
void eval_programs_close(struct eval_programs *programs);

/* Maximum rows per pass: limited by EVAL_TOKENS positions, training.eval_batch_size and the available
 * rows. */
int64_t eval_rows_most(const struct job *job, int64_t time, int64_t rows);

/* Maximum rows of one window of an evaluation's loader. */
int64_t eval_window(const struct job *job);

/* Opens feeds; with several programs, compiles everything now. The execs must be set and started. */
enum plim_status eval_programs_start(struct eval_programs *programs, const struct job *job,
                                     struct plim_error *err);

/* Evaluates the next out->rows rows of the loader, or as many as there are. Fills loss, tokens, rows,
 * positions and padding. */
enum plim_status evaluate_rows(struct eval_programs *programs, struct loader *loader, const struct job *job,
                               struct evaluation *out, struct plim_error *err);

/* Evaluates the weights of the Hugging Face directory `dir` on data.validation (or data.train if there is
 * none), within the job's budget: as many rows at a time as fit. rows 0: all. The job's spec must be that of
 * dir. PLIM_NO_FIT names the missing bytes if not even one row fits. */
struct eval_weights {
    const char *dir, *adapter; /* adapter: PEFT folder that is merged into them; NULL: none */
};
enum plim_status evaluate_alone(const struct job *job, struct device *device,
                                const struct eval_weights *weights, int64_t rows, struct evaluation *out,
                                struct plim_error *err);
