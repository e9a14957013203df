/* linear.c - weight matmuls as calls of gemm.h, and the gradient of a bias.
 *
 * All leading dimensions together are the rows R. Stored [out,in] or [in,out], a weight is the same matrix
 * read with other strides.
 *
 * The bias gradient sums the rows of dy: tasks are tiles of KERNEL_ROW_BLOCK rows by 512 columns, each leaves
 * a partial sum in the workspace, and the partials are added to db in order. */
#include "device/cpu/call.h"
#include "device/cpu/gemm.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rows.h"
#include <string.h>

enum { STRIP = 512 };

/* [M,K] of a weight y = x W'. */
struct shape {
    int64_t out, in, rows;
};

static struct shape shape_of(const struct tensor *weight, const struct op *op, const struct tensor *x)
{
    bool kn = op->attr.weight_kn;
    struct shape s = {weight->dim[kn ? 1 : 0], weight->dim[kn ? 0 : 1], 0};
    s.rows = tensor_count(x) / s.in;
    return s;
}

typedef size_t workspace(int64_t m, int64_t n, int64_t k, enum dtype ab_type, enum dtype c_type, int threads);

static workspace *workspace_of(const struct op *op)
{
    return op->attr.split ? gemm_split_workspace : gemm_workspace;
}

void cpu_linear(const struct kernel_call *call)
{
    const struct tensor *x = call_in(call, LINEAR_X), *w = call_in(call, LINEAR_W);
    struct shape s = shape_of(w, call->op, x);
    bool kn = call->op->attr.weight_kn;
    struct gemm g = {
        .m = s.rows,
        .n = s.out,
        .k = s.in,
        .a = call->in[LINEAR_X],
        .a_rs = s.in,
        .a_cs = 1,
        .b = call->in[LINEAR_W],
        .b_rs = kn ? s.out : 1,
        .b_cs = kn ? 1 : s.in,
        .c = call->out[LINEAR_Y],
        .c_rs = s.out,
        .split = call->op->attr.split,
        .ab_type = x->type,
        .c_type = call_out(call, LINEAR_Y)->type,
        .bias = call->in[LINEAR_BIAS],
        .add = call->in[LINEAR_ADD],
    };
    gemm_run(&g, call->work, call->team);
}

static size_t cpu_linear_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    struct shape s = shape_of(desc[LINEAR_W], op, desc[LINEAR_X]);
    return workspace_of(op)(s.rows, s.out, s.in, desc[LINEAR_X]->type, desc[OP_MAX_IN + LINEAR_Y]->type,
                            threads);
}

void cpu_linear_dx(const struct kernel_call *call)
{
    const struct tensor *dy = call_in(call, LINEAR_DX_DY), *w = call_in(call, LINEAR_DX_W),
                        *dx = call_out(call, LINEAR_DX_DX);
    struct shape s = shape_of(w, call->op, dx);
    bool kn = call->op->attr.weight_kn;
    struct gemm g = {
        .m = s.rows,
        .n = s.in,
        .k = s.out,
        .a = call->in[LINEAR_DX_DY],
        .a_rs = s.out,
        .a_cs = 1,
        .b = call->in[LINEAR_DX_W],
        .b_rs = kn ? 1 : s.in,
        .b_cs = kn ? s.out : 1,
        .c = call->out[LINEAR_DX_DX],
        .c_rs = s.in,
        .split = call->op->attr.split,
        .ab_type = dy->type,
        .c_type = dx->type,
        .add = call->in[LINEAR_DX_ADD],
    };
    gemm_run(&g, call->work, call->team);
}

static size_t cpu_linear_dx_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    struct shape s = shape_of(desc[LINEAR_DX_W], op, desc[OP_MAX_IN + LINEAR_DX_DX]);
    return workspace_of(op)(s.rows, s.in, s.out, desc[LINEAR_DX_DY]->type,
                            desc[OP_MAX_IN + LINEAR_DX_DX]->type, threads);
}

struct bias_grad {
    const struct row_ops *rows;
    enum dtype type;
    const void *dy; /* [R,M] */
    float *partial; /* [blocks,M] */
    int64_t count, columns;
};

