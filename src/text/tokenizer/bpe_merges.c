/* bpe_merges.c - joining by rank.
 *
 * A pair's value is rank << 32 | joined symbol. Of pairs with one rank the leftmost joins first. Pairs lie in an
 * open-addressing table at most half full.
 *
 * A word is first cut where no merge can ever reach across: `allow` holds, for every merge, the last first-level
 * symbol of its left part with the first one of its right part; two neighbours that are not in it stay apart
 * whatever happens around them. The set is hashed bits: a false "may join" only makes a piece longer.
 *
 * Short pieces keep the value of every neighbouring pair in an array and take the minimum each time, which beats
 * any cleverness up to some dozens of symbols. Longer ones lie in blocks of a few symbols, each of which knows its best
 * pair; a tree over the blocks finds the best of all. A join changes its block and the two beside it, which look for
 * their best pairs again. This takes about three bytes a symbol beside the symbol itself, so that a text of one long
 * word needs little memory.
 */
#include "text/tokenizer/bpe_merges.h"
#include "text/tokenizer/bytes_hash.h"
#include <stdlib.h>

enum {
    SHORT_MOST = 48,
    BLOCK = 16, /* symbols */
    ALLOW_BITS = 1 << 19,
};

struct bpe_slot {
    uint64_t pair, value;
};

struct bpe_merges {
    struct bpe_slot *slots;
    size_t mask;
    /* One bit per hash, eight times as many as slots. Most pairs do not join, and this filter says so without
     * touching the slots, which do not fit the caches. */
    uint64_t *filter;
    uint64_t seed; /* differs from run to run, so that no file can be made to collide on purpose */
    uint64_t allow[ALLOW_BITS / 64];
};

struct bpe_block {
    int32_t before, after; /* blocks with symbols in them; -1: none */
    uint8_t count, best;   /* symbols; the first one of the best pair */
};

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static uint32_t rank_of(uint64_t value) { return (uint32_t)(value >> 32); }

static size_t mask_for(size_t count)
{
    size_t mask = 15;
    while (mask < 2 * count) mask = 2 * mask + 1;
    return mask;
}

size_t bpe_merges_bytes_for(size_t count)
{
    return sizeof(struct bpe_merges) + (mask_for(count) + 1) * (sizeof(struct bpe_slot) + 1);
}

struct bpe_merges *bpe_merges_new(size_t count)
{
    struct bpe_merges *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->mask = mask_for(count);
    m->slots = malloc((m->mask + 1) * sizeof *m->slots);
    m->filter = calloc((m->mask + 1) / 8, sizeof *m->filter);
    if (!m->slots || !m->filter) {
        bpe_merges_free(m);
        return NULL;
    }
    m->seed = (uint64_t)(uintptr_t)m->slots;
    memset(m->slots, 0xff, (m->mask + 1) * sizeof *m->slots);
    return m;
}

void bpe_merges_free(struct bpe_merges *m)
{
    if (!m) return;
    free(m->slots);
    free(m->filter);
    free(m);
}

static uint64_t hash_of(const struct bpe_merges *m, uint64_t pair) { return bytes_hash_mix(pair ^ m->seed); }

static struct bpe_slot *slot_of(const struct bpe_merges *m, uint64_t pair, uint64_t hash)
{
    size_t at = (size_t)hash & m->mask;
    while (m->slots[at].pair != pair && m->slots[at].value != BPE_NO_MERGE) at = (at + 1) & m->mask;
    return &m->slots[at];
}

static size_t filter_bit(const struct bpe_merges *m, uint64_t hash)
{
    return (size_t)(hash >> 32) & (8 * m->mask + 7);
}

void bpe_merges_add(struct bpe_merges *m, int32_t left, int32_t right, uint32_t rank, int32_t joined)
{
    uint64_t pair = pair_of(left, right), hash = hash_of(m, pair);
    size_t bit = filter_bit(m, hash);
    *slot_of(m, pair, hash) = (struct bpe_slot){pair, (uint64_t)rank << 32 | (uint32_t)joined};
    m->filter[bit / 64] |= (uint64_t)1 << bit % 64;
}

static inline uint64_t find(const struct bpe_merges *m, int32_t left, int32_t right)
{
    uint64_t pair = pair_of(left, right), hash = hash_of(m, pair);
    size_t bit = filter_bit(m, hash);
    if (!(m->filter[bit / 64] >> bit % 64 & 1)) return BPE_NO_MERGE;
    return slot_of(m, pair, hash)->value;
}

