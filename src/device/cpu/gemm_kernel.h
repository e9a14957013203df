/* gemm_kernel.h - the micro-kernel interface: what an instruction set must provide to multiply matrices.
 *
 * A kernel multiplies a packed panel of A (mr rows) by a packed panel of B (nr columns) into an fp32 tile of
 * C. "Lines" are the rows of A or the columns of B: both sides are packed by one rule. A panel holds `width`
 * lines (mr or nr) over k, with k rounded up to a multiple of kg; element (line, k) lies at
 *
 *     panel[((k / kg) * width + line) * kg + k % kg]
 *
 * Missing k are zero. Missing lines have arbitrary contents: their products are never stored. kg is 1 for fp32, and for bf16
 * the number of k that one instruction sums. (AMX packs B by the same rule with pairs of k inside its groups of 32.) Kernels
 * load ahead: GEMM_SLACK bytes after the last panel must be readable.
 *
 * Invariants
 *  1. run() starts its sums at zero, adds products in increasing k, and adds the sum to C once: the value of an element
 *     depends only on its two lines and k, not on `rows` or on other lines.
 *  2. Only pack functions write panels and only kernels read them; no other code knows the layout.
 */
#pragma once

#include "device/cpu/cpu_features.h"
#include "tensor/dtype.h"
#include <stdbool.h>
#include <stdint.h>

enum {
    GEMM_MAX_MR = 32,
    GEMM_MAX_NR = 32,
    GEMM_SLACK = 128,
};

/* Packs `lines` lines over k elements, from src(line,k) = src[line*ls + k*ks], into consecutive panels that
 * are `stride` elements apart. */
typedef void gemm_pack(void *dst, int64_t stride, const void *src, int64_t ls, int64_t ks, int64_t lines,
                       int64_t k);

/* Defines a gemm_pack of panels of a fixed width, by pack(dst, stride, width, src, ls, ks, lines, k). */
#define GEMM_PACK(name, width, pack)                                                                         \
    void name(void *dst, int64_t stride, const void *src, int64_t ls, int64_t ks, int64_t lines, int64_t k)  \
    {                                                                                                        \
        pack(dst, stride, width, src, ls, ks, lines, k);                                                     \
    }

/* C[rows,nr] = A.B or += (rows <= mr; all nr columns are written). */
typedef void gemm_tile(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows,
                       bool accumulate);

/* C[rows,cols] = tile, rounded to bf16; the tile's rows are nr apart. */
typedef void gemm_round(uint16_t *c, int64_t ldc, const float *tile, int rows, int cols);

/* C[mr,nr] = (sums + A.B) + (add + bias), rounded to bf16. Each of the three may be NULL: fp32 sums with rows
 * nr apart, bf16 add with rows ldc apart (it may be c), fp32 bias[nr]. Whole tiles only. */
typedef void gemm_tile_round(const void *a, const void *b, int64_t k, const float *sums, const uint16_t *add,
                             const float *bias, uint16_t *c, int64_t ldc);

/* Operands added to a tile of an F32 C. add: rows ldc apart, may be C itself; bias[nr]; either may be NULL. */
struct gemm_onto {
    const float *add, *bias;
    const char *next; /* `bytes` that the next tiles will read; prefetched meanwhile */
    int64_t bytes;
};

/* C[rows,nr] = (add + bias) + A.B (rows <= mr; all nr columns are written). */
typedef void gemm_tile_onto(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows,
                            const struct gemm_onto *onto);

struct gemm_kernel {
    const char *name;
    int mr, nr, kg;
    enum dtype type; /* type of packed data; packers for it exist */
    int parts;       /* not 0: an element is packed as this many bf16 */
    /* Not 0: k are summed in this many interleaved strands, each completed and added to C before the next;
     * packed strand by strand. */
    int strands;
    /* Bytes of A that a worker packs for itself, if the usual number would read B too often; 0: the usual. */
    int own_bytes;
    /* Bytes of A, at most, that all workers share while each packs its part of a B that is contiguous over k for itself;
     * 0: the usual. */
    int shared_a_bytes;
    /* By type of the source; NULL: converted to `type` first. */
    gemm_pack *pack_a[DT_COUNT], *pack_b[DT_COUNT];
    gemm_tile *run;
    gemm_round *round;
    gemm_tile_round *run_round; /* optional: run and round in one, without intermediate memory */
    gemm_tile_onto *run_onto;   /* optional: C is written once, and prefetched during the products */
};

extern const struct gemm_kernel gemm_plain_f32;
#if defined(__aarch64__)
extern const struct gemm_kernel gemm_neon_f32, gemm_neon_bf16, gemm_neon_f16, gemm_neon_split;
#endif
#if defined(__x86_64__)
extern const struct gemm_kernel gemm_avx2_f32, gemm_avx512_f32, gemm_avx512_bf16, gemm_amx_bf16,
    gemm_amx_split;
#endif

/* The kernel for arithmetic in `type` (F32, BF16, F16) at a level that cpu_has(). */
const struct gemm_kernel *gemm_kernel_at(enum cpu_level level, enum dtype type);

/* The kernel for fp32 products as sums of two bf16 parts; gemm_kernel_at(level, DT_F32) if the level has none
 * that is faster. */
const struct gemm_kernel *gemm_kernel_split(enum cpu_level level);

/* Size of `elements` once packed, in elements of the kernel's type. */
static inline int64_t gemm_packed(const struct gemm_kernel *kernel, int64_t elements)
{
    return kernel->parts ? elements * kernel->parts * 2 / (int64_t)dtype_size(kernel->type) : elements;
}

/* Elements of a panel of `width` lines over k. */
int64_t gemm_panel(const struct gemm_kernel *kernel, int width, int64_t k);

/* Packs one side (true: A, false: B) from any floating source type, converting if necessary. Panels are
 * gemm_panel(...) apart. */
void gemm_pack_side(const struct gemm_kernel *kernel, bool side_a, void *dst, const void *src,
                    enum dtype src_type, int64_t ls, int64_t ks, int64_t lines, int64_t k);

/* gemm_pack_side from bytes: byte i stands for the bf16 number numbers[i]. */
void gemm_pack_bytes(const struct gemm_kernel *kernel, bool side_a, void *dst, const uint8_t *src,
                     const uint16_t *numbers, int64_t ls, int64_t ks, int64_t lines, int64_t k);

/* Rounding in portable C, for kernels without a better way. */
void gemm_round_plain(uint16_t *c, int64_t ldc, const float *tile, int nr, int rows, int cols);

/* Packing in portable C, for any strides; vector packers use it at edges. */
void gemm_pack_f32_plain(float *dst, int64_t stride, int width, const float *src, int64_t ls, int64_t ks,
                         int64_t lines, int64_t k);
void gemm_pack_bf16_plain(uint16_t *dst, int64_t stride, int width, int kg, const uint16_t *src, int64_t ls,
                          int64_t ks, int64_t lines, int64_t k);
