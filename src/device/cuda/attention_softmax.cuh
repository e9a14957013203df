/* attention_softmax.cuh - what a warp of the forward kernels keeps of its rows, and what it does with their scores.
 *
 * A warp has 16 `high` rows in C tiles: lane / 4 is the row in a half tile, 2 * (lane % 4) the first column. A row
 * that has seen no key yet has the maximum -inf; its exponentials are taken from 0 then, which makes them 0.
 */
#pragma once

#include "device/cuda/attention_mma.cuh"

template <int width, int high> struct soft_rows {
    float out[high][width / 8][4];
    float top[high][2], sum[high][2]; /* sum: this lane's share */

    __device__ __forceinline__ void clear(void)
    {
#pragma unroll
        for (int m = 0; m < high; m++) {
            top[m][0] = top[m][1] = -INFINITY, sum[m][0] = sum[m][1] = 0;
#pragma unroll
            for (int n = 0; n < width / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) out[m][n][i] = 0;
        }
    }
};

/* Scores of the keys from `key` on that a row does not see become -inf. ranges: of the warp's rows. */
template <int high, int tiles>
ON_GPU void soft_mask(float (&s)[high][tiles][4], const int2 *ranges, int key, int lane)
{
#pragma unroll
    for (int m = 0; m < high; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int2 see = ranges[m * 16 + half * 8 + lane / 4];
            int first = see.x - key - lane % 4 * 2, last = see.y - key - lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < tiles; n++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int at = n * 8 + i;
                    if (at < first || at > last) s[m][n][2 * half + i] = -INFINITY;
                }
            }
        }
    }
}

/* Scores become probabilities against the new maximum. What was summed so far is to be multiplied with fade (soft_fade). */
template <int width, int high, int tiles>
ON_GPU void soften_scores(float (&s)[high][tiles][4], struct soft_rows<width, high> &r,
                          float (&fade)[high][2], float scale2)
{
#pragma unroll
    for (int m = 0; m < high; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = r.top[m][half];
#pragma unroll
            for (int n = 0; n < tiles; n++) top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            const float base = top == -INFINITY ? 0.0f : top, scaled = __fmul_rn(base, scale2);
            float sum = 0;
            /* It is of the rounded products, as probabilities are: 1 where the maximum stays. */
            fade[m][half] = exp2_fast(__fsub_rn(__fmul_rn(r.top[m][half], scale2), scaled));
            r.top[m][half] = top;
#pragma unroll
            for (int n = 0; n < tiles; n++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float p = exp2_fast(fmaf(s[m][n][2 * half + i], scale2, -scaled));
                    s[m][n][2 * half + i] = p;
                    sum += p;
                }
            }
            r.sum[m][half] = r.sum[m][half] * fade[m][half] + sum;
        }
    }
}

template <int width, int high>
ON_GPU void soft_fade(struct soft_rows<width, high> &r, const float (&fade)[high][2])
{
#pragma unroll
    for (int m = 0; m < high; m++)
#pragma unroll
        for (int n = 0; n < width / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) r.out[m][n][i] *= fade[m][i / 2];
}

/* Both. */
template <int width, int high, int tiles>
ON_GPU void soften(float (&s)[high][tiles][4], struct soft_rows<width, high> &r, float scale2)
{
    float fade[high][2];
    soften_scores(s, r, fade, scale2);
    soft_fade(r, fade);
}

/* Rows from `row` on to global memory, through the warp's rows of a tile in shared memory. */
template <class type, int width, int high>
ON_GPU void soft_finish(const struct attn &a, char *room, struct soft_rows<width, high> &r, int b, int h,
                        int row)
{
    const int lane = threadIdx.x % 32;
    float by[high][2];
#pragma unroll
    for (int m = 0; m < high; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = r.sum[m][half];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            const bool blind = sum == 0; /* sees no key */
            by[m][half] = blind ? 0.0f : 1.0f / sum;
            int t = row + m * 16 + half * 8 + lane / 4;
            if (lane % 4 == 0 && t < a.time)
                a.lse[((int64_t)b * a.heads + h) * a.time + t] =
                    blind ? 0.0f : r.top[m][half] * a.top_scale + logf(sum);
        }
    }
    store_rows<type, width, high>(room, r.out, by, query_rows(a, a.o, b, h), row, a.time);
}
