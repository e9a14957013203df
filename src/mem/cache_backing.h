/* cache_backing.h - where a cache gets its segments: host memory, a GPU, or a simulated device.
 *
 *     struct backing_simulated device;
 *     backing_simulated_init(&device, 24ull << 30);      // addresses only, no memory
 *     cache_new(&cache, &(struct cache_options){.backing = &device.base}, &err);
 *
 * A backing is a struct whose first member is struct cache_backing. Its functions are called with the cache's lock held,
 * one at a time, except `alloc` when the options say release_lock_on_cudamalloc; they must not call the cache.
 * Streams are any 64-bit values (a cudaStream_t); 0 is the default stream.
 */
#pragma once

#include "base/status.h"
#include "mem/cache_conf.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct cache_backing;

struct cache_backing_ops {
    const char *name; /* in messages: "cuda:0" */

    /* A segment of its own, aligned to 512 at least. PLIM_NO_MEMORY: refused, nothing has changed. `free` waits until the
     * device no longer uses the segment. */
    enum plim_status (*alloc)(struct cache_backing *, uint64_t bytes, uint64_t *address,
                              struct plim_error *err);
    void (*free)(struct cache_backing *, uint64_t address, uint64_t bytes);

    /* Expandable segments; all NULL: not supported, and the option is refused. A range of addresses is reserved without
     * memory; pages of it are mapped and unmapped. `page` is the same in all calls for a range; address and bytes of map
     * and unmap are multiples of it from the range's start. A failed map leaves nothing mapped. */
    enum plim_status (*reserve)(struct cache_backing *, uint64_t bytes, uint64_t page, uint64_t *address,
                                struct plim_error *err);
    void (*unreserve)(struct cache_backing *, uint64_t address, uint64_t bytes);
    enum plim_status (*map)(struct cache_backing *, uint64_t address, uint64_t bytes, struct plim_error *err);
    void (*unmap)(struct cache_backing *, uint64_t address, uint64_t bytes);

    /* Work on streams; all NULL: none is ever pending. record: an event behind all work now on the stream. done: has the
     * device passed it? finish: wait until it has. An event is dropped once, after done or finish. A failed record makes
     * the cache wait for the stream. */
    enum plim_status (*event_record)(struct cache_backing *, uint64_t stream, uint64_t *event);
    bool (*event_done)(struct cache_backing *, uint64_t event);
    void (*event_finish)(struct cache_backing *, uint64_t event);
    void (*event_drop)(struct cache_backing *, uint64_t event);
    void (*stream_finish)(struct cache_backing *, uint64_t stream);

    /* Memory of the device that no process holds; NULL or UINT64_MAX: unknown. Asked when memory was refused. */
    uint64_t (*available)(struct cache_backing *);
};

struct cache_backing {
    const struct cache_backing_ops *ops;
    uint64_t total; /* bytes of the device */
};

/* ---- host memory: pages of the system; streams are those of the caller, nothing is ever pending ---- */

struct backing_host {
    struct cache_backing base;
};

/* total 0: what this process may use now (os_allowance). */
void backing_host_init(struct backing_host *host, uint64_t total);

/* ---- a simulated device: addresses without memory, for plans, replays and tests ---- */

/* Calls that can be told to fail. */
enum simulated_call { SIMULATED_ALLOC, SIMULATED_RESERVE, SIMULATED_MAP, SIMULATED_EVENT, SIMULATED_CALLS };

struct backing_simulated {
    struct cache_backing base;
    pthread_mutex_t lock;
    uint64_t used, peak;              /* bytes now, and the most ever                     */
    uint64_t next;                    /* address of the next segment or range             */
    uint64_t others;                  /* bytes that "another process" holds; settable     */
    int64_t refuse[SIMULATED_CALLS];  /* calls until the one that fails; 0: none          */
    bool refuse_all[SIMULATED_CALLS]; /* every call fails                                 */
    int64_t calls[SIMULATED_CALLS];   /* so far                                           */
    uint64_t recorded, finished;      /* events are numbers; those up to `finished` are done */
    bool lazy;                        /* events finish only by simulated_finish or event_finish */
    int64_t waits;                    /* event_finish and stream_finish calls             */
    int64_t events, ranges;           /* recorded and not dropped; reserved and not given back */
};

void backing_simulated_init(struct backing_simulated *device, uint64_t total);
void backing_simulated_destroy(struct backing_simulated *device);

/* The device has done all work recorded so far. */
void backing_simulated_finish(struct backing_simulated *device);
