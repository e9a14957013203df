/* matmul_skinny.h - products of 16-bit numbers with one small dimension, as adapters have: see matmul_skinny.cu. */
#pragma once

#include "device/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* D[n,m] = B A (+ C), all row by row:
 *
 *     of rows   B[n,k], A[m,k] when ta, else A[k,m]; D has the type of A and B
 *     tb        B[k,n], A[k,m]: the sum over k rows of B' A; D may be f32
 *
 * D may be C. The order of a sum depends on m, n, k and the layout alone. */
struct skinny_product {
    const void *a, *b, *c; /* c: NULL: none */
    void *d;
    int64_t m, n, k;
    bool ta, tb;
    enum dtype type, out_type;
    void *work; /* CUDA_MATMUL_BYTES */
};

/* True if there is a kernel that is faster than a general one. */
bool cuda_matmul_skinny_suits(const struct skinny_product *p);

int cuda_matmul_skinny(const struct cuda_queue *queue, const struct skinny_product *p);

#ifdef __cplusplus
}
#endif
