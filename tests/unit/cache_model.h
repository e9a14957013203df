/* cache_model.h - PyTorch's allocator as a list of blocks that is searched from end to end: what mem/cache.h must equal.
 *
 * One array holds every block in the order of addresses; neighbours of one segment lie beside each other. Nothing is fast, and no
 * structure is shared with the allocator. The device hands out the addresses of backing_simulated.c.
 */
#pragma once

#include "mem/cache_conf.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MODEL_BLOCKS = 8192, MODEL_USES = 4 };

enum model_state { MODEL_LIVE, MODEL_PENDING, MODEL_FREE, MODEL_UNMAPPED };

struct model_block {
    uint64_t at, bytes, stream, segment, page; /* segment: its address; page: of an expandable one, 0 */
    uint64_t born, events[MODEL_USES], uses[MODEL_USES];
    int event_count, use_count;
    bool small;
    enum model_state state;
};

struct model {
    struct cache_conf conf;
    uint64_t total, limit, used, next, recorded, finished; /* limit: UINT64_MAX without one */
    uint64_t active, searches;                             /* searches of the large pool    */
    struct model_block b[MODEL_BLOCKS];
    int n;
};

static inline uint64_t model_up(uint64_t n, uint64_t step) { return (n + step - 1) / step * step; }

static inline uint64_t model_address(struct model *m, uint64_t bytes)
{
    uint64_t at = m->next;
    m->next += model_up(bytes, CACHE_LARGE_STEP) + CACHE_LARGE_STEP;
    return at;
}

static inline int model_find(const struct model *m, uint64_t at)
{
    for (int i = 0; i < m->n; i++)
        if (m->b[i].at == at) return i;
    return -1;
}

static inline int model_insert(struct model *m, struct model_block block)
{
    int i = m->n++;
    if (m->n >= MODEL_BLOCKS) abort();
    for (; i > 0 && m->b[i - 1].at > block.at; i--) m->b[i] = m->b[i - 1];
    m->b[i] = block;
    return i;
}

static inline void model_remove(struct model *m, int i)
{
    memmove(&m->b[i], &m->b[i + 1], (size_t)(m->n - i - 1) * sizeof *m->b);
    m->n--;
}

static inline bool model_beside(const struct model *m, int i, int k)
{
    return k >= 0 && k < m->n && m->b[i].segment == m->b[k].segment;
}

static inline bool model_split(const struct model *m, int i)
{
    return model_beside(m, i, i - 1) || model_beside(m, i, i + 1);
}

static inline bool model_is_free(const struct model_block *b) { return b->state >= MODEL_FREE; }

/* Cuts [at, at + bytes) out of block i; returns its index. */
static inline int model_cut(struct model *m, int i, uint64_t at, uint64_t bytes)
{
    struct model_block whole = m->b[i], part = whole;
    model_remove(m, i);
    part.born = m->searches;
    if (at > whole.at) {
        part.at = whole.at, part.bytes = at - whole.at;
        model_insert(m, part);
    }
    if (at + bytes < whole.at + whole.bytes) {
        part.at = at + bytes, part.bytes = whole.at + whole.bytes - part.at;
        model_insert(m, part);
    }
    part.at = at, part.bytes = bytes;
    return model_insert(m, part);
}

/* Merges block i with neighbours of its state; returns the index of the result. */
static inline int model_merge(struct model *m, int i)
{
    if (model_beside(m, i, i + 1) && m->b[i + 1].state == m->b[i].state) {
        m->b[i].bytes += m->b[i + 1].bytes;
        model_remove(m, i + 1);
    }
    if (model_beside(m, i, i - 1) && m->b[i - 1].state == m->b[i].state) {
        m->b[i - 1].bytes += m->b[i].bytes;
        model_remove(m, i--);
    }
    m->b[i].born = m->searches;
    return i;
}

static inline void model_return(struct model *m, int i)
{
    m->active -= m->b[i].bytes;
    m->b[i].state = MODEL_FREE;
    m->b[i].event_count = m->b[i].use_count = 0;
    model_merge(m, i);
}

static inline void model_pass_events(struct model *m)
{
    for (int i = 0; i < m->n; i++) {
        struct model_block *b = &m->b[i];
        int left = 0;
        for (int k = 0; k < b->event_count; k++) left += b->events[k] > m->finished;
        if (b->state != MODEL_PENDING || left) continue;
        model_return(m, i);
        i = -1;
    }
}

/* (bytes, at) before another, within one stream. */
static inline bool model_before(const struct model_block *a, const struct model_block *b)
{
    return a->bytes != b->bytes ? a->bytes < b->bytes : a->at < b->at;
}

