/* cuda_staging.h - pinned host memory for small copies.
 *
 *     void *at = cuda_staging_take(&staging, bytes);   // NULL: too large, or all in use
 *     memcpy(at, host, bytes);
 *     cudaMemcpyAsync(device, at, bytes, ...);         // does not wait
 *     size_t mark = staging.taken;
 *     ...
 *     cuda_staging_free(&staging, mark);               // everything queued up to the mark is done
 *
 * Copying from or to memory that is not pinned makes the driver wait or copy in pieces. Through here a write does not wait,
 * and a read waits only for its own bytes. The memory belongs to the process and counts in its measured overhead. It is a
 * ring, freed in stream order; after it, each two-part read (device.h) has its own area. */
#pragma once

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>

struct cuda_staging {
    char *base;          /* NULL: not available; copies work without it */
    bool pinned;         /* otherwise nothing is taken from the ring */
    size_t taken, freed; /* of the ring, since it was opened */
};

/* Failure is silent: everything works without it, only slower. */
void cuda_staging_open(struct cuda_staging *staging);
void cuda_staging_close(struct cuda_staging *staging);

void *cuda_staging_take(struct cuda_staging *staging, size_t bytes);
/* The area of a two-part read; NULL: none. */
void *cuda_staging_slot(const struct cuda_staging *staging, int slot);

static inline void cuda_staging_free(struct cuda_staging *staging, size_t mark)
{
    if (mark > staging->freed) staging->freed = mark;
}
