/* cache.h - a caching allocator with the rules of PyTorch's, inside a budget.
 *
 *     struct cache *cache;
 *     struct cache_options options = {.backing = &device.base, .budget = 20ull << 30};
 *     cache_conf_parse("expandable_segments:True", &options.conf, &err);
 *     cache_new(&cache, &options, &err);
 *
 *     uint64_t at;
 *     cache_malloc(cache, bytes, stream, &at, &err);     // PLIM_NO_MEMORY: err says who holds what, and what to do
 *     cache_record_stream(cache, at, other, &err);       // `other` uses it too: reused only when `other` has passed
 *     cache_free(cache, at, &err);                       // returns to the cache, not to the device
 *     cache_batch_done(cache);                           // after each batch: cleans up when it is worth it
 *     cache_destroy(cache);
 *
 * Sizes, pools, best fit, splitting, merging, garbage collection, release and retry follow PyTorch's allocator rule by rule,
 * so that the same requests under the same options reserve the same bytes. docs/allocator.md lists the rules and these
 * differences:
 *   - garbage_collection_threshold acts without a memory fraction; the limit is then the budget or the device's memory;
 *   - budget and fraction count everything: the bytes of the process outside the cache are given as `overhead`;
 *   - with expandable segments a limit counts the pages really mapped, not the size of a segment that is never made;
 *   - before a request is refused, the cache searches once more for a block that was freed meanwhile;
 *   - a refusal is a value that names holders, fragmentation and a remedy.
 *
 * Thread-safe; one lock per cache. A request that the cache can serve costs O(log n) in the number of free blocks of about
 * its size and allocates nothing. An address belongs to one cache until it is freed. Addresses are 64-bit numbers, because
 * a GPU's memory has no C pointers.
 */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"
#include "mem/cache_backing.h"
#include "mem/cache_conf.h"
#include "mem/ledger.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cache;

enum { CACHE_CLASSES_MAX = 16 };

/* Zero members take the defaults named. Pointers are borrowed and outlive the cache. */
struct cache_options {
    struct cache_backing *backing;
    struct cache_conf conf; /* zeroed: PyTorch's defaults */
    uint64_t budget;        /* most bytes of the process on this device, overhead included; 0: no budget */
    uint64_t overhead;      /* bytes of the process outside the cache, e.g. the CUDA context; counted against
                             * the budget and against the fraction */
    struct ledger *ledger;  /* every reserved byte is on it, too; its refusal is a refusal; NULL: none */
    int ledger_class;

    const char *const *classes; /* names of tags for the explanation; NULL: one class, "memory" */
    int class_count;            /* 1 to CACHE_CLASSES_MAX */

    double clean_above;  /* cache_batch_done cleans above this fragmentation; 0: 0.30; 1: never */
    int64_t clean_every; /* cache_batch_done cleans after so many batches; 0: never */

    /* Called before new memory is taken, without the lock; may free blocks of this cache. True: something was freed. */
    bool (*reclaim)(void *arg, uint64_t bytes);
    /* Turns the `frames` of an allocation into text for an explanation; called with the lock held. NULL: not told. */
    void (*describe)(void *arg, const void *frames, char *text, size_t size);
    void *arg;
};

/* PLIM_BAD_INPUT: options that contradict each other. PLIM_UNSUPPORTED: backend:cudaMallocAsync, or expandable segments
 * that the backing does not have. PLIM_NO_MEMORY: no host memory for the tables. */
enum plim_status cache_new(struct cache **out, const struct cache_options *options, struct plim_error *err);

/* Waits for all recorded streams and gives everything back to the backing, live allocations included. NULL is allowed. */
void cache_destroy(struct cache *cache);

/* ---- memory ---- */

/* One request. `cls` is an index into the options' classes; `frames` is any pointer of the caller's, kept with the block
 * and shown by cache_walk and the history. */
struct cache_request {
    uint64_t bytes;
    uint64_t stream;
    int cls;
    const void *frames;
};

/* 0 bytes give address 0. PLIM_NO_MEMORY: refused; nothing has changed, except that cached segments may have gone back to
 * the device. cache_last_refusal has the numbers behind the text. */
enum plim_status cache_malloc(struct cache *cache, uint64_t bytes, uint64_t stream, uint64_t *address,
                              struct plim_error *err);
enum plim_status cache_malloc_request(struct cache *cache, const struct cache_request *request,
                                      uint64_t *address, struct plim_error *err);

/* Returns the block to the cache; address 0 is allowed. With recorded streams it waits, as a block pending free, until they
 * have passed. Never runs out of memory. PLIM_BAD_INPUT: not an address of a live allocation (freed twice, foreign, or
 * inside a block); nothing has changed. */
