/* cuda_transfer.c - see cuda_transfer.h. What is under way stands in a short list, oldest first, with the bytes it
 * touches and the event of its end. Addresses of the device and of the host are of one kind here: no byte of one is a
 * byte of the other. */
#include "device/cuda/cuda_transfer.h"
#include "device/cuda/cuda_api.h"
#include "device/cuda/cuda_times.h"
#include "device/device.h"
#include "mem/arena.h"
#include "mem/os.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    TASKS = 1024, /* under way at a time; more than the updates of all layers have, with their copies */
    RANGES = OP_MAX_IN + OP_MAX_OUT,
};

struct range {
    const char *at;
    size_t bytes;
    bool written; /* else only read */
};

struct task { /* a copy, or an op of the host */
    struct range range[RANGES];
    int ranges, event;
    bool on_host;
};

/* An op of the host: its thread reads it when its turn has come, and again each time its program is launched. */
struct cuda_host_op {
    struct cuda_host_op *next;
    atomic_int *running;
    struct kernel_call call;
};

struct cuda_transfer {
    cudaStream_t compute, in, out, host_stream, link;
    struct threads *team;
    struct arena host;
    bool pinned; /* host[0, committed) is registered */
    struct task tasks[TASKS];
    int count;
    cudaEvent_t events[TASKS], computed;
    bool taken[TASKS]; /* events some task under way has */
    struct ledger *ledger;
    int cls;
    struct cuda_host_op *host_ops,
        *recorded;      /* queued by themselves; of the program that is being compiled */
    atomic_int running; /* ops of the host, at this moment */
    bool recording;
    struct cuda_times *times; /* borrowed; NULL: nobody asks */
};

static int wait(struct cuda_transfer *tr, cudaStream_t stream, int index)
{
    if (stream == tr->compute) cuda_times_waited(tr->times);
    return (int)cudaStreamWaitEvent(stream, tr->events[tr->tasks[index].event], 0);
}

static void drop(struct cuda_transfer *tr, int index)
{
    tr->taken[tr->tasks[index].event] = false;
    tr->count--;
    memmove(&tr->tasks[index], &tr->tasks[index + 1], (size_t)(tr->count - index) * sizeof *tr->tasks);
}

/* Two that only read the same bytes need not wait for each other. */
static bool collide(const struct range *a, const struct range *b)
{
    return (a->written || b->written) && a->at < b->at + b->bytes && b->at < a->at + a->bytes;
}

static bool overlap(const struct task *task, const struct range *ranges, int n)
{
    for (int i = 0; i < task->ranges; i++)
        for (int k = 0; k < n; k++)
            if (collide(&task->range[i], &ranges[k])) return true;
    return false;
}

/* `stream` waits for everything that writes what of these bytes is read, and touches what is written. */
static int wait_overlapping(struct cuda_transfer *tr, cudaStream_t stream, const struct range *ranges, int n)
{
    int code = 0;
    for (int i = tr->count - 1; i >= 0 && !code; i--) {
        if (!overlap(&tr->tasks[i], ranges, n)) continue;
        code = wait(tr, stream, i);
        if (stream == tr->compute) drop(tr, i); /* everything later is ordered behind computing */
    }
    return code;
}

int cuda_transfer_before(struct cuda_transfer *tr, const void *operand, size_t bytes, bool writes)
{
    return tr->count ? wait_overlapping(tr, tr->compute, &(struct range){operand, bytes, writes}, 1) : 0;
}

int cuda_transfer_await(struct cuda_transfer *tr, size_t host_offset, size_t bytes)
{
    struct range range = {arena_base(&tr->host) + host_offset, bytes, true};
    int code = 0;
    for (int i = tr->count - 1; i >= 0 && !code; i--) {
        if (!overlap(&tr->tasks[i], &range, 1)) continue;
        code = (int)cudaEventSynchronize(tr->events[tr->tasks[i].event]);
        drop(tr, i);
    }
    return code;
}

