/* cuda_part.h - an open GPU: what cuda_device.c and cuda_open.c share. Not for others. */
#ifndef PLIM_DEVICE_CUDA_CUDA_PART_H
#define PLIM_DEVICE_CUDA_CUDA_PART_H

#include "device/cuda/cuda_arena.h"
#include "device/cuda/cuda_attention.h"
#include "device/cuda/cuda_fuse.h"
#include "device/cuda/cuda_matmul.h"
#include "device/cuda/cuda_staging.h"
#include "device/cuda/cuda_transfer.h"
#include "device/device.h"
#include <pthread.h>

struct cuda {
    struct device device; /* first: a struct device * is a struct cuda * */
    struct ledger ledgers[TIER_COUNT];
    struct cuda_api api;
    struct cuda_arena arena;
    struct cuda_transfer *transfer;
    struct cuda_staging staging;
    struct cuda_read { /* in two parts */
        void *done;    /* cudaEvent_t */
        size_t mark;   /* of the staging, when it began */
    } reads[DEVICE_READS];
    struct cuda_queue queue;
    bool chain;           /* what was queued last is a kernel of a chain (begin_chained) */
    pthread_mutex_t lock; /* of what read, write and sync change */
    int index;
    char bus[32];
    int failed; /* the first cudaError_t a launch gave */
    const char *failed_at;
};

extern const struct device_ops cuda_ops; /* close takes a device that is open in part, too */
extern const struct kernel *const cuda_kernels[OP_KIND_COUNT];

#endif
