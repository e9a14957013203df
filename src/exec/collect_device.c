/* collect_device.c - exchanges between the memories of devices, each on the device's stream for them: what comm.c does with
 * bytes of the host, in the same chunks and with sums in the same order. */
#include "base/clock.h"
#include "base/minmax.h"
#include "comm/nccl.h"
#include "exec/exec_part.h"

#include <time.h>

static const char *gather(const struct exchange *x, const void *piece, size_t bytes, void *whole, size_t all,
                          void *stream)
{
    return nccl_gather(x->exec->device->comm->nccl, x->op->attr.among, piece, bytes, whole, all, stream);
}

/* Receives one part of every rank's chunk; bytes past the end of the whole are zero. */
static const char *exchange(const struct exchange *x, const char *from, size_t left, size_t stride,
                            size_t bytes, void *stream)
{
    struct device *device = x->exec->device;
    device->ops->copy(device, x->work, (size_t)x->comm->ranks * bytes, NULL, 0, stream);
    return nccl_exchange(device->comm->nccl, x->op->attr.among, from, left, stride, bytes, x->work, stream);
}

static void add_up(const struct exchange *x, size_t bytes, void *out, bool add, void *stream)
{
    struct device *device = x->exec->device;
    enum dtype type = x->to->type;
    int64_t count = (int64_t)(bytes / dtype_size(type));
    device->ops->add_parts(device, &(struct device_parts){x->work, out, x->comm->ranks, count, type, add},
                           stream);
}

/* Bytes of each rank's part that fit the scratch at once. */
static size_t chunk_of(const struct exchange *x)
{
    size_t size = dtype_size(x->to->type), all = (size_t)tensor_bytes(x->from);
    return comm_work(x->comm->ranks, all) / (size_t)x->comm->ranks / size * size;
}

static enum plim_status give(struct device *device, const struct device_exchange *e, struct plim_error *err)
{
    struct plim_error why = {0};
    if (device->ops->exchange(device, e, &why) == PLIM_OK) return PLIM_OK;
    return comm_missing(device->comm, "NCCL", why.text, err);
}

static const char *begin_gather(void *arg, void *stream)
{
    const struct exchange *x = arg;
    return gather(x, x->a, (size_t)tensor_bytes(x->from), x->b, (size_t)tensor_bytes(x->to), stream);
}

static const char *begin_reduce(void *arg, void *stream)
{
    const struct exchange *x = arg;
    size_t stride = (size_t)tensor_bytes(x->to), all = (size_t)tensor_bytes(x->from), step = chunk_of(x);
    const char *why = NULL;
    for (size_t at = 0; at < stride && !why; at += step) {
        size_t bytes = min_size(step, stride - at);
        why = exchange(x, x->a + at, all > at ? all - at : 0, stride, bytes, stream);
        if (!why) add_up(x, bytes, x->b + at, x->add, stream);
    }
    return why;
}

static const char *begin_sum(void *arg, void *stream)
{
    const struct exchange *x = arg;
    size_t all = (size_t)tensor_bytes(x->to), step = chunk_of(x), ranks = (size_t)x->comm->ranks;
    const char *why = NULL;
    for (size_t at = 0; at < all && !why; at += step) {
        size_t bytes = min_size(step, all - at);
        why = gather(x, x->b + at, bytes, x->work, ranks * bytes, stream);
        if (!why) add_up(x, bytes, x->b + at, false, stream);
    }
    return why;
}

static const char *begin_piece(void *arg, void *stream)
{
    const struct exchange *x = arg;
    struct device *device = x->exec->device;
    size_t piece = (size_t)tensor_bytes(x->to), all = (size_t)tensor_bytes(x->from);
    size_t first = (size_t)x->comm->rank * piece, here = first < all ? min_size(piece, all - first) : 0;
    device->ops->copy(device, x->b, piece, x->a + first, here, stream);
    return NULL;
}