bool cuda_transfer_idle(const struct cuda_transfer *tr) { return tr->count == 0; }

int cuda_transfer_join(struct cuda_transfer *tr)
{
    int code = 0;
    while (tr->count) { /* to the end: events may be of a recording that failed, and none of those may stay */
        int waited = wait(tr, tr->compute, tr->count - 1);
        if (!code) code = waited;
        drop(tr, tr->count - 1);
    }
    return code;
}

/* The oldest copy, which is done or nearly so: waiting for it costs little. Ops of the host may be queued for most of a step, and a
 * device that waited for one of them would wait for the host. */
static int least_awaited(const struct cuda_transfer *tr)
{
    int i = 0;
    while (i < tr->count && tr->tasks[i].on_host) i++;
    return i < tr->count ? i : 0;
}

/* A stream may begin something that touches these bytes. */
static int admit(struct cuda_transfer *tr, cudaStream_t stream, const struct range *ranges, int n)
{
    int code = 0;
    if (tr->count == TASKS) {
        int task = least_awaited(tr);
        code = wait(tr, tr->compute, task);
        drop(tr, task);
    }
    if (!code) code = (int)cudaEventRecord(tr->computed, tr->compute);
    if (!code) code = (int)cudaStreamWaitEvent(stream, tr->computed, 0);
    if (!code) code = wait_overlapping(tr, stream, ranges, n);
    return code ? code : cuda_times_start(tr->times, stream, tr->recording);
}

/* Records that the stream's latest work is in progress on these ranges. */
static int under_way(struct cuda_transfer *tr, cudaStream_t stream, const struct range *ranges, int n)
{
    int event = 0;
    while (tr->taken[event]) event++;
    int code = cuda_times_end(tr->times, stream, tr->recording);
    if (!code) code = (int)cudaEventRecord(tr->events[event], stream);
    if (code) return code;
    struct task *task = &tr->tasks[tr->count++];
    tr->taken[event] = true;
    task->ranges = n, task->event = event, task->on_host = stream == tr->host_stream;
    memcpy(task->range, ranges, (size_t)n * sizeof *ranges);
    return 0;
}

