/* cache_check.c - the invariants of cache_blocks.c, verified by their numbers. */
#include "mem/cache_part.h"

#include <string.h>

struct sums {
    int64_t figure[CACHE_FIGURES][CACHE_POOLS];
    int64_t by_class[CACHE_CLASSES_MAX];
    int64_t blocks, cached, unmapped, events;
};

static enum plim_status broken(struct plim_error *err, int number, const struct block *b, const char *what)
{
    return plim_fail(err, PLIM_BUG, "allocator: invariant %d is broken at 0x%llx: %s", number,
                     (unsigned long long)(b ? b->node.at : 0), what);
}

static void add(struct sums *s, enum cache_figure f, const struct block *b, uint64_t n)
{
    s->figure[f][CACHE_ALL] += (int64_t)n;
    s->figure[f][b->pool->kind] += (int64_t)n;
}

static void sum_block(struct sums *s, const struct block *b)
{
    s->blocks++;
    s->events += b->events;
    if (b->state == BLOCK_UNMAPPED) {
        s->unmapped++;
        return;
    }
    add(s, CACHE_RESERVED_BYTES, b, b->bytes);
    if (b->state == BLOCK_CACHED) {
        s->cached++;
        if (!block_is_split(b) || b->segment->expandable) return;
        add(s, CACHE_INACTIVE_SPLIT, b, 1);
        add(s, CACHE_INACTIVE_SPLIT_BYTES, b, b->bytes);
        return;
    }
    add(s, CACHE_ACTIVE, b, 1);
    add(s, CACHE_ACTIVE_BYTES, b, b->bytes);
    add(s, CACHE_REQUESTED_BYTES, b, b->requested);
    if (b->state != BLOCK_LIVE) return;
    add(s, CACHE_ALLOCATION, b, 1);
    add(s, CACHE_ALLOCATED_BYTES, b, b->bytes);
    s->by_class[b->cls] += (int64_t)b->bytes;
}

static enum plim_status check_block(const struct cache *c, const struct segment *s, const struct block *b,
                                    uint64_t at, struct plim_error *err)
{
    if (b->node.at != at || !b->bytes || b->bytes % CACHE_MIN_BLOCK || b->segment != s)
        return broken(err, 1, b, "the block is not where the one before it ends");
    if (b->next && (b->next->prev != b || (b->state >= BLOCK_CACHED && b->next->state == b->state)))
        return broken(err, 2, b, "two free neighbours");
    if (cache_block_at(c, at) != b) return broken(err, 3, b, "the map does not know the block");
    if (b->state == BLOCK_UNMAPPED && (!s->expandable || (at - s->node.at) % s->page || b->bytes % s->page))
        return broken(err, 5, b, "an unmapped block is not made of pages");
    if ((b->state == BLOCK_PENDING) != (b->events > 0) || b->events < 0 ||
        (b->state != BLOCK_LIVE && b->uses))
        return broken(err, 9, b, "events do not agree with the state");
    return PLIM_OK;
}

static enum plim_status check_segments(const struct cache *c, struct sums *sums, struct plim_error *err)
{
    struct cache_node *node = tree_first(c->segments, 0, 0);
    for (; node; node = tree_first(c->segments, 0, node->at + 1)) {
        const struct segment *s = segment_of(node);
        uint64_t at = node->at;
        for (const struct block *b = s->first; b; b = b->next) {
            enum plim_status status = check_block(c, s, b, at, err);
            if (status != PLIM_OK) return status;
            sum_block(sums, b);
            at += b->bytes;
        }
        if (at != node->at + s->bytes)
            return broken(err, 1, s->first, "the blocks do not fill their segment");
        if (!s->expandable) add(sums, CACHE_SEGMENT, s->first, 1);
    }
    return PLIM_OK;
}

/* The bins and trees hold cached and unmapped blocks in order; each was counted with its segment. */
static enum plim_status check_pool(const struct pool *pool, struct sums *sums, struct plim_error *err)
{
    struct cache_node *n = bins_first(&pool->bins, 0, 0), *next;
    for (; n; n = next, sums->cached--) {
        const struct block *b = block_of(n);
        if (b->state != BLOCK_CACHED || b->pool != pool || n->key != b->bytes)
            return broken(err, 4, b, "a block in the bins is not cached there");
        next = bins_first(&pool->bins, n->key, n->at + 1);
        if (next && bins_last_below(&pool->bins, next->key, next->at) != n)
            return broken(err, 4, b, "the bins are out of order");
    }
    for (n = tree_first(pool->unmapped, 0, 0); n;
         n = tree_first(pool->unmapped, 0, n->at + 1), sums->unmapped--)
        if (block_of(n)->state != BLOCK_UNMAPPED || block_of(n)->pool != pool)
            return broken(err, 4, block_of(n), "a block in the tree is not unmapped there");
    return PLIM_OK;
}

static enum plim_status check_figures(const struct cache *c, const struct sums *sums, struct plim_error *err)
{
    const struct figures *g = &c->figures;
    for (int f = 0; f < CACHE_FIGURES; f++)
        for (int p = 0; p < CACHE_POOLS; p++) {
            int64_t sum = sums->figure[f][p];
            if ((p != CACHE_ALL && g->now[p][f] != sum) || g->peak[p][f] < sum)
                return broken(err, 6, NULL, cache_figure_name((enum cache_figure)f));
        }
    for (int i = 0; i < CACHE_CLASSES_MAX; i++)
        if (c->stats.by_class[i].current != sums->by_class[i]) return broken(err, 7, NULL, "classes");
    if (c->options.ledger) {
        struct ledger_state ledger;
        ledger_read(c->options.ledger, &ledger);
        if (ledger.by_class[c->options.ledger_class] < figure_now(c, CACHE_RESERVED_BYTES))
            return broken(err, 10, NULL, "the ledger carries less than is reserved");
    }
    return PLIM_OK;
}

static enum plim_status check_locked(const struct cache *c, struct plim_error *err)
{
    struct sums sums = {0};
    enum plim_status status = check_segments(c, &sums, err);
    for (int i = 0; status == PLIM_OK && i < 2 * c->stream_count; i++)
        status = check_pool(&c->streams[i / 2]->pools[i % 2], &sums, err);
    if (status != PLIM_OK) return status;
    if (sums.cached || sums.unmapped) return broken(err, 4, NULL, "free blocks are missing from the sets");
    int64_t mapped = 0, spare = 0;
    for (uint64_t i = 0; i <= c->map.mask; i++) mapped += c->map.slots[i].at != 0;
    if (mapped != sums.blocks) return broken(err, 3, NULL, "the map holds blocks of no segment");
    for (const struct block *b = c->spare; b; b = b->next) spare++;
    if (spare != c->spares || spare + sums.blocks != c->records)
        return broken(err, 8, NULL, "records were lost");
    if (sums.events != c->queued) return broken(err, 9, NULL, "events in the queues");
    return check_figures(c, &sums, err);
}

enum plim_status cache_check(struct cache *c, struct plim_error *err)
{
    cache_lock(c);
    enum plim_status status = check_locked(c, err);
    cache_unlock(c);
    return status;
}
