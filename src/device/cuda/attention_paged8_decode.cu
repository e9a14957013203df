/* attention_paged8_decode.cu - tokens that are alone in their row over keys and values in 8 bits (tensor/kv8.h). Codes become fp16 numbers in
 * registers, which is exact, and queries and probabilities are fp16 too. */
#include "device/cuda/attention_codes.cuh"
#include "device/cuda/attention_paged_decode.cuh"

namespace
{

template <class CODES> struct codec {
    typedef type_f16 type;
    typedef uint2 eight;
    enum { BYTES = 1, SCALED = true };

    ON_GPU uint32_t word_of(const uint2 &x, int i) { return i == 0 ? x.x : x.y; }
    ON_GPU uint32_t pair(const uint2 &x, const uint2 &y, int j)
    {
        return CODES::pair(__byte_perm(word_of(x, j / 4), word_of(y, j / 4), j % 4 | (4 + j % 4) << 4));
    }
    ON_GPU int element(int t, int i) { return 2 * t + i % 2 + i / 2 * 8; }
    ON_GPU uint32_t two(const uint16_t *line, int d, int, int) { return *(const uint32_t *)(line + d); }
    ON_GPU uint32_t query(uint32_t x, enum dtype of)
    {
        if (of != DT_BF16) return x;
        return type_f16::pack(within(type_bf16::low(x)), within(type_bf16::high(x)));
    }
    ON_GPU float within(float x) { return fminf(fmaxf(x, -65504.0f), 65504.0f); }
};

template <class CODES> int start(const struct cuda_queue *queue, const struct paged &a)
{
    return a.size <= 64 ? start_small<codec<CODES>>(queue, a) : start_large<codec<CODES>>(queue, a);
}

} // namespace

int cuda_paged8_decode(const struct cuda_queue *queue, const struct paged *a)
{
    return a->e4m3 ? start<codes_e4m3>(queue, *a) : start<codes_i8>(queue, *a);
}
