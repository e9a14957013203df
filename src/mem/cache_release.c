/* cache_release.c - giving cached memory back: to make room for a request, above a threshold, and as a clean-up. */
#include "mem/cache_part.h"

/* The block after b in the order of size and address, over the streams in the order of their ids. */
static struct block *next_cached(struct cache *c, enum cache_pool kind, int *stream, struct block *b)
{
    uint64_t key = b ? b->node.key : 0, at = b ? b->node.at + 1 : 0;
    for (; *stream < c->stream_count; ++*stream, key = at = 0) {
        struct cache_node *node = bins_first(&c->streams[*stream]->pools[kind - CACHE_SMALL].bins, key, at);
        if (node) return block_of(node);
    }
    return NULL;
}

/* ---- garbage collection ---- */

static uint64_t age(const struct cache *c, const struct block *b)
{
    return c->searches[CACHE_LARGE] - b->born;
}

/* One sweep: releases whole free segments that are at least as old as the mean; returns their bytes. */
static uint64_t sweep(struct cache *c, double mean, uint64_t *ages, int64_t *blocks)
{
    uint64_t released = 0;
    int stream = 0;
    for (struct block *b = next_cached(c, CACHE_LARGE, &stream, NULL), *next; b; b = next) {
        next = next_cached(c, CACHE_LARGE, &stream, b);
        if (block_is_split(b) || b->segment->expandable || (double)age(c, b) < mean) continue;
        released += b->bytes;
        *ages -= age(c, b);
        --*blocks;
        cache_segment_release(c, b);
    }
    return released;
}

void cache_release_garbage(struct cache *c)
{
    uint64_t limit = c->limit != CACHE_NO_LIMIT ? c->limit : c->backing->total - c->options.overhead;
    uint64_t keep = (uint64_t)(c->conf.gc_threshold * (double)limit), ages = 0;
    uint64_t reserved = figure_now(c, CACHE_RESERVED_BYTES);
    int64_t blocks = 0;
    int stream = 0;
    if (!(c->conf.gc_threshold > 0) || reserved <= keep) return;
    for (struct block *b = next_cached(c, CACHE_LARGE, &stream, NULL); b;
         b = next_cached(c, CACHE_LARGE, &stream, b)) {
        if (block_is_split(b)) continue;
        ages += age(c, b);
        blocks++;
    }
    uint64_t excess = reserved - keep, released = 0, last = 1;
    while (released < excess && last && blocks > 0) {
        last = sweep(c, (double)ages / (double)blocks, &ages, &blocks);
        released += last;
    }
    if (released) c->stats.num_gc++;
}

/* ---- room for one request ---- */

/* With a finite max_split, larger blocks are never split: one that is large enough is released, or several from the largest
 * down. */
bool cache_release_oversize(struct cache *c, struct pool *pool, uint64_t bytes)
{
    uint64_t most = c->conf.max_split, wanted = bytes < most ? most : bytes, released = 0;
    if (most == CACHE_NO_LIMIT || c->conf.expandable) return false;
    struct cache_node *node = bins_first(&pool->bins, wanted, 0);
    if (node) {
        cache_segment_release(c, block_of(node));
        return true;
    }
    for (node = bins_last_below(&pool->bins, wanted, 0); node && node->key >= most && released < wanted;) {
        struct block *b = block_of(node);
        node = bins_last_below(&pool->bins, node->key, node->at);
        released += b->bytes;
        cache_segment_release(c, b);
    }
    return released >= wanted;
}

/* ---- everything ---- */

/* Unmapping b leaves only blocks smaller than a page, which come before b and need no visit. */
static void release_pool(struct cache *c, enum cache_pool kind)
{
    int stream = 0;
    for (struct block *b = next_cached(c, kind, &stream, NULL), *next; b; b = next) {
        next = next_cached(c, kind, &stream, b);
        if (b->segment->expandable)
            cache_block_unmap(c, b);
        else if (!block_is_split(b))
            cache_segment_release(c, b);
    }
}

void cache_release_cached(struct cache *c)
{
    cache_events_finish(c);
    release_pool(c, CACHE_LARGE);
    release_pool(c, CACHE_SMALL);
}

/* ---- clean-up, from outside ---- */

static uint64_t clear_locked(struct cache *c)
{
    uint64_t before = figure_now(c, CACHE_RESERVED_BYTES);
    cache_release_cached(c);
    return before - figure_now(c, CACHE_RESERVED_BYTES);
}

uint64_t cache_clear(struct cache *c, bool deep)
{
    if (deep && c->options.reclaim) c->options.reclaim(c->options.arg, UINT64_MAX);
    cache_lock(c);
    uint64_t bytes = clear_locked(c);
    cache_unlock(c);
    return bytes;
}

uint64_t cache_batch_done(struct cache *c)
{
    cache_lock(c);
    uint64_t reserved = figure_now(c, CACHE_RESERVED_BYTES), bytes = 0;
    uint64_t unused = reserved > c->batch_peak ? reserved - c->batch_peak : 0;
    bool due = c->options.clean_every > 0 && ++c->batches >= c->options.clean_every;
    if (due || (double)unused > c->options.clean_above * (double)reserved) {
        bytes = clear_locked(c);
        c->batches = 0;
        c->stats.num_clean_ups += bytes > 0;
    }
    c->batch_peak = figure_now(c, CACHE_ACTIVE_BYTES);
    cache_unlock(c);
    return bytes;
}

void cache_set_budget(struct cache *c, uint64_t budget)
{
    cache_lock(c);
    c->budget = budget;
    cache_limit_update(c);
    if (figure_now(c, CACHE_RESERVED_BYTES) > c->limit) cache_release_cached(c);
    cache_unlock(c);
}

enum plim_status cache_set_fraction(struct cache *c, double fraction, struct plim_error *err)
{
    if (!(fraction >= 0 && fraction <= 1))
        return plim_fail(err, PLIM_BAD_INPUT, "memory fraction %g: expected a number from 0 to 1", fraction);
    cache_lock(c);
    c->fraction = fraction;
    cache_limit_update(c);
    if (figure_now(c, CACHE_RESERVED_BYTES) > c->limit) cache_release_cached(c);
    cache_unlock(c);
    return PLIM_OK;
}

uint64_t cache_limit(struct cache *c)
{
    cache_lock(c);
    uint64_t limit = c->limit != CACHE_NO_LIMIT ? c->limit : c->backing->total;
    cache_unlock(c);
    return limit;
}