/* begin and end count tiles, strips fastest */
static void bias_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct bias_grad *b = arg;
    int64_t strips = blocks_of(b->columns, STRIP);
    for (int64_t tile = begin; tile < end; tile++) {
        int64_t block = tile / strips, column = tile % strips * STRIP;
        int64_t width = lesser(STRIP, b->columns - column);
        int64_t last = lesser(b->count, (block + 1) * KERNEL_ROW_BLOCK);
        float *sum = b->partial + block * b->columns + column;
        memset(sum, 0, (size_t)width * sizeof *sum);
        for (int64_t r = block * KERNEL_ROW_BLOCK; r < last; r++)
            b->rows->add_to(b->type, sum, element(b->dy, b->type, r * b->columns + column), width);
    }
}

static void bias_grad(const struct kernel_call *call, int64_t count, int64_t columns)
{
    struct bias_grad b = {
        row_ops(), call_in(call, LINEAR_DW_DY)->type, call->in[LINEAR_DW_DY], call->work, count, columns};
    enum dtype type = call_out(call, LINEAR_DW_DBIAS)->type;
    int64_t blocks = blocks_of(count, KERNEL_ROW_BLOCK);
    threads_each(call->team, blocks * blocks_of(columns, STRIP), 1, bias_body, &b);
    for (int64_t at = 0; at < columns; at += STRIP) {
        float sum[STRIP] = {0};
        int64_t width = lesser(STRIP, columns - at);
        void *db = element(call->out[LINEAR_DW_DBIAS], type, at);
        if (call->accumulate) dtype_convert(sum, DT_F32, db, type, width);
        for (int64_t i = 0; i < blocks; i++) b.rows->add_to(DT_F32, sum, b.partial + i * columns + at, width);
        dtype_convert(db, type, sum, DT_F32, width);
    }
}

void cpu_linear_dw(const struct kernel_call *call)
{
    const struct tensor *dy = call_in(call, LINEAR_DW_DY), *x = call_in(call, LINEAR_DW_X);
    struct shape s = shape_of(call_out(call, LINEAR_DW_DW), call->op, x);
    if (call->out[LINEAR_DW_DBIAS]) bias_grad(call, s.rows, s.out);
    bool kn = call->op->attr.weight_kn;
    int64_t m = kn ? s.in : s.out, n = kn ? s.out : s.in;
    struct gemm g = {
        .m = m,
        .n = n,
        .k = s.rows,
        .a = call->in[kn ? LINEAR_DW_X : LINEAR_DW_DY],
        .a_rs = 1,
        .a_cs = m,
        .b = call->in[kn ? LINEAR_DW_DY : LINEAR_DW_X],
        .b_rs = n,
        .b_cs = 1,
        .c = call->out[LINEAR_DW_DW],
        .c_rs = n,
        .split = call->op->attr.split,
        .ab_type = dy->type,
        .c_type = call_out(call, LINEAR_DW_DW)->type,
        .add = call->accumulate && !call->op->attr.fresh ? call->out[LINEAR_DW_DW] : NULL,
    };
    gemm_run(&g, call->work, call->team);
}

static size_t cpu_linear_dw_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    struct shape s = shape_of(desc[OP_MAX_IN + LINEAR_DW_DW], op, desc[LINEAR_DW_X]);
    bool kn = op->attr.weight_kn;
    size_t gemm = workspace_of(op)(kn ? s.in : s.out, kn ? s.out : s.in, s.rows, desc[LINEAR_DW_DY]->type,
                                   desc[OP_MAX_IN + LINEAR_DW_DW]->type, threads);
    size_t bias = (size_t)(blocks_of(s.rows, KERNEL_ROW_BLOCK) * s.out) * sizeof(float);
    return desc[OP_MAX_IN + LINEAR_DW_DBIAS] && bias > gemm
               ? bias
               : gemm; /* one after the other in the same bytes */
}

CPU_KERNEL(linear, cpu_linear_workspace);
CPU_KERNEL(linear_dx, cpu_linear_dx_workspace);
CPU_KERNEL(linear_dw, cpu_linear_dw_workspace);
