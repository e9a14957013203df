/* cache_blocks.c - blocks: their records, their neighbours, the sets they are in, and the choice among them.
 *
 * Invariants (cache_check verifies them by number):
 *  1. The blocks of a segment lie one after another and fill it; their sizes are multiples of 512.
 *  2. Two neighbours are never both cached or both unmapped.
 *  3. A block is in the map under its address, and the map holds nothing else.
 *  4. Cached blocks, and no others, are in the bins of their pool, in the right bin and in order; unmapped ones in its tree of
 *     addresses.
 *  5. Only expandable segments have unmapped blocks; those begin and end on pages.
 *  6. Figures equal the sums over all blocks; no peak is below its present value.
 *  7. Live bytes by class sum to the allocated bytes.
 *  8. Spare records and blocks add up to all records.
 *  9. A pending block has as many events in the queues as it counts, and at least one; other blocks have none. Cached and
 *     unmapped blocks have no uses.
 * 10. The ledger's class carries at least the reserved bytes.
 * A front part keeps its record when it is cut, and the lower of two joined blocks keeps its own: the first record of a segment
 * stays the same for the segment's life.
 */
#include "mem/cache_part.h"

#include <stdlib.h>
#include <string.h>

/* ---- records and the map ---- */

struct slab {
    struct slab *next;
    struct block blocks[];
};

enum { SLAB_FIRST = 256, SLAB_MOST = 1 << 14 };

static uint64_t slot_of(const struct block_map *map, uint64_t at)
{
    return ((at >> 9) * 0x9e3779b97f4a7c15u) >> map->shift;
}

static void map_add(struct block_map *map, struct block *b)
{
    uint64_t i = slot_of(map, b->node.at);
    while (map->slots[i].at) i = (i + 1) & map->mask;
    map->slots[i] = (struct block_slot){b->node.at, b};
}

struct block *cache_block_at(const struct cache *c, uint64_t address)
{
    const struct block_map *map = &c->map;
    for (uint64_t i = slot_of(map, address); map->slots[i].at; i = (i + 1) & map->mask)
        if (map->slots[i].at == address) return map->slots[i].block;
    return NULL;
}

/* Moves later entries back over the hole, so that no search ends too early. */
static void map_remove(struct block_map *map, uint64_t at)
{
    uint64_t hole = slot_of(map, at);
    while (map->slots[hole].at != at) hole = (hole + 1) & map->mask;
    for (uint64_t i = (hole + 1) & map->mask; map->slots[i].at; i = (i + 1) & map->mask) {
        uint64_t home = slot_of(map, map->slots[i].at);
        if (((i - home) & map->mask) < ((i - hole) & map->mask)) continue;
        map->slots[hole] = map->slots[i];
        hole = i;
    }
    map->slots[hole].at = 0;
}

static bool map_grow(struct block_map *map, uint64_t records)
{
    uint64_t slots = 1024;
    int log = 10;
    while (slots < 2 * records) slots *= 2, log++;
    if (map->slots && slots <= map->mask + 1) return true;
    struct block_map bigger = {calloc(slots, sizeof *bigger.slots), slots - 1, 64 - log};
    if (!bigger.slots) return false;
    for (uint64_t i = 0; map->slots && i <= map->mask; i++)
        if (map->slots[i].at) map_add(&bigger, map->slots[i].block);
    free(map->slots);
    *map = bigger;
    return true;
}

bool cache_blocks_ready(struct cache *c, int64_t n)
{
    if (c->spares >= n) return true;
    int64_t more = c->records < SLAB_FIRST ? SLAB_FIRST : c->records < SLAB_MOST ? c->records : SLAB_MOST;
    struct slab *slab = calloc(1, sizeof *slab + (size_t)more * sizeof *slab->blocks);
    if (!slab || !map_grow(&c->map, (uint64_t)(c->records + more))) return free(slab), false;
    slab->next = c->slabs;
    c->slabs = slab;
    for (int64_t i = more - 1; i >= 0; i--) {
        slab->blocks[i].state = BLOCK_SPARE;
        slab->blocks[i].next = c->spare;
        c->spare = &slab->blocks[i];
    }
    c->spares += more;
    c->records += more;
    return true;
}

void cache_blocks_release(struct cache *c)
{
    while (c->slabs) {
        struct slab *slab = c->slabs;
        c->slabs = slab->next;
        free(slab);
    }
    free(c->map.slots);
}

