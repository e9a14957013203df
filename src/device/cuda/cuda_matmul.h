/* cuda_matmul.h - linear, linear_dx and linear_dw through cuBLASLt; small ones and linear of few rows are our own. linear_q:
 * few rows by our own kernel, many with lines of the weight made into numbers first.
 *
 *     cuda_matmul_open(&api, &queue.matmul, &err);
 *     ... the kernels cuda_linear, cuda_linear_dx and others run through queue.matmul
 *     cuda_matmul_close(queue.matmul);
 *
 * The way cuBLASLt is to compute a shape is asked for once and remembered: the same operands' shapes always take
 * the same way, so a recomputed activation has the bits of the first one. Accumulation is fp32; fp32 operands are
 * multiplied in fp32 unless the op allows tf32. */
#ifndef PLIM_DEVICE_CUDA_CUDA_MATMUL_H
#define PLIM_DEVICE_CUDA_CUDA_MATMUL_H

#include "device/cuda/cuda_api.h"
#include "device/cuda/kernels.h"
#include "device/cuda/matmul_few.h"

struct cuda_matmul;

enum plim_status cuda_matmul_open(const struct cuda_api *api, struct cuda_matmul **out,
                                  struct plim_error *err);
void cuda_matmul_close(struct cuda_matmul *matmul);

/* A linear that cuda_linear_is_few as its kernel gets it. */
struct few_product cuda_linear_few(const struct kernel_call *call);

/* cuBLASLt's message for a failed run. */
const char *cuda_matmul_words(const struct cuda_matmul *matmul);

/* Times several ways of computing this call and remembers the fastest. Writes the call's outputs and workspace:
 * call it while nothing of value is in them. */
void cuda_matmul_tune(struct cuda_matmul *matmul, const struct cuda_queue *queue,
                      const struct kernel_call *call);

#endif
