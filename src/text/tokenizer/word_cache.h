/* word_cache.h - a per-thread cache of the ids of words.
 *
 * A table of 64-byte entries, two per hash. A new word takes the first place and moves the previous one to the second.
 * Words and id lists that do not fit an entry are not cached, so the size never changes.
 *
 *     struct word_cache *cache = word_cache_open(bytes);
 *     uint64_t hash = word_cache_hash(word, len);
 *     const struct word_entry *hit = word_cache_find(cache, hash, word, len);       // NULL: not there
 *     word_cache_put(cache, hash, word, len, ids, count);
 */
#pragma once

#include "text/tokenizer/bytes_hash.h"
#include <stdbool.h>
#include <stdlib.h>

enum {
    WORD_KEY_MOST = 26,
    WORD_IDS_MOST = 8,
};

struct word_entry {
    int32_t id[WORD_IDS_MOST];
    uint32_t tag; /* high half of the hash */
    uint8_t len, count;
    char key[WORD_KEY_MOST];
};

struct word_cache {
    _Alignas(64) uint64_t mask; /* number of pairs - 1 */
    struct word_entry entry[];
};

/* Bytes of a cache of at most `bytes`, but at least one pair. */
static inline size_t word_cache_bytes(size_t bytes)
{
    size_t pairs = 1;
    while (sizeof(struct word_cache) + 4 * pairs * sizeof(struct word_entry) <= bytes) pairs *= 2;
    return sizeof(struct word_cache) + 2 * pairs * sizeof(struct word_entry);
}

static inline struct word_cache *word_cache_open(size_t bytes)
{
    size_t size = word_cache_bytes(bytes);
    struct word_cache *cache = aligned_alloc(64, size);
    if (!cache) return NULL;
    memset(cache, 0, size);
    cache->mask = (size - sizeof *cache) / sizeof(struct word_entry) / 2 - 1;
    return cache;
}

static inline uint64_t word_cache_hash(const char *word, size_t len) { return bytes_hash(word, len, 0); }

static inline struct word_entry *word_cache_pair(struct word_cache *cache, uint64_t hash)
{
    return &cache->entry[2 * (hash & cache->mask)];
}

/* Both have length len; they are read in overlapping pieces. */
static inline bool word_cache_same(const char *a, const char *b, size_t len)
{
    if (len <= 8) return bytes_hash_short(a, len) == bytes_hash_short(b, len);
    if (len <= 16)
        return ((bytes_hash_load(a) ^ bytes_hash_load(b)) |
                (bytes_hash_load(a + len - 8) ^ bytes_hash_load(b + len - 8))) == 0;
    return memcmp(a, b, len) == 0;
}

static inline const struct word_entry *word_cache_find(struct word_cache *cache, uint64_t hash,
                                                       const char *word, size_t len)
{
    const struct word_entry *pair = word_cache_pair(cache, hash);
    for (int way = 0; way < 2; way++, pair++)
        if (pair->tag == (uint32_t)(hash >> 32) && pair->len == len && word_cache_same(pair->key, word, len))
            return pair;
    return NULL;
}

static inline void word_cache_put(struct word_cache *cache, uint64_t hash, const char *word, size_t len,
                                  const int32_t *ids, size_t count)
{
    if (len > WORD_KEY_MOST || count > WORD_IDS_MOST) return;
    struct word_entry *entry = word_cache_pair(cache, hash);
    entry[1] = entry[0];
    if (count) memcpy(entry->id, ids, count * sizeof *ids);
    memcpy(entry->key, word, len);
    entry->tag = (uint32_t)(hash >> 32), entry->len = (uint8_t)len, entry->count = (uint8_t)count;
}