struct block *cache_block_new(struct cache *c, struct segment *segment, struct pool *pool, uint64_t at,
                              uint64_t bytes)
{
    struct block *b = c->spare;
    c->spare = b->next;
    c->spares--;
    memset(b, 0, sizeof *b);
    b->node.at = at;
    b->bytes = bytes;
    b->segment = segment;
    b->pool = pool;
    b->state = BLOCK_CACHED;
    map_add(&c->map, b);
    return b;
}

void cache_block_drop(struct cache *c, struct block *b)
{
    map_remove(&c->map, b->node.at);
    b->state = BLOCK_SPARE;
    b->next = c->spare;
    c->spare = b;
    c->spares++;
}

/* ---- neighbours and sets ---- */

struct block *cache_block_cut(struct cache *c, struct block *b, uint64_t bytes)
{
    struct block *rest = cache_block_new(c, b->segment, b->pool, b->node.at + bytes, b->bytes - bytes);
    rest->state = b->state;
    rest->prev = b;
    rest->next = b->next;
    if (b->next) b->next->prev = rest;
    b->next = rest;
    b->bytes = bytes;
    return rest;
}

uint64_t cache_block_join(struct cache *c, struct block **b, struct block *other)
{
    if (!other || other->state != (*b)->state || other->state < BLOCK_CACHED) return 0;
    uint64_t bytes = other->bytes;
    cache_block_unfile(other);
    struct block *low = other->node.at < (*b)->node.at ? other : *b, *high = low->next;
    low->bytes += high->bytes;
    low->next = high->next;
    if (high->next) high->next->prev = low;
    cache_block_drop(c, high);
    *b = low;
    return bytes;
}

void cache_block_file(struct cache *c, struct block *b)
{
    bool cached = b->state == BLOCK_CACHED;
    b->node.key = cached ? b->bytes : 0;
    b->born = c->searches[b->pool->kind];
    if (cached)
        bins_insert(&b->pool->bins, &b->node);
    else
        tree_insert(&b->pool->unmapped, &b->node);
}

void cache_block_unfile(struct block *b)
{
    if (b->state == BLOCK_CACHED)
        bins_remove(&b->pool->bins, &b->node);
    else
        tree_remove(&b->pool->unmapped, &b->node);
}

/* ---- choice ---- */

/* How large a block of an expandable segment can become in place. */
static uint64_t reach(const struct block *b)
{
    return b->bytes + (b->next && b->next->state == BLOCK_UNMAPPED ? b->next->bytes : 0);
}

/* A block that can grow counts as large as it can become, so that the end of a segment is taken last. */
static struct block *spare_the_end(const struct pool *pool, struct block *b)
{
    while (reach(b) > b->bytes) {
        struct cache_node *next = bins_first(&pool->bins, b->bytes, b->node.at + 1);
        if (!next || reach(block_of(next)) >= reach(b)) break;
        b = block_of(next);
    }
    return b;
}

struct block *cache_block_search(struct cache *c, struct pool *pool, uint64_t bytes)
{
    c->searches[pool->kind]++;
    struct cache_node *best = bins_first(&pool->bins, bytes, 0);
    if (!best) return NULL;
    struct block *b = block_of(best);
    if (c->conf.expandable) b = spare_the_end(pool, b);
    if (bytes < c->conf.max_split && b->bytes >= c->conf.max_split) return NULL;
    if (bytes >= c->conf.max_split && b->bytes >= bytes + c->conf.max_non_split_rounding) return NULL;
    bins_remove(&pool->bins, &b->node);
    return b;
}

static bool worth_cutting(const struct cache *c, const struct block *b, uint64_t bytes)
{
    uint64_t rest = b->bytes - bytes;
    if (b->pool->kind == CACHE_SMALL || c->conf.expandable) return rest >= CACHE_MIN_BLOCK;
    return bytes < c->conf.max_split && rest > CACHE_SMALL_MAX;
}

/* PyTorch's inactive_split counts free blocks that keep their segment from being released. Pages of expandable segments can
 * be released one by one, so their blocks do not count. */
