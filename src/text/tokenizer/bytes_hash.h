/* bytes_hash.h - a hash of short byte strings, for tables whose keys are tokens and words.
 *
 * Most words are shorter than 16 bytes; two overlapping loads read all of such a word. No byte outside bytes[0..len) is
 * read.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t bytes_hash_mix(uint64_t x)
{
    __uint128_t product = (__uint128_t)x * 0x9e3779b97f4a7c15u;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t bytes_hash_load(const char *at)
{
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

/* The bytes of a string of at most 8; injective for a given length. */
static inline uint64_t bytes_hash_short(const char *bytes, size_t len)
{
    if (len >= 4) {
        uint32_t low, high;
        memcpy(&low, bytes, 4), memcpy(&high, bytes + len - 4, 4);
        return (uint64_t)high << 32 | low;
    }
    if (len == 0) return 0;
    return (uint64_t)(unsigned char)bytes[0] | (uint64_t)(unsigned char)bytes[len / 2] << 8 |
           (uint64_t)(unsigned char)bytes[len - 1] << 16;
}

static inline uint64_t bytes_hash(const char *bytes, size_t len, uint64_t seed)
{
    seed ^= (uint64_t)len * 0xd6e8feb86659fd93u;
    if (len <= 8) return bytes_hash_mix(seed ^ bytes_hash_short(bytes, len));
    for (size_t i = 0; i + 8 < len; i += 8) seed = bytes_hash_mix(seed ^ bytes_hash_load(bytes + i));
    return bytes_hash_mix(seed ^ bytes_hash_load(bytes + len - 8));
}
