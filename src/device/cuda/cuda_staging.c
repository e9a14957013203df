/* cuda_staging.c - see cuda_staging.h. */
#include "device/cuda/cuda_staging.h"
#include "device/cuda/cuda_api.h"

#include <stdlib.h>

/* Rows of tokens of a micro-batch, or the logits of a large vocabulary; a page to begin at. */
#define BYTES ((size_t)1 << 20)
#define PAGE  4096
#define ALIGN 64

void cuda_staging_open(struct cuda_staging *staging)
{
    *staging = (struct cuda_staging){.base = aligned_alloc(PAGE, BYTES)};
    if (!staging->base) return;
    if (cudaHostRegister(staging->base, BYTES, cudaHostRegisterDefault) == cudaSuccess) return;
    cudaGetLastError(); /* nobody else's fault */
    free(staging->base);
    staging->base = NULL;
}

void cuda_staging_close(struct cuda_staging *staging)
{
    if (!staging->base) return;
    cudaHostUnregister(staging->base);
    free(staging->base);
    staging->base = NULL;
}

void *cuda_staging_take(struct cuda_staging *staging, size_t bytes)
{
    size_t rounded = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (!staging->base || bytes > BYTES || rounded > BYTES - staging->used) return NULL;
    void *at = staging->base + staging->used;
    staging->used += rounded;
    return at;
}
