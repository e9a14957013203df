/* matmul_small.cu - products too small for cuBLASLt to be worth its choice of kernel, and rounded once (its kernels
 * for such shapes round the product before they add). One thread per element of D, operands through shared tiles. */
#include "device/cuda/matmul_small.h"
#include "device/cuda/vec.cuh"

namespace
{

constexpr int TILE = 16;

/* D[m,n] = op(A)[m,k] op(B)[k,n] (+ bias[m]) (+ C); column-major, as cuBLASLt counts. */
template <class X, class Y> __global__ void multiply(small_product p)
{
    __shared__ float a[TILE][TILE + 1], b[TILE][TILE + 1];
    int ti = threadIdx.x, tj = threadIdx.y;
    int64_t i = (int64_t)blockIdx.x * TILE + ti, j = (int64_t)blockIdx.y * TILE + tj;
    float sum = 0;
    for (int64_t k0 = 0; k0 < p.k; k0 += TILE) {
        int64_t ka = k0 + tj, kb = k0 + ti;
        a[tj][ti] = i < p.m && ka < p.k
                        ? number((const X *)p.a + (p.ta ? ka + i * p.a_step : i + ka * p.a_step))
                        : 0.0f;
        b[tj][ti] = j < p.n && kb < p.k
                        ? number((const X *)p.b + (p.tb ? j + kb * p.b_step : kb + j * p.b_step))
                        : 0.0f;
        __syncthreads();
        for (int k = 0; k < TILE; k++) sum = fmaf(a[k][ti], b[tj][k], sum);
        __syncthreads();
    }
    if (i >= p.m || j >= p.n) return;
    if (p.bias) sum += number((const X *)p.bias + i);
    if (p.c) sum += number((const Y *)p.c + i + j * p.d_step);
    put_number((Y *)p.d + i + j * p.d_step, sum);
}

} /* namespace */

extern "C" int cuda_matmul_small(const struct cuda_queue *queue, const struct small_product *p)
{
    dim3 grid((unsigned)parts_of(p->m, TILE), (unsigned)parts_of(p->n, TILE)), block(TILE, TILE);
    return with_types(p->type, p->out_type, [&](auto x, auto y) {
        return start(queue, multiply<typename decltype(x)::type, typename decltype(y)::type>, grid, block, 0,
                     *p);
    });
}
