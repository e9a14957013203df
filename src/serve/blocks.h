/* blocks.h - ownership of the blocks of the key-value pool. Numbers only: nothing here touches a device.
 *
 *     struct blocks pool;
 *     blocks_init(&pool, 1024, &err);
 *     int32_t a = blocks_take(&pool);              // -1: none is left
 *     blocks_name(&pool, a, &name);                // it is full: others may find it
 *     int32_t b = blocks_find(&pool, &name);       // a, with one owner more
 *     blocks_drop(&pool, a), blocks_drop(&pool, b);
 *     blocks_release(&pool);
 *
 * A block whose last owner has gone keeps its name and content, so that a request with the same text can find it.
 * When free blocks run out, the least recently owned cached block is reused first.
 *
 * State of a block and the function behind each transition:
 *
 *     free --blocks_take--> owned --blocks_drop, without a name--> free
 *      ^                     ^  |
 *      |          blocks_find|  |blocks_drop, with a name
 *      '----blocks_take----- cached
 *
 * Invariants (blocks_check)
 *  1. Every block is free, cached or owned: owners > 0 is owned; free ones have no name, cached ones have one.
 *  2. free + cached + owned == count.
 *  3. No two blocks have the same name, and each name is found.
 */
#pragma once

#include "base/status.h"
#include "tape/op.h"
#include <stdbool.h>
#include <stdint.h>

/* Identity of a full block: its tokens, and a hash of all tokens before them. */
struct block_name {
    uint64_t before, hash;
    int32_t tokens[KV_BLOCK];
};

/* The name of the block after the one whose hash is `before`; `seed` for the first. */
struct block_name block_name_of(uint64_t before, const int32_t *tokens);

struct block {
    int32_t owners;
    int32_t older, newer; /* neighbours in the list of free or of cached blocks; -1: none */
    int32_t next;         /* next in the same slot of the name table; -1: none */
    bool named;
    struct block_name name;
};

struct block_list {
    int32_t oldest, newest;
    int64_t count;
};

struct blocks {
    struct block *block;
    int64_t count, room; /* room: blocks that memory was allocated for */
    struct block_list free, cached;
    int32_t *table; /* hash table of names */
    int64_t places; /* a power of two */
    int64_t shared; /* blocks with several owners */
};

enum plim_status blocks_init(struct blocks *b, int64_t count, struct plim_error *err);
void blocks_release(struct blocks *b);
int64_t blocks_bytes(int64_t count); /* of host memory */

int32_t blocks_take(struct blocks *b);
void blocks_drop(struct blocks *b, int32_t block);
/* Makes the caller an owner; -1: none has that name. */
int32_t blocks_find(struct blocks *b, const struct block_name *name);
/* Has no effect if another block has that name. */
void blocks_name(struct blocks *b, int32_t block, const struct block_name *name);

/* Blocks without an owner. */
static inline int64_t blocks_left(const struct blocks *b) { return b->free.count + b->cached.count; }

/* Changes the number of blocks. Blocks beyond the new end move to places before it: to[i] is the new number of block
 * i (i itself if it stays, -1 if it is dropped), and the caller copies their contents. PLIM_NO_FIT: more blocks are
 * owned than will exist. PLIM_NO_MEMORY. On failure nothing changes. to[] has the larger of both counts. */
enum plim_status blocks_resize(struct blocks *b, int64_t count, int32_t *to, struct plim_error *err);

/* PLIM_BUG names the invariant that does not hold. */
enum plim_status blocks_check(const struct blocks *b, struct plim_error *err);
