/* byte_stream.h - a file's bytes in order, decompressed; tables are converted to JSON lines (sheet.h).
 *
 *     struct byte_stream *s;
 *     byte_stream_open(&file, NULL, &s, &err);
 *     byte_stream_read(s, buf, sizeof buf, &got, &err);      // got < sizeof buf: the end
 *     byte_stream_close(s);
 *
 * gzip (also with several members) and zstd (several frames) are read through small buffers. Damaged or truncated
 * compressed data are PLIM_BAD_INPUT with the path. Offsets count decompressed bytes.
 */
#pragma once

#include "base/status.h"
#include "data/inputs.h"
#include "data/sheet.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct byte_stream;

/* Opens a file. Only the wanted fields of a table are read; NULL: all fields. */
enum plim_status byte_stream_open(const struct input_file *file, const struct sheet_want *want,
                                  struct byte_stream **out, struct plim_error *err);
void byte_stream_close(struct byte_stream *s);

/* Fills buf; *got is less than n only at the end of the data. */
enum plim_status byte_stream_read(struct byte_stream *s, void *buf, size_t n, size_t *got,
                                  struct plim_error *err);

/* Skips forward to `offset`; call it directly after byte_stream_open. Plain files seek; compressed files and
 * tables are read up to there, unless `stopped` returns true: PLIM_INTERRUPTED. An offset beyond the end is
 * PLIM_BAD_INPUT. */
enum plim_status byte_stream_skip(struct byte_stream *s, uint64_t offset, bool (*stopped)(void *arg),
                                  void *arg, struct plim_error *err);

/* Memory of its table besides buffers; 0: the file is not a table. */
size_t byte_stream_sheet_bytes(const struct byte_stream *s);
/* Maximum memory of a stream of this file. */
size_t byte_stream_bytes_most(const struct input_file *file);
