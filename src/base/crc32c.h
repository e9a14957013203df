/* crc32c.h - the Castagnoli CRC used by record files (TFRecord, LevelDB, iSCSI).
 *
 *     uint32_t sum = crc32c(data, n);                    // crc32c("123456789", 9) is 0xe3069283
 *
 * It works four bits at a time, which suits records of a few hundred bytes. For checkpoints use base/checksum.h.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(const void *bytes, size_t n);
