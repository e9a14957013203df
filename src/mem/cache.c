/* cache.c - see cache.h: the order of steps of an allocation and of a free. */
#include "mem/cache.h"
#include "mem/cache_part.h"

#include <stdlib.h>
#include <time.h>

/* Larger requests are mistakes, and rounding them would overflow. */
#define REQUEST_MAX ((uint64_t)1 << 60)

/* ---- the lock ---- */

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

/* The lock is usually held for some tens of nanoseconds. A waiter that stays away longer each time lets the other thread do
 * several operations with its own cache lines, which is faster for both than taking turns. One that waits for a call of the
 * backing sleeps; nobody wakes it, so that unlocking is one store. */
void cache_lock_contended(struct cache *c)
{
    for (int pauses = 16; pauses <= 1024; pauses *= 2) {
        for (int i = 0; i < pauses; i++) pause_briefly();
        if (cache_try_lock(c)) return;
    }
    while (!cache_try_lock(c)) nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

/* ---- beginning and end ---- */

static enum plim_status check_options(const struct cache_options *o, struct plim_error *err)
{
    const struct cache_backing_ops *ops = o->backing->ops;
    if (o->conf.async_backend)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "backend:cudaMallocAsync is CUDA's own allocator; this one is backend:native");
    if (o->conf.expandable && !ops->map)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "%s has no expandable segments; set expandable_segments:False", ops->name);
    if (o->class_count < 0 || o->class_count > CACHE_CLASSES_MAX || (o->class_count > 0 && !o->classes))
        return plim_fail(err, PLIM_BAD_INPUT, "an allocator has 1 to %d named classes", CACHE_CLASSES_MAX);
    if (o->overhead > o->backing->total)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: the overhead is above the device's memory", ops->name);
    return PLIM_OK;
}

static void take_options(struct cache *c, const struct cache_options *options)
{
    static const char *const one[] = {"memory"};
    c->options = *options;
    if (!c->options.class_count) c->options.classes = one, c->options.class_count = 1;
    if (!(c->options.clean_above > 0)) c->options.clean_above = 0.30;
    c->conf = options->conf;
    if (!c->conf.max_split) c->conf.max_split = CACHE_NO_LIMIT;
    if (!c->conf.max_non_split_rounding) c->conf.max_non_split_rounding = CACHE_LARGE_SEGMENT;
    c->backing = options->backing;
    c->ops = options->backing->ops;
    c->budget = options->budget;
    c->fraction = c->conf.fraction;
    cache_limit_update(c);
}

enum plim_status cache_new(struct cache **out, const struct cache_options *options, struct plim_error *err)
{
    enum plim_status status = check_options(options, err);
    if (status != PLIM_OK) return status;
    struct cache *c = calloc(1, sizeof *c);
    if (!c) return plim_fail(err, PLIM_NO_MEMORY, "no host memory for the allocator");
    take_options(c, options);
    if (!cache_blocks_ready(c, 1)) {
        cache_destroy(c);
        return plim_fail(err, PLIM_NO_MEMORY, "no host memory for the allocator");
    }
    *out = c;
    return PLIM_OK;
}

void cache_destroy(struct cache *c)
{
    if (!c) return;
    cache_events_close(c);
    cache_segments_close(c);
    for (int i = 0; i < c->stream_count; i++) free(c->streams[i]);
    free(c->streams);
    cache_blocks_release(c);
    free(c->history.ring);
    free(c);
}

/* ---- allocation ---- */

/* The caller's callback may free blocks of this cache, so it runs without the lock. */
static bool reclaim(struct cache *c, uint64_t bytes)
{
    if (!c->options.reclaim) return false;
    cache_unlock(c);
    bool freed = c->options.reclaim(c->options.arg, bytes);
    cache_lock(c);
    return freed;
}

/* No cached block fits: PyTorch's steps in its order, and a last search for a block that was freed meanwhile. */
static struct block *find_more(struct cache *c, struct pool *pool, uint64_t bytes, const void *frames)
{
    struct block *b = reclaim(c, bytes) ? cache_block_search(c, pool, bytes) : NULL;
    if (b) return b;
    cache_release_garbage(c);
    if ((b = cache_segment_grow(c, pool, bytes, frames, NULL))) return b;
    if (cache_release_oversize(c, pool, bytes) && (b = cache_segment_grow(c, pool, bytes, frames, NULL)))
        return b;
    cache_release_cached(c);
    c->stats.num_alloc_retries++;
    if ((b = cache_segment_grow(c, pool, bytes, frames, NULL))) return b;
    if ((b = cache_block_search(c, pool, bytes))) c->stats.num_late_blocks++;
    return b;
}

