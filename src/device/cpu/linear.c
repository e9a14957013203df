/* linear.c - weight matmuls as calls of gemm.h, and the gradient of a bias.
 *
 * All leading dimensions together are the rows R. Stored [out,in] or [in,out], a weight is the same matrix
 * read with other strides. Parts of a weight are one product after the other.
 *
 * The bias gradient sums the rows of dy: tasks are tiles of KERNEL_ROW_BLOCK rows by 512 columns, each leaves
 * a partial sum in the workspace, and the partials are added to db in order. */
#include "device/cpu/call.h"
#include "device/cpu/gemm.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rows.h"
#include "tape/parts.h"

#include <string.h>

enum { STRIP = 512 };

/* [M,K] of a weight y = x W', numbers of a row of x. */
struct shape {
    int64_t out, in, width, rows;
};

static struct shape shape_of(const struct tensor *weight, const struct op *op, const struct tensor *x)
{
    bool kn = op->attr.weight_kn;
    struct shape s = {weight->dim[kn ? 1 : 0], weight->dim[kn ? 0 : 1], 0, 0};
    s.width = s.in * weight_parts(&op->attr), s.rows = tensor_count(x) / s.width;
    return s;
}

static size_t workspace_of(const struct op *op, const struct gemm *g, int threads)
{
    return (op->attr.split ? gemm_split_workspace : gemm_workspace)(g->m, g->n, g->k, g->ab_type, g->c_type,
                                                                    threads);
}

/* The product of one part of the weight, without addresses. */
typedef struct gemm product(const struct op *op, const struct shape *s, const struct weight_part *part,
                            enum dtype type, enum dtype result);

/* Parts differ in size, and a smaller product may need more. */
static size_t most_workspace(product *make, const struct op *op, const struct shape *s, enum dtype type,
                             enum dtype result, int threads)
{
    struct weight_part part;
    size_t most = 0;
    for (int i = 0; weight_part(&op->attr, s->out, s->in, i, &part); i++) {
        struct gemm g = make(op, s, &part, type, result);
        size_t bytes = workspace_of(op, &g, threads);
        if (bytes > most) most = bytes;
    }
    return most;
}

static struct gemm forward(const struct op *op, const struct shape *s, const struct weight_part *part,
                           enum dtype type, enum dtype result)
{
    struct gemm g =
        (op->attr.weight_kn ? gemm_by_rows : gemm_by_lines)(s->rows, part->lines, s->in, type, result);
    g.a_rs = s->width, g.c_rs = s->out, g.split = op->attr.split;
    return g;
}

void cpu_linear(const struct kernel_call *call)
{
    const struct tensor *x = call_in(call, LINEAR_X);
    struct shape s = shape_of(call_in(call, LINEAR_W), call->op, x);
    struct weight_part part;
    for (int i = 0; weight_part(&call->op->attr, s.out, s.in, i, &part); i++) {
        struct gemm g = forward(call->op, &s, &part, x->type, call_out(call, LINEAR_Y)->type);
        g.a = in_at(call, LINEAR_X, part.column), g.b = in_at(call, LINEAR_W, part.line * s.in);
        g.c = out_at(call, LINEAR_Y, part.line), g.bias = in_at(call, LINEAR_BIAS, part.line);
        g.add = in_at(call, LINEAR_ADD, part.line);
        gemm_run(&g, call->work, call->team);
    }
}

static size_t cpu_linear_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    struct shape s = shape_of(desc[LINEAR_W], op, desc[LINEAR_X]);
    return most_workspace(forward, op, &s, desc[LINEAR_X]->type, desc[OP_MAX_IN + LINEAR_Y]->type, threads);
}

static struct gemm backward(const struct op *op, const struct shape *s, const struct weight_part *part,
                            enum dtype type, enum dtype result)
{
    struct gemm g =
        (op->attr.weight_kn ? gemm_by_lines : gemm_by_rows)(s->rows, s->in, part->lines, type, result);
    g.a_rs = s->out, g.c_rs = s->width, g.split = op->attr.split;
    return g;
}

