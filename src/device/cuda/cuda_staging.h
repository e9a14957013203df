/* cuda_staging.h - pinned host memory that small copies go through.
 *
 *     void *at = cuda_staging_take(&staging, bytes);   // NULL: too large, or none left until something is done
 *     memcpy(at, host, bytes);
 *     cudaMemcpyAsync(device, at, bytes, ...);         // the host goes on
 *     size_t mark = staging.taken;
 *     ...
 *     cuda_staging_free(&staging, mark);               // what the stream was given up to the mark is done
 *
 * A copy from or to memory that is not pinned makes the driver wait or copy in pieces; through here a write waits for
 * nothing and a read for its own bytes alone. The bytes are the process's own and part of what is measured of it. They are
 * taken in a ring, in the order in which the stream is done with them; behind it each read in two parts (device.h) has its own. */
#ifndef PLIM_DEVICE_CUDA_CUDA_STAGING_H
#define PLIM_DEVICE_CUDA_CUDA_STAGING_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>

struct cuda_staging {
    char *base;          /* NULL: it could not be had, and copies go without */
    bool pinned;         /* else nothing is taken from the ring */
    size_t taken, freed; /* of the ring, since it was opened */
};

/* Nobody is told when there is none: everything works, only slower. */
void cuda_staging_open(struct cuda_staging *staging);
void cuda_staging_close(struct cuda_staging *staging);

void *cuda_staging_take(struct cuda_staging *staging, size_t bytes);
/* The bytes of a read in two parts; NULL: there are none. */
void *cuda_staging_slot(const struct cuda_staging *staging, int slot);

static inline void cuda_staging_free(struct cuda_staging *staging, size_t mark)
{
    if (mark > staging->freed) staging->freed = mark;
}

#endif
