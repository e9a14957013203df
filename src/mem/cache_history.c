/* cache_history.c - a ring of the last events, for traces. Costs one comparison where it is off. */
#include "base/clock.h"
#include "mem/cache_part.h"

#include <stdlib.h>

static const char *const names[CACHE_ACTIONS] = {
    [CACHE_DID_ALLOC] = "alloc",
    [CACHE_DID_FREE_REQUESTED] = "free_requested",
    [CACHE_DID_FREE_COMPLETED] = "free_completed",
    [CACHE_DID_SEGMENT_ALLOC] = "segment_alloc",
    [CACHE_DID_SEGMENT_FREE] = "segment_free",
    [CACHE_DID_SEGMENT_MAP] = "segment_map",
    [CACHE_DID_SEGMENT_UNMAP] = "segment_unmap",
    [CACHE_DID_SNAPSHOT] = "snapshot",
    [CACHE_DID_OOM] = "oom",
};

const char *cache_action_name(enum cache_action action) { return names[action]; }

void cache_history_add(struct cache *c, enum cache_action action, uint64_t at, uint64_t bytes,
                       uint64_t stream, int cls, const void *frames)
{
    struct history *h = &c->history;
    if (!h->ring) return;
    h->ring[h->count++ % h->most] = (struct cache_event){.action = action,
                                                         .cls = cls,
                                                         .address = at,
                                                         .bytes = bytes,
                                                         .stream = stream,
                                                         .time_us = (int64_t)(clock_wall() * 1e6),
                                                         .frames = frames};
}

enum plim_status cache_history_start(struct cache *c, int64_t most, struct plim_error *err)
{
    struct cache_event *ring = most > 0 ? calloc((size_t)most, sizeof *ring) : NULL;
    cache_lock(c);
    free(c->history.ring);
    c->history = (struct history){.ring = ring, .most = most};
    cache_unlock(c);
    if (most > 0 && !ring)
        return plim_fail(err, PLIM_NO_MEMORY, "no host memory for a history of %lld events", (long long)most);
    return PLIM_OK;
}

int64_t cache_history_each(struct cache *c, void (*take)(void *arg, const struct cache_event *event),
                           void *arg)
{
    cache_lock(c);
    const struct history *h = &c->history;
    int64_t lost = h->ring && h->count > h->most ? h->count - h->most : 0;
    for (int64_t i = lost; h->ring && i < h->count; i++) take(arg, &h->ring[i % h->most]);
    cache_unlock(c);
    return lost;
}

void cache_history_mark(struct cache *c)
{
    cache_lock(c);
    cache_history_add(c, CACHE_DID_SNAPSHOT, 0, 0, 0, 0, NULL);
    cache_unlock(c);
}
