/* backing.h - a GPU's memory as the backing of a caching allocator (mem/cache.h).
 *
 *     struct cache_backing *gpu;
 *     cuda_backing_open(0, &gpu, &err);                  // PLIM_UNSUPPORTED: no CUDA in this build, no card, an old driver
 *     cache_new(&cache, &(struct cache_options){.backing = gpu}, &err);
 *     ...
 *     cache_destroy(cache);
 *     cuda_backing_close(gpu);
 *
 * Segments come from cudaMalloc; expandable segments from the driver's virtual memory: addresses are reserved once, pages are
 * created and mapped. Streams are cudaStream_t as numbers. The backing uses the device's primary context, which it shares with
 * CUDA's runtime and with PyTorch, and leaves the calling thread's current device as it was.
 */
#pragma once

#include "mem/cache_backing.h"

enum plim_status cuda_backing_open(int index, struct cache_backing **out, struct plim_error *err);

/* After the caches on it were destroyed. NULL is allowed. */
void cuda_backing_close(struct cache_backing *backing);
