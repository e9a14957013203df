/* cuda_staging.c - see cuda_staging.h. */
#include "device/cuda/cuda_staging.h"
#include "device/cuda/cuda_api.h"
#include "device/device.h"

#include <stdlib.h>

/* Rows of tokens of a micro-batch, the logits of a large vocabulary, or two steps of 2,048 requests with their tables of blocks: a step
 * that has no room here waits for the one before it. A page to begin at. */
#define BYTES ((size_t)8 << 20)
#define ALL   (BYTES + (size_t)DEVICE_READS * DEVICE_READ_BYTES)
#define PAGE  4096
#define ALIGN 64

void cuda_staging_open(struct cuda_staging *staging)
{
    *staging = (struct cuda_staging){.base = aligned_alloc(PAGE, ALL)};
    if (!staging->base) return;
    staging->pinned = cudaHostRegister(staging->base, ALL, cudaHostRegisterDefault) == cudaSuccess;
    if (!staging->pinned) cudaGetLastError(); /* nobody else's fault */
}

void cuda_staging_close(struct cuda_staging *staging)
{
    if (staging->pinned) cudaHostUnregister(staging->base);
    free(staging->base);
    *staging = (struct cuda_staging){0};
}

/* A run of bytes does not go around the end, so an empty ring begins at its beginning. Positions only grow: marks stay good. */
void *cuda_staging_take(struct cuda_staging *staging, size_t bytes)
{
    size_t rounded = (bytes + ALIGN - 1) / ALIGN * ALIGN, at = staging->taken % BYTES;
    bool empty = staging->taken == staging->freed;
    if (!staging->pinned || bytes > BYTES) return NULL;
    size_t begin = at && (empty || at + rounded > BYTES) ? staging->taken + BYTES - at : staging->taken;
    if (empty) staging->freed = begin;
    if (begin + rounded - staging->freed > BYTES) return NULL;
    staging->taken = begin + rounded;
    return staging->base + begin % BYTES;
}

void *cuda_staging_slot(const struct cuda_staging *staging, int slot)
{
    return staging->base ? staging->base + BYTES + (size_t)slot * DEVICE_READ_BYTES : NULL;
}
