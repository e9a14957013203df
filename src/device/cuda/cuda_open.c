/* cuda_open.c - opens an NVIDIA GPU as a device: which card, its context and libraries, and its facts.
 *
 * What the driver and libraries take is measured once everything is open and is the plan's overhead. What is missing is told in
 * one line. */
#include "device/cuda/cuda_calibrate.h"
#include "device/cuda/cuda_part.h"
#include "device/calibration.h"
#include "mem/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 256
/* Kernels that libraries load when they are first used, and graphs. */
#define LATE_BYTES ((size_t)32 << 20)
/* Where the driver does not tell what a process takes: a context with the libraries' kernels. */
#define OVERHEAD_ASSUMED ((size_t)700 << 20)
/* Shared memory a block may ask for on the cards of 24 GB and less. */
#define SHARED_LEAST ((size_t)99 << 10)

static size_t workspace(const struct device_facts *facts, const struct tape *tape, const struct op *op)
{
    return device_workspace(facts->backend, tape, op);
}

/* The card: present, and one our kernels were made for. */
static enum plim_status choose_card(struct cuda *cuda, int index, struct plim_error *err)
{
    int count = 0, driver = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    cudaDriverGetVersion(&driver);
    if (code == cudaErrorInsufficientDriver && driver == 0)
        return plim_fail(err, PLIM_UNSUPPORTED, "there is no NVIDIA driver; install it");
    if (code == cudaErrorInsufficientDriver)
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "the NVIDIA driver is for CUDA %d.%d, and this build needs one for %d.%d; install it",
            driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (code != cudaSuccess || count == 0)
        return plim_fail(err, PLIM_UNSUPPORTED, "no NVIDIA GPU was found (%s)",
                         code != cudaSuccess ? cudaGetErrorString(code) : "the driver lists none");
    if (index < 0 || index >= count)
        return plim_fail(err, PLIM_BAD_INPUT, "there is no GPU %d; this machine has %d (0 to %d)", index,
                         count, count - 1);
    struct cudaDeviceProp prop;
    enum plim_status status =
        cuda_check(cudaGetDeviceProperties(&prop, index), "reading the card's properties", err);
    if (status != PLIM_OK) return status;
    if (prop.major * 10 + prop.minor < DEVICE_CUDA_LEAST)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "GPU %d (%s) has compute capability %d.%d; the kernels need %d.%d or newer", index,
                         prop.name, prop.major, prop.minor, DEVICE_CUDA_LEAST / 10, DEVICE_CUDA_LEAST % 10);
    cuda->index = index;
    cuda->queue.sms = prop.multiProcessorCount;
    cuda->queue.capability = prop.major * 10 + prop.minor;
    cuda->queue.shared_most = prop.sharedMemPerBlockOptin;
    struct device_facts *facts = &cuda->device.facts;
    snprintf(facts->name, sizeof facts->name, "%s", prop.name);
    facts->memory_bytes = prop.totalGlobalMem;
    facts->capability = cuda->queue.capability;
    return cuda_check(cudaDeviceGetPCIBusId(cuda->bus, sizeof cuda->bus, index), "the card's bus id", err);
}

/* The best there are, or by wish those of every card, with as much shared memory as the smallest of them has. */
static void choose_kernels(struct cuda *cuda)
{
    struct cuda_queue *queue = &cuda->queue;
    const char *wish = context_get(cuda->device.context, "PLIMSOLL_GPU");
    bool portable = wish && !strcmp(wish, "portable");
    queue->warpgroups = !portable && cuda_attn_has_warpgroups();
    if (portable && queue->shared_most > SHARED_LEAST) queue->shared_most = SHARED_LEAST;
}

static enum plim_status open_context(struct cuda *cuda, struct plim_error *err)
{
    cudaStream_t stream;
    cudaError_t code = cudaSetDevice(cuda->index);
    if (code == cudaSuccess) code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (code == cudaErrorMemoryAllocation)
        return plim_fail(
            err, PLIM_NO_MEMORY,
            "GPU %d has too little free memory even for a context; nvidia-smi shows what else uses it",
            cuda->index);
    if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "this build has no code for GPU %d (compute capability %d.%d)", cuda->index,
                         cuda->queue.capability / 10, cuda->queue.capability % 10);
    if (code != cudaSuccess) return cuda_check(code, "opening the card", err);
    cuda->queue.stream = stream;
    choose_kernels(cuda);
    code = cudaStreamCreateWithFlags(&cuda->queue.side, cudaStreamNonBlocking);
    if (code == cudaSuccess) code = cudaEventCreateWithFlags(&cuda->queue.forked, cudaEventDisableTiming);
    if (code == cudaSuccess) code = cudaEventCreateWithFlags(&cuda->queue.joined, cudaEventDisableTiming);
    for (int i = 0; i < DEVICE_READS && code == cudaSuccess; i++) {
        cudaEvent_t done = NULL;
        code = cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
        cuda->reads[i].done = done;
    }
    return cuda_check(code, "opening the card", err);
}

