/* cache_part.h - shared by the files of cache.h: blocks, segments, streams, and the steps that change them.
 *
 * Every function here is called with the lock held.
 */
#pragma once

#include "mem/cache.h"
#include "mem/cache_bins.h"
#include <stdatomic.h>

/* The states of a block, and the functions that change them:
 *
 *                 segment_grow                block_take
 *     UNMAPPED  ----------------->  CACHED  ----------------->  LIVE
 *               <-----------------   ^  ^  <-----------------    |
 *                  block_unmap       |  |     block_return       | events_wait
 *                                    |  +------ PENDING <--------+
 *                                    |    events_pass, events_finish
 *                                    +---- segment_grow, segment_release: from and to the backing
 *
 * (names without their cache_)
 */
enum block_state { BLOCK_LIVE, BLOCK_PENDING, BLOCK_CACHED, BLOCK_UNMAPPED, BLOCK_SPARE };

struct cache_use;

struct block {
    struct cache_node
        node; /* at: address; in the bins while cached, in the tree of addresses while unmapped */
    uint64_t bytes;
    struct block *prev, *next; /* neighbours in the segment; a spare record: next is the next spare one */
    struct segment *segment;
    struct pool *pool;
    uint64_t requested;
    const void *frames;
    struct cache_use *uses; /* streams recorded */
    uint64_t born; /* searches of the pool when the block became free: its age for garbage collection */
    uint8_t state, cls;
    int32_t events; /* recorded and not passed */
};

/* Memory taken from the backing in one piece, or a range of addresses whose pages are mapped one by one. */
struct segment {
    struct cache_node node; /* key 0 */
    uint64_t bytes;
    struct block *first;
    const void *frames;
    bool expandable;
    uint64_t page; /* expandable only */
};

/* The free blocks of one size group on one stream. */
struct pool {
    struct cache_bins bins;
    struct cache_node *unmapped; /* by address */
    struct stream *stream;
    enum cache_pool kind;
};

struct stream {
    uint64_t id;
    struct pool pools[2];          /* small, large */
    struct cache_use *head, *tail; /* events in the order of recording */
};

/* A stream that uses a block; after the block was freed, an event in that stream's queue. */
struct cache_use {
    struct cache_use *next;
    struct block *block;
    struct stream *stream;
    uint64_t event;
};

/* Address to block, for every block: open addressing, never more than half full. */
struct block_map {
    struct block_slot {
        uint64_t at; /* 0: empty */
        struct block *block;
    } * slots;
    uint64_t mask;
    int shift;
};

/* The sums over both pools are not kept but their peaks are; `allocated` follows from the rest. Few cache lines change with an
 * allocation. By [pool][figure]; CACHE_ALL has only a peak. */
struct figures {
    int64_t now[CACHE_POOLS][CACHE_FIGURES];
    int64_t peak[CACHE_POOLS][CACHE_FIGURES];
    int64_t freed[CACHE_POOLS][CACHE_FIGURES];
    int64_t start[CACHE_POOLS][CACHE_FIGURES]; /* `now` when the sums were reset */
};

struct history {
    struct cache_event *ring;
    int64_t most, count; /* count: ever recorded */
};

struct cache {
    _Atomic int locked;
    char apart[60]; /* those who wait for the lock do not disturb its holder's cache lines */

    struct block *spare; /* records without a block */
    int64_t spares, records;
    int64_t queued; /* events in all queues */
    struct stream *last_stream;
    uint64_t batch_peak;            /* of active bytes since the last batch */
    uint64_t searches[CACHE_POOLS]; /* of free blocks, by pool */
    struct block_map map;
    struct figures figures;

    struct cache_conf conf;
    struct cache_backing *backing;
    const struct cache_backing_ops *ops;
    struct cache_options options;

    uint64_t budget, limit; /* limit: CACHE_NO_LIMIT when neither budget nor fraction is set */
    double fraction;
    uint64_t asking; /* bytes that the backing is being asked for without the lock */

    struct slab *slabs;
    struct cache_node *segments; /* by address */
    struct stream **streams;     /* sorted by id */
    int stream_count, stream_room;
    struct cache_use *spare_uses;
    struct use_slab *use_slabs;

    struct cache_stats stats; /* what `figures` does not have */
    int64_t batches;
    struct history history;
    struct cache_refusal refusal;
};

/* ---- the lock ---- */

void cache_lock_contended(struct cache *c);

