/* epoch.h - how much one pass over the training data is: rows, tokens, and positions that are computed for them.
 *
 *     struct job_epoch epoch;
 *     epoch_count(&corpus, &epoch, &err);                 // reads all of it
 *     struct job_length length = job_length(&job, &epoch); // training.epochs as steps
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

#endif
