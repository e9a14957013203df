/* cuda_transfer.c - see cuda_transfer.h. Copies under way stand in a short list with the event of their end. */
#include "device/cuda/cuda_transfer.h"
#include "device/cuda/cuda_api.h"
#include "mem/arena.h"
#include "mem/os.h"

#include <stdlib.h>
#include <string.h>

enum { COPIES = 32 }; /* under way at a time; more than a pipeline of slices has */

struct copy {
    const char *device, *host;
    size_t bytes;
    int event;
};

struct cuda_transfer {
    cudaStream_t compute, in, out;
    struct threads *team; /* brings in pages */
    struct arena host;
    bool pinned; /* host[0, committed) is registered */
    struct copy copies[COPIES];
    int count;
    cudaEvent_t events[COPIES + 1], computed;
    bool taken[COPIES + 1]; /* events some copy under way has */
};

static int wait(struct cuda_transfer *tr, cudaStream_t stream, int index)
{
    cudaError_t code = cudaStreamWaitEvent(stream, tr->events[tr->copies[index].event], 0);
    return (int)code;
}

static void forget(struct cuda_transfer *tr, int index)
{
    tr->taken[tr->copies[index].event] = false;
    tr->copies[index] = tr->copies[--tr->count];
}

static bool overlaps(const char *at, size_t n, const char *other, size_t m)
{
    return at < other + m && other < at + n;
}

/* `stream` waits for copies that touch the device's bytes or, for a copy, the host's (NULL: none). */
static int wait_overlapping(struct cuda_transfer *tr, cudaStream_t stream, const char *device,
                            const char *host, size_t bytes)
{
    int code = 0;
    for (int i = tr->count - 1; i >= 0 && !code; i--) {
        const struct copy *c = &tr->copies[i];
        bool same = overlaps(c->device, c->bytes, device, bytes) ||
                    (host && overlaps(c->host, c->bytes, host, bytes));
        if (!same) continue;
        code = wait(tr, stream, i);
        if (stream == tr->compute) forget(tr, i); /* everything later is ordered behind computing */
    }
    return code;
}

int cuda_transfer_before(struct cuda_transfer *tr, const void *operand, size_t bytes)
{
    return tr->count ? wait_overlapping(tr, tr->compute, operand, NULL, bytes) : 0;
}

int cuda_transfer_join(struct cuda_transfer *tr)
{
    int code = 0;
    while (tr->count) { /* to the end: events may be of a recording that failed, and none of those may stay */
        int waited = wait(tr, tr->compute, tr->count - 1);
        if (!code) code = waited;
        forget(tr, tr->count - 1);
    }
    return code;
}

static int copy(struct cuda_transfer *tr, char *device, char *host, size_t bytes, enum cudaMemcpyKind kind)
{
    bool in = kind == cudaMemcpyHostToDevice;
    cudaStream_t stream = in ? tr->in : tr->out;
    int code = tr->count == COPIES ? cuda_transfer_join(tr) : 0;
    int event = 0;
    while (tr->taken[event]) event++;
    if (!code) code = (int)cudaEventRecord(tr->computed, tr->compute);
    if (!code) code = (int)cudaStreamWaitEvent(stream, tr->computed, 0);
    if (!code) code = wait_overlapping(tr, stream, device, host, bytes);
    if (!code) code = (int)cudaMemcpyAsync(in ? device : host, in ? host : device, bytes, kind, stream);
    if (!code) code = (int)cudaEventRecord(tr->events[event], stream);
    if (code) return code;
    tr->taken[event] = true;
    tr->copies[tr->count++] = (struct copy){device, host, bytes, event};
    return 0;
}

int cuda_transfer_fetch(struct cuda_transfer *tr, size_t host_offset, void *to, size_t bytes)
{
    return copy(tr, to, arena_base(&tr->host) + host_offset, bytes, cudaMemcpyHostToDevice);
}

int cuda_transfer_store(struct cuda_transfer *tr, const void *from, size_t host_offset, size_t bytes)
{
    return copy(tr, (char *)(uintptr_t)from, arena_base(&tr->host) + host_offset, bytes,
                cudaMemcpyDeviceToHost);
}

void *cuda_transfer_base(const struct cuda_transfer *tr) { return arena_base(&tr->host); }

static void unpin(struct cuda_transfer *tr)
{
    if (tr->pinned) cudaHostUnregister(arena_base(&tr->host));
    tr->pinned = false;
}

static enum plim_status pin(struct cuda_transfer *tr, size_t bytes, struct plim_error *err)
{
    if (!bytes) return PLIM_OK;
    enum plim_status status = cuda_check(
        cudaHostRegister(arena_base(&tr->host), bytes, cudaHostRegisterDefault), "pinning host memory", err);
    tr->pinned = status == PLIM_OK;
    return status;
}

enum plim_status cuda_transfer_commit(struct cuda_transfer *tr, size_t bytes, struct plim_error *err)
{
    size_t had = (size_t)arena_committed(&tr->host);
    if (bytes == had && (tr->pinned || !bytes)) return PLIM_OK;
    enum plim_status status = PLIM_OK;
    if (!arena_base(&tr->host)) {
        struct os_machine machine;
        status = os_machine_memory(&machine, err);
        if (status == PLIM_OK) status = arena_reserve(&tr->host, machine.total, NULL, 0, err);
        if (status != PLIM_OK) return status;
    }
    unpin(tr);
    if (bytes > had) status = arena_commit(&tr->host, bytes, tr->team, err);
    if (status == PLIM_OK) status = pin(tr, bytes, err);
    if (status == PLIM_OK) /* pages go last, when nothing can fail any more */
        return bytes < had ? arena_commit(&tr->host, bytes, NULL, err) : PLIM_OK;
    if (bytes > had) arena_commit(&tr->host, had, NULL, NULL);
    pin(tr, had, NULL);
    return status;
}

enum plim_status cuda_transfer_open(struct CUstream_st *compute, struct threads *team,
                                    struct cuda_transfer **out, struct plim_error *err)
{
    struct cuda_transfer *tr = calloc(1, sizeof *tr);
    if (!tr) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for transfers");
    tr->compute = (cudaStream_t)compute;
    tr->team = team;
    cudaError_t code = cudaStreamCreateWithFlags(&tr->in, cudaStreamNonBlocking);
    if (code == cudaSuccess) code = cudaStreamCreateWithFlags(&tr->out, cudaStreamNonBlocking);
    if (code == cudaSuccess) code = cudaEventCreateWithFlags(&tr->computed, cudaEventDisableTiming);
    for (int i = 0; i <= COPIES && code == cudaSuccess; i++)
        code = cudaEventCreateWithFlags(&tr->events[i], cudaEventDisableTiming);
    enum plim_status status = cuda_check(code, "opening transfer streams", err);
    if (status == PLIM_OK)
        *out = tr;
    else
        cuda_transfer_close(tr);
    return status;
}

void cuda_transfer_close(struct cuda_transfer *tr)
{
    if (!tr) return;
    unpin(tr);
    arena_release(&tr->host);
    for (int i = 0; i <= COPIES; i++)
        if (tr->events[i]) cudaEventDestroy(tr->events[i]);
    if (tr->computed) cudaEventDestroy(tr->computed);
    if (tr->in) cudaStreamDestroy(tr->in);
    if (tr->out) cudaStreamDestroy(tr->out);
    free(tr);
}
