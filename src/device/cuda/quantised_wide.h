/* quantised_wide.h - products with a weight in blocks that becomes numbers first: see quantised_wide.cu. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#include "device/cuda/kernels.h"

/* linear_q if cuda_linear_q_is_wide. */
cuda_launch cuda_linear_q_wide;

#ifdef __cplusplus
}
#endif