uint64_t bpe_merges_find(const struct bpe_merges *m, int32_t left, int32_t right)
{
    return find(m, left, right);
}

size_t bpe_merges_bytes(const struct bpe_merges *m)
{
    return sizeof *m + (m->mask + 1) * (sizeof *m->slots + 1);
}

static size_t allow_bit(int32_t left, int32_t right)
{
    return (size_t)(bytes_hash_mix(pair_of(left, right)) >> 40) & (ALLOW_BITS - 1);
}

void bpe_merges_allow(struct bpe_merges *m, int32_t left, int32_t right)
{
    size_t bit = allow_bit(left, right);
    m->allow[bit / 64] |= (uint64_t)1 << bit % 64;
}

void bpe_merges_allow_all(struct bpe_merges *m) { memset(m->allow, 0xff, sizeof m->allow); }

static bool may_join(const struct bpe_merges *m, int32_t left, int32_t right)
{
    size_t bit = allow_bit(left, right);
    return m->allow[bit / 64] >> bit % 64 & 1;
}

void bpe_work_release(struct bpe_work *work)
{
    free(work->block);
    free(work->tree);
    work->block = NULL, work->tree = NULL, work->room = 0;
}

static size_t run_short(const struct bpe_merges *m, int32_t *symbol, size_t count)
{
    uint64_t value[SHORT_MOST];
    for (size_t i = 0; i + 1 < count; i++) value[i] = find(m, symbol[i], symbol[i + 1]);
    while (count > 1) {
        size_t best = 0;
        uint64_t least = value[0];
        for (size_t i = 1; i + 1 < count; i++)
            if (rank_of(value[i]) < rank_of(least)) least = value[i], best = i;
        if (least == BPE_NO_MERGE) break;
        symbol[best] = (int32_t)(uint32_t)least;
        count--;
        for (size_t i = best + 1; i < count; i++) symbol[i] = symbol[i + 1], value[i - 1] = value[i];
        if (best > 0) value[best - 1] = find(m, symbol[best - 1], symbol[best]);
        if (best + 1 < count) value[best] = find(m, symbol[best], symbol[best + 1]);
    }
    return count;
}

/* --- long words -------------------------------------------------------------------------------------------- */

static size_t blocks_of(size_t symbols) { return (symbols + BLOCK - 1) / BLOCK; }

static size_t leaves_of(size_t blocks)
{
    size_t leaves = 1;
    while (leaves < blocks) leaves *= 2;
    return leaves;
}

size_t bpe_work_bytes(size_t symbols)
{
    size_t blocks = blocks_of(symbols);
    return !symbols ? 0 : blocks * sizeof(struct bpe_block) + 2 * leaves_of(blocks) * sizeof(uint64_t);
}

static bool work_reserve(struct bpe_work *work, size_t count)
{
    if (work->room >= count) return true;
    bpe_work_release(work);
    work->full = work->most && bpe_work_bytes(count) > work->most;
    if (work->full) return false;
    work->block = malloc(blocks_of(count) * sizeof *work->block);
    work->tree = malloc(2 * leaves_of(blocks_of(count)) * sizeof *work->tree);
    if (!work->block || !work->tree) {
        bpe_work_release(work);
        return false;
    }
    work->room = count;
    return true;
}

/* A long word on its way. */
struct joining {
    const struct bpe_merges *merges;
    struct bpe_block *block;
    uint64_t *tree; /* node i has the least value of nodes 2i and 2i + 1; leaf b is node leaves + b */
    size_t leaves;
    int32_t *symbol;
};

/* Returns the value of lower rank; the left one if ranks are equal. */
static uint64_t better(uint64_t left, uint64_t right)
{
    return rank_of(right) < rank_of(left) ? right : left;
}

/* The best pair that begins in block b; a pair may end in the block behind it. */
static uint64_t look_at(struct joining *j, size_t b)
{
    struct bpe_block *block = &j->block[b];
    const int32_t *symbol = j->symbol + b * BLOCK;
    uint64_t least = BPE_NO_MERGE;
    for (unsigned i = 0; i < block->count; i++) {
        bool last = i + 1u == block->count;
        if (last && block->after < 0) break;
        int32_t next = last ? j->symbol[(size_t)block->after * BLOCK] : symbol[i + 1];
        uint64_t value = find(j->merges, symbol[i], next);
        if (rank_of(value) < rank_of(least)) least = value, block->best = (uint8_t)i;
    }
    return least;
}

