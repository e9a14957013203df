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

struct pool {
    const struct row_ops *rows;
    enum dtype type;
    const void *x;          /* [B,T,C] */
    const int32_t *lengths; /* [B] or NULL */
    void *y;                /* [B,C] */
    enum dtype y_type;
    float *stat; /* [B] */
    float *sums; /* [workers][C] */
    int64_t time, columns;
    enum pooling pooling;
    bool normalize;
    double scale;
};

static double scale_of(const struct op *op) { return op->attr.scale != 0 ? (double)op->attr.scale : 1; }

/* Tokens of row b that its vector is made of. */
static int64_t tokens_of(const int32_t *lengths, enum pooling pooling, int64_t b, int64_t time)
{
    int64_t length = lengths ? lengths[b] : time;
    return pooling == POOLING_FIRST ? lesser(1, length) : length;
}

static void pool_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct pool *p = arg;
    float *sum = p->sums + worker * p->columns;
    for (int64_t b = begin; b < end; b++) {
        int64_t count = tokens_of(p->lengths, p->pooling, b, p->time);
        memset(sum, 0, (size_t)p->columns * sizeof *sum);
        for (int64_t t = 0; t < count; t++)
            p->rows->add_to(p->type, sum, element(p->x, p->type, (b * p->time + t) * p->columns), p->columns);
        double mean = count > 0 ? 1.0 / (double)count : 0, stat = 1;
        if (p->normalize) stat = 1 / fmax(sqrt(p->rows->sumsq(DT_F32, sum, p->columns)) * mean, LEAST_NORM);
        p->rows->scale_add(DT_F32, sum, sum, (float)(p->scale * stat * mean), NULL, p->columns);
        p->stat[b] = (float)stat;
        dtype_convert(element(p->y, p->y_type, b * p->columns), p->y_type, sum, DT_F32, p->columns);
    }
}

void cpu_pool(const struct kernel_call *call)
{
    const struct tensor *x = call_in(call, POOL_X);
    struct pool p = {
        .rows = row_ops(),
        .type = x->type,
        .x = call->in[POOL_X],
        .lengths = call->in[POOL_LENGTHS],
        .y = call->out[POOL_Y],
        .y_type = call_out(call, POOL_Y)->type,
        .stat = call->out[POOL_STAT],
        .sums = call->work,
        .time = x->dim[1],
        .columns = x->dim[2],
        .pooling = call->op->attr.pooling,
        .normalize = call->op->attr.normalize,
        .scale = scale_of(call->op),
    };
    threads_each(call->team, x->dim[0], 1, pool_body, &p);
}

static size_t cpu_pool_workspace(const struct tensor *const *desc, const struct op *, int threads)
{
    return (size_t)(threads * desc[POOL_X]->dim[2]) * sizeof(float);
}

struct pool_bwd {
    enum dtype type;
    const void *dy, *y; /* [B,C] */
    const float *stat;  /* [B] */
    const int32_t *lengths;
    void *dx;    /* [B,T,C] */
    float *wide; /* [workers][dy, y][C] */
    int64_t time, columns;
    enum pooling pooling;
    bool normalize;
    double scale;
};

/* The gradient of row b's pooled vector, over `dy`: what lies along the vector of length 1 changes nothing. */
static void vector_gradient(const struct pool_bwd *p, int64_t b, int64_t count, float *dy, float *y)
{
    int64_t n = p->columns;
    double along = 0, by = p->scale / (double)count;
    dtype_convert(dy, DT_F32, element(p->dy, p->type, b * n), p->type, n);
    dtype_convert(y, DT_F32, element(p->y, p->type, b * n), p->type, n);
    if (p->normalize) {
        for (int64_t i = 0; i < n; i++) along += (double)y[i] * (double)dy[i];
        along /= p->scale * p->scale, by *= (double)p->stat[b];
    }
    for (int64_t i = 0; i < n; i++) dy[i] = (float)(by * ((double)dy[i] - along * (double)y[i]));
}

static void bwd_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct pool_bwd *p = arg;
    float *dy = p->wide + worker * 2 * p->columns, *y = dy + p->columns;
    size_t row = (size_t)p->columns * dtype_size(p->type);
    for (int64_t b = begin; b < end; b++) {
        int64_t count = tokens_of(p->lengths, p->pooling, b, p->time);
        char *dx = element(p->dx, p->type, b * p->time * p->columns);
        if (count > 0)
            vector_gradient(p, b, count, dy, y), dtype_convert(dx, p->type, dy, DT_F32, p->columns);
        for (int64_t t = 1; t < count; t++) memcpy(dx + (size_t)t * row, dx, row);
        memset(dx + (size_t)count * row, 0, (size_t)(p->time - count) * row);
    }
}

void cpu_pool_bwd(const struct kernel_call *call)
{
    const struct tensor *dx = call_out(call, POOL_BWD_DX);
    struct pool_bwd p = {
        .type = dx->type,
        .dy = call->in[POOL_BWD_DY],
        .y = call->in[POOL_BWD_Y],
        .stat = call->in[POOL_BWD_STAT],
        .lengths = call->in[POOL_BWD_LENGTHS],
        .dx = call->out[POOL_BWD_DX],
        .wide = call->work,
        .time = dx->dim[1],
        .columns = dx->dim[2],
        .pooling = call->op->attr.pooling,
        .normalize = call->op->attr.normalize,
        .scale = scale_of(call->op),
    };
    threads_each(call->team, dx->dim[0], 1, bwd_body, &p);
}

static size_t cpu_pool_bwd_workspace(const struct tensor *const *desc, const struct op *, int threads)
{
    return (size_t)(threads * 2 * desc[POOL_BWD_DY]->dim[1]) * sizeof(float);
}

CPU_KERNEL(pool, cpu_pool_workspace);
CPU_KERNEL(pool_bwd, cpu_pool_bwd_workspace);