static void count_inactive(struct cache *c, const struct block *b, int64_t blocks, int64_t bytes)
{
    enum cache_pool kind = b->pool->kind;
    if (b->segment->expandable) return;
    if (blocks > 0) figure_add(c, CACHE_INACTIVE_SPLIT, kind, (uint64_t)blocks);
    if (blocks < 0) figure_take(c, CACHE_INACTIVE_SPLIT, kind, (uint64_t)-blocks);
    if (bytes > 0) figure_add(c, CACHE_INACTIVE_SPLIT_BYTES, kind, (uint64_t)bytes);
    if (bytes < 0) figure_take(c, CACHE_INACTIVE_SPLIT_BYTES, kind, (uint64_t)-bytes);
}

void cache_block_take(struct cache *c, struct block *b, uint64_t bytes, const struct cache_request *request)
{
    enum cache_pool kind = b->pool->kind;
    bool was_split = block_is_split(b), cut = worth_cutting(c, b, bytes);
    if (cut) {
        struct block *rest = cache_block_cut(c, b, bytes);
        cache_block_file(c, rest);
        count_inactive(c, b, was_split ? 0 : 1, was_split ? -(int64_t)bytes : (int64_t)rest->bytes);
    } else if (was_split) {
        count_inactive(c, b, -1, -(int64_t)b->bytes);
    }
    b->state = BLOCK_LIVE;
    b->requested = request->bytes;
    b->cls = (uint8_t)request->cls;
    b->frames = request->frames;
    figure_add(c, CACHE_ALLOCATION, kind, 1);
    figure_add(c, CACHE_ACTIVE, kind, 1);
    figure_add(c, CACHE_ALLOCATED_BYTES, kind, b->bytes);
    figure_add(c, CACHE_ACTIVE_BYTES, kind, b->bytes);
    figure_add(c, CACHE_REQUESTED_BYTES, kind, request->bytes);
    stat_add(&c->stats.by_class[b->cls], (int64_t)b->bytes);
    if (b->bytes >= c->conf.max_split) stat_add(&c->stats.oversize_allocations, 1);
    if (figure_now(c, CACHE_ACTIVE_BYTES) > c->batch_peak) c->batch_peak = figure_now(c, CACHE_ACTIVE_BYTES);
    history_note(c, CACHE_DID_ALLOC, request->bytes, b);
}

void cache_block_return(struct cache *c, struct block *b)
{
    enum cache_pool kind = b->pool->kind;
    int64_t blocks = 0, bytes = 0;
    history_note(c, CACHE_DID_FREE_COMPLETED, b->bytes, b);
    figure_take(c, CACHE_ACTIVE, kind, 1);
    figure_take(c, CACHE_ACTIVE_BYTES, kind, b->bytes);
    figure_take(c, CACHE_REQUESTED_BYTES, kind, b->requested);
    b->state = BLOCK_CACHED;
    b->frames = NULL;
    for (int i = 0; i < 2; i++) {
        uint64_t joined = cache_block_join(c, &b, i ? b->next : b->prev);
        blocks -= joined > 0;
        bytes -= (int64_t)joined;
    }
    cache_block_file(c, b);
    if (block_is_split(b)) blocks++, bytes += (int64_t)b->bytes;
    count_inactive(c, b, blocks, bytes);
}

/* ---- streams ---- */

static int stream_place(const struct cache *c, uint64_t id)
{
    int low = 0, high = c->stream_count;
    while (low < high) {
        int mid = (low + high) / 2;
        if (c->streams[mid]->id < id)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static struct stream *stream_new(struct cache *c, uint64_t id, int place)
{
    if (c->stream_count == c->stream_room) {
        int room = c->stream_room ? 2 * c->stream_room : 8;
        struct stream **more = realloc(c->streams, (size_t)room * sizeof(struct stream *));
        if (!more) return NULL;
        c->streams = more;
        c->stream_room = room;
    }
    struct stream *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->id = id;
    for (int i = 0; i < 2; i++) {
        s->pools[i].stream = s;
        s->pools[i].kind = i ? CACHE_LARGE : CACHE_SMALL;
    }
    memmove(c->streams + place + 1, c->streams + place,
            (size_t)(c->stream_count - place) * sizeof(struct stream *));
    c->streams[place] = s;
    c->stream_count++;
    return s;
}

struct stream *cache_stream_for(struct cache *c, uint64_t id)
{
    if (c->last_stream && c->last_stream->id == id) return c->last_stream;
    int place = stream_place(c, id);
    bool known = place < c->stream_count && c->streams[place]->id == id;
    struct stream *s = known ? c->streams[place] : stream_new(c, id, place);
    if (s) c->last_stream = s;
    return s;
}
