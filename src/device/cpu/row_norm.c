/* row_norm.c - lengths of the rows of a weight. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rows.h"

#include <math.h>

struct measured_rows {
    const struct row_ops *rows;
    enum dtype type;
    const void *w;
    float *y;
    int64_t columns;
};

/* One thread has all of a row, so the order of its sum does not depend on their number. */
static void measure_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct measured_rows *m = arg;
    (void)worker;
    for (int64_t r = begin; r < end; r++)
        m->y[r] = (float)sqrt(m->rows->sumsq(m->type, element(m->w, m->type, r * m->columns), m->columns));
}

void cpu_row_norm(const struct kernel_call *call)
{
    const struct tensor *w = call_in(call, ROW_NORM_W);
    struct measured_rows m = {row_ops(), w->type, call->in[ROW_NORM_W], call->out[ROW_NORM_Y], w->dim[1]};
    threads_each(call->team, w->dim[0], row_grain(m.columns), measure_body, &m);
}

CPU_KERNEL(row_norm, NULL);
