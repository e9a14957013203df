/* quantised_product_q5_k.cu - products of Q5_K blocks: quantised_product.cuh. */
#include "device/cuda/quantised_product.cuh"

extern "C" int cuda_q5_k_multiply(const struct cuda_queue *queue, const struct cuda_q_product *q)
{
    return multiply_type<BLOCK_Q5_K>(queue, q);
}
