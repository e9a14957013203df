/* quantised_gated.cuh - the gated unit of two products of one row, for quantised_product.cuh.
 *
 * Items alternate: a panel of the gate, then the same panel of `up`. So two neighbouring groups of warps of a block have both at the same time.
 * Their sums meet in shared memory, and the first group computes the unit. Both products are rounded to the type of y first, as if they had
 * been written: the bits are those of separate ops. */
#pragma once

#include "device/cuda/quantised_items.cuh"

namespace
{

/* Threads of the two groups of warps. */
template <class W> ON_GPU void pair_barrier(void)
{
    asm volatile("bar.sync %0, %1;" ::"r"(1 + (int)threadIdx.x / (W::warps * 64)), "n"(W::warps * 64)
                 : "memory");
}

/* A line's product, of warps from `first` on. */
template <class W> ON_GPU float joined_line(const float *pool, int first, int line)
{
    float v[W::warps];
#pragma unroll
    for (int w = 0; w < W::warps; w++) v[w] = pool[(first + w) * LINES + line];
#pragma unroll
    for (int half = W::warps / 2; half > 0; half /= 2)
#pragma unroll
        for (int w = 0; w < half; w++) v[w] = v[2 * w] + v[2 * w + 1];
    return v[0];
}

template <class T> ON_GPU float rounded(float x)
{
    T y;
    put_number(&y, x);
    return number(&y);
}

template <class T> ON_GPU void put_unit(void *to, int64_t at, float gate, float up)
{
    const float g = rounded<T>(gate), u = rounded<T>(up);
    put_number((T *)to + at, divide_for<T>(g * u, 1.0f + exp_for<T>(-g)));
}

/* sum: as gather_one leaves it. */
template <class B, class W>
ON_GPU void put_gated(const problem &p, const item<1> &it, float *pool, const float (&sum)[4])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = warp / (2 * W::warps) * 2 * W::warps,
              line = threadIdx.x - first * 32;
    if (lane % 4 == 0) {
        pool[warp * LINES + lane / 4] = sum[0] * B::factor;
        pool[warp * LINES + lane / 4 + 8] = sum[2] * B::factor;
    }
    pair_barrier<W>();
    const int64_t at = (int64_t)it.panel * LINES + line;
    if (line >= LINES || at >= it.part->lines) return;
    const float gate = joined_line<W>(pool, first, line), up = joined_line<W>(pool, first + W::warps, line);
    if (p.q.type == DT_BF16)
        put_unit<bf16>(p.q.gated, at, gate, up);
    else
        put_unit<f16>(p.q.gated, at, gate, up);
}

} // namespace
