/* gemm.h - matrix multiply on the CPU: C[M,N] = A[M,K] . B[K,N] (+ bias[N]) (+ R[M,N])  or  C += A . B.
 *
 * Operands are described by element strides, so every transposition is the same call: A(m,k) is at
 * a[m*a_rs + k*a_cs]; one of the two strides must be 1. C and R are row-major with leading dimensions.
 * A and B share a dtype (F32, BF16 or F16); C is that dtype or F32; accumulation is always in fp32.
 *
 * Parts. An fp32 x is nearly x0 + x1, with x0 = bf16(x) and x1 = bf16(x - x0); the error is at most 2^-18 |x|. The product of
 * two such numbers is computed as a0 b0 + a0 b1 + a1 b0, with an error of at most 2^-16 |a b|, most of which cancels in a sum
 * of many. Sums are fp32. If the processor multiplies matrices of bf16, three such products are faster than one of fp32;
 * elsewhere operands stay fp32. An infinity becomes NaN, and a part below 2^-126 becomes zero.
 *
 * Invariants
 *  1. Work is divided over M and N only, never over K. K is summed in blocks of GEMM_KC in increasing order, each block from
 *     zero, with one rounding into the fp32 running value per block (per strand of a block, if a kernel has them:
 *     gemm_kernel.h). An F32 C is that running value and starts as R + bias. So the result does not depend on the thread
 *     count, and for an F32 C, one call over K equals two accumulating calls over a split of K at a multiple of GEMM_KC, bit
 *     for bit.
 *  2. When C is narrower than fp32 it is rounded once, after all of K (the running sum lives in workspace),
 *     from sum + (R + bias).
 *  3. An element of C depends only on its row of A, its column of B, its R and its bias: computing some rows or columns in
 *     a separate call (a chunked loss, one token) gives the same bits.
 *  4. No allocation: the caller provides gemm_workspace() bytes.
 */
#pragma once

#include "base/threads.h"
#include "tensor/dtype.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GEMM_KC 512

struct gemm {
    int64_t m, n, k;
    const void *a;
    int64_t a_rs, a_cs; /* element strides of A over m and k */
    const void *b;
    int64_t b_rs, b_cs; /* element strides of B over k and n */
    void *c;
    int64_t c_rs;       /* row stride of C, elements */
    enum dtype ab_type; /* of A and B */
    enum dtype c_type;  /* of C: F32 or ab_type */
    const void *bias;   /* [N] of dtype ab_type, or NULL */
    bool split;         /* fp32 operands may be multiplied as sums of two bf16 parts: see "Parts" */
    /* Not NULL: A or B are bytes, and byte i stands for the bf16 number [i]; ab_type is bf16, and the strides count bytes. */
    const uint16_t *a_numbers, *b_numbers;
    const void *add; /* R [M,N] of dtype c_type, row stride c_rs, or NULL; `add == c` is C += */
};

/* Strides and types of a product of whole matrices; the operands' addresses are set afterwards. C is [M,N] in each:
 *     gemm_by_rows      A [M,K] . B [K,N]
 *     gemm_by_lines     A [M,K] . B [N,K]': its lines are columns
 *     gemm_over_rows    A [K,M]' . B [K,N] */
static inline struct gemm gemm_by_rows(int64_t m, int64_t n, int64_t k, enum dtype ab_type, enum dtype c_type)
{
    return (struct gemm){m,         n,         k,         .a_rs = k,          .a_cs = 1,
                         .b_rs = n, .b_cs = 1, .c_rs = n, .ab_type = ab_type, .c_type = c_type};
}

static inline struct gemm gemm_by_lines(int64_t m, int64_t n, int64_t k, enum dtype ab_type,
                                        enum dtype c_type)
{
    return (struct gemm){m,         n,         k,         .a_rs = k,          .a_cs = 1,
                         .b_rs = 1, .b_cs = k, .c_rs = n, .ab_type = ab_type, .c_type = c_type};
}

static inline struct gemm gemm_over_rows(int64_t m, int64_t n, int64_t k, enum dtype ab_type,
                                         enum dtype c_type)
{
    return (struct gemm){m,         n,         k,         .a_rs = 1,          .a_cs = m,
                         .b_rs = n, .b_cs = 1, .c_rs = n, .ab_type = ab_type, .c_type = c_type};
}

/* Bytes of scratch for this problem with that many threads (64-byte aligned memory expected). Pure. Bounded
 * whatever the problem: about 4 MiB shared by all and 1.2 MiB per thread at most, less for small ones. Not
 * monotone: a smaller problem may be cut differently and need more, so ask for every shape that will run. */
size_t gemm_workspace(int64_t m, int64_t n, int64_t k, enum dtype ab_type, enum dtype c_type, int threads);

/* Workspace of gemm.split, by the same rules. */
size_t gemm_split_workspace(int64_t m, int64_t n, int64_t k, enum dtype ab_type, enum dtype c_type,
                            int threads);

/* Maximum workspace over all problems that are no larger than this one in any dimension. */
size_t gemm_workspace_most(int64_t m, int64_t n, int64_t k, enum dtype ab_type, enum dtype c_type,
                           int threads);

void gemm_run(const struct gemm *g, void *workspace, struct threads *team);

/* Name of the micro-kernel in use for a dtype on this machine ("neon bfmmla 8x12", "avx512 ..."). */
const char *gemm_kernel_name(enum dtype ab_type);
