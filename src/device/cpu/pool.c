/* pool.c - one vector for each row of a batch: the mean of its tokens or the first, normalised where asked for.
 *
 * A row of the batch is one thread's. Tokens are added in order in fp32, in the worker's scratch, and the result is
 * rounded once; backward the one gradient that all tokens of a row share is made once and copied. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rows.h"
#include <math.h>
#include <string.h>

/* Shorter vectors are not made longer. */
#define LEAST_NORM 1e-12

static double scale_of(const struct kernel_call *call)
{
    return call->op->attr.scale != 0 ? (double)call->op->attr.scale : 1;
}

/* Tokens of row b that its vector is made of. */
static int64_t tokens_of(const struct kernel_call *call, int lengths, int64_t b, int64_t time)
{
    int64_t length = call->in[lengths] ? ((const int32_t *)call->in[lengths])[b] : time;
    return call->op->attr.pooling == POOLING_FIRST ? lesser(1, length) : length;
}

static void pool_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct kernel_call *call = arg;
    const struct tensor *x = call_in(call, POOL_X), *y = call_out(call, POOL_Y);
    const struct row_ops *rows = row_ops();
    int64_t time = x->dim[1], columns = x->dim[2];
    float *sum = (float *)call->work + worker * columns;
    for (int64_t b = begin; b < end; b++) {
        int64_t count = tokens_of(call, POOL_LENGTHS, b, time);
        memset(sum, 0, (size_t)columns * sizeof *sum);
        for (int64_t t = 0; t < count; t++)
            rows->add_to(x->type, sum, in_at(call, POOL_X, (b * time + t) * columns), columns);
        double mean = count > 0 ? 1.0 / (double)count : 0, stat = 1;
        if (call->op->attr.normalize)
            stat = 1 / fmax(sqrt(rows->sumsq(DT_F32, sum, columns)) * mean, LEAST_NORM);
        rows->scale_add(DT_F32, sum, sum, (float)(scale_of(call) * stat * mean), NULL, columns);
        ((float *)call->out[POOL_STAT])[b] = (float)stat;
        dtype_convert(out_at(call, POOL_Y, b * columns), y->type, sum, DT_F32, columns);
    }
}

void cpu_pool(const struct kernel_call *call)
{
    call_each(call, call_in(call, POOL_X)->dim[0], 1, pool_body);
}

static size_t cpu_pool_workspace(const struct tensor *const *desc, const struct op *, int threads)
{
    return (size_t)(threads * desc[POOL_X]->dim[2]) * sizeof(float);
}

/* The gradient of row b's pooled vector, over `dy`: what lies along the vector of length 1 changes nothing. */
static void vector_gradient(const struct kernel_call *call, int64_t b, int64_t count, float *dy, float *y)
{
    const struct tensor *dx = call_out(call, POOL_BWD_DX);
    int64_t n = dx->dim[2];
    double scale = scale_of(call), along = 0, by = scale / (double)count;
    dtype_convert(dy, DT_F32, in_at(call, POOL_BWD_DY, b * n), dx->type, n);
    dtype_convert(y, DT_F32, in_at(call, POOL_BWD_Y, b * n), dx->type, n);
    if (call->op->attr.normalize) {
        for (int64_t i = 0; i < n; i++) along += (double)y[i] * (double)dy[i];
        along /= scale * scale, by *= (double)((const float *)call->in[POOL_BWD_STAT])[b];
    }
    for (int64_t i = 0; i < n; i++) dy[i] = (float)(by * ((double)dy[i] - along * (double)y[i]));
}

static void bwd_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct kernel_call *call = arg;
    const struct tensor *desc = call_out(call, POOL_BWD_DX);
    int64_t time = desc->dim[1], columns = desc->dim[2];
    float *dy = (float *)call->work + worker * 2 * columns, *y = dy + columns;
    size_t row = (size_t)columns * dtype_size(desc->type);
    for (int64_t b = begin; b < end; b++) {
        int64_t count = tokens_of(call, POOL_BWD_LENGTHS, b, time);
        char *dx = out_at(call, POOL_BWD_DX, b * time * columns);
        if (count > 0)
            vector_gradient(call, b, count, dy, y), dtype_convert(dx, desc->type, dy, DT_F32, columns);
        for (int64_t t = 1; t < count; t++) memcpy(dx + (size_t)t * row, dx, row);
        memset(dx + (size_t)count * row, 0, (size_t)(time - count) * row);
    }
}

void cpu_pool_bwd(const struct kernel_call *call)
{
    call_each(call, call_out(call, POOL_BWD_DX)->dim[0], 1, bwd_body);
}

static size_t cpu_pool_bwd_workspace(const struct tensor *const *desc, const struct op *, int threads)
{
    return (size_t)(threads * 2 * desc[POOL_BWD_DY]->dim[1]) * sizeof(float);
}

CPU_KERNEL(pool, cpu_pool_workspace);
CPU_KERNEL(pool_bwd, cpu_pool_bwd_workspace);
