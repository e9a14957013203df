/* torch_lives.c - pairs allocations with frees by address.
 *
 * One table has, for each address, the newest life that began there. An address is in use by at most one block, so:
 *   1. an allocation where a life is still open closes that life: its free is not in the trace;
 *   2. a free where no life is open belongs to a block older than the trace;
 *   3. a block of the snapshot where no life is open is older than the trace and still alive.
 */
#include "report/torch_lives.h"

#include <limits.h>
#include <stdlib.h>

struct pairing {
    struct torch_lives *out;
    const struct torch_device *device;
    int cap;
    struct slot {
        uint64_t address;
        int life; /* + 1; 0: free */
    } * slots;
    size_t mask;
    bool completions; /* the trace says when frees are completed */
    struct plim_error *err;
};

static enum plim_status no_memory(struct pairing *p)
{
    return plim_fail(p->err, PLIM_NO_MEMORY, "no memory for the intervals of %zu events",
                     p->device->event_count);
}

static struct slot *slot_of(struct pairing *p, uint64_t address)
{
    uint64_t hash = address * 0x9e3779b97f4a7c15u;
    size_t at = (size_t)(hash ^ hash >> 32) & p->mask;
    while (p->slots[at].life && p->slots[at].address != address) at = (at + 1) & p->mask;
    p->slots[at].address = address;
    return &p->slots[at];
}

static struct torch_life *open_at(struct pairing *p, const struct slot *slot)
{
    struct torch_life *life = slot->life ? &p->out->items[slot->life - 1] : NULL;
    return life && life->end > p->out->end ? life : NULL;
}

/* An open life ends after the trace's end, until something closes it. */
static enum plim_status add(struct pairing *p, struct slot *slot, const struct torch_life *life)
{
    struct torch_lives *l = p->out;
    if (l->count == p->cap) {
        int cap = p->cap > INT_MAX / 2 ? INT_MAX : p->cap ? 2 * p->cap : 1024;
        struct torch_life *more = l->count < cap ? realloc(l->items, (size_t)cap * sizeof *more) : NULL;
        if (!more) return no_memory(p);
        l->items = more, p->cap = cap;
    }
    l->items[l->count++] = *life;
    slot->life = l->count;
    return PLIM_OK;
}

static enum plim_status see_alloc(struct pairing *p, const struct torch_event *e, int64_t now)
{
    struct slot *slot = slot_of(p, e->address);
    struct torch_life *open = open_at(p, slot);
    if (open) open->end = now;
    struct torch_life life = {.begin = now,
                              .end = p->out->end + 1,
                              .bytes = e->size,
                              .address = e->address,
                              .stream = e->stream,
                              .frame = e->frame,
                              .order = p->out->allocations++};
    return add(p, slot, &life);
}

static enum plim_status see_free(struct pairing *p, const struct torch_event *e, int64_t now)
{
    struct slot *slot = slot_of(p, e->address);
    struct torch_life *open = open_at(p, slot);
    bool completes = e->action == TORCH_FREE_COMPLETED || !p->completions;
    if (!open) {
        struct torch_life life = {.begin = 0,
                                  .end = p->out->end + 1,
                                  .bytes = e->size,
                                  .address = e->address,
                                  .stream = e->stream,
                                  .frame = TORCH_NO_FRAME,
                                  .order = -1};
        enum plim_status status = add(p, slot, &life);
        if (status != PLIM_OK) return status;
        p->out->older++;
        open = open_at(p, slot);
    }
    if (!open->let_go) open->let_go = now;
    if (completes) open->end = now;
    return PLIM_OK;
}

static enum plim_status see_blocks(struct pairing *p)
{
    const struct torch_device *d = p->device;
    for (size_t i = 0; i < d->block_count; i++) {
        const struct torch_block *b = &d->blocks[i];
        struct slot *slot = slot_of(p, b->address);
        if (open_at(p, slot)) continue;
        struct torch_life life = {.begin = 0,
                                  .end = p->out->end + 1,
                                  .bytes = b->requested,
                                  .address = b->address,
                                  .stream = b->stream,
                                  .frame = b->frame,
                                  .order = -1};
        enum plim_status status = add(p, slot, &life);
        if (status != PLIM_OK) return status;
        p->out->older++;
    }
    return PLIM_OK;
}

