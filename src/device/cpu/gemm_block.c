/* gemm_block.c - tiles of C.
 *
 * Between blocks of k a tile lives in C itself (F32 C), in the worker's running sums (narrow C, several
 * blocks of k), or nowhere (narrow C, one block). Its value goes through these steps, the same ones however
 * the problem is cut; every sum is made from zero by the kernel:
 *
 *     F32 C       C = add + bias; C = C + sum after each block of k
 *     narrow C    value = value + sum after each block; after the last one C = round(value + (add + bias))
 *
 * A kernel writes whole rows of a tile; where C ends inside a tile it writes beside C and the columns that
 * exist are copied.
 */
#include "device/cpu/gemm_block.h"
#include "base/minmax.h"

/* A tile under way. */
struct tile {
    const char *a, *b; /* panels */
    int64_t m, n;
    int rows, cols;
    float bias[GEMM_MAX_NR]; /* of these columns; zero where there is none */
};

/* ---- add and bias ---- */

static void widen(float *dst, const void *src, enum dtype type, int64_t at, int n)
{
    dtype_convert(dst, DT_F32, (const char *)src + at * (int64_t)dtype_size(type), type, n);
}

/* extra[cols] = add + bias for one row of a tile; at least one of the two is there. */
static void find_extra(const struct gemm *g, const struct tile *t, int row, float *extra)
{
    if (!g->add) {
        for (int j = 0; j < t->cols; j++) extra[j] = t->bias[j];
        return;
    }
    if (g->c_type == DT_F32) {
        const float *add = (const float *)g->add + (t->m + row) * g->c_rs + t->n;
        for (int j = 0; j < t->cols; j++) extra[j] = add[j] + t->bias[j];
        return;
    }
    widen(extra, g->add, g->c_type, (t->m + row) * g->c_rs + t->n, t->cols);
    for (int j = 0; j < t->cols; j++) extra[j] += t->bias[j];
}

static void start_tile(const struct gemm *g, const struct tile *t, float *value, int64_t ld)
{
    for (int r = 0; r < t->rows; r++) find_extra(g, t, r, value + r * ld);
}

/* C = round(value + (add + bias)), value's rows nr apart. */
static void finish_tile(const struct gemm_block *block, const struct tile *t, float *value)
{
    const struct gemm *g = block->g;
    uint16_t *c = (uint16_t *)g->c + t->m * g->c_rs + t->n;
    int nr = block->kernel->nr;
    for (int r = 0; (g->add || g->bias) && r < t->rows; r++) {
        float extra[GEMM_MAX_NR];
        find_extra(g, t, r, extra);
        for (int j = 0; j < t->cols; j++) value[r * nr + j] += extra[j];
    }
    if (g->c_type == DT_BF16) {
        block->kernel->round(c, g->c_rs, value, t->rows, t->cols);
        return;
    }
    for (int r = 0; r < t->rows; r++, c += g->c_rs)
        dtype_convert(c, g->c_type, value + r * nr, DT_F32, t->cols);
}

static void copy_tile(float *dst, int64_t dst_ld, const float *src, int64_t src_ld, int rows, int cols)
{
    for (int r = 0; r < rows; r++, dst += dst_ld, src += src_ld) memcpy(dst, src, (size_t)cols * sizeof *dst);
}

/* ---- one tile ---- */

static void run(const struct gemm_block *block, const struct tile *t, float *c, int64_t ldc, bool accumulate)
{
    block->kernel->run(t->a, t->b, block->depth, c, ldc, t->rows, accumulate);
}

static void tile_in_c(const struct gemm_block *block, const struct tile *t)
{
    const struct gemm *g = block->g;
    float *c = (float *)g->c + t->m * g->c_rs + t->n;
    if (block->k == 0 && (g->bias || (g->add && g->add != g->c))) {
        start_tile(g, t, c, g->c_rs);
    }
    run(block, t, c, g->c_rs, block->k > 0 || g->add || g->bias);
}

/* tile_in_c for a kernel that reads and writes C once; prefetches `bytes` of `next` meanwhile. */
static void tile_onto_c(const struct gemm_block *block, const struct tile *t, const char *next, int64_t bytes)
{
    const struct gemm *g = block->g;
    int64_t at = t->m * g->c_rs + t->n;
    float *c = (float *)g->c + at;
    struct gemm_onto onto = {.add = c, .next = next, .bytes = bytes};
    if (block->k == 0) {
        onto.add = g->add ? (const float *)g->add + at : NULL;
        onto.bias = g->bias ? t->bias : NULL;
    }
    block->kernel->run_onto(t->a, t->b, block->depth, c, g->c_rs, t->rows, &onto);
}

