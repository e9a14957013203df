/* op_clock.c - see op_clock.h. */
#include "exec/op_clock.h"
#include "base/clock.h"

#include <stdlib.h>

enum plim_status op_clock_start(struct op_clock *c, int nops, struct plim_error *err)
{
    *c = (struct op_clock){.ops = malloc(((size_t)nops + 1) * sizeof *c->ops)};
    if (!c->ops) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for a snapshot");
    for (int i = 0; i < nops; i++) c->ops[i] = (struct op_span){.seconds = -1};
    c->began = clock_seconds();
    return PLIM_OK;
}

void op_clock_stop(struct op_clock *c)
{
    free(c->ops);
    *c = (struct op_clock){0};
}

/* After each op, when it is done. */
static void note_op(void *arg, const struct exec *exec, int op)
{
    struct op_clock *c = arg;
    double now = clock_seconds();
    c->ops[op].start = c->last - c->began, c->ops[op].seconds = now - c->last;
    if (c->inspect) c->inspect(c->inspect_arg, exec, op);
    c->last = c->inspect ? clock_seconds() : now;
}

static void look_at_ops(struct op_clock *c, struct exec *exec, bool look)
{
    if (look) {
        c->inspect = exec->inspect, c->inspect_arg = exec->inspect_arg;
        exec->inspect = note_op, exec->inspect_arg = c;
    } else {
        exec->inspect = c->inspect, exec->inspect_arg = c->inspect_arg;
    }
}

enum plim_status op_clock_pass(struct op_clock *c, struct exec *exec, bool update, int64_t micro, bool by_op,
                               struct op_span *pass, struct plim_error *err)
{
    struct device *device = exec->device;
    enum plim_status status = device->ops->sync(device, err);
    double start = c->last = clock_seconds();
    if (by_op) look_at_ops(c, exec, true);
    if (status == PLIM_OK) status = update ? exec_update(exec, err) : exec_loop(exec, micro, err);
    if (by_op) look_at_ops(c, exec, false);
    if (status == PLIM_OK) status = device->ops->sync(device, err);
    *pass = (struct op_span){.start = start - c->began, .seconds = clock_seconds() - start};
    return status;
}
