/* gemm_few.h - products of few rows (generation): B is read in place, once, from end to end.
 *
 *     const struct gemm_few *few = gemm_few_for(&g);          // NULL: pack B (gemm.c)
 *     if (few) gemm_few_run(few, &g, workspace, team);        // gemm_few_workspace() bytes
 *
 * With few rows, every element of B is used only a few times: packing it would cost more than multiplying, and speed depends
 * on how fast B comes from memory. So a kernel here reads several lines of B side by side along k, reorders and, if
 * necessary, widens them in registers. Only A is packed.
 *
 * Invariants
 *  1. Results equal those of the packed kernels bit for bit (gemm.h, 3). A sum over a block of k starts at zero and uses the
 *     same operations in the same order as the kernel of that level and type (gemm_kernel.h); the steps after it are those of
 *     gemm_block.c.
 *  2. Nothing outside B is read: lines and k that do not fill a kernel's step are first copied.
 */
#pragma once

#include "device/cpu/gemm.h"
#include <string.h>

enum {
    GEMM_FEW_ROWS = 16,   /* maximum of any kernel */
    GEMM_FEW_WIDTH = 256, /* maximum columns of C computed at once */
};

/* Packs rows of A over one block of k (at most GEMM_KC): rows of `type`, contiguous over k, rs elements apart. */
typedef void gemm_few_pack(void *dst, const void *src, enum dtype type, int64_t rs, int rows, int64_t k);

/* sums[rows][width] = A.B over one block of k; a is packed. B has `cols` columns from b on, `step` elements
 * apart: contiguous over k (along; cols <= width), or rows contiguous over columns (across; step is from k to
 * k). */
struct gemm_few_block {
    const void *a, *b;
    int64_t step, k;
    int rows, cols, width;
    /* along: data read after this block, as many bytes as this block has; NULL: unknown. */
    const char *ahead;
    /* along: where b will be in the block after this one; NULL: unknown. */
    const char *next;
    int strand;  /* only k % strands == strand, if a kernel sums in strands */
    float *sums; /* 64-byte aligned */
};
typedef void gemm_few_multiply(const struct gemm_few_block *block);

/* value[rows][width] = value + A.B over all of k, like `along`, one block of k after the other: for kernels
 * that traverse k in their own order. Blocks of A are a_step bytes apart. */
struct gemm_few_tile {
    const void *a, *b;
    int64_t a_step, step, k;
    int rows, cols, width;
    const char *ahead; /* address of bytes that are read soon, in the order of reading */
    float *value;      /* 64-byte aligned */
};
typedef void gemm_few_whole(const struct gemm_few_tile *tile);

struct gemm_few {
    const char *name;
    int rows;  /* maximum */
    int lines; /* columns of B that `along` processes at once */
    int unit;  /* bytes of an element of packed A, whose block has `rows` rows of GEMM_KC */
    gemm_few_pack *pack;
    gemm_few_multiply *along;  /* B is contiguous over k */
    gemm_few_multiply *across; /* B is contiguous over columns; NULL: pack it */
    gemm_few_whole *whole;     /* replaces `along`; may read one more row of A if their number is odd */
    int strands;               /* as in gemm_kernel.h */
};

/* Rows of A as f32, GEMM_KC apart. */
void gemm_few_widen(void *dst, const void *src, enum dtype type, int64_t rs, int rows, int64_t k);
/* Copies rows of 16 bits, GEMM_KC apart, with zeros up to a multiple of 32. */
void gemm_few_keep(void *dst, const void *src, enum dtype type, int64_t rs, int rows, int64_t k);

#define FEW_INLINE static inline __attribute__((always_inline))

/* Copies lines that do not fill a group, or k that do not fill a step, with zeros after k. Lines are `stride`
 * bytes apart in dst, which has room for `count`; missing lines repeat the last one. */
FEW_INLINE void few_copy_lines(char *dst, int64_t stride, int count, const char *src, int64_t step, int lines,
                               int64_t bytes)
{
    for (int l = 0; l < count; l++, dst += stride) {
        memcpy(dst, src + (l < lines ? l : lines - 1) * step, (size_t)bytes);
        memset(dst + bytes, 0, (size_t)(stride - bytes));
    }
}

/* Named for the instructions, then the type of A and B. */
#if defined(__aarch64__)
extern const struct gemm_few gemm_few_neon_f32, gemm_few_neon_bf16, gemm_few_neon_f16, gemm_few_bfmmla,
    gemm_few_fmlal;
#endif
#if defined(__x86_64__)
extern const struct gemm_few gemm_few_avx2_f32, gemm_few_avx2_bf16, gemm_few_avx2_f16, gemm_few_avx512_f32,
    gemm_few_avx512_bf16, gemm_few_avx512_f16, gemm_few_vdpbf16ps, gemm_few_amx_bf16;
#endif

/* The kernel for this problem on this machine; NULL: none. */
const struct gemm_few *gemm_few_for(const struct gemm *g);

size_t gemm_few_workspace(int64_t m, int64_t k, enum dtype ab_type);
void gemm_few_run(const struct gemm_few *few, const struct gemm *g, void *workspace, struct threads *team);
