/* take.c - rows by their places, each the sum of one or two. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rows.h"

#include <string.h>

static void take_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    const struct tensor *y = call_out(call, TAKE_Y);
    const int32_t *index = call->in[TAKE_INDEX];
    int64_t columns = tensor_count(y) / call_in(call, TAKE_INDEX)->dim[0];
    size_t bytes = (size_t)columns * dtype_size(y->type);
    for (int64_t r = begin; r < end; r++) {
        int32_t a = index[2 * r], b = call->op->attr.once ? -1 : index[2 * r + 1];
        void *to = out_at(call, TAKE_Y, r * columns);
        if (a < 0) a = b, b = -1;
        if (a < 0)
            memset(to, 0, bytes);
        else if (b < 0)
            memcpy(to, in_at(call, TAKE_X, a * columns), bytes);
        else
            row_ops()->add(y->type, to, in_at(call, TAKE_X, a * columns), in_at(call, TAKE_X, b * columns),
                           columns);
    }
}

void cpu_take(const struct kernel_call *call)
{
    int64_t rows = call_in(call, TAKE_INDEX)->dim[0];
    call_each(call, rows, row_grain(rows ? tensor_count(call_out(call, TAKE_Y)) / rows : 1), take_body);
}

CPU_KERNEL(take, NULL);
