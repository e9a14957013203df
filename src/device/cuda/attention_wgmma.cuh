/* attention_wgmma.cuh - warpgroup multiplication (sm_90a): 64 rows in registers times a tile in shared memory.
 *
 * A tile of `rows` rows of width elements is stored as width / 64 blocks of 64 columns, each [rows][64]: 128 bytes
 * to a row, the eight 16-byte pieces of row r exchanged by r % 8 (the 128-byte swizzle). Blocks begin at multiples
 * of 1024 bytes. The same tile serves both ways: its rows as columns of B, or, turned, its rows as rows of B.
 *
 * Rows are in the layout of attention_ptx.cuh: warp w of the group has rows 16 w .. 16 w + 15, in A fragments and
 * C tiles. A multiplication is under way from wgmma_commit to wgmma_wait: until then nobody touches its
 * accumulators, its fragments or its tile.
 */
#pragma once

#include "device/cuda/attention_ptx.cuh"

/* From here on a warpgroup has so many registers: more than the kernel began with, of those that others left, or fewer. */
template <int registers> ON_GPU void take_registers(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

template <int registers> ON_GPU void leave_registers(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

/* Makes this thread's writes to shared memory visible to the tensor cores. */
ON_GPU void wgmma_publish(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* Before the first multiplication that uses registers this warp wrote. */
ON_GPU void wgmma_begin(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

ON_GPU void wgmma_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int left> ON_GPU void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}

/* Sums that were waited for: the compiler, which does not know that they changed meanwhile, reads them only now. */
template <int tiles> ON_GPU void wgmma_settled(float (&c)[1][tiles][4])
{
#pragma unroll
    for (int n = 0; n < tiles; n++)
        asm volatile("" : "+f"(c[0][n][0]), "+f"(c[0][n][1]), "+f"(c[0][n][2]), "+f"(c[0][n][3])::"memory");
}

/* Names a block of 64 columns from `at` on: groups of eight rows follow each other every 1024 bytes, blocks of further columns every
 * `next`, which is asked for only where more than 64 columns are turned. */
ON_GPU uint64_t wgmma_tile(uint32_t at, int next = 16)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(next >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

#define WGMMA_SUMS                                                                                           \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define WGMMA_TILE(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define WGMMA_TILES(c)                                                                                       \
    WGMMA_TILE(c, 0), WGMMA_TILE(c, 1), WGMMA_TILE(c, 2), WGMMA_TILE(c, 3), WGMMA_TILE(c, 4),                \
        WGMMA_TILE(c, 5), WGMMA_TILE(c, 6), WGMMA_TILE(c, 7)
/* A in registers. */
#define WGMMA(kind, turned)                                                                                  \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"                                            \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." kind "." kind " " WGMMA_SUMS                  \
                 ", {%32, %33, %34, %35}, %36, add, 1, 1, " turned ";\n}"                                    \
                 : WGMMA_TILES(c)                                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add))
/* A in shared memory, where it is not turned. */
#define WGMMA_SHARED(kind, turned)                                                                           \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"                                            \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." kind "." kind " " WGMMA_SUMS                  \
                 ", %32, %33, add, 1, 1, 0, " turned ";\n}"                                                  \
                 : WGMMA_TILES(c)                                                                            \
                 : "l"(a), "l"(b), "r"((int)add))

/* A in registers, 128 columns of B, turned. */
#define WGMMA_WIDE_SUMS                                                                                      \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                       \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                       \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define WGMMA_WIDE(kind)                                                                                     \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n"                                            \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." kind "." kind " " WGMMA_WIDE_SUMS            \
                 ", {%64, %65, %66, %67}, %68, add, 1, 1, 1;\n}"                                             \
                 : WGMMA_TILES(c), WGMMA_TILE(c, 8), WGMMA_TILE(c, 9), WGMMA_TILE(c, 10), WGMMA_TILE(c, 11), \
                   WGMMA_TILE(c, 12), WGMMA_TILE(c, 13), WGMMA_TILE(c, 14), WGMMA_TILE(c, 15)                \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add))

/* c[64][64] (+)= A B, k = 16. `rows`: B's columns are 64 rows of the block that b names, from the 16 elements on
 * where it begins; A in registers or named likewise. `turned`: B's rows are 16 rows of the block. turned128: likewise
 * c[64][128], of two blocks. */
template <class type> struct wgmma;
template <> struct wgmma<type_bf16> {
    ON_GPU void rows(float (*c)[4], const uint32_t (&a)[4], uint64_t b, bool add) { WGMMA("bf16", "0"); }
    ON_GPU void rows(float (*c)[4], uint64_t a, uint64_t b, bool add) { WGMMA_SHARED("bf16", "0"); }
    ON_GPU void turned(float (*c)[4], const uint32_t (&a)[4], uint64_t b, bool add) { WGMMA("bf16", "1"); }
    ON_GPU void turned(float (*c)[4], uint64_t a, uint64_t b, bool add) { WGMMA_SHARED("bf16", "1"); }
    ON_GPU void turned128(float (*c)[4], const uint32_t (&a)[4], uint64_t b, bool add) { WGMMA_WIDE("bf16"); }
};
template <> struct wgmma<type_f16> {
    ON_GPU void rows(float (*c)[4], const uint32_t (&a)[4], uint64_t b, bool add) { WGMMA("f16", "0"); }
    ON_GPU void rows(float (*c)[4], uint64_t a, uint64_t b, bool add) { WGMMA_SHARED("f16", "0"); }
    ON_GPU void turned(float (*c)[4], const uint32_t (&a)[4], uint64_t b, bool add) { WGMMA("f16", "1"); }
    ON_GPU void turned(float (*c)[4], uint64_t a, uint64_t b, bool add) { WGMMA_SHARED("f16", "1"); }
    ON_GPU void turned128(float (*c)[4], const uint32_t (&a)[4], uint64_t b, bool add) { WGMMA_WIDE("f16"); }
};
