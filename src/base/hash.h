/* hash.h - hashes that are part of our file formats. They detect damage and distinguish names; they are not cryptographic.
 *
 *     uint64_t sum = hash64(chunk, n, 0);
 *     uint64_t stream = hash_text("model.norm.weight");
 *
 * hash64 is part of the token file format (docs/data.md), and hash_text chooses the random numbers a tensor starts from,
 * so neither ever changes. hash64 always detects a change confined to one aligned group of eight bytes, and misses larger
 * damage with probability 2^-64.
 */
#pragma once

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
