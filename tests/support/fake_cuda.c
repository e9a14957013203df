/* fake_cuda.c - a CUDA runtime that fails to order, to see what the program says where there is no GPU to fail.
 *
 * tests/CMakeLists.txt links the program once more with `-Wl,--wrap` for each function here, so that its calls come to
 * these; calls that are not here go to the real runtime. FAKE_CUDA says what is wrong:
 *
 *     none        no driver              no-card    a driver, and no card
 *     old         a driver for CUDA 11.4 volta      a card of capability 7.0
 *     full        no room for a context  no-map     a driver without the functions that map memory
 *     h200        a card with a preset; opening it is told on stderr
 *     (anything else)                    all is well until cuBLASLt is looked for, which is not there
 */
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Two steps, so that a name that the headers give another version is wrapped by that one. */
#define GLUE(a, b)    a##b
#define WRAPPED(name) GLUE(__wrap_, name)
#define REAL(name)    GLUE(__real_, name)
#define FAKE(name, ...)                                                                                      \
    cudaError_t WRAPPED(name)(__VA_ARGS__);                                                                  \
    cudaError_t WRAPPED(name)(__VA_ARGS__)

static bool is(const char *fault)
{
    const char *asked = getenv("FAKE_CUDA");
    return asked && !strcmp(asked, fault);
}

static int anything; /* what handles point at */

FAKE(cudaDriverGetVersion, int *version)
{
    *version = is("none") ? 0 : is("old") ? 11040 : CUDART_VERSION;
    return cudaSuccess;
}

FAKE(cudaGetDeviceCount, int *count)
{
    *count = 0;
    if (is("none") || is("old")) return cudaErrorInsufficientDriver;
    if (is("no-card")) return cudaErrorNoDevice;
    *count = 1;
    return cudaSuccess;
}

FAKE(cudaGetDeviceProperties, struct cudaDeviceProp *prop, int index)
{
    (void)index;
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "%s", is("h200") ? "NVIDIA H200" : "Fake card");
    prop->major = is("volta") ? 7 : 9;
    prop->multiProcessorCount = 1;
    prop->totalGlobalMem = (size_t)(is("h200") ? 139 : 8) << 30;
    return cudaSuccess;
}

FAKE(cudaDeviceGetPCIBusId, char *id, int size, int index)
{
    snprintf(id, (size_t)size, "0000:00:%02x.0", (unsigned)index);
    return cudaSuccess;
}

FAKE(cudaSetDevice, int index)
{
    (void)index;
    if (is("h200")) fprintf(stderr, "OPENED\n");
    return is("full") ? cudaErrorMemoryAllocation : cudaSuccess;
}

FAKE(cudaGetLastError, void) { return cudaSuccess; }

FAKE(cudaStreamCreateWithFlags, cudaStream_t *stream, unsigned flags)
{
    (void)flags;
    *stream = (cudaStream_t)(void *)&anything;
    return cudaSuccess;
}

FAKE(cudaEventCreateWithFlags, cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = (cudaEvent_t)(void *)&anything;
    return cudaSuccess;
}

FAKE(cudaStreamSynchronize, cudaStream_t stream) { return stream ? cudaSuccess : cudaErrorInvalidValue; }
FAKE(cudaStreamDestroy, cudaStream_t stream) { return stream ? cudaSuccess : cudaErrorInvalidValue; }
FAKE(cudaEventDestroy, cudaEvent_t event) { return event ? cudaSuccess : cudaErrorInvalidValue; }

FAKE(cudaGetDriverEntryPointByVersion, const char *name, void **function, unsigned version,
     unsigned long long flags, enum cudaDriverEntryPointQueryResult *found)
{
    (void)version, (void)flags;
    bool missing = is("no-map") && !strncmp(name, "cuMem", 5);
    *function = missing ? NULL : &anything;
    *found = missing ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

void *REAL(dlopen)(const char *name, int flags);
void *WRAPPED(dlopen)(const char *name, int flags);
void *WRAPPED(dlopen)(const char *name, int flags)
{
    return name && strstr(name, "cublasLt") ? NULL : REAL(dlopen)(name, flags);
}