static inline uint64_t model_reach(const struct model *m, int i)
{
    bool grows = model_beside(m, i, i + 1) && m->b[i + 1].state == MODEL_UNMAPPED;
    return m->b[i].bytes + (grows ? m->b[i + 1].bytes : 0);
}

/* The next free block of the pool after block `after` (-1: the first of at least `bytes`). */
static inline int model_next(const struct model *m, uint64_t bytes, bool small, uint64_t stream, int after)
{
    int best = -1;
    for (int i = 0; i < m->n; i++) {
        const struct model_block *b = &m->b[i];
        if (b->state != MODEL_FREE || b->small != small || b->stream != stream || b->bytes < bytes) continue;
        if (after >= 0 && !model_before(&m->b[after], b)) continue;
        if (best < 0 || model_before(b, &m->b[best])) best = i;
    }
    return best;
}

static inline int model_search(struct model *m, uint64_t bytes, uint64_t stream)
{
    bool small = bytes <= CACHE_SMALL_MAX;
    if (!small) m->searches++;
    int i = model_next(m, bytes, small, stream, -1);
    while (i >= 0 && m->conf.expandable) {
        int next = model_next(m, bytes, small, stream, i);
        if (next < 0 || model_reach(m, next) >= model_reach(m, i)) break;
        i = next;
    }
    if (i < 0) return -1;
    if (bytes < m->conf.max_split && m->b[i].bytes >= m->conf.max_split) return -1;
    if (bytes >= m->conf.max_split && m->b[i].bytes >= bytes + m->conf.max_non_split_rounding) return -1;
    return i;
}

static inline bool model_device(struct model *m, uint64_t bytes)
{
    if (m->used + bytes > m->limit || m->used + bytes > m->total) return false;
    m->used += bytes;
    return true;
}

static inline int model_new_segment(struct model *m, uint64_t bytes, uint64_t stream)
{
    uint64_t size = bytes <= CACHE_SMALL_MAX ? CACHE_SMALL_SEGMENT
                    : bytes < CACHE_MID_MAX  ? CACHE_LARGE_SEGMENT
                                             : model_up(bytes, CACHE_LARGE_STEP);
    if (!model_device(m, size)) return -1;
    uint64_t at = model_address(m, size);
    return model_insert(m, (struct model_block){.at = at,
                                                .bytes = size,
                                                .stream = stream,
                                                .segment = at,
                                                .small = bytes <= CACHE_SMALL_MAX,
                                                .state = MODEL_FREE});
}

/* The lowest unmapped block, or the free one before it, from which `bytes` can be had; a new range when there is none. */
static inline int model_place(struct model *m, uint64_t bytes, uint64_t stream)
{
    bool small = bytes <= CACHE_SMALL_MAX;
    for (int i = 0; i < m->n; i++) {
        const struct model_block *b = &m->b[i];
        if (b->state != MODEL_UNMAPPED || b->small != small || b->stream != stream) continue;
        int from = model_beside(m, i, i - 1) && m->b[i - 1].state == MODEL_FREE ? i - 1 : i;
        uint64_t room = 0;
        for (int k = from; k < m->n && m->b[k].segment == b->segment && model_is_free(&m->b[k]); k++)
            room += m->b[k].bytes;
        if (room >= bytes) return from;
    }
    uint64_t page = small ? CACHE_SMALL_SEGMENT : CACHE_LARGE_SEGMENT;
    uint64_t size = model_up(m->total + m->total / 8, page);
    if (bytes > size) return -1;
    uint64_t at = model_address(m, size);
    return model_insert(m, (struct model_block){.at = at,
                                                .bytes = size,
                                                .stream = stream,
                                                .segment = at,
                                                .page = page,
                                                .small = small,
                                                .state = MODEL_UNMAPPED});
}

static inline int model_map(struct model *m, int i, uint64_t bytes)
{
    uint64_t size = model_up(bytes < m->b[i].bytes ? bytes : m->b[i].bytes, m->b[i].page);
    if (!model_device(m, size)) return -1;
    i = model_cut(m, i, m->b[i].at, size);
    m->b[i].state = MODEL_FREE;
    return model_merge(m, i);
}

static inline int model_expand(struct model *m, uint64_t bytes, uint64_t stream)
{
    int i = model_place(m, bytes, stream);
    if (i >= 0 && m->b[i].state == MODEL_UNMAPPED) i = model_map(m, i, bytes);
    while (i >= 0 && m->b[i].bytes < bytes) i = model_map(m, i + 1, bytes - m->b[i].bytes);
    return i;
}

static inline int model_grow(struct model *m, uint64_t bytes, uint64_t stream)
{
    return m->conf.expandable ? model_expand(m, bytes, stream) : model_new_segment(m, bytes, stream);
}

static inline void model_release(struct model *m, int i)
{
    m->used -= m->b[i].bytes;
    model_remove(m, i);
}