static enum plim_status take_locked(struct cache *c, const struct cache_request *request, uint64_t *address,
                                    struct plim_error *err)
{
    struct stream *stream = cache_stream_for(c, request->stream);
    if (!stream || (c->spares < 4 && !cache_blocks_ready(c, 4)))
        return plim_fail(err, PLIM_NO_MEMORY, "no host memory for the allocator's records");
    if (c->queued) cache_events_pass(c);
    uint64_t bytes = cache_conf_round(&c->conf, request->bytes);
    struct pool *pool = &stream->pools[bytes > CACHE_SMALL_MAX];
    struct block *b = cache_block_search(c, pool, bytes);
    if (!b) b = find_more(c, pool, bytes, request->frames);
    /* While the lock was released others may have used the spare records. */
    if (b && !cache_blocks_ready(c, 1)) {
        cache_block_file(c, b);
        return plim_fail(err, PLIM_NO_MEMORY, "no host memory for the allocator's records");
    }
    if (!b) return cache_refuse(c, request, bytes, err);
    cache_block_take(c, b, bytes, request);
    *address = b->node.at;
    return PLIM_OK;
}

enum plim_status cache_malloc_request(struct cache *c, const struct cache_request *request, uint64_t *address,
                                      struct plim_error *err)
{
    *address = 0;
    if (!request->bytes) return PLIM_OK;
    if (request->cls < 0 || request->cls >= c->options.class_count)
        return plim_fail(err, PLIM_BAD_INPUT, "the allocator has no class %d", request->cls);
    cache_lock(c);
    enum plim_status status = request->bytes > REQUEST_MAX ? cache_refuse(c, request, CACHE_NO_LIMIT / 2, err)
                                                           : take_locked(c, request, address, err);
    cache_unlock(c);
    return status;
}

enum plim_status cache_malloc(struct cache *c, uint64_t bytes, uint64_t stream, uint64_t *address,
                              struct plim_error *err)
{
    return cache_malloc_request(c, &(struct cache_request){.bytes = bytes, .stream = stream}, address, err);
}

/* ---- free ---- */

static void free_locked(struct cache *c, struct block *b)
{
    enum cache_pool kind = b->pool->kind;
    figure_take(c, CACHE_ALLOCATION, kind, 1);
    figure_take(c, CACHE_ALLOCATED_BYTES, kind, b->bytes);
    stat_take(&c->stats.by_class[b->cls], (int64_t)b->bytes);
    if (b->bytes >= c->conf.max_split) stat_take(&c->stats.oversize_allocations, 1);
    history_note(c, CACHE_DID_FREE_REQUESTED, b->bytes, b);
    if (b->uses)
        cache_events_wait(c, b);
    else
        cache_block_return(c, b);
}

enum plim_status cache_free(struct cache *c, uint64_t address, struct plim_error *err)
{
    if (!address) return PLIM_OK;
    cache_lock(c);
    struct block *b = cache_block_at(c, address);
    bool live = b && b->state == BLOCK_LIVE;
    if (live) free_locked(c, b);
    cache_unlock(c);
    if (live) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT, "free: 0x%llx %s", (unsigned long long)address,
                     b ? "was freed before" : "is not an allocation of this cache");
}

enum plim_status cache_find(struct cache *c, uint64_t address, struct cache_block *out, uint64_t *segment,
                            uint64_t *segment_bytes, struct plim_error *err)
{
    cache_lock(c);
    struct block *b = address ? cache_block_at(c, address) : NULL;
    bool live = b && b->state == BLOCK_LIVE;
    if (live) {
        struct block *first = b, *last = b;
        *out = (struct cache_block){address,    b->bytes, b->requested, b->pool->stream->id,
                                    CACHE_LIVE, b->cls,   b->frames};
        while (first->prev && first->prev->state != BLOCK_UNMAPPED) first = first->prev;
        while (last->next && last->next->state != BLOCK_UNMAPPED) last = last->next;
        if (segment) *segment = first->node.at;
        if (segment_bytes) *segment_bytes = last->node.at + last->bytes - first->node.at;
    }
    cache_unlock(c);
    if (live) return PLIM_OK;
    return plim_fail(err, PLIM_NOT_FOUND, "no live allocation begins at 0x%llx", (unsigned long long)address);
}
