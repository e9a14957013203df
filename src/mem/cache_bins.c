/* cache_bins.c - see cache_bins.h.
 *
 * A tree is a treap: ordered by (key, at) from left to right, and by a hash of `at` from top to bottom, so that its shape
 * depends on its nodes alone and its depth is logarithmic for any order of insertion.
 */
#include "mem/cache_bins.h"

#include <stddef.h>

static uint64_t rank(const struct cache_node *node) { return (node->at >> 9) * 0x9e3779b97f4a7c15u; }

static bool below(const struct cache_node *node, uint64_t key, uint64_t at)
{
    return node->key != key ? node->key < key : node->at < at;
}

/* Splits `tree` into the nodes below (key, at) and the others. */
static void split(struct cache_node *tree, uint64_t key, uint64_t at, struct cache_node **low,
                  struct cache_node **high)
{
    while (tree) {
        if (below(tree, key, at)) {
            *low = tree;
            low = &tree->right;
            tree = tree->right;
        } else {
            *high = tree;
            high = &tree->left;
            tree = tree->left;
        }
    }
    *low = *high = NULL;
}

void tree_insert(struct cache_node **root, struct cache_node *node)
{
    while (*root && rank(*root) >= rank(node))
        root = below(*root, node->key, node->at) ? &(*root)->right : &(*root)->left;
    struct cache_node *rest = *root;
    *root = node;
    split(rest, node->key, node->at, &node->left, &node->right);
}

void tree_remove(struct cache_node **root, struct cache_node *node)
{
    while (*root != node) root = below(*root, node->key, node->at) ? &(*root)->right : &(*root)->left;
    struct cache_node *low = node->left, *high = node->right;
    while (low && high) {
        if (rank(low) >= rank(high)) {
            *root = low;
            root = &low->right;
            low = low->right;
        } else {
            *root = high;
            root = &high->left;
            high = high->left;
        }
    }
    *root = low ? low : high;
}

struct cache_node *tree_first(struct cache_node *root, uint64_t key, uint64_t at)
{
    struct cache_node *best = NULL;
    while (root) {
        bool less = below(root, key, at);
        if (!less) best = root;
        root = less ? root->right : root->left;
    }
    return best;
}

struct cache_node *tree_last_below(struct cache_node *root, uint64_t key, uint64_t at)
{
    struct cache_node *best = NULL;
    while (root) {
        bool less = below(root, key, at);
        if (less) best = root;
        root = less ? root->right : root->left;
    }
    return best;
}

/* ---- bins ---- */

struct place {
    int row, column;
};

/* Rows are powers of two of 512 bytes; row 0 has the multiples below 32 one by one. Monotone in key. */
static struct place place_of(uint64_t key)
{
    uint64_t units = key >> 9;
    if (units < BIN_COLUMNS) return (struct place){0, (int)units};
    int log = 63 - __builtin_clzll(units), row = log - 4;
    if (row >= BIN_ROWS) return (struct place){BIN_ROWS - 1, BIN_COLUMNS - 1};
    return (struct place){row, (int)(units >> (log - 5)) & (BIN_COLUMNS - 1)};
}

void bins_insert(struct cache_bins *bins, struct cache_node *node)
{
    struct place p = place_of(node->key);
    tree_insert(&bins->trees[p.row][p.column], node);
    bins->columns[p.row] |= 1u << p.column;
    bins->rows |= 1ull << p.row;
}

void bins_remove(struct cache_bins *bins, struct cache_node *node)
{
    struct place p = place_of(node->key);
    tree_remove(&bins->trees[p.row][p.column], node);
    if (bins->trees[p.row][p.column]) return;
    bins->columns[p.row] &= ~(1u << p.column);
    if (!bins->columns[p.row]) bins->rows &= ~(1ull << p.row);
}

struct cache_node *bins_first(const struct cache_bins *bins, uint64_t key, uint64_t at)
{
    struct place p = place_of(key);
    struct cache_node *found = tree_first(bins->trees[p.row][p.column], key, at);
    if (found) return found;
    uint32_t columns = bins->columns[p.row] & ~(uint32_t)((2ull << p.column) - 1);
    if (!columns) {
        uint64_t rows = bins->rows & ~((2ull << p.row) - 1);
        if (!rows) return NULL;
        p.row = __builtin_ctzll(rows);
        columns = bins->columns[p.row];
    }
    return tree_first(bins->trees[p.row][__builtin_ctz(columns)], 0, 0);
}

struct cache_node *bins_last_below(const struct cache_bins *bins, uint64_t key, uint64_t at)
{
    struct place p = place_of(key);
    struct cache_node *found = tree_last_below(bins->trees[p.row][p.column], key, at);
    if (found) return found;
    uint32_t columns = bins->columns[p.row] & ((1u << p.column) - 1);
    if (!columns) {
        uint64_t rows = bins->rows & ((1ull << p.row) - 1);
        if (!rows) return NULL;
        p.row = 63 - __builtin_clzll(rows);
        columns = bins->columns[p.row];
    }
    return tree_last_below(bins->trees[p.row][31 - __builtin_clz(columns)], UINT64_MAX, UINT64_MAX);
}
