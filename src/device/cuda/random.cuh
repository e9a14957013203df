/* random.cuh - tensor/stochastic.h and tape/dropout.h on the GPU: which elements are dropped. */
#pragma once

#include "device/cuda/kernels.h"
#include "tensor/stochastic.h"

/* An op's dropout; the key is made of scalars the host writes before every step, so kernels make it. */
struct drop {
    const float *scalars;
    uint32_t stream;
    uint32_t below; /* bits below this are dropped; 0: nothing is */
    float scale;    /* of what is kept */
};

static inline struct drop drop_of(const struct op_attr *attr, const void *scalars)
{
    struct drop d = {(const float *)scalars, attr->stream, 0, 1};
    if (!(attr->dropout > 0)) return d;
    d.below = (uint32_t)((double)attr->dropout * 4294967296.0);
    d.scale = (float)(1 / (1 - (double)attr->dropout));
    return d;
}

ON_GPU uint32_t random_mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x *= 0xc2b2ae35u;
    return x ^ (x >> 16);
}

/* The random numbers of row b of the micro-batch. */
ON_GPU uint32_t dropout_row(const struct drop &d, int64_t b)
{
    uint32_t step = (uint32_t)d.scalars[SCALAR_KEY_HIGH] << 16 | (uint32_t)d.scalars[SCALAR_KEY_LOW];
    uint32_t key = random_mix(random_mix(d.stream) ^ step);
    return random_mix(key ^ (((uint32_t)d.scalars[SCALAR_FIRST_ROW] +
                              (uint32_t)b * (1u + (uint32_t)d.scalars[SCALAR_ROW_SKIP])) *
                             STOCHASTIC_ODD));
}

/* Dropout factor of element i of a row or line. */
ON_GPU float dropout_factor(const struct drop &d, uint32_t line, uint32_t i)
{
    return random_mix((i * STOCHASTIC_ODD) ^ line) >= d.below ? d.scale : 0.0f;
}
