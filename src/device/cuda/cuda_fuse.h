/* cuda_fuse.h - patterns of plan/fuse.h that run as one launch for few rows: a norm or a gated unit with the linears that
 * read it, two linears of the same rows, the split of queries, keys and values with writing keys and values to blocks, and both
 * products of an adapter.
 *
 * The results of a gated unit and of an adapter's first product are not written, because the pattern says that nothing else reads them. All others are. */
#pragma once

#include "device/cuda/kernels.h"

/* Returns true if one kernel can run these ops. Depends only on shapes, addresses and the card. */
bool cuda_fuses(const struct cuda_queue *queue, const struct kernel_call *calls, int count);
/* Launches them as one; returns a cudaError_t as an int. */
int cuda_fused(const struct cuda_queue *queue, const struct kernel_call *calls, int count);
