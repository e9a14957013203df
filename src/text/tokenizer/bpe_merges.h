/* bpe_merges.h - the BPE merge table, and the algorithm that applies it.
 *
 *     struct bpe_merges *m = bpe_merges_new(count);
 *     bpe_merges_add(m, left, right, rank, joined);              // a later rank for the same pair replaces
 *     size_t left_over = bpe_merges_run(m, &work, symbols, n);   // in place
 *
 * The lowest rank joins first; among equal ranks the leftmost.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BPE_NO_MERGE UINT64_MAX

struct bpe_merges;

/* Room for `count` pairs; NULL when memory is short. */
struct bpe_merges *bpe_merges_new(size_t count);
void bpe_merges_free(struct bpe_merges *m);
void bpe_merges_add(struct bpe_merges *m, int32_t left, int32_t right, uint32_t rank, int32_t joined);
/* rank << 32 | joined, or BPE_NO_MERGE. */
uint64_t bpe_merges_find(const struct bpe_merges *m, int32_t left, int32_t right);
size_t bpe_merges_bytes(const struct bpe_merges *m);
size_t bpe_merges_bytes_for(size_t count); /* of a table not yet made */

/* Says that something may join across a boundary between these two first symbols. Long words are cut at all
 * other boundaries before joining. */
void bpe_merges_allow(struct bpe_merges *m, int32_t left, int32_t right);
void bpe_merges_allow_all(struct bpe_merges *m);

/* Scratch for joining long words; {0} is empty. */
struct bpe_work {
    struct bpe_block *block;
    uint64_t *tree;
    size_t room; /* symbols */
    size_t most; /* maximum memory, set by the owner; 0: no limit */
    bool full;   /* `most` was exceeded */
};
void bpe_work_release(struct bpe_work *work);
size_t bpe_work_bytes(size_t symbols); /* for a word of that many */

/* Joins symbols[0..count) in place. Returns the new count; SIZE_MAX when memory is short or work->most is
 * exceeded. */
size_t bpe_merges_run(const struct bpe_merges *m, struct bpe_work *work, int32_t *symbols, size_t count);
