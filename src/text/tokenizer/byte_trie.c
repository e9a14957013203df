/* byte_trie.c - building the double array.
 *
 * Tokens are sorted, so that a node is a range of them and its children are the ranges that share the next byte.
 * For every node with children an offset is sought at which all of them fall on free units. Free units form a
 * ring; only those of the newest blocks stay in it, so that the search is short however full the array gets.
 *
 * Invariants: (1) the unit of a child c of offset o is o xor c, in the same block of 256 as o; (2) no two nodes
 * have the same offset; (3) a unit is in the ring exactly when it is free and its block is one of the newest.
 * Nodes without children have offset 0, which is the root block's and never given away: its units are not in
 * use, so stepping from such a node fails.
 */
#include "text/tokenizer/byte_trie.h"
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 256, BLOCKS_OPEN = 16, UNITS_MOST = 1 << 23, NONE = -1 };

struct token_key {
    const unsigned char *text;
    uint32_t len;
    int32_t id;
};

/* A node whose children are still to be placed. */
struct pending {
    uint32_t unit;
    uint32_t begin, end; /* its tokens */
    uint32_t depth;
};

struct builder {
    struct token_key *key;
    size_t keys;
    uint64_t *unit;
    int32_t *next, *prev; /* the ring of free units */
    bool *taken;          /* offsets */
    size_t count, cap;
    int32_t ring; /* some free unit, or NONE */
    struct pending *stack;
    size_t stacked, stack_cap;
    struct quota *quota;
    uint64_t counted; /* by the quota */
    bool refused;
};

enum { UNIT_BYTES = sizeof(uint64_t) + 2 * sizeof(int32_t) + sizeof(bool) };

static bool count(struct builder *b, uint64_t bytes)
{
    b->refused |= !quota_take(b->quota, bytes);
    if (!b->refused) b->counted += bytes;
    return !b->refused;
}

static int compare_keys(const void *a, const void *b)
{
    const struct token_key *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);
    if (order) return order;
    return (x->len > y->len) - (x->len < y->len);
}

static void ring_add(struct builder *b, int32_t unit)
{
    if (b->ring == NONE) {
        b->ring = b->next[unit] = b->prev[unit] = unit;
        return;
    }
    int32_t last = b->prev[b->ring];
    b->next[unit] = b->ring, b->prev[unit] = last;
    b->next[last] = unit, b->prev[b->ring] = unit;
}

static void ring_remove(struct builder *b, int32_t unit)
{
    if (b->next[unit] == unit) {
        b->ring = NONE;
        return;
    }
    b->next[b->prev[unit]] = b->next[unit];
    b->prev[b->next[unit]] = b->prev[unit];
    if (b->ring == unit) b->ring = b->next[unit];
}

static bool in_use(const struct builder *b, size_t unit) { return b->unit[unit] >> 8 & 1; }

static bool grow(struct builder *b, size_t cap)
{
    if (!count(b, (cap - b->cap) * UNIT_BYTES)) return false;
    uint64_t *unit = realloc(b->unit, cap * sizeof *unit);
    if (unit) b->unit = unit;
    int32_t *next = realloc(b->next, cap * sizeof *next);
    if (next) b->next = next;
    int32_t *prev = realloc(b->prev, cap * sizeof *prev);
    if (prev) b->prev = prev;
    bool *taken = realloc(b->taken, cap * sizeof *taken);
    if (taken) b->taken = taken;
    if (!unit || !next || !prev || !taken) return false;
    b->cap = cap;
    return true;
}

/* A fresh block; the oldest open one is closed. `free_units`: its units go into the ring. */
static bool add_block(struct builder *b, bool free_units)
{
    if (b->count + BLOCK > UNITS_MOST) return false;
    if (b->count + BLOCK > b->cap && !grow(b, b->cap ? 2 * b->cap : 4096)) return false;
    memset(b->unit + b->count, 0, BLOCK * sizeof *b->unit);
    memset(b->taken + b->count, 0, BLOCK * sizeof *b->taken);
    for (size_t i = b->count; free_units && i < b->count + BLOCK; i++) ring_add(b, (int32_t)i);
    b->count += BLOCK;
    if (b->count / BLOCK > BLOCKS_OPEN + 1) {
        size_t first = b->count - (BLOCKS_OPEN + 1) * BLOCK;
        for (size_t i = first; i < first + BLOCK; i++)
            if (first && !in_use(b, i)) ring_remove(b, (int32_t)i);
    }
    return true;
}

static bool fits(const struct builder *b, size_t offset, const unsigned char *bytes, size_t count)
{
    if (b->taken[offset]) return false;
    for (size_t i = 1; i < count; i++)
        if (in_use(b, offset ^ bytes[i])) return false;
    return true;
}

/* An offset for children of these bytes; 0 when there is no more room or memory. */
static size_t find_offset(struct builder *b, const unsigned char *bytes, size_t count)
{
    int32_t unit = b->ring;
    if (unit != NONE) {
        do {
            size_t offset = (size_t)unit ^ bytes[0];
            if (fits(b, offset, bytes, count)) return offset;
            unit = b->next[unit];
        } while (unit != b->ring);
    }
    size_t fresh = b->count;
    return add_block(b, true) ? fresh : 0;
}

