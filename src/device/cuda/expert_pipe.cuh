/* expert_pipe.cuh - what the pipeline of expert_linear_hopper.cu is made of, on sm_90a: barriers in shared memory, copies by the
 * tensor memory accelerator into one block or both of a pair, and products of 64 by 256 by 16 on a warpgroup.
 *
 * Addresses are those of the block's shared memory; both blocks of a pair have everything at the same ones. */
#pragma once

#include "device/cuda/attention_hopper.cuh"
#include "device/cuda/barrier.cuh"
#include "device/cuda/vec.cuh"

#include <cuda.h>

/* --- barriers ----------------------------------------------------------------------------------------------- */

/* At the barrier of block `rank` of the pair. */
ON_GPU void barrier_arrive_at(uint32_t at, int rank)
{
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(at),
                 "r"(rank)
                 : "memory");
}

/* All threads of both blocks of a pair. */
ON_GPU void pair_wait(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

ON_GPU int pair_rank(void)
{
    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* All threads of consumer warpgroup `group`. */
ON_GPU void group_wait(int group)
{
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"((int)WG_THREADS) : "memory");
}

/* --- copies ------------------------------------------------------------------------------------------------- */

/* A box of the tensor that `map` describes, from column x and row y on. */
ON_GPU void bring(uint32_t to, const CUtensorMap *map, int x, int y, uint32_t barrier)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
        "[%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y)
        : "memory");
}

/* bring into both blocks of the pair; each block's barrier counts its own bytes. */
ON_GPU void bring_both(uint32_t to, const CUtensorMap *map, int x, int y, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "h"((uint16_t)3)
                 : "memory");
}

/* --- products ----------------------------------------------------------------------------------------------- */

enum { TILE_BLOCK = 64 * 128 }; /* bytes of 64 rows of 64 columns */

/* A tile whose rows are rows or columns of the product; or, turned, whose rows are k, with columns in blocks of 64. */
ON_GPU uint64_t operand(uint32_t at, bool turned)
{
    uint64_t blocks = turned ? TILE_BLOCK >> 4 : 1;
    return (uint64_t)((at & 0x3ffff) >> 4) | blocks << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

#define SUM4(i)  "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define SUM16(i) SUM4(i), SUM4(i + 1), SUM4(i + 2), SUM4(i + 3)
#define SUM64(i) SUM16(i), SUM16(i + 4), SUM16(i + 8), SUM16(i + 12)
#define NAMES                                                                                                \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                       \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                       \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                       \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                       \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                       \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "           \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}"
#define PRODUCT(kind)                                                                                        \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"                                           \
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32." kind "." kind " " NAMES                      \
                 ", %128, %129, add, 1, 1, %131, %132;\n}"                                                   \
                 : SUM64(0), SUM64(16)                                                                       \
                 : "l"(a), "l"(b), "r"((int)add), "n"(TURN_A), "n"(TURN_B))

/* c[64][256] (+)= A B, k = 16. */
template <class T, int TURN_A, int TURN_B>
ON_GPU void product(float (&c)[32][4], uint64_t a, uint64_t b, bool add)
{
    if constexpr (sizeof(T) == 2 && __is_same(T, bf16))
        PRODUCT("bf16");
    else
        PRODUCT("f16");
}

/* Sums that were waited for: the compiler, which does not know that they changed meanwhile, reads them only now. */
ON_GPU void settle(float (&c)[32][4])
{
#pragma unroll
    for (int n = 0; n < 32; n++)
        asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
}
