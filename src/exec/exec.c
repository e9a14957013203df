/* exec.c - see exec.h.
 *
 * Fetches run ahead on the disk store's thread; an op that touches a tensor still being filled waits for it.
 * A store is over for the memory it comes from before the next op starts or, where its tape says so, at the hold that follows: so the
 * packer's lifetimes stand as they are. */
#include "exec/exec_part.h"
#include "base/fault.h"
#include "base/clock.h"
#include "base/minmax.h"
#include "tape/group.h"

#include <string.h>

static enum tier lower_tier(const struct tape *tape, const struct op *op)
{
    return tape->tensors[move_far(op)].tier;
}

/* Disk copies go through host addresses: those of the CPU's arena, or of stages in a GPU's host tier (tape/pass_stage.c). */
static bool is_open(const struct exec *exec, const struct op *op)
{
    const struct device *device = exec->device;
    enum tier near = exec->tape->tensors[move_near(op)].tier;
    if (lower_tier(exec->tape, op) == TIER_HOST) return device->ops->fetch != NULL;
    return exec->disk && (near == TIER_HOST ? device->ops->host_wait != NULL : device->facts.unified_memory);
}

enum plim_status exec_open(struct exec *exec, struct device *device, const struct tape *tape,
                           const struct layout *layout, struct disk_store *disk, struct plim_error *err)
{
    *exec = (struct exec){.device = device, .tape = tape, .layout = layout, .disk = disk};
    if (fault_hit(NULL, FAULT_COMPILE))
        return plim_fail(err, PLIM_UNSUPPORTED, "device %s: a fault was asked for (PLIMSOLL_FAULT)",
                         device->ops->name);
    for (int i = 0; i < tape->nops; i++) {
        const struct op *op = &tape->ops[i];
        if (op_moves(op) && !is_open(exec, op))
            return plim_fail(err, PLIM_UNSUPPORTED, "device %s cannot move tensors to and from tier %s",
                             device->ops->name, tier_name(lower_tier(tape, op)));
        bool known = op->attr.on_host ? device->ops->run_host && device_cpu_kernels()[op->kind]
                                      : device->kernels[op->kind] != NULL;
        exec->pairs = exec->pairs || op->attr.half != HALF_ANY;
        if (op_computes(op) && !known)
            return plim_fail(err, PLIM_UNSUPPORTED, "device %s has no kernel for op %s", device->ops->name,
                             op_name(op->kind));
    }
    return PLIM_OK;
}

/* An exchange that failed says which op it was. */
static enum plim_status tell_op(const struct exec *exec, int i, enum plim_status status,
                                struct plim_error *err)
{
    char name[160];
    const struct op *op = &exec->tape->ops[i];
    if (status == PLIM_OK || !err) return status;
    return plim_fail(err, status, "%s; op %d, %s of %s", err->text, i, op_name(op->kind),
                     tape_tensor_name(exec->tape, op->in[MOVE_FROM], name, sizeof name));
}

/* For devices that compile a range. */
static enum plim_status queue_exchange(const struct device_range *range, int op)
{
    return exec_collect(range->arg, range, op, NULL);
}

static struct device_range range_of(struct exec *exec, int begin, int end, int64_t micro)
{
    return (struct device_range){.tape = exec->tape,
                                 .layout = exec->layout,
                                 .begin = begin,
                                 .end = end,
                                 .first = micro == 0,
                                 .away = exec->away && begin < exec->tape->loop_end,
                                 .timed = exec->times && exec->device->ops->time_op,
                                 .collect = queue_exchange,
                                 .arg = exec};
}

void *exec_address(const struct exec *exec, int id)
{
    struct device_range range = {.tape = exec->tape, .layout = exec->layout};
    return device_address(exec->device, &range, id);
}

void *exec_host(const struct exec *exec, int tensor)
{
    return exec->device->facts.unified_memory ? exec_address(exec, tensor) : NULL;
}

