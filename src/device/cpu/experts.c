/* experts.c - rows to their experts and back, and the experts' products.
 *
 * The products are those of gemm.h, one expert after the other with the whole team: each is cut over its rows and
 * columns, so one expert with all the rows keeps every thread as busy as many with few. An expert's result depends on
 * its own rows alone, and bits are those of linear over the same rows. */
#include "device/cpu/call.h"
#include "device/cpu/gemm.h"
#include "device/cpu/kernels.h"
#include "device/cpu/row_dot.h"
#include "device/cpu/rows.h"

#include <string.h>

enum { STRIP = 512 };

/* --- rows ------------------------------------------------------------------------------------------------- */

/* place [R,K] says where the K results of each row are among the experts' rows. */
static int64_t top_of(const struct kernel_call *call, int place) { return call_in(call, place)->dim[1]; }

/* Elements of a row, of which `rows` has one for each of place's. */
static int64_t columns_of(const struct kernel_call *call, const struct tensor *rows, int place)
{
    return tensor_count(rows) / call_in(call, place)->dim[0];
}

static void dispatch_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    const struct tensor *x = call_in(call, DISPATCH_X);
    const int32_t *place = call->in[DISPATCH_PLACE];
    const float *weight = call->in[DISPATCH_WEIGHT];
    int64_t columns = columns_of(call, x, DISPATCH_PLACE), top = top_of(call, DISPATCH_PLACE);
    for (int64_t i = begin; i < end; i++) {
        const void *from = in_at(call, DISPATCH_X, i / top * columns);
        void *to = out_at(call, DISPATCH_Y, place[i] * columns);
        if (weight)
            row_ops()->scale_add(x->type, to, from, weight[i], NULL, columns);
        else
            memcpy(to, from, (size_t)columns * dtype_size(x->type));
    }
}

void cpu_dispatch(const struct kernel_call *call)
{
    int64_t columns = columns_of(call, call_in(call, DISPATCH_X), DISPATCH_PLACE);
    call_each(call, tensor_count(call_in(call, DISPATCH_PLACE)), row_grain(columns), dispatch_body);
}

/* Elements [at, at + width) of a row. */
static void combine_strip(const struct kernel_call *call, int64_t row, int64_t at, int64_t width)
{
    const struct tensor *y = call_out(call, COMBINE_Y);
    const struct row_ops *rows = row_ops();
    const int32_t *place = call->in[COMBINE_PLACE];
    const float *weight = call->in[COMBINE_WEIGHT];
    int64_t columns = columns_of(call, y, COMBINE_PLACE), top = top_of(call, COMBINE_PLACE);
    float sum[STRIP];
    for (int64_t pair = row * top; pair < (row + 1) * top; pair++) {
        const void *x = in_at(call, COMBINE_X, place[pair] * columns + at);
        bool first = pair == row * top;
        if (first) dtype_convert(sum, DT_F32, x, y->type, width);
        if (first && weight) rows->scale_add(DT_F32, sum, sum, weight[pair], NULL, width);
        if (!first && weight) rows->add_scaled(y->type, sum, x, weight[pair], width);
        if (!first && !weight) rows->add_to(y->type, sum, x, width);
    }
    if (call->in[COMBINE_ADD])
        rows->add_to(y->type, sum, in_at(call, COMBINE_ADD, row * columns + at), width);
    dtype_convert(out_at(call, COMBINE_Y, row * columns + at), y->type, sum, DT_F32, width);
}

static void combine_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    int64_t columns = columns_of(call, call_out(call, COMBINE_Y), COMBINE_PLACE);
    for (int64_t row = begin; row < end; row++)
        for (int64_t at = 0; at < columns; at += STRIP)
            combine_strip(call, row, at, lesser(STRIP, columns - at));
}

void cpu_combine(const struct kernel_call *call)
{
    int64_t columns = columns_of(call, call_out(call, COMBINE_Y), COMBINE_PLACE);
    call_each(call, call_in(call, COMBINE_PLACE)->dim[0], row_grain(columns * top_of(call, COMBINE_PLACE)),
              combine_body);
}

static void combine_dw_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    const struct tensor *dy = call_in(call, COMBINE_DW_DY);
    const int32_t *place = call->in[COMBINE_DW_PLACE];
    float *dots = call->out[COMBINE_DW_DWEIGHT];
    int64_t columns = columns_of(call, dy, COMBINE_DW_PLACE), top = top_of(call, COMBINE_DW_PLACE);
    for (int64_t i = begin; i < end; i++)
        dots[i] = (float)row_dot(dy->type, in_at(call, COMBINE_DW_DY, i / top * columns),
                                 in_at(call, COMBINE_DW_X, place[i] * columns), columns);
}

void cpu_combine_dw(const struct kernel_call *call)
{
    int64_t columns = columns_of(call, call_in(call, COMBINE_DW_DY), COMBINE_DW_PLACE);
    call_each(call, tensor_count(call_in(call, COMBINE_DW_PLACE)), row_grain(columns), combine_dw_body);
}

