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

static void norm_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    const struct op_attr *attr = &call->op->attr;
    const struct row_ops *rows = row_ops();
    enum dtype type = call_in(call, NORM_W)->type;
    const void *w = call->in[NORM_W];
    int64_t columns = tensor_count(call_in(call, NORM_W));
    for (int64_t r = begin; r < end; r++) {
        void *y = out_at(call, NORM_Y, r * columns);
        const void *x = in_at(call, NORM_X, r * columns);
        float *stat = (float *)call->out[NORM_STAT] + (attr->layer_norm ? 2 * r : r);
        if (attr->layer_norm)
            rows->layer(type, y, stat, x, w, call->in[NORM_BIAS], columns, attr->eps);
        else
            rows->rms(type, y, stat, x, w, attr->plus_one, columns, attr->eps);
    }
}

void cpu_norm(const struct kernel_call *call)
{
    int64_t columns = tensor_count(call_in(call, NORM_W));
    call_each(call, tensor_count(call_in(call, NORM_X)) / columns, row_grain(columns), norm_body);
}

static int64_t bwd_columns(const struct kernel_call *call) { return tensor_count(call_in(call, NORM_BWD_W)); }

static int64_t bwd_rows(const struct kernel_call *call)
{
    return tensor_count(call_in(call, NORM_BWD_X)) / bwd_columns(call);
}

/* Sums of a block, [sums][C] each: none, dw, or dw and db. */
static int bwd_sums(const struct kernel_call *call)
{
    return (call->out[NORM_BWD_DW] != NULL) + (call->out[NORM_BWD_DBIAS] != NULL);
}

static void bwd_row(const struct kernel_call *call, int64_t r, float *dw, float *db)
{
    const float *stat = call->in[NORM_BWD_STAT];
    bool layer = call->op->attr.layer_norm;
    int64_t columns = bwd_columns(call), at = r * columns;
    struct row_norm_bwd row = {
        .dx = out_at(call, NORM_BWD_DX, at),
        .dw = dw,
        .db = db,
        .dy = in_at(call, NORM_BWD_DY, at),
        .x = in_at(call, NORM_BWD_X, at),
        .w = call->in[NORM_BWD_W],
        .add = in_at(call, NORM_BWD_ADD, at),
        .mean = layer ? stat[2 * r] : 0,
        .rstd = layer ? stat[2 * r + 1] : stat[r],
        .plus_one = call->op->attr.plus_one,
    };
    (layer ? row_ops()->layer_bwd : row_ops()->rms_bwd)(call_in(call, NORM_BWD_W)->type, &row, columns);
}

/* begin and end count blocks */
static void bwd_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    int64_t columns = bwd_columns(call), count = bwd_rows(call);
    int sums = bwd_sums(call);
    for (int64_t block = begin; block < end; block++) {
        float *dw = sums ? (float *)call->work + block * sums * columns : NULL;
        if (dw) memset(dw, 0, (size_t)(sums * columns) * sizeof *dw);
        int64_t last = lesser(count, (block + 1) * NORM_BLOCK);
        for (int64_t r = block * NORM_BLOCK; r < last; r++)
            bwd_row(call, r, dw, sums == 2 ? dw + columns : NULL);
    }
}

/* begin and end count columns */
static void combine_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    enum dtype type = call_out(call, NORM_BWD_DW)->type;
    int64_t columns = bwd_columns(call), blocks = blocks_of(bwd_rows(call), NORM_BLOCK);
    int sums = bwd_sums(call);
    for (int s = 0; s < sums; s++) {
        for (int64_t at = begin, width; at < end; at += width) {
            float sum[COMBINE] = {0};
            void *grad = out_at(call, s ? NORM_BWD_DBIAS : NORM_BWD_DW, at);
            width = lesser(COMBINE, end - at);
            if (call->accumulate) dtype_convert(sum, DT_F32, grad, type, width);
            for (int64_t b = 0; b < blocks; b++)
                row_ops()->add_to(DT_F32, sum, (float *)call->work + (b * sums + s) * columns + at, width);
            dtype_convert(grad, type, sum, DT_F32, width);
        }
    }
}

void cpu_norm_bwd(const struct kernel_call *call)
{
    call_each(call, blocks_of(bwd_rows(call), NORM_BLOCK), 1, bwd_body);
    if (bwd_sums(call)) call_each(call, bwd_columns(call), COMBINE, combine_body);
}

static size_t cpu_norm_bwd_workspace(const struct tensor *const *desc, const struct op *, int)
{
    const struct tensor *const *out = desc + OP_MAX_IN;
    int64_t columns = tensor_count(desc[NORM_BWD_W]),
            sums = (out[NORM_BWD_DW] != NULL) + (out[NORM_BWD_DBIAS] != NULL);
    return (size_t)(blocks_of(tensor_count(desc[NORM_BWD_X]) / columns, NORM_BLOCK) * sums * columns) *
           sizeof(float);
}

CPU_KERNEL(norm, NULL);
CPU_KERNEL(norm_bwd, cpu_norm_bwd_workspace);
