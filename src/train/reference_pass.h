/* reference_pass.h - the reference of dpo and kto: log-probabilities of all samples under the starting weights.
 *
 *     reference_wanted(t, &wanted, &err);           // false: the run's folder has them, or the objective needs none
 *     if (wanted) reference_make(t, &err);          // one pass over the data; the weights must be the starting ones
 *
 * The starting weights are the reference of full fine-tuning and of adapters alike, for a new adapter changes nothing. So no
 * second model is held: the numbers are computed before step 1, inside the arena of training, and kept in the file
 * reference.logps of output.dir (data/reference.h), with a fingerprint of model and data. A resumed run finds them there.
 * Samples whose records say their log-probabilities are not computed. Rank 0 writes the file, which all ranks must be able
 * to read.
 */
#pragma once

#include "train/trainer.h"

/* Looks for the file; if it is there, rows get their numbers from now on. Ranks agree. */
enum plim_status reference_wanted(struct trainer *t, bool *wanted, struct plim_error *err);
enum plim_status reference_make(struct trainer *t, struct plim_error *err);

/* PLIM_BAD_INPUT if one of a batch's first n samples has no reference. */
enum plim_status reference_check(const struct rows *rows, int64_t n, struct plim_error *err);
