/* attention_paged_decode.cu - tokens that are alone in their row over keys and values of 16 bits, multiplied as they are. Few tokens with heads
 * of up to 64 elements have a kernel of their own (attention_paged_registers.cu). */
#include "device/cuda/attention_paged_decode.cuh"

namespace
{

template <class TYPE> struct codec {
    typedef TYPE type;
    typedef uint4 eight;
    enum { BYTES = 2, SCALED = false };

    ON_GPU uint32_t word_of(const uint4 &x, int i)
    {
        return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
    }
    ON_GPU uint32_t pair(const uint4 &x, const uint4 &y, int j)
    {
        return __byte_perm(word_of(x, j / 2), word_of(y, j / 2), j % 2 ? 0x7632 : 0x5410);
    }
    ON_GPU int element(int t, int i) { return t + 4 * i; }
    ON_GPU uint32_t two(const uint16_t *line, int d, int e, int size)
    {
        return line[d] | (e < size ? (uint32_t)line[e] << 16 : 0);
    }
    ON_GPU uint32_t query(uint32_t x, enum dtype) { return x; }
};

/* An H200 stops a multiprocessor to take this kernel's shared memory from its cache, and again to give it back. With LLaMA-1B's heads of 64
 * that cost one token a seventh of its speed; 64 tokens and more gain what it costs. */
enum { MANY_TOKENS = 64 };

template <class TYPE> int start(const struct cuda_queue *queue, const struct paged &a)
{
    if (a.size > 64) return start_large<codec<TYPE>>(queue, a);
    return a.tokens < MANY_TOKENS ? cuda_paged_registers(queue, &a) : start_small<codec<TYPE>>(queue, a);
}

} // namespace

int cuda_paged_decode(const struct cuda_queue *queue, const struct paged *a)
{
    return a->type == DT_BF16 ? start<type_bf16>(queue, *a) : start<type_f16>(queue, *a);
}
