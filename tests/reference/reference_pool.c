/* reference_pool.c - a vector for each row of a batch, from the text of tape/op.h. */
#include "reference/reference_ops.h"

#include <math.h>

static double scale_of(const struct op *op) { return op->attr.scale != 0 ? (double)op->attr.scale : 1; }

/* Whether token t of row b is part of the row's vector, and how many are. */
static bool is_part(const struct op_attr *attr, int64_t length, int64_t t)
{
    return t < length && (attr->pooling == POOLING_MEAN || t == 0);
}

static double parts(const struct op_attr *attr, int64_t length)
{
    return attr->pooling == POOLING_MEAN ? (double)length : fmin(1, (double)length);
}

void ref_pool(const struct ref_call *call)
{
    const struct tensor *x = ref_in(call, POOL_X);
    const struct op_attr *attr = &call->op->attr;
    int64_t time = x->dim[1], width = x->dim[2];
    for (int64_t b = 0; b < x->dim[0]; b++) {
        int64_t length = call->in[POOL_LENGTHS].i ? call->in[POOL_LENGTHS].i[b] : time;
        double *y = call->out[POOL_Y].f + b * width, squares = 0, stat = 1;
        for (int64_t c = 0; c < width; c++) {
            double sum = 0;
            for (int64_t t = 0; t < time; t++)
                if (is_part(attr, length, t)) sum += call->in[POOL_X].f[(b * time + t) * width + c];
            y[c] = length > 0 ? sum / parts(attr, length) : 0;
            squares += y[c] * y[c];
        }
        if (attr->normalize) stat = 1 / fmax(sqrt(squares), 1e-12);
        call->out[POOL_STAT].f[b] = stat;
        for (int64_t c = 0; c < width; c++) y[c] *= scale_of(call->op) * stat;
    }
}

void ref_pool_bwd(const struct ref_call *call)
{
    const struct tensor *dx = ref_out(call, POOL_BWD_DX);
    const struct op_attr *attr = &call->op->attr;
    int64_t time = dx->dim[1], width = dx->dim[2];
    double scale = scale_of(call->op);
    for (int64_t b = 0; b < dx->dim[0]; b++) {
        int64_t length = call->in[POOL_BWD_LENGTHS].i ? call->in[POOL_BWD_LENGTHS].i[b] : time;
        const double *dy = call->in[POOL_BWD_DY].f + b * width, *y = call->in[POOL_BWD_Y].f + b * width;
        double along = 0, stat = call->in[POOL_BWD_STAT].f[b];
        for (int64_t c = 0; attr->normalize && c < width; c++) along += y[c] / scale * dy[c];
        for (int64_t t = 0; t < time; t++)
            for (int64_t c = 0; c < width; c++)
                call->out[POOL_BWD_DX].f[(b * time + t) * width + c] =
                    is_part(attr, length, t)
                        ? scale * stat * (dy[c] - y[c] / scale * along) / parts(attr, length)
                        : 0;
    }
}
