/* overlap.cuh - kernels that begin while the one before them still runs (programmatic dependent launch).
 *
 *     __global__ void kernel(...)
 *     {
 *         next_may_begin();          // first: the kernel behind may take what is free of the card
 *         ...                        // only parameters are read here, nothing is written
 *         await_previous();          // every thread, before it returns: what was queued before is done and visible
 *         ...
 *     }
 *     return launch(queue, kernel, blocks, THREADS, shared, args...);
 *
 * A chain of such launches is as short as its loads: blocks are on the card, and their weights under way, when the
 * activations they wait for are ready. Why it is right: a kernel is done only when all its threads have waited, so
 * await_previous waits for the whole chain; and no kernel of a chain writes parameters (cuda_device.c, chained). Code
 * made for older cards than 9.0 has none of it, and queue->follows is then false. */
#pragma once

#include "device/cuda/vec.cuh"

ON_GPU void next_may_begin(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

ON_GPU void await_previous(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* For kernels that call await_previous, and no others. `cluster` blocks along x are a cluster. */
template <class... P, class... A>
static inline int launch_clusters(const struct cuda_queue *queue, void (*kernel)(P...), dim3 blocks,
                                  int cluster, int threads, size_t shared, A... args)
{
    cudaLaunchAttribute attributes[2] = {};
    int count = 0;
    if (queue->follows) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count].val.clusterDim.x = (unsigned)cluster;
        attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
        count++;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream_of(queue);
    config.attrs = attributes;
    config.numAttrs = (unsigned)count;
    cudaLaunchKernelEx(&config, kernel, P(args)...);
    return launched();
}

template <class... P, class... A>
static inline int launch(const struct cuda_queue *queue, void (*kernel)(P...), dim3 blocks, int threads,
                         size_t shared, A... args)
{
    return launch_clusters(queue, kernel, blocks, 1, threads, shared, args...);
}

template <class... P, class... A>
static inline int launch(const struct cuda_queue *queue, void (*kernel)(P...), int64_t blocks, int threads,
                         size_t shared, A... args)
{
    return launch_clusters(queue, kernel, dim3((unsigned)blocks), 1, threads, shared, args...);
}
