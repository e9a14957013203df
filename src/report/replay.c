/* replay.c - the events of a trace in order, as calls of a cache.
 *
 * At each time of a trace at most one block is freed and at most one begins, so three tables by time say everything: who begins,
 * who is let go, whose free is completed. Blocks that end because their address is allocated again end first.
 */
#include "report/replay.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

#define NO_LIMIT                                                                                             \
    ((uint64_t)1 << 44) /* more than any device has; expandable segments reserve 9/8 of it as addresses */

struct player {
    const struct torch_lives *lives;
    struct replay_result *out;
    struct cache *cache;
    struct backing_simulated device;
    uint64_t *address;         /* of lives; 0: not alive */
    uint64_t *event;           /* of lives whose free waits: the device's event */
    int *begins, *lets, *ends; /* life + 1 by time */
    struct plim_error *err;
};

/* --- tables --------------------------------------------------------------------------------------------------------- */

/* The free waits for a stream when its completion is not the very next event. */
static bool waits(const struct torch_life *l) { return l->let_go && l->end > l->let_go + 1; }

static enum plim_status player_init(struct player *p, const struct torch_lives *lives, struct plim_error *err)
{
    size_t n = (size_t)lives->count + 1, times = (size_t)lives->end + 2;
    p->lives = lives, p->err = err;
    p->address = calloc(n, sizeof *p->address);
    p->event = calloc(n, sizeof *p->event);
    p->begins = calloc(times, sizeof *p->begins);
    p->lets = calloc(times, sizeof *p->lets);
    p->ends = calloc(times, sizeof *p->ends);
    if (!p->address || !p->event || !p->begins || !p->lets || !p->ends)
        return plim_fail(err, PLIM_NO_MEMORY, "no memory to replay %d blocks", lives->count);
    for (int i = 0; i < lives->count; i++) {
        const struct torch_life *l = &lives->items[i];
        if (l->begin) p->begins[l->begin] = i + 1;
        if (l->let_go) p->lets[l->let_go] = i + 1;
        if (l->end < lives->end && (waits(l) || !l->let_go)) p->ends[l->end] = i + 1;
    }
    return PLIM_OK;
}

static void player_release(struct player *p)
{
    cache_destroy(p->cache);
    free(p->address);
    free(p->event);
    free(p->begins);
    free(p->lets);
    free(p->ends);
}

/* --- calls ---------------------------------------------------------------------------------------------------------- */

static enum plim_status play_alloc(struct player *p, int life, int64_t now)
{
    const struct torch_life *l = &p->lives->items[life];
    struct plim_error refused = {0};
    enum plim_status status =
        cache_malloc(p->cache, (uint64_t)l->bytes, l->stream, &p->address[life], &refused);
    p->out->calls++;
    if (status == PLIM_OK) return PLIM_OK;
    struct cache_refusal seen;
    if (status != PLIM_NO_MEMORY || !cache_last_refusal(p->cache, &seen) || seen.count == p->out->ooms) {
        if (p->err) *p->err = refused;
        return status;
    }
    p->address[life] = 0;
    if (!p->out->ooms++) p->out->first_oom = now, p->out->first_oom_bytes = l->bytes;
    return PLIM_OK;
}

static enum plim_status play_free(struct player *p, int life)
{
    const struct torch_life *l = &p->lives->items[life];
    enum plim_status status = PLIM_OK;
    if (!p->address[life]) return PLIM_OK;
    p->out->calls++;
    if (waits(l)) status = cache_record_stream(p->cache, p->address[life], l->stream + 1, p->err);
    if (status == PLIM_OK) status = cache_free(p->cache, p->address[life], p->err);
    p->address[life] = 0;
    p->event[life] = p->device.recorded;
    return status;
}

static enum plim_status play_time(struct player *p, int64_t now)
{
    enum plim_status status = PLIM_OK;
    int end = p->ends[now] - 1, let = p->lets[now] - 1, begin = p->begins[now] - 1;
    if (end >= 0 && !waits(&p->lives->items[end])) status = play_free(p, end);
    if (end >= 0 && p->event[end] > p->device.finished) p->device.finished = p->event[end];
    if (status == PLIM_OK && let >= 0) status = play_free(p, let);
    if (status == PLIM_OK && begin >= 0) status = play_alloc(p, begin, now);
    return status;
}

static int by_address(const void *a, const void *b)
{
    const struct torch_life *x = *(const struct torch_life *const *)a,
                            *y = *(const struct torch_life *const *)b;
    return (x->address > y->address) - (x->address < y->address);
}

/* Blocks older than the trace, by address: an allocator that begins with nothing hands out addresses upwards. */
static enum plim_status play_older(struct player *p)
{
    enum plim_status status = PLIM_OK;
    int n = 0;
    const struct torch_life **older = malloc(((size_t)p->lives->older + 1) * sizeof *older);
    if (!older) return plim_fail(p->err, PLIM_NO_MEMORY, "no memory to replay %d blocks", p->lives->count);
    for (int i = 0; i < p->lives->count; i++)
        if (!p->lives->items[i].begin) older[n++] = &p->lives->items[i];
    qsort(older, (size_t)n, sizeof *older, by_address);
    for (int i = 0; i < n && status == PLIM_OK; i++)
        status = play_alloc(p, (int)(older[i] - p->lives->items), 0);
    free(older);
    return status;
}

static enum plim_status play(struct player *p)
{
    enum plim_status status = play_older(p);
    for (int64_t t = 1; t <= p->lives->end && status == PLIM_OK; t++) status = play_time(p, t);
    return status;
}

static enum plim_status open_cache(struct player *p, const struct replay_options *o, struct plim_error *err)
{
    struct cache_options options = {.backing = &p->device.base, .clean_above = 1};
    enum plim_status status = cache_conf_parse(o->conf ? o->conf : "", &options.conf, err);
    if (status != PLIM_OK) return status;
    if (!o->memory && (options.conf.gc_threshold > 0 || options.conf.fraction > 0))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "'%s' speaks of a share of the device's memory; say how much it has: --memory 80GiB",
                         o->conf);
    backing_simulated_init(&p->device, o->memory ? o->memory : NO_LIMIT);
    p->device.lazy = true;
    return cache_new(&p->cache, &options, err);
}

enum plim_status replay_run(struct replay_result *out, const struct torch_lives *lives,
                            const struct replay_options *options, struct plim_error *err)
{
    struct player p = {.out = out};
    *out = (struct replay_result){0};
    enum plim_status status = open_cache(&p, options, err);
    if (status == PLIM_OK) status = player_init(&p, lives, err);
    double start = clock_seconds();
    if (status == PLIM_OK) status = play(&p);
    out->seconds = clock_seconds() - start;
    if (status == PLIM_OK) {
        cache_stats_read(p.cache, &out->stats);
        cache_fragmentation_read(p.cache, &out->fragmentation);
    }
    player_release(&p);
    return status;
}