/* --- products --------------------------------------------------------------------------------------------- */

/* One expert's product: `g` has the whole operands, of which rows of A and C (and of R) from `first` on are its own. */
static void run_rows(const struct kernel_call *call, struct gemm g, int64_t first, int64_t rows)
{
    g.m = rows;
    g.a = element(g.a, g.ab_type, first * g.a_rs);
    g.c = element(g.c, g.c_type, first * g.c_rs);
    g.add = element(g.add, g.c_type, first * g.c_rs);
    gemm_run(&g, call->work, call->team);
}

static void each_expert(const struct kernel_call *call, const struct gemm *whole, const struct tensor *w,
                        const int32_t *ends)
{
    int64_t first = 0;
    for (int64_t e = 0; e < w->dim[0]; first = ends[e++]) {
        struct gemm g = *whole;
        g.b = element(g.b, g.ab_type, e * w->dim[1] * w->dim[2]);
        if (ends[e] > first) run_rows(call, g, first, ends[e] - first);
    }
}

void cpu_expert_linear(const struct kernel_call *call)
{
    const struct tensor *w = call_in(call, EXPERT_LINEAR_W);
    struct gemm g = gemm_by_lines(0, w->dim[1], w->dim[2], w->type, call_out(call, EXPERT_LINEAR_Y)->type);
    g.a = call->in[EXPERT_LINEAR_X], g.b = call->in[EXPERT_LINEAR_W], g.c = call->out[EXPERT_LINEAR_Y];
    each_expert(call, &g, w, call->in[EXPERT_LINEAR_ENDS]);
}

void cpu_expert_linear_dx(const struct kernel_call *call)
{
    const struct tensor *w = call_in(call, EXPERT_LINEAR_DX_W);
    struct gemm g = gemm_by_rows(0, w->dim[2], w->dim[1], w->type, call_out(call, EXPERT_LINEAR_DX_DX)->type);
    g.a = call->in[EXPERT_LINEAR_DX_DY], g.b = call->in[EXPERT_LINEAR_DX_W];
    g.c = call->out[EXPERT_LINEAR_DX_DX], g.add = call->in[EXPERT_LINEAR_DX_ADD];
    each_expert(call, &g, w, call->in[EXPERT_LINEAR_DX_ENDS]);
}

void cpu_expert_linear_dw(const struct kernel_call *call)
{
    const struct tensor *dw = call_out(call, EXPERT_LINEAR_DW_DW), *dy = call_in(call, EXPERT_LINEAR_DW_DY);
    const int32_t *ends = call->in[EXPERT_LINEAR_DW_ENDS];
    int64_t m = dw->dim[1], n = dw->dim[2], first = 0;
    for (int64_t e = 0; e < dw->dim[0]; first = ends[e++]) {
        struct gemm g = gemm_over_rows(m, n, ends[e] - first, dy->type, dw->type);
        g.a = in_at(call, EXPERT_LINEAR_DW_DY, first * m), g.b = in_at(call, EXPERT_LINEAR_DW_X, first * n);
        g.c = out_at(call, EXPERT_LINEAR_DW_DW, e * m * n), g.add = call->accumulate ? g.c : NULL;
        if (g.k > 0)
            gemm_run(&g, call->work, call->team);
        else if (!call->accumulate)
            memset(g.c, 0, (size_t)(m * n) * dtype_size(dw->type));
    }
}

/* How many rows an expert gets is data: the scratch is for any number of them. */
static size_t cpu_expert_linear_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    bool dx = op->kind == OP_EXPERT_LINEAR_DX;
    const struct tensor *w = desc[dx ? EXPERT_LINEAR_DX_W : EXPERT_LINEAR_W], *x = desc[EXPERT_LINEAR_X];
    int64_t n = w->dim[dx ? 2 : 1], k = w->dim[dx ? 1 : 2];
    return gemm_workspace_most(tensor_count(x) / k, n, k, w->type, w->type, threads);
}

static size_t cpu_expert_linear_dw_workspace(const struct tensor *const *desc, const struct op *, int threads)
{
    const struct tensor *dw = desc[OP_MAX_IN + EXPERT_LINEAR_DW_DW], *dy = desc[EXPERT_LINEAR_DW_DY];
    int64_t m = dw->dim[1], n = dw->dim[2];
    return gemm_workspace_most(m, n, tensor_count(dy) / m, dy->type, dw->type, threads);
}

CPU_KERNEL(dispatch, NULL);
CPU_KERNEL(expert_linear, cpu_expert_linear_workspace);
CPU_KERNEL(combine, NULL);
CPU_KERNEL(expert_linear_dx, cpu_expert_linear_workspace);
CPU_KERNEL(expert_linear_dw, cpu_expert_linear_dw_workspace);
CPU_KERNEL(combine_dw, NULL);
