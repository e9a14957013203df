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
#include "exec/exec.h"
#include "job/job.h"

/* More tokens than this at once make no matrix multiply faster. */
#define EVAL_TOKENS 4096

struct evaluation {
    double loss;
    int64_t tokens, rows;
    int64_t batch; /* rows of one pass */
    int64_t budget, arena,
        total; /* the plan; total: the arena and what the device's line carries beside it */
    double seconds;
};

/* The next `rows` rows of the loader, or as many as there are, `batch` at a time, through a tape with a loss whose
 * layout keeps the loss from pass to pass. sum becomes the sum of token losses and the number of tokens; *rows
 * what there was. */
enum plim_status evaluate_rows(struct exec *exec, struct loader *loader, int64_t *rows, int64_t batch,
                               double sum[2], struct plim_error *err);

/* Weights from the Hugging Face directory `dir`, text from data.validation (data.train when there is none),
 * all inside the job's budget: as many rows at a time as fit. rows 0: all. The job's spec must be that of
 * dir. PLIM_NO_FIT with the bytes missing when not even one row fits. */
enum plim_status evaluate_alone(struct job *job, struct device *device, const char *dir, int64_t rows,
                                struct evaluation *out, struct plim_error *err);

#endif
