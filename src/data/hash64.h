/* hash64.h - a fast 64-bit checksum of bytes: finds damage, keeps no secrets.
 *
 *     uint64_t sum = hash64(chunk, n, 0);
 *
 * The value is part of the token file format (docs/data.md) and never changes. Any change within eight bytes on an
 * eight-byte border changes the sum for certain; larger damage is missed once in 2^64.
 */
#ifndef PLIM_DATA_HASH64_H
#define PLIM_DATA_HASH64_H

#include <stddef.h>
#include <stdint.h>

uint64_t hash64(const void *bytes, size_t n, uint64_t seed);

#endif
