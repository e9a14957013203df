/* checksum.h - the checksum of a stream of bytes, fast enough to be taken of everything that is written or read.
 *
 *     struct checksum sum;
 *     checksum_begin(&sum, 0);
 *     checksum_add(&sum, header, header_bytes);
 *     checksum_add(&sum, data, data_bytes);                 // any pieces: only their concatenation counts
 *     uint64_t value = checksum_end(&sum);                  // hash64 (base/hash.h) of all of it
 *
 *     checksum_file("model.safetensors", &value, &bytes, &err);
 *
 * The value is the same on every machine. It always detects a change confined to one aligned group of eight bytes, and
 * misses any other change with probability 2^-64. It is not cryptographic. bench/checksum prints its speed.
 */
#pragma once

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

enum { CHECKSUM_STRIPE = 32 };

struct checksum {
    uint64_t lane[4];
    uint64_t bytes;                      /* so far */
    unsigned char rest[CHECKSUM_STRIPE]; /* the last bytes % CHECKSUM_STRIPE bytes, not yet mixed in */
};

void checksum_begin(struct checksum *sum, uint64_t seed);
void checksum_add(struct checksum *sum, const void *bytes, size_t n);
/* The value so far; more may be added afterwards. */
uint64_t checksum_end(const struct checksum *sum);

/* Checksum of a regular file, read through a small buffer. PLIM_IO: the file cannot be read; PLIM_BAD_INPUT: it is
 * not a regular file. */
enum plim_status checksum_file(const char *path, uint64_t *value, uint64_t *bytes, struct plim_error *err);
