/* row_gate.c - rows multiplied with a gate each, and their gradients. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "device/cpu/row_dot.h"
#include "device/cpu/rows.h"

#include <math.h>

static float sigmoid_of(const void *gate, enum dtype type)
{
    float x;
    dtype_convert(&x, DT_F32, gate, type, 1);
    return 1 / (1 + expf(-x));
}

static void gate_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    const struct tensor *x = call_in(call, ROW_GATE_X);
    int64_t columns = tensor_count(x) / tensor_count(call_in(call, ROW_GATE_GATE));
    for (int64_t r = begin; r < end; r++)
        row_ops()->scale_add(x->type, out_at(call, ROW_GATE_Y, r * columns),
                             in_at(call, ROW_GATE_X, r * columns),
                             sigmoid_of(in_at(call, ROW_GATE_GATE, r), x->type),
                             in_at(call, ROW_GATE_ADD, r * columns), columns);
}

void cpu_row_gate(const struct kernel_call *call)
{
    int64_t rows = tensor_count(call_in(call, ROW_GATE_GATE));
    call_each(call, rows, row_grain(tensor_count(call_in(call, ROW_GATE_X)) / rows), gate_body);
}

static void gate_bwd_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    const struct tensor *x = call_in(call, ROW_GATE_BWD_X);
    int64_t columns = tensor_count(x) / tensor_count(call_in(call, ROW_GATE_BWD_GATE));
    for (int64_t r = begin; r < end; r++) {
        const void *dy = in_at(call, ROW_GATE_BWD_DY, r * columns);
        float s = sigmoid_of(in_at(call, ROW_GATE_BWD_GATE, r), x->type);
        float dgate = (float)(row_dot(x->type, dy, in_at(call, ROW_GATE_BWD_X, r * columns), columns) *
                              (double)s * (1 - (double)s));
        dtype_convert(out_at(call, ROW_GATE_BWD_DGATE, r), x->type, &dgate, DT_F32, 1);
        row_ops()->scale_add(x->type, out_at(call, ROW_GATE_BWD_DX, r * columns), dy, s, NULL, columns);
    }
}

void cpu_row_gate_bwd(const struct kernel_call *call)
{
    int64_t rows = tensor_count(call_in(call, ROW_GATE_BWD_GATE));
    call_each(call, rows, row_grain(tensor_count(call_in(call, ROW_GATE_BWD_X)) / rows), gate_bwd_body);
}

CPU_KERNEL(row_gate, NULL);
CPU_KERNEL(row_gate_bwd, NULL);
