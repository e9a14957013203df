/* gemm_amx.h - a 32x32 tile of C in four tile registers; internal to the AMX kernels.
 *
 * tdpbf16ps multiplies 16 lines of A over 32 k by 16 columns of B over the same k. It needs A's lines whole (32 adjacent k)
 * and B's k in pairs, so the two sides are packed differently within a group of 32 k:
 *
 *     A   [k / 32][line][k % 32]          the rule of gemm_kernel.h with kg 32
 *     B   [k / 2][column][k % 2]          the rule with kg 2, k rounded up to 32 with zeros
 *
 * A kernel supplies a function that adds the products of one group of k, using amx_load_a and amx_add_products:
 *
 *     AMX_CODE AMX_INLINE void add_group(const uint16_t *a, const uint16_t *b, bool lower)
 *     {
 *         amx_load_a(a, lower);
 *         amx_add_products(b, lower);
 *     }
 *     AMX_CODE static void run(...) { amx_run(add_group, AMX_GROUP, a, b, k, c, ldc, rows, accumulate); }
 *
 * Everything here is inlined into its caller, `add_group` and the constants `lower` and `group` with it.
 */
#pragma once

#include "device/cpu/gemm_x86.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#define AMX_INLINE static inline __attribute__((always_inline))

enum {
    AMX_SIDE = 32, /* lines of a panel, on both sides */
    AMX_KG = 32,
    AMX_HALF = 16, /* lines of a tile register */
    AMX_GROUP = AMX_SIDE * AMX_KG,
};

AMX_INLINE int64_t amx_least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Loads the upper 16 lines of A's group and, with `lower`, the others: tiles 4 and 5. */
GEMM_AMX_CODE AMX_INLINE void amx_load_a(const uint16_t *a, bool lower)
{
    _tile_loadd(4, a, 64);
    if (lower) _tile_loadd(5, a + AMX_HALF * AMX_KG, 64);
}

/* Tiles 0 and 1 are the upper 16 rows of C, 2 and 3 the lower ones; A's lines must be loaded. */
GEMM_AMX_CODE AMX_INLINE void amx_add_products(const uint16_t *b, bool lower)
{
    _tile_loadd(6, b, 128);
    _tile_loadd(7, b + 2 * AMX_HALF, 128);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (lower) {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

/* Adds the products of one group of 32 k. */
typedef void amx_add_group(const uint16_t *a, const uint16_t *b, bool lower);

/* Processes all of k; groups are `group` numbers apart. */
GEMM_AMX_CODE AMX_INLINE void amx_add_all(amx_add_group *add_group, int64_t group, const uint16_t *a,
                                          const uint16_t *b, int64_t k, bool lower)
{
    _tile_zero(0);
    _tile_zero(1);
    if (lower) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t i = 0; i < k; i += AMX_KG, a += group, b += group) add_group(a, b, lower);
}

/* c[rows rounded up to 16][32] = A.B */
GEMM_AMX_CODE AMX_INLINE void amx_multiply(amx_add_group *add_group, int64_t group, const void *a,
                                           const void *b, int64_t k, float *c, int64_t ldc, int rows)
{
    size_t step = (size_t)ldc * sizeof *c;
    gemm_amx_set_up_thread();
    __asm__ volatile("" ::: "memory"); /* panels are written: gcc does not know that tile loads read memory */
    if (rows <= AMX_HALF) {
        amx_add_all(add_group, group, a, b, k, false);
    } else {
        amx_add_all(add_group, group, a, b, k, true);
        _tile_stored(2, c + AMX_HALF * ldc, step);
        _tile_stored(3, c + AMX_HALF * ldc + AMX_HALF, step);
    }
    _tile_stored(0, c, step);
    _tile_stored(1, c + AMX_HALF, step);
}

/* A gemm_tile. Additions to C go through a tile in memory that stays in the first-level cache. */
GEMM_AMX_CODE AMX_INLINE void amx_run(amx_add_group *add_group, int64_t group, const void *a, const void *b,
                                      int64_t k, float *c, int64_t ldc, int rows, bool accumulate)
{
    if (!accumulate && rows % AMX_HALF == 0) {
        amx_multiply(add_group, group, a, b, k, c, ldc, rows);
        return;
    }
    _Alignas(64) float tile[AMX_SIDE * AMX_SIDE];
    amx_multiply(add_group, group, a, b, k, tile, AMX_SIDE, rows);
    for (int r = 0; r < rows; r++, c += ldc) {
        const float *from = tile + r * AMX_SIDE;
        if (accumulate) {
            for (int n = 0; n < AMX_SIDE; n++) c[n] += from[n];
        } else {
            memcpy(c, from, AMX_SIDE * sizeof *c);
        }
    }
}
#endif