static inline bool cache_try_lock(struct cache *c)
{
    int free = 0;
    return atomic_compare_exchange_strong_explicit(&c->locked, &free, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

static inline void cache_lock(struct cache *c)
{
    if (__builtin_expect(!cache_try_lock(c), 0)) cache_lock_contended(c);
}

static inline void cache_unlock(struct cache *c)
{
    atomic_store_explicit(&c->locked, 0, memory_order_release);
}

static inline struct block *block_of(struct cache_node *node) { return (struct block *)node; }
static inline struct segment *segment_of(struct cache_node *node) { return (struct segment *)node; }

static inline bool block_is_split(const struct block *b) { return b->prev || b->next; }

/* ---- figures ---- */

static inline void stat_add(struct cache_stat *stat, int64_t n)
{
    stat->current += n;
    stat->allocated += n;
    if (stat->current > stat->peak) stat->peak = stat->current;
}

static inline void stat_take(struct cache_stat *stat, int64_t n)
{
    stat->current -= n;
    stat->freed += n;
}

static inline void figure_add(struct cache *c, enum cache_figure f, enum cache_pool pool, uint64_t n)
{
    struct figures *g = &c->figures;
    int64_t now = g->now[pool][f] += (int64_t)n, all = g->now[CACHE_SMALL][f] + g->now[CACHE_LARGE][f];
    if (now > g->peak[pool][f]) g->peak[pool][f] = now;
    if (all > g->peak[CACHE_ALL][f]) g->peak[CACHE_ALL][f] = all;
}

static inline void figure_take(struct cache *c, enum cache_figure f, enum cache_pool pool, uint64_t n)
{
    c->figures.now[pool][f] -= (int64_t)n;
    c->figures.freed[pool][f] += (int64_t)n;
}

static inline uint64_t figure_now(const struct cache *c, enum cache_figure f)
{
    return (uint64_t)(c->figures.now[CACHE_SMALL][f] + c->figures.now[CACHE_LARGE][f]);
}

/* ---- cache_blocks.c ---- */

/* At least `n` spare records; false: no host memory. */
bool cache_blocks_ready(struct cache *c, int64_t n);
void cache_blocks_release(struct cache *c);
struct block *cache_block_at(const struct cache *c, uint64_t address);

/* A block from the spare records, alone in its segment; the caller has asked blocks_ready. */
struct block *cache_block_new(struct cache *c, struct segment *segment, struct pool *pool, uint64_t at,
                              uint64_t bytes);
void cache_block_drop(struct cache *c, struct block *b);
/* Cuts a block that is in no set; returns the rest behind it, in no set and of the same state. */
struct block *cache_block_cut(struct cache *c, struct block *b, uint64_t bytes);
/* Joins with a neighbour of the same state when that state is CACHED or UNMAPPED; returns the bytes that were taken over. b
 * is in no set; the block that remains is in *b. */
uint64_t cache_block_join(struct cache *c, struct block **b, struct block *other);
/* Put into and take out of the set that the state belongs to. */
void cache_block_file(struct cache *c, struct block *b);
void cache_block_unfile(struct block *b);

/* The best block as PyTorch's rules choose it, taken out of its set; NULL: none. */
struct block *cache_block_search(struct cache *c, struct pool *pool, uint64_t bytes);
/* Makes a free block live: cuts off what the rules allow, counts it. */
void cache_block_take(struct cache *c, struct block *b, uint64_t bytes, const struct cache_request *request);
/* Live or pending to cached, joined with its neighbours. */
void cache_block_return(struct cache *c, struct block *b);

struct stream *cache_stream_for(struct cache *c, uint64_t id); /* NULL: no host memory */

/* ---- cache_segments.c: the backing is asked ---- */

/* A free block of at least `bytes`, in no set; NULL: refused. *err has the backing's words. */
struct block *cache_segment_grow(struct cache *c, struct pool *pool, uint64_t bytes, const void *frames,
                                 struct plim_error *err);
/* Gives a whole cached segment back. */
void cache_segment_release(struct cache *c, struct block *b);
/* Gives back the whole pages of a cached block of an expandable segment. */
void cache_block_unmap(struct cache *c, struct block *b);
void cache_segments_close(struct cache *c);
void cache_limit_update(struct cache *c);

/* ---- cache_release.c ---- */

void cache_release_garbage(struct cache *c);                                     /* above the threshold */
bool cache_release_oversize(struct cache *c, struct pool *pool, uint64_t bytes); /* enough for `bytes`? */
void cache_release_cached(struct cache *c);                                      /* all, after waiting  */

/* ---- cache_events.c ---- */

void cache_events_pass(struct cache *c);   /* returns blocks whose streams have passed */
void cache_events_finish(struct cache *c); /* waits for all of them */
void cache_events_wait(struct cache *c,
                       struct block *b); /* a freed block with uses becomes pending, or returns */
void cache_events_close(struct cache *c);

/* ---- cache_stats.c ---- */

void cache_fragmentation_now(struct cache *c, struct cache_fragmentation *out);

/* ---- cache_refuse.c ---- */

enum plim_status cache_refuse(struct cache *c, const struct cache_request *request, uint64_t rounded,
                              struct plim_error *err);

/* ---- cache_history.c ---- */

void cache_history_add(struct cache *c, enum cache_action action, uint64_t at, uint64_t bytes,
                       uint64_t stream, int cls, const void *frames);

static inline void history_note(struct cache *c, enum cache_action action, uint64_t bytes,
                                const struct block *b)
{
    if (__builtin_expect(c->history.ring != NULL, 0))
        cache_history_add(c, action, b->node.at, bytes, b->pool->stream->id, b->cls, b->frames);
}
