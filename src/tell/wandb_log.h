/* wandb_log.h - the framing of a run-ID.wandb file: LevelDB's log format after a header.
 *
 *     wandb_log_header(&out);
 *     wandb_log_put(&out, offset, record, n);            // offset: where in the file these bytes will begin
 *
 * The file consists of blocks of 32 KiB. A record that crosses a boundary is written in parts, each with a header of 7
 * bytes: CRC-32 (zlib's) of type and data, length, type (whole, first, middle, last). If fewer than 7 bytes are left before
 * a boundary, they are zero.
 */
#pragma once

#include "base/strbuf.h"
#include <stdint.h>

enum { WANDB_LOG_BLOCK = 32768, WANDB_LOG_HEADER = 7 };

void wandb_log_header(struct strbuf *out);
void wandb_log_put(struct strbuf *out, uint64_t offset, const void *bytes, size_t n);
