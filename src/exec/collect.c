/* collect.c - exchanges between ranks. Where the process computes itself, what is exchanged is there, and exchanges run on the
 * lane beside the ops that follow; a device with its own memory hands its bytes to the host a chunk at a time, and gets
 * the result back the same way. */
#include "exec/exec_part.h"
#include "base/minmax.h"

#include <string.h>

struct comm *exec_pieces(const struct exec *exec)
{
    struct comm *all = exec->device->comm;
    return all && exec->tape->node_pieces ? all->node : all;
}

bool exec_has_lane(const struct exec *exec)
{
    const struct device *device = exec->device;
    if (!device->comm || !device->facts.async_exchanges) return false;
    return device->facts.unified_memory ? device->comm->lane != NULL : device->comm->nccl != NULL;
}

static struct comm *among(struct comm *all, const struct op *op)
{
    if (!all) return NULL;
    return op->attr.among == AMONG_NODE ? all->node : op->attr.among == AMONG_NODES ? all->across : all;
}

static enum plim_status collect_here(const struct exchange *x, void *work, struct plim_error *err)
{
    static const enum comm_kind kinds[OP_KIND_COUNT] = {
        [OP_GATHER] = COMM_GATHER, [OP_REDUCE] = COMM_REDUCE, [OP_SUM] = COMM_SUM};
    size_t from = (size_t)tensor_bytes(x->from), to = (size_t)tensor_bytes(x->to);
    if (x->op->kind == OP_PIECE) {
        comm_piece(x->comm, x->a, from, x->b, to);
        return PLIM_OK;
    }
    struct comm_exchange e = {kinds[x->op->kind],
                              x->a,
                              x->b,
                              tensor_count(x->from),
                              tensor_count(x->to),
                              x->to->type,
                              x->add,
                              work,
                              x->exec->times ? &x->exec->times[x->op - x->exec->tape->ops] : NULL};
    if (!exec_has_lane(x->exec)) return comm_run(x->comm, &e, err);
    return exec_remember(x->exec, comm_begin(x->comm, &e), (struct exec_span){x->a, x->a + from},
                         (struct exec_span){x->b, x->b + to}, err);
}

/* --- a device with its own memory ------------------------------------------------------------------------------- */

static size_t offset_of(const struct exchange *x, const char *at)
{
    struct device *device = x->exec->device;
    return (size_t)(at - (char *)device->ops->base(device));
}

static enum plim_status fetch(const struct exchange *x, const char *from, void *to, size_t bytes,
                              struct plim_error *err)
{
    struct device *device = x->exec->device;
    return bytes ? device->ops->read(device, offset_of(x, from), to, bytes, err) : PLIM_OK;
}

static enum plim_status store(const struct exchange *x, const void *from, char *to, size_t bytes,
                              struct plim_error *err)
{
    struct device *device = x->exec->device;
    return bytes ? device->ops->write(device, offset_of(x, to), from, bytes, err) : PLIM_OK;
}

/* How much of [first, first + bytes) lies before `end`. */
static size_t before(size_t end, size_t first, size_t bytes)
{
    return first < end ? min_size(bytes, end - first) : 0;
}

/* Chunk by chunk of every rank's piece: this rank's goes up, all of them come back. */
static enum plim_status gather_staged(const struct exchange *x, char *stage, size_t chunk,
                                      struct plim_error *err)
{
    struct comm *comm = x->comm;
    size_t piece = (size_t)tensor_bytes(x->from), whole = (size_t)tensor_bytes(x->to);
    enum plim_status status = PLIM_OK;
    for (size_t at = 0; at < piece && status == PLIM_OK; at += chunk) {
        size_t n = min_size(chunk, piece - at);
        char *mine = stage, *all = stage + chunk;
        status = fetch(x, x->a + at, mine, n, err);
        if (status == PLIM_OK) status = comm_gather(comm, mine, n, all, n * (size_t)comm->ranks, err);
        for (int r = 0; r < comm->ranks && status == PLIM_OK; r++) {
            size_t first = (size_t)r * piece + at;
            status = store(x, all + (size_t)r * n, x->b + first, before(whole, first, n), err);
        }
    }
    return status;
}

