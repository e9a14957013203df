/* quantised.h - kernels for weights in quantised blocks: see quantised.cu. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#include "device/cuda/kernels.h"
#include "tensor/panels.h"

/* Lines [first, first + lines) of W [m,k], of one block type; w: their panels. y[rows,m] = x[rows,k] W' + bias + add. */
struct cuda_quantised {
    const unsigned char *w;
    const void *x, *bias, *add; /* bias, add: NULL: none */
    void *y;
    int type; /* number of the block type */
    enum dtype x_type;
    int64_t rows, m, k, first, lines;
};

/* At most CUDA_FEW_ROWS rows. */
int cuda_quantised_few(const struct cuda_queue *queue, const struct cuda_quantised *q);

/* Dequantises the lines to x's type: out[lines,k]. */
int cuda_quantised_widen(const struct cuda_queue *queue, const struct cuda_quantised *q, void *out);

#ifdef __cplusplus
}
#endif
