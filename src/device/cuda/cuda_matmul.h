/* cuda_matmul.h - linear, linear_dx, linear_dw and their fp8 forms with cuBLASLt; small products, products with one small
 * dimension and linear of few rows use our own kernels.
 *
 *     cuda_matmul_open(&api, &queue.matmul, &err);
 *     ... the kernels cuda_linear, cuda_linear_dx and others run through queue.matmul
 *     cuda_matmul_close(queue.matmul);
 *
 * The algorithm for a shape is requested from cuBLASLt once and remembered: equal shapes always use the same algorithm, so a
 * recomputed activation has the same bits. Accumulation is fp32; fp32 operands are multiplied in fp32 unless the op allows
 * tf32. */
#pragma once

#include "device/cuda/cuda_api.h"
#include "device/cuda/kernels.h"
#include "device/cuda/matmul_few.h"
#include "device/cuda/matmul_skinny.h"

struct cuda_matmul;

enum plim_status cuda_matmul_open(const struct cuda_api *api, struct cuda_matmul **out,
                                  struct plim_error *err);
void cuda_matmul_close(struct cuda_matmul *matmul);

/* A call for which cuda_linear_is_few is true, as its kernel gets it. */
struct few_product cuda_linear_few(const struct kernel_call *call);

/* If matmul_skinny.cu computes all parts of this linear, linear_dx or dW of linear_dw: their number, and out[]; else 0. */
int cuda_linear_skinny(const struct kernel_call *call, struct skinny_product out[OP_LINE_PARTS]);

/* y[rows,m] = x[rows,k] W' (+ bias) (+ y) for `lines` lines W[lines,k]: y, bias begin at the first of these columns. work has
 * CUDA_MATMUL_BYTES. */
struct cuda_wide_product {
    const void *w, *x, *bias; /* bias: NULL: none */
    void *y;
    bool add;
    enum dtype type;
    int64_t rows, lines, k, m;
};
int cuda_matmul_wide(const struct cuda_queue *queue, const struct cuda_wide_product *p, void *work);

/* y[rows,lines] = x[rows,k] W' of e4m3 numbers: times both scales (+ bias) (+ add), or, without scales, the sums alone.
 * cudaErrorNotSupported: this cuBLASLt, or this card, has no scales of lines. work has CUDA_MATMUL_BYTES. */
struct cuda_f8_product {
    const void *w, *x, *bias, *add;
    const float *w_scale, *x_scale; /* [lines], [rows]; NULL: none */
    void *y;
    enum dtype type; /* of y, bias and add */
    int64_t rows, lines, k;
    bool short_sums;
};
int cuda_matmul_f8(const struct cuda_queue *queue, const struct cuda_f8_product *p, void *work);

/* A linear_f8 of many rows, whose rows are rounded already. */
struct cuda_f8_product cuda_linear_f8_large(const struct kernel_call *call);

/* cuBLASLt's message for a failed run. */
const char *cuda_matmul_words(const struct cuda_matmul *matmul);

/* Times several algorithms for this call and remembers the fastest. Overwrites the call's outputs and
 * workspace. */
void cuda_matmul_tune(struct cuda_matmul *matmul, const struct cuda_queue *queue,
                      const struct kernel_call *call);
