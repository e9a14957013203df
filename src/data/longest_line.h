/* longest_line.h - how long the lines of data files are, where reading all of them is quick.
 *
 *     size_t longest = longest_line_of(dataset_inputs(data), format);    // 0: unknown
 *
 * A loader has memory for its longest line and many times that while it reads lists or conversations. Most data have lines of
 * a few hundred bytes, and knowing that saves most of the loader's memory. Files of up to LONGEST_READ bytes in all are read,
 * which takes some milliseconds; larger or compressed ones are not.
 */
#ifndef PLIM_DATA_LONGEST_LINE_H
#define PLIM_DATA_LONGEST_LINE_H

#include "data/dataset.h"

#define LONGEST_READ (INT64_C(64) << 20)

/* Bytes of the longest line, its end included, or of the longest sentence of CoNLL as a JSON line; 0: not known, because files are large, compressed, cannot be read, or are no
 * lines of text or JSON objects. */
size_t longest_line_of(const struct inputs *inputs, enum data_format format);

#endif