static enum plim_status pair(struct pairing *p)
{
    const struct torch_device *d = p->device;
    enum plim_status status = PLIM_OK;
    for (size_t i = 0; i < d->event_count && status == PLIM_OK; i++) {
        const struct torch_event *e = &d->events[i];
        if (e->action == TORCH_ALLOC)
            status = see_alloc(p, e, (int64_t)i + 1);
        else if (e->action == TORCH_FREE_REQUESTED || e->action == TORCH_FREE_COMPLETED)
            status = see_free(p, e, (int64_t)i + 1);
        else if (e->action == TORCH_OOM)
            p->out->ooms++;
    }
    return status == PLIM_OK ? see_blocks(p) : status;
}

/* --- peaks ---------------------------------------------------------------------------------------------------------- */

/* Live bytes by time: changes are gathered by event. */
static enum plim_status find_live_peak(struct pairing *p)
{
    struct torch_lives *l = p->out;
    int64_t live = 0;
    int64_t *change = calloc((size_t)l->end + 2, sizeof *change);
    if (!change) return no_memory(p);
    for (int i = 0; i < l->count; i++) {
        struct torch_life *life = &l->items[i];
        if (life->end > l->end) life->end = l->end;
        if (life->begin >= life->end) life->end = life->begin + 1;
        change[life->begin] += life->bytes;
        change[life->end] -= life->bytes;
    }
    for (int64_t t = 0; t <= l->end; t++) {
        live += change[t];
        if (live > l->live_peak) l->live_peak = live, l->live_peak_at = t;
    }
    free(change);
    return PLIM_OK;
}

static int64_t reserves(const struct torch_event *e)
{
    return e->action == TORCH_SEGMENT_ALLOC || e->action == TORCH_SEGMENT_MAP    ? e->size
           : e->action == TORCH_SEGMENT_FREE || e->action == TORCH_SEGMENT_UNMAP ? -e->size
                                                                                 : 0;
}

/* The end is known from the segments; what was reserved before follows backwards. */
static void find_reserved(struct torch_lives *l, const struct torch_device *d)
{
    int64_t now = d->reserved;
    l->reserved_end = l->reserved_peak = now;
    for (size_t i = d->event_count; i-- > 0;) {
        now -= reserves(&d->events[i]);
        if (now > l->reserved_peak) l->reserved_peak = now;
    }
}

static void count_streams(struct torch_lives *l)
{
    uint64_t seen[64];
    for (int i = 0; i < l->count; i++) {
        int s = 0;
        while (s < l->streams && seen[s] != l->items[i].stream) s++;
        if (s == l->streams && s < 64) seen[l->streams++] = l->items[i].stream;
    }
}

static bool too_large(const struct torch_device *d)
{
    int64_t sum = 0;
    if (d->event_count + d->block_count > INT_MAX / 2) return true;
    for (size_t i = 0; i < d->event_count; i++)
        if (d->events[i].size < 0 || __builtin_add_overflow(sum, d->events[i].size, &sum)) return true;
    for (size_t i = 0; i < d->block_count; i++)
        if (__builtin_add_overflow(sum, d->blocks[i].size, &sum)) return true;
    return __builtin_add_overflow(sum, d->reserved, &sum) || sum > INT64_MAX / 2; /* room to round up */
}

enum plim_status torch_lives_find(struct torch_lives *out, const struct torch_device *device,
                                  struct plim_error *err)
{
    struct pairing p = {.out = out, .device = device, .err = err};
    size_t slots = 1024;
    *out = (struct torch_lives){.end = (int64_t)device->event_count + 1};
    if (too_large(device))
        return plim_fail(err, PLIM_BAD_INPUT, "cuda:%d: sizes that cannot be: they add up beyond 2^62 bytes",
                         device->number);
    while (slots < 2 * (device->event_count + device->block_count)) slots *= 2;
    p.mask = slots - 1;
    p.slots = calloc(slots, sizeof *p.slots);
    for (size_t i = 0; i < device->event_count; i++)
        p.completions |= device->events[i].action == TORCH_FREE_COMPLETED;
    enum plim_status status = p.slots ? pair(&p) : no_memory(&p);
    if (status == PLIM_OK) status = find_live_peak(&p);
    free(p.slots);
    if (status != PLIM_OK) {
        torch_lives_release(out);
        return status;
    }
    find_reserved(out, device);
    count_streams(out);
    return PLIM_OK;
}

void torch_lives_release(struct torch_lives *lives)
{
    free(lives->items);
    *lives = (struct torch_lives){0};
}
