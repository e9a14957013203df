/* reference_drop.c - the random bits of dropout, from the text of tape/op.h. */
#include "reference/reference_ops.h"

#include <math.h>

uint32_t ref_mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x *= 0xc2b2ae35u;
    return x ^ (x >> 16);
}

uint32_t ref_drop_row(const struct op_attr *attr, const double *scalars, int64_t b)
{
    uint32_t step = (uint32_t)scalars[SCALAR_KEY_HIGH] << 16 | (uint32_t)scalars[SCALAR_KEY_LOW];
    uint32_t key = ref_mix(ref_mix(attr->stream) ^ step);
    uint32_t row = (uint32_t)scalars[SCALAR_FIRST_ROW] + (uint32_t)b;
    return ref_mix(key ^ (row * 0x9e3779b1u));
}

double ref_drop(const struct op_attr *attr, uint32_t line, uint32_t i)
{
    uint32_t r = ref_mix((i * 0x9e3779b1u) ^ line);
    bool dropped = (double)r < floor((double)attr->dropout * 4294967296.0);
    return dropped ? 0 : 1 / (1 - (double)attr->dropout);
}
