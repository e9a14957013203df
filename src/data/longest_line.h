/* longest_line.h - finds the longest line of small data files.
 *
 *     size_t longest = longest_line_of(dataset_inputs(data), format);    // 0: unknown
 *
 * A loader needs memory for its longest line, and many times that for lists or conversations. Most data have lines of a
 * few hundred bytes; knowing that saves most of the loader's memory. Files of up to LONGEST_READ bytes in total are
 * scanned, which takes some milliseconds. Larger or compressed files are not.
 */
#pragma once

#include "data/dataset.h"

#define LONGEST_READ (INT64_C(64) << 20)

/* Bytes of the longest line with its end, or of the longest CoNLL sentence as a JSON line. 0: unknown,
 * because the files are large, compressed, unreadable, or not lines of text or JSON objects. */
size_t longest_line_of(const struct inputs *inputs, enum data_format format);