static void look_again(struct joining *j, int32_t b)
{
    if (b < 0) return;
    size_t node = j->leaves + (size_t)b;
    uint64_t least = j->block[b].count ? look_at(j, (size_t)b) : BPE_NO_MERGE;
    for (j->tree[node] = least; node > 1; j->tree[node] = least) {
        least = better(j->tree[node & ~(size_t)1], j->tree[node | 1]);
        node /= 2;
        if (j->tree[node] == least) break;
    }
}

static void lay_out(struct joining *j, size_t count)
{
    size_t blocks = blocks_of(count);
    for (size_t b = 0; b < blocks; b++) {
        size_t left = count - b * BLOCK;
        j->block[b] = (struct bpe_block){.before = (int32_t)b - 1,
                                         .after = b + 1 < blocks ? (int32_t)b + 1 : -1,
                                         .count = (uint8_t)(left < BLOCK ? left : BLOCK)};
    }
    for (size_t b = 0; b < j->leaves; b++) j->tree[j->leaves + b] = b < blocks ? look_at(j, b) : BPE_NO_MERGE;
    for (size_t i = j->leaves - 1; i > 0; i--) j->tree[i] = better(j->tree[2 * i], j->tree[2 * i + 1]);
}

/* Takes the symbol at `at` out of block b; an empty block leaves the chain. */
static void take_out(struct joining *j, int32_t b, unsigned at)
{
    struct bpe_block *block = &j->block[b];
    int32_t *symbol = j->symbol + (size_t)b * BLOCK + at;
    block->count--;
    memmove(symbol, symbol + 1, (block->count - at) * sizeof *symbol);
    if (block->count) return;
    j->block[block->before].after = block->after; /* the first block never loses its first symbol */
    if (block->after >= 0) j->block[block->after].before = block->before;
}

/* Joins the best pair; its block is the leftmost one with the least value. */
static void join_best(struct joining *j)
{
    uint64_t least = j->tree[1];
    size_t node = 1;
    while (node < j->leaves) node = 2 * node + (j->tree[2 * node] != least);
    int32_t b = (int32_t)(node - j->leaves);
    struct bpe_block *block = &j->block[b];
    bool across = block->best + 1u == block->count;
    int32_t behind = block->after;
    unsigned at = block->best;
    j->symbol[(size_t)b * BLOCK + at] = (int32_t)(uint32_t)least;
    take_out(j, across ? behind : b, across ? 0 : at + 1);
    if (across) look_again(j, behind);
    look_again(j, b);
    if (at == 0) look_again(j, block->before);
}

static size_t run_long(const struct bpe_merges *m, struct bpe_work *work, int32_t *symbol, size_t count)
{
    if (count > INT32_MAX / 4 || !work_reserve(work, count)) return SIZE_MAX;
    struct joining j = {m, work->block, work->tree, leaves_of(blocks_of(count)), symbol};
    size_t kept = 0;
    lay_out(&j, count);
    while (j.tree[1] != BPE_NO_MERGE) join_best(&j);
    for (int32_t b = 0; b >= 0; b = j.block[b].after) {
        memmove(symbol + kept, symbol + (size_t)b * BLOCK, j.block[b].count * sizeof *symbol);
        kept += j.block[b].count;
    }
    return kept;
}

size_t bpe_merges_run(const struct bpe_merges *m, struct bpe_work *work, int32_t *symbols, size_t count)
{
    if (count <= SHORT_MOST / 2) return run_short(m, symbols, count);
    size_t kept = 0;
    for (size_t start = 0, end; start < count; start = end) {
        for (end = start + 1; end < count && may_join(m, symbols[end - 1], symbols[end]);) end++;
        size_t n = end - start;
        n = n <= SHORT_MOST ? run_short(m, symbols + start, n) : run_long(m, work, symbols + start, n);
        if (n == SIZE_MAX) return n;
        memmove(symbols + kept, symbols + start, n * sizeof *symbols);
        kept += n;
    }
    return kept;
}
