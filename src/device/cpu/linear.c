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

void cpu_linear(const struct kernel_call *call)
{
    const struct tensor *x = call_in(call, 0), *w = call_in(call, 1);
    struct shape s = shape_of(w, call->op, x);
    bool kn = call->op->attr.weight_kn;
    struct gemm g = {
        .m = s.rows,
        .n = s.out,
        .k = s.in,
        .a = call->in[0],
        .a_rs = s.in,
        .a_cs = 1,
        .b = call->in[1],
        .b_rs = kn ? s.out : 1,
        .b_cs = kn ? 1 : s.in,
        .c = call->out[0],
        .c_rs = s.out,
        .ab_type = x->type,
        .c_type = call_out(call, 0)->type,
        .bias = call->in[2],
        .add = call->in[3],
    };
    gemm_run(&g, call->work, call->team);
}

size_t cpu_linear_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    struct shape s = shape_of(desc[1], op, desc[0]);
    return gemm_workspace(s.rows, s.out, s.in, desc[0]->type, desc[OP_MAX_IN]->type, threads);
}

void cpu_linear_dx(const struct kernel_call *call)
{
    const struct tensor *dy = call_in(call, 0), *w = call_in(call, 1), *dx = call_out(call, 0);
    struct shape s = shape_of(w, call->op, dx);
    bool kn = call->op->attr.weight_kn;
    struct gemm g = {
        .m = s.rows,
        .n = s.in,
        .k = s.out,
        .a = call->in[0],
        .a_rs = s.out,
        .a_cs = 1,
        .b = call->in[1],
        .b_rs = kn ? 1 : s.in,
        .b_cs = kn ? s.out : 1,
        .c = call->out[0],
        .c_rs = s.in,
        .ab_type = dy->type,
        .c_type = dx->type,
        .add = call->in[2],
    };
    gemm_run(&g, call->work, call->team);
}

size_t cpu_linear_dx_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    struct shape s = shape_of(desc[1], op, desc[OP_MAX_IN]);
    return gemm_workspace(s.rows, s.in, s.out, desc[0]->type, desc[OP_MAX_IN]->type, threads);
}

struct bias_grad {
    const struct row_ops *rows;
    enum dtype type;
    const void *dy; /* [R,M] */
    float *partial; /* [blocks,M] */
    int64_t count, columns;
};

/* begin and end count tiles, strips fastest */
static void bias_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct bias_grad *b = arg;
    (void)worker;
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
    struct bias_grad b = {row_ops(), call_in(call, 0)->type, call->in[0], call->work, count, columns};
    enum dtype type = call_out(call, 1)->type;
    int64_t blocks = blocks_of(count, KERNEL_ROW_BLOCK);
    threads_each(call->team, blocks * blocks_of(columns, STRIP), 1, bias_body, &b);
    for (int64_t at = 0; at < columns; at += STRIP) {
        float sum[STRIP] = {0};
        int64_t width = lesser(STRIP, columns - at);
        void *db = element(call->out[1], type, at);
        if (call->accumulate) dtype_convert(sum, DT_F32, db, type, width);
        for (int64_t i = 0; i < blocks; i++) b.rows->add_to(DT_F32, sum, b.partial + i * columns + at, width);
        dtype_convert(db, type, sum, DT_F32, width);
    }
}

void cpu_linear_dw(const struct kernel_call *call)
{
    const struct tensor *dy = call_in(call, 0), *x = call_in(call, 1);
    struct shape s = shape_of(call_out(call, 0), call->op, x);
    if (call->out[1]) bias_grad(call, s.rows, s.out);
    bool kn = call->op->attr.weight_kn;
    int64_t m = kn ? s.in : s.out, n = kn ? s.out : s.in;
    struct gemm g = {
        .m = m,
        .n = n,
        .k = s.rows,
        .a = call->in[kn ? 1 : 0],
        .a_rs = 1,
        .a_cs = m,
        .b = call->in[kn ? 0 : 1],
        .b_rs = n,
        .b_cs = 1,
        .c = call->out[0],
        .c_rs = n,
        .ab_type = dy->type,
        .c_type = call_out(call, 0)->type,
        .add = call->accumulate ? call->out[0] : NULL,
    };
    gemm_run(&g, call->work, call->team);
}

size_t cpu_linear_dw_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    struct shape s = shape_of(desc[OP_MAX_IN], op, desc[1]);
    bool kn = op->attr.weight_kn;
    size_t gemm = gemm_workspace(kn ? s.in : s.out, kn ? s.out : s.in, s.rows, desc[0]->type,
                                 desc[OP_MAX_IN]->type, threads);
    size_t bias = (size_t)(blocks_of(s.rows, KERNEL_ROW_BLOCK) * s.out) * sizeof(float);
    return desc[OP_MAX_IN + 1] && bias > gemm ? bias : gemm; /* one after the other in the same bytes */
}
