/* attention_paged8_prompt.cu - rows of several tokens over blocks of 8 bits (attention_paged_tiles.cuh). */
#include "device/cuda/attention_paged_tiles.cuh"

int cuda_paged8_prompt(const struct cuda_queue *queue, const struct paged *a)
{
    return a->e4m3 ? start_prompts<codes_e4m3>(queue, a) : start_prompts<codes_i8>(queue, a);
}
