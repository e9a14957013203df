/* dropout.c - elements dropped at random (tape/dropout.h): spans of a row go to threads as they come. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rows.h"
#include "tape/dropout.h"

struct drop {
    const struct row_ops *rows;
    enum dtype type;
    struct dropout drop;
    const void *x, *add; /* [B,L]; add NULL: none */
    void *y;
    int64_t length; /* L */
};

static void body(void *arg, int64_t begin, int64_t end, int)
{
    const struct drop *d = arg;
    for (int64_t at = begin, next; at < end; at = next) {
        int64_t b = at / d->length;
        next = lesser(end, (b + 1) * d->length);
        struct row_drop row = {dropout_row(&d->drop, b), (uint32_t)(at - b * d->length), d->drop.below,
                               d->drop.scale};
        d->rows->drop(d->type, &row, element(d->y, d->type, at), element(d->x, d->type, at),
                      element(d->add, d->type, at), next - at);
    }
}

void cpu_dropout(const struct kernel_call *call)
{
    const struct tensor *x = call_in(call, DROPOUT_X);
    int64_t count = tensor_count(x);
    struct drop d = {row_ops(),
                     x->type,
                     dropout_of(&call->op->attr, call->in[DROPOUT_SCALARS]),
                     call->in[DROPOUT_X],
                     call->in[DROPOUT_ADD],
                     call->out[DROPOUT_Y],
                     count / x->dim[0]};
    threads_each(call->team, count, SPAN_GRAIN, body, &d);
}

CPU_KERNEL(dropout, NULL);
