/* cuda_fuse.h - patterns of plan/fuse.h that are one launch for few rows: a norm or a gated unit with the linears that read
 * it, two linears of the same rows, and the split of queries, keys and values with what puts keys and values into blocks.
 *
 * The result of a gated unit is not written: the pattern says that nobody else reads it. Everything else is. */
#ifndef PLIM_DEVICE_CUDA_CUDA_FUSE_H
#define PLIM_DEVICE_CUDA_CUDA_FUSE_H

#include "device/cuda/kernels.h"

/* Returns true if one kernel runs these ops. Only shapes and addresses decide. */
bool cuda_fuses(const struct kernel_call *calls, int count);
/* Launches them as one; cudaError_t as an int. */
int cuda_fused(const struct cuda_queue *queue, const struct kernel_call *calls, int count);

#endif
