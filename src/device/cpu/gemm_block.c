/* gemm_block.c - tiles of C.
 *
 * Between blocks of k a tile lives in C itself (F32 C), in the worker's running sums (narrow C, several
 * blocks of k), or nowhere (narrow C, one block). Wherever it lives, its value goes through the same steps:
 *
 *     start = add + bias          before the first block (nothing, when there is neither)
 *     value = value + sum         after each block; the sum was made from zero by the kernel
 *     C = round(value)            after the last block, when C is narrow
 *
 * A kernel writes whole rows of a tile; where C ends inside a tile it writes beside C and the columns that
 * exist are copied.
 */
#include "device/cpu/gemm_block.h"

static inline int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* ---- the start ---- */

static void widen(float *dst, const void *src, enum dtype type, int64_t at, int n) {
    dtype_convert(dst, DT_F32, (const char *)src + at * (int64_t)dtype_size(type), type, n);
}

static void start_bf16(float *restrict tile, int64_t ld, const uint16_t *restrict add, int64_t add_ld,
                       const float *restrict bias, int rows, int cols) {
    for (int r = 0; r < rows; r++, tile += ld, add += add_ld) {
        for (int j = 0; j < cols; j++) tile[j] = bf16_to_f32(add[j]) + bias[j];
    }
}

static void start_f32(float *tile, int64_t ld, const float *add, int64_t add_ld, const float *restrict bias,
                      int rows, int cols) {
    for (int r = 0; r < rows; r++, tile += ld, add += add_ld) {
        for (int j = 0; j < cols; j++) tile[j] = add[j] + bias[j];
    }
}

/* tile[rows,cols] = add + bias. */
static void start_tile(const struct gemm *g, float *tile, int64_t ld, int64_t m, int64_t n, int rows,
                       int cols) {
    float bias[GEMM_MAX_NR] = {0}, wide[GEMM_MAX_NR];
    int64_t at = m * g->c_rs + n;
    if (g->bias) widen(bias, g->bias, g->ab_type, n, cols);
    if (!g->add) {
        for (int r = 0; r < rows; r++, tile += ld) memcpy(tile, bias, (size_t)cols * sizeof *bias);
    } else if (g->c_type == DT_BF16) {
        start_bf16(tile, ld, (const uint16_t *)g->add + at, g->c_rs, bias, rows, cols);
    } else if (g->c_type == DT_F32) {
        start_f32(tile, ld, (const float *)g->add + at, g->c_rs, bias, rows, cols);
    } else {
        for (int r = 0; r < rows; r++, tile += ld, at += g->c_rs) {
            widen(wide, g->add, g->c_type, at, cols);
            start_f32(tile, ld, wide, 0, bias, 1, cols);
        }
    }
}

/* ---- the end ---- */

static void copy_tile(float *dst, int64_t dst_ld, const float *src, int64_t src_ld, int rows, int cols) {
    for (int r = 0; r < rows; r++, dst += dst_ld, src += src_ld) memcpy(dst, src, (size_t)cols * sizeof *dst);
}

static void round_tile(const struct gemm_block *block, const float *tile, uint16_t *c, int rows, int cols) {
    const struct gemm *g = block->g;
    if (g->c_type == DT_BF16) {
        block->kernel->round(c, g->c_rs, tile, rows, cols);
        return;
    }
    for (int r = 0; r < rows; r++, c += g->c_rs, tile += block->kernel->nr) {
        dtype_convert(c, g->c_type, tile, DT_F32, cols);
    }
}

/* ---- one tile ---- */

struct tile {
    const char *a, *b; /* panels */
    bool packed;       /* b is */
    int64_t m, n;
    int rows, cols;
};

static void run(const struct gemm_block *block, const struct tile *t, float *c, int64_t ldc,
                bool accumulate) {
    if (t->packed) {
        block->kernel->run(t->a, t->b, block->depth, c, ldc, t->rows, accumulate);
    } else {
        block->kernel->few(t->a, t->b, block->g->b_cs, block->depth, c, ldc, t->rows, accumulate);
    }
}

