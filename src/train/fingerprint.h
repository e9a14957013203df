/* fingerprint.h - a hash of data files, so that a run does not silently continue with other data.
 *
 *     uint64_t number;
 *     fingerprint_inputs(dataset_inputs(data), &number, &err);
 *
 * Up to FINGERPRINT_WHOLE bytes in total, every byte counts. Beyond that, the hash covers the size of each file, its first
 * and last block, and evenly spaced blocks, about FINGERPRINT_BLOCKS in total; an edit between them that keeps the size is
 * not detected. Names and dates do not count: data may move.
 */
#pragma once

#include "base/status.h"
#include "data/inputs.h"

#define FINGERPRINT_WHOLE  (INT64_C(32) << 20)
#define FINGERPRINT_BLOCK  (64 << 10)
#define FINGERPRINT_BLOCKS 512

enum plim_status fingerprint_inputs(const struct inputs *in, uint64_t *out, struct plim_error *err);
