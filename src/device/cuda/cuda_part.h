/* cuda_part.h - an open GPU; shared by cuda_device.c and cuda_open.c only. */
#pragma once

#include "device/cuda/cuda_arena.h"
#include "device/cuda/cuda_attention.h"
#include "device/cuda/cuda_fuse.h"
#include "device/cuda/cuda_matmul.h"
#include "device/cuda/cuda_staging.h"
#include "device/cuda/cuda_times.h"
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
        size_t mark;   /* of the staging, at its beginning */
    } reads[DEVICE_READS];
    struct cuda_queue queue;
    struct cuda_times *times; /* of ops; NULL: nobody asks */
    bool capturing;           /* what is queued becomes a graph */
    bool chain;               /* the last queued item is a kernel of a chain (begin_chained) */
    bool product;             /* the last queued kernel is a product */
    pthread_mutex_t lock;     /* guards the state that read, write and sync change */
    int index;
    char bus[32];
    int failed; /* the first cudaError_t of a launch */
    const char *failed_at;
};

extern const struct device_ops cuda_ops; /* close also accepts a partly opened device */
extern const struct kernel *const cuda_kernels[OP_KIND_COUNT];
