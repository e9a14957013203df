/* fingerprint.h - a number for what data files hold, so that a run does not go on with others unnoticed.
 *
 *     uint64_t number;
 *     fingerprint_inputs(dataset_inputs(data), &number, &err);
 *
 * Every byte counts of data up to FINGERPRINT_WHOLE bytes in all. Of more than that, the size of each file, its first and
 * its last block, and blocks at an even distance, about FINGERPRINT_BLOCKS of them in all: an edit between them that keeps
 * the size is not seen. Names and dates do not count: data may move.
 */
#ifndef PLIM_TRAIN_FINGERPRINT_H
#define PLIM_TRAIN_FINGERPRINT_H

#include "base/status.h"
#include "data/inputs.h"

#define FINGERPRINT_WHOLE  (INT64_C(32) << 20)
#define FINGERPRINT_BLOCK  (64 << 10)
#define FINGERPRINT_BLOCKS 512

enum plim_status fingerprint_inputs(const struct inputs *in, uint64_t *out, struct plim_error *err);

#endif
