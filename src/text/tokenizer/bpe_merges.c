/* bpe_merges.c - joining by rank.
 *
 * A pair's value is rank << 32 | joined symbol, so that comparing values compares ranks. Pairs lie in an
 * open-addressing table at most half full.
 *
 * A word is first cut where no merge can ever reach across: `allow` holds, for every merge, the last first-level
 * symbol of its left part with the first one of its right part; two neighbours that are not in it stay apart
 * whatever happens around them. The set is hashed bits: a false "may join" only makes a piece longer.
 *
 * Short pieces keep the value of every neighbouring pair in an array and take the minimum each time, which beats
 * any cleverness up to some dozens of symbols. Longer ones use a binary heap of candidates; a candidate is stale,
 * and skipped, when the pair at its place no longer gives the symbol it was made for.
 */
#include "text/tokenizer/bpe_merges.h"
#include "text/tokenizer/bytes_hash.h"
#include <stdlib.h>

enum {
    SHORT_MOST = 48,
    ALLOW_BITS = 1 << 19,
};

struct bpe_slot {
    uint64_t pair, value;
};

struct bpe_merges {
    struct bpe_slot *slots;
    size_t mask;
    uint64_t *
        filter; /* a bit for each slot's worth of hash, eight to a slot: most pairs do not join, and this says so
                         without touching the slots, which are too many for the caches */
    uint64_t seed; /* differs from run to run, so that no file can be made to collide on purpose */
    uint64_t allow[ALLOW_BITS / 64];
};

struct bpe_link {
    int32_t symbol; /* -1: joined into the one before */
    int32_t before, after;
};

struct bpe_candidate {
    uint64_t value;
    int32_t at;
};

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

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
    free(work->link);
    free(work->heap);
    *work = (struct bpe_work){0};
}

static size_t run_short(const struct bpe_merges *m, int32_t *symbol, size_t count)
{
    uint64_t value[SHORT_MOST];
    for (size_t i = 0; i + 1 < count; i++) value[i] = find(m, symbol[i], symbol[i + 1]);
    while (count > 1) {
        size_t best = 0;
        uint64_t least = value[0];
        for (size_t i = 1; i + 1 < count; i++)
            if (value[i] < least) least = value[i], best = i;
        if (least == BPE_NO_MERGE) break;
        symbol[best] = (int32_t)(uint32_t)least;
        count--;
        for (size_t i = best + 1; i < count; i++) symbol[i] = symbol[i + 1], value[i - 1] = value[i];
        if (best > 0) value[best - 1] = find(m, symbol[best - 1], symbol[best]);
        if (best + 1 < count) value[best] = find(m, symbol[best], symbol[best + 1]);
    }
    return count;
}

/* --- the heap ---------------------------------------------------------------------------------------------- */

static bool earlier(const struct bpe_candidate *a, const struct bpe_candidate *b)
{
    return a->value != b->value ? a->value < b->value : a->at < b->at;
}

static void heap_push(struct bpe_candidate *heap, size_t *count, struct bpe_candidate item)
{
    size_t at = (*count)++;
    while (at > 0 && earlier(&item, &heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = item;
}

static void heap_sift(struct bpe_candidate *heap, size_t count, size_t at)
{
    struct bpe_candidate item = heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= count) break;
        if (child + 1 < count && earlier(&heap[child + 1], &heap[child])) child++;
        if (!earlier(&heap[child], &item)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = item;
}

static struct bpe_candidate heap_pop(struct bpe_candidate *heap, size_t *count)
{
    struct bpe_candidate top = heap[0];
    heap[0] = heap[--*count];
    if (*count > 1) heap_sift(heap, *count, 0);
    return top;
}

size_t bpe_work_bytes(size_t symbols)
{
    return symbols * (sizeof(struct bpe_link) + 3 * sizeof(struct bpe_candidate));
}

/* Each join makes at most two candidates, so 3n of them are enough. */
static bool work_reserve(struct bpe_work *work, size_t count)
{
    if (work->links >= count) return true;
    bpe_work_release(work);
    work->link = malloc(count * sizeof *work->link);
    work->heap = malloc(3 * count * sizeof *work->heap);
    if (!work->link || !work->heap) {
        bpe_work_release(work);
        return false;
    }
    work->links = count, work->heaps = 3 * count;
    return true;
}

static void consider(const struct bpe_merges *m, struct bpe_work *work, size_t *heaped, int32_t at)
{
    const struct bpe_link *link = work->link;
    if (at < 0 || link[at].after < 0) return;
    uint64_t value = find(m, link[at].symbol, link[link[at].after].symbol);
    if (value != BPE_NO_MERGE) heap_push(work->heap, heaped, (struct bpe_candidate){value, at});
}

static size_t lay_out(const struct bpe_merges *m, struct bpe_work *work, const int32_t *symbol, size_t count)
{
    size_t heaped = 0;
    for (size_t i = 0; i < count; i++) {
        work->link[i] = (struct bpe_link){symbol[i], (int32_t)i - 1, i + 1 < count ? (int32_t)i + 1 : -1};
        if (i + 1 == count) break;
        uint64_t value = find(m, symbol[i], symbol[i + 1]);
        if (value != BPE_NO_MERGE) work->heap[heaped++] = (struct bpe_candidate){value, (int32_t)i};
    }
    for (size_t i = heaped / 2; i-- > 0;) heap_sift(work->heap, heaped, i);
    return heaped;
}

static size_t run_long(const struct bpe_merges *m, struct bpe_work *work, int32_t *symbol, size_t count)
{
    if (count > INT32_MAX / 4 || !work_reserve(work, count)) return SIZE_MAX;
    size_t heaped = lay_out(m, work, symbol, count), kept = 0;
    struct bpe_link *link = work->link;
    while (heaped) {
        struct bpe_candidate top = heap_pop(work->heap, &heaped);
        struct bpe_link *here = &link[top.at];
        if (here->symbol < 0 || here->after < 0) continue;
        struct bpe_link *next = &link[here->after];
        if (find(m, here->symbol, next->symbol) != top.value) continue;
        here->symbol = (int32_t)(uint32_t)top.value;
        next->symbol = -1;
        here->after = next->after;
        if (here->after >= 0) link[here->after].before = top.at;
        consider(m, work, &heaped, here->before);
        consider(m, work, &heaped, top.at);
    }
    for (int32_t at = 0; at >= 0; at = link[at].after) symbol[kept++] = link[at].symbol;
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
