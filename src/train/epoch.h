/* epoch.h - the size of one pass over the training data: rows, tokens, and computed positions.
 *
 *     struct job_epoch epoch;
 *     epoch_count(&corpus, &epoch, &err);                 // reads all of it
 *     struct job_length length = job_length(&job, &epoch); // training.epochs as steps
 *     epoch_estimate(&corpus, &epoch, &err);              // reads a sample: for a plan
 */
#pragma once

#include "train/corpus.h"

/* Errors are those of the data. */
enum plim_status epoch_count(const struct corpus *corpus, struct job_epoch *out, struct plim_error *err);

/* Rows known without reading: data read by index, not packed; each row counts with its maximum length. Rows
 * 0: unknown. */
void epoch_known(const struct corpus *corpus, struct job_epoch *out);

/* Rows 0: no estimate. Errors are those of the data that were read. */
enum plim_status epoch_estimate(const struct corpus *corpus, struct job_epoch *out, struct plim_error *err);
