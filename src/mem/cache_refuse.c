/* cache_refuse.c - a refused request: the numbers at that moment, their cause, and words for people. */
#include "base/bytes.h"
#include "mem/cache_part.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

/* After a refusal the cache has released what it could: memory that is still reserved and not live is in pieces. */
static enum cache_cause find_cause(const struct cache_refusal *r)
{
    if (r->rounded > r->limit) return CACHE_TOO_LARGE;
    if (r->rounded > minus(r->limit, r->live)) return CACHE_LIVE_FULL;
    if (r->available != UINT64_MAX && r->others && r->rounded > r->available + minus(r->reserved, r->live))
        return CACHE_OTHERS;
    return CACHE_SCATTERED;
}

static void fill(struct cache *c, const struct cache_request *request, uint64_t rounded,
                 struct cache_refusal *r)
{
    *r = (struct cache_refusal){
        .bytes = request->bytes,
        .rounded = rounded,
        .stream = request->stream,
        .cls = request->cls,
        .limit = c->limit != CACHE_NO_LIMIT ? c->limit : minus(c->backing->total, c->options.overhead),
        .overhead = c->options.overhead,
        .reserved = figure_now(c, CACHE_RESERVED_BYTES),
        .live = figure_now(c, CACHE_ACTIVE_BYTES),
        .available = c->ops->available ? c->ops->available(c->backing) : UINT64_MAX,
        .count = c->stats.num_ooms};
    if (r->available != UINT64_MAX)
        r->others = minus(c->backing->total, r->available + r->reserved + r->overhead);
    for (int i = 0; i < CACHE_CLASSES_MAX; i++) r->by_class[i] = c->stats.by_class[i].current;
    cache_fragmentation_now(c, &r->fragmentation);
    r->cause = find_cause(r);
}

/* "param 8.00 GiB, grad 4.00 GiB": the classes that hold memory, the largest first. */
static void add_classes(const struct cache *c, const struct cache_refusal *r, struct strbuf *out)
{
    bool told[CACHE_CLASSES_MAX] = {0};
    char text[BYTES_TEXT];
    for (int n = 0; n < c->options.class_count; n++) {
        int most = -1;
        for (int i = 0; i < c->options.class_count; i++)
            if (!told[i] && r->by_class[i] > 0 && (most < 0 || r->by_class[i] > r->by_class[most])) most = i;
        if (most < 0) break;
        told[most] = true;
        strbuf_addf(out, "%s%s %s", n ? ", " : "", c->options.classes[most],
                    bytes_format(text, (uint64_t)r->by_class[most]));
    }
}

static void add_remedy(const struct cache *c, const struct cache_refusal *r, struct strbuf *out)
{
    char more[BYTES_TEXT];
    switch (r->cause) {
    case CACHE_TOO_LARGE:
        strbuf_add(
            out,
            "the request alone is above the limit: make it smaller (micro-batch, sequence length) or raise "
            "the budget");
        break;
    case CACHE_LIVE_FULL:
        strbuf_addf(out,
                    "free memory, use a smaller micro-batch, recompute or offload, or raise the budget by %s",
                    bytes_format(more, minus(r->live + r->rounded, r->limit)));
        break;
    case CACHE_OTHERS:
        strbuf_addf(out,
                    "%s are held outside this allocator: stop the other process or move the job to another "
                    "device",
                    bytes_format(more, r->others));
        break;
    case CACHE_SCATTERED:
        strbuf_add(out, "enough memory is free, but in pieces: ");
        strbuf_add(out, !c->conf.expandable && c->ops->map ? "set expandable_segments:True"
                        : c->conf.expandable ? "free the blocks between them or raise the budget"
                                             : "set max_split_size_mb, or raise the budget");
        break;
    }
}

/* One line. */
static void add_summary(const struct cache *c, const struct cache_refusal *r, struct strbuf *out)
{
    const struct cache_fragmentation *f = &r->fragmentation;
    char a[BYTES_TEXT], b[BYTES_TEXT], d[BYTES_TEXT];
    strbuf_addf(out, "%s: cannot allocate %s for '%s': %s of %s are live", c->ops->name,
                bytes_format(a, r->bytes), c->options.classes[r->cls], bytes_format(b, r->live),
                bytes_format(d, r->limit));
    if (r->live) {
        strbuf_add(out, " (");
        add_classes(c, r, out);
        strbuf_add(out, ")");
    }
    strbuf_addf(out, ", %s are reserved; fragmentation %.0f %%: %s are free in pieces of at most %s; ",
                bytes_format(a, r->reserved), 100 * f->external, bytes_format(b, f->free_bytes),
                bytes_format(d, f->largest_bytes));
    add_remedy(c, r, out);
}