static bool push(struct builder *b, struct pending node)
{
    if (b->stacked == b->stack_cap) {
        size_t cap = b->stack_cap ? 2 * b->stack_cap : 256;
        if (!count(b, (cap - b->stack_cap) * sizeof *b->stack)) return false;
        struct pending *stack = realloc(b->stack, cap * sizeof *stack);
        if (!stack) return false;
        b->stack = stack;
        b->stack_cap = cap;
    }
    b->stack[b->stacked++] = node;
    return true;
}

/* First token from `begin` whose byte at `depth` differs from that of `begin`. */
static uint32_t same_byte_end(const struct builder *b, uint32_t begin, uint32_t end, uint32_t depth)
{
    unsigned char byte = b->key[begin].text[depth];
    while (begin < end && b->key[begin].text[depth] == byte) begin++;
    return begin;
}

/* Places the children of one node and leaves them to be done. */
static bool place_children(struct builder *b, struct pending node)
{
    unsigned char bytes[256];
    size_t count = 0;
    uint32_t begin = node.begin;
    if (begin < node.end && b->key[begin].len == node.depth) begin++; /* the node's own token */
    for (uint32_t at = begin; at < node.end; at = same_byte_end(b, at, node.end, node.depth))
        bytes[count++] = b->key[at].text[node.depth];
    if (!count) return true;
    size_t offset = find_offset(b, bytes, count);
    if (!offset) return false;
    b->taken[offset] = true;
    b->unit[node.unit] |= (uint64_t)offset << 9;
    uint32_t at = begin;
    for (size_t i = 0; i < count; i++) {
        uint32_t end = same_byte_end(b, at, node.end, node.depth);
        size_t unit = offset ^ bytes[i];
        bool whole = b->key[at].len == node.depth + 1;
        ring_remove(b, (int32_t)unit);
        b->unit[unit] = 0x100u | bytes[i] | (whole ? (uint64_t)(b->key[at].id + 1) << 32 : 0);
        if (!push(b, (struct pending){(uint32_t)unit, at, end, node.depth + 1})) return false;
        at = end;
    }
    return true;
}

static bool collect_keys(struct builder *b, const struct token_vocab *vocab)
{
    size_t size = (size_t)token_vocab_size(vocab);
    if (!count(b, 2 * (size + 1) * sizeof *b->key)) return false; /* sorting takes as much again */
    b->key = malloc((size + 1) * sizeof *b->key);
    if (!b->key) return false;
    for (size_t i = 0; i < size; i++) {
        size_t len;
        const char *text = token_vocab_text(vocab, (int32_t)i, &len);
        if (!text || !len || token_vocab_id(vocab, text, len) != (int32_t)i) continue;
        b->key[b->keys++] = (struct token_key){(const unsigned char *)text, (uint32_t)len, (int32_t)i};
    }
    qsort(b->key, b->keys, sizeof *b->key, compare_keys);
    return true;
}

static bool build_all(struct builder *b, const struct token_vocab *vocab)
{
    if (!collect_keys(b, vocab) || !add_block(b, false)) return false;
    if (!push(b, (struct pending){0, 0, (uint32_t)b->keys, 0})) return false;
    while (b->stacked)
        if (!place_children(b, b->stack[--b->stacked])) return false;
    return true;
}

static enum plim_status check_lengths(const struct token_vocab *vocab, const char *name,
                                      struct plim_error *err)
{
    for (int64_t i = 0; i < token_vocab_size(vocab); i++) {
        size_t len;
        const char *text = token_vocab_text(vocab, (int32_t)i, &len);
        enum plim_status status = text ? token_check_length(text, len, name, err) : PLIM_OK;
        if (status != PLIM_OK) return status;
    }
    return PLIM_OK;
}

enum plim_status byte_trie_build(struct byte_trie *trie, const struct token_vocab *vocab, const char *name,
                                 struct quota *quota, struct plim_error *err)
{
    struct builder b = {.ring = NONE, .quota = quota};
    *trie = (struct byte_trie){0};
    enum plim_status status = check_lengths(vocab, name, err);
    if (status != PLIM_OK) return status;
    if (!build_all(&b, vocab)) {
        bool full = b.count + BLOCK > UNITS_MOST;
        status = b.refused ? quota_fail(quota, name, err)
                           : plim_fail(err, full ? PLIM_UNSUPPORTED : PLIM_NO_MEMORY,
                                       "%s: %s for a vocabulary of %lld tokens", name,
                                       full ? "no room" : "no memory", (long long)token_vocab_size(vocab));
        free(b.unit);
    } else {
        uint64_t *unit = realloc(b.unit, b.count * sizeof *unit);
        trie->unit = unit ? unit : b.unit;
        trie->count = b.count;
        quota_give(quota, b.counted - b.count * sizeof *unit);
    }
    free(b.key);
    free(b.next);
    free(b.prev);
    free(b.taken);
    free(b.stack);
    return status;
}

void byte_trie_release(struct byte_trie *trie)
{
    free(trie->unit);
    *trie = (struct byte_trie){0};
}
