/* fill.cu - numbers to time kernels on.
 *
 * Every half of a word is a sign, an exponent of 2^-3 .. 2^0 and a random mantissa as bf16 reads it; f32 and f16 read
 * other numbers of ordinary sizes in it. */
#include "device/cuda/update.cuh"

namespace
{

enum { THREADS = 256, WORDS = 4 };

__global__ void __launch_bounds__(THREADS) noise(uint4 *to, int64_t count)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * THREADS) {
        uint32_t w[WORDS];
#pragma unroll
        for (int k = 0; k < WORDS; k++)
            w[k] = (random_mix((uint32_t)(i * WORDS + k) * STOCHASTIC_ODD) & 0x81ff81ffu) | 0x3e003e00u;
        to[i] = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

} // namespace

int cuda_fill_noise(const struct cuda_queue *queue, void *at, size_t bytes)
{
    int64_t count =
        (int64_t)(bytes /
                  sizeof(uint4)); /* a tensor begins at a multiple of 256; its last bytes may be left */
    if (count == 0) return 0;
    unsigned blocks = (unsigned)fewest(parts_of(count, THREADS), 16 * (int64_t)queue->sms);
    return start(queue, noise, blocks, THREADS, 0, (uint4 *)at, count);
}
