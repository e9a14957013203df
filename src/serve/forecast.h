/* forecast.h - the peak of the pool: the most positions that running sequences will hold at once until they end.
 *
 *     struct forecast f;
 *     forecast_begin(&f, longest, beside);                // longest: the most tokens that one of them will still get
 *     forecast_add(&f, left, own);                        // one per sequence
 *     if (forecast_with(&f, left, own) <= positions) ...  // the peak if one more joined
 *
 * Every sequence grows by one token a step and leaves when it ends. So the peak is just before the end of one of them: each
 * sequence that lasts as long or longer has then grown by as many tokens. Sequences that end at about the same time share a
 * bucket; all of a bucket count until its last one ends. The result is never too small, and exact if all end together.
 */
#pragma once

#include <stdint.h>

enum { FORECAST_BUCKETS = 256 };

struct forecast {
    int64_t width;  /* steps per bucket */
    int64_t beside; /* positions in use that no sequence counts as its own */
    struct forecast_bucket {
        int64_t count, own; /* sequences, and their positions now */
        int64_t last;       /* steps until the last of them ends */
    } bucket[FORECAST_BUCKETS];
};

void forecast_begin(struct forecast *f, int64_t longest, int64_t beside);
/* left: tokens that the sequence will still get; own: its positions now, without those in shared blocks. */
void forecast_add(struct forecast *f, int64_t left, int64_t own);
/* The peak with one more sequence. */
int64_t forecast_with(const struct forecast *f, int64_t left, int64_t own);
