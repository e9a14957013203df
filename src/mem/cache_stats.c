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

void cache_stats_read(struct cache *c, struct cache_stats *out)
{
    pthread_mutex_lock(&c->lock);
    *out = c->stats;
    out->max_split_size = c->conf.max_split == CACHE_NO_LIMIT ? -1 : (int64_t)c->conf.max_split;
    out->limit = c->limit != CACHE_NO_LIMIT ? c->limit : c->backing->total;
    out->budget = c->budget;
    out->overhead = c->options.overhead;
    pthread_mutex_unlock(&c->lock);
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
    for (int f = 0; f < CACHE_FIGURES; f++)
        for (int p = 0; p < CACHE_POOLS; p++) reset(&s->of[f][p]);
    for (int i = 0; i < CACHE_CLASSES_MAX; i++) reset(&s->by_class[i]);
    reset(&s->oversize_allocations);
    reset(&s->oversize_segments);
}

void cache_reset_peaks(struct cache *c)
{
    pthread_mutex_lock(&c->lock);
    reset_each(&c->stats, reset_peak);
    pthread_mutex_unlock(&c->lock);
}

void cache_reset_accumulated(struct cache *c)
{
    pthread_mutex_lock(&c->lock);
    struct cache_stats *s = &c->stats;
    reset_each(s, reset_sums);
    s->num_alloc_retries = s->num_ooms = s->num_sync_all_streams = s->num_device_alloc = s->num_device_free =
        0;
    s->num_gc = s->num_clean_ups = s->num_late_blocks = 0;
    pthread_mutex_unlock(&c->lock);
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
    const struct cache_stat *active = &c->stats.of[CACHE_ACTIVE_BYTES][CACHE_ALL];
    const struct cache_stat *reserved = &c->stats.of[CACHE_RESERVED_BYTES][CACHE_ALL];
    uint64_t live = figure_now(c, CACHE_ACTIVE_BYTES), asked = figure_now(c, CACHE_REQUESTED_BYTES);
    *out = (struct cache_fragmentation){
        .peak = reserved->peak ? 1 - share((uint64_t)active->peak, (uint64_t)reserved->peak) : 0,
        .external = share((uint64_t)(reserved->current - active->current), (uint64_t)reserved->current),
        .internal = share(live - asked, live),
        .free_bytes = (uint64_t)(reserved->current - active->current),
        .rounding_bytes = live - asked};
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
    pthread_mutex_lock(&c->lock);
    cache_fragmentation_now(c, out);
    pthread_mutex_unlock(&c->lock);
}
