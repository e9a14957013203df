/* cuda_device.c - an NVIDIA GPU as a device: arena, one compute stream, cuBLASLt, our kernels, programs.
 *
 * Everything is queued on one stream in the order of the tape; read, sync and large writes wait, small writes are queued
 * like ops. The first error stays until sync tells it. */
#include "device/cuda/cuda_part.h"

#include <stdlib.h>
#include <string.h>

/* A recorded graph, and the ops of the host that it calls. */
struct cuda_program {
    struct device_program program; /* first */
    cudaGraphExec_t graph;
    struct cuda_host_op *host_ops;
};

static struct cuda *cuda_of(struct device *dev) { return (struct cuda *)dev; }
static cudaStream_t stream_of(const struct cuda *cuda) { return (cudaStream_t)cuda->queue.stream; }

static void note(struct cuda *cuda, int code, const char *where)
{
    if (code && !cuda->failed) cuda->failed = code, cuda->failed_at = where;
}

/* --- the table of kernels -------------------------------------------------------------------------------- */

#define LAUNCH_KERNEL(kind, name) [OP_##kind] = cuda_##name,
#define LAUNCH_CPU_ONLY(kind, name)
#define LAUNCH_COPY(kind, name)                                                                              \
    [OP_##kind] = cuda_copy, /* within the device; between tiers: fetch and store */
#define LAUNCH_NONE(kind, name)
#define LAUNCH(kind, name, kernels) LAUNCH_##kernels(kind, name)
static cuda_launch *const launches[OP_KIND_COUNT] = {OP_KINDS(LAUNCH)};

static bool is_product(int kind)
{
    return kind == OP_LINEAR || kind == OP_LINEAR_DX || kind == OP_LINEAR_DW || kind == OP_LINEAR8 ||
           kind == OP_LINEAR8_DW || kind == OP_LINEAR_Q || kind == OP_LINEAR_Q_DX || kind == OP_LINEAR_F8;
}

static bool is_linear(int kind) { return kind == OP_LINEAR || kind == OP_LINEAR_Q || kind == OP_LINEAR_F8; }
static bool is_embed(int kind) { return kind == OP_EMBED || kind == OP_EMBED_Q; }

/* Linears and embeddings of few rows begin a chain (begin_chained), and so do products with adapters. */
static bool begins_chain(const struct kernel_call *call)
{
    if (is_embed(call->op->kind)) return tensor_count(call_in(call, EMBED_IDS)) <= CUDA_FEW_ROWS;
    return cuda_linear_is_few(call->desc, call->op) || cuda_linear_q_is_few(call->desc, call->op) ||
           cuda_linear_f8_is_few(call->desc, call->op);
}

static void launch(const struct kernel_call *call)
{
    struct cuda *cuda = call->backend;
    int kind = call->op->kind, code = launches[kind](&cuda->queue, call);
    if (is_embed(kind))
        cuda->chain = cuda->chain || begins_chain(call);
    else if (is_product(kind))
        cuda->chain = begins_chain(call);
    else if (kind == OP_ADAPTER_LINEAR)
        cuda->chain = true;
    note(cuda, code, code && is_product(kind) ? cuda_matmul_words(cuda->queue.matmul) : op_name(kind));
}

/* Scratch is cuda_workspace's. */
static const struct kernel launched = {launch, NULL};
#define ROW_KERNEL(kind) [OP_##kind] = &launched,
#define ROW_CPU_ONLY(kind)
#define ROW_COPY(kind) [OP_##kind] = &launched,
#define ROW_NONE(kind)
#define ROW(kind, name, kernels) ROW_##kernels(kind)
const struct kernel *const cuda_kernels[OP_KIND_COUNT] = {OP_KINDS(ROW)};

/* Kinds of which several are one launch; NULL: one by one. */
static cuda_launch_many *const many[OP_KIND_COUNT] = {
    [OP_SUMSQ] = cuda_sumsq_many,
    [OP_ADAMW] = cuda_adamw_many,
};

/* Kinds whose kernels await what was queued before them themselves (overlap.cuh), and write no parameters. */
static const bool chained[OP_KIND_COUNT] = {
    [OP_NORM] = true,    [OP_LINEAR] = true,      [OP_ATTN] = true,           [OP_GLU] = true,
    [OP_ACT] = true,     [OP_ADD] = true,         [OP_SPLIT3] = true,         [OP_KV_APPEND] = true,
    [OP_KV_PUT] = true,  [OP_ATTN_PAGED] = true,  [OP_EMBED] = true,          [OP_ROPE_TABLE] = true,
    [OP_SAMPLE] = true,  [OP_LINEAR_Q] = true,    [OP_EMBED_Q] = true,        [OP_LINEAR_F8] = true,
    [OP_KV_PUT8] = true, [OP_ATTN_PAGED8] = true, [OP_ADAPTER_LINEAR] = true,
};

/* --- device_ops ------------------------------------------------------------------------------------------ */

/* Worker threads read and write too, when weights are made: one at a time, each with the card as its own. */
static struct cuda *enter(struct device *dev)
{
    pthread_mutex_lock(&cuda_of(dev)->lock);
    cudaSetDevice(cuda_of(dev)->index);
    cuda_of(dev)->chain = false;
    return cuda_of(dev);
}

/* Everything so far is done. */
static void wait_for_all(struct cuda *cuda)
{
    note(cuda, cuda_transfer_join(cuda->transfer), "waiting for copies");
    note(cuda, (int)cudaStreamSynchronize(stream_of(cuda)), "computing");
    cuda_transfer_done(cuda->transfer);
    cuda_staging_free(&cuda->staging, cuda->staging.taken);
}

static enum plim_status leave(struct cuda *cuda, struct plim_error *err)
{
    int failed = cuda->failed;
    const char *where = cuda->failed_at;
    pthread_mutex_unlock(&cuda->lock);
    if (!failed) return PLIM_OK;
    return plim_fail(err, PLIM_IO, "cuda: %s: %s", where, cudaGetErrorString((cudaError_t)failed));
}

static enum plim_status cuda_sync(struct device *dev, struct plim_error *err)
{
    struct cuda *cuda = enter(dev);
    wait_for_all(cuda);
    return leave(cuda, err);
}

static enum plim_status cuda_commit(struct device *dev, size_t bytes, struct plim_error *err)
{
    enum plim_status status = cuda_sync(dev, err);
    return status == PLIM_OK ? cuda_arena_commit(&cuda_of(dev)->arena, bytes, err) : status;
}

static void *cuda_base(struct device *dev) { return (void *)(uintptr_t)cuda_of(dev)->arena.base; }

/* Pinned memory for a copy; NULL: the copy goes without. */
static void *stage(struct cuda *cuda, size_t bytes)
{
    void *at = cuda_staging_take(&cuda->staging, bytes);
    if (at || cuda->staging.taken == cuda->staging.freed) return at;
    wait_for_all(cuda);
    return cuda_staging_take(&cuda->staging, bytes);
}

static enum plim_status cuda_read(struct device *dev, size_t offset, void *host, size_t bytes,
                                  struct plim_error *err)
{
    struct cuda *cuda = enter(dev);
    const char *from = (const char *)cuda_base(dev) + offset;
    void *staged = stage(cuda, bytes);
    note(cuda, cuda_transfer_before(cuda->transfer, from, bytes, false), "waiting for copies");
    note(cuda, cudaMemcpyAsync(staged ? staged : host, from, bytes, cudaMemcpyDeviceToHost, stream_of(cuda)),
         "copying to the host");
    wait_for_all(cuda);
    if (staged) memcpy(host, staged, bytes);
    return leave(cuda, err);
}

static enum plim_status cuda_write(struct device *dev, size_t offset, const void *host, size_t bytes,
                                   struct plim_error *err)
{
    struct cuda *cuda = enter(dev);
    char *to = (char *)cuda_base(dev) + offset;
    void *staged = stage(cuda, bytes);
    if (staged) memcpy(staged, host, bytes);
    note(cuda, cuda_transfer_before(cuda->transfer, to, bytes, true), "waiting for copies");
    note(cuda, cudaMemcpyAsync(to, staged ? staged : host, bytes, cudaMemcpyHostToDevice, stream_of(cuda)),
         "copying to the device");
    if (!staged) wait_for_all(cuda);
    return leave(cuda, err);
}

/* Rows lie close together in pinned memory, which has room for no more than is copied. */
static enum plim_status cuda_write_rows(struct device *dev, size_t offset, const void *host, size_t stride,
                                        size_t bytes, size_t rows, struct plim_error *err)
{
    struct cuda *cuda = enter(dev);
    char *to = (char *)cuda_base(dev) + offset, *staged = stage(cuda, bytes * rows);
    for (size_t i = 0; i < rows && staged; i++)
        memcpy(staged + i * bytes, (const char *)host + i * stride, bytes);
    size_t whole = rows ? (rows - 1) * stride + bytes : 0;
    note(cuda, cuda_transfer_before(cuda->transfer, to, whole, true), "waiting for copies");
    note(cuda,
         cudaMemcpy2DAsync(to, stride, staged ? staged : host, staged ? bytes : stride, bytes, rows,
                           cudaMemcpyHostToDevice, stream_of(cuda)),
         "copying to the device");
    if (!staged) wait_for_all(cuda);
    return leave(cuda, err);
}

static void cuda_read_begin(struct device *dev, int slot, size_t offset, size_t bytes)
{
    struct cuda *cuda = enter(dev);
    struct cuda_read *read = &cuda->reads[slot];
    const char *from = (const char *)cuda_base(dev) + offset;
    void *at = cuda_staging_slot(&cuda->staging, slot);
    int code = at ? cuda_transfer_before(cuda->transfer, from, bytes, false) : (int)cudaErrorMemoryAllocation;
    if (!code) code = (int)cudaMemcpyAsync(at, from, bytes, cudaMemcpyDeviceToHost, stream_of(cuda));
    if (!code) code = (int)cudaEventRecord((cudaEvent_t)read->done, stream_of(cuda));
    note(cuda, code, "copying to the host");
    read->mark = cuda->staging.taken;
    leave(cuda, NULL);
}

static enum plim_status cuda_read_end(struct device *dev, int slot, void *host, size_t bytes,
                                      struct plim_error *err)
{
    struct cuda *cuda = enter(dev);
    const void *at = cuda_staging_slot(&cuda->staging, slot);
    note(cuda, (int)cudaEventSynchronize((cudaEvent_t)cuda->reads[slot].done), "computing");
    cuda_staging_free(&cuda->staging, cuda->reads[slot].mark);
    if (at) memcpy(host, at, bytes);
    return leave(cuda, err);
}

/* Copies under way may still read or write what this op touches. */
static void await_copies(struct cuda *cuda, const struct kernel_call *call)
{
    struct cuda_transfer *tr = cuda->transfer;
    size_t work = cuda_workspace(cuda_attention_card(cuda->queue.attention), call->desc, call->op);
    int code = 0;
    for (int k = 0; k < OP_MAX_IN && !code; k++)
        if (call->in[k])
            code = cuda_transfer_before(tr, call->in[k], (size_t)tensor_bytes(call_in(call, k)), false);
    for (int k = 0; k < OP_MAX_OUT && !code; k++)
        if (call->out[k])
            code = cuda_transfer_before(tr, call->out[k], (size_t)tensor_bytes(call_out(call, k)), true);
    if (work && !code) code = cuda_transfer_before(tr, call->work, work, true);
    note(cuda, code, "waiting for copies");
}

/* A linear or an embedding of few rows begins a chain, and ops of the table go on with it while nothing else is queued: there, and
 * only there, kernels are so short that what lies between them counts. */
static void begin_chained(struct cuda *cuda, const struct kernel_call *call)
{
    int kind = call->op->kind;
    bool early = !is_linear(kind) || (call_in(call, LINEAR_W)->cls == CLASS_PARAM &&
                                      (kind == OP_LINEAR || cuda_linear_q_is_few(call->desc, call->op) ||
                                       cuda_linear_f8_is_few(call->desc, call->op)));
    cuda->chain = cuda->chain && chained[kind] && early && cuda_transfer_idle(cuda->transfer);
    /* Code for 9.0 has both or neither. An event between two kernels ends a chain. */
    cuda->queue.follows = cuda->chain && cuda->queue.warpgroups && !cuda->times;
}

/* Marks around the kernels of the op that was named (cuda_times.h). */
static void time_start(struct cuda *cuda)
{
    note(cuda, cuda_times_start(cuda->times, stream_of(cuda), cuda->capturing), "timing an op");
}

static void time_end(struct cuda *cuda)
{
    note(cuda, cuda_times_end(cuda->times, stream_of(cuda), cuda->capturing), "timing an op");
}

static void cuda_run(struct device *dev, struct kernel_call *call)
{
    struct cuda *cuda = cuda_of(dev);
    call->backend = dev;
    begin_chained(cuda, call);
    await_copies(cuda, call);
    time_start(cuda);
    launch(call);
    time_end(cuda);
    cuda->queue.follows = false;
}

static bool can_fuse(struct device *dev, const struct kernel_call *calls, int count)
{
    return cuda_fuses(&cuda_of(dev)->queue, calls, count);
}

/* The first op says whether the launch goes on with a chain; a linear of few rows begins one. */
static void run_fused(struct cuda *cuda, const struct kernel_call *calls, int count)
{
    begin_chained(cuda, &calls[0]);
    bool follows = cuda->queue.follows, alone = false; /* a product of many rows is in no chain */
    for (int i = 0; i < count; i++) {
        begin_chained(cuda, &calls[i]);
        await_copies(cuda, &calls[i]);
        if (is_linear(calls[i].op->kind)) cuda->chain = begins_chain(&calls[i]), alone |= !cuda->chain;
        if (calls[i].op->kind == OP_ADAPTER_LINEAR) cuda->chain = true;
    }
    cuda->chain = cuda->chain && !alone;
    cuda->queue.follows = follows;
    time_start(cuda);
    note(cuda, cuda_fused(&cuda->queue, calls, count), "fused ops");
    time_end(cuda);
    cuda->queue.follows = false;
}

static void cuda_run_many(struct device *dev, struct kernel_call *calls, int count)
{
    struct cuda *cuda = cuda_of(dev);
    int kind = calls[0].op->kind;
    for (int i = 0; i < count; i++) calls[i].backend = dev;
    if (!op_row(kind)->together) {
        run_fused(cuda, calls, count);
        return;
    }
    cuda->chain = false;
    for (int i = 0; i < count; i++) await_copies(cuda, &calls[i]);
    time_start(cuda);
    if (many[kind])
        note(cuda, many[kind](&cuda->queue, calls, count), op_name(kind));
    else
        for (int i = 0; i < count; i++) launch(&calls[i]);
    time_end(cuda);
}

static void cuda_fill(struct device *dev, size_t offset, size_t bytes, enum device_fill with)
{
    struct cuda *cuda = cuda_of(dev);
    void *at = (char *)cuda_base(dev) + offset;
    cuda->chain = false;
    note(cuda,
         with == FILL_NOISE ? cuda_fill_noise(&cuda->queue, at, bytes)
                            : (int)cudaMemsetAsync(at, 0, bytes, stream_of(cuda)),
         "fill");
}

static void cuda_tune(struct device *dev, struct kernel_call *call)
{
    struct cuda *cuda = cuda_of(dev);
    call->backend = dev;
    cuda->chain = false;
    int kind = call->op->kind;
    /* Timing may choose differently from run to run, and with the choice the order of a sum changes. */
    bool product = kind == OP_LINEAR || kind == OP_LINEAR_DX || kind == OP_LINEAR8 || kind == OP_LINEAR8_DW ||
                   kind == OP_LINEAR_F8 || (kind == OP_LINEAR_DW && call->out[LINEAR_DW_DW]);
    if (!call->op->attr.repeatable && product) cuda_matmul_tune(cuda->queue.matmul, &cuda->queue, call);
    if (kind == OP_ATTN || kind == OP_ATTN_BWD) cuda_attention_tune(cuda->queue.attention, call);
}

static size_t cuda_used(struct device *dev)
{
    struct cuda *cuda = cuda_of(dev);
    size_t told = cuda_api_used(&cuda->api, cuda->bus);
    return told ? told : dev->facts.overhead_bytes + cuda->arena.mapped;
}

static bool cuda_memory(struct device *dev, struct device_memory *out)
{
    struct cuda *cuda = cuda_of(dev);
    bool told = cuda_api_memory(&cuda->api, cuda->bus, out);
    if (told && !out->ours) out->ours = dev->facts.overhead_bytes + cuda->arena.mapped;
    return told;
}

/* Free memory of the card; 0: unknown. */
static size_t card_free(void)
{
    size_t available = 0, total = 0;
    return cudaMemGetInfo(&available, &total) == cudaSuccess ? available : 0;
}

/* The graph of a range's ops; NULL when it cannot be recorded, and nothing has run. */
static cudaGraph_t record(struct cuda *cuda, const struct device_range *range)
{
    cudaGraph_t graph = NULL;
    cuda->chain = false;
    note(cuda, cuda_transfer_join(cuda->transfer), "waiting for copies");
    note(cuda, (int)cudaStreamBeginCapture(stream_of(cuda), cudaStreamCaptureModeThreadLocal), "recording");
    bool began = cuda->capturing = !cuda->failed;
    enum plim_status status = device_give(&cuda->device, range);
    cuda->capturing = false;
    note(cuda, cuda_transfer_join(cuda->transfer), "waiting for copies");
    cudaError_t code = cudaStreamEndCapture(stream_of(cuda), &graph);
    bool good = code == cudaSuccess && status == PLIM_OK && !cuda->failed && graph;
    if (good) return graph;
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError(); /* one by one, then: what is really wrong shows again */
    if (began) cuda->failed = 0;
    return NULL;
}

static enum plim_status cuda_compile(struct device *dev, const struct device_range *range,
                                     struct device_program **out, struct plim_error *)
{
    struct cuda *cuda = cuda_of(dev);
    struct cuda_program *p = calloc(1, sizeof *p);
    *out = p ? &p->program : NULL;
    if (!p) return PLIM_OK;
    cuda_transfer_record_begin(cuda->transfer);
    cudaGraph_t graph = record(cuda, range);
    p->program.device = dev;
    p->host_ops = cuda_transfer_record_end(cuda->transfer);
    size_t before = card_free();
    cudaError_t code = graph ? cudaGraphInstantiate(&p->graph, graph, 0) : cudaErrorUnknown;
    if (code == cudaSuccess) code = cudaGraphUpload(p->graph, stream_of(cuda)); /* its memory is taken now */
    size_t after = card_free();
    p->program.bytes = before > after ? before - after : 0;
    if (graph) cudaGraphDestroy(graph);
    if (code == cudaSuccess) return PLIM_OK;
    cudaGetLastError();
    if (p->graph) cudaGraphExecDestroy(p->graph);
    cuda_host_ops_free(p->host_ops);
    free(p);
    *out = NULL;
    return PLIM_OK;
}

static void cuda_launch_program(struct device_program *program)
{
    struct cuda *cuda = cuda_of(program->device);
    cuda->chain = false;
    note(cuda, cuda_transfer_join(cuda->transfer), "waiting for copies");
    note(cuda, cudaGraphLaunch(((struct cuda_program *)program)->graph, stream_of(cuda)),
         "running a program");
}

static void cuda_program_free(struct device_program *program)
{
    struct cuda_program *p = (struct cuda_program *)program;
    struct cuda *cuda = enter(program->device);
    wait_for_all(cuda);
    leave(cuda, NULL);
    cudaGraphExecDestroy(p->graph);
    cuda_host_ops_free(p->host_ops);
    free(p);
}

static enum plim_status cuda_host_commit(struct device *dev, size_t bytes, struct plim_error *err)
{
    enum plim_status status = cuda_sync(dev, err);
    return status == PLIM_OK ? cuda_transfer_commit(cuda_of(dev)->transfer, bytes, err) : status;
}

static void *cuda_host_base(struct device *dev) { return cuda_transfer_base(cuda_of(dev)->transfer); }

static void cuda_fetch(struct device *dev, size_t host_offset, size_t offset, size_t bytes)
{
    void *to = (char *)cuda_base(dev) + offset;
    note(cuda_of(dev), cuda_transfer_fetch(cuda_of(dev)->transfer, host_offset, to, bytes), "fetch");
}

static void cuda_store(struct device *dev, size_t offset, size_t host_offset, size_t bytes)
{
    const void *from = (const char *)cuda_base(dev) + offset;
    note(cuda_of(dev), cuda_transfer_store(cuda_of(dev)->transfer, from, host_offset, bytes), "store");
}

static void cuda_run_host(struct device *dev, struct kernel_call *call)
{
    note(cuda_of(dev), cuda_transfer_run(cuda_of(dev)->transfer, call), op_name(call->op->kind));
}

static enum plim_status cuda_host_wait(struct device *dev, size_t host_offset, size_t bytes,
                                       struct plim_error *err)
{
    struct cuda *cuda = enter(dev);
    note(cuda, cuda_transfer_await(cuda->transfer, host_offset, bytes), "waiting for a copy");
    return leave(cuda, err);
}

static enum plim_status cuda_exchange(struct device *dev, const struct device_exchange *exchange,
                                      struct plim_error *err)
{
    const char *why = NULL;
    cuda_of(dev)->chain = false;
    note(cuda_of(dev), cuda_transfer_exchange(cuda_of(dev)->transfer, exchange, &why), "exchange");
    return why ? plim_fail(err, PLIM_IO, "%s", why) : PLIM_OK;
}

static void cuda_add_up(struct device *dev, const struct device_parts *p, void *stream)
{
    struct cuda_queue queue = cuda_of(dev)->queue;
    queue.stream = stream, queue.follows = false;
    note(cuda_of(dev), cuda_add_parts(&queue, p->parts, p->ranks, p->count, p->type, p->out, p->add), "sum");
}

static void cuda_copy_piece(struct device *dev, void *to, size_t bytes, const void *from, size_t here,
                            void *stream)
{
    struct cuda *cuda = cuda_of(dev);
    if (here) note(cuda, (int)cudaMemcpyAsync(to, from, here, cudaMemcpyDeviceToDevice, stream), "piece");
    if (here < bytes) note(cuda, (int)cudaMemsetAsync((char *)to + here, 0, bytes - here, stream), "piece");
}

static bool cuda_is_idle(struct device *dev)
{
    struct cuda *cuda = enter(dev);
    note(cuda, cuda_transfer_join(cuda->transfer), "waiting for copies");
    bool busy = cudaStreamQuery(stream_of(cuda)) == cudaErrorNotReady;
    if (busy) cudaGetLastError();
    leave(cuda, NULL);
    return !busy;
}

static void stop_timing(struct cuda *cuda)
{
    cuda_transfer_time(cuda->transfer, NULL);
    cuda_times_close(cuda->times);
    cuda->times = NULL;
}

static enum plim_status cuda_time_begin(struct device *dev, int ops, struct plim_error *err)
{
    struct cuda *cuda = cuda_of(dev);
    enum plim_status status = cuda_sync(dev, err);
    if (status != PLIM_OK) return status;
    cudaError_t code = (cudaError_t)cuda_times_open(ops, stream_of(cuda), &cuda->times);
    cuda_transfer_time(cuda->transfer, cuda->times);
    return cuda_check(code, "events that time ops", err);
}

static void cuda_time_op(struct device *dev, int op) { cuda_times_name(cuda_of(dev)->times, op); }

static enum plim_status cuda_time_end(struct device *dev, struct clock_span *spans, struct plim_error *err)
{
    enum plim_status status = cuda_sync(dev, err);
    if (status == PLIM_OK) cuda_times_read(cuda_of(dev)->times, spans);
    stop_timing(cuda_of(dev));
    return status;
}

static size_t cuda_scratch(const struct device *dev, const struct tensor *const *desc, const struct op *op)
{
    return cuda_workspace(cuda_attention_card(((const struct cuda *)dev)->queue.attention), desc, op);
}

static void cuda_close(struct device *dev)
{
    if (!dev) return;
    struct cuda *cuda = cuda_of(dev);
    if (cuda->queue.stream) {
        if (cuda->transfer) wait_for_all(cuda); /* opening may have failed before it */
        cuda_times_close(cuda->times);
        cuda_staging_close(&cuda->staging);
        cuda_transfer_close(cuda->transfer);
        cuda_attention_close(cuda->queue.attention);
        cuda_matmul_close(cuda->queue.matmul);
        for (int i = 0; i < DEVICE_READS; i++)
            if (cuda->reads[i].done) cudaEventDestroy((cudaEvent_t)cuda->reads[i].done);
        if (cuda->queue.forked) cudaEventDestroy(cuda->queue.forked);
        if (cuda->queue.joined) cudaEventDestroy(cuda->queue.joined);
        if (cuda->queue.side) cudaStreamDestroy(cuda->queue.side);
        cudaStreamDestroy(stream_of(cuda));
    }
    if (cuda->arena.api) cuda_arena_release(&cuda->arena);
    cuda_api_close(&cuda->api);
    device_ledgers_destroy(dev);
    threads_free(dev->team);
    pthread_mutex_destroy(&cuda->lock);
    free(cuda);
}

const struct device_ops cuda_ops = {
    .name = "cuda",
    .commit = cuda_commit,
    .base = cuda_base,
    .fill = cuda_fill,
    .read = cuda_read,
    .write = cuda_write,
    .write_rows = cuda_write_rows,
    .read_begin = cuda_read_begin,
    .read_end = cuda_read_end,
    .run = cuda_run,
    .run_many = cuda_run_many,
    .fuses = can_fuse,
    .workspace = cuda_scratch,
    .tune = cuda_tune,
    .sync = cuda_sync,
    .used = cuda_used,
    .memory = cuda_memory,
    .compile = cuda_compile,
    .launch = cuda_launch_program,
    .program_free = cuda_program_free,
    .host_commit = cuda_host_commit,
    .host_base = cuda_host_base,
    .fetch = cuda_fetch,
    .store = cuda_store,
    .run_host = cuda_run_host,
    .host_wait = cuda_host_wait,
    .exchange = cuda_exchange,
    .add_parts = cuda_add_up,
    .copy = cuda_copy_piece,
    .is_idle = cuda_is_idle,
    .time_begin = cuda_time_begin,
    .time_op = cuda_time_op,
    .time_end = cuda_time_end,
    .close = cuda_close,
};
