/* gemm_block.h - multiplies one block of C by one block of k: the innermost part of gemm.c's driver, which owns the packed
 * panels and the order of blocks. Internal to gemm.c. */
#pragma once

#include "device/cpu/gemm.h"
#include "device/cpu/gemm_kernel.h"

struct gemm_block {
    const struct gemm *g;
    const struct gemm_kernel *kernel;
    int64_t m, n, rows, cols; /* the block of C */
    int64_t k, depth;         /* the block of k; k == 0 is the first, k + depth == g->k the last */
    const char *a;            /* packed panels of A */
    const char *b;            /* packed panels of B */
    float *sums; /* running sums between blocks of k (tile after tile, nr apart), when C is narrow; or NULL */
};

void gemm_block_multiply(const struct gemm_block *block);
