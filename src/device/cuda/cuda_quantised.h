/* cuda_quantised.h - linears of weights in blocks as their kernels get them.
 *
 *     struct cuda_q_product q = cuda_linear_q_product(calls, 2);      // two linears of the same rows, few of them
 *     cuda_quantised_multiply(queue, &q);
 */
#pragma once

#include "device/cuda/cuda_matmul.h"
#include "device/cuda/quantised.h"

/* `count` calls of linear_q with the same x; scratch is the first one's. */
struct cuda_q_product cuda_linear_q_product(const struct kernel_call *calls, int count);