static enum plim_status find_facts(struct cuda *cuda, struct plim_error *err)
{
    struct device_facts *facts = &cuda->device.facts;
    struct os_allowance may;
    if (os_allowance(&may, NULL) == PLIM_OK) facts->host_bytes = may.bytes / 20 * 19;
    facts->threads = 1;
    facts->align = ALIGN;
    facts_set_memory(facts, MEMORY_CARD);
    facts->workspace = workspace;
    facts->backend = &cuda->device;
    char libraries[96];
    snprintf(libraries, sizeof libraries, "cuBLASLt %zu, cuDNN %zu%s", cuda->api.cublasLtGetVersion(),
             cuda_attention_cudnn(cuda->queue.attention), cuda->queue.warpgroups ? ", warpgroups" : "");
    enum plim_status status = cuda_calibrate(&cuda->device, libraries, err);
    size_t used = cuda_api_used(&cuda->api, cuda->bus);
    facts->overhead_bytes = (used ? used : OVERHEAD_ASSUMED) + LATE_BYTES;
    if (status == PLIM_OK && used)
        calibration_note_context(cuda->device.context, "cuda", facts->name, facts->overhead_bytes);
    return status;
}

bool device_cuda_present(void)
{
    int driver = 0, count = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return false;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess) cudaGetLastError(); /* opening the device asks again */
    return code == cudaSuccess ? count > 0 : code != cudaErrorNoDevice;
}

bool device_cuda_peek(const struct context *context, int index, struct device_facts *out)
{
    struct cudaDeviceProp prop;
    if (!device_cuda_present() || cudaGetDeviceProperties(&prop, index) != cudaSuccess) {
        cudaGetLastError(); /* opening says what is wrong */
        return false;
    }
    *out = (struct device_facts){.memory_bytes = prop.totalGlobalMem,
                                 .capability = prop.major * 10 + prop.minor,
                                 .overhead_bytes = calibration_context(context, "cuda", prop.name)};
    snprintf(out->name, sizeof out->name, "%s", prop.name);
    facts_set_memory(out, MEMORY_CARD);
    return true;
}

enum plim_status device_cuda_open(const struct context *context, int index, int threads, struct device **out,
                                  struct plim_error *err)
{
    *out = NULL;
    struct cuda *cuda = calloc(1, sizeof *cuda);
    if (!cuda) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the GPU");
    struct device *dev = &cuda->device;
    pthread_mutex_init(&cuda->lock, NULL);
    dev->ops = &cuda_ops;
    dev->context = context;
    dev->kernels = cuda_kernels;
    device_ledgers_init(dev, cuda->ledgers, false);
    enum plim_status status = choose_card(cuda, index, err);
    if (status == PLIM_OK) status = open_context(cuda, err);
    if (status == PLIM_OK) status = threads_start(threads, &dev->team, err);
    if (status == PLIM_OK)
        status = cuda_transfer_open(cuda->queue.stream, dev->team, dev->ledger[TIER_HOST],
                                    DEVICE_LEDGER_ARENA, &cuda->transfer, err);
    if (status == PLIM_OK) status = cuda_api_open(&cuda->api, err);
    if (status == PLIM_OK) status = cuda_matmul_open(&cuda->api, &cuda->queue.matmul, err);
    if (status == PLIM_OK) status = cuda_attention_open(&cuda->queue, &cuda->queue.attention, err);
    if (status == PLIM_OK)
        status = cuda_arena_reserve(&cuda->arena, &cuda->api, index, dev->facts.memory_bytes,
                                    dev->ledger[TIER_DEVICE], DEVICE_LEDGER_ARENA, err);
    if (status == PLIM_OK) cuda_staging_open(&cuda->staging);
    if (status == PLIM_OK) status = find_facts(cuda, err);
    if (status == PLIM_OK)
        *out = dev;
    else
        cuda_ops.close(dev);
    return status;
}
