/* engine_keep.c - keys and values of requests that gave way, in the host's memory until they run again. See schedule.h, keeper.
 *
 * Only beside a device with its own memory: where the pool is the process's own, a copy would take the bytes that the request gave up.
 * What all copies take is bounded (kept_room) and part of the plan's host bytes; where there is no room a request is read again.
 */
#include "serve/engine_part.h"

#include <stdlib.h>

enum { REQUESTS_KEPT = 4 };
#define KEPT_MOST ((int64_t)1 << 30)

int64_t engine_keep_room(const struct engine *e, int64_t request_bytes)
{
    int64_t room = REQUESTS_KEPT * request_bytes, host = e->options.host_budget;
    if (e->device->facts.unified_memory || e->offer.window) return 0;
    if (room > KEPT_MOST) room = KEPT_MOST;
    return host && room > host / 4 ? host / 4 : room;
}

static enum plim_status copy_block(const struct engine *e, bool out, int32_t block, char *at)
{
    const struct exec *exec = &e->family.runtime.exec;
    int pool = tape_find(exec->tape, "kv.pool", -1);
    int64_t from = block * e->block_bytes;
    return out ? exec_read(exec, pool, at, from, e->block_bytes, NULL)
               : exec_write(exec, pool, at, from, e->block_bytes, NULL);
}

static void drop(void *arg, struct sequence *q)
{
    struct engine *e = arg;
    e->kept_bytes -= blocks_for(q->saved_positions) * e->block_bytes;
    free(q->saved);
    q->saved = NULL, q->saved_positions = 0;
}

static void save(void *arg, struct sequence *q)
{
    struct engine *e = arg;
    int64_t blocks = blocks_for(q->computed), bytes = blocks * e->block_bytes;
    if (q->saved || e->kept_bytes + bytes > e->kept_room || !(q->saved = malloc((size_t)bytes))) return;
    q->saved_positions = q->computed, e->kept_bytes += bytes;
    for (int64_t i = 0; i < blocks; i++)
        if (copy_block(e, true, q->table[i], (char *)q->saved + i * e->block_bytes) != PLIM_OK) {
            drop(e, q);
            return;
        }
}

static bool load(void *arg, struct sequence *q, int64_t first)
{
    struct engine *e = arg;
    for (int64_t i = first; i < blocks_for(q->saved_positions); i++)
        if (copy_block(e, false, q->table[i], (char *)q->saved + i * e->block_bytes) != PLIM_OK) return false;
    LOCKED(&e->lock);
    e->stats.swapped++;
    return true;
}

struct keeper engine_keeper(struct engine *e)
{
    if (!e->kept_room) return (struct keeper){0};
    return (struct keeper){save, load, drop, e};
}