enum plim_status cache_free(struct cache *cache, uint64_t address, struct plim_error *err);

/* `stream` uses the allocation as well as the stream that it was made for. PLIM_BAD_INPUT as in cache_free. */
enum plim_status cache_record_stream(struct cache *cache, uint64_t address, uint64_t stream,
                                     struct plim_error *err);

struct cache_block {
    uint64_t address, bytes, requested, stream;
    enum cache_state {
        CACHE_LIVE,
        CACHE_PENDING,
        CACHE_CACHED
    } state; /* PENDING: freed, waiting for streams */
    int cls;
    const void *frames;
};

/* The live block at an address; PLIM_NOT_FOUND: none begins there. *segment and *segment_bytes (either may be NULL) are the
 * memory around it that was taken from the backing in one piece. */
enum plim_status cache_find(struct cache *cache, uint64_t address, struct cache_block *out, uint64_t *segment,
                            uint64_t *segment_bytes, struct plim_error *err);

/* ---- limits ---- */

/* Move the budget (0: none) or the fraction (0: none; PLIM_BAD_INPUT outside [0,1]) at any time. A limit below what is
 * reserved releases cached segments; live allocations stay, and new memory is refused until enough was freed. */
void cache_set_budget(struct cache *cache, uint64_t budget);
enum plim_status cache_set_fraction(struct cache *cache, double fraction, struct plim_error *err);

/* Bytes that the cache itself may reserve under budget, fraction and overhead; the device's memory when there is no limit. */
uint64_t cache_limit(struct cache *cache);

/* ---- clean-up ---- */

/* Gives cached memory back to the device: whole free segments, whole free pages of expandable ones, after waiting for
 * blocks that are pending free. This is torch.cuda.empty_cache(). Deep: calls the options' reclaim first, so that the caller
 * can drop what it no longer needs. Returns the bytes given back. */
uint64_t cache_clear(struct cache *cache, bool deep);

/* Call after each batch, between two steps. Cleans up when clean_every batches have passed, or when the share of the
 * reserved bytes that were never in use at once during the batch is above clean_above and something can be released.
 * Returns the bytes given back. */
uint64_t cache_batch_done(struct cache *cache);

/* ---- figures: PyTorch's names ---- */

struct cache_stat {
    int64_t current, peak, allocated, freed; /* allocated and freed only grow */
};

enum cache_pool { CACHE_ALL, CACHE_SMALL, CACHE_LARGE, CACHE_POOLS };

enum cache_figure {
    CACHE_ALLOCATION,           /* live allocations                               */
    CACHE_ACTIVE,               /* live and pending free                          */
    CACHE_ALLOCATED_BYTES,      /* of live blocks                                 */
    CACHE_ACTIVE_BYTES,         /* of live and pending blocks                     */
    CACHE_REQUESTED_BYTES,      /* as asked for, without rounding                 */
    CACHE_SEGMENT,              /* segments of the device, not expandable         */
    CACHE_RESERVED_BYTES,       /* taken from the device                          */
    CACHE_INACTIVE_SPLIT,       /* free blocks whose segment cannot be given back */
    CACHE_INACTIVE_SPLIT_BYTES, /* their bytes                                    */
    CACHE_FIGURES
};

struct cache_stats {
    struct cache_stat of[CACHE_FIGURES][CACHE_POOLS];
    struct cache_stat oversize_allocations, oversize_segments;
    int64_t num_alloc_retries, num_ooms, num_sync_all_streams, num_device_alloc, num_device_free;
    int64_t max_split_size; /* -1: no limit */

    /* Beyond PyTorch's: */
    int64_t num_gc, num_clean_ups, num_late_blocks; /* blocks found by the last search before a refusal */
    uint64_t limit, budget, overhead;               /* budget 0: none */
    struct cache_stat by_class[CACHE_CLASSES_MAX];  /* live bytes */
};

void cache_stats_read(struct cache *cache, struct cache_stats *out);

/* Each number under the name that torch.cuda.memory_stats() gives it: "allocated_bytes.all.peak", "num_ooms". */
void cache_stats_each(const struct cache_stats *stats,
                      void (*take)(void *arg, const char *name, int64_t value), void *arg);
const char *cache_figure_name(enum cache_figure figure);

/* Peaks start again from the present; reset_accumulated: allocated, freed and the counters start from zero. */
void cache_reset_peaks(struct cache *cache);
void cache_reset_accumulated(struct cache *cache);

