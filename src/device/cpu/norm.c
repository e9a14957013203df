/* norm.c - RMSNorm and LayerNorm.
 *
 * Backward, dx belongs to a row and dw, db to all of them. One pass over the data does both: rows are taken
 * in blocks of 32, each block sums its rows in order into its own partial dw (and db) in the workspace, and a
 * second, small loop adds the partials to dw in order of blocks. So the order of every sum is fixed by the
 * number of the row alone, and 32 divides KERNEL_ROW_BLOCK. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rows.h"
#include <string.h>

enum { NORM_BLOCK = 32, COMBINE = 256 };

struct norm {
    const struct row_ops *rows;
    enum dtype type;
    const void *x, *w, *b; /* [R,C], [C], [C] or NULL */
    void *y;               /* [R,C] */
    float *stat;           /* [R,1] or [R,2] */
    int64_t columns;
    float eps;
    bool plus_one;
};

static void rms_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct norm *n = arg;
    for (int64_t r = begin; r < end; r++)
        n->rows->rms(n->type, element(n->y, n->type, r * n->columns), n->stat + r,
                     element(n->x, n->type, r * n->columns), n->w, n->plus_one, n->columns, n->eps);
}

static void layer_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct norm *n = arg;
    for (int64_t r = begin; r < end; r++)
        n->rows->layer(n->type, element(n->y, n->type, r * n->columns), n->stat + 2 * r,
                       element(n->x, n->type, r * n->columns), n->w, n->b, n->columns, n->eps);
}

void cpu_norm(const struct kernel_call *call)
{
    const struct tensor *w = call_in(call, NORM_W);
    struct norm n = {
        .rows = row_ops(),
        .type = w->type,
        .x = call->in[NORM_X],
        .w = call->in[NORM_W],
        .b = call->in[NORM_BIAS],
        .y = call->out[NORM_Y],
        .stat = call->out[NORM_STAT],
        .columns = tensor_count(w),
        .eps = call->op->attr.eps,
        .plus_one = call->op->attr.plus_one,
    };
    threads_each(call->team, tensor_count(call_in(call, NORM_X)) / n.columns, row_grain(n.columns),
                 call->op->attr.layer_norm ? layer_body : rms_body, &n);
}

struct norm_bwd {
    const struct row_ops *rows;
    enum dtype type;
    const void *dy, *x, *w, *add;
    const float *stat;
    void *dx;
    void *dw, *db; /* [C]; db NULL: none */
    enum dtype grad_type;
    float *partial; /* [blocks][dw, db][C] */
    int64_t count, columns;
    int sums; /* 1: dw, 2: dw and db */
    bool layer, plus_one, accumulate;
};

static void bwd_row(const struct norm_bwd *n, int64_t r, float *dw, float *db)
{
    int64_t at = r * n->columns;
    struct row_norm_bwd row = {
        .dx = element(n->dx, n->type, at),
        .dw = dw,
        .db = db,
        .dy = element(n->dy, n->type, at),
        .x = element(n->x, n->type, at),
        .w = n->w,
        .add = element(n->add, n->type, at),
        .mean = n->layer ? n->stat[2 * r] : 0,
        .rstd = n->layer ? n->stat[2 * r + 1] : n->stat[r],
        .plus_one = n->plus_one,
    };
    if (n->layer)
        n->rows->layer_bwd(n->type, &row, n->columns);
    else
        n->rows->rms_bwd(n->type, &row, n->columns);
}

/* begin and end count blocks */
static void bwd_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct norm_bwd *n = arg;
    for (int64_t block = begin; block < end; block++) {
        float *dw = n->partial + block * n->sums * n->columns;
        float *db = n->sums == 2 ? dw + n->columns : NULL;
        memset(dw, 0, (size_t)(n->sums * n->columns) * sizeof *dw);
        int64_t last = lesser(n->count, (block + 1) * NORM_BLOCK);
        for (int64_t r = block * NORM_BLOCK; r < last; r++) bwd_row(n, r, dw, db);
    }
}

/* begin and end count columns */
static void combine_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct norm_bwd *n = arg;
    void *const grads[2] = {n->dw, n->db};
    for (int s = 0; s < n->sums; s++) {
        for (int64_t at = begin, width; at < end; at += width) {
            float sum[COMBINE] = {0};
            void *grad = element(grads[s], n->grad_type, at);
            width = lesser(COMBINE, end - at);
            if (n->accumulate) dtype_convert(sum, DT_F32, grad, n->grad_type, width);
            for (int64_t block = 0; block * NORM_BLOCK < n->count; block++)
                n->rows->add_to(DT_F32, sum, n->partial + (block * n->sums + s) * n->columns + at, width);
            dtype_convert(grad, n->grad_type, sum, DT_F32, width);
        }
    }
}

void cpu_norm_bwd(const struct kernel_call *call)
{
    const struct tensor *w = call_in(call, NORM_BWD_W);
    struct norm_bwd n = {
        .rows = row_ops(),
        .type = w->type,
        .dy = call->in[NORM_BWD_DY],
        .x = call->in[NORM_BWD_X],
        .w = call->in[NORM_BWD_W],
        .add = call->in[NORM_BWD_ADD],
        .stat = call->in[NORM_BWD_STAT],
        .dx = call->out[NORM_BWD_DX],
        .dw = call->out[NORM_BWD_DW],
        .db = call->out[NORM_BWD_DBIAS],
        .grad_type = call_out(call, NORM_BWD_DW)->type,
        .partial = call->work,
        .columns = tensor_count(w),
        .sums = call->out[NORM_BWD_DBIAS] ? 2 : 1,
        .layer = call->op->attr.layer_norm,
        .plus_one = call->op->attr.plus_one,
        .accumulate = call->accumulate,
    };
    n.count = tensor_count(call_in(call, NORM_BWD_X)) / n.columns;
    threads_each(call->team, blocks_of(n.count, NORM_BLOCK), 1, bwd_body, &n);
    threads_each(call->team, n.columns, COMBINE, combine_body, &n);
}

static size_t cpu_norm_bwd_workspace(const struct tensor *const *desc, const struct op *, int)
{
    int64_t columns = tensor_count(desc[NORM_BWD_W]), sums = desc[OP_MAX_IN + NORM_BWD_DBIAS] ? 2 : 1;
    return (size_t)(blocks_of(tensor_count(desc[NORM_BWD_X]) / columns, NORM_BLOCK) * sums * columns) *
           sizeof(float);
}

CPU_KERNEL(norm, NULL);
CPU_KERNEL(norm_bwd, cpu_norm_bwd_workspace);
