/* copy.c - ops that only move bytes: between tiers that are both host memory, and thirds of rows. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include <string.h>

enum { COPY_GRAIN = 256 << 10 }; /* bytes */

static void copy_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct kernel_call *call = arg;
    (void)worker;
    memcpy((char *)call->out[0] + begin, (const char *)call->in[0] + begin, (size_t)(end - begin));
}

void cpu_copy(const struct kernel_call *call)
{
    if (call->out[0] == call->in[0]) return;
    struct kernel_call own = *call;
    threads_each(call->team, tensor_bytes(call_in(call, 0)), COPY_GRAIN, copy_body, &own);
}

struct thirds {
    char *whole;   /* [R,3C] */
    char *part[3]; /* [R,C] */
    size_t bytes;  /* of C elements */
};

static void split_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct thirds *t = arg;
    (void)worker;
    for (size_t r = (size_t)begin; r < (size_t)end; r++)
        for (size_t i = 0; i < 3; i++)
            memcpy(t->part[i] + r * t->bytes, t->whole + (3 * r + i) * t->bytes, t->bytes);
}

static void join_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct thirds *t = arg;
    (void)worker;
    for (size_t r = (size_t)begin; r < (size_t)end; r++)
        for (size_t i = 0; i < 3; i++)
            memcpy(t->whole + (3 * r + i) * t->bytes, t->part[i] + r * t->bytes, t->bytes);
}

/* `whole` is [B,T,3C]: its last dimension says where rows end. */
static void thirds(const struct kernel_call *call, const struct tensor *whole, struct thirds *t,
                   threads_body *body)
{
    int64_t columns = last_dim(whole);
    if (columns <= 0) return;
    t->bytes = (size_t)(columns / 3) * dtype_size(whole->type);
    threads_each(call->team, tensor_count(whole) / columns, row_grain(columns), body, t);
}

void cpu_split3(const struct kernel_call *call)
{
    struct thirds t = {call->in[0], {call->out[0], call->out[1], call->out[2]}, 0};
    thirds(call, call_in(call, 0), &t, split_body);
}

void cpu_join3(const struct kernel_call *call)
{
    struct thirds t = {call->out[0], {call->in[0], call->in[1], call->in[2]}, 0};
    thirds(call, call_out(call, 0), &t, join_body);
}