enum plim_status cache_refuse(struct cache *c, const struct cache_request *request, uint64_t rounded,
                              struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    c->stats.num_ooms++;
    fill(c, request, rounded, &c->refusal);
    cache_history_add(c, CACHE_DID_OOM, c->refusal.available, request->bytes, request->stream, request->cls,
                      request->frames);
    add_summary(c, &c->refusal, &text);
    plim_fail(err, PLIM_NO_MEMORY, "%s", text.failed ? "out of memory" : strbuf_text(&text));
    strbuf_release(&text);
    return PLIM_NO_MEMORY;
}

bool cache_last_refusal(struct cache *c, struct cache_refusal *out)
{
    cache_lock(c);
    *out = c->refusal;
    cache_unlock(c);
    return out->count > 0;
}

/* ---- the long explanation ---- */

enum { HOLDERS = 8 };

struct holder {
    const void *frames;
    int cls;
    uint64_t bytes, blocks;
};

static int by_owner(const void *a, const void *b)
{
    const struct holder *x = a, *y = b;
    if (x->cls != y->cls) return x->cls < y->cls ? -1 : 1;
    return x->frames == y->frames ? 0 : (uintptr_t)x->frames < (uintptr_t)y->frames ? -1 : 1;
}

static int by_bytes(const void *a, const void *b)
{
    const struct holder *x = a, *y = b;
    return x->bytes == y->bytes ? 0 : x->bytes > y->bytes ? -1 : 1;
}

/* Live blocks, one entry per owner, the largest first; NULL: no host memory. */
static struct holder *find_holders(const struct cache *c, int64_t *count)
{
    int64_t n = 0, kept = 0, blocks = (int64_t)figure_now(c, CACHE_ALLOCATION);
    struct holder *list = calloc((size_t)blocks + 1, sizeof *list);
    for (uint64_t i = 0; list && i <= c->map.mask; i++) {
        const struct block *b = c->map.slots[i].at ? c->map.slots[i].block : NULL;
        if (b && b->state == BLOCK_LIVE) list[n++] = (struct holder){b->frames, b->cls, b->bytes, 1};
    }
    if (n) qsort(list, (size_t)n, sizeof *list, by_owner);
    for (int64_t i = 0; i < n; i++) {
        if (kept && !by_owner(&list[kept - 1], &list[i])) {
            list[kept - 1].bytes += list[i].bytes;
            list[kept - 1].blocks++;
        } else {
            list[kept++] = list[i];
        }
    }
    if (kept) qsort(list, (size_t)kept, sizeof *list, by_bytes);
    *count = kept;
    return list;
}

static void add_holders(const struct cache *c, struct strbuf *out)
{
    int64_t count = 0;
    struct holder *list = find_holders(c, &count);
    char size[BYTES_TEXT], text[256];
    for (int64_t i = 0; list && i < count && i < HOLDERS; i++) {
        const struct holder *h = &list[i];
        text[0] = '\0';
        if (h->frames && c->options.describe)
            c->options.describe(c->options.arg, h->frames, text, sizeof text);
        strbuf_addf(out, "  %s in %llu blocks: %s%s%s\n", bytes_format(size, h->bytes),
                    (unsigned long long)h->blocks, c->options.classes[h->cls], *text ? ", " : "", text);
    }
    free(list);
}

void cache_explain(struct cache *c, const struct cache_refusal *r, struct strbuf *out)
{
    const struct cache_fragmentation *f = &r->fragmentation;
    char a[BYTES_TEXT], b[BYTES_TEXT], d[BYTES_TEXT];
    cache_lock(c);
    add_summary(c, r, out);
    strbuf_addf(out, "\nlimit %s, overhead outside the allocator %s", bytes_format(a, r->limit),
                bytes_format(b, r->overhead));
    if (r->available != UINT64_MAX)
        strbuf_addf(out, ", available on the device %s, held by others %s", bytes_format(a, r->available),
                    bytes_format(b, r->others));
    strbuf_addf(
        out,
        "\nfragmentation: %.1f %% of the reserved memory is free (%s, of which %s cannot be released), "
        "%.1f %% of the allocated memory is rounding (%s), %.1f %% at the peaks\n",
        100 * f->external, bytes_format(a, f->free_bytes), bytes_format(b, f->stuck_bytes), 100 * f->internal,
        bytes_format(d, f->rounding_bytes), 100 * f->peak);
    strbuf_add(out, "largest holders:\n");
    add_holders(c, out);
    cache_unlock(c);
}
