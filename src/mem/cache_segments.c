/* cache_segments.c - memory from the backing: whole segments, and pages of expandable ones. Every byte passes limit and ledger
 * before the backing is asked for it. */
#include "mem/cache_part.h"

#include <stdlib.h>

/* ---- limit ---- */

void cache_limit_update(struct cache *c)
{
    uint64_t limit = c->budget ? c->budget : CACHE_NO_LIMIT;
    uint64_t share = c->fraction > 0 ? (uint64_t)(c->fraction * (double)c->backing->total) : CACHE_NO_LIMIT;
    if (share < limit) limit = share;
    if (limit != CACHE_NO_LIMIT) limit = limit > c->options.overhead ? limit - c->options.overhead : 0;
    c->limit = limit;
}

/* Takes bytes from the limit and from the ledger. */
static bool admit(struct cache *c, uint64_t bytes, struct plim_error *err)
{
    uint64_t held = figure_now(c, CACHE_RESERVED_BYTES) + c->asking;
    if (c->limit != CACHE_NO_LIMIT && (held > c->limit || bytes > c->limit - held)) {
        plim_fail(err, PLIM_NO_MEMORY, "above the limit");
        return false;
    }
    struct ledger *ledger = c->options.ledger;
    return !ledger || ledger_reserve(ledger, c->options.ledger_class, bytes, err) == PLIM_OK;
}

static void give_back(struct cache *c, uint64_t bytes)
{
    if (c->options.ledger) ledger_release(c->options.ledger, c->options.ledger_class, bytes);
}

/* ---- whole segments ---- */

static enum plim_status ask(struct cache *c, uint64_t bytes, uint64_t *at, struct plim_error *err)
{
    if (!c->conf.release_lock) return c->ops->alloc(c->backing, bytes, at, err);
    c->asking += bytes;
    cache_unlock(c);
    enum plim_status status = c->ops->alloc(c->backing, bytes, at, err);
    cache_lock(c);
    c->asking -= bytes;
    return status;
}

static struct segment *segment_new(struct cache *c, uint64_t at, uint64_t bytes, const void *frames)
{
    struct segment *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->node.at = at;
    s->bytes = bytes;
    s->frames = frames;
    tree_insert(&c->segments, &s->node);
    return s;
}

static void segment_drop(struct cache *c, struct segment *s)
{
    tree_remove(&c->segments, &s->node);
    free(s);
}

static struct block *segment_alloc(struct cache *c, struct pool *pool, uint64_t bytes, const void *frames,
                                   struct plim_error *err)
{
    uint64_t at = 0, size = cache_segment_bytes(bytes);
    if (!admit(c, size, err)) return NULL;
    if (ask(c, size, &at, err) != PLIM_OK) return give_back(c, size), NULL;
    /* The lock may have been released: another thread may have used the spare records. */
    struct segment *s = cache_blocks_ready(c, 2) ? segment_new(c, at, size, frames) : NULL;
    if (!s) {
        c->ops->free(c->backing, at, size);
        give_back(c, size);
        plim_fail(err, PLIM_NO_MEMORY, "no host memory for the allocator's records");
        return NULL;
    }
    struct block *b = s->first = cache_block_new(c, s, pool, at, size);
    figure_add(c, CACHE_SEGMENT, pool->kind, 1);
    figure_add(c, CACHE_RESERVED_BYTES, pool->kind, size);
    if (size >= c->conf.max_split) stat_add(&c->stats.oversize_segments, 1);
    c->stats.num_device_alloc++;
    b->frames = frames;
    history_note(c, CACHE_DID_SEGMENT_ALLOC, size, b);
    return b;
}

void cache_segment_release(struct cache *c, struct block *b)
{
    struct segment *s = b->segment;
    cache_block_unfile(b);
    b->frames = s->frames;
    history_note(c, CACHE_DID_SEGMENT_FREE, b->bytes, b);
    figure_take(c, CACHE_SEGMENT, b->pool->kind, 1);
    figure_take(c, CACHE_RESERVED_BYTES, b->pool->kind, b->bytes);
    if (b->bytes >= c->conf.max_split) stat_take(&c->stats.oversize_segments, 1);
    c->stats.num_device_free++;
    c->ops->free(c->backing, s->node.at, s->bytes);
    give_back(c, s->bytes);
    segment_drop(c, s);
    cache_block_drop(c, b);
}

/* ---- expandable segments ---- */

static uint64_t round_up(uint64_t n, uint64_t step) { return (n + step - 1) / step * step; }

/* A range of addresses for the whole device and an eighth more, because blocks in use leave holes. */
static struct block *range_new(struct cache *c, struct pool *pool, uint64_t wanted, const void *frames,
                               struct plim_error *err)
{
    uint64_t page = pool->kind == CACHE_SMALL ? CACHE_SMALL_SEGMENT : CACHE_LARGE_SEGMENT;
    uint64_t bytes = round_up(c->backing->total + c->backing->total / 8, page), at = 0;
    if (wanted > bytes) return plim_fail(err, PLIM_NO_MEMORY, "more than the device has"), NULL;
    if (c->ops->reserve(c->backing, bytes, page, &at, err) != PLIM_OK) return NULL;
    struct segment *s = segment_new(c, at, bytes, frames);
    if (!s) {
        c->ops->unreserve(c->backing, at, bytes);
        plim_fail(err, PLIM_NO_MEMORY, "no host memory for the allocator's records");
        return NULL;
    }
    s->expandable = true;
    s->page = page;
    s->first = cache_block_new(c, s, pool, at, bytes);
    s->first->state = BLOCK_UNMAPPED;
    cache_block_file(c, s->first);
    return s->first;
}

