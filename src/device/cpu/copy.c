/* copy.c - between tiers that are both host memory. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include <string.h>

enum { COPY_GRAIN = 256 << 10 }; /* bytes */

static void copy_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    memcpy((char *)call->out[MOVE_TO] + begin, (const char *)call->in[MOVE_FROM] + begin,
           (size_t)(end - begin));
}

void cpu_copy(const struct kernel_call *call)
{
    if (call->out[MOVE_TO] == call->in[MOVE_FROM]) return;
    call_each(call, tensor_bytes(call_in(call, MOVE_FROM)), COPY_GRAIN, copy_body);
}

CPU_KERNEL(copy, NULL);
