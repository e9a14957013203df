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
    struct gemm g = (call->op->attr.weight_kn ? gemm_by_rows : gemm_by_lines)(s.rows, s.out, s.in, x->type,
                                                                              call_out(call, LINEAR_Y)->type);
    g.a = call->in[LINEAR_X], g.b = call->in[LINEAR_W], g.c = call->out[LINEAR_Y];
    g.bias = call->in[LINEAR_BIAS], g.add = call->in[LINEAR_ADD], g.split = call->op->attr.split;
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
    struct gemm g =
        (call->op->attr.weight_kn ? gemm_by_lines : gemm_by_rows)(s.rows, s.in, s.out, dy->type, dx->type);
    g.a = call->in[LINEAR_DX_DY], g.b = call->in[LINEAR_DX_W], g.c = call->out[LINEAR_DX_DX];
    g.add = call->in[LINEAR_DX_ADD], g.split = call->op->attr.split;
    gemm_run(&g, call->work, call->team);
}

static size_t cpu_linear_dx_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    struct shape s = shape_of(desc[LINEAR_DX_W], op, desc[OP_MAX_IN + LINEAR_DX_DX]);
    return workspace_of(op)(s.rows, s.in, s.out, desc[LINEAR_DX_DY]->type,
                            desc[OP_MAX_IN + LINEAR_DX_DX]->type, threads);
}

static int64_t dy_columns(const struct kernel_call *call)
{
    return tensor_count(call_out(call, LINEAR_DW_DBIAS));
}

/* begin and end count tiles, strips fastest; partial sums are [blocks,M] */
static void bias_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    const struct tensor *dy = call_in(call, LINEAR_DW_DY);
    int64_t columns = dy_columns(call), count = tensor_count(dy) / columns,
            strips = blocks_of(columns, STRIP);
    for (int64_t tile = begin; tile < end; tile++) {
        int64_t block = tile / strips, column = tile % strips * STRIP;
        int64_t width = lesser(STRIP, columns - column);
        int64_t last = lesser(count, (block + 1) * KERNEL_ROW_BLOCK);
        float *sum = (float *)call->work + block * columns + column;
        memset(sum, 0, (size_t)width * sizeof *sum);
        for (int64_t r = block * KERNEL_ROW_BLOCK; r < last; r++)
            row_ops()->add_to(dy->type, sum, in_at(call, LINEAR_DW_DY, r * columns + column), width);
    }
}

static void bias_grad(const struct kernel_call *call)
{
    enum dtype type = call_out(call, LINEAR_DW_DBIAS)->type;
    int64_t columns = dy_columns(call), count = tensor_count(call_in(call, LINEAR_DW_DY)) / columns;
    int64_t blocks = blocks_of(count, KERNEL_ROW_BLOCK);
    call_each(call, blocks * blocks_of(columns, STRIP), 1, bias_body);
    for (int64_t at = 0; at < columns; at += STRIP) {
        float sum[STRIP] = {0};
        int64_t width = lesser(STRIP, columns - at);
        void *db = out_at(call, LINEAR_DW_DBIAS, at);
        if (call->accumulate) dtype_convert(sum, DT_F32, db, type, width);
        for (int64_t i = 0; i < blocks; i++)
            row_ops()->add_to(DT_F32, sum, (float *)call->work + i * columns + at, width);
        dtype_convert(db, type, sum, DT_F32, width);
    }
}

void cpu_linear_dw(const struct kernel_call *call)
{
    const struct tensor *dy = call_in(call, LINEAR_DW_DY), *x = call_in(call, LINEAR_DW_X);
    if (call->out[LINEAR_DW_DBIAS]) bias_grad(call);
    if (!call->out[LINEAR_DW_DW]) return;
    struct shape s = shape_of(call_out(call, LINEAR_DW_DW), call->op, x);
    bool kn = call->op->attr.weight_kn;
    struct gemm g = gemm_over_rows(kn ? s.in : s.out, kn ? s.out : s.in, s.rows, dy->type,
                                   call_out(call, LINEAR_DW_DW)->type);
    g.a = call->in[kn ? LINEAR_DW_X : LINEAR_DW_DY], g.b = call->in[kn ? LINEAR_DW_DY : LINEAR_DW_X];
    g.c = call->out[LINEAR_DW_DW], g.split = call->op->attr.split;
    if (call->accumulate && !call->op->attr.fresh) g.add = g.c;
    gemm_run(&g, call->work, call->team);
}

static size_t cpu_linear_dw_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    const struct tensor *dw = desc[OP_MAX_IN + LINEAR_DW_DW], *db = desc[OP_MAX_IN + LINEAR_DW_DBIAS];
    int64_t columns = db ? tensor_count(db) : 0,
            blocks = db ? blocks_of(tensor_count(desc[LINEAR_DW_DY]) / columns, KERNEL_ROW_BLOCK) : 0;
    size_t bias = (size_t)(blocks * columns) * sizeof(float), gemm = 0;
    if (dw) {
        struct shape s = shape_of(dw, op, desc[LINEAR_DW_X]);
        bool kn = op->attr.weight_kn;
        gemm = workspace_of(op)(kn ? s.in : s.out, kn ? s.out : s.in, s.rows, desc[LINEAR_DW_DY]->type,
                                dw->type, threads);
    }
    return bias > gemm ? bias : gemm; /* one after the other in the same bytes */
}

CPU_KERNEL(linear, cpu_linear_workspace);
CPU_KERNEL(linear_dx, cpu_linear_dx_workspace);
CPU_KERNEL(linear_dw, cpu_linear_dw_workspace);
