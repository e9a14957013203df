/* cuda_api.h - libraries found at run time: the driver's memory mapping, cuBLASLt, NVML.
 *
 * The CUDA runtime is linked into the program and finds the driver itself; driver functions that it does not export are
 * looked up by name. cuBLASLt is opened with the device. NVML only reports memory use and may be missing. */
#pragma once

#include "base/status.h"
#include <stdbool.h>
#include <cublasLt.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#define CUDA_DRIVER_FUNCTIONS(X)                                                                             \
    X(cuMemAddressReserve)                                                                                   \
    X(cuMemAddressFree)                                                                                      \
    X(cuMemCreate)                                                                                           \
    X(cuMemRelease)                                                                                          \
    X(cuMemMap)                                                                                              \
    X(cuMemUnmap)                                                                                            \
    X(cuMemSetAccess)                                                                                        \
    X(cuMemGetAllocationGranularity)                                                                         \
    X(cuGetErrorString)

#define CUBLASLT_FUNCTIONS(X)                                                                                \
    X(cublasLtCreate)                                                                                        \
    X(cublasLtDestroy)                                                                                       \
    X(cublasLtGetVersion)                                                                                    \
    X(cublasLtGetStatusString)                                                                               \
    X(cublasLtMatmul)                                                                                        \
    X(cublasLtMatmulDescCreate)                                                                              \
    X(cublasLtMatmulDescDestroy)                                                                             \
    X(cublasLtMatmulDescSetAttribute)                                                                        \
    X(cublasLtMatrixLayoutCreate)                                                                            \
    X(cublasLtMatrixLayoutDestroy)                                                                           \
    X(cublasLtMatmulPreferenceCreate)                                                                        \
    X(cublasLtMatmulPreferenceDestroy)                                                                       \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                  \
    X(cublasLtMatmulAlgoGetHeuristic)

struct cuda_api {
#define MEMBER(name) __typeof__(&name) name;
    CUDA_DRIVER_FUNCTIONS(MEMBER)
    CUBLASLT_FUNCTIONS(MEMBER)
#undef MEMBER
    void *cublaslt, *nvml; /* from dlopen */
};

/* PLIM_UNSUPPORTED names what is missing. The runtime must already have a device. */
enum plim_status cuda_api_open(struct cuda_api *api, struct plim_error *err);
/* The driver's functions alone, for code that computes nothing; nothing to close. */
enum plim_status cuda_api_open_driver(struct cuda_api *api, struct plim_error *err);
void cuda_api_close(struct cuda_api *api);

/* PLIM_OK, or PLIM_NO_MEMORY / PLIM_IO with "what: the runtime's message". */
enum plim_status cuda_check(cudaError_t code, const char *what, struct plim_error *err);
enum plim_status cuda_check_driver(const struct cuda_api *api, CUresult code, const char *what,
                                   struct plim_error *err);

/* Memory of this process on the card with this bus id, according to the driver; 0: unknown. */
size_t cuda_api_used(const struct cuda_api *api, const char *pci_bus_id);

/* The card's memory and its users; false: the driver does not report them. Thread-safe. */
struct device_memory;
bool cuda_api_memory(const struct cuda_api *api, const char *pci_bus_id, struct device_memory *out);
