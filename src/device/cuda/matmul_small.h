/* matmul_small.h - see matmul_small.cu. */
#pragma once

#include "device/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

struct small_product {
    const void *a, *b, *c, *bias; /* c, bias: NULL: none */
    void *d;
    int64_t m, n, k;
    int64_t a_step, b_step, d_step; /* from one column to the next, as cuBLASLt counts; c has d's */
    bool ta, tb;
    enum dtype type, out_type;
};

int cuda_matmul_small(const struct cuda_queue *queue, const struct small_product *p);

#ifdef __cplusplus
}
#endif
