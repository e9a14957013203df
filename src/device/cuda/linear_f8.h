/* linear_f8.h - kernels of linear_f8 (linear_f8.cu), and its calls as they get them (cuda_linear_f8.c).
 *
 *     struct cuda_q_product q = cuda_linear_f8_product(calls, 2);      // two linears of the same rows
 *     cuda_f8_multiply(queue, &q);
 *
 * A part is a whole weight: w its codes, its scales behind them.
 */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#include "device/cuda/quantised.h"

/* `count` calls with the same x; scratch is the first one's. */
struct cuda_q_product cuda_linear_f8_product(const struct kernel_call *calls, int count);
int cuda_f8_multiply(const struct cuda_queue *queue, const struct cuda_q_product *q);

static inline const float *cuda_f8_scales(const struct cuda_q_part *part, int64_t k)
{
    return (const float *)(const void *)(part->w + part->m * k);
}

/* Rows of q, made on the way where it says so, to e4m3: codes[rows,k] and scales[rows]. */
int cuda_f8_round(const struct cuda_queue *queue, const struct cuda_q_product *q, unsigned char *codes,
                  float *scales);
/* All parts, of at most CUDA_F8_ROWS rounded rows. */
int cuda_f8_few(const struct cuda_queue *queue, const struct cuda_q_product *q, const unsigned char *codes,
                const float *scales);
/* Lines [first, first + lines) of a part: sums[rows,lines] to columns of y. */
int cuda_f8_finish(const struct cuda_queue *queue, const struct cuda_q_product *q,
                   const struct cuda_q_part *part, const float *sums, const float *scales, int64_t first,
                   int64_t lines);

#ifdef __cplusplus
}
#endif