/* Is there room for `bytes` from b on, over free and unmapped blocks? */
static bool has_room(const struct block *b, uint64_t bytes)
{
    uint64_t room = 0;
    for (; b && b->state >= BLOCK_CACHED && room < bytes; b = b->next) room += b->bytes;
    return room >= bytes;
}

/* The lowest place: an unmapped block, or the free block before it, from which `bytes` can be had. */
static struct block *range_place(struct cache *c, struct pool *pool, uint64_t bytes, const void *frames,
                                 struct plim_error *err)
{
    struct cache_node *node = tree_first(pool->unmapped, 0, 0);
    for (; node; node = tree_first(pool->unmapped, 0, node->at + 1)) {
        struct block *b = block_of(node);
        if (b->prev && b->prev->state == BLOCK_CACHED) b = b->prev;
        if (has_room(b, bytes)) return b;
    }
    return range_new(c, pool, bytes, frames, err);
}

/* Maps pages for the first `bytes` of an unmapped block and joins them with the free blocks around; NULL: refused. */
static struct block *range_map(struct cache *c, struct block *b, uint64_t bytes, const void *frames,
                               struct plim_error *err)
{
    uint64_t size = round_up(bytes, b->segment->page);
    if (!admit(c, size, err)) return NULL;
    if (c->ops->map(c->backing, b->node.at, size, err) != PLIM_OK) return give_back(c, size), NULL;
    cache_block_unfile(b);
    if (size < b->bytes) cache_block_file(c, cache_block_cut(c, b, size));
    b->state = BLOCK_CACHED;
    b->frames = frames;
    figure_add(c, CACHE_RESERVED_BYTES, b->pool->kind, size);
    c->stats.num_device_alloc++;
    history_note(c, CACHE_DID_SEGMENT_MAP, size, b);
    b->frames = NULL;
    cache_block_join(c, &b, b->prev);
    cache_block_join(c, &b, b->next);
    cache_block_file(c, b);
    return b;
}

static struct block *range_expand(struct cache *c, struct pool *pool, uint64_t bytes, const void *frames,
                                  struct plim_error *err)
{
    struct block *b = range_place(c, pool, bytes, frames, err);
    if (b && b->state == BLOCK_UNMAPPED)
        b = range_map(c, b, bytes < b->bytes ? bytes : b->bytes, frames, err);
    while (b && b->bytes < bytes) {
        uint64_t missing = bytes - b->bytes, room = b->next->bytes;
        b = range_map(c, b->next, missing < room ? missing : room, frames, err);
    }
    if (b) cache_block_unfile(b);
    return b;
}

void cache_block_unmap(struct cache *c, struct block *b)
{
    struct segment *s = b->segment;
    uint64_t begin = round_up(b->node.at - s->node.at, s->page) + s->node.at;
    uint64_t end = (b->node.at + b->bytes - s->node.at) / s->page * s->page + s->node.at;
    if (begin >= end || !cache_blocks_ready(c, 3)) return;
    if (c->ops->stream_finish) c->ops->stream_finish(c->backing, b->pool->stream->id);
    cache_block_unfile(b);
    if (begin > b->node.at) {
        struct block *front = b;
        b = cache_block_cut(c, b, begin - b->node.at);
        cache_block_file(c, front);
    }
    if (end < b->node.at + b->bytes) cache_block_file(c, cache_block_cut(c, b, end - begin));
    c->ops->unmap(c->backing, begin, end - begin);
    give_back(c, end - begin);
    b->state = BLOCK_UNMAPPED;
    figure_take(c, CACHE_RESERVED_BYTES, b->pool->kind, end - begin);
    c->stats.num_device_free++;
    history_note(c, CACHE_DID_SEGMENT_UNMAP, end - begin, b);
    cache_block_join(c, &b, b->prev);
    cache_block_join(c, &b, b->next);
    if (block_is_split(b)) {
        cache_block_file(c, b);
        return;
    }
    c->ops->unreserve(c->backing, s->node.at, s->bytes);
    segment_drop(c, s);
    cache_block_drop(c, b);
}

struct block *cache_segment_grow(struct cache *c, struct pool *pool, uint64_t bytes, const void *frames,
                                 struct plim_error *err)
{
    if (!cache_blocks_ready(c, 4)) {
        plim_fail(err, PLIM_NO_MEMORY, "no host memory for the allocator's records");
        return NULL;
    }
    return c->conf.expandable ? range_expand(c, pool, bytes, frames, err)
                              : segment_alloc(c, pool, bytes, frames, err);
}

/* ---- the end ---- */

static void unmap_all(struct cache *c, struct segment *s)
{
    for (struct block *b = s->first; b;) {
        uint64_t begin = b->node.at, end = begin;
        for (; b && b->state != BLOCK_UNMAPPED; b = b->next) end += b->bytes;
        if (end > begin) c->ops->unmap(c->backing, begin, end - begin);
        if (b) b = b->next;
    }
    c->ops->unreserve(c->backing, s->node.at, s->bytes);
}

void cache_segments_close(struct cache *c)
{
    give_back(c, figure_now(c, CACHE_RESERVED_BYTES));
    while (c->segments) {
        struct segment *s = segment_of(c->segments);
        if (s->expandable)
            unmap_all(c, s);
        else
            c->ops->free(c->backing, s->node.at, s->bytes);
        segment_drop(c, s);
    }
}
