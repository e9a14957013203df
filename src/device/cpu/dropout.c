/* dropout.c - elements dropped at random (tape/dropout.h): spans of a row go to threads as they come. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rows.h"
#include "tape/dropout.h"

/* Operands are [B,L]. */
static void body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    const struct tensor *x = call_in(call, DROPOUT_X);
    struct dropout drop = dropout_of(&call->op->attr, call->in[DROPOUT_SCALARS]);
    int64_t length = tensor_count(x) / x->dim[0];
    for (int64_t at = begin, next; at < end; at = next) {
        int64_t b = at / length;
        next = lesser(end, (b + 1) * length);
        struct row_drop row = {dropout_row(&drop, b), (uint32_t)(at - b * length), drop.below, drop.scale};
        row_ops()->drop(x->type, &row, out_at(call, DROPOUT_Y, at), in_at(call, DROPOUT_X, at),
                        in_at(call, DROPOUT_ADD, at), next - at);
    }
}

void cpu_dropout(const struct kernel_call *call)
{
    call_each(call, tensor_count(call_in(call, DROPOUT_X)), SPAN_GRAIN, body);
}

CPU_KERNEL(dropout, NULL);
