/* cache_events.c - blocks that other streams still use. A freed block with recorded streams gets an event on each; it returns to
 * the cache when the device has passed all of them. Events of a stream pass in order, so that only the first is asked. */
#include "mem/cache_part.h"

#include <stdlib.h>

struct use_slab {
    struct use_slab *next;
    struct cache_use uses[64];
};

static struct cache_use *use_new(struct cache *c)
{
    if (!c->spare_uses) {
        struct use_slab *slab = calloc(1, sizeof *slab);
        if (!slab) return NULL;
        slab->next = c->use_slabs;
        c->use_slabs = slab;
        for (int i = 0; i < 64; i++) {
            slab->uses[i].next = c->spare_uses;
            c->spare_uses = &slab->uses[i];
        }
    }
    struct cache_use *use = c->spare_uses;
    c->spare_uses = use->next;
    return use;
}

static void use_drop(struct cache *c, struct cache_use *use)
{
    use->next = c->spare_uses;
    c->spare_uses = use;
}

enum plim_status cache_record_stream(struct cache *c, uint64_t address, uint64_t stream,
                                     struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    cache_lock(c);
    struct block *b = cache_block_at(c, address);
    if (!b || b->state != BLOCK_LIVE) {
        status = plim_fail(err, PLIM_BAD_INPUT, "record_stream: 0x%llx is not a live allocation",
                           (unsigned long long)address);
        goto out;
    }
    if (b->pool->stream->id == stream || !c->ops->event_record) goto out;
    for (struct cache_use *use = b->uses; use; use = use->next)
        if (use->stream->id == stream) goto out;
    struct stream *s = cache_stream_for(c, stream);
    struct cache_use *use = s ? use_new(c) : NULL;
    if (use) {
        *use = (struct cache_use){.next = b->uses, .block = b, .stream = s};
        b->uses = use;
    } else {
        status = plim_fail(err, PLIM_NO_MEMORY, "no host memory for the allocator's records");
    }
out:
    cache_unlock(c);
    return status;
}

void cache_events_wait(struct cache *c, struct block *b)
{
    b->state = BLOCK_PENDING;
    while (b->uses) {
        struct cache_use *use = b->uses;
        struct stream *s = use->stream;
        b->uses = use->next;
        if (c->ops->event_record(c->backing, s->id, &use->event) != PLIM_OK) {
            c->ops->stream_finish(c->backing, s->id);
            use_drop(c, use);
            continue;
        }
        use->next = NULL;
        if (s->tail)
            s->tail->next = use;
        else
            s->head = use;
        s->tail = use;
        b->events++;
        c->queued++;
    }
    if (!b->events) cache_block_return(c, b);
}

/* The first event of a stream has passed. */
static void pass_first(struct cache *c, struct stream *s)
{
    struct cache_use *use = s->head;
    struct block *b = use->block;
    c->ops->event_drop(c->backing, use->event);
    s->head = use->next;
    if (!s->head) s->tail = NULL;
    use_drop(c, use);
    c->queued--;
    if (--b->events == 0) cache_block_return(c, b);
}

void cache_events_pass(struct cache *c)
{
    for (int i = 0; i < c->stream_count; i++) {
        struct stream *s = c->streams[i];
        while (s->head && c->ops->event_done(c->backing, s->head->event)) pass_first(c, s);
    }
}

void cache_events_finish(struct cache *c)
{
    c->stats.num_sync_all_streams++;
    for (int i = 0; c->queued && i < c->stream_count; i++) {
        struct stream *s = c->streams[i];
        while (s->head) {
            c->ops->event_finish(c->backing, s->head->event);
            pass_first(c, s);
        }
    }
}

void cache_events_close(struct cache *c)
{
    cache_events_finish(c);
    while (c->use_slabs) {
        struct use_slab *slab = c->use_slabs;
        c->use_slabs = slab->next;
        free(slab);
    }
}
