/* matmul_few.h - linear of few rows, as when tokens are generated: see matmul_few.cu. */
#ifndef PLIM_DEVICE_CUDA_MATMUL_FEW_H
#define PLIM_DEVICE_CUDA_MATMUL_FEW_H

#include "device/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y[R,M] = x[R,K] W' (+ bias[M]) (+ add[R,M]), R at most CUDA_FEW_ROWS, all of one type. y may be add. */
struct few_product {
    const void *x, *w, *bias, *add; /* bias, add: NULL when absent */
    void *y;
    int64_t rows, m, k;
    bool kn; /* W is [K,M], else [M,K] */
    enum dtype type;
};

int cuda_matmul_few(const struct cuda_queue *queue, const struct few_product *p);

#ifdef __cplusplus
}
#endif

#endif
