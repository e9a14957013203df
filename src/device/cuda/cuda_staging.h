/* cuda_staging.h - pinned host memory that small copies go through.
 *
 *     void *at = cuda_staging_take(&staging, bytes);   // NULL: too large, or none left until everything is done
 *     memcpy(at, host, bytes);
 *     cudaMemcpyAsync(device, at, bytes, ...);         // the host goes on
 *     ...
 *     cuda_staging_reset(&staging);                    // after the stream has been waited for
 *
 * A copy from or to memory that is not pinned makes the driver wait or copy in pieces; through here a write waits for
 * nothing and a read for its own bytes alone. The bytes are the process's own and part of what is measured of it. */
#ifndef PLIM_DEVICE_CUDA_CUDA_STAGING_H
#define PLIM_DEVICE_CUDA_CUDA_STAGING_H

#include "base/status.h"
#include <stddef.h>

struct cuda_staging {
    char *base; /* NULL: it could not be had, and copies go without */
    size_t used;
};

/* Nobody is told when there is none: everything works, only slower. */
void cuda_staging_open(struct cuda_staging *staging);
void cuda_staging_close(struct cuda_staging *staging);

void *cuda_staging_take(struct cuda_staging *staging, size_t bytes);
static inline void cuda_staging_reset(struct cuda_staging *staging) { staging->used = 0; }

#endif
