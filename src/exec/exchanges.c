/* exchanges.c - what is between ranks while ops compute, by the bytes it touches.
 *
 * The lane runs exchanges in the order they were begun, so only an op of this thread can be in the way of one: an op waits for
 * exchanges that write what it touches, or read what it writes. The layout leaves bytes alone for as long as a hold says
 * (tape/pass_prefetch.c); waiting by address makes that a matter of time, never of right and wrong. */
#include "exec/exec_part.h"

#include <string.h>

static bool overlap(struct exec_span a, struct exec_span b) { return a.begin < b.end && b.begin < a.end; }

/* The first `count` are done. */
static enum plim_status await_first(struct exec *exec, int count, struct plim_error *err)
{
    if (!count) return PLIM_OK;
    uint64_t ticket = exec->exchanging[count - 1].ticket;
    exec->nexchanging -= count;
    memmove(exec->exchanging, exec->exchanging + count, (size_t)exec->nexchanging * sizeof *exec->exchanging);
    return comm_wait(exec->device->comm, ticket, err);
}

enum plim_status exec_await_all(struct exec *exec, struct plim_error *err)
{
    return await_first(exec, exec->nexchanging, err);
}

enum plim_status exec_remember(struct exec *exec, uint64_t ticket, struct exec_span reads,
                               struct exec_span writes, struct plim_error *err)
{
    enum plim_status status =
        exec->nexchanging == EXEC_EXCHANGES ? await_first(exec, EXEC_EXCHANGES / 2, err) : PLIM_OK;
    int i = exec->nexchanging++;
    exec->exchanging[i].ticket = ticket;
    exec->exchanging[i].reads = reads, exec->exchanging[i].writes = writes;
    return status;
}

/* How many exchanges, from the first on, must be done before these bytes are touched. */
static int in_the_way(const struct exec *exec, struct exec_span span, bool writes)
{
    for (int i = exec->nexchanging; i > 0; i--)
        if (overlap(exec->exchanging[i - 1].writes, span) ||
            (writes && overlap(exec->exchanging[i - 1].reads, span)))
            return i;
    return 0;
}

static struct exec_span span_of(const struct exec *exec, int id)
{
    const char *at = exec_address(exec, id);
    return (struct exec_span){at, at + tensor_bytes(&exec->tape->tensors[id])};
}

enum plim_status exec_await(struct exec *exec, int index, struct plim_error *err)
{
    const struct op *op = &exec->tape->ops[index];
    const char *work = (const char *)exec->device->ops->base(exec->device) + exec->layout->work_offset[index];
    struct exec_span scratch = {work, work + exec->layout->work_bytes[index]};
    int most = in_the_way(exec, scratch, true);
    for (int k = 0; k < OP_MAX_IN + OP_MAX_OUT; k++) {
        bool writes = k >= OP_MAX_IN || op->kind == OP_HOLD; /* what follows a hold may write */
        int id = k < OP_MAX_IN ? op->in[k] : op->out[k - OP_MAX_IN];
        if (id < 0 || exec->tape->tensors[id].tier != TIER_DEVICE) continue;
        int count = in_the_way(exec, span_of(exec, id), writes);
        if (count > most) most = count;
    }
    return await_first(exec, most, err);
}
