/* cuda_api.c - see cuda_api.h. */
#include "device/cuda/cuda_api.h"
#include "device/device.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum plim_status cuda_check(cudaError_t code, const char *what, struct plim_error *err)
{
    if (code == cudaSuccess) return PLIM_OK;
    cudaGetLastError(); /* told here: the next launch must not find it and think it its own */
    enum plim_status status = code == cudaErrorMemoryAllocation ? PLIM_NO_MEMORY : PLIM_IO;
    return plim_fail(err, status, "cuda: %s: %s", what, cudaGetErrorString(code));
}

enum plim_status cuda_check_driver(const struct cuda_api *api, CUresult code, const char *what,
                                   struct plim_error *err)
{
    if (code == CUDA_SUCCESS) return PLIM_OK;
    const char *text = NULL;
    api->cuGetErrorString(code, &text);
    return plim_fail(err, code == CUDA_ERROR_OUT_OF_MEMORY ? PLIM_NO_MEMORY : PLIM_IO, "cuda: %s: %s", what,
                     text ? text : "unknown error");
}

static void *driver_function(const char *name)
{
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    if (cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found) != cudaSuccess)
        return NULL;
    return found == cudaDriverEntryPointSuccess ? function : NULL;
}

static void *open_first(const char *const *names)
{
    void *library = NULL;
    for (int i = 0; names[i] && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

/* The toolkit's own folder is not always on the loader's path. */
static const char *const cublaslt_names[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                             "/usr/local/cuda/lib64/libcublasLt.so.13",
                                             "/usr/local/cuda/lib64/libcublasLt.so.12", NULL};
static const char *const nvml_names[] = {"libnvidia-ml.so.1", NULL};

enum plim_status cuda_api_open_driver(struct cuda_api *api, struct plim_error *err)
{
    memset(api, 0, sizeof *api);
#define FIND(name)                                                                                           \
    if (!(api->name = (__typeof__(&name))driver_function(#name)))                                            \
        return plim_fail(err, PLIM_UNSUPPORTED,                                                              \
                         "the NVIDIA driver is too old: it has no %s; driver 525 or newer does", #name);
    CUDA_DRIVER_FUNCTIONS(FIND)
#undef FIND
    return PLIM_OK;
}

enum plim_status cuda_api_open(struct cuda_api *api, struct plim_error *err)
{
    enum plim_status status = cuda_api_open_driver(api, err);
    if (status != PLIM_OK) return status;
    api->cublaslt = open_first(cublaslt_names);
    if (!api->cublaslt)
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "cuBLASLt is missing (libcublasLt.so.13); install the CUDA libraries or put their folder "
            "on LD_LIBRARY_PATH");
#define FIND(name)                                                                                           \
    if (!(api->name = (__typeof__(&name))dlsym(api->cublaslt, #name)))                                       \
        return plim_fail(err, PLIM_UNSUPPORTED, "cuBLASLt has no %s; install version 12 or newer", #name);
    CUBLASLT_FUNCTIONS(FIND)
#undef FIND
    api->nvml = open_first(nvml_names);
    return PLIM_OK;
}

void cuda_api_close(struct cuda_api *api)
{
    if (api->cublaslt) dlclose(api->cublaslt);
    if (api->nvml) dlclose(api->nvml);
    memset(api, 0, sizeof *api);
}

/* NVML's list of processes; its header is not everywhere the toolkit is, so the little we need stands here. */
struct nvml_process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

struct nvml_memory {
    unsigned long long total, free, used;
};

enum { NVML_PROCESSES = 64 };

static void *nvml_card(const struct cuda_api *api, const char *pci_bus_id)
{
    if (!api->nvml) return NULL;
    int (*init)(void) = (int (*)(void))dlsym(api->nvml, "nvmlInit_v2");
    int (*by_bus)(const char *, void **) =
        (int (*)(const char *, void **))dlsym(api->nvml, "nvmlDeviceGetHandleByPciBusId_v2");
    void *card = NULL;
    return init && by_bus && !init() && !by_bus(pci_bus_id, &card) ? card : NULL;
}

/* Processes that compute on the card; 0 when the driver does not tell. */
static unsigned nvml_list(const struct cuda_api *api, void *card, struct nvml_process found[NVML_PROCESSES])
{
    int (*list)(void *, unsigned *, struct nvml_process *) =
        (int (*)(void *, unsigned *, struct nvml_process *))dlsym(api->nvml,
                                                                  "nvmlDeviceGetComputeRunningProcesses_v3");
    unsigned count = NVML_PROCESSES;
    return list && !list(card, &count, found) ? count : 0;
}

static size_t ours_of(const struct nvml_process *found, unsigned count)
{
    unsigned me = (unsigned)getpid();
    for (unsigned i = 0; i < count; i++)
        if (found[i].pid == me && found[i].used != ~0ull) return (size_t)found[i].used;
    /* Inside a container process ids may be another name space's: alone on the card, the one entry is us. */
    return count == 1 && found[0].used != ~0ull ? (size_t)found[0].used : 0;
}

size_t cuda_api_used(const struct cuda_api *api, const char *pci_bus_id)
{
    struct nvml_process found[NVML_PROCESSES];
    void *card = nvml_card(api, pci_bus_id);
    return card ? ours_of(found, nvml_list(api, card, found)) : 0;
}

bool cuda_api_memory(const struct cuda_api *api, const char *pci_bus_id, struct device_memory *out)
{
    struct nvml_process found[NVML_PROCESSES];
    struct nvml_memory memory;
    void *card = nvml_card(api, pci_bus_id);
    int (*ask)(void *, struct nvml_memory *) =
        card ? (int (*)(void *, struct nvml_memory *))dlsym(api->nvml, "nvmlDeviceGetMemoryInfo") : NULL;
    if (!ask || ask(card, &memory)) return false;
    unsigned count = nvml_list(api, card, found);
    *out = (struct device_memory){.total = (size_t)memory.total, .used = (size_t)memory.used};
    out->ours = ours_of(found, count);
    for (unsigned i = 0; i < count && out->holders < DEVICE_HOLDERS; i++)
        if (found[i].used != ~0ull)
            out->holder[out->holders++] = (struct device_holder){(int)found[i].pid, (size_t)found[i].used};
    return true;
}
