/* runtime.c - the CUDA runtime and driver of a card that is the CPU: include/cuda_runtime_api.h, include/cuda.h.
 *
 * Work is done when it is queued. While a graph is captured it is written down instead, whatever its stream, and done whenever
 * the graph is launched. Device memory is the process's: addresses are reserved and opened as the driver would.
 *
 *     CUDA_CPU_CARD   the card's compute capability and its number of multiprocessors, "89,4" if not set */
#define _GNU_SOURCE
#include "runtime.h"
#include "cuda.h"
#include "cuda_runtime_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CARD_BYTES ((size_t)2 << 30)
#define GRANULE    ((size_t)2 << 20)

static int last_error;
static int handle; /* what handles point at */

static cudaError_t fail(cudaError_t code)
{
    last_error = code;
    return code;
}

void cuda_cpu_fail(int code) { last_error = code; }

cudaError_t cudaGetLastError(void)
{
    cudaError_t code = (cudaError_t)last_error;
    last_error = 0;
    return code;
}

const char *cudaGetErrorString(cudaError_t code)
{
    static const struct {
        cudaError_t code;
        const char *text;
    } texts[] = {{cudaErrorInvalidValue, "invalid argument"},
                 {cudaErrorMemoryAllocation, "out of memory"},
                 {cudaErrorNotSupported, "operation not supported"}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].code == code) return texts[i].text;
    return code ? "unknown error" : "no error";
}

/* --- the card ------------------------------------------------------------------------------------------------ */

static void card(int *capability, int *multiprocessors)
{
    const char *text = getenv("CUDA_CPU_CARD");
    *capability = 89, *multiprocessors = 4;
    if (text) sscanf(text, "%d,%d", capability, multiprocessors);
}

size_t cuda_cpu_shared_most(void)
{
    int capability, multiprocessors;
    card(&capability, &multiprocessors);
    return (size_t)(capability >= 90 ? 227 : capability == 80 ? 163 : 99) << 10;
}

bool cuda_cpu_has_lines(void)
{
    int capability, multiprocessors;
    card(&capability, &multiprocessors);
    return capability == 90;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *index)
{
    *index = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int index) { return index ? fail(cudaErrorInvalidValue) : cudaSuccess; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int index)
{
    int capability;
    if (index) return fail(cudaErrorInvalidValue);
    memset(prop, 0, sizeof *prop);
    card(&capability, &prop->multiProcessorCount);
    snprintf(prop->name, sizeof prop->name, "CUDA on the CPU");
    prop->major = capability / 10, prop->minor = capability % 10;
    prop->totalGlobalMem = CARD_BYTES, prop->sharedMemPerBlockOptin = cuda_cpu_shared_most();
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int index)
{
    snprintf(id, (size_t)size, "0000:00:%02x.0", (unsigned)index);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    *available = *total = CARD_BYTES;
    return cudaSuccess;
}

/* --- memory ---------------------------------------------------------------------------------------------------- */

enum { RANGES = 16 };
static struct range {
    char *at;
    size_t bytes;
} ranges[RANGES]; /* of the device; bytes 0: free */

static bool add_range(void *at, size_t bytes)
{
    for (int i = 0; i < RANGES; i++)
        if (!ranges[i].bytes) {
            ranges[i] = (struct range){at, bytes};
            return true;
        }
    return false;
}

static bool is_in(const struct range *r, const void *at)
{
    return r->bytes && (const char *)at >= r->at && (const char *)at < r->at + r->bytes;
}

/* Called for every write of a kernel: the one after is mostly to the same range. */
static struct range *range_at(const void *at)
{
    static struct range *last = ranges;
    if (is_in(last, at)) return last;
    for (int i = 0; i < RANGES; i++)
        if (is_in(&ranges[i], at)) return last = &ranges[i];
    return NULL;
}

bool cuda_cpu_is_device(const void *at) { return range_at(at) != NULL; }

