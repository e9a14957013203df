/* forecast.h - how many positions of the pool running sequences will come to hold, at most, until they end.
 *
 *     struct forecast f;
 *     forecast_begin(&f, longest, beside);               // longest: tokens that any of them may still get
 *     forecast_add(&f, left, own);                        // one per sequence
 *     if (forecast_with(&f, left, own) <= positions) ...  // the peak if one more joined
 *
 * All sequences grow by a token a step and leave when they end, so the peak comes when one of them is about to end: those that
 * last as long or longer have grown as much as it has. Sequences that end at about the same time share a bucket, and a bucket
 * counts as whole until its last one ends. The result is never too small, and exact if all have the same length.
 */
#pragma once

#include <stdint.h>

enum { FORECAST_BUCKETS = 256 };

struct forecast {
    int64_t width;  /* steps per bucket */
    int64_t beside; /* positions of blocks that no sequence counts as its own */
    struct forecast_bucket {
        int64_t count, own; /* sequences, and their positions now */
        int64_t last;       /* steps until the last of them ends */
    } bucket[FORECAST_BUCKETS];
};

void forecast_begin(struct forecast *f, int64_t longest, int64_t beside);
/* left: tokens that the sequence will still get; own: its positions now, but for those in blocks of others. */
void forecast_add(struct forecast *f, int64_t left, int64_t own);
/* The peak with one more sequence. */
int64_t forecast_with(const struct forecast *f, int64_t left, int64_t own);
