/* gemm_few_amx.c - few rows of bf16 with tiles: see gemm_few.h.
 *
 * tdpbf16ps wants the lines of its first operand whole and the second one's k in pairs. The packed kernel gives it A and B;
 * here it is the other way round: 16 lines of B, read where they lie, are the first operand, and A, packed in pairs, is the
 * second. A product has two factors, and the order of k is the same, so the bits are. A tile has place for 16 rows of A,
 * and 16 take no longer than one. */
#include "device/cpu/gemm_few_x86.h"
#include "device/cpu/gemm_x86.h"

#if defined(__x86_64__)

enum {
    SIDE = 16, /* lines of a tile, and rows */
    STEP = 32, /* of k */
    LINES = 4 * SIDE,
    TILES = 4,
};

/* [k / 2][row][k % 2], zeros up to a whole step; rows that are missing are zero. */
static void pack(void *dst, const void *src, enum dtype, int64_t rs, int rows, int64_t k)
{
    const uint16_t *from = src;
    uint16_t *to = dst;
    memset(to, 0, (size_t)((k + STEP - 1) / STEP * STEP * SIDE) * sizeof *to);
    for (int r = 0; r < rows; r++)
        for (int64_t i = 0; i < k; i++) to[i / 2 * 2 * SIDE + 2 * r + i % 2] = from[r * rs + i];
}

/* One step of k for `tiles` tiles of lines, which is a constant in every caller. */
GEMM_AMX_CODE FEW_INLINE void multiply_step(const uint16_t *a, const uint16_t *b, int64_t step, int tiles)
{
    size_t bytes = (size_t)step * sizeof *b;
    _tile_loadd(7, a, 64);
    _tile_loadd(4, b, bytes);
    _tile_dpbf16ps(0, 4, 7);
    if (tiles == 1) return;
    _tile_loadd(5, b + SIDE * step, bytes);
    _tile_dpbf16ps(1, 5, 7);
    _tile_loadd(6, b + 2 * SIDE * step, bytes);
    _tile_dpbf16ps(2, 6, 7);
    _tile_loadd(4, b + 3 * SIDE * step, bytes);
    _tile_dpbf16ps(3, 4, 7);
}

/* Lines, or k, that do not fill a tile go through a copy. */
GEMM_AMX_CODE FEW_INLINE void multiply_copy(const uint16_t *a, const uint16_t *b, int64_t step, int lines,
                                            int64_t k)
{
    _Alignas(64) uint16_t copy[SIDE * STEP];
    few_copy_lines((char *)copy, 64, SIDE, (const char *)b, 2 * step, lines, 2 * k);
    __asm__ volatile("" ::: "memory"); /* gcc does not know that tile loads read memory */
    multiply_step(a, copy, STEP, 1);
}

/* sums[row][line] = tile[line][row] */
static void put(const float *tile, const struct gemm_few_block *p, int line)
{
    for (int r = 0; r < p->rows; r++)
        for (int l = 0; l < SIDE; l++) p->sums[r * p->width + line + l] = tile[l * SIDE + r];
}

/* 64 lines at once, k in whole steps. */
GEMM_AMX_CODE static void along_whole(const struct gemm_few_block *p)
{
    const uint16_t *a = p->a, *b = p->b;
    _Alignas(64) float tile[TILES][SIDE * SIDE];
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < p->k; k += STEP, a += STEP * SIDE, b += STEP) {
        multiply_step(a, b, p->step, TILES);
    }
    _tile_stored(0, tile[0], 64);
    _tile_stored(1, tile[1], 64);
    _tile_stored(2, tile[2], 64);
    _tile_stored(3, tile[3], 64);
    for (int i = 0; i < TILES; i++) put(tile[i], p, i * SIDE);
}

/* Any lines and any k, a tile at a time. */
GEMM_AMX_CODE static void along_edge(const struct gemm_few_block *p)
{
    for (int line = 0; line < p->cols; line += SIDE) {
        const uint16_t *a = p->a, *b = (const uint16_t *)p->b + line * p->step;
        int lines = p->cols - line < SIDE ? p->cols - line : SIDE;
        _Alignas(64) float tile[SIDE * SIDE];
        _tile_zero(0);
        for (int64_t k = 0; k < p->k; k += STEP, a += STEP * SIDE, b += STEP) {
            if (lines == SIDE && k + STEP <= p->k)
                multiply_step(a, b, p->step, 1);
            else
                multiply_copy(a, b, p->step, lines, p->k - k < STEP ? p->k - k : STEP);
        }
        _tile_stored(0, tile, 64);
        put(tile, p, line);
    }
}

static void along(const struct gemm_few_block *p)
{
    gemm_amx_set_up_thread();
    __asm__ volatile("" ::: "memory"); /* A is packed: gcc does not know that tile loads read memory */
    if (p->cols == LINES && p->k % STEP == 0)
        along_whole(p);
    else
        along_edge(p);
}

const struct gemm_few gemm_few_amx_bf16 = {"amx tdpbf16ps", SIDE, LINES, 2, pack, along, NULL};

#endif