CUresult cuMemAddressReserve(CUdeviceptr *at, size_t bytes, size_t align, CUdeviceptr wish,
                             unsigned long long flags)
{
    (void)align, (void)wish, (void)flags;
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || !add_range(p, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    *at = (CUdeviceptr)(uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes)
{
    void *p = (void *)(uintptr_t)at;
    range_at(p)->bytes = 0;
    munmap(p, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *made, size_t bytes, const CUmemAllocationProp *prop,
                     unsigned long long flags)
{
    (void)bytes, (void)prop, (void)flags;
    *made = 1;
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle made)
{
    (void)made;
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle made,
                  unsigned long long flags)
{
    (void)at, (void)bytes, (void)offset, (void)made, (void)flags;
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr at, size_t bytes)
{
    void *p = (void *)(uintptr_t)at;
    mmap(p, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    (void)access, (void)count;
    bool good = !mprotect((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE);
    return good ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemGetAllocationGranularity(size_t *granule, const CUmemAllocationProp *prop, int option)
{
    (void)prop, (void)option;
    *granule = GRANULE;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult code, const char **text)
{
    *text = code ? "out of memory" : "no error";
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    (void)version, (void)flags;
#define DRIVER(name)                                                                                         \
    {                                                                                                        \
#name, (void *)(uintptr_t)name                                                                       \
    }
    static const struct {
        const char *name;
        void *function;
    } functions[] = {
        DRIVER(cuMemAddressReserve), DRIVER(cuMemAddressFree), DRIVER(cuMemCreate),
        DRIVER(cuMemRelease),        DRIVER(cuMemMap),         DRIVER(cuMemUnmap),
        DRIVER(cuMemSetAccess),      DRIVER(cuGetErrorString), DRIVER(cuMemGetAllocationGranularity)};
    *function = NULL;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(functions[i].name, name)) *function = functions[i].function;
    *found = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **at, size_t bytes)
{
    *at = aligned_alloc(256, (bytes + 255) / 256 * 256);
    return *at && add_range(*at, bytes) ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void *at)
{
    if (at) range_at(at)->bytes = 0;
    free(at);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **at, size_t bytes)
{
    *at = malloc(bytes);
    return *at ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *at)
{
    free(at);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *at, size_t bytes, unsigned flags)
{
    (void)at, (void)bytes, (void)flags;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *at)
{
    (void)at;
    return cudaSuccess;
}

/* --- queues and graphs ------------------------------------------------------------------------------------------- */

struct item {
    struct item *next;
    void (*run)(const void *arg);
    _Alignas(64) char arg[];
};

struct CUgraph_st {
    struct item *first, **end;
};

static struct CUgraph_st *capturing;

void cuda_cpu_queue(void (*run)(const void *arg), const void *arg, size_t bytes)
{
    if (!capturing) {
        run(arg);
        return;
    }
    struct item *item = aligned_alloc(64, (sizeof *item + bytes + 63) / 64 * 64);
    if (!item) abort();
    item->next = NULL, item->run = run;
    memcpy(item->arg, arg, bytes);
    *capturing->end = item, capturing->end = &item->next;
}

struct copied {
    void *to;
    const void *from;
    size_t bytes;
};

static void copy(const void *arg)
{
    const struct copied *c = arg;
    memmove(c->to, c->from, c->bytes);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    (void)kind, (void)stream;
    cuda_cpu_queue(copy, &(struct copied){to, from, bytes}, sizeof(struct copied));
    return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_stride, const void *from, size_t from_stride, size_t width,
                              size_t rows, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    if (width > to_stride || width > from_stride) return fail(cudaErrorInvalidValue);
    for (size_t i = 0; i < rows; i++)
        cudaMemcpyAsync((char *)to + i * to_stride, (const char *)from + i * from_stride, width, kind,
                        stream);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    (void)kind;
    memmove(to, from, bytes);
    return cudaSuccess;
}

struct filled {
    void *at;
    int byte;
    size_t bytes;
};

static void fill(const void *arg)
{
    const struct filled *f = arg;
    memset(f->at, f->byte, f->bytes);
}

cudaError_t cudaMemsetAsync(void *at, int byte, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    cuda_cpu_queue(fill, &(struct filled){at, byte, bytes}, sizeof(struct filled));
    return cudaSuccess;
}

struct called {
    void (*function)(void *);
    void *arg;
};

static void call(const void *arg)
{
    const struct called *c = arg;
    c->function(c->arg);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void *), void *arg)
{
    (void)stream;
    cuda_cpu_queue(call, &(struct called){function, arg}, sizeof(struct called));
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    (void)stream, (void)mode;
    capturing = malloc(sizeof *capturing);
    if (!capturing) return fail(cudaErrorMemoryAllocation);
    capturing->first = NULL, capturing->end = &capturing->first;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    (void)stream;
    *graph = capturing, capturing = NULL;
    return *graph ? cudaSuccess : fail(cudaErrorInvalidValue);
}

/* The graph that was recorded is the one that runs. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    struct CUgraph_st *taken = malloc(sizeof *taken);
    if (!taken) return fail(cudaErrorMemoryAllocation);
    *taken = *graph, graph->first = NULL;
    *exec = (cudaGraphExec_t)(void *)taken;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    (void)exec, (void)stream;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    (void)stream;
    for (const struct item *i = ((struct CUgraph_st *)(void *)exec)->first; i; i = i->next) i->run(i->arg);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    for (struct item *i = graph->first, *next; i; i = next) {
        next = i->next;
        free(i);
    }
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    return exec ? cudaGraphDestroy((cudaGraph_t)(void *)exec) : cudaSuccess;
}

/* --- streams and events, which are done with when they are asked for ------------------------------------------------ */

#define ALWAYS(name, ...)                                                                                    \
    cudaError_t name(__VA_ARGS__) { return cudaSuccess; }
#pragma GCC diagnostic ignored "-Wunused-parameter"
ALWAYS(cudaStreamDestroy, cudaStream_t stream)
ALWAYS(cudaStreamSynchronize, cudaStream_t stream)
ALWAYS(cudaStreamQuery, cudaStream_t stream)
ALWAYS(cudaStreamWaitEvent, cudaStream_t stream, cudaEvent_t event, unsigned flags)
ALWAYS(cudaEventDestroy, cudaEvent_t event)
ALWAYS(cudaEventRecord, cudaEvent_t event, cudaStream_t stream)
ALWAYS(cudaEventRecordWithFlags, cudaEvent_t event, cudaStream_t stream, unsigned flags)
ALWAYS(cudaEventSynchronize, cudaEvent_t event)
ALWAYS(cudaEventQuery, cudaEvent_t event)

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    *stream = (cudaStream_t)(void *)&handle;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    *event = (cudaEvent_t)(void *)&handle;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    *ms = 1;
    return cudaSuccess;
}
