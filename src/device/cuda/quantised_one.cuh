/* quantised_one.cuh - a chunk of W times one row of x, for quantised_product.cuh.
 *
 *     multiply_chunk_one<B>(sum, chunk, x, blocks);     // lane t = 0 of four: line g; t = 1: line g + 8
 *     gather_one(sum);                                  // after the last chunk: as multiply_chunk leaves sums
 *
 * A product of the tensor cores has eight columns, for eight rows of x. One row would use one column, and lanes would scale results that
 * nobody wants. So the columns are a chunk's eight blocks: column n has block n / 2 + n % 2 * 4 of x, and zeros while W's other
 * seven blocks are multiplied. All products of a chunk add up in one result, of which each lane scales four sums: lines g and g + 8,
 * blocks t and t + 4. Blocks are then added in the order of multiply_chunk, so that a row has the same bits alone and among others. */
#pragma once

#include "device/cuda/quantised_tiles.cuh"

namespace
{

/* c += a * b, where multiply32 begins a sum. */
ON_GPU void multiply32_more(int (&c)[4], const uint32_t (&a)[4], const uint2 &b)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

ON_GPU void multiply16_more(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

/* One row of x in a chunk's record, as a lane has it: codes of its column's block, scales of all, sums of blocks t and t + 4. */
struct one_row {
    uint2 code;
    float scale[CHUNK_BLOCKS], sum[2];
};

template <bool MINIMA> ON_GPU void load_one(one_row &x, const char *record, int blocks)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, column = g / 2 + g % 2 * 4;
    const float *sums = reinterpret_cast<const float *>(record + RECORD_SUMS) + t;
    x.code = make_uint2(0, 0);
    if (column < blocks) x.code = *reinterpret_cast<const uint2 *>(record + column * 32 + t * 8);
#pragma unroll
    for (int i = 0; i < CHUNK_BLOCKS; i += 4) {
        const float4 v = reinterpret_cast<const float4 *>(record + RECORD_SCALES)[i / 4];
        x.scale[i] = v.x, x.scale[i + 1] = v.y, x.scale[i + 2] = v.z, x.scale[i + 3] = v.w;
    }
    if (MINIMA) x.sum[0] = sums[0], x.sum[1] = sums[4];
}

/* Sums of products: c[half][which four blocks], where a half is 16 of k of types with two scales. */
template <class B>
ON_GPU void multiply_blocks(int (&c)[B::scales][2][4], const char *chunk, const uint2 &code, int blocks)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int b = 0; b < CHUNK_BLOCKS; b++) {
        if (b >= blocks) break;
        uint32_t a[4];
        const bool mine = g == b % 4 * 2 + b / 4;
        const uint2 x = {mine ? code.x : 0, mine ? code.y : 0};
        int(&first)[4] = c[0][b / 4], (&second)[4] = c[B::scales - 1][b / 4];
        B::codes(a, chunk, b, g, t);
        if constexpr (B::scales == 1) {
            if (b % 4)
                multiply32_more(first, a, x);
            else
                multiply32(first, a, x);
        } else if (b % 4) {
            multiply16_more(first, a[0], a[1], x.x), multiply16_more(second, a[2], a[3], x.y);
        } else {
            multiply16(first, a[0], a[1], x.x), multiply16(second, a[2], a[3], x.y);
        }
    }
}

/* v[line][which four blocks] of four lanes, all for lane 0's line g and lane 1's line g + 8, in the order of blocks. */
ON_GPU void exchange_blocks(float (&all)[CHUNK_BLOCKS], const float (&v)[2][2])
{
    const bool odd = threadIdx.x % 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float got = __shfl_xor_sync(0xffffffffu, odd ? v[0][i] : v[1][i], 1);
        const float even_block = odd ? got : v[0][i], odd_block = odd ? v[1][i] : got;
        all[i * 4] = even_block, all[i * 4 + 1] = odd_block;
        all[i * 4 + 2] = __shfl_xor_sync(0xffffffffu, even_block, 2);
        all[i * 4 + 3] = __shfl_xor_sync(0xffffffffu, odd_block, 2);
    }
}

template <class B> ON_GPU void add_blocks(float &sum, const char *chunk, const char *record, int blocks)
{
    one_row x;
    int c[B::scales][2][4] = {};
    float v[2][2], all[CHUNK_BLOCKS];
    load_one<B::minima>(x, record, blocks);
    const typename B::pair w = B::take(chunk, threadIdx.x % 32 / 4, threadIdx.x % 4);
    multiply_blocks<B>(c, chunk, x.code, blocks);
#pragma unroll
    for (int i = 0; i < 4; i++) { /* results 0 and 2 are of block t, 1 and 3 of block t + 4 */
        const int line = i / 2, at = i % 2, from = line * 2 + at;
        v[line][at] = w.scale[0][line][at] * sum_of(c[0][at][from]);
        if constexpr (B::scales == 2)
            v[line][at] = fmaf(w.scale[1][line][at], sum_of(c[1][at][from]), v[line][at]);
        if constexpr (B::minima) v[line][at] = fmaf(-w.least[line][at], x.sum[at], v[line][at]);
    }
    exchange_blocks(all, v);
#pragma unroll
    for (int b = 0; b < CHUNK_BLOCKS; b++)
        if (b < blocks) sum = fmaf(all[b], x.scale[b], sum);
}

template <class B>
ON_GPU void multiply_chunk_one(float &sum, const char *chunk, const char *record, int blocks)
{
    if (B::elements == CHUNK || blocks == CHUNK_BLOCKS)
        add_blocks<B>(sum, chunk, record, CHUNK_BLOCKS);
    else
        add_blocks<B>(sum, chunk, record, blocks);
}

/* To where multiply_chunk has the sums of row 0: lane t = 0, lines g and g + 8. */
ON_GPU void gather_one(float (&sum)[4]) { sum[2] = __shfl_xor_sync(0xffffffffu, sum[0], 1); }

} // namespace
