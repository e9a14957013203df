/* epoch.h - how much one pass over the training data is: rows, tokens, and positions that are computed for them.
 *
 *     struct job_epoch epoch;
 *     epoch_count(&corpus, &epoch, &err);                 // reads all of it
 *     job.training.steps = epoch_steps(&job, &epoch);     // training.epochs as steps
 *     epoch_estimate(&corpus, &epoch, &err);              // reads a little: for a plan
 */
#ifndef PLIM_TRAIN_EPOCH_H
#define PLIM_TRAIN_EPOCH_H

#include "train/corpus.h"

/* Errors are those of the data. */
enum plim_status epoch_count(const struct corpus *corpus, struct job_epoch *out, struct plim_error *err);

/* Rows that are known without reading any, each as long as it may be: data read by index, not packed. Rows 0: others. */
void epoch_known(const struct corpus *corpus, struct job_epoch *out);

/* Rows 0: nothing can be said. Errors are those of the data that were looked at. */
enum plim_status epoch_estimate(const struct corpus *corpus, struct job_epoch *out, struct plim_error *err);

/* Optimizer steps of training.epochs, at least one: the last step of an epoch has the rows that are left, so each epoch has
 * as many steps. Packed rows are as many in any order only about: then an epoch may be a step longer or shorter. */
int64_t epoch_steps(const struct job *job, const struct job_epoch *epoch);

#endif
