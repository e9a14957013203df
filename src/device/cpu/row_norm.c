/* row_norm.c - lengths of the rows of a weight. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rows.h"

#include <math.h>

/* One thread has all of a row, so the order of its sum does not depend on their number. */
static void measure_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    const struct tensor *w = call_in(call, ROW_NORM_W);
    float *y = call->out[ROW_NORM_Y];
    for (int64_t r = begin; r < end; r++)
        y[r] = (float)sqrt(row_ops()->sumsq(w->type, in_at(call, ROW_NORM_W, r * w->dim[1]), w->dim[1]));
}

void cpu_row_norm(const struct kernel_call *call)
{
    const struct tensor *w = call_in(call, ROW_NORM_W);
    call_each(call, w->dim[0], row_grain(w->dim[1]), measure_body);
}

CPU_KERNEL(row_norm, NULL);