static int copy(struct cuda_transfer *tr, char *device, char *host, size_t bytes, enum cudaMemcpyKind kind)
{
    bool in = kind == cudaMemcpyHostToDevice;
    cudaStream_t stream = in ? tr->in : tr->out;
    const struct range ranges[] = {{device, bytes, in}, {host, bytes, !in}};
    int code = admit(tr, stream, ranges, 2);
    if (!code) code = (int)cudaMemcpyAsync(in ? device : host, in ? host : device, bytes, kind, stream);
    return code ? code : under_way(tr, stream, ranges, 2);
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

int cuda_transfer_exchange(struct cuda_transfer *tr, const struct device_exchange *x, const char **why)
{
    struct range ranges[] = {
        {x->from, x->from_bytes, false}, {x->to, x->to_bytes, true}, {x->work, x->work_bytes, true}};
    int code = admit(tr, tr->link, ranges, 3);
    *why = code ? NULL : x->begin(x->arg, tr->link);
    return code || *why ? code : under_way(tr, tr->link, ranges, 3);
}

static void CUDART_CB compute_on_host(void *arg)
{
    struct cuda_host_op *op = arg;
    atomic_int *running = op->running;
    atomic_fetch_add(running, 1);
    device_cpu_kernels()[op->call.op->kind]->run(&op->call);
    atomic_fetch_sub(running, 1);
}

/* A stream that failed is waited for in vain, while what it began on the host still runs. */
static void await_host(struct cuda_transfer *tr)
{
    while (atomic_load(&tr->running)) sched_yield();
}

static int ranges_of(const struct kernel_call *call, struct range *out)
{
    int n = 0;
    for (int k = 0; k < OP_MAX_IN; k++)
        if (call->in[k])
            out[n++] = (struct range){call->in[k], (size_t)tensor_bytes(call_in(call, k)), false};
    for (int k = 0; k < OP_MAX_OUT; k++)
        if (call->out[k])
            out[n++] = (struct range){call->out[k], (size_t)tensor_bytes(call_out(call, k)), true};
    return n;
}

int cuda_transfer_run(struct cuda_transfer *tr, const struct kernel_call *call)
{
    struct range ranges[RANGES];
    int n = ranges_of(call, ranges);
    struct cuda_host_op *op = malloc(sizeof *op);
    if (!op) return (int)cudaErrorMemoryAllocation;
    struct cuda_host_op **list = tr->recording ? &tr->recorded : &tr->host_ops;
    *op = (struct cuda_host_op){*list, &tr->running, *call};
    op->call.team = tr->team;
    *list = op;
    int code = admit(tr, tr->host_stream, ranges, n);
    if (!code) code = (int)cudaLaunchHostFunc(tr->host_stream, compute_on_host, op);
    return code ? code : under_way(tr, tr->host_stream, ranges, n);
}

void cuda_transfer_time(struct cuda_transfer *tr, struct cuda_times *times) { tr->times = times; }

void cuda_transfer_record_begin(struct cuda_transfer *tr) { tr->recording = true; }

struct cuda_host_op *cuda_transfer_record_end(struct cuda_transfer *tr)
{
    struct cuda_host_op *ops = tr->recorded;
    tr->recording = false, tr->recorded = NULL;
    return ops;
}

void cuda_host_ops_free(struct cuda_host_op *ops)
{
    for (struct cuda_host_op *next; ops; ops = next) {
        next = ops->next;
        free(ops);
    }
}

void cuda_transfer_done(struct cuda_transfer *tr)
{
    await_host(tr);
    cuda_host_ops_free(tr->host_ops);
    tr->host_ops = NULL;
}

void *cuda_transfer_base(const struct cuda_transfer *tr) { return arena_base(&tr->host); }

static void unpin(struct cuda_transfer *tr)
{
    if (tr->pinned && cudaHostUnregister(arena_base(&tr->host)) != cudaSuccess)
        cudaGetLastError(); /* nobody else's fault */
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
        if (status == PLIM_OK) status = arena_reserve(&tr->host, machine.total, tr->ledger, tr->cls, err);
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

enum plim_status cuda_transfer_open(struct CUstream_st *compute, struct threads *team, struct ledger *ledger,
                                    int cls, struct cuda_transfer **out, struct plim_error *err)
{
    struct cuda_transfer *tr = calloc(1, sizeof *tr);
    if (!tr) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for transfers");
    tr->compute = (cudaStream_t)compute;
    tr->team = team, tr->ledger = ledger, tr->cls = cls;
    cudaError_t code = cudaStreamCreateWithFlags(&tr->in, cudaStreamNonBlocking);
    if (code == cudaSuccess) code = cudaStreamCreateWithFlags(&tr->out, cudaStreamNonBlocking);
    if (code == cudaSuccess) code = cudaStreamCreateWithFlags(&tr->host_stream, cudaStreamNonBlocking);
    if (code == cudaSuccess) code = cudaStreamCreateWithFlags(&tr->link, cudaStreamNonBlocking);
    if (code == cudaSuccess) code = cudaEventCreateWithFlags(&tr->computed, cudaEventDisableTiming);
    for (int i = 0; i < TASKS && code == cudaSuccess; i++)
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
    await_host(tr);
    unpin(tr);
    arena_release(&tr->host);
    for (int i = 0; i < TASKS; i++)
        if (tr->events[i]) cudaEventDestroy(tr->events[i]);
    if (tr->computed) cudaEventDestroy(tr->computed);
    if (tr->in) cudaStreamDestroy(tr->in);
    if (tr->out) cudaStreamDestroy(tr->out);
    if (tr->host_stream) cudaStreamDestroy(tr->host_stream);
    if (tr->link) cudaStreamDestroy(tr->link);
    cuda_host_ops_free(tr->host_ops);
    free(tr);
}