static void tile_in_c(const struct gemm_block *block, const struct tile *t) {
    const struct gemm *g = block->g;
    float *c = (float *)g->c + t->m * g->c_rs + t->n;
    if (block->k == 0 && (g->bias || (g->add && g->add != g->c))) {
        start_tile(g, c, g->c_rs, t->m, t->n, t->rows, t->cols);
    }
    run(block, t, c, g->c_rs, block->k > 0 || g->add || g->bias);
}

/* F32 C, but it ends inside the tile. */
static void tile_at_edge(const struct gemm_block *block, const struct tile *t) {
    const struct gemm *g = block->g;
    int nr = block->kernel->nr;
    _Alignas(64) float tile[GEMM_MAX_MR * GEMM_MAX_NR] = {0};
    float *c = (float *)g->c + t->m * g->c_rs + t->n;
    if (block->k > 0) {
        copy_tile(tile, nr, c, g->c_rs, t->rows, t->cols);
    } else if (g->add || g->bias) {
        start_tile(g, tile, nr, t->m, t->n, t->rows, t->cols);
    }
    run(block, t, tile, nr, block->k > 0 || g->add || g->bias);
    copy_tile(c, g->c_rs, tile, nr, t->rows, t->cols);
}

/* Narrow C: the value lives in sums, or in no place at all when this block of k is the only one. */
static void tile_narrow(const struct gemm_block *block, const struct tile *t, float *sums) {
    const struct gemm *g = block->g;
    const struct gemm_kernel *kernel = block->kernel;
    _Alignas(64) float stack[GEMM_MAX_MR * GEMM_MAX_NR];
    float *tile = sums ? sums : stack;
    uint16_t *c = (uint16_t *)g->c + t->m * g->c_rs + t->n;
    bool accumulate = block->k > 0 || g->add || g->bias, whole = t->cols == kernel->nr;
    if (block->k == 0 && accumulate) {
        if (!whole) memset(tile, 0, (size_t)(t->rows * kernel->nr) * sizeof *tile);
        start_tile(g, tile, kernel->nr, t->m, t->n, t->rows, t->cols);
    }
    bool last = block->k + block->depth >= g->k,
         fused = kernel->run_round && g->c_type == DT_BF16 && t->packed;
    if (last && fused && whole && t->rows == kernel->mr) {
        kernel->run_round(t->a, t->b, block->depth, accumulate ? tile : NULL, c, g->c_rs);
        return;
    }
    run(block, t, tile, kernel->nr, accumulate);
    if (last) round_tile(block, tile, c, t->rows, t->cols);
}

/* ---- the block ---- */

/* Panel j of B: packed by the caller, or in place; a panel that is not whole is packed here. */
static void find_panel(const struct gemm_block *block, int64_t j, struct tile *t) {
    const struct gemm *g = block->g;
    const struct gemm_kernel *kernel = block->kernel;
    int64_t size = (int64_t)dtype_size(kernel->type), line = j * kernel->nr;
    t->cols = (int)least(kernel->nr, block->cols - line);
    t->n = block->n + line;
    t->packed = !block->in_place;
    t->b = block->b +
           (block->in_place ? line * g->b_cs : j * gemm_panel(kernel, kernel->nr, block->depth)) * size;
    if (block->in_place && t->cols < kernel->nr) {
        gemm_pack_side(kernel, false, block->spare, t->b, g->ab_type, g->b_cs, g->b_rs, t->cols,
                       block->depth);
        t->b = block->spare;
        t->packed = true;
    }
}

void gemm_block_multiply(const struct gemm_block *block) {
    const struct gemm_kernel *kernel = block->kernel;
    int64_t a_step = gemm_panel(kernel, kernel->mr, block->depth) * (int64_t)dtype_size(kernel->type);
    bool f32 = block->g->c_type == DT_F32;
    float *sums = block->sums;
    struct tile t = {0};
    for (int64_t j = 0; j * kernel->nr < block->cols; j++) {
        find_panel(block, j, &t);
        t.a = block->a;
        for (int64_t i = 0; i < block->rows; i += kernel->mr, t.a += a_step) {
            t.m = block->m + i;
            t.rows = (int)least(kernel->mr, block->rows - i);
            if (!f32) {
                tile_narrow(block, &t, sums);
                if (sums) sums += kernel->mr * kernel->nr;
            } else if (t.cols == kernel->nr) {
                tile_in_c(block, &t);
            } else {
                tile_at_edge(block, &t);
            }
        }
    }
}
