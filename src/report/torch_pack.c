/* torch_pack.c - packing the lives of a trace, and who holds the peak. */
#include "report/torch_pack.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "plan/pack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- packing -------------------------------------------------------------------------------------------------------- */

/* A life in the order in which lives are packed: by stream, then as they come. */
struct turn {
    uint64_t stream;
    int life;
};

static int by_stream(const void *a, const void *b)
{
    const struct turn *x = a, *y = b;
    if (x->stream != y->stream) return x->stream < y->stream ? -1 : 1;
    return (x->life > y->life) - (x->life < y->life);
}

/* Lives that have bytes, in turn; returns how many. */
static int sort_by_stream(const struct torch_life *lives, int n, struct turn *turns)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        if (lives[i].bytes > 0) turns[count++] = (struct turn){lives[i].stream, i};
    qsort(turns, (size_t)count, sizeof *turns, by_stream);
    return count;
}

/* Good enough is a thousandth above the bound; only what is worse is searched. */
static enum plim_status pack_stream(struct pack_item *items, int n, const struct torch_pack_limits *limits,
                                    struct pack_result *result, struct plim_error *err)
{
    struct pack_limits quick = {.align = TORCH_ALIGN};
    enum plim_status status = pack_items(items, n, &quick, result, err);
    if (status != PLIM_OK || result->height <= result->lower_bound + result->lower_bound / 1000 ||
        limits->effort_ms <= 0)
        return status;
    struct pack_limits search = {.align = TORCH_ALIGN,
                                 .capacity = result->lower_bound + result->lower_bound / 1000,
                                 .effort_ms = limits->effort_ms};
    status = pack_items(items, n, &search, result, err);
    return status == PLIM_NO_FIT ? PLIM_OK : status;
}

/* The lives of one stream, turns[0..n), above what the arena has already. */
static enum plim_status place_stream(const struct torch_life *lives, const struct turn *turns, int n,
                                     const struct torch_pack_limits *limits, struct pack_item *items,
                                     int64_t *offsets, int64_t *arena, int64_t *lower_bound,
                                     struct plim_error *err)
{
    struct pack_result result;
    for (int i = 0; i < n; i++) {
        const struct torch_life *l = &lives[turns[i].life];
        items[i] = (struct pack_item){l->begin, l->end, l->bytes, 0};
    }
    enum plim_status status = pack_stream(items, n, limits, &result, err);
    if (status != PLIM_OK) return status;
    for (int i = 0; i < n; i++) offsets[turns[i].life] = *arena + items[i].offset;
    *arena += result.height;
    *lower_bound += result.lower_bound;
    return PLIM_OK;
}

enum plim_status torch_pack_lives(const struct torch_life *lives, int n,
                                  const struct torch_pack_limits *limits, int64_t *offsets, int64_t *arena,
                                  int64_t *lower_bound, struct plim_error *err)
{
    struct turn *turns = malloc(((size_t)n + 1) * sizeof *turns);
    struct pack_item *items = malloc(((size_t)n + 1) * sizeof *items);
    enum plim_status status = PLIM_OK;
    *arena = *lower_bound = 0;
    if (!turns || !items) status = plim_fail(err, PLIM_NO_MEMORY, "no memory to pack %d blocks", n);
    for (int i = 0; i < n; i++) offsets[i] = -1;
    int count = status == PLIM_OK ? sort_by_stream(lives, n, turns) : 0;
    for (int from = 0, to; from < count && status == PLIM_OK; from = to) {
        for (to = from; to < count && turns[to].stream == turns[from].stream;) to++;
        status =
            place_stream(lives, turns + from, to - from, limits, items, offsets, arena, lower_bound, err);
    }
    free(turns);
    free(items);
    return status;
}

/* --- holders -------------------------------------------------------------------------------------------------------- */

static int by_bytes(const void *a, const void *b)
{
    const struct torch_holder *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return (x->frame > y->frame) - (x->frame < y->frame);
}

/* Frames come first, then the blocks without one, then those older than the trace. */
static enum plim_status find_holders(struct torch_packing *p, struct plim_error *err)
{
    int frames = p->snap->frame_count, n = 0;
    p->holders = calloc((size_t)frames + 2, sizeof *p->holders);
    if (!p->holders) return plim_fail(err, PLIM_NO_MEMORY, "no memory for %d frames", frames);
    for (int i = 0; i < p->lives.count; i++) {
        const struct torch_life *l = &p->lives.items[i];
        if (l->begin > p->lives.live_peak_at || l->end <= p->lives.live_peak_at) continue;
        struct torch_holder *h = &p->holders[l->frame >= 0 ? l->frame : l->order < 0 ? frames + 1 : frames];
        h->frame = l->frame;
        h->older = l->frame < 0 && l->order < 0;
        h->bytes += l->bytes;
        h->count++;
    }
    for (int i = 0; i < frames + 2; i++)
        if (p->holders[i].count) p->holders[n++] = p->holders[i];
    qsort(p->holders, (size_t)n, sizeof *p->holders, by_bytes);
    p->holder_count = n;
    return PLIM_OK;
}

char *torch_holder_text(const struct torch_packing *p, const struct torch_holder *h,
                        char out[TORCH_FRAME_TEXT])
{
    if (!h->older) return torch_frame_text(p->snap, h->frame, out);
    snprintf(out, TORCH_FRAME_TEXT, "allocated before the trace began");
    return out;
}

/* --- all of it ------------------------------------------------------------------------------------------------------ */

enum plim_status torch_pack(struct torch_packing *out, const struct torch_snapshot *snap,
                            const struct torch_device *device, const struct torch_pack_limits *limits,
                            struct plim_error *err)
{
    *out = (struct torch_packing){.snap = snap, .device = device};
    enum plim_status status = torch_lives_find(&out->lives, device, err);
    if (status != PLIM_OK) return status;
    double start = clock_seconds();
    out->offsets = malloc(((size_t)out->lives.count + 1) * sizeof *out->offsets);
    status = out->offsets ? torch_pack_lives(out->lives.items, out->lives.count, limits, out->offsets,
                                             &out->arena, &out->lower_bound, err)
                          : plim_fail(err, PLIM_NO_MEMORY, "no memory to pack %d blocks", out->lives.count);
    out->seconds = clock_seconds() - start;
    if (status == PLIM_OK) status = find_holders(out, err);
    if (status != PLIM_OK) torch_pack_release(out);
    return status;
}

void torch_pack_release(struct torch_packing *p)
{
    torch_lives_release(&p->lives);
    free(p->offsets);
    free(p->holders);
    *p = (struct torch_packing){0};
}

int64_t torch_pack_saving(const struct torch_packing *p)
{
    return p->lives.reserved_peak > p->arena ? p->lives.reserved_peak - p->arena : 0;
}