void cpu_linear_dx(const struct kernel_call *call)
{
    const struct tensor *dy = call_in(call, LINEAR_DX_DY), *dx = call_out(call, LINEAR_DX_DX);
    struct shape s = shape_of(call_in(call, LINEAR_DX_W), call->op, dx);
    struct weight_part part;
    for (int i = 0; weight_part(&call->op->attr, s.out, s.in, i, &part); i++) {
        struct gemm g = backward(call->op, &s, &part, dy->type, dx->type);
        g.a = in_at(call, LINEAR_DX_DY, part.line), g.b = in_at(call, LINEAR_DX_W, part.line * s.in);
        g.c = out_at(call, LINEAR_DX_DX, part.column), g.add = in_at(call, LINEAR_DX_ADD, part.column);
        gemm_run(&g, call->work, call->team);
    }
}

static size_t cpu_linear_dx_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    struct shape s = shape_of(desc[LINEAR_DX_W], op, desc[OP_MAX_IN + LINEAR_DX_DX]);
    return most_workspace(backward, op, &s, desc[LINEAR_DX_DY]->type, desc[OP_MAX_IN + LINEAR_DX_DX]->type,
                          threads);
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

static struct gemm over_rows(const struct op *op, const struct shape *s, const struct weight_part *part,
                             enum dtype type, enum dtype result)
{
    bool kn = op->attr.weight_kn;
    struct gemm g = gemm_over_rows(kn ? s->in : part->lines, kn ? part->lines : s->in, s->rows, type, result);
    g.a_cs = kn ? s->width : s->out, g.b_rs = kn ? s->out : s->width, g.split = op->attr.split;
    return g;
}

void cpu_linear_dw(const struct kernel_call *call)
{
    if (call->out[LINEAR_DW_DBIAS]) bias_grad(call);
    if (!call->out[LINEAR_DW_DW]) return;
    struct shape s = shape_of(call_out(call, LINEAR_DW_DW), call->op, call_in(call, LINEAR_DW_X));
    enum dtype type = call_in(call, LINEAR_DW_DY)->type, result = call_out(call, LINEAR_DW_DW)->type;
    bool kn = call->op->attr.weight_kn;
    struct weight_part part;
    for (int i = 0; weight_part(&call->op->attr, s.out, s.in, i, &part); i++) {
        struct gemm g = over_rows(call->op, &s, &part, type, result);
        const void *dy = in_at(call, LINEAR_DW_DY, part.line), *x = in_at(call, LINEAR_DW_X, part.column);
        g.a = kn ? x : dy, g.b = kn ? dy : x, g.c = out_at(call, LINEAR_DW_DW, part.line * s.in);
        if (call->accumulate && !call->op->attr.fresh) g.add = g.c;
        gemm_run(&g, call->work, call->team);
    }
}

static size_t cpu_linear_dw_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    const struct tensor *dw = desc[OP_MAX_IN + LINEAR_DW_DW], *db = desc[OP_MAX_IN + LINEAR_DW_DBIAS];
    int64_t columns = db ? tensor_count(db) : 0,
            blocks = db ? blocks_of(tensor_count(desc[LINEAR_DW_DY]) / columns, KERNEL_ROW_BLOCK) : 0;
    size_t bias = (size_t)(blocks * columns) * sizeof(float), gemm = 0;
    if (dw) {
        struct shape s = shape_of(dw, op, desc[LINEAR_DW_X]);
        gemm = most_workspace(over_rows, op, &s, desc[LINEAR_DW_DY]->type, dw->type, threads);
    }
    return bias > gemm ? bias : gemm; /* one after the other in the same bytes */
}

CPU_KERNEL(linear, cpu_linear_workspace);
CPU_KERNEL(linear_dx, cpu_linear_dx_workspace);
CPU_KERNEL(linear_dw, cpu_linear_dw_workspace);
