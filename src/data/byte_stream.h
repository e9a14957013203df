/* byte_stream.h - the bytes of a file from front to back, decompressed on the way, tables as JSON lines (sheet.h).
 *
 *     struct byte_stream *s;
 *     byte_stream_open(&file, NULL, &s, &err);
 *     byte_stream_read(s, buf, sizeof buf, &got, &err);      // got < sizeof buf: the end
 *     byte_stream_close(s);
 *
 * gzip (several members too) and zstd (several frames) are read through small buffers. Damaged or cut-off
 * compressed data are PLIM_BAD_INPUT with the path. Offsets count the bytes that are read here.
 */
#ifndef PLIM_DATA_BYTE_STREAM_H
#define PLIM_DATA_BYTE_STREAM_H

#include "base/status.h"
#include "data/inputs.h"
#include "data/sheet.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct byte_stream;

/* Opens a file. Of a table only the wanted fields are read; NULL: all of them. */
enum plim_status byte_stream_open(const struct input_file *file, const struct sheet_want *want,
                                  struct byte_stream **out, struct plim_error *err);
void byte_stream_close(struct byte_stream *s);

/* Fills buf unless the data end before; then *got is less than n. */
enum plim_status byte_stream_read(struct byte_stream *s, void *buf, size_t n, size_t *got,
                                  struct plim_error *err);

/* Forward to `offset`. Plain files jump; compressed ones and tables are read up to there, unless `stopped` says not to:
 * PLIM_INTERRUPTED. Beyond the end is PLIM_BAD_INPUT. Only directly after byte_stream_open. */
enum plim_status byte_stream_skip(struct byte_stream *s, uint64_t offset, bool (*stopped)(void *arg),
                                  void *arg, struct plim_error *err);

/* Memory of its table besides buffers; 0: the file is no table. */
size_t byte_stream_sheet_bytes(const struct byte_stream *s);
/* The most memory a stream of this file takes. */
size_t byte_stream_bytes_most(const struct input_file *file);

#endif
