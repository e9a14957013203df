/* backing_simulated.c - see cache_backing.h: a device of so many bytes that hands out numbers. Ranges and segments never share
 * addresses, and addresses are not used twice, so that a stale one is noticed. */
#include "base/bytes.h"
#include "mem/cache_backing.h"

#include <string.h>

static struct backing_simulated *self(struct cache_backing *backing)
{
    return (struct backing_simulated *)backing;
}

static bool refused(struct backing_simulated *d, enum simulated_call call)
{
    d->calls[call]++;
    return d->refuse_all[call] || (d->refuse[call] > 0 && --d->refuse[call] == 0);
}

static enum plim_status take(struct backing_simulated *d, uint64_t bytes, struct plim_error *err)
{
    uint64_t free_bytes = d->base.total - d->used - d->others;
    char text[BYTES_TEXT];
    if (bytes > free_bytes)
        return plim_fail(err, PLIM_NO_MEMORY, "the simulated device has only %s left",
                         bytes_format(text, free_bytes));
    d->used += bytes;
    if (d->used > d->peak) d->peak = d->used;
    return PLIM_OK;
}

static uint64_t new_address(struct backing_simulated *d, uint64_t bytes)
{
    uint64_t at = d->next;
    d->next += (bytes + CACHE_LARGE_STEP - 1) / CACHE_LARGE_STEP * CACHE_LARGE_STEP + CACHE_LARGE_STEP;
    return at;
}

static enum plim_status sim_alloc(struct cache_backing *backing, uint64_t bytes, uint64_t *address,
                                  struct plim_error *err)
{
    struct backing_simulated *d = self(backing);
    pthread_mutex_lock(&d->lock);
    enum plim_status status = refused(d, SIMULATED_ALLOC)
                                  ? plim_fail(err, PLIM_NO_MEMORY, "the simulated device was told to refuse")
                                  : take(d, bytes, err);
    if (status == PLIM_OK) *address = new_address(d, bytes);
    pthread_mutex_unlock(&d->lock);
    return status;
}

static void sim_give(struct cache_backing *backing, uint64_t, uint64_t bytes)
{
    struct backing_simulated *d = self(backing);
    pthread_mutex_lock(&d->lock);
    d->used -= bytes;
    pthread_mutex_unlock(&d->lock);
}

static enum plim_status sim_reserve(struct cache_backing *backing, uint64_t bytes, uint64_t,
                                    uint64_t *address, struct plim_error *err)
{
    struct backing_simulated *d = self(backing);
    if (refused(d, SIMULATED_RESERVE))
        return plim_fail(err, PLIM_NO_MEMORY, "the simulated device was told to refuse addresses");
    *address = new_address(d, bytes);
    d->ranges++;
    return PLIM_OK;
}

static void sim_unreserve(struct cache_backing *backing, uint64_t, uint64_t) { self(backing)->ranges--; }

static enum plim_status sim_map(struct cache_backing *backing, uint64_t, uint64_t bytes,
                                struct plim_error *err)
{
    struct backing_simulated *d = self(backing);
    if (refused(d, SIMULATED_MAP))
        return plim_fail(err, PLIM_NO_MEMORY, "the simulated device was told to refuse");
    return take(d, bytes, err);
}

static enum plim_status sim_record(struct cache_backing *backing, uint64_t, uint64_t *event)
{
    struct backing_simulated *d = self(backing);
    if (refused(d, SIMULATED_EVENT)) return PLIM_IO;
    *event = ++d->recorded;
    d->events++;
    return PLIM_OK;
}

static bool sim_done(struct cache_backing *backing, uint64_t event)
{
    struct backing_simulated *d = self(backing);
    return !d->lazy || event <= d->finished;
}

static void sim_finish(struct cache_backing *backing, uint64_t event)
{
    struct backing_simulated *d = self(backing);
    d->waits++;
    if (event > d->finished) d->finished = event;
}

static void sim_drop(struct cache_backing *backing, uint64_t) { self(backing)->events--; }

static void sim_stream(struct cache_backing *backing, uint64_t) { self(backing)->waits++; }

static uint64_t sim_available(struct cache_backing *backing)
{
    struct backing_simulated *d = self(backing);
    pthread_mutex_lock(&d->lock);
    uint64_t left = d->base.total - d->used - d->others;
    pthread_mutex_unlock(&d->lock);
    return left;
}

static const struct cache_backing_ops ops = {.name = "simulated device",
                                             .alloc = sim_alloc,
                                             .free = sim_give,
                                             .reserve = sim_reserve,
                                             .unreserve = sim_unreserve,
                                             .map = sim_map,
                                             .unmap = sim_give,
                                             .event_record = sim_record,
                                             .event_done = sim_done,
                                             .event_finish = sim_finish,
                                             .event_drop = sim_drop,
                                             .stream_finish = sim_stream,
                                             .available = sim_available};

void backing_simulated_init(struct backing_simulated *d, uint64_t total)
{
    memset(d, 0, sizeof *d);
    pthread_mutex_init(&d->lock, NULL);
    d->base = (struct cache_backing){&ops, total};
    d->next = (uint64_t)1 << 40;
}

void backing_simulated_finish(struct backing_simulated *d) { d->finished = d->recorded; }

void backing_simulated_destroy(struct backing_simulated *d) { pthread_mutex_destroy(&d->lock); }
