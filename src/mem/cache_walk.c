/* cache_walk.c - segments and blocks for snapshots. A segment here is what a snapshot shows: one piece from the backing, or a
 * run of mapped pages of an expandable one. */
#include "mem/cache_part.h"

/* Sums up the run that begins at b; returns the block behind it. */
static const struct block *sum_up(const struct block *b, struct cache_segment *out)
{
    *out = (struct cache_segment){.address = b->node.at,
                                  .stream = b->pool->stream->id,
                                  .pool = b->pool->kind,
                                  .expandable = b->segment->expandable,
                                  .frames = b->segment->frames};
    for (; b && b->state != BLOCK_UNMAPPED; b = b->next) {
        out->bytes += b->bytes;
        out->blocks++;
        if (b->state == BLOCK_CACHED) continue;
        out->active += b->bytes;
        out->requested += b->requested;
        if (b->state == BLOCK_LIVE) out->allocated += b->bytes;
    }
    return b;
}

static void show(const struct cache_visitor *v, const struct block *b, const struct block *end)
{
    static const enum cache_state states[] = {
        [BLOCK_LIVE] = CACHE_LIVE, [BLOCK_PENDING] = CACHE_PENDING, [BLOCK_CACHED] = CACHE_CACHED};
    for (; v->block && b != end; b = b->next)
        v->block(v->arg, &(struct cache_block){.address = b->node.at,
                                               .bytes = b->bytes,
                                               .requested = b->state == BLOCK_CACHED ? 0 : b->requested,
                                               .stream = b->pool->stream->id,
                                               .state = states[b->state],
                                               .cls = b->cls,
                                               .frames = b->frames});
}

void cache_walk(struct cache *c, const struct cache_visitor *v)
{
    cache_lock(c);
    struct cache_node *node = tree_first(c->segments, 0, 0);
    for (; node; node = tree_first(c->segments, 0, node->at + 1)) {
        for (const struct block *b = segment_of(node)->first; b;) {
            struct cache_segment segment;
            const struct block *end = sum_up(b, &segment);
            if (segment.blocks && v->segment) v->segment(v->arg, &segment);
            show(v, b, end);
            b = end ? end->next : NULL;
        }
    }
    cache_unlock(c);
}
