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
 * An operand with a step is columns of a matrix whose rows have that many numbers: B, C and D of rows, and A and B of tb.
 * D may be C. The order of a sum depends on m, n, k and the layout alone. A product of rows with few columns (cuda_matmul_skinny_scales) can also
 * write D times a number, and other numbers like D times it. */
struct skinny_product {
    const void *a, *b, *c; /* c: NULL: none */
    void *d;               /* NULL: only `scaled` is wanted */
    int64_t m, n, k;
    int64_t a_step, b_step, d_step; /* 0: rows lie close together; C has D's */
    bool ta, tb;
    enum dtype type, out_type;
    void *work; /* CUDA_MATMUL_BYTES */
    float scale;
    void *scaled;     /* scale D, of D as it is rounded; NULL: none */
    const void *from; /* `again` is scale times it; may be the same bytes */
    void *again;      /* NULL: none */
};

/* True if there is a kernel that is faster than a general one. */
bool cuda_matmul_skinny_suits(const struct skinny_product *p);

/* True if this suitable product can have `scaled`. */
bool cuda_matmul_skinny_scales(const struct skinny_product *p);

int cuda_matmul_skinny(const struct cuda_queue *queue, const struct skinny_product *p);

/* A product of rows and a sum over rows that have B in common, with one pass over it. They are suitable products; `turned` has the scratch.
 * The bits are others than those of two launches. If turned->a is rows->again, it need not have been written. */
bool cuda_matmul_skinny_pairs(const struct skinny_product *rows, const struct skinny_product *turned);
int cuda_matmul_skinny_pair(const struct cuda_queue *queue, const struct skinny_product *rows,
                            const struct skinny_product *turned);

#ifdef __cplusplus
}
#endif
