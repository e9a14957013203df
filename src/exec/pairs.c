/* pairs.c - which half of the host's pairs is valid. See exec.h and tape/offload_pairs.c.
 *
 *     the update of a step is about to be made      exec_turn_pairs: what it writes is valid behind it
 *     kept tensors are read, moved or written       exec_pairs_home: copied where away is valid
 */
#include "exec/exec_part.h"
#include "tape/op.h"

#include <string.h>

#define COPY_GRAIN (1 << 20) /* bytes that are worth a thread */

void exec_turn_pairs(struct exec *exec) { exec->away = exec->pairs && !exec->away; }

struct copy {
    char *to;
    const char *from;
};

static void copy_bytes(void *arg, int64_t begin, int64_t end, int)
{
    const struct copy *c = arg;
    memcpy(c->to + begin, c->from + begin, (size_t)(end - begin));
}

/* Copies back what the update from home to away has written. */
static void bring_home(const struct exec *exec, const struct op *op)
{
    for (int o = 0; o < OP_MAX_OUT; o++) {
        if (op->out[o] < 0) continue;
        struct copy c = {exec_address(exec, op->in[op_shares(op->kind, o)]), exec_address(exec, op->out[o])};
        threads_each(exec->device->team, tensor_bytes(&exec->tape->tensors[op->out[o]]), COPY_GRAIN,
                     copy_bytes, &c);
    }
}

enum plim_status exec_pairs_home(struct exec *exec, struct plim_error *err)
{
    if (!exec->away) return PLIM_OK;
    enum plim_status status = exec->device->ops->sync(exec->device, err);
    for (int i = 0; i < exec->tape->loop_end && status == PLIM_OK; i++) {
        const struct op *op = &exec->tape->ops[i];
        if (op->attr.redoes && op->attr.half == HALF_AWAY) bring_home(exec, op);
    }
    exec->away = status != PLIM_OK;
    return status;
}
