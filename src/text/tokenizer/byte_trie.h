/* byte_trie.h - maps byte strings to ids, one byte at a time.
 *
 *     struct byte_trie trie = {0};
 *     byte_trie_build(&trie, vocab, "tokenizer.json", quota, &err);
 *     uint64_t at = byte_trie_root(&trie);
 *     while (more && byte_trie_step(&trie, &at, byte))
 *         if (byte_trie_value(at) >= 0) longest = ...;        // the id of the token read so far
 *     byte_trie_release(&trie);
 *
 * A double array of 8-byte units: the children of a unit are at its offset xor their byte, and store that byte. Offsets
 * are unique, so no other check is needed.
 */
#pragma once

#include "text/tokenizer/part.h"

/* A unit: value + 1 in the high half (0: none); below it the offset, bit 8 "in use", and the byte. */
struct byte_trie {
    uint64_t *unit;
    size_t count; /* a multiple of 256 */
};

/* Builds the trie from all tokens of the vocabulary except the empty one; among equal texts it takes the one
 * that token_vocab_id finds. PLIM_UNSUPPORTED: more than 2^23 units. The quota counts the trie and the
 * scratch memory of building. On failure the trie is empty. */
enum plim_status byte_trie_build(struct byte_trie *trie, const struct token_vocab *vocab, const char *name,
                                 struct quota *quota, struct plim_error *err);
void byte_trie_release(struct byte_trie *trie);

static inline uint64_t byte_trie_root(const struct byte_trie *trie) { return trie->unit[0]; }

static inline bool byte_trie_step(const struct byte_trie *trie, uint64_t *at, unsigned char byte)
{
    uint64_t next = trie->unit[(uint32_t)*at >> 9 ^ byte];
    *at = next;
    return (next & 0x1ff) == (0x100u | byte);
}

static inline int32_t byte_trie_value(uint64_t at) { return (int32_t)(at >> 32) - 1; }