static inline void model_unmap(struct model *m, int i)
{
    struct model_block *b = &m->b[i];
    uint64_t begin = b->segment + model_up(b->at - b->segment, b->page);
    uint64_t end = b->segment + (b->at + b->bytes - b->segment) / b->page * b->page;
    if (begin >= end) return;
    i = model_cut(m, i, begin, end - begin);
    m->used -= end - begin;
    m->b[i].state = MODEL_UNMAPPED;
    i = model_merge(m, i);
    if (!model_split(m, i)) model_remove(m, i);
}

static inline void model_release_all(struct model *m)
{
    m->finished = m->recorded;
    model_pass_events(m);
    for (int i = 0; i < m->n; i++) {
        int n = m->n;
        if (m->b[i].state != MODEL_FREE) continue;
        if (m->b[i].page)
            model_unmap(m, i);
        else if (!model_split(m, i))
            model_release(m, i);
        if (m->n != n) i = -1;
    }
}

static inline bool model_release_oversize(struct model *m, uint64_t bytes, uint64_t stream)
{
    uint64_t most = m->conf.max_split, wanted = bytes < most ? most : bytes, released = 0;
    if (most == CACHE_NO_LIMIT || m->conf.expandable) return false;
    bool small = bytes <= CACHE_SMALL_MAX;
    int i = model_next(m, wanted, small, stream, -1);
    if (i >= 0) return model_release(m, i), true;
    while (released < wanted) {
        int largest = -1;
        for (int k = 0; k < m->n; k++) {
            const struct model_block *b = &m->b[k];
            if (b->state != MODEL_FREE || b->small != small || b->stream != stream || b->bytes < most)
                continue;
            if (largest < 0 || model_before(&m->b[largest], b)) largest = k;
        }
        if (largest < 0) return false;
        released += m->b[largest].bytes;
        model_release(m, largest);
    }
    return true;
}

static inline bool model_is_garbage(const struct model *m, int i)
{
    return m->b[i].state == MODEL_FREE && !m->b[i].small && !model_split(m, i) && !m->b[i].page;
}

static inline void model_collect(struct model *m)
{
    uint64_t limit = m->limit != UINT64_MAX ? m->limit : m->total;
    uint64_t keep = (uint64_t)(m->conf.gc_threshold * (double)limit), freed = 0;
    if (!(m->conf.gc_threshold > 0) || m->used <= keep) return;
    uint64_t excess = m->used - keep;
    for (bool any = true; any && freed < excess;) {
        double sum = 0, count = 0;
        for (int i = 0; i < m->n; i++)
            if (model_is_garbage(m, i)) sum += (double)(m->searches - m->b[i].born), count++;
        any = false;
        for (int i = 0; count > 0 && i < m->n; i++) {
            if (!model_is_garbage(m, i) || (double)(m->searches - m->b[i].born) < sum / count) continue;
            freed += m->b[i].bytes;
            model_release(m, i--);
            any = true;
        }
    }
}

/* The address, or 0 when the request is refused. */
static inline uint64_t model_malloc(struct model *m, uint64_t requested, uint64_t stream)
{
    uint64_t bytes = cache_conf_round(&m->conf, requested);
    model_pass_events(m);
    int i = model_search(m, bytes, stream);
    if (i < 0) {
        model_collect(m);
        i = model_grow(m, bytes, stream);
        if (i < 0 && model_release_oversize(m, bytes, stream)) i = model_grow(m, bytes, stream);
        if (i < 0) {
            model_release_all(m);
            i = model_grow(m, bytes, stream);
        }
        if (i < 0) i = model_search(m, bytes, stream);
        if (i < 0) return 0;
    }
    uint64_t rest = m->b[i].bytes - bytes;
    bool cut = m->b[i].small || m->conf.expandable ? rest >= CACHE_MIN_BLOCK
                                                   : bytes < m->conf.max_split && rest > CACHE_SMALL_MAX;
    if (cut) i = model_cut(m, i, m->b[i].at, bytes);
    m->b[i].state = MODEL_LIVE;
    m->active += m->b[i].bytes;
    return m->b[i].at;
}

static inline void model_record(struct model *m, uint64_t at, uint64_t stream)
{
    struct model_block *b = &m->b[model_find(m, at)];
    for (int k = 0; k < b->use_count; k++)
        if (b->uses[k] == stream) return;
    if (b->stream != stream) b->uses[b->use_count++] = stream;
}

static inline void model_free(struct model *m, uint64_t at)
{
    int i = model_find(m, at);
    struct model_block *b = &m->b[i];
    b->state = MODEL_PENDING;
    for (int k = 0; k < b->use_count; k++) b->events[b->event_count++] = ++m->recorded;
    if (!b->event_count) model_return(m, i);
}
