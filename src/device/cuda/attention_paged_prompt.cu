/* attention_paged_prompt.cu - rows of several tokens over blocks of 16 bits (attention_paged_tiles.cuh). */
#include "device/cuda/attention_paged_tiles.cuh"

int cuda_paged_prompt(const struct cuda_queue *queue, const struct paged *a)
{
    return start_prompts<no_codes>(queue, a);
}
