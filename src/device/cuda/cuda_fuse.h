/* cuda_fuse.h - patterns of plan/fuse.h that run as one launch. For few rows: a norm or a gated unit with the linears that
 * read it, for one row with weights in blocks also the gated unit of two such linears, two linears of the same rows, and the split of queries, keys and values with writing keys and values to blocks, and with attention. For adapters in
 * training: a narrow product with the scale after it, and the gradient of both together with the weight's, which reads dy once. For adapters
 * of rows: the second product with the gated unit that it is for; their products and the model's next product are not one launch, but run side by side.
 *
 * The result of a gated unit is not written, because the pattern says that nothing else reads it. Nor is a narrow product whose bytes a later
 * result takes. All other results are. Bits are those of single launches, except that a product with the weight's gradient is only
 * fused where bits need not repeat. */
#pragma once

#include "device/cuda/kernels.h"

/* Returns true if one kernel can run these ops. Depends only on shapes, addresses and the card. */
bool cuda_fuses(const struct cuda_queue *queue, const struct kernel_call *calls, int count);
/* Launches them as one; returns a cudaError_t as an int. */
int cuda_fused(const struct cuda_queue *queue, const struct kernel_call *calls, int count);
