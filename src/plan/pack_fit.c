/* pack_fit.c - first fit: the lowest place that is free for the whole lifetime.
 *
 * What is placed lies in one array ordered by offset. Going through it from the bottom, everything that
 * overlaps in time raises the floor, until the next thing starts high enough above the floor.
 */
#include "plan/pack_internal.h"
#include <string.h>

struct spot {
    int64_t lo, hi;
    int a, b;
};

struct pack_fit {
    struct pack_job *job;
    struct spot *spot;
    int count;
};

struct pack_fit *pack_fit_new(struct pack_job *job)
{
    struct pack_fit *f = bump_alloc(job->store, sizeof *f);
    if (!f) return NULL;
    f->job = job;
    f->spot = bump_alloc(job->store, ((size_t)job->n + 1) * sizeof *f->spot);
    return f->spot ? f : NULL;
}

void pack_fit_clear(struct pack_fit *f) { f->count = 0; }

/* Where lo belongs: after everything that starts at or below it. */
static int rank_of(const struct pack_fit *f, int64_t lo)
{
    int first = 0, last = f->count;
    while (first < last) {
        int mid = (first + last) / 2;
        if (f->spot[mid].lo > lo)
            last = mid;
        else
            first = mid + 1;
    }
    return first;
}

void pack_fit_add(struct pack_fit *f, int r)
{
    const struct pack_rect *x = &f->job->rect[r];
    int64_t lo = f->job->offset[r];
    int at = rank_of(f, lo);
    memmove(f->spot + at + 1, f->spot + at, (size_t)(f->count++ - at) * sizeof *f->spot);
    f->spot[at] = (struct spot){lo, lo + x->size, x->a, x->b};
}

int64_t pack_fit_lowest(const struct pack_fit *f, int r)
{
    const struct pack_rect *x = &f->job->rect[r];
    int64_t floor = 0;
    for (int i = 0; i < f->count; i++) {
        const struct spot *s = &f->spot[i];
        if (s->a >= x->b || s->b <= x->a) continue;
        if (s->lo - floor >= x->size) break;
        if (s->hi > floor) floor = s->hi;
    }
    return floor;
}