/* F32 C, but it ends inside the tile. */
static void tile_at_edge(const struct gemm_block *block, const struct tile *t)
{
    const struct gemm *g = block->g;
    int nr = block->kernel->nr;
    _Alignas(64) float tile[GEMM_MAX_MR * GEMM_MAX_NR] = {0};
    float *c = (float *)g->c + t->m * g->c_rs + t->n;
    if (block->k > 0) {
        copy_tile(tile, nr, c, g->c_rs, t->rows, t->cols);
    } else if (g->add || g->bias) {
        start_tile(g, t, tile, nr);
    }
    run(block, t, tile, nr, block->k > 0 || g->add || g->bias);
    copy_tile(c, g->c_rs, tile, nr, t->rows, t->cols);
}

/* The last block of k for a whole tile of a bf16 C, where the kernel can finish a tile itself. */
static inline void tile_rounded(const struct gemm_block *block, const struct tile *t, const float *sums)
{
    const struct gemm *g = block->g;
    int64_t at = t->m * g->c_rs + t->n;
    block->kernel->run_round(t->a, t->b, block->depth, block->k == 0 ? NULL : sums,
                             g->add ? (const uint16_t *)g->add + at : NULL, g->bias ? t->bias : NULL,
                             (uint16_t *)g->c + at, g->c_rs);
}

/* Narrow C: the value lives in sums, or in no place at all when this block of k is the only one. */
static void tile_narrow(const struct gemm_block *block, const struct tile *t, float *sums)
{
    const struct gemm_kernel *kernel = block->kernel;
    bool first = block->k == 0, last = block->k + block->depth >= block->g->k;
    _Alignas(64) float stack[GEMM_MAX_MR * GEMM_MAX_NR];
    float *value = sums ? sums : stack;
    run(block, t, value, kernel->nr, !first);
    if (last) finish_tile(block, t, value);
}

/* ---- the block ---- */

/* Panel j of B. */
static void find_panel(const struct gemm_block *block, int64_t j, struct tile *t)
{
    const struct gemm *g = block->g;
    const struct gemm_kernel *kernel = block->kernel;
    int64_t size = (int64_t)dtype_size(kernel->type), line = j * kernel->nr;
    t->cols = (int)min64(kernel->nr, block->cols - line);
    t->n = block->n + line;
    if (g->bias) widen(t->bias, g->bias, g->ab_type, t->n, t->cols);
    t->b = block->b + j * gemm_panel(kernel, kernel->nr, block->depth) * size;
}

/* `bytes` of the panel of B after this one, which nobody has touched since it was packed. */
static inline void prefetch_next(const char *at, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
}

void gemm_block_multiply(const struct gemm_block *block)
{
    const struct gemm_kernel *kernel = block->kernel;
    int64_t size = (int64_t)dtype_size(kernel->type);
    int64_t a_step = gemm_panel(kernel, kernel->mr, block->depth) * size;
    int64_t b_step = gemm_panel(kernel, kernel->nr, block->depth) * size;
    int64_t share = b_step * kernel->mr / (block->rows + kernel->mr) + 64; /* to prefetch with each tile */
    bool f32 = block->g->c_type == DT_F32, last = block->k + block->depth >= block->g->k;
    bool rounded = kernel->run_round && block->g->c_type == DT_BF16 && last;
    bool onto = kernel->run_onto && f32;
    float *sums = block->sums;
    struct tile t = {0};
    for (int64_t j = 0; j * kernel->nr < block->cols; j++) {
        find_panel(block, j, &t);
        const char *next = t.b + b_step;
        t.a = block->a;
        for (int64_t i = 0; i < block->rows; i += kernel->mr, t.a += a_step, next += share) {
            t.m = block->m + i;
            t.rows = (int)min64(kernel->mr, block->rows - i);
            if (onto && t.cols == kernel->nr) {
                tile_onto_c(block, &t, next, share);
                continue;
            }
            prefetch_next(next, share);
            if (!f32) {
                if (rounded && t.cols == kernel->nr && t.rows == kernel->mr) {
                    tile_rounded(block, &t, sums);
                } else {
                    tile_narrow(block, &t, sums);
                }
                if (sums) sums += kernel->mr * kernel->nr;
            } else if (t.cols == kernel->nr) {
                tile_in_c(block, &t);
            } else {
                tile_at_edge(block, &t);
            }
        }
    }
}