/* A chunk of every rank's part goes up as a small whole of its own, and this rank's piece of the sum comes back. */
static enum plim_status reduce_staged(const struct exchange *x, char *stage, size_t chunk,
                                      struct plim_error *err)
{
    struct comm *comm = x->comm;
    size_t piece = (size_t)tensor_bytes(x->to), whole = (size_t)tensor_bytes(x->from);
    size_t size = dtype_size(x->to->type), ranks = (size_t)comm->ranks;
    char *parts = stage, *sum = stage + ranks * chunk, *work = sum + chunk;
    enum plim_status status = PLIM_OK;
    for (size_t at = 0; at < piece && status == PLIM_OK; at += chunk) {
        size_t n = min_size(chunk, piece - at);
        memset(parts, 0, ranks * n);
        for (size_t r = 0; r < ranks && status == PLIM_OK; r++)
            status = fetch(x, x->a + r * piece + at, parts + r * n, before(whole, r * piece + at, n), err);
        if (status == PLIM_OK && x->add) status = fetch(x, x->b + at, sum, n, err);
        if (status == PLIM_OK)
            status = comm_reduce(comm, parts, (int64_t)(ranks * n / size), sum, (int64_t)(n / size),
                                 x->to->type, x->add, work, err);
        if (status == PLIM_OK) status = store(x, sum, x->b + at, n, err);
    }
    return status;
}

/* Within the device: the host only says where the piece begins, but zeros behind the end come from it. */
static enum plim_status piece_staged(const struct exchange *x, char *stage, size_t chunk,
                                     struct plim_error *err)
{
    size_t piece = (size_t)tensor_bytes(x->to), whole = (size_t)tensor_bytes(x->from);
    size_t first = (size_t)comm_rank(x->comm) * piece;
    enum plim_status status = PLIM_OK;
    for (size_t at = 0; at < piece && status == PLIM_OK; at += chunk) {
        size_t n = min_size(chunk, piece - at), here = before(whole, first + at, n);
        memset(stage, 0, n);
        status = fetch(x, x->a + first + at, stage, here, err);
        if (status == PLIM_OK) status = store(x, stage, x->b + at, n, err);
    }
    return status;
}

static enum plim_status sum_staged(const struct exchange *x, char *stage, size_t chunk,
                                   struct plim_error *err)
{
    struct comm *comm = x->comm;
    size_t whole = (size_t)tensor_bytes(x->to), size = dtype_size(x->to->type);
    enum plim_status status = PLIM_OK;
    for (size_t at = 0; at < whole && status == PLIM_OK; at += chunk) {
        size_t n = min_size(chunk, whole - at);
        status = fetch(x, x->b + at, stage, n, err);
        if (status == PLIM_OK)
            status = comm_sum(comm, stage, (int64_t)(n / size), x->to->type, stage + chunk, err);
        if (status == PLIM_OK) status = store(x, stage, x->b + at, n, err);
    }
    return status;
}

static enum plim_status collect_staged(const struct exchange *x, struct plim_error *err)
{
    size_t chunk = (size_t)op_collective_chunk(comm_ranks(x->exec->device->comm)) /* as comm_stage */;
    char *stage = x->exec->device->comm->stage;
    switch (x->op->kind) {
    case OP_GATHER:
        return gather_staged(x, stage, chunk, err);
    case OP_REDUCE:
        return reduce_staged(x, stage, chunk, err);
    case OP_PIECE:
        return piece_staged(x, stage, chunk, err);
    default:
        return sum_staged(x, stage, chunk, err);
    }
}

enum plim_status exec_collect(struct exec *exec, const struct device_range *range, int index,
                              struct plim_error *err)
{
    const struct op *op = &exec->tape->ops[index];
    struct exchange x = {.exec = exec,
                         .comm = among(exec->device->comm, op),
                         .op = op,
                         .from = &exec->tape->tensors[op->in[MOVE_FROM]],
                         .to = &exec->tape->tensors[op->out[MOVE_TO]],
                         .a = exec_address(exec, op->in[MOVE_FROM]),
                         .b = exec_address(exec, op->out[MOVE_TO]),
                         .add = device_accumulates(range, op)};
    struct device *device = exec->device;
    int part = index >= exec->tape->loop_end;
    bool lane = device->facts.async_exchanges; /* as the layout was made */
    int64_t work = lane ? exec->layout->lane_offset[part] : exec->layout->work_offset[index];
    x.work = (char *)device->ops->base(device) + work;
    x.work_bytes = lane ? exec->layout->lane_bytes[part] : exec->layout->work_bytes[index];
    if (device->facts.unified_memory) return collect_here(&x, x.work, err);
    return exec_has_lane(exec) ? exec_collect_on_device(&x, err) : collect_staged(&x, err);
}