/* Three shares from 0 to 1, and the bytes behind them. */
struct cache_fragmentation {
    double peak;            /* 1 - peak active / peak reserved                                   */
    double external;        /* of the reserved bytes, those that no live or pending block has    */
    double internal;        /* of the allocated bytes, those that were not asked for: rounding   */
    uint64_t free_bytes;    /* cached, of which                                          */
    uint64_t stuck_bytes;   /* cannot be given back: pieces of segments or pages in use  */
    uint64_t largest_bytes; /* the largest free block                                    */
    uint64_t rounding_bytes;
};

void cache_fragmentation_read(struct cache *cache, struct cache_fragmentation *out);

/* ---- refusals ---- */

enum cache_cause {
    CACHE_TOO_LARGE, /* more than the limit by itself                                          */
    CACHE_LIVE_FULL, /* live allocations leave too little                                      */
    CACHE_SCATTERED, /* enough is free, in pieces that are too small                           */
    CACHE_OTHERS,    /* the limit allows it, the device does not: another process holds memory */
};

struct cache_refusal {
    enum cache_cause cause;
    uint64_t bytes, rounded, stream; /* as requested; the block's size */
    int cls;
    uint64_t limit, overhead; /* as cache_limit                 */
    uint64_t reserved, live;  /* bytes at the refusal           */
    uint64_t others;          /* held outside this cache and its overhead */
    uint64_t available;       /* memory of the device that nobody holds; UINT64_MAX: unknown */
    struct cache_fragmentation fragmentation;
    int64_t by_class[CACHE_CLASSES_MAX]; /* live bytes */
    int64_t count;                       /* refusals so far, this one included */
};

/* False: nothing was refused yet. */
bool cache_last_refusal(struct cache *cache, struct cache_refusal *out);

/* Several lines for people: the request, who holds what by class, the largest holders with their frames (when describe was
 * given), fragmentation, and what to do. */
void cache_explain(struct cache *cache, const struct cache_refusal *refusal, struct strbuf *out);

/* ---- looking inside ---- */

/* A segment, or a run of mapped pages of an expandable one, with its blocks in the order of addresses. */
struct cache_segment {
    uint64_t address, bytes, stream;
    uint64_t allocated, active, requested; /* bytes of its blocks */
    enum cache_pool pool;                  /* CACHE_SMALL or CACHE_LARGE */
    bool expandable;
    const void *frames; /* of the request that made it */
    int blocks;         /* how many calls of `block` follow */
};

/* Calls segment, then block for each of its blocks. The lock is held: the functions must not call the cache. Either may be
 * NULL. Order: by address. */
struct cache_visitor {
    void (*segment)(void *arg, const struct cache_segment *segment);
    void (*block)(void *arg, const struct cache_block *block);
    void *arg;
};
void cache_walk(struct cache *cache, const struct cache_visitor *visitor);

/* ---- history: off unless started ---- */

enum cache_action { /* names as in PyTorch's traces: cache_action_name */
                    CACHE_DID_ALLOC,
                    CACHE_DID_FREE_REQUESTED,
                    CACHE_DID_FREE_COMPLETED,
                    CACHE_DID_SEGMENT_ALLOC,
                    CACHE_DID_SEGMENT_FREE,
                    CACHE_DID_SEGMENT_MAP,
                    CACHE_DID_SEGMENT_UNMAP,
                    CACHE_DID_SNAPSHOT,
                    CACHE_DID_OOM,
                    CACHE_ACTIONS
};

struct cache_event {
    enum cache_action action;
    int cls;
    uint64_t address; /* oom: bytes that the device still has; UINT64_MAX: unknown */
    uint64_t bytes;   /* alloc: as requested; others: the block's or segment's size */
    uint64_t stream;
    int64_t time_us; /* since the epoch */
    const void *frames;
};

/* Keeps the last `most` events in a ring; starts again when it runs already. 0: stops and forgets. PLIM_NO_MEMORY: the ring
 * cannot be made; recording is off. */
enum plim_status cache_history_start(struct cache *cache, int64_t most, struct plim_error *err);

/* The kept events, oldest first; returns how many older ones are lost. The lock is held as in cache_walk. */
int64_t cache_history_each(struct cache *cache, void (*take)(void *arg, const struct cache_event *event),
                           void *arg);
/* Adds a mark to the history. */
void cache_history_mark(struct cache *cache);
const char *cache_action_name(enum cache_action action);

/* ---- for tests and for distrust ---- */

/* Verifies the invariants numbered in cache_blocks.c, in O(n log n). PLIM_BUG names the one that is broken. */
enum plim_status cache_check(struct cache *cache, struct plim_error *err);
