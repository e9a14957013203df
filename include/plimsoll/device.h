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

/* "auto", "cpu", "cuda", "cuda:1", or the name of a preset ("rtx-4090", "g5.12xlarge"): a preset has facts, plans and
 * batch sizes, and no memory of its own. */
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
PLIM_API enum plim_status plim_device_facts(struct plim_device *device, struct plim_device_facts *out,
                                            struct plim_error *err);

/* Devices of this machine and all presets, as a JSON array; free it with plim_free. */
PLIM_API char *plim_device_list(struct plim_context *context);

/* --- the device manager --- */

/* Memory of this process on the device. Where an allocator is attached, its blocks are counted as well. */
struct plim_memory {
    size_t size;
    uint64_t allocated;     /* in use by tensors and blocks */
    uint64_t reserved;      /* taken from the system or driver: allocated, cached, and overhead */
    uint64_t free;          /* what can still be taken */
    uint64_t total;
    uint64_t peak;          /* of reserved, since the last reset */
    double utilization;     /* (total - free) / total, 0 to 1 */
    double fragmentation;   /* share of reserved that is cached and cannot be used for a large block, 0 to 1 */
    /* reserved, by class */
    uint64_t tensors, cached, overhead, others; /* others: other processes */
};
PLIM_API enum plim_status plim_memory_summary(struct plim_device *device, struct plim_memory *out,
                                              struct plim_error *err);
/* The summary with every class and with the environment (allocator settings, driver), as JSON. */
PLIM_API char *plim_memory_report(struct plim_device *device);

/* Gives cached memory back to the system. deep: also the C library's free pages and blocks that wait for streams.
 * *freed, if not NULL, becomes the number of bytes that came free. */
PLIM_API enum plim_status plim_clear_cache(struct plim_device *device, int deep, uint64_t *freed,
                                           struct plim_error *err);
PLIM_API void plim_reset_peaks(struct plim_device *device);

/* A file for chrome://tracing and Perfetto, or for PyTorch's memory_viz if the name ends in .pickle. */
PLIM_API enum plim_status plim_memory_snapshot(struct plim_device *device, const char *path,
                                               struct plim_error *err);

/* The batch that fits the free memory: `base` rows, halved or doubled as rows of a model of `model_bytes` allow. Never
 * above MAX_BATCH_SIZE of the context's environment. At least 1. */
PLIM_API enum plim_status plim_batch_size(struct plim_device *device, int base, uint64_t model_bytes,
                                          int *out, struct plim_error *err);

struct plim_inference_config {
    size_t size;
    char device[16];    /* "cpu", "cuda:0" */
    char precision[8];  /* "bf16", "fp16", "fp32" */
    int batch_size;
};
PLIM_API enum plim_status plim_inference_config(struct plim_device *device, uint64_t model_bytes,
                                                struct plim_inference_config *out, struct plim_error *err);

/* Counts an allocator's blocks in the summaries of a device. NULL: none. */
PLIM_API enum plim_status plim_device_attach(struct plim_device *device, struct plim_allocator *allocator,
                                             struct plim_error *err);

#ifdef __cplusplus
}
#endif
#endif
