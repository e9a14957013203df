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

struct rows_of_experts {
    const struct row_ops *rows;
    enum dtype type;
    const char *x;
    char *y;
    const void *add;
    const int32_t *place;
    const float *weight; /* NULL: none */
    float *dots;
    int64_t top, columns;
};

static void dispatch_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct rows_of_experts *d = arg;
    size_t bytes = (size_t)d->columns * dtype_size(d->type);
    for (int64_t i = begin; i < end; i++) {
        const void *from = element(d->x, d->type, i / d->top * d->columns);
        void *to = element(d->y, d->type, d->place[i] * d->columns);
        if (d->weight)
            d->rows->scale_add(d->type, to, from, d->weight[i], NULL, d->columns);
        else
            memcpy(to, from, bytes);
    }
}

void cpu_dispatch(const struct kernel_call *call)
{
    const struct tensor *place = call_in(call, DISPATCH_PLACE), *x = call_in(call, DISPATCH_X);
    struct rows_of_experts d = {.rows = row_ops(),
                                .type = x->type,
                                .x = call->in[DISPATCH_X],
                                .y = call->out[DISPATCH_Y],
                                .place = call->in[DISPATCH_PLACE],
                                .weight = call->in[DISPATCH_WEIGHT],
                                .top = place->dim[1],
                                .columns = tensor_count(x) / place->dim[0]};
    threads_each(call->team, tensor_count(place), row_grain(d.columns), dispatch_body, &d);
}

static void combine_strip(const struct rows_of_experts *d, int64_t row, int64_t at, int64_t width)
{
    float sum[STRIP];
    for (int64_t i = 0; i < d->top; i++) {
        int64_t pair = row * d->top + i;
        const void *x = element(d->x, d->type, d->place[pair] * d->columns + at);
        if (i == 0) dtype_convert(sum, DT_F32, x, d->type, width);
        if (i == 0 && d->weight) d->rows->scale_add(DT_F32, sum, sum, d->weight[pair], NULL, width);
        if (i > 0 && d->weight) d->rows->add_scaled(d->type, sum, x, d->weight[pair], width);
        if (i > 0 && !d->weight) d->rows->add_to(d->type, sum, x, width);
    }
    if (d->add) d->rows->add_to(d->type, sum, element(d->add, d->type, row * d->columns + at), width);
    dtype_convert(element(d->y, d->type, row * d->columns + at), d->type, sum, DT_F32, width);
}

static void combine_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct rows_of_experts *d = arg;
    for (int64_t row = begin; row < end; row++)
        for (int64_t at = 0; at < d->columns; at += STRIP)
            combine_strip(d, row, at, lesser(STRIP, d->columns - at));
}

void cpu_combine(const struct kernel_call *call)
{
    const struct tensor *place = call_in(call, COMBINE_PLACE), *y = call_out(call, COMBINE_Y);
    struct rows_of_experts d = {.rows = row_ops(),
                                .type = y->type,
                                .x = call->in[COMBINE_X],
                                .y = call->out[COMBINE_Y],
                                .add = call->in[COMBINE_ADD],
                                .place = call->in[COMBINE_PLACE],
                                .weight = call->in[COMBINE_WEIGHT],
                                .top = place->dim[1],
                                .columns = tensor_count(y) / place->dim[0]};
    threads_each(call->team, place->dim[0], row_grain(d.columns * d.top), combine_body, &d);
}

static void combine_dw_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct rows_of_experts *d = arg;
    for (int64_t i = begin; i < end; i++)
        d->dots[i] = (float)row_dot(d->type, element(d->add, d->type, i / d->top * d->columns),
                                    element(d->x, d->type, d->place[i] * d->columns), d->columns);
}

void cpu_combine_dw(const struct kernel_call *call)
{
    const struct tensor *place = call_in(call, COMBINE_DW_PLACE), *dy = call_in(call, COMBINE_DW_DY);
    struct rows_of_experts d = {.type = dy->type,
                                .x = call->in[COMBINE_DW_X],
                                .add = call->in[COMBINE_DW_DY],
                                .place = call->in[COMBINE_DW_PLACE],
                                .dots = call->out[COMBINE_DW_DWEIGHT],
                                .top = place->dim[1],
                                .columns = tensor_count(dy) / place->dim[0]};
    threads_each(call->team, tensor_count(place), row_grain(d.columns), combine_dw_body, &d);
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
    struct gemm g = {.n = w->dim[1],
                     .k = w->dim[2],
                     .a = call->in[EXPERT_LINEAR_X],
                     .a_rs = w->dim[2],
                     .a_cs = 1,
                     .b = call->in[EXPERT_LINEAR_W],
                     .b_rs = 1,
                     .b_cs = w->dim[2],
                     .c = call->out[EXPERT_LINEAR_Y],
                     .c_rs = w->dim[1],
                     .ab_type = w->type,
                     .c_type = call_out(call, EXPERT_LINEAR_Y)->type};
    each_expert(call, &g, w, call->in[EXPERT_LINEAR_ENDS]);
}

void cpu_expert_linear_dx(const struct kernel_call *call)
{
    const struct tensor *w = call_in(call, EXPERT_LINEAR_DX_W);
    struct gemm g = {.n = w->dim[2],
                     .k = w->dim[1],
                     .a = call->in[EXPERT_LINEAR_DX_DY],
                     .a_rs = w->dim[1],
                     .a_cs = 1,
                     .b = call->in[EXPERT_LINEAR_DX_W],
                     .b_rs = w->dim[2],
                     .b_cs = 1,
                     .c = call->out[EXPERT_LINEAR_DX_DX],
                     .c_rs = w->dim[2],
                     .ab_type = w->type,
                     .c_type = call_out(call, EXPERT_LINEAR_DX_DX)->type,
                     .add = call->in[EXPERT_LINEAR_DX_ADD]};
    each_expert(call, &g, w, call->in[EXPERT_LINEAR_DX_ENDS]);
}

void cpu_expert_linear_dw(const struct kernel_call *call)
{
    const struct tensor *dw = call_out(call, EXPERT_LINEAR_DW_DW), *dy = call_in(call, EXPERT_LINEAR_DW_DY);
    const int32_t *ends = call->in[EXPERT_LINEAR_DW_ENDS];
    int64_t m = dw->dim[1], n = dw->dim[2], first = 0;
    for (int64_t e = 0; e < dw->dim[0]; first = ends[e++]) {
        void *c = element(call->out[EXPERT_LINEAR_DW_DW], dw->type, e * m * n);
        struct gemm g = {.m = m,
                         .n = n,
                         .k = ends[e] - first,
                         .a = element(call->in[EXPERT_LINEAR_DW_DY], dy->type, first * m),
                         .a_rs = 1,
                         .a_cs = m,
                         .b = element(call->in[EXPERT_LINEAR_DW_X], dy->type, first * n),
                         .b_rs = n,
                         .b_cs = 1,
                         .c = c,
                         .c_rs = n,
                         .ab_type = dy->type,
                         .c_type = dw->type,
                         .add = call->accumulate ? c : NULL};
        if (g.k > 0)
            gemm_run(&g, call->work, call->team);
        else if (!call->accumulate)
            memset(c, 0, (size_t)(m * n) * dtype_size(dw->type));
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
