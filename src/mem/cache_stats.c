/* cache_stats.c - figures under PyTorch's names, and three measures of fragmentation. */
#include "mem/cache_part.h"

#include <stdio.h>
#include <string.h>

static const char *const figure_names[CACHE_FIGURES] = {
    [CACHE_ALLOCATION] = "allocation",
    [CACHE_SEGMENT] = "segment",
    [CACHE_ACTIVE] = "active",
    [CACHE_INACTIVE_SPLIT] = "inactive_split",
    [CACHE_ALLOCATED_BYTES] = "allocated_bytes",
    [CACHE_RESERVED_BYTES] = "reserved_bytes",
    [CACHE_ACTIVE_BYTES] = "active_bytes",
    [CACHE_INACTIVE_SPLIT_BYTES] = "inactive_split_bytes",
    [CACHE_REQUESTED_BYTES] = "requested_bytes",
};
static const char *const pool_names[CACHE_POOLS] = {"all", "small_pool", "large_pool"};

const char *cache_figure_name(enum cache_figure figure) { return figure_names[figure]; }

static void read_figure(const struct figures *g, int f, struct cache_stat out[CACHE_POOLS])
{
    for (int p = CACHE_SMALL; p <= CACHE_LARGE; p++) {
        int64_t now = g->now[p][f], freed = g->freed[p][f];
        out[p] = (struct cache_stat){now, g->peak[p][f], now + freed - g->start[p][f], freed};
    }
    const struct cache_stat *a = &out[CACHE_SMALL], *b = &out[CACHE_LARGE];
    out[CACHE_ALL] = (struct cache_stat){a->current + b->current, g->peak[CACHE_ALL][f],
                                         a->allocated + b->allocated, a->freed + b->freed};
}

void cache_stats_read(struct cache *c, struct cache_stats *out)
{
    cache_lock(c);
    *out = c->stats;
    for (int f = 0; f < CACHE_FIGURES; f++) read_figure(&c->figures, f, out->of[f]);
    out->max_split_size = c->conf.max_split == CACHE_NO_LIMIT ? -1 : (int64_t)c->conf.max_split;
    out->limit = c->limit != CACHE_NO_LIMIT ? c->limit : c->backing->total;
    out->budget = c->budget;
    out->overhead = c->options.overhead;
    cache_unlock(c);
}

static void each_stat(const struct cache_stat *stat, const char *name,
                      void (*take)(void *arg, const char *name, int64_t value), void *arg)
{
    const struct {
        const char *name;
        int64_t value;
    } rows[] = {{"current", stat->current},
                {"peak", stat->peak},
                {"allocated", stat->allocated},
                {"freed", stat->freed}};
    char text[64];
    for (int i = 0; i < 4; i++) {
        snprintf(text, sizeof text, "%s.%s", name, rows[i].name);
        take(arg, text, rows[i].value);
    }
}

void cache_stats_each(const struct cache_stats *s, void (*take)(void *arg, const char *name, int64_t value),
                      void *arg)
{
    char name[48];
    for (int f = 0; f < CACHE_FIGURES; f++)
        for (int p = 0; p < CACHE_POOLS; p++) {
            snprintf(name, sizeof name, "%s.%s", figure_names[f], pool_names[p]);
            each_stat(&s->of[f][p], name, take, arg);
        }
    each_stat(&s->oversize_allocations, "oversize_allocations", take, arg);
    each_stat(&s->oversize_segments, "oversize_segments", take, arg);
    take(arg, "max_split_size", s->max_split_size);
    take(arg, "num_alloc_retries", s->num_alloc_retries);
    take(arg, "num_ooms", s->num_ooms);
    take(arg, "num_sync_all_streams", s->num_sync_all_streams);
    take(arg, "num_device_alloc", s->num_device_alloc);
    take(arg, "num_device_free", s->num_device_free);
}

/* ---- resets ---- */

typedef void reset_stat(struct cache_stat *stat);

static void reset_peak(struct cache_stat *stat) { stat->peak = stat->current; }
static void reset_sums(struct cache_stat *stat) { stat->allocated = stat->freed = 0; }

static void reset_each(struct cache_stats *s, reset_stat *reset)
{
    for (int i = 0; i < CACHE_CLASSES_MAX; i++) reset(&s->by_class[i]);
    reset(&s->oversize_allocations);
    reset(&s->oversize_segments);
}

void cache_reset_peaks(struct cache *c)
{
    cache_lock(c);
    reset_each(&c->stats, reset_peak);
    memcpy(c->figures.peak, c->figures.now, sizeof c->figures.peak);
    for (int f = 0; f < CACHE_FIGURES; f++)
        c->figures.peak[CACHE_ALL][f] = (int64_t)figure_now(c, (enum cache_figure)f);
    cache_unlock(c);
}

void cache_reset_accumulated(struct cache *c)
{
    cache_lock(c);
    struct cache_stats *s = &c->stats;
    reset_each(s, reset_sums);
    memset(c->figures.freed, 0, sizeof c->figures.freed);
    memcpy(c->figures.start, c->figures.now, sizeof c->figures.start);
    s->num_alloc_retries = s->num_ooms = s->num_sync_all_streams = s->num_device_alloc = s->num_device_free =
        0;
    s->num_gc = s->num_clean_ups = s->num_late_blocks = 0;
    cache_unlock(c);
}

/* ---- fragmentation ---- */

static double share(uint64_t part, uint64_t whole) { return whole ? (double)part / (double)whole : 0; }

/* Free bytes that cannot be given back: blocks of segments in use, and parts of pages in use. */
static uint64_t stuck(const struct block *b)
{
    const struct segment *s = b->segment;
    if (!s->expandable) return block_is_split(b) ? b->bytes : 0;
    uint64_t begin = (b->node.at - s->node.at + s->page - 1) / s->page;
    uint64_t end = (b->node.at + b->bytes - s->node.at) / s->page;
    return end > begin ? b->bytes - (end - begin) * s->page : b->bytes;
}

void cache_fragmentation_now(struct cache *c, struct cache_fragmentation *out)
{
    const int64_t *peak = c->figures.peak[CACHE_ALL];
    uint64_t active = figure_now(c, CACHE_ACTIVE_BYTES), reserved = figure_now(c, CACHE_RESERVED_BYTES);
    uint64_t rounding = active - figure_now(c, CACHE_REQUESTED_BYTES);
    *out = (struct cache_fragmentation){
        .peak = share((uint64_t)(peak[CACHE_RESERVED_BYTES] - peak[CACHE_ACTIVE_BYTES]),
                      (uint64_t)peak[CACHE_RESERVED_BYTES]),
        .external = share(reserved - active, reserved),
        .internal = share(rounding, active),
        .free_bytes = reserved - active,
        .rounding_bytes = rounding};
    for (int i = 0; i < c->stream_count; i++)
        for (int p = 0; p < 2; p++) {
            const struct cache_bins *bins = &c->streams[i]->pools[p].bins;
            struct cache_node *n = bins_first(bins, 0, 0);
            for (; n; n = bins_first(bins, n->key, n->at + 1)) {
                out->stuck_bytes += stuck(block_of(n));
                if (n->key > out->largest_bytes) out->largest_bytes = n->key;
            }
        }
}

void cache_fragmentation_read(struct cache *c, struct cache_fragmentation *out)
{
    cache_lock(c);
    cache_fragmentation_now(c, out);
    cache_unlock(c);
}
