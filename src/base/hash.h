/* hash.h - checksums and hashes that are part of our formats: they find damage and tell names apart, and keep no secrets.
 *
 *     uint64_t sum = hash64(chunk, n, 0);
 *     uint64_t stream = hash_text("model.norm.weight");
 *
 * hash64 is part of the token file format (docs/data.md), hash_text decides which random numbers a tensor starts from:
 * neither ever changes. Any change within eight bytes on an eight-byte border changes hash64 for certain; larger damage
 * is missed once in 2^64.
 */
#ifndef PLIM_BASE_HASH_H
#define PLIM_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t hash64(const void *bytes, size_t n, uint64_t seed);

/* FNV-1a of a text. */
static inline uint64_t hash_text(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

#endif
