/* adapter_pair.h - two adapter_linears that are one adapter's, as one launch. */
#pragma once

#include "device/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns true if one kernel runs calls[0] (x A') and calls[1] (.. B' + y). Depends only on shapes, addresses and the card. */
bool cuda_adapter_pair_suits(const struct cuda_queue *queue, const struct kernel_call *calls);
/* Does not write the result of calls[0]. Returns a cudaError_t as an int. */
int cuda_adapter_pair(const struct cuda_queue *queue, const struct kernel_call *calls);

#ifdef __cplusplus
}
#endif
