/* quantised_product_q4_k.cu - products of Q4_K blocks: quantised_product.cuh. */
#include "device/cuda/quantised_product.cuh"

extern "C" int cuda_q4_k_multiply(const struct cuda_queue *queue, const struct cuda_q_product *q)
{
    return multiply_type<BLOCK_Q4_K>(queue, q);
}
