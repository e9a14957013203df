/* exec.c - see exec.h.
 *
 * Fetches run ahead on the far store's thread; an op that touches a tensor still being filled waits for it.
 * Stores are finished before the next op starts, so the packer's lifetimes hold as they are. */
#include "exec/exec.h"
#include "base/clock.h"

enum plim_status exec_open(struct exec *exec, struct device *device, const struct tape *tape,
                           const struct layout *layout, struct far_store *far, struct plim_error *err)
{
    *exec = (struct exec){.device = device, .tape = tape, .layout = layout, .far = far};
    for (int i = 0; i < tape->nops; i++) {
        const struct op *op = &tape->ops[i];
        bool moves = op->kind == OP_FETCH || op->kind == OP_STORE;
        if (moves && !far)
            return plim_fail(err, PLIM_BUG, "the tape moves tensors to a tier that is not open");
        if (!moves && !device->kernels[op->kind].run)
            return plim_fail(err, PLIM_UNSUPPORTED, "device %s has no kernel for op %s", device->ops->name,
                             op_row(op->kind)->name);
    }
    return PLIM_OK;
}

static void *address(const struct exec *exec, int id)
{
    return (char *)exec->device->ops->base(exec->device) + exec->layout->offset[id];
}

void *exec_host(const struct exec *exec, int tensor)
{
    return exec->device->facts.is_host ? address(exec, tensor) : NULL;
}

static enum plim_status await_operand(struct exec *exec, int id, struct plim_error *err)
{
    if (id < 0) return PLIM_OK;
    int root = tape_root(exec->tape, id);
    for (int i = 0; i < exec->nfetching; i++) {
        if (exec->fetching[i].tensor != root) continue;
        uint64_t ticket = exec->fetching[i].ticket;
        exec->fetching[i] = exec->fetching[--exec->nfetching];
        return far_wait(exec->far, ticket, err);
    }
    return PLIM_OK;
}

static enum plim_status await_operands(struct exec *exec, const struct op *op, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (int k = 0; k < OP_MAX_IN && status == PLIM_OK && exec->nfetching; k++)
        status = await_operand(exec, op->in[k], err);
    for (int k = 0; k < OP_MAX_OUT && status == PLIM_OK && exec->nfetching; k++)
        status = await_operand(exec, op->out[k], err);
    return status;
}

/* A fetch of what the first micro-batch overwrites is left out in that one. */
static enum plim_status move(struct exec *exec, const struct op *op, int64_t micro, struct plim_error *err)
{
    int near = op->kind == OP_FETCH ? op->out[0] : op->in[0],
        far = op->kind == OP_FETCH ? op->in[0] : op->out[0];
    size_t bytes = (size_t)tensor_bytes(&exec->tape->tensors[near]);
    uint64_t offset = (uint64_t)exec->layout->offset[far];
    if (op->kind == OP_FETCH && op->accumulate == ACC_AFTER_FIRST && micro == 0) return PLIM_OK;
    if (op->kind == OP_STORE) return far_write(exec->far, address(exec, near), bytes, offset, err);
    if (exec->nfetching == EXEC_FETCHES) {
        enum plim_status status = await_operand(exec, exec->fetching[0].tensor, err);
        if (status != PLIM_OK) return status;
    }
    exec->fetching[exec->nfetching].tensor = tape_root(exec->tape, near);
    exec->fetching[exec->nfetching++].ticket = far_read_ahead(exec->far, address(exec, near), bytes, offset);
    return PLIM_OK;
}

static void compute(struct exec *exec, int index, int64_t micro)
{
    const struct op *op = &exec->tape->ops[index];
    struct kernel_call call = {.op = op, .team = exec->device->team};
    for (int k = 0; k < OP_MAX_IN; k++) {
        if (op->in[k] < 0) continue;
        call.desc[k] = &exec->tape->tensors[op->in[k]];
        call.in[k] = address(exec, op->in[k]);
    }
    for (int k = 0; k < OP_MAX_OUT; k++) {
        if (op->out[k] < 0) continue;
        call.desc[OP_MAX_IN + k] = &exec->tape->tensors[op->out[k]];
        call.out[k] = address(exec, op->out[k]);
    }
    call.accumulate = op->accumulate == ACC_ADD || (op->accumulate == ACC_AFTER_FIRST && micro > 0);
    call.work = (char *)exec->device->ops->base(exec->device) + exec->layout->work_offset[index];
    exec->device->ops->run(exec->device, &call);
}

enum plim_status exec_run(struct exec *exec, int begin, int end, int64_t micro, struct plim_error *err)
{
    for (int i = begin; i < end; i++) {
        const struct op *op = &exec->tape->ops[i];
        double start = exec->op_seconds ? clock_seconds() : 0;
        enum plim_status status = exec->nfetching ? await_operands(exec, op, err) : PLIM_OK;
        if (status == PLIM_OK && (op->kind == OP_FETCH || op->kind == OP_STORE))
            status = move(exec, op, micro, err);
        else if (status == PLIM_OK)
            compute(exec, i, micro);
        if (status != PLIM_OK) return status;
        if (exec->inspect) {
            exec->device->ops->sync(exec->device);
            exec->inspect(exec->inspect_arg, exec, i);
        }
        if (exec->op_seconds) {
            exec->device->ops->sync(exec->device);
            exec->op_seconds[op->kind] += clock_seconds() - start;
        }
    }
    exec->device->ops->sync(exec->device);
    return PLIM_OK;
}

enum plim_status exec_loop(struct exec *exec, int64_t micro, struct plim_error *err)
{
    return exec_run(exec, 0, exec->tape->loop_end, micro, err);
}

enum plim_status exec_update(struct exec *exec, struct plim_error *err)
{
    return exec_run(exec, exec->tape->loop_end, exec->tape->nops, 0, err);
}

enum plim_status exec_read(struct exec *exec, int id, void *host, int64_t offset, int64_t bytes,
                           struct plim_error *err)
{
    uint64_t at = (uint64_t)(exec->layout->offset[id] + offset);
    if (exec->tape->tensors[id].tier == TIER_DISK) return far_read(exec->far, host, (size_t)bytes, at, err);
    exec->device->ops->read(exec->device, (size_t)at, host, (size_t)bytes);
    return PLIM_OK;
}

enum plim_status exec_write(struct exec *exec, int id, const void *host, int64_t offset, int64_t bytes,
                            struct plim_error *err)
{
    uint64_t at = (uint64_t)(exec->layout->offset[id] + offset);
    if (exec->tape->tensors[id].tier == TIER_DISK) return far_write(exec->far, host, (size_t)bytes, at, err);
    exec->device->ops->write(exec->device, (size_t)at, host, (size_t)bytes);
    return PLIM_OK;
}
