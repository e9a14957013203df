/* matmul_few.h - linear of few rows, as in token generation: see matmul_few.cu. */
#pragma once

#include "device/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How each thread block obtains the rows x. */
enum few_source {
    FEW_PLAIN, /* they are in memory */
    FEW_NORM,  /* RMSNorm of a with the weights b; x and stat are written too */
    FEW_GLU,   /* silu(a) b; nothing else reads x, so it is not written */
};

/* y[R,M] = x[R,K] W' (+ bias[M]) (+ add[R,M]), R at most CUDA_FEW_ROWS, all of one type. y may be add.
 * Optionally computes a second product of the same rows, y2 = x W2'. Sources and second products:
 * cuda_matmul_few_fuses. */
struct few_product {
    const void *x, *w, *bias, *add; /* bias, add: NULL: none */
    void *y;
    int64_t rows, m, k;
    bool kn; /* W is [K,M], else [M,K] */
    enum dtype type;
    const void *w2; /* NULL: none; [M2,K] */
    void *y2;
    int64_t m2;
    enum few_source source;
    const void *a, *b;
    float *stat; /* [R]; NULL: not needed */
    float eps;
    bool plus_one;
};

/* True if a product of this kind may have a source or a second product; the bits of a row do not depend on
 * R. */
bool cuda_matmul_few_fuses(const struct few_product *p);

int cuda_matmul_few(const struct cuda_queue *queue, const struct few_product *p);

#ifdef __cplusplus
}
#endif
