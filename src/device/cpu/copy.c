/* copy.c - between tiers that are both host memory. */
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
