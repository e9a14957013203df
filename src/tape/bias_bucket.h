/* bias_bucket.h - T5's relative positions: the row of attention's bias for each distance (op.h).
 *
 * Kernels use whole numbers only: the distance at which each bucket j >= E begins is computed here, once, so that results do
 * not depend on a device's logarithm.
 *
 *     struct bias_buckets b = bias_buckets(R, attr);
 *     bias[bias_bucket(&b, key - query) * H + h]
 */
#pragma once

#include "tape/tape.h"
#include <math.h>

enum { BIAS_MAX_BUCKETS = 128 };

struct bias_buckets {
    int side;                     /* buckets of one side */
    int two_sided;                /* keys after the query use the upper half */
    int begins[BIAS_MAX_BUCKETS]; /* smallest distance of each bucket of a side */
};

/* The smallest distance of bucket `bucket` >= exact. The small correction keeps exact powers on the side of
 * rounding on which T5's fp32 arithmetic has them. */
static inline int bias_begins(int bucket, int exact, int side, int reach)
{
    double power = (double)(bucket - exact) / (side - exact);
    double at = exact * pow((double)reach / exact, power);
    return (int)ceil(at - 1e-7 * at);
}

static inline struct bias_buckets bias_buckets(int64_t rows, const struct op_attr *attr)
{
    struct bias_buckets b = {.side = (int)(attr->two_sided ? rows / 2 : rows), .two_sided = attr->two_sided};
    int exact = b.side / 2;
    for (int i = 0; i < b.side; i++)
        b.begins[i] = i <= exact ? i : bias_begins(i, exact, b.side, attr->bias_reach);
    return b;
}

/* offset: key - query. */
static inline int bias_bucket(const struct bias_buckets *b, int64_t offset)
{
    int64_t distance = offset < 0 ? -offset : b->two_sided ? offset : 0;
    int bucket = 0;
    while (bucket + 1 < b->side && b->begins[bucket + 1] <= distance) bucket++;
    return bucket + (b->two_sided && offset > 0 ? b->side : 0);
}
