/* row_gate.c - rows multiplied with a gate each, and their gradients. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "device/cpu/row_dot.h"
#include "device/cpu/rows.h"

#include <math.h>

struct gated_rows {
    const struct row_ops *rows;
    enum dtype type;
    const void *x, *gate, *add, *dy;
    void *y, *dgate;
    int64_t columns;
};

static float sigmoid_of(const struct gated_rows *g, int64_t row)
{
    float x;
    dtype_convert(&x, DT_F32, element(g->gate, g->type, row), g->type, 1);
    return 1 / (1 + expf(-x));
}

static void gate_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct gated_rows *g = arg;
    for (int64_t r = begin; r < end; r++)
        g->rows->scale_add(g->type, element(g->y, g->type, r * g->columns),
                           element(g->x, g->type, r * g->columns), sigmoid_of(g, r),
                           element(g->add, g->type, r * g->columns), g->columns);
}

void cpu_row_gate(const struct kernel_call *call)
{
    const struct tensor *x = call_in(call, ROW_GATE_X);
    int64_t rows = tensor_count(call_in(call, ROW_GATE_GATE));
    struct gated_rows g = {.rows = row_ops(),
                           .type = x->type,
                           .x = call->in[ROW_GATE_X],
                           .gate = call->in[ROW_GATE_GATE],
                           .add = call->in[ROW_GATE_ADD],
                           .y = call->out[ROW_GATE_Y],
                           .columns = tensor_count(x) / rows};
    threads_each(call->team, rows, row_grain(g.columns), gate_body, &g);
}

static void gate_bwd_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct gated_rows *g = arg;
    for (int64_t r = begin; r < end; r++) {
        const void *dy = element(g->dy, g->type, r * g->columns);
        float s = sigmoid_of(g, r);
        float dgate = (float)(row_dot(g->type, dy, element(g->x, g->type, r * g->columns), g->columns) *
                              (double)s * (1 - (double)s));
        dtype_convert(element(g->dgate, g->type, r), g->type, &dgate, DT_F32, 1);
        g->rows->scale_add(g->type, element(g->y, g->type, r * g->columns), dy, s, NULL, g->columns);
    }
}

void cpu_row_gate_bwd(const struct kernel_call *call)
{
    const struct tensor *x = call_in(call, ROW_GATE_BWD_X);
    int64_t rows = tensor_count(call_in(call, ROW_GATE_BWD_GATE));
    struct gated_rows g = {.rows = row_ops(),
                           .type = x->type,
                           .x = call->in[ROW_GATE_BWD_X],
                           .gate = call->in[ROW_GATE_BWD_GATE],
                           .dy = call->in[ROW_GATE_BWD_DY],
                           .y = call->out[ROW_GATE_BWD_DX],
                           .dgate = call->out[ROW_GATE_BWD_DGATE],
                           .columns = tensor_count(x) / rows};
    threads_each(call->team, rows, row_grain(g.columns), gate_bwd_body, &g);
}

CPU_KERNEL(row_gate, NULL);
CPU_KERNEL(row_gate_bwd, NULL);
