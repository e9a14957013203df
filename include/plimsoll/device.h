/* plimsoll/device.h - devices, their facts, and the memory that programs have on them.
 *
 *     struct plim_device *device;
 *     plim_device_open(context, "auto", &device, &err);                 // a GPU that works, else the CPU
 *     struct plim_memory memory = {.size = sizeof memory};
 *     plim_memory_summary(device, &memory, &err);
 *     if (memory.fragmentation > 0.3) plim_clear_cache(device, 1, NULL, &err);
 *     int batch = 0;
 *     plim_batch_size(device, 32, 1000 << 20, &batch, &err);
 *     plim_device_close(device);
 *
 * A device handle may be used from several threads.
 */
#ifndef PLIMSOLL_DEVICE_H
#define PLIMSOLL_DEVICE_H

#include <plimsoll/context.h>

#ifdef __cplusplus
extern "C" {
#endif

struct plim_device;
struct plim_allocator;

/* "auto" or NULL, "cpu", "cuda", "cuda:1", or the name of a preset ("rtx-4090", "g5.12xlarge"): a preset has facts, plans and
 * batch sizes, and no memory of its own. Opening a CPU starts no threads; they start with the first plan or facts. */
PLIM_API enum plim_status plim_device_open(struct plim_context *context, const char *name,
                                           struct plim_device **out, struct plim_error *err);
PLIM_API void plim_device_close(struct plim_device *device);

struct plim_device_facts {
    size_t size;
    char name[64];              /* as the driver or the preset has it */
    char backend[16];           /* "cpu", "cuda"; empty: a preset */
    uint64_t memory_bytes;      /* what the device has, or its container's limit */
    uint64_t free_bytes;        /* free when it was opened; 0: unknown */
    uint64_t overhead_bytes;    /* taken by driver and libraries */
    uint64_t host_bytes;        /* free host memory next to a device with its own memory; 0: the memory is the host's */
    int threads;
    int capability;             /* compute capability of an NVIDIA GPU, 90 for 9.0; else 0 */
    double flops_f32, flops_bf16; /* of matrix products, per second */
    double bandwidth;           /* bytes per second */
};
/* Rates of a CPU are measured once (60 ms) and kept in the context's cache_dir; without one they are a modest machine's. */
PLIM_API enum plim_status plim_device_facts(struct plim_device *device, struct plim_device_facts *out,
                                            struct plim_error *err);

/* Devices of this machine, presets, and machines for rent, as a JSON array of objects with "kind" (device, preset, machine) and
 * "name", for plim_free. */
PLIM_API char *plim_device_list(struct plim_context *context);

/* --- the device manager --- */

/* Memory of this process on the device: of a CPU the process's resident memory and the machine or its container, of a GPU what
 * the driver says. reserved = tensors + cached + overhead. */
struct plim_memory {
    size_t size;
    uint64_t allocated;     /* in use: reserved less cached */
    uint64_t reserved;      /* taken from the system or driver */
    uint64_t free;          /* what can still be taken */
    uint64_t total;
    uint64_t peak;          /* of reserved, since the last reset; of a GPU as far as summaries and monitors saw it */
    double utilization;     /* (total - free) / total, 0 to 1: by all processes */
    double fragmentation;   /* cached / (tensors + cached), 0 to 1; clear the cache above 0.3 */
    uint64_t tensors;       /* plans on this handle, and blocks in use of an attached allocator */
    uint64_t cached;        /* free blocks of an attached allocator */
    uint64_t overhead;      /* the rest: program, libraries, driver, and memory that other allocators took */
    uint64_t others;        /* other processes; not part of reserved */
};
PLIM_API enum plim_status plim_memory_summary(struct plim_device *device, struct plim_memory *out,
                                              struct plim_error *err);
/* The summary as JSON, for plim_free, with "total", "fragmentation", "classes", "processes" that hold memory, "allocator" (figures
 * of an attached one) and "environment" (device, driver, system, limits, variables). A preset has only the last. */
PLIM_API char *plim_memory_report(struct plim_device *device);

/* Gives an attached allocator's cached memory back to the system. deep: also its spare tables, and free pages of the C
 * library. *freed, if not NULL, becomes the number of bytes that came free. */
PLIM_API enum plim_status plim_clear_cache(struct plim_device *device, int deep, uint64_t *freed,
                                           struct plim_error *err);
/* Peaks count from now on. On a CPU this resets VmHWM of the process, where the system allows it. */
PLIM_API void plim_reset_peaks(struct plim_device *device);

/* A file for chrome://tracing and Perfetto: memory by class over the last 1024 summaries and monitor samples, and the blocks of
 * an attached allocator. A name that ends in .pickle: the blocks for PyTorch's memory_viz instead. */
PLIM_API enum plim_status plim_memory_snapshot(struct plim_device *device, const char *path,
                                               struct plim_error *err);

/* A batch for the free memory: `base` times a power of two. `base` rows are taken to need 4 x model_bytes, next to a model that is
 * yet to be loaded, in nine tenths of the free memory (of a preset: of its memory less overhead):
 *     rows <= base * (0.9 * free - model_bytes) / (4 * model_bytes)
 * At least 1, and never above MAX_BATCH_SIZE of the context's environment, or above `base` where that is not set. On a GPU
 * CUDA_MEMORY_FRACTION limits the free memory. With 1000 MiB and 32 rows: 4 in 2 GiB, 16 in 4 GiB, 32 in 16 GiB. */
PLIM_API enum plim_status plim_batch_size(struct plim_device *device, int base, uint64_t model_bytes,
                                          int *out, struct plim_error *err);

struct plim_inference_config {
    size_t size;
    char device[64];    /* "cpu", "cuda:0", or a preset's name */
    char precision[8];  /* "bf16", "fp16", "fp32" */
    int batch_size;     /* plim_batch_size of 32 rows */
};
/* Precision: bf16 on a GPU that has it, else fp16; fp32 on a CPU; of a preset, what it recommends. ENABLE_MIXED_PRECISION of the
 * context's environment overrides it: false: fp32; true: bf16 also on a CPU where that is faster. */
PLIM_API enum plim_status plim_inference_config(struct plim_device *device, uint64_t model_bytes,
                                                struct plim_inference_config *out, struct plim_error *err);

/* Counts an allocator's blocks in the summaries of the device whose memory it uses ("host" for a CPU). One allocator for one device;
 * closing either ends it. NULL: none. */
PLIM_API enum plim_status plim_device_attach(struct plim_device *device, struct plim_allocator *allocator,
                                             struct plim_error *err);

#ifdef __cplusplus
}
#endif
#endif