static enum plim_status await_operand(struct exec *exec, int id, struct plim_error *err)
{
    if (id < 0) return PLIM_OK;
    int root = tape_root(exec->tape, id);
    for (int i = 0; i < exec->nfetching; i++) {
        if (exec->fetching[i].tensor != root) continue;
        uint64_t ticket = exec->fetching[i].ticket;
        exec->fetching[i] = exec->fetching[--exec->nfetching];
        return disk_wait(exec->disk, ticket, err);
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

/* Waits until the tensors that a hold names have been written. */
static enum plim_status await_stores(struct exec *exec, const struct op *hold, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < exec->nstoring && status == PLIM_OK;) {
        bool named = false;
        for (int k = 0; k < OP_MAX_IN; k++) named |= hold->in[k] == exec->storing[i].tensor;
        if (named) status = disk_wait(exec->disk, exec->storing[i].ticket, err);
        if (named)
            exec->storing[i] = exec->storing[--exec->nstoring];
        else
            i++;
    }
    return status;
}

/* Where more are under way than are remembered, it is over at once. */
static enum plim_status store(struct exec *exec, const struct op *op, size_t bytes, uint64_t offset,
                              struct plim_error *err)
{
    int near = op->in[MOVE_FROM];
    const void *from = exec_address(exec, near);
    if (!op->attr.behind || exec->nstoring == EXEC_STORES)
        return disk_write(exec->disk, from, bytes, offset, err);
    exec->storing[exec->nstoring].tensor = near;
    exec->storing[exec->nstoring++].ticket = disk_write_behind(exec->disk, from, bytes, offset);
    return PLIM_OK;
}

/* A stage is the disk's when the device is done with it. */
static enum plim_status await_stage(struct exec *exec, int near, size_t bytes, struct plim_error *err)
{
    if (exec->tape->tensors[near].tier != TIER_HOST) return PLIM_OK;
    return exec->device->ops->host_wait(exec->device, (size_t)exec->layout->offset[near], bytes, err);
}

static enum plim_status move(struct exec *exec, const struct device_range *range, const struct op *op,
                             struct plim_error *err)
{
    if (lower_tier(exec->tape, op) == TIER_HOST) {
        device_move(exec->device, range, op);
        return PLIM_OK;
    }
    int near = move_near(op);
    size_t bytes = (size_t)tensor_bytes(&exec->tape->tensors[near]);
    uint64_t offset = (uint64_t)exec->layout->offset[move_far(op)];
    enum plim_status status = await_stage(exec, near, bytes, err);
    if (status != PLIM_OK) return status;
    if (exec->times) disk_time_next(exec->disk, &exec->times[op - exec->tape->ops]);
    if (op->kind == OP_STORE) return store(exec, op, bytes, offset, err);
    if (exec->nfetching == EXEC_FETCHES) {
        status = await_operand(exec, exec->fetching[0].tensor, err);
        if (status != PLIM_OK) return status;
    }
    exec->fetching[exec->nfetching].tensor = tape_root(exec->tape, near);
    exec->fetching[exec->nfetching++].ticket =
        disk_prefetch(exec->disk, exec_address(exec, near), bytes, offset);
    return PLIM_OK;
}

static bool writes_kept(const struct tape *tape, const struct op *op)
{
    for (int k = 0; k < OP_MAX_OUT; k++)
        if (op->out[k] >= 0 && tape->tensors[tape_root(tape, op->out[k])].flags & TENSOR_KEPT) return true;
    return false;
}

void exec_fresh(struct exec *exec)
{
    const struct device_ops *ops = exec->device->ops;
    if (!ops->fill) return;
    for (int i = 0; i < exec->tape->ntensors; i++) {
        const struct tensor *t = &exec->tape->tensors[i];
        bool here = t->view_of < 0 && t->tier == TIER_DEVICE;
        if (!here || !(t->flags & TENSOR_KEPT) || t->cls == CLASS_PARAM) continue;
        ops->fill(exec->device, (size_t)exec->layout->offset[i], (size_t)tensor_bytes(t), FILL_ZERO);
    }
}

enum plim_status exec_tune(struct exec *exec, struct plim_error *err)
{
    const struct device_ops *ops = exec->device->ops;
    exec_drop_programs(exec);
    exec->compiles = ops->compile && (!exec->device->comm || exec_has_lane(exec));
    if (!ops->tune) return PLIM_OK;
    /* Stores of other tapes, e.g. of updates before an evaluation, may still read what tuning overwrites. */
    enum plim_status status = ops->sync(exec->device, err);
    if (status != PLIM_OK) return status;
    for (int i = 0; i < exec->tape->nops; i++)
        for (int64_t micro = 0; micro < 2; micro++) {
            const struct op *op = &exec->tape->ops[i];
            struct device_range range = range_of(exec, i, i + 1, micro);
            if (!op_computes(op) || op->attr.on_host || writes_kept(exec->tape, op)) continue;
            struct kernel_call call = device_call(exec->device, &range, i);
            ops->tune(exec->device, &call);
        }
    return ops->sync(exec->device, err);
}

/* Those wait for each other on their lane. */
static bool on_lane(const struct exec *exec, const struct op *op)
{
    return op_collects(op) && op->kind != OP_PIECE && exec_has_lane(exec);
}

/* Does nobody else time this op? The device times its own ops where it can, the disk and the lane of exchanges always. */
static bool is_timed_here(const struct exec *exec, const struct device_range *range, const struct op *op)
{
    bool disk = op_moves(op) && lower_tier(exec->tape, op) == TIER_DISK && !device_skips(range, op);
    bool device = range->timed && (op_computes(op) || op_moves(op));
    return exec->times && !disk && !device && !on_lane(exec, op);
}

static enum plim_status give_op(struct exec *exec, const struct device_range *range, int i,
                                struct plim_error *err)
{
    const struct op *op = &exec->tape->ops[i];
    enum plim_status status = PLIM_OK;
    bool here = is_timed_here(exec, range, op);
    double began = here ? clock_seconds() : 0;
    if (range->timed) exec->device->ops->time_op(exec->device, i);
    if (op_moves(op))
        status = move(exec, range, op, err);
    else if (op_collects(op))
        status = tell_op(exec, i, exec_collect(exec, range, i, err), err);
    else if (op_computes(op))
        device_run_ops(exec->device, range, i, i + 1);
    if (range->timed) exec->device->ops->time_op(exec->device, -1);
    if (!here || status != PLIM_OK) return status;
    if (!range->timed) status = exec->device->ops->sync(exec->device, err);
    exec->times[i] = (struct clock_span){began, clock_seconds()};
    return status;
}

static enum plim_status run_op(struct exec *exec, const struct device_range *range, int i,
                               struct plim_error *err)
{
    const struct op *op = &exec->tape->ops[i];
    double start = exec->op_seconds ? clock_seconds() : 0;
    enum plim_status status = exec->nfetching ? await_operands(exec, op, err) : PLIM_OK;
    if (status == PLIM_OK && exec->nexchanging && !on_lane(exec, op))
        status = tell_op(exec, i, exec_await(exec, i, err), err);
    if (status == PLIM_OK && exec->nstoring && op->kind == OP_HOLD) status = await_stores(exec, op, err);
    if (status == PLIM_OK) status = give_op(exec, range, i, err);
    if (status == PLIM_OK && (exec->inspect || exec->op_seconds)) {
        status = exec_await_all(exec, err);
        if (status == PLIM_OK) status = exec->device->ops->sync(exec->device, err);
    }
    if (status != PLIM_OK) return status;
    if (exec->inspect) exec->inspect(exec->inspect_arg, exec, i);
    if (exec->op_seconds) exec->op_seconds[op->kind] += clock_seconds() - start;
    return PLIM_OK;
}

/* One op after the other; groups at once where the device can and nobody asks about single ops. Only a layout for a device
 * with its own memory has groups, and what the disk fills of such a device are stages, which no op of a group touches:
 * there is nothing for await_operands to wait for. */
static enum plim_status run_ops(struct exec *exec, const struct device_range *range, struct plim_error *err)
{
    bool groups = exec->device->ops->run_many && !exec->inspect && !exec->op_seconds;
    enum plim_status status = PLIM_OK;
    for (int i = range->begin, next; i < range->end && status == PLIM_OK; i = next) {
        next = groups ? (int)min64(layout_group_end(exec->layout, i), range->end) : i + 1;
        if (device_skips(range, &exec->tape->ops[i])) continue; /* a group's ops are all of one kind */
        if (next == i + 1) {
            status = run_op(exec, range, i, err);
            continue;
        }
        if (range->timed) exec->device->ops->time_op(exec->device, i);
        device_run_ops(exec->device, range, i, next);
        if (range->timed) exec->device->ops->time_op(exec->device, -1);
    }
    return status;
}

static struct device_program *find_program(struct exec *exec, const struct device_range *range)
{
    for (int i = 0; i < exec->nprograms; i++) {
        struct exec_program *p = &exec->programs[i];
        if (p->begin == range->begin && p->end == range->end && p->first == range->first &&
            p->away == range->away && p->timed == range->timed)
            return p->program;
    }
    return NULL;
}

/* Ranges with disk ops are not compiled: execution must wait for the disk between two ops. Nor are those whose ops are looked at
 * one by one. */
static bool may_compile(const struct exec *exec, int begin, int end)
{
    if (exec->inspect || exec->op_seconds || (exec->times && !exec->device->ops->time_op)) return false;
    for (int i = begin; i < end && exec->disk; i++) {
        const struct op *op = &exec->tape->ops[i];
        if (op_moves(op) && lower_tier(exec->tape, op) == TIER_DISK) return false;
    }
    return exec->compiles && begin < end;
}

/* *out is the range's program, compiled if it is new; NULL: ops run one by one, and nothing is compiled from then on. */
static enum plim_status program_of(struct exec *exec, int begin, int end, int64_t micro,
                                   struct device_program **out, struct plim_error *err)
{
    struct device *device = exec->device;
    *out = NULL;
    struct device_range range = range_of(exec, begin, end, micro);
    if (!may_compile(exec, begin, end)) return PLIM_OK;
    if ((*out = find_program(exec, &range)) || exec->nprograms == EXEC_PROGRAMS) return PLIM_OK;
    enum plim_status status = device->ops->compile(device, &range, out, err);
    if (*out)
        exec->programs[exec->nprograms++] =
            (struct exec_program){begin, end, range.first, range.away, range.timed, *out};
    else
        exec->compiles = false;
    return status;
}

enum plim_status exec_prepare_later(struct exec *exec, struct plim_error *err)
{
    struct device_program *unused;
    return program_of(exec, 0, exec->tape->loop_end, 1, &unused, err);
}

static enum plim_status prepare_first(struct exec *exec, struct plim_error *err)
{
    bool away = exec->away;
    struct device_program *unused;
    enum plim_status status = PLIM_OK;
    for (int half = 0; half < (exec->pairs ? 2 : 1) && status == PLIM_OK; half++) {
        exec->away = half ? !away : away;
        status = program_of(exec, 0, exec->tape->loop_end, 0, &unused, err);
    }
    exec->away = away;
    return status;
}

enum plim_status exec_prepare(struct exec *exec, bool later, struct plim_error *err)
{
    const struct tape *tape = exec->tape;
    struct device_program *unused;
    enum plim_status status = prepare_first(exec, err);
    if (status == PLIM_OK && later) status = exec_prepare_later(exec, err);
    return status == PLIM_OK ? program_of(exec, tape->loop_end, tape->nops, 0, &unused, err) : status;
}

void exec_drop_programs(struct exec *exec)
{
    while (exec->nprograms) exec->device->ops->program_free(exec->programs[--exec->nprograms].program);
}

void exec_close(struct exec *exec)
{
    exec_drop_programs(exec);
    *exec = (struct exec){0};
}

size_t exec_program_bytes(const struct exec *exec)
{
    size_t bytes = 0;
    for (int i = 0; i < exec->nprograms; i++) bytes += exec->programs[i].program->bytes;
    return bytes;
}

static enum plim_status run_range(struct exec *exec, const struct device_range *range, struct plim_error *err)
{
    enum plim_status status = run_ops(exec, range, err);
    enum plim_status rest = exec_await_all(exec, status == PLIM_OK ? err : NULL);
    return status == PLIM_OK ? rest : status;
}

enum plim_status exec_run(struct exec *exec, int begin, int end, int64_t micro, struct plim_error *err)
{
    struct device_program *program;
    enum plim_status status = program_of(exec, begin, end, micro, &program, err);
    if (program) exec->device->ops->launch(program);
    if (program || status != PLIM_OK) return status;
    struct device_range range = range_of(exec, begin, end, micro);
    return run_range(exec, &range, err);
}

enum plim_status exec_pending(struct exec *exec, struct plim_error *err)
{
    struct device_range range = range_of(exec, 0, exec->tape->loop_end, 0);
    range.pending = true;
    return run_range(exec, &range, err);
}

enum plim_status exec_prime(struct exec *exec, struct plim_error *err)
{
    struct device_range range = range_of(exec, 0, exec->tape->loop_end, 0);
    range.priming = true;
    return run_range(exec, &range, err);
}

enum plim_status exec_loop(struct exec *exec, int64_t micro, struct plim_error *err)
{
    return exec_run(exec, 0, exec->tape->loop_end, micro, err);
}

enum plim_status exec_update(struct exec *exec, struct plim_error *err)
{
    enum plim_status status = exec_run(exec, exec->tape->loop_end, exec->tape->nops, 0, err);
    bool waits = exec->device->comm && exec->device->comm->nccl;
    return status == PLIM_OK && waits ? exec_await_device(exec, err) : status;
}

enum plim_status exec_read_own(const struct exec *exec, int id, void *host, int64_t offset, int64_t bytes,
                               struct plim_error *err)
{
    uint64_t at = (uint64_t)(exec->layout->offset[id] + offset);
    bool waits = exec->device->comm && exec->device->comm->nccl;
    enum plim_status waited = waits ? exec_await_device(exec, err) : PLIM_OK;
    if (waited != PLIM_OK) return waited;
    if (exec->tape->tensors[id].tier == TIER_HOST) {
        enum plim_status status = exec->device->ops->sync(exec->device, err);
        if (status == PLIM_OK)
            memcpy(host, (char *)exec->device->ops->host_base(exec->device) + at, (size_t)bytes);
        return status;
    }
    if (exec->tape->tensors[id].tier == TIER_DISK) return disk_read(exec->disk, host, (size_t)bytes, at, err);
    return exec->device->ops->read(exec->device, (size_t)at, host, (size_t)bytes, err);
}

enum plim_status exec_write_own(const struct exec *exec, int id, const void *host, int64_t offset,
                                int64_t bytes, struct plim_error *err)
{
    uint64_t at = (uint64_t)(exec->layout->offset[id] + offset);
    if (exec->tape->tensors[id].tier == TIER_HOST) {
        enum plim_status status = exec->device->ops->sync(exec->device, err);
        if (status == PLIM_OK)
            memcpy((char *)exec->device->ops->host_base(exec->device) + at, host, (size_t)bytes);
        return status;
    }
    if (exec->tape->tensors[id].tier == TIER_DISK)
        return disk_write(exec->disk, host, (size_t)bytes, at, err);
    return exec->device->ops->write(exec->device, (size_t)at, host, (size_t)bytes, err);
}

/* The part of [offset, offset + bytes) that rank `rank` has, when a piece is `piece` bytes. */
struct owned {
    int64_t first, bytes;
};

static struct owned owned_by(int rank, int64_t piece, int64_t offset, int64_t bytes)
{
    int64_t begin = rank * piece, end = begin + piece;
    if (begin < offset) begin = offset;
    if (end > offset + bytes) end = offset + bytes;
    return (struct owned){begin, end > begin ? end - begin : 0};
}

int64_t exec_own_first(const struct exec *exec, int id)
{
    return exec->tape->tensors[id].piece * comm_rank(exec_pieces(exec));
}

enum plim_status exec_read(const struct exec *exec, int id, void *host, int64_t offset, int64_t bytes,
                           struct plim_error *err)
{
    const struct tensor *t = &exec->tape->tensors[id];
    if (!t->piece) return exec_read_own(exec, id, host, offset, bytes, err);
    struct comm *comm = exec_pieces(exec);
    int64_t piece = tensor_bytes(t);
    enum plim_status status = PLIM_OK;
    for (int r = 0; r < comm_ranks(comm) && status == PLIM_OK; r++) {
        struct owned part = owned_by(r, piece, offset, bytes);
        char *to = (char *)host + (part.first - offset);
        if (!part.bytes) continue;
        if (r == comm_rank(comm))
            status = exec_read_own(exec, id, to, part.first - r * piece, part.bytes, err);
        if (status == PLIM_OK) status = comm_broadcast(comm, to, (size_t)part.bytes, r, err);
    }
    return status;
}

void exec_read_begin(const struct exec *exec, int id, int slot, int64_t bytes)
{
    exec->device->ops->read_begin(exec->device, slot, (size_t)exec->layout->offset[id], (size_t)bytes);
}

enum plim_status exec_write(const struct exec *exec, int id, const void *host, int64_t offset, int64_t bytes,
                            struct plim_error *err)
{
    const struct tensor *t = &exec->tape->tensors[id];
    if (!t->piece) return exec_write_own(exec, id, host, offset, bytes, err);
    int64_t piece = tensor_bytes(t), rank = comm_rank(exec_pieces(exec));
    struct owned part = owned_by((int)rank, piece, offset, bytes);
    if (!part.bytes) return PLIM_OK;
    return exec_write_own(exec, id, (const char *)host + (part.first - offset), part.first - rank * piece,
                          part.bytes, err);
}

enum plim_status exec_write_rows(const struct exec *exec, int id, const void *host, int64_t offset,
                                 int64_t stride, int64_t bytes, int64_t rows, struct plim_error *err)
{
    const struct device_ops *ops = exec->device->ops;
    const struct tensor *t = &exec->tape->tensors[id];
    if (!ops->write_rows || t->piece || t->tier != TIER_DEVICE)
        return exec_write(exec, id, host, offset, rows * stride, err);
    return ops->write_rows(exec->device, (size_t)(exec->layout->offset[id] + offset), host, (size_t)stride,
                           (size_t)bytes, (size_t)rows, err);
}
