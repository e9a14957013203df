/* loader_group.c - windows of samples of like length. See loader.h.
 *
 * Places [k G, (k + 1) G) of the shuffled order are group k. Its samples are sorted by length and cut into windows of W, and
 * the whole windows are shuffled; what is left over comes last. Samples that make no row are none of them: the last places
 * of their group are empty. */
#include "data/loader_part.h"
#include "data/order.h"

#include <stdlib.h>

/* Stream of the seed's permutations that shuffles windows. */
#define WINDOWS 0x77696e646f77

static int64_t group_most(int64_t window, int64_t samples)
{
    int64_t most = window * LOADER_GROUP;
    return samples > 0 && samples < most ? samples : most;
}

size_t loader_group_bytes(int64_t window, int64_t samples)
{
    return (size_t)group_most(window, samples) * sizeof(struct group_sample);
}

enum plim_status loader_group_open(struct loader_group *g, int64_t window, int64_t samples,
                                   struct plim_error *err)
{
    *g = (struct loader_group){.most = window * LOADER_GROUP, .window = window};
    g->samples = calloc(1, loader_group_bytes(window, samples));
    return g->samples ? PLIM_OK : plim_fail(err, PLIM_NO_MEMORY, "out of memory for the data loader");
}

void loader_group_close(struct loader_group *g)
{
    free(g->samples);
    *g = (struct loader_group){0};
}

static int shorter(const void *a, const void *b)
{
    const struct group_sample *x = a, *y = b;
    if (x->length != y->length) return x->length < y->length ? -1 : 1;
    return x->place < y->place ? -1 : 1;
}

static enum plim_status make_group(struct loader_group *g, const struct loader_options *o, uint64_t key,
                                   uint64_t number, uint64_t n, group_measure *measure, void *arg,
                                   struct plim_error *err)
{
    uint64_t first = number * (uint64_t)g->most, end = first + (uint64_t)g->most;
    g->made = false, g->count = 0;
    for (uint64_t place = first; place < end && place < n; place++) {
        int64_t length, sample = (int64_t)(o->in_order ? place : order_sample(o->seed, key, place, n));
        enum plim_status status = measure(arg, sample, &length, err);
        if (status != PLIM_OK) return status;
        if (length > 0)
            g->samples[g->count++] = (struct group_sample){sample, (int64_t)place, (int32_t)length};
    }
    qsort(g->samples, (size_t)g->count, sizeof *g->samples, shorter);
    g->made = true, g->key = key, g->number = number;
    return PLIM_OK;
}

enum plim_status loader_group_sample(struct loader_group *g, const struct loader_options *o, uint64_t key,
                                     uint64_t index, uint64_t n, group_measure *measure, void *arg,
                                     int64_t *out, struct plim_error *err)
{
    uint64_t number = index / (uint64_t)g->most, at = index % (uint64_t)g->most;
    enum plim_status status = PLIM_OK;
    if (!g->made || g->key != key || g->number != number)
        status = make_group(g, o, key, number, n, measure, arg, err);
    *out = -1;
    if (status != PLIM_OK || at >= (uint64_t)g->count) return status;
    uint64_t size = (uint64_t)g->window, whole = (uint64_t)g->count / size, window = at / size;
    if (window < whole) window = order_sample(o->seed ^ WINDOWS, key ^ number << 20, window, whole);
    *out = g->samples[window * size + at % size].sample;
    return PLIM_OK;
}
