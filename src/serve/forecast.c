/* forecast.c - see forecast.h. */
#include "serve/forecast.h"

#include <string.h>

void forecast_begin(struct forecast *f, int64_t longest, int64_t beside)
{
    memset(f, 0, sizeof *f);
    f->width = longest / FORECAST_BUCKETS + 1, f->beside = beside;
}

static int place(const struct forecast *f, int64_t left)
{
    int64_t at = left / f->width;
    return at < FORECAST_BUCKETS ? (int)at : FORECAST_BUCKETS - 1;
}

static void put(struct forecast_bucket *b, int64_t left, int64_t own)
{
    b->count++, b->own += own;
    if (left > b->last) b->last = left;
}

void forecast_add(struct forecast *f, int64_t left, int64_t own)
{
    put(&f->bucket[place(f, left)], left, own);
}

int64_t forecast_with(const struct forecast *f, int64_t left, int64_t own)
{
    int64_t count = 0, now = 0, peak = 0;
    int at = place(f, left);
    for (int i = FORECAST_BUCKETS - 1; i >= 0; i--) {
        struct forecast_bucket b = f->bucket[i];
        if (i == at) put(&b, left, own);
        if (!b.count) continue;
        count += b.count, now += b.own;
        if (now + count * b.last > peak) peak = now + count * b.last;
    }
    return f->beside + peak;
}
