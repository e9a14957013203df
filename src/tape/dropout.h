/* dropout.h - decides which numbers are dropped. The decision depends only on seed and step, op, row of the step and
 * position in the row; not on how rows are divided into passes, on the number of ranks, or on padding. Rows of a step are
 * numbered from longest to shortest over all ranks. op.h specifies the same in words.
 *
 *     struct dropout d = dropout_of(attr, scalars);
 *     uint32_t row = dropout_row(&d, b);                        // row b of the micro-batch
 *     float m = dropout_keeps(&d, row, i) ? d.scale : 0;        // element i of the row
 *     uint32_t line = dropout_line(row, h, query);              // attention: dropout_keeps(&d, line, key)
 */
#pragma once

#include "tape/tape.h"
#include "tensor/stochastic.h"

struct dropout {
    uint32_t key, first_row, row_step;
    uint32_t below; /* bits below this are dropped; 0: none */
    float scale;    /* factor of kept numbers */
};

static inline struct dropout dropout_of(const struct op_attr *attr, const float *scalars)
{
    struct dropout d = {.scale = 1};
    if (!(attr->dropout > 0)) return d;
    uint32_t step = (uint32_t)scalars[SCALAR_KEY_HIGH] << 16 | (uint32_t)scalars[SCALAR_KEY_LOW];
    d.key = stochastic_key(step, attr->stream);
    d.first_row = (uint32_t)scalars[SCALAR_FIRST_ROW];
    d.row_step = 1 + (uint32_t)scalars[SCALAR_ROW_SKIP];
    d.below = (uint32_t)((double)attr->dropout * 4294967296.0);
    d.scale = (float)(1 / (1 - (double)attr->dropout));
    return d;
}

static inline uint32_t dropout_row(const struct dropout *d, int64_t b)
{
    return stochastic_mix(d->key ^ ((d->first_row + (uint32_t)b * d->row_step) * STOCHASTIC_ODD));
}

static inline uint32_t dropout_line(uint32_t row, int64_t head, int64_t query)
{
    return stochastic_mix(row ^ ((uint32_t)head << 24 ^ (uint32_t)query));
}

static inline int dropout_keeps(const struct dropout *d, uint32_t line, uint64_t i)
{
    return stochastic_bits(line, i) >= d->below;
}
