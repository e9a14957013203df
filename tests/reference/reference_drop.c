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
    uint32_t apart = 1 + (uint32_t)scalars[SCALAR_ROW_SKIP];
    uint32_t row = (uint32_t)scalars[SCALAR_FIRST_ROW] + (uint32_t)b * apart;
    return ref_mix(key ^ (row * 0x9e3779b1u));
}

double ref_drop(const struct op_attr *attr, uint32_t line, uint32_t i)
{
    uint32_t r = ref_mix((i * 0x9e3779b1u) ^ line);
    bool dropped = (double)r < floor((double)attr->dropout * 4294967296.0);
    return dropped ? 0 : 1 / (1 - (double)attr->dropout);
}

void ref_dropout(const struct ref_call *call)
{
    const struct tensor *x = ref_in(call, DROPOUT_X);
    int64_t length = tensor_count(x) / x->dim[0];
    for (int64_t b = 0; b < x->dim[0]; b++) {
        uint32_t row = ref_drop_row(&call->op->attr, call->in[DROPOUT_SCALARS].f, b);
        for (int64_t i = 0; i < length; i++) {
            int64_t at = b * length + i;
            double add = call->in[DROPOUT_ADD].f ? call->in[DROPOUT_ADD].f[at] : 0;
            double m = call->op->attr.dropout > 0 ? ref_drop(&call->op->attr, row, (uint32_t)i) : 1;
            call->out[DROPOUT_Y].f[at] = call->in[DROPOUT_X].f[at] * m + add;
        }
    }
}
