/* cache_bins.h - ordered sets of blocks without allocation: a tree for one order, bins of trees for the best fit.
 *
 *     bins_insert(&pool->bins, &block->node);            // key: the block's bytes
 *     struct cache_node *best = bins_first(&pool->bins, bytes, 0);    // smallest (bytes, address) not below; NULL: none
 *     bins_remove(&pool->bins, best);
 *
 * A tree orders its nodes by (key, at). Bins cut the keys into ranges, 32 to a power of two, each with a tree, and bitmaps
 * say which are empty: the usual search looks into one small tree, and the result is still the best fit over all.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Part of the thing that is kept. In at most one set at a time. */
struct cache_node {
    struct cache_node *left, *right;
    uint64_t key, at;
};

/* A tree is its root; NULL: empty. Each operation takes expected O(log n) steps. */
void tree_insert(struct cache_node **root, struct cache_node *node);
void tree_remove(struct cache_node **root, struct cache_node *node);
/* The first node not below (key, at), the last one below it; NULL: none. */
struct cache_node *tree_first(struct cache_node *root, uint64_t key, uint64_t at);
struct cache_node *tree_last_below(struct cache_node *root, uint64_t key, uint64_t at);

enum { BIN_COLUMNS = 32, BIN_ROWS = 36 }; /* keys up to 2^48 have bins of their own range */

struct cache_bins {
    uint64_t rows; /* bit r: row r has a tree */
    uint32_t columns[BIN_ROWS];
    struct cache_node *trees[BIN_ROWS][BIN_COLUMNS];
};

void bins_insert(struct cache_bins *bins, struct cache_node *node);
void bins_remove(struct cache_bins *bins, struct cache_node *node);
struct cache_node *bins_first(const struct cache_bins *bins, uint64_t key, uint64_t at);
struct cache_node *bins_last_below(const struct cache_bins *bins, uint64_t key, uint64_t at);
