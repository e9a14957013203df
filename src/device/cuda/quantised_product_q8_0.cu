/* quantised_product_q8_0.cu - products of Q8_0 blocks: quantised_product.cuh. */
#include "device/cuda/quantised_product.cuh"

extern "C" int cuda_q8_0_multiply(const struct cuda_queue *queue, const struct cuda_q_product *q)
{
    return multiply_type<BLOCK_Q8_0>(queue, q);
}