enum plim_status exec_collect_on_device(const struct exchange *x, struct plim_error *err)
{
    static const char *(*const begin[OP_KIND_COUNT])(void *, void *) = {[OP_GATHER] = begin_gather,
                                                                        [OP_REDUCE] = begin_reduce,
                                                                        [OP_SUM] = begin_sum,
                                                                        [OP_PIECE] = begin_piece};
    struct exchange copy = *x;
    struct device *device = x->exec->device;
    struct device_exchange e = {.from = x->a,
                                .to = x->b,
                                .work = x->work,
                                .from_bytes = (size_t)tensor_bytes(x->from),
                                .to_bytes = (size_t)tensor_bytes(x->to),
                                .work_bytes = (size_t)x->work_bytes,
                                .begin = begin[x->op->kind],
                                .arg = &copy};
    return give(device, &e, err);
}

/* --- joining ---------------------------------------------------------------------------------------------------- */

enum { WARM_BYTES = 64 << 10 }; /* of each rank */

/* Runs each kind of exchange once in every group, because the library allocates device memory on first use. */
static const char *warm_up(void *arg, void *stream)
{
    struct device *device = arg;
    struct comm *const groups[] = {device->comm, device->comm->node, device->comm->across};
    char *base = device->ops->base(device);
    const char *why = NULL;
    for (int i = 0; i < 3 && !why; i++) {
        if (!groups[i]) continue;
        size_t all = (size_t)groups[i]->ranks * WARM_BYTES;
        char *to = base + (size_t)device->comm->ranks * WARM_BYTES;
        why = nccl_exchange(device->comm->nccl, (enum among)i, base, all, WARM_BYTES, WARM_BYTES, to, stream);
        if (!why) why = nccl_gather(device->comm->nccl, (enum among)i, base, WARM_BYTES, to, all, stream);
    }
    return why;
}

static enum plim_status work_once(struct device *device, struct plim_error *err)
{
    size_t bytes = 2 * (size_t)device->comm->ranks * WARM_BYTES;
    enum plim_status status = device->ops->commit(device, bytes, err);
    char *base = device->ops->base(device);
    struct device_exchange e = {.to = base, .to_bytes = bytes, .begin = warm_up, .arg = device};
    if (status == PLIM_OK) status = give(device, &e, err);
    struct exec exec = {.device = device};
    if (status == PLIM_OK) status = exec_await_device(&exec, err);
    if (status == PLIM_OK) status = device->ops->sync(device, err);
    return status == PLIM_OK ? device->ops->commit(device, 0, err) : status;
}

static size_t used(struct device *device) { return device->ops->used ? device->ops->used(device) : 0; }

enum plim_status exec_join_devices(struct device *device, struct plim_error *err)
{
    size_t before = used(device);
    enum plim_status status = nccl_open(device->comm, err);
    if (status == PLIM_OK) status = comm_agree(device->comm, work_once(device, err), err);
    if (status != PLIM_OK) return status;
    size_t after = used(device);
    if (after > before) device->facts.overhead_bytes += after - before;
    device->facts.async_exchanges = true;
    return PLIM_OK;
}

/* A card that waits for another one's bytes waits for ever: the host looks at the clock for it. */
enum plim_status exec_await_device(const struct exec *exec, struct plim_error *err)
{
    struct device *device = exec->device;
    struct comm *comm = device->comm;
    double until = clock_seconds() + comm->patience;
    enum plim_status status = nccl_check(comm->nccl, err);
    for (long tries = 0; status == PLIM_OK && !device->ops->is_idle(device); tries++) {
        if (tries > 100) nanosleep(&(struct timespec){0, 50000}, NULL);
        status =
            clock_seconds() > until ? comm_missing(comm, "NCCL", NULL, err) : nccl_check(comm->nccl, err);
    }
    if (status != PLIM_OK) nccl_abort(comm->nccl);
    return status;
}
