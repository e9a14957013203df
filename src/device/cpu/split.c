/* split.c - split3 and join3: rows of 3C to three rows of C and back. Copies of bytes, whatever the dtype.
 *
 * The parts may have heads ([B,T,H,D]) where the whole has channels ([B,T,3C]); only row widths matter here.
 */
#include "device/cpu/kernels.h"

#include <string.h>

struct thirds {
    char *whole, *part[3];
    size_t bytes; /* of one part of one row */
};

static void split_rows(void *arg, int64_t begin, int64_t end, int worker) {
    const struct thirds *t = arg;
    (void)worker;
    for (int64_t r = begin; r < end; r++)
        for (int i = 0; i < 3; i++)
            memcpy(t->part[i] + (size_t)r * t->bytes, t->whole + (size_t)(3 * r + i) * t->bytes, t->bytes);
}

static void join_rows(void *arg, int64_t begin, int64_t end, int worker) {
    const struct thirds *t = arg;
    (void)worker;
    for (int64_t r = begin; r < end; r++)
        for (int i = 0; i < 3; i++)
            memcpy(t->whole + (size_t)(3 * r + i) * t->bytes, t->part[i] + (size_t)r * t->bytes, t->bytes);
}

/* Chunks of about 64 KiB: large enough that handing them out costs nothing. */
static void each_row(const struct kernel_call *call, const struct tensor *whole, struct thirds *t,
                     threads_body *body) {
    int64_t width = whole->dim[whole->ndim - 1];
    size_t row = (size_t)width * dtype_size(whole->type);
    int64_t grain = row < 65536 ? (int64_t)(65536 / row) : 1;
    t->bytes = row / 3;
    threads_each(call->team, tensor_count(whole) / width, grain, body, t);
}

void cpu_split3(const struct kernel_call *call) {
    struct thirds t = {call->in[0], {call->out[0], call->out[1], call->out[2]}, 0};
    each_row(call, call->desc[0], &t, split_rows);
}

void cpu_join3(const struct kernel_call *call) {
    struct thirds t = {call->out[0], {call->in[0], call->in[1], call->in[2]}, 0};
    each_row(call, call->desc[OP_MAX_IN], &t, join_rows);
}
