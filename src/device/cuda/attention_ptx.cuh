/* attention_ptx.cuh - the machine instructions the attention kernels are made of (sm_80 and later).
 *
 * Fragments of mma.m16n8k16, with g = lane / 4 and c = 2 * (lane % 4):
 *     A [16][16]   a0 (g, c..c+1)  a1 (g+8, c..)  a2 (g, c+8..)  a3 (g+8, c+8..)
 *     B [16][8]    b0 (c..c+1, g)  b1 (c+8.., g)
 *     C [16][8]    c0 c1 (g, c..c+1)  c2 c3 (g+8, c..c+1)
 * so two neighbouring C tiles, packed to pairs, are one A fragment.
 */
#pragma once

#include "device/cuda/kernels.h"

#include <stdint.h>

extern __shared__ __align__(128) char attn_pool[];

ON_GPU char *shared_pool(void) { return attn_pool; }

ON_GPU uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* threadIdx.x, read where it stands: what is computed from it is not kept in registers across a loop. */
ON_GPU int thread_again(void)
{
    int x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}

/* Likewise blockIdx.x. */
ON_GPU int block_again(void)
{
    int x;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
    return x;
}

/* 16 bytes to shared memory, zeros unless `have`. */
ON_GPU void copy16(uint32_t to, const void *from, bool have)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(have ? 16 : 0)
                 : "memory");
}

ON_GPU void copy_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Until at most `left` of this thread's groups are under way. */
template <int left> ON_GPU void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

/* Four 8x8 matrices of 16-bit elements; lanes 8m..8m+7 name the rows of matrix m. */
ON_GPU void load_matrices(uint32_t (&r)[4], uint32_t row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row));
}

ON_GPU void load_matrices_turned(uint32_t (&r)[4], uint32_t row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row));
}

/* Row g of an 8x8 matrix of 16-bit elements, of which the lane has 2 t and 2 t + 1, for those of its column. */
ON_GPU uint32_t turn_matrix(uint32_t x)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

ON_GPU float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The two 16-bit types: pack two floats, unpack, multiply. */
struct type_bf16 {
    ON_GPU uint32_t pack(float low, float high)
    {
        uint32_t r;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
        return r;
    }
    ON_GPU float low(uint32_t x) { return __uint_as_float(x << 16); }
    ON_GPU float high(uint32_t x) { return __uint_as_float(x & 0xffff0000u); }
    ON_GPU void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

struct type_f16 {
    ON_GPU uint32_t pack(float low, float high)
    {
        uint32_t r;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
        return r;
    }
    ON_GPU float low(uint32_t x)
    {
        float f;
        asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((uint16_t)x));
        return f;
    }
    ON_GPU float high(uint32_t x) { return low(x >> 16); }
    ON_GPU uint32_t times(uint32_t x, uint32_t y)
    {
        uint32_t r;
        asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
        return r;
    }
    ON_GPU void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};
